// Package cli is the common part of the commands: how they run and fail, and how they print
// results.
package cli

import (
	"context"
	"encoding/json"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/internal/cmdline"
)

// Exit codes.
const (
	ExitOK      = cmdline.ExitOK
	ExitFailure = cmdline.ExitFailure
	ExitUsage   = cmdline.ExitUsage
)

// Run runs a whole program, and returns its exit code. Errors go to stderr, as JSON if the
// command's output is JSON. The manual includes the pages of its configurations.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer, pages ...ConfigPage) int {
	root.Version = Version()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.AddCommand(manCommand(pages))
	Parent(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return cmdline.Unknown(cmd.Flags(), err) })
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		unquote(root)
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	strict(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil || !wantsJSON(cmd, args) {
		return cmdline.Exit(cmd.CommandPath(), err, stderr)
	}
	code := cmdline.Exit("", err, io.Discard)
	_ = json.NewEncoder(stderr).Encode(struct { // a closed terminal shows no error
		Command string `json:"command"`
		Error   string `json:"error"`
		Exit    int    `json:"exit"`
	}{cmd.CommandPath(), err.Error(), code})
	return code
}

// wantsJSON reports whether a command's output is JSON, by the flags that it has parsed or, after a
// wrong flag, would have parsed.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	f := cmd.Flags().Lookup("output")
	if f == nil {
		return false
	}
	o, ok := f.Value.(*Output)
	line := " " + strings.Join(args, " ") + " "
	return ok && (o.IsJSON() || !f.Changed && slices.ContainsFunc([]string{"--json", "-o json", "-ojson", "--output json", "--output=json"},
		func(said string) bool { return strings.Contains(line, " "+said+" ") }))
}

// strict makes "completion" and "help" refuse unknown words, and write to root's current output.
func strict(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion":
			Parent(c)
			for _, shell := range c.Commands() {
				shell.Args = NoArgs
			}
			c.Args = func(_ *cobra.Command, args []string) error {
				if len(args) > 0 {
					return Usagef("there is no completion for shell %q, but for %s", args[0], strings.Join(subcommands(c), ", "))
				}
				return nil
			}
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				switch {
				case err != nil || about.HasAvailableSubCommands():
					return about.Args(about, rest)
				case len(rest) > 0:
					return Usagef("%s has no subcommand %q", about.CommandPath(), rest[0])
				}
				return nil
			}
		}
	}
}

// Parent makes a command one that only has subcommands.
func Parent(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if cmd.SuggestionsMinimumDistance = 2; len(cmd.SuggestionsFor(args[0])) > 0 {
				return Usagef("no subcommand %q; did you mean %s?", args[0], Enumeration(cmd.SuggestionsFor(args[0])))
			}
			return Usagef("no subcommand %q; the subcommands are: %s", args[0], strings.Join(subcommands(cmd), ", "))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// unquote removes the quotes from the flags' descriptions, which mark the name of a flag's value in
// help texts: shells would show them.
func unquote(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "`", "") })
	for _, c := range cmd.Commands() {
		unquote(c)
	}
}

// subcommands returns the names of a command's subcommands, in order.
func subcommands(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// Usage makes an error a usage error.
func Usage(err error) error { return cmdline.Usage(err) }

// Usagef returns a usage error.
func Usagef(format string, args ...any) error { return cmdline.Usagef(format, args...) }

// NoEmptyName reports a list of names in which one is empty, as in "h1,,h2". The error is a usage error.
func NoEmptyName(flag string, names []string) error {
	if slices.Contains(names, "") {
		return Usagef("%s %q: a name is empty", flag, strings.Join(names, ","))
	}
	return nil
}

// NameList reports a list of names in which one is empty or occurs twice. The error is a usage error.
func NameList(flag string, names []string) error {
	for i, n := range names {
		if n != "" && slices.Contains(names[:i], n) {
			return Usagef("%s: %q is there twice", flag, n)
		}
	}
	return NoEmptyName(flag, names)
}

// Version returns the version of the program, as the Go tool recorded it.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown version)"
	}
	return info.Main.Version
}
