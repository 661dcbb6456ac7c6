// Package cli is what the commands have in common: how they are run and fail, how they
// show results, and words for people.
//
// It may import the standard library, cobra, go-pretty, grpc, protobuf, pkg/mcrdma and x/sys.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes.
const (
	ExitOK      = 0
	ExitFailure = 1 // something failed
	ExitUsage   = 2 // the command was called wrongly
)

// Run runs a whole program, and returns its exit code. Errors go to stderr.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.Version = Version()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.AddCommand(manCommand())
	Parent(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
			if like := similarFlag(cmd, unknown.GetSpecifiedName()); like != "" {
				return Usagef("%w; did you mean --%s?", err, like)
			}
		}
		return UsageError{err}
	})
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		unquote(root)
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	var usage UsageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s: %v\nSee \"%[1]s --help\".\n", cmd.CommandPath(), err)
		return ExitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
	return ExitFailure
}

// Parent makes a command one that only has sub-commands.
func Parent(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if cmd.SuggestionsMinimumDistance = 2; len(cmd.SuggestionsFor(args[0])) > 0 {
				return Usagef("there is no sub-command %q; did you mean %s?", args[0], Enumeration(cmd.SuggestionsFor(args[0])))
			}
			return Usagef("there is no sub-command %q; the sub-commands are: %s", args[0], strings.Join(subcommands(cmd), ", "))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// unquote takes the quotes out of the flags' descriptions, in which help texts find the name
// of a flag's value: shells show them as they are.
func unquote(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "`", "") })
	for _, c := range cmd.Commands() {
		unquote(c)
	}
}

// similarFlag is the flag that was perhaps meant; "": none is like it.
func similarFlag(cmd *cobra.Command, name string) (best string) {
	flags := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	if like := flags.SuggestionsFor(name); len(name) > 1 && len(like) > 0 {
		return like[0]
	}
	return ""
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

// A UsageError tells that the command line is wrong.
type UsageError struct{ error }

// Usage makes an error one of usage.
func Usage(err error) error { return UsageError{err} }

// Usagef makes an error of usage.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Unwrap returns the error itself.
func (e UsageError) Unwrap() error { return e.error }

// Version is that of the program, as the Go tool recorded it.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown version)"
	}
	return info.Main.Version
}
