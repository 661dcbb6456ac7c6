package bmv2_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The launcher starts this test binary in place of bmv2; the environment says
// how it is to behave.
const behavior = "LAUNCHER_TEST_SWITCH"

func TestMain(m *testing.M) {
	if how := os.Getenv(behavior); how != "" {
		os.Exit(fakeSwitch(how, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// fakeSwitch behaves like simple_switch_grpc as far as the launcher can see.
func fakeSwitch(how string, args []string) int {
	if slices.Contains(args, "--help") {
		fmt.Println("--grpc-server-addr arg  Bind gRPC server to given address")
		if how != "without Thrift" {
			fmt.Println("--thrift-port arg")
		}
		if how != "old" {
			fmt.Println("--max-mc-groups arg\n--max-l1-entries arg\n--max-l2-entries arg\n--priority-queues arg")
		}
		return 0
	}
	fmt.Println("arguments:", strings.Join(args, " "))
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	switch how {
	case "refuse":
		fmt.Println("these are my last words")
		return 3
	case "mute":
		<-terminated
		return 0
	}
	for _, flag := range []string{"--grpc-server-addr", "--thrift-port"} {
		at := slices.Index(args, flag)
		if at < 0 {
			continue
		}
		address := args[at+1]
		if flag == "--thrift-port" {
			address = "127.0.0.1:" + address
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			fmt.Println(err)
			return 4
		}
		go greet(l)
	}
	if how == "crash" {
		return 5
	}
	<-terminated
	fmt.Println("terminated")
	return 0
}

// greet answers each connection as an HTTP/2 server does: with a SETTINGS frame.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
		_, _ = io.CopyN(io.Discard, c, 24)
		_ = c.Close()
	}
}

// launch starts the launcher.
func launch(t *testing.T, how string, args ...string) *launcher {
	t.Helper()
	l := &launcher{done: make(chan error, 1)}
	l.cmd = exec.CommandContext(t.Context(), "./simple_switch_grpc", args...)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l.cmd.Env = append(os.Environ(), behavior+"="+how, "SIMPLE_SWITCH_GRPC="+self, "START_TIMEOUT=20")
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return l
}

type launcher struct {
	cmd  *exec.Cmd
	done chan error
	mu   sync.Mutex
	said bytes.Buffer
}

// run starts it and returns a channel that is closed once it has said the words.
func (l *launcher) run(t *testing.T, words string) <-chan struct{} {
	t.Helper()
	r, w := io.Pipe()
	l.cmd.Stdout, l.cmd.Stderr = w, w
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(r); s.Scan(); {
			l.mu.Lock()
			before := strings.Contains(l.said.String(), words)
			l.said.WriteString(s.Text() + "\n")
			if !before && strings.Contains(l.said.String(), words) {
				close(found)
			}
			l.mu.Unlock()
		}
	}()
	go func() {
		err := l.cmd.Wait()
		_ = w.Close()
		<-read
		l.done <- err
	}()
	return found
}

func (l *launcher) words() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.String()
}

// ends fails unless it ends with this status, having said all of this.
func (l *launcher) ends(t *testing.T, status int, words ...string) {
	t.Helper()
	select {
	case err := <-l.done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := l.cmd.ProcessState.ExitCode(); got != status {
			t.Errorf("status %d, want %d; it said:\n%s", got, status, l.words())
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("does not end; it said:\n%s", l.words())
	}
	for _, w := range words {
		if !strings.Contains(l.words(), w) {
			t.Errorf("%q is missing from:\n%s", w, l.words())
		}
	}
}

// freePort returns a TCP port that no process listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func addresses(t *testing.T) []string {
	t.Helper()
	return []string{"--grpc-server-addr", "127.0.0.1:" + freePort(t), "--thrift-port", freePort(t)}
}

func await(t *testing.T, l *launcher, found <-chan struct{}) {
	t.Helper()
	select {
	case <-found:
	case <-time.After(30 * time.Second):
		t.Fatalf("it said only:\n%s", l.words())
	}
}

func TestLauncherStartsAndStops(t *testing.T) {
	l := launch(t, "good", append(addresses(t), "-i", "3@lo", "--device-id", "7", "--log-console", "--", "--priority-queues", "8")...)
	await(t, l, l.run(t, "ready: P4Runtime on 127.0.0.1:"))
	for _, want := range []string{
		"-i 3@lo", "--device-id 7", "--log-console", "mcrdma.json -- --grpc-server-addr 127.0.0.1:", "--cpu-port 510",
		"--max-mc-groups 32768", "--max-l1-entries 262144", "--max-l2-entries 262144", "--priority-queues 8",
	} {
		if !strings.Contains(l.words(), want) {
			t.Errorf("%q is missing from:\n%s", want, l.words())
		}
	}
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.ends(t, 0, "terminated")
}

// A bmv2 that was built without Thrift knows no port of it.
func TestLauncherWithoutThrift(t *testing.T) {
	l := launch(t, "without Thrift", addresses(t)...)
	await(t, l, l.run(t, "ready: P4Runtime on 127.0.0.1:"))
	if strings.Contains(l.words(), "hrift") {
		t.Errorf("of Thrift:\n%s", l.words())
	}
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.ends(t, 0, "terminated")
}

// The launcher is killed, and cannot tell the switch: that ends all the same.
func TestLauncherKilled(t *testing.T) {
	if err := exec.Command("setpriv", "--pdeathsig", "KILL", "true").Run(); err != nil {
		t.Skipf("optional: setpriv of util-linux: %v", err)
	}
	l := launch(t, "good", addresses(t)...)
	await(t, l, l.run(t, "ready"))
	if err := l.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	l.ends(t, -1) // when its output ends, which the switch has, too
}

func TestLauncherWhich(t *testing.T) {
	l := launch(t, "good", "--which")
	l.run(t, "")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l.ends(t, 0, self+"\n")
	if strings.Contains(l.words(), "arguments:") {
		t.Errorf("the switch was started:\n%s", l.words())
	}
	l = launch(t, "good", "--which")
	l.cmd.Env = append(l.cmd.Env, "SIMPLE_SWITCH_GRPC=/nonexistent")
	l.run(t, "")
	l.ends(t, 1, "/nonexistent: no such program")
}

func TestLauncherOldVersion(t *testing.T) {
	l := launch(t, "old", addresses(t)...)
	await(t, l, l.run(t, "ready"))
	if strings.Contains(l.words(), "--max-mc-groups 32768") || strings.Contains(l.words(), "--priority-queues 2") {
		t.Errorf("an option that this version does not know:\n%s", l.words())
	}
	if err := l.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	l.ends(t, 0, "this version has no --max-mc-groups")
}

func TestLauncherSwitchRefuses(t *testing.T) {
	l := launch(t, "refuse", addresses(t)...)
	l.run(t, "")
	l.ends(t, 3, "these are my last words", "ended with status 3 before P4Runtime answered", "--cpu-port 510", "--priority-queues 2")
}

func TestLauncherSwitchMute(t *testing.T) {
	l := launch(t, "mute", addresses(t)...)
	l.cmd.Env = append(l.cmd.Env, "START_TIMEOUT=1")
	l.run(t, "")
	l.ends(t, 1, "P4Runtime has not answered")
}

func TestLauncherSwitchEnds(t *testing.T) {
	l := launch(t, "crash", addresses(t)...)
	l.run(t, "")
	l.ends(t, 5, "status 5")
}

func TestLauncherRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	go greet(taken)
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"interface", []string{"-i", "1@nosuchport0"}, "there is no interface nosuchport0"},
		{"part of an interface's name", []string{"-i", "1@l"}, "there is no interface l"},
		{"form of interface", []string{"-i", "lo"}, "not of the form PORT@INTERFACE"},
		{"CPU port", []string{"-i", "510@lo"}, "510 is the CPU port"},
		{"address taken", []string{"--grpc-server-addr", "127.0.0.1:" + port}, "is taken: another switch answers there"},
		{"Thrift taken", []string{"--grpc-server-addr", "127.0.0.1:" + freePort(t), "--thrift-port", port}, "choose another --thrift-port"},
		{"form of address", []string{"--grpc-server-addr", "nowhere"}, "not of the form ADDRESS:PORT"},
		{"device id", []string{"--device-id", "x"}, "not a number"},
		{"no value", []string{"-i"}, "-i needs a value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := launch(t, "good", c.args...)
			l.run(t, "")
			l.ends(t, 1, c.want)
		})
	}
	for name, program := range map[string]string{"no such program": "/nonexistent", "is not a simple_switch_grpc": "/bin/true"} {
		t.Run(name, func(t *testing.T) {
			l := launch(t, "good", addresses(t)...)
			l.cmd.Env = append(l.cmd.Env, "SIMPLE_SWITCH_GRPC="+program)
			l.run(t, "")
			l.ends(t, 1, name)
		})
	}
}
