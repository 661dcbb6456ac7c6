package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

type named struct{ inner netip.Addr }

func (n named) String() string { return "group of " + n.inner.String() }

// TestJSONLog: what a text log shows of a value, a JSON log shows too.
func TestJSONLog(t *testing.T) {
	cmd := &cobra.Command{}
	logger := AddLogFlags(cmd)
	if err := cmd.ParseFlags([]string{"--log-json"}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	log, err := logger(&b)
	if err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddr("10.1.0.11")
	log.Info("x", "key", named{a}, "plain", struct{ a, b int }{1, 2}, "addr", a, "error", io.EOF, "n", 3, "nested", slog.GroupValue(slog.Any("key", named{a})), "list", []int{1})
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got["key"] != "group of 10.1.0.11" || got["plain"] != "{a:1 b:2}" || got["addr"] != "10.1.0.11" || got["error"] != "EOF" || got["n"] != 3.0 ||
		got["nested"].(map[string]any)["key"] != "group of 10.1.0.11" || len(got["list"].([]any)) != 1 || got["level"] != "INFO" {
		t.Errorf("%s", b.String())
	}
}

// TestMeant: what is almost the name of a command or flag is answered with that.
func TestMeant(t *testing.T) {
	for args, want := range map[string]string{
		"statsu":          `there is no sub-command "statsu"; did you mean status?`,
		"nothing":         "the sub-commands are: ",
		"status --sokcet": "unknown flag: --sokcet; did you mean --socket?",
		"status --xyzzy":  "unknown flag: --xyzzy\n",
		"status -x":       "unknown shorthand flag: 'x' in -x\n",
	} {
		var errs strings.Builder
		if code := Run(t.Context(), tree(), strings.Fields(args), io.Discard, &errs); code != ExitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: %d, %s", args, code, errs.String())
		}
	}
}

// TestCompletionText: shells do not show the quotes of help texts.
func TestCompletionText(t *testing.T) {
	var out strings.Builder
	if code := Run(t.Context(), tree(), []string{"__complete", "status", "--"}, &out, io.Discard); code != ExitOK || !strings.Contains(out.String(), "--socket\tthe daemon's unix socket, a file") {
		t.Errorf("%d, %s", code, out.String())
	}
}

func tree() *cobra.Command {
	root := &cobra.Command{Use: "x"}
	status := &cobra.Command{Use: "status", RunE: func(*cobra.Command, []string) error { return nil }}
	AddSocketFlag(status, new(string), "s")
	root.AddCommand(status)
	return root
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int{"0": 0, "4096": 4096, "64K": 64 << 10, "8M": 8 << 20, "8m": 8 << 20, "2G": 2 << 30} {
		var v Size
		if err := v.Set(text); err != nil || int(v) != want {
			t.Errorf("%s: %d, %v", text, v, err)
		}
	}
	for _, text := range []string{"", "K", "-1", "1.5M", "8T", "8MB", "9999999999999G"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
}
