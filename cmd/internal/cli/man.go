package cli

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manCommand writes manual pages, one for each command: what the help says, in the form
// of man(7). It is for packagers, and hidden.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write manual pages",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return Usagef("%d arguments: name the directory that the pages are to be in", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return writePages(cmd.Root(), args[0]) },
	}
}

// writePages writes the pages of a command and of those below it.
func writePages(cmd *cobra.Command, dir string) error {
	f, err := os.Create(filepath.Join(dir, pageName(cmd)+".1")) //nolint:gosec // where the user says
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	page(w, cmd)
	if err := w.Flush(); err != nil {
		_ = f.Close() // it is incomplete
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			if err := writePages(c, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// pageName is that of the page: the words of the command, with hyphens between.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func page(w *bufio.Writer, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	fmt.Fprintf(w, ".TH %s 1 \"\" \"mcrdma\" \"mcrdma\"\n.nh\n.SH NAME\n%s \\- %s\n", strings.ToUpper(roff(pageName(cmd))), roff(pageName(cmd)), roff(cmd.Short))
	use := cmd.UseLine()
	if !cmd.DisableFlagsInUseLine && cmd.HasAvailableFlags() && !strings.Contains(use, "[flags]") {
		use += " [flags]"
	}
	fmt.Fprintf(w, ".SH SYNOPSIS\n.B %s\n", roff(use))
	if long := strings.TrimSpace(cmd.Long); long != "" {
		fmt.Fprintf(w, ".SH DESCRIPTION\n")
		verbatim(w, long)
	}
	var below []*cobra.Command
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			below = append(below, c)
		}
	}
	if len(below) > 0 {
		fmt.Fprintf(w, ".SH COMMANDS\n")
		for _, c := range below {
			fmt.Fprintf(w, ".TP\n.BR %s (1)\n%s\n", roff(pageName(c)), roff(c.Short))
		}
	}
	flags := cmd.NonInheritedFlags()
	if flags.HasAvailableFlags() {
		fmt.Fprintf(w, ".SH OPTIONS\n")
		flags.VisitAll(func(f *pflag.Flag) { option(w, f) })
	}
	if cmd.Example != "" {
		fmt.Fprintf(w, ".SH EXAMPLES\n")
		verbatim(w, strings.Trim(cmd.Example, "\n"))
	}
	if cmd.HasParent() {
		fmt.Fprintf(w, ".SH SEE ALSO\n.BR %s (1)\n", roff(pageName(cmd.Parent())))
	}
}

// option describes a flag.
func option(w *bufio.Writer, f *pflag.Flag) {
	if f.Hidden || f.Deprecated != "" {
		return
	}
	value, usage := pflag.UnquoteUsage(f)
	fmt.Fprint(w, ".TP\n")
	if f.Shorthand != "" {
		fmt.Fprintf(w, "\\fB%s\\fP, ", roff("-"+f.Shorthand))
	}
	fmt.Fprintf(w, "\\fB%s\\fP", roff("--"+f.Name))
	if value != "" {
		fmt.Fprintf(w, " \\fI%s\\fP", roff(value))
	}
	fmt.Fprintf(w, "\n%s", line(usage))
	switch f.DefValue {
	case "", "false", "0", "0s", "[]":
	default:
		fmt.Fprintf(w, " (default %s)", roff(f.DefValue))
	}
	fmt.Fprintln(w)
}

// verbatim writes lines as they are.
func verbatim(w *bufio.Writer, text string) {
	fmt.Fprint(w, ".nf\n")
	for l := range strings.SplitSeq(text, "\n") {
		fmt.Fprintln(w, line(strings.TrimRight(l, " ")))
	}
	fmt.Fprint(w, ".fi\n")
}

// line is a line of text; one that looks like a request is none.
func line(s string) string {
	s = roff(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = "\\&" + s
	}
	return s
}

// roff escapes what means something else to roff.
func roff(s string) string {
	return strings.NewReplacer("\\", "\\e", "-", "\\-", "\n", " ", "\"", "\\(dq", "`", "\\(ga", "^", "\\(ha", "~", "\\(ti").Replace(s)
}
