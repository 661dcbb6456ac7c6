package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

type named struct{ inner netip.Addr }

func (n named) String() string { return "group of " + n.inner.String() }

// TestJSONLog: a JSON log has the same values as a text log.
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

// TestMeant: the error for a word that is similar to the name of a command or flag suggests it.
func TestMeant(t *testing.T) {
	for args, want := range map[string]string{
		"statsu":          `no subcommand "statsu"; did you mean status?`,
		"nothing":         "the subcommands are: ",
		"status --sokcet": "unknown flag: --sokcet; did you mean --socket?",
		"status --xyzzy":  "unknown flag: --xyzzy\n",
		"status -x":       "unknown shorthand flag: 'x' in -x\n",
		"completion tcsh": `there is no completion for shell "tcsh", but for bash, fish, powershell, zsh`,
		"help nothing":    `no subcommand "nothing"`,

		"completion bash extra": `unexpected argument "extra"`,
		"help status extra":     `status has no subcommand "extra"`,
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

// TestErrorJSON: commands with JSON output report errors as JSON, including errors of flags; others
// do not.
func TestErrorJSON(t *testing.T) {
	for args, code := range map[string]int{
		"fail -o json": ExitFailure, "fail --json": ExitFailure, "fail --output=json": ExitFailure, "fail --xyzzy -o json": ExitUsage, "fail --xyzzy --json": ExitUsage,
		"fail": 0, "fail -o text": 0, "fail --xyzzy": 0, "status --json": 0, "fail --json -o text": 0,
	} {
		root := tree()
		fail := &cobra.Command{Use: "fail", RunE: func(*cobra.Command, []string) error { return errors.New(`no "device"`) }}
		AddOutputFlag(fail)
		root.AddCommand(fail)
		var errs strings.Builder
		got := Run(t.Context(), root, strings.Fields(args), io.Discard, &errs)
		var e struct {
			Command, Error string
			Exit           int
		}
		err := json.Unmarshal([]byte(errs.String()), &e)
		if code == 0 {
			if err == nil || !strings.Contains(errs.String(), "x ") {
				t.Errorf("%s: %s", args, errs.String())
			}
			continue
		}
		if err != nil || e.Command != "x fail" || e.Error == "" || e.Exit != code || got != code {
			t.Errorf("%s: %d, %v, %s", args, got, err, errs.String())
		}
	}
}
