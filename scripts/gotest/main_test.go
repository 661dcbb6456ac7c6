package main

import (
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"    a_test.go:3: chatter\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"--- PASS: TestGood (0.00s)\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":0}
{"Action":"output","Package":"m/a","Test":"TestAway","Output":"=== RUN   TestAway\n"}
{"Action":"output","Package":"m/a","Test":"TestAway","Output":"--- SKIP: TestAway (0.00s)\n"}
{"Action":"output","Package":"m/a","Test":"TestAway","Output":"    a_test.go:9: REASON\n"}
{"Action":"skip","Package":"m/a","Test":"TestAway","Elapsed":0}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.01s\n"}
{"Action":"pass","Package":"m/a","Elapsed":0.01}
not an event
{"Action":"output","Package":"m/b","Test":"TestDies","Output":"panic: last words\n"}
{"Action":"output","Package":"m/b","Output":"FAIL\tm/b\t0.01s\n"}
{"Action":"fail","Package":"m/b","Elapsed":0.01}
`

func TestReport(t *testing.T) {
	for _, c := range []struct {
		name, reason     string
		mustRun, verbose bool
		want             string
		forbidden        int
	}{
		{"plain", "no root", false, false,
			"--- SKIP: TestAway (0.00s)\n    a_test.go:9: no root\nok  \tm/a\t0.01s\n", 0},
		{"verbose", "no root", false, true,
			"--- PASS: TestGood (0.00s)\n--- SKIP: TestAway (0.00s)\n    a_test.go:9: no root\nok  \tm/a\t0.01s\n", 0},
		{"must run", "no root", true, false,
			"MUST RUN: --- SKIP: TestAway (0.00s)\n    a_test.go:9: no root\nok  \tm/a\t0.01s\n", 1},
		{"long mode only", "set MCRDMA_LONG=1", true, false,
			"--- SKIP: TestAway (0.00s)\n    a_test.go:9: set MCRDMA_LONG=1\nok  \tm/a\t0.01s\n", 0},
		{"optional", "optional: no IPv6", true, false,
			"--- SKIP: TestAway (0.00s)\n    a_test.go:9: optional: no IPv6\nok  \tm/a\t0.01s\n", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			r := report{w: &out, mustRun: c.mustRun, verbose: c.verbose, output: map[testID][]string{}}
			if err := r.read(strings.NewReader(strings.ReplaceAll(events, "REASON", c.reason))); err != nil {
				t.Fatal(err)
			}
			r.summary()
			want := c.want + "not an event\nFAIL\tm/b\t0.01s\npanic: last words\ntests: 1 passed, 1 skipped, 0 failed\n"
			if out.String() != want {
				t.Errorf("printed:\n%s\nwant:\n%s", out.String(), want)
			}
			if r.forbidden != c.forbidden {
				t.Errorf("%d forbidden skips, want %d", r.forbidden, c.forbidden)
			}
		})
	}
}

// The exit code is what continuous integration goes by.
func TestRunExitCode(t *testing.T) {
	var out strings.Builder
	if code, _ := run([]string{"./no/such/package"}, false, &out); code == 0 {
		t.Errorf("exit code 0 for a package that does not exist; printed:\n%s", &out)
	}
	if code, err := run([]string{"-run", "^TestThatIsNot$", "."}, false, &out); code == 0 || err == nil {
		t.Errorf("exit code 0 though no test ran; printed:\n%s", &out)
	}
	if code, err := run([]string{"-run", "^TestReport$", "."}, true, &out); code != 0 || err != nil {
		t.Errorf("exit code %d, %v for a passing test; printed:\n%s", code, err, &out)
	}
}

// TestRaceOfAnother: the race detector's report may be in the output of a test that passes.
func TestRaceOfAnother(t *testing.T) {
	var out strings.Builder
	r := report{w: &out, output: map[testID][]string{}}
	err := r.read(strings.NewReader(`{"Action":"output","Package":"m/a","Test":"TestGood","Output":"WARNING: DATA RACE\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"--- PASS: TestGood (0.00s)\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood"}
`))
	if want := "WARNING: DATA RACE\n--- PASS: TestGood (0.00s)\n"; err != nil || out.String() != want {
		t.Errorf("%v; printed:\n%s\nwant:\n%s", err, out.String(), want)
	}
}
