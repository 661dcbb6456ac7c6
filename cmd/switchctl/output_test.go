package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestOutput(t *testing.T) {
	cmd := &cobra.Command{}
	o := addOutputFlag(cmd, "dot")
	if o.isJSON() || o.format != formatText {
		t.Errorf("by default %q", o.format)
	}
	if err := cmd.ParseFlags([]string{"-o", "yaml"}); err == nil || !strings.Contains(err.Error(), "text, json or dot") {
		t.Errorf("%v", err)
	}
	must(t, cmd.ParseFlags([]string{"--output=json"}))
	if !o.isJSON() {
		t.Errorf("%q", o.format)
	}
	var b strings.Builder
	must(t, o.table(&b, []string{"name", "n"}, [][]any{{"a", 5}, {"longer", 10}, {"", ""}}))
	if want := "NAME     N\na        5\nlonger  10\n\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	must(t, o.table(&b, []string{"name", "n"}, nil))
	if want := "NAME  N\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	must(t, o.json(&b, map[string]string{"a": "<b>"}))
	if want := "{\n  \"a\": \"<b>\"\n}\n"; b.String() != want {
		t.Errorf("%q", b.String())
	}
	completions, _ := cmd.GetFlagCompletionFunc("output")
	if got, _ := completions(cmd, nil, ""); len(got) != 3 {
		t.Errorf("%v", got)
	}
}
