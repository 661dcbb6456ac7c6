package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// completionTimeout is how long a shell waits for what a daemon knows.
const completionTimeout = time.Second

// CompleteHosts completes the last of a flag's values, which have commas between, by the
// other hosts that the daemon at a socket knows. Errors are not reported to a shell in the
// middle of a line.
func CompleteHosts(cmd *cobra.Command, flag string, socket *string) {
	CompleteList(cmd, flag, func() (names []string) {
		conn, err := grpc.NewClient("unix:"+Socket(*socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil
		}
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		defer cancel()
		d, err := mcrdmav1.NewApplicationsClient(conn).GetDaemon(ctx, &mcrdmav1.GetDaemonRequest{})
		if err != nil {
			return nil
		}
		for _, p := range d.GetPeers() {
			if p.GetHost() != "" {
				names = append(names, Clean(p.GetHost()))
			}
		}
		return names
	})
}
