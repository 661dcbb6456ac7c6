package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/planning"
)

// TestPlan runs testdata/plan: "file NAME" makes a file; "plan" runs the command with its input as
// arguments, and shows the output, and an exit code other than 0.
func TestPlan(t *testing.T) {
	data, err := filepath.Abs("testdata/plan")
	must(t, err)
	t.Chdir(t.TempDir())
	datadriven.RunTest(t, data, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "file":
			must(t, os.WriteFile(d.CmdArgs[0].Key, []byte(d.Input), 0o600))
			return ""
		case "plan":
			code, stdout, stderr := call(append([]string{"plan"}, strings.Fields(d.Input)...)...)
			if code != cli.ExitOK {
				stderr += fmt.Sprintf("exit code %d\n", code)
			}
			return stdout + stderr
		}
		d.Fatalf(t, "unknown command")
		return ""
	})
}

// planFiles makes a topology and returns its file.
func planFiles(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile("testdata/plan")
	must(t, err)
	_, rest, _ := strings.Cut(string(data), "file fabric.yaml\n")
	topology, _, ok := strings.Cut(rest, "----\n")
	file := filepath.Join(t.TempDir(), "fabric.yaml")
	must(t, os.WriteFile(file, []byte(topology), 0o600))
	if !ok {
		t.Fatal("testdata/plan has no fabric.yaml")
	}
	return file
}

// TestPlanJSON: the JSON is the report, also if something failed.
func TestPlanJSON(t *testing.T) {
	file := planFiles(t)
	code, stdout, stderr := call("plan", "-t", file, "--source", "h1", "--receivers", "h2,h3,h4", "-o", "json")
	var r planning.Report
	must(t, json.Unmarshal([]byte(stdout), &r))
	if code != cli.ExitOK || stderr != "" || len(r.Groups) != 1 || r.Groups[0].MergePoint != "leaf1" || r.Links.Group != 6 || r.Links.Unicast != 10 {
		t.Errorf("%d, %s, %+v", code, stderr, r)
	}
	for _, u := range r.Use {
		if u.Size == 0 {
			t.Errorf("the size of %s is not known", u.Table)
		}
	}
	code, stdout, stderr = call("plan", "-t", file, "--source", "h5", "--receivers", "h2,h6", "-o", "json")
	must(t, json.Unmarshal([]byte(stdout), &r))
	if code != cli.ExitFailure || r.Failed != 1 || r.Groups[0].Reason != "NO_MERGE_POINT" || !strings.Contains(stderr, "no merge point") {
		t.Errorf("%d, %s, %+v", code, stderr, r)
	}
}

// TestPlanElsewhere: if the sender's own switch only routes, a plan says which agent its daemon
// must name.
func TestPlanElsewhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.yaml")
	must(t, os.WriteFile(file, []byte(`switches:
- {name: r, address: 10.255.0.1, prefixes: [10.1.0.0/24], programmable: false}
- {name: s, address: 10.255.0.2, prefixes: [10.2.0.0/24]}
hosts: [{name: a, address: 10.1.0.1}, {name: b, address: 10.2.0.1}, {name: c, address: 10.2.0.2}]
links:
- {a: {node: r, port: 1}, b: {node: a}}
- {a: {node: s, port: 1}, b: {node: b}}
- {a: {node: s, port: 2}, b: {node: c}}
- {a: {node: r, port: 9}, b: {node: s, port: 9}}
`), 0o600))
	for _, summary := range []string{"--summary", "--summary=false"} {
		code, stdout, stderr := call("plan", "-t", file, "--source", "a", "--receivers", "b,c", summary)
		if code != cli.ExitOK || !strings.Contains(stdout, "switch r of a only routes: its daemon has to name the agent of s") {
			t.Errorf("%d, %s%s", code, stdout, stderr)
		}
	}
}

func TestPlanUsage(t *testing.T) {
	file := planFiles(t)
	for args, want := range map[string]string{
		"":                                       "name its file by --topology",
		"x":                                      `unexpected argument "x"`,
		"-t F":                                   "no group: name its members",
		"-t F --source h1":                       "no group: name its members",
		"-t F --from g --source h1":              "--from takes groups from a file",
		"-t F --source h1 --receivers ,":         `--receivers ",": a name is empty`,
		"-t F --source h1 --receivers h2 -o svg": "text or json",
		"-t F --source h1 --receivers h2 --pre-groups 0":   "--pre-groups 0",
		"-t F --source h1 --receivers h2 --regions -1":     "--regions -1",
		"-t F --source h1 --receivers h2 --regions 17":     "--regions 17: a receiver of a group has 0 to 16",
		"-t F --source h1 --receivers h2 --link-down h1":   `--link-down "h1" is not A:B`,
		"-t F --source h1 --receivers h2 --link-down h1:x": `no switch or host "x"`,
	} {
		code, stdout, stderr := call(append([]string{"plan"}, strings.Fields(strings.ReplaceAll(args, "F", file))...)...)
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q, %q; want 2 and %q", args, code, stdout, stderr, want)
		}
	}
	incomplete := filepath.Join(t.TempDir(), "few.yaml")
	must(t, os.WriteFile(incomplete, []byte("switches: [{name: s}]\nhosts: [{name: h}]\nlinks: [{a: {node: h}, b: {node: s}}]\n"), 0o600))
	if code, _, stderr := call("plan", "-t", incomplete, "--source", "h", "--receivers", "h"); code != cli.ExitFailure || !strings.Contains(stderr, "run --complete FILE prints") {
		t.Errorf("what Mininet would complete: exit code %d, %s", code, stderr)
	}
	must(t, os.WriteFile(incomplete, []byte("switches: 5\n"), 0o600))
	if _, _, stderr := call("plan", "-t", incomplete, "--source", "h", "--receivers", "h"); strings.Contains(stderr, "run --complete") {
		t.Errorf("Mininet would not complete this: %s", stderr)
	}
	for _, args := range []string{"-t /no/such --source h1 --receivers h2", "-t F --from /no/such"} {
		code, _, stderr := call(append([]string{"plan"}, strings.Fields(strings.ReplaceAll(args, "F", file))...)...)
		if code != cli.ExitFailure || !strings.Contains(stderr, "/no/such") {
			t.Errorf("%s: exit code %d, %s", args, code, stderr)
		}
	}
}

// TestPlanCompletion: hosts and links are those of the topology.
func TestPlanCompletion(t *testing.T) {
	file := planFiles(t)
	for typed, want := range map[string]string{
		"--source|": "h1 h2 h3 h4 h5 h6", "--receivers|h3,h1,": "h3,h1,h2 h3,h1,h4 h3,h1,h5 h3,h1,h6", "--output|": "text json",
		"--link-down|": "h1:leaf1 h2:leaf1 h3:leaf2 h4:leaf2 h5:leaf3 h6:leaf3 leaf1:spine1 leaf1:spine2 leaf2:spine1 leaf2:spine2 leaf3:spine1 leaf3:spine2",
	} {
		flag, value, _ := strings.Cut(typed, "|")
		_, stdout, _ := call("__complete", "plan", "-t", file, flag, value)
		got := slices.DeleteFunc(strings.Fields(stdout), func(s string) bool { return strings.HasPrefix(s, ":") })
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s", typed, got)
		}
	}
	if _, stdout, _ := call("__complete", "plan", "-t", "/no/such", "--source", ""); !strings.HasPrefix(stdout, ":") {
		t.Errorf("without a topology: %s", stdout)
	}
}

// TestPlanExamples: the examples of the help work on the topology of testdata.
func TestPlanExamples(t *testing.T) {
	t.Chdir(filepath.Dir(planFiles(t)))
	must(t, os.WriteFile("groups.yaml", []byte("groups: [{source: h1, receivers: [h2, h3]}]"), 0o600))
	n := 0
	for line := range strings.Lines(planExamples) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " | ")
		if args, ok := strings.CutPrefix(line, "switchctl "); ok {
			n++
			if code, _, stderr := call(strings.Fields(args)...); code != cli.ExitOK {
				t.Errorf("%s: exit code %d, %s", line, code, stderr)
			}
		}
	}
	if n < 3 {
		t.Errorf("%d examples", n)
	}
}

// TestPlanTooSmall: many groups take more entries than a table has.
func TestPlanTooSmall(t *testing.T) {
	groups := filepath.Join(t.TempDir(), "groups.yaml")
	must(t, os.WriteFile(groups, []byte("groups:\n"+strings.Repeat("  - {source: h1, receivers: [h2, h3], regions: 16}\n", 1366)), 0o600))
	code, stdout, stderr := call("plan", "-t", planFiles(t), "--from", groups, "--summary", "--recompute")
	if code != cli.ExitFailure || !strings.Contains(stdout, "regions, 100.05 %: TOO SMALL") || !strings.Contains(stderr, "1 table is too small: egress.rewrite.regions of leaf1 would need 65568 of 65536 entries") {
		t.Errorf("%d, %s, %s", code, stdout[max(0, len(stdout)-800):], stderr)
	}
}
