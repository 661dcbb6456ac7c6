package cmdline

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]int{"0": 0, "4096": 4096, "64K": 64 << 10, "8M": 8 << 20, "8m": 8 << 20, "2G": 2 << 30, "8T": 8 << 40, "1P": 1 << 50, "7E": 7 << 60} {
		var v Size
		if err := v.Set(text); err != nil || int(v) != want {
			t.Errorf("%s: %d, %v", text, v, err)
		}
		if n, err := ParseSize(v.String()); err != nil || n != want {
			t.Errorf("%s is shown as %s", text, &v)
		}
	}
	for _, text := range []string{"", "K", "-1", "1.5M", "8E", "8MB", "8Z", "9999999999999G", "99999999999999999999"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
}

// TestParse: help goes to where results do; what is wrong is told with exit code 2, and what
// was perhaps meant.
func TestParse(t *testing.T) {
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"--size 8M":                   {ExitOK, ""},
		"-h":                          {ExitOK, "prog FILE\n\nFlags:\n      --file string   none\n      --size bytes    to send (default 64M)\n      --wait time     time for an answer\n"},
		"--help":                      {ExitOK, "prog FILE\n"},
		"--sise 8M":                   {ExitUsage, "prog: unknown flag: --sise; did you mean --size?\nSee \"prog --help\".\n"},
		"--xyzzy":                     {ExitUsage, "prog: unknown flag: --xyzzy\n"},
		"--size 9E":                   {ExitUsage, `"9E" is out of range: a number of bytes is below 8E`},
		"--wait 5":                    {ExitUsage, "prog: --wait 5: the unit is missing: 5s, for seconds, or 5ms\n"},
		"--wait soon":                 {ExitUsage, `--wait "soon" is not a time, such as 5s`},
		"file -1":                     {ExitUsage, "prog: -1: no number here is negative\n"},
		"--count many":                {ExitUsage, "prog: --count \"many\" is not a whole number\n"},
		"--count 1e3":                 {ExitUsage, "prog: --count \"1e3\" is not a whole number\n"},
		"--count 9999999999999999999": {ExitUsage, "is not a whole number in its range\n"},
		"--share half":                {ExitUsage, "prog: --share \"half\" is not a number\n"},
		"--all=maybe":                 {ExitUsage, "prog: --all \"maybe\" is not true or false\n"},
		"--size large":                {ExitUsage, `"large" is not a number of bytes, such as 4096, 64K or 8M`},
	} {
		f := pflag.NewFlagSet("prog", pflag.ContinueOnError)
		size := Size(64 << 20)
		f.String("file", "", "none") // is not as near to sise as size is
		f.Var(&size, "size", "to send")
		if want.code != ExitOK { // help has none of these
			f.Int("count", 0, "")
			f.Float64("share", 0, "")
			f.Bool("all", false, "")
		}
		f.Duration("wait", 0, "`time` for an answer")
		var out, errs strings.Builder
		code := Exit("prog", Parse(f, "prog FILE\n", strings.Fields(args), &out), &errs)
		if code != want.code || !strings.Contains(out.String()+errs.String(), want.says) || (code == ExitOK) != (errs.Len() == 0) {
			t.Errorf("%s: %d, %q, %q", args, code, out.String(), errs.String())
		}
	}
	for _, err := range []error{errors.New("host h2 refuses:\n\tno \x1b[2J\r\u202e"), Usagef("host h2 refuses:\n\tno \x1b[2J\r\u202e")} {
		var errs strings.Builder
		if Exit("prog", err, &errs); !strings.HasPrefix(errs.String(), "prog: host h2 refuses:\n\tno \ufffd[2J\ufffd\ufffd\n") {
			t.Errorf("a text that controls the terminal: %q", errs.String())
		}
	}
	if code := Exit("prog", fmt.Errorf("two of four: %w", ErrInterrupted), io.Discard); code != ExitInterrupted {
		t.Error(code)
	}
	var errs strings.Builder
	if code := Exit("prog", errors.New("no file"), &errs); code != ExitFailure || errs.String() != "prog: no file\n" {
		t.Errorf("%d, %q", code, errs.String())
	}
}
