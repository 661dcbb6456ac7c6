package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestOutput(t *testing.T) {
	cmd := &cobra.Command{}
	o := AddOutputFlag(cmd, "dot")
	if o.IsJSON() || o.format != FormatText {
		t.Errorf("by default %q", o.format)
	}
	if err := cmd.ParseFlags([]string{"-o", "yaml"}); err == nil || !strings.Contains(err.Error(), "text, json or dot") {
		t.Errorf("%v", err)
	}
	if err := cmd.ParseFlags([]string{"--output=json"}); err != nil {
		t.Fatal(err)
	}
	if !o.IsJSON() {
		t.Errorf("%q", o.format)
	}
	for args, want := range map[string]string{"--json": "json", "--json=false": "text", "--json -o dot": "dot"} {
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil || o.Format() != want {
			t.Errorf("%s: %q, %v", args, o.Format(), err)
		}
	}
	if err := cmd.ParseFlags([]string{"--json=perhaps"}); err == nil {
		t.Error("--json=perhaps")
	}
	var b strings.Builder
	if err := o.Table(&b, []string{"name", "n"}, [][]any{{"a", 5}, {"longer", 10}, {"", ""}}); err != nil {
		t.Fatal(err)
	}
	if want := "NAME     N\na        5\nlonger  10\n\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	if err := o.Table(&b, []string{"way", "BW average[Gb/sec]"}, nil); err != nil || b.String() != "WAY  BW average[Gb/sec]\n" {
		t.Errorf("%q, %v: gigabits are not gigabytes", b.String(), err)
	}
	b.Reset()
	if err := o.Table(&b, []string{"name", "n"}, nil); err != nil {
		t.Fatal(err)
	}
	if want := "NAME  N\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	if err := o.JSON(&b, map[string]string{"a": "<b>"}); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"a\": \"<b>\"\n}\n"; b.String() != want {
		t.Errorf("%q", b.String())
	}
	completions, _ := cmd.GetFlagCompletionFunc("output")
	if got, _ := completions(cmd, nil, ""); len(got) != 3 {
		t.Errorf("%v", got)
	}
}
