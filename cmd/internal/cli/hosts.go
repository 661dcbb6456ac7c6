package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// completionTimeout is how long a shell waits for daemons and agents.
const completionTimeout = time.Second

// CompleteHosts completes the last of a flag's comma-separated values by the other hosts that the
// daemon at a socket knows. It does not report errors, which would disturb the command line.
func CompleteHosts(cmd *cobra.Command, flag string, socket *string) {
	CompleteList(cmd, flag, func() (names []string) {
		d, err := DialDaemon(Socket(*socket), "completion", completionTimeout)
		if err != nil {
			return nil
		}
		defer d.Close()
		r, err := d.GetDaemon(context.Background(), &mcrdmav1.GetDaemonRequest{})
		if err != nil {
			return nil
		}
		for _, p := range r.GetPeers() {
			if p.GetHost() != "" {
				names = append(names, p.GetHost())
			}
		}
		return names
	})
}

// CompleteArg completes a command's only argument by what list finds within a second. It does not
// report errors, which would disturb the command line.
func CompleteArg(list func(context.Context) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (values []string, _ cobra.ShellCompDirective) {
		if len(args) == 0 {
			ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
			defer cancel()
			values, _ = list(ctx)
		}
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}
