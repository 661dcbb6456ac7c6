package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// A ConfigPage is the manual page of a configuration, in section 5.
type ConfigPage struct {
	Name      string // such as "cmd-daemon.yaml"
	Short     string // its description
	Long      string // which program reads it, and how
	Reference string // a complete configuration with comments
	See       string // the page of that program, such as "cmd-daemon-run(1)"
}

// write writes the page to a directory of manual pages.
func (p ConfigPage) write(dir string) error {
	text := fmt.Sprintf("%% %q \"5\" \"\" \"mcrdma\" \"mcrdma\"\n# NAME\n%s - %s\n\n# SYNOPSIS\n**%[2]s**\n\n# DESCRIPTION\n%[4]s\n\n# ALL FIELDS\n```\n%[5]s```\n\n# SEE ALSO\n**%[6]s**\n",
		strings.ToUpper(p.Name), p.Name, p.Short, p.Long, p.Reference, p.See)
	return os.WriteFile(filepath.Join(dir, "man5", p.Name+".5"), md2man.Render([]byte(text)), 0o644) //nolint:gosec // readable by all
}

// manCommand writes manual pages, one for each command and configuration, in man's directory
// layout: "man -M DIRECTORY PAGE" shows a page. It is for packagers, and hidden.
func manCommand(pages []ConfigPage) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write manual pages",
		Hidden: true,
		Args:   ExactArg("the directory for the pages"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			for _, c := range root.Commands() {
				c.Hidden = c.Hidden || c.Name() == "completion"
			}
			verbatim(root)
			for _, section := range []string{"man1", "man5"} {
				if err := os.MkdirAll(filepath.Join(args[0], section), 0o755); err != nil { //nolint:gosec // readable by all
					return err
				}
			}
			root.Short += " (mcrdma)" // for "man -k mcrdma"
			for _, p := range pages {
				if err := p.write(args[0]); err != nil {
					return err
				}
			}
			return doc.GenManTree(root, &doc.GenManHeader{Source: "mcrdma", Manual: "mcrdma"}, filepath.Join(args[0], "man1"))
		},
	}
}

// verbatim keeps the lines of help texts unchanged, which would be Markdown otherwise. Commands
// that only have subcommands list them.
func verbatim(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	if cmd.HasAvailableSubCommands() {
		var list strings.Builder
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(&list, "\n  %-*s %s", cmd.NamePadding(), c.Name(), c.Short)
			}
		}
		cmd.Use, cmd.Long = cmd.Name()+" COMMAND [flags]", strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short))+"\n\nCommands:"+list.String()
	}
	if cmd.Long != "" {
		cmd.Long = "```\n" + strings.TrimSpace(cmd.Long) + "\n```"
	}
	for _, c := range cmd.Commands() {
		verbatim(c)
	}
}
