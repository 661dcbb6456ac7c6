package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv("CMD_DAEMON_TEST_MAIN") == "1" {
		main()
	}
	defaultConfig = "/no/such/configuration"
	goleak.VerifyTestMain(m)
}

const patience = 20 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// call runs a command line that ends by itself.
func call(args ...string) (code int, stdout, stderr string) {
	var out, errs testenv.SyncBuffer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code = run(cli.At(ctx, began), args, &out, &errs)
	return code, out.String(), errs.String()
}

// started is a command line that runs until it is stopped.
type started struct {
	out, errs testenv.SyncBuffer
	cancel    context.CancelFunc
	code      chan int
}

func start(t testing.TB, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &started{cancel: cancel, code: make(chan int, 1)}
	go func() { s.code <- run(ctx, args, &s.out, &s.errs) }()
	t.Cleanup(func() { s.stop(t) })
	return s
}

// waitFor waits until the output has this text.
func (s *started) waitFor(t testing.TB, text string) {
	t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(s.out.String(), text); time.Sleep(time.Millisecond) { // the output comes from another goroutine
		if time.Now().After(end) {
			t.Fatalf("no %q in %q, %s", text, s.out.String(), s.errs.String())
		}
		select {
		case code := <-s.code:
			s.code <- code
			if !strings.Contains(s.out.String(), text) {
				t.Fatalf("ended with %d: %s%s", code, s.out.String(), s.errs.String())
			}
		default:
		}
	}
}

// stop ends it as SIGTERM does, and returns the exit code. It may be called more than once.
func (s *started) stop(t testing.TB) int {
	t.Helper()
	s.cancel()
	select {
	case code := <-s.code:
		s.code <- code
		return code
	case <-time.After(patience):
		t.Fatalf("it does not end: %s", s.errs.String())
	}
	return -1
}

// TestUsage: errors of command lines are reported, with exit code 2.
func TestUsage(t *testing.T) {
	t.Setenv(cli.SocketEnv, "/no/such.sock")
	for _, c := range []struct{ args, want string }{
		{"walk", `no subcommand "walk"; the subcommands are: `},
		{"run", "a configuration is needed: --config FILE"},
		{"run x", `unexpected argument "x"`},
		{"run -c x --on-stop leave", `--on-stop "leave" is neither keep nor close`},
		{"run -c x --log-level loud", `--log-level "loud": want debug`},
		{"run -c x --json-logs --on-stop no", "--on-stop"},
		{"status x", `unexpected argument "x"`},
		{"status -o yaml", "formats are text or json"},
		{"status --timeout 0s", "--timeout 0s"},
		{"groups --timeout -1s", "--timeout -1s"},
		{"group list", `no subcommand "list"; the subcommands are: show`},
		{"group show", "0 arguments: name one group"},
		{"group show a b", "2 arguments"},
		{"group show 10.1.0.11", "a group is SOURCE/NUMBER"},
		{"group show x/3", `"x" is not an IPv4 address`},
		{"group show ::1/3", `"::1" is not an IPv4 address`},
		{"group show 10.1.0.11/-1", `"-1" is not a number`},
		{"init", "0 arguments: name one directory"},
		{"init lab", "a lab has hosts"},
		{"init lab --host h1", `--host "h1" is not NAME=ADDRESS`},
		{"init lab --host h1=10.0.0.1 --switch torA", `--switch "torA" is not NAME=HOST:PORT`},
		{"init lab --host h1=10.0.0.1 --admin a/b", `--admin "a/b" is not a name`},
		{"init lab --host h1=10.0.0.1 --days 0", "--days 0"},
		{"init lab --add", "--add what?"},
		{"init lab --renew --add", "--renew goes without"},
		{"init lab --renew --host h1=10.0.0.1", "--renew goes without"},
		{"cmtime", "a service is needed"},
		{"cmtime --service s", "--receivers HOST,… for the sender, or --serve"},
		{"cmtime --service s --serve --receivers a", "one of them"},
		{"cmtime --service s --receivers ,", `--receivers ",": a name is empty`},
		{"cmtime --service s --receivers a,", `--receivers "a,": a name is empty`},
		{"cmtime --service s --receivers a -n 0", "--count 0"},
		{"cmtime --service s --receivers a --warm-up -1", "--warm-up -1"},
		{"cmtime --service s --receivers a --mode fast", `--mode "fast": want auto`},
		{"cmtime --service s --receivers a --write -1", `"-1" is not a number of bytes`},
		{"cmtime --service s --receivers a --timeout 0s", "--timeout 0s"},
		{"doctor x", `unexpected argument "x"`},
	} {
		code, stdout, stderr := call(strings.Fields(c.args)...)
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "--help") {
			t.Errorf("%s: exit code %d, %q, %q; want 2 and %q", c.args, code, stdout, stderr, c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"": "doctor", "--help": "cmtime", "--version": "cmd-daemon", "run --help": "--on-stop", "group": "show", "init -h": "--switch",
	} {
		code, stdout, stderr := call(strings.Fields(args)...)
		if code != cli.ExitOK || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("%q: exit code %d, %q, %q; want %q", args, code, stdout, stderr, want)
		}
	}
}

// TestClientScripts: commands that ask a daemon, and their output. In the scripts, {socket} is its
// socket.
func TestClientScripts(t *testing.T) {
	t.Setenv(cli.SocketEnv, "")
	stamp := regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*Z"`)
	datadriven.Walk(t, "testdata/client", func(t *testing.T, path string) {
		fake := busy(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "run" {
				t.Fatalf("no command %q", d.Cmd)
			}
			code, stdout, stderr := call(append(strings.Fields(d.Input), "--socket", fake.socket)...)
			if strings.Contains(d.Input, "json") && !json.Valid([]byte(stdout)) {
				t.Errorf("no JSON: %s", stdout)
			}
			out := strings.ReplaceAll(stdout+stderr, fake.socket, "{socket}")
			return stamp.ReplaceAllString(out, `"TIME"`) + fmt.Sprintf("exit code %d\n", code)
		})
	})
}

// TestWatchJSON: each event is a line.
func TestWatchJSON(t *testing.T) {
	code, stdout, stderr := call("watch", "--json", "--socket", busy(t).socket)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != cli.ExitFailure || len(lines) != 2 || !strings.Contains(stderr, "faster than they were read") {
		t.Fatalf("%d, %q, %s", code, lines, stderr)
	}
	for i, kind := range []string{"watching", "removed"} {
		var e map[string]any
		if err := json.Unmarshal([]byte(lines[i]), &e); err != nil || e["kind"] != kind {
			t.Errorf("%s: %v", lines[i], err)
		}
	}
}

// TestSocket: the daemon is that of the environment, unless the command line names one.
func TestSocket(t *testing.T) {
	fake := busy(t)
	fake.daemon.Problems = nil
	t.Setenv(cli.SocketEnv, fake.socket)
	if code, stdout, stderr := call("status"); code != cli.ExitOK || !strings.HasPrefix(stdout, "h1, daemon at "+fake.socket) {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
	if code, _, stderr := call("status", "-s", "/no/such.sock"); code != cli.ExitFailure || !strings.Contains(stderr, "daemon at /no/such.sock") {
		t.Errorf("%d, %s", code, stderr)
	}
}

// TestClientErrors: why the daemon cannot be asked, and what to do.
func TestClientErrors(t *testing.T) {
	t.Setenv(cli.SocketEnv, "")
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	hangs := (&fakeDaemon{hangs: true}).serve(t)
	refuses := (&fakeDaemon{fails: refusal(codes.PermissionDenied, "DENIED", "user 1000 may not\x1b[2J")}).serve(t)
	foreign := (&fakeDaemon{fails: status.Error(codes.Unimplemented, "unknown service")}).serve(t)
	for _, c := range []struct{ socket, want string }{
		{filepath.Join(dir, "none.sock"), "there is no such socket; is \"cmd-daemon run\" running"},
		{file, "no process listens there"},
		{hangs.socket, "did not answer within 50ms; --timeout allows more"},
		{refuses.socket, "refuses: user 1000 may not\uFFFD[2J (DENIED)"},
		{foreign.socket, "does not know /mcrdma.v1.Applications/GetDaemon"},
	} {
		args := []string{"status", "--socket", c.socket}
		if c.socket == hangs.socket {
			args = append(args, "--timeout", "50ms")
		}
		code, stdout, stderr := call(args...)
		if code != cli.ExitFailure || stdout != "" || !strings.Contains(stderr, "daemon at "+c.socket) || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, %q, %q; want 1 and %q", c.socket, code, stdout, stderr, c.want)
		}
	}
}

func TestCompletion(t *testing.T) {
	fake := busy(t)
	code, stdout, _ := call("__complete", "group", "show", "--socket", fake.socket, "")
	if code != cli.ExitOK || !strings.Contains(stdout, "10.1.0.11/3\tjournal, 2 receivers\n") {
		t.Errorf("%d, %s", code, stdout)
	}
	for args, want := range map[string]string{
		"cmtime --socket " + fake.socket + " --receivers h2,": "h2,h3\n",
		"cmtime --mode ":   "auto\nrequire\noff\n",
		"run --on-stop ":   "keep\nclose\n",
		"run --log-level ": "debug\ninfo\nwarn\nerror\n",
		"cmtime --socket /no/such.sock --receivers ": ":6",
	} {
		words := strings.Split(args, " ")
		if strings.HasSuffix(args, ",") {
			words = strings.Fields(args)
		}
		if code, stdout, _ := call(append([]string{"__complete"}, words...)...); code != cli.ExitOK || !strings.HasPrefix(stdout, want) {
			t.Errorf("%s: %d, %s", args, code, stdout)
		}
	}
	code, stdout, _ = call("__complete", "group", "show", "--socket", "/no/such.sock", "")
	if code != cli.ExitOK || !strings.HasPrefix(stdout, ":4") {
		t.Errorf("%d, %s", code, stdout)
	}
}

// A process is the program in its own process.
type process struct {
	*exec.Cmd
	ready  string // its first line
	stderr *testenv.SyncBuffer
}

func startProcess(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command("/proc/self/exe", args...), stderr: &testenv.SyncBuffer{}}
	p.Env = append(append(os.Environ(), "CMD_DAEMON_TEST_MAIN=1"), env...)
	p.Stderr = p.stderr
	out, err := p.StdoutPipe()
	must(t, err)
	must(t, p.Start())
	late := time.AfterFunc(patience, func() { _ = p.Process.Kill() })
	t.Cleanup(func() {
		late.Stop()
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	if p.ready, err = bufio.NewReader(out).ReadString('\n'); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return p
}

// TestGroupNames: a group is found by its number, and by the MC_ID that switches and packets have,
// and both are printed.
func TestGroupNames(t *testing.T) {
	fake := busy(t)
	for _, name := range []string{"10.1.0.11/3", "10.1.0.11/0x800003", "10.1.0.11/8388611"} {
		_, stdout, stderr := call("group", "show", name, "--socket", fake.socket)
		for _, want := range []string{"group 10.1.0.11/3, MC_ID 0x800003, service journal", "0x000011"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: no %q in %s%s", name, want, stdout, stderr)
			}
		}
	}
	if _, stdout, _ := call("groups", "--socket", fake.socket); !strings.Contains(stdout, "10.1.0.11/3  0x800003") {
		t.Error(stdout)
	}
	for _, none := range []string{"10.1.0.12/0x800003", "10.1.0.11/0x800004"} {
		if code, _, stderr := call("group", "show", none, "--socket", fake.socket); code != cli.ExitFailure || !strings.Contains(stderr, "there is no group "+none) {
			t.Errorf("%s: %d, %s", none, code, stderr)
		}
	}
}
