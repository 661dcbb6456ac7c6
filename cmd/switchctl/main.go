// Command switchctl runs and controls switches. Its sub-command softswitch is the
// embedded P4 switch.
//
// It exits with 0 if all went well, 1 if something failed, and 2 if it was
// called wrongly.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program. The end of ctx ends it as SIGTERM does.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "switchctl",
		Short: "Run and control P4 switches",
		Long: `switchctl runs and controls P4 switches.

Each sub-command explains itself: switchctl softswitch --help`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("there is no sub-command %q; the sub-commands are: %s", args[0], strings.Join(subcommands(cmd), ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(softswitchCommand())
	root.AddCommand(statusCommand(), routesCommand(), countersCommand(), groupsCommand(), groupCommand(), topCommand(), doctorCommand())
	root.AddCommand(agentCommand(), planCommand(), pipelineCommand())
	root.SetArgs(softswitchArgs(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s: %v\nSee \"%[1]s --help\".\n", cmd.CommandPath(), err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
	return exitFailure
}

// subcommands are the names of a command's sub-commands, in order.
func subcommands(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// A usageError tells that the command line is wrong.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown version)"
	}
	return info.Main.Version
}
