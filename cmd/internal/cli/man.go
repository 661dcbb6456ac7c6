package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes manual pages, one for each command. It is for packagers, and hidden.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write manual pages",
		Hidden: true,
		Args:   ExactArg("the directory for the pages"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			verbatim(root)
			return doc.GenManTree(root, &doc.GenManHeader{Source: "mcrdma", Manual: "mcrdma"}, args[0])
		},
	}
}

// verbatim keeps the lines of help texts as they are, which would be Markdown otherwise.
func verbatim(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	if cmd.Long != "" {
		cmd.Long = "```\n" + strings.TrimSpace(cmd.Long) + "\n```"
	}
	for _, c := range cmd.Commands() {
		verbatim(c)
	}
}
