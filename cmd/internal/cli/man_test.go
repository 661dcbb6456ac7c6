package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestMan: each command has a page, with its flags, and no text becomes a troff request.
func TestMan(t *testing.T) {
	build := func() *cobra.Command {
		root := &cobra.Command{Use: "prog", Short: "Does things", Long: "Long text.\n.PP is no request\n'nor is this\nback\\slash"}
		sub := &cobra.Command{Use: "sub X", Short: "Part", Example: "  prog sub -n 5", Run: func(*cobra.Command, []string) {}}
		sub.Flags().IntP("number", "n", 7, "a `count` of things")
		sub.Flags().String("secret", "", "not to be seen")
		if err := sub.Flags().MarkHidden("secret"); err != nil {
			t.Fatal(err)
		}
		root.AddCommand(sub)
		return root
	}
	dir := t.TempDir()
	var out, errs bytes.Buffer
	page := ConfigPage{"prog.yaml", "what prog reads", "A file.", "# Comment.\nname: x  # 'its name'\nhosts:\n  - .a\n", "prog(1)"}
	if code := Run(t.Context(), build(), []string{"man", dir}, &out, &errs, page); code != ExitOK || out.Len() > 0 {
		t.Fatalf("%d, %s", code, &errs)
	}
	for name, wants := range map[string][]string{
		"man1/prog.1":      {`.TH "PROG" "1"`, "prog - Does things (mcrdma)\n", "\\fBprog COMMAND [flags]\\fP", "Commands:\n  sub         Part\n", "\n\\&.PP is no request\n\\&'nor is this\nback\\\\slash\n", "\\fBprog-sub(1)\\fP"},
		"man5/prog.yaml.5": {`.TH "PROG.YAML" "5"`, "prog.yaml \\- what prog reads\n", "\n# Comment.\nname: x  # 'its name'\nhosts:\n  - .a\n", "prog(1)"},
		"man1/prog-sub.1":  {`.TH "PROG-SUB" "1"`, "\\fBprog sub X", "\\fB-n\\fP, \\fB--number\\fP=7\n\ta \\fBcount\\fR of things\n", "  prog sub -n 5\n", "\\fBprog(1)\\fP"},
	} {
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(page), want) {
				t.Errorf("%s lacks %q:\n%s", name, want, page)
			}
		}
		if strings.Contains(string(page), "secret") {
			t.Errorf("%s tells a hidden flag", name)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "man[15]", "*.[15]")); len(files) != 3 { // none of cobra's completion commands
		t.Errorf("%q", files)
	}
	for _, args := range [][]string{{"man"}, {"man", "a", "b"}} {
		if code := Run(t.Context(), build(), args, &out, &errs); code != ExitUsage {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
	if code := Run(t.Context(), build(), []string{"man", filepath.Join(dir, "man1", "prog.1")}, &out, &errs); code != ExitFailure {
		t.Errorf("no directory: exit code %d", code)
	}
}
