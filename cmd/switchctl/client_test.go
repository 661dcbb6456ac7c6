package main

import (
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
)

// deadAddress is an address without a listening process.
func deadAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// TestClientScripts: commands that ask agents, and their output. In the scripts, {torA} is an
// agent's address; in outputs it is torA.agent:9560, which has the same length as all addresses
// here.
func TestClientScripts(t *testing.T) {
	t.Setenv(agentEnv, "")
	datadriven.Walk(t, "testdata/client", func(t *testing.T, path string) {
		fakes := lab(t)
		replace := []string{"{dead}", deadAddress(t)}
		restore := []string{replace[1], "dead.agent:9560"}
		for name, f := range fakes {
			replace = append(replace, "{"+name+"}", f.addr)
			restore = append(restore, f.addr, name+".agent:9560")
		}
		stamp := regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*Z"`)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "run" {
				t.Fatalf("no command %q", d.Cmd)
			}
			code, stdout, stderr := call(strings.Fields(strings.NewReplacer(replace...).Replace(d.Input))...)
			if strings.Contains(d.Input, "json") && !json.Valid([]byte(stdout)) {
				t.Errorf("no JSON: %s", stdout)
			}
			out := strings.NewReplacer(restore...).Replace(stdout + stderr)
			return stamp.ReplaceAllString(out, `"TIME"`) + fmt.Sprintf("exit code %d\n", code)
		})
	})
}

// TestEnvironment: agents are taken from the environment unless the command line names
// them.
func TestEnvironment(t *testing.T) {
	fakes := lab(t)
	t.Setenv(agentEnv, " "+fakes["torA"].addr+", torB="+fakes["torB"].addr)
	code, stdout, stderr := call("status")
	if code != cli.ExitOK || !strings.Contains(stdout, "torA, agent") || !strings.Contains(stdout, "torB, agent") {
		t.Errorf("%d, %s, %s", code, stdout, stderr)
	}
	code, stdout, _ = call("status", "--agent", fakes["torB"].addr)
	if code != cli.ExitOK || strings.Contains(stdout, "torA, agent") {
		t.Errorf("%d, %s", code, stdout)
	}
	t.Setenv(agentEnv, "a:b:c")
	if code, _, stderr = call("status"); code != cli.ExitUsage || !strings.Contains(stderr, "$"+agentEnv) {
		t.Errorf("%d, %s", code, stderr)
	}
}

func TestClientUsage(t *testing.T) {
	t.Setenv(agentEnv, "")
	for _, c := range []struct{ args, want string }{
		{"status x", `unexpected argument "x"`},
		{"status -o yaml", "formats are text or json"},
		{"status --agent :9560", `"" is not a host`},
		{"status --agent =1.2.3.4", "no switch before the ="},
		{"status --agent 1.2.3.4:0", `the port "0"`},
		{"status --agent 1.2.3.4:70000", `the port "70000"`},
		{"status --agent a/b", `"a/b" is not a host`},
		{"status --timeout 0s", "--timeout 0s"},
		{"status --tls-cert x", "go together"},
		{"groups --source h1", `--source "h1" is not an IPv4 address`},
		{"routes a b", "at most one address"},
		{"routes ::1", `"::1" is not an IPv4 address`},
		{"group", ""},
		{"group list", `no subcommand "list"; the subcommands are: show`},
		{"group show", "0 arguments"},
		{"group show 1.2.3.4/x", "not a number from 1 on"},
		{"top --interval 1ms", "--interval 1ms"},
		{"doctor x", `unexpected argument "x"`},
		{"doctor --host-only --agent 1.2.3.4", "--host-only looks at no agents"},
	} {
		code, stdout, stderr := call(strings.Fields(c.args)...)
		if c.want == "" {
			if code != cli.ExitOK || !strings.Contains(stdout, "show") {
				t.Errorf("%s: exit code %d, %q", c.args, code, stdout)
			}
			continue
		}
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "--help") {
			t.Errorf("%s: exit code %d, %q, %q; want 2 and %q", c.args, code, stdout, stderr, c.want)
		}
	}
}

// TestNotReady: the status of an agent that is not ready says so, and its exit code too.
func TestNotReady(t *testing.T) {
	t.Setenv(agentEnv, "")
	plain, err := identity.Files{}.Server()
	must(t, err)
	a := &fakeAgent{status: &mcrdmav1.GetStatusResponse{Name: "torA", WaitsFor: "the switch is away"}}
	a.serve(t, plain)
	for _, c := range []struct{ flag, want string }{{"-otext", "not ready  the switch is away\n"}, {"-ojson", `"waits_for": "the switch is away"`}} {
		code, stdout, stderr := call("status", "--agent", a.addr, c.flag)
		if code != cli.ExitFailure || !strings.Contains(stdout, c.want) || !strings.Contains(stderr, "not ready: torA; switchctl doctor says what to do") {
			t.Errorf("%s: exit code %d, %s%s", c.flag, code, stdout, stderr)
		}
	}
}

// TestClientErrors: why an agent cannot be asked, and what to do.
func TestClientErrors(t *testing.T) {
	t.Setenv(agentEnv, "")
	hangs := &fakeAgent{hangs: true}
	plain, err := identity.Files{}.Server()
	must(t, err)
	hangs.serve(t, plain)
	starts := &fakeAgent{fails: failure.New(mcrdmav1.Reason_NOT_READY, "not ready: the switch is being read")}
	starts.serve(t, plain)
	ca := identitytest.New(t)
	secure := &fakeAgent{status: &mcrdmav1.GetStatusResponse{Name: "torS"}}
	creds, err := ca.Switch("torS").Server()
	must(t, err)
	secure.serve(t, creds)
	me := ca.Admin("me")
	tls := fmt.Sprintf(" --tls-cert %s --tls-key %s --tls-ca %s", me.Cert, me.Key, me.CA)

	for _, c := range []struct{ args, want string }{
		{"--agent " + deadAddress(t), "cannot be reached: connection refused; is \"switchctl agent\" running there"},
		{"--timeout 50ms --agent " + hangs.addr, "did not answer within 50ms"},
		{"--agent " + starts.addr, "agent " + starts.addr + " answers: not ready: the switch is being read (NOT_READY)"},
		{"--agent no-such-host.invalid", "agent no-such-host.invalid:9560 cannot be reached: "},
		{"--agent " + secure.addr, "wants TLS: name an administrator's certificate, --tls-cert"},
		{"--agent " + hangs.addr + tls, "does not speak TLS"},
		{"--agent torX=" + secure.addr + tls, "the server is switch:torS"},
		{"--agent " + secure.addr + strings.ReplaceAll(tls, me.Key, "/no/such/key"), "--tls-cert, --tls-key, --tls-ca: identity: bad certificate files"},
	} {
		code, stdout, stderr := call(append([]string{"status"}, strings.Fields(c.args)...)...)
		if code != cli.ExitFailure || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, %q, %q; want 1 and %q", c.args, code, stdout, stderr, c.want)
		}
	}
	t.Setenv(tlsEnv+"CERT", me.Cert)
	if code, _, stderr := call("status", "--agent", secure.addr); code != cli.ExitUsage || !strings.Contains(stderr, "$SWITCHCTL_TLS_CERT, KEY and CA") {
		t.Errorf("half of it by environment: %d, %s", code, stderr)
	}
	t.Setenv(tlsEnv+"KEY", me.Key)
	t.Setenv(tlsEnv+"CA", me.CA)
	if code, _, stderr := call("status", "--agent", secure.addr); code != cli.ExitOK || secure.caller.Name != "me" {
		t.Errorf("by environment: %d, %s", code, stderr)
	}
	for _, name := range []string{"CERT", "KEY", "CA"} {
		t.Setenv(tlsEnv+name, "")
	}
	for _, name := range []string{"", "torS="} {
		code, _, stderr := call(append([]string{"status", "--agent", name + secure.addr}, strings.Fields(tls)...)...)
		if code != cli.ExitOK || secure.caller.Role != identity.Admin || secure.caller.Name != "me" {
			t.Errorf("by TLS: %d, %s, %v", code, stderr, secure.caller)
		}
	}
	fakes := lab(t)
	t.Setenv("USER", "some one")
	if code, _, stderr := call("status", "--agent", fakes["torA"].addr); code != cli.ExitOK || fakes["torA"].caller.String() != "admin:switchctl 127.0.0.1" {
		t.Errorf("in plain text: %d, %s, %v", code, stderr, fakes["torA"].caller)
	}
}

// TestGroupProblems: a group with problems is shown, with exit code 1.
func TestGroupProblems(t *testing.T) {
	t.Setenv(agentEnv, "")
	fakes := lab(t)
	fakes["torB"].steps = nil
	for format, want := range map[string]string{
		"text": "! does not know the branch of 10.2.0.11", "json": `"ok": false`, "svg": "does not know the branch", "dot": "does not know the branch",
	} {
		code, stdout, stderr := call("group", "show", "10.1.0.1/17", "-o", format, "--agent", fakes["torA"].addr)
		if code != cli.ExitFailure || !strings.Contains(stdout, want) || !strings.Contains(stderr, "group 10.1.0.1/17: there are 3 problems") {
			t.Errorf("%s: %d, %s, %s", format, code, stdout, stderr)
		}
	}
}

// TestCompletion: a shell completes groups, and nothing if agents do not answer.
func TestCompletion(t *testing.T) {
	t.Setenv(agentEnv, "")
	fakes := lab(t)
	code, stdout, _ := call("__complete", "group", "show", "--agent", fakes["torA"].addr, "")
	if code != cli.ExitOK || !strings.Contains(stdout, "10.1.0.1/17\t3 receivers, at torA\n") {
		t.Errorf("%d, %s", code, stdout)
	}
	code, stdout, _ = call("__complete", "group", "show", "--agent", deadAddress(t), "")
	if code != cli.ExitOK || !strings.HasPrefix(stdout, ":4") {
		t.Errorf("%d, %s", code, stdout)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, _ := call("completion", shell); code != cli.ExitOK || !strings.Contains(stdout, "switchctl") {
			t.Errorf("%s: %d", shell, code)
		}
	}
}

func TestPerSecond(t *testing.T) {
	for in, want := range map[float64]string{
		0: "0", 0.04: "0.0", 0.5: "0.5", 9.94: "9.9", 9.96: "10", 999: "999", 999.6: "1.0k", 12345: "12k", 3.4e6: "3.4M", 7.9e9: "7.9G", 5e12: "5000G",
	} {
		if got := perSecond(in); got != want {
			t.Errorf("%v: %s, want %s", in, got, want)
		}
	}
	if rate(10, 30, 2*time.Second) != 10 || rate(10, 5, time.Second) != 5 || rate(0, 1, 0) != 0 {
		t.Error("rate")
	}
}

func TestAge(t *testing.T) {
	for in, want := range map[time.Duration]string{
		-time.Second: "0s", 12300 * time.Millisecond: "12s", 59*time.Minute + time.Second: "59m1s", 90 * time.Minute: "1h30m", 49 * time.Hour: "2d1h",
	} {
		if got := cli.Age(in); got != want {
			t.Errorf("%v: %s, want %s", in, got, want)
		}
	}
}

// TestGroupSilent: a silent agent is asked once, and it is not said to lack a group.
func TestGroupSilent(t *testing.T) {
	plain, err := identity.Files{}.Server()
	must(t, err)
	hangs, answers := &fakeAgent{hangs: true}, &fakeAgent{status: &mcrdmav1.GetStatusResponse{Name: "torZ"}}
	hangs.serve(t, plain)
	answers.serve(t, plain)
	show := []string{"group", "show", "10.1.0.1/987654321987", "--timeout", "500ms", "--agent", hangs.addr}
	code, _, stderr := call(show...)
	hangs.mu.Lock()
	calls := hangs.calls
	hangs.mu.Unlock()
	if code != cli.ExitFailure || strings.Count(stderr, "did not answer within 500ms") != 1 || calls > 1 {
		t.Errorf("%d after %d calls: %s", code, calls, stderr)
	}
	code, _, stderr = call(append(show, "--agent", answers.addr)...)
	for _, want := range []string{"none of 1 agent knows", "did not answer within 500ms"} {
		if code != cli.ExitFailure || !strings.Contains(stderr, want) {
			t.Errorf("%d, and not %q: %s", code, want, stderr)
		}
	}
}
