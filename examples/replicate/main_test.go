package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// commandEnv has the test binary be the command.
const commandEnv = "REPLICATE_COMMAND"

// GoBGP's servers end with the process.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(receiverEnv) != "":
		os.Exit(receiverMain(os.Getenv(receiverEnv), os.Stdin, os.Stdout, os.Stderr))
	case os.Getenv(commandEnv) != "":
		os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).Serve"),
		goleak.IgnoreAnyFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

// A program is the command in a process of its own, with a directory for temporary
// files of its own.
type program struct {
	*exec.Cmd
	out    *bufio.Scanner // standard output and standard error
	stdout bytes.Buffer   // if it is kept apart
	tmp    string
}

func newProgram(t *testing.T, args ...string) *program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{Cmd: exec.Command(exe, args...), tmp: t.TempDir()}
	p.Env = append(os.Environ(), commandEnv+"=1", "TMPDIR="+p.tmp)
	return p
}

// begin starts the program; its output is to be read from out. That ends when all
// processes that have it are gone.
func (p *program) begin(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	p.Stdout, p.Stderr = w, w
	if err := errors.Join(p.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(r)
	if err := r.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
}

// until reads lines up to one that contains text.
func (p *program) until(t *testing.T, text string) string {
	t.Helper()
	var all strings.Builder
	for p.out.Scan() {
		fmt.Fprintln(&all, p.out.Text())
		if strings.Contains(p.out.Text(), text) {
			return all.String()
		}
	}
	t.Fatalf("no line contains %q (%v):\n%s", text, p.out.Err(), &all)
	return ""
}

// rest reads what there is still to come, until no process has the output open.
func (p *program) rest(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for p.out.Scan() {
		fmt.Fprintln(&all, p.out.Text())
	}
	if err := p.out.Err(); err != nil {
		t.Errorf("reading the rest: %v: a process goes on", err)
	}
	return all.String()
}

func (p *program) leftovers(t *testing.T) {
	t.Helper()
	list, err := os.ReadDir(p.tmp)
	if err != nil || len(list) != 0 {
		t.Errorf("left in the directory for temporary files: %v %v", list, err)
	}
}

// TestRun: the whole demonstration, of a file whose size is nothing round.
func TestRun(t *testing.T) {
	t.Parallel()
	data := bytes.Repeat([]byte("All of this goes to three hosts. "), 100_001)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	p := newProgram(t, "--file", file, "--write", "262144", "--json")
	var people bytes.Buffer
	p.Stdout, p.Stderr = &p.stdout, &people
	err := p.Run()
	if t.Log(people.String()); err != nil {
		t.Fatal(err)
	}
	p.leftovers(t)
	var r results
	if err := json.Unmarshal(p.stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, &p.stdout)
	}
	sum := sha256.Sum256(data)
	want := hexText(sum[:])
	if r.File.Bytes != len(data) || r.File.SHA256 != want || r.File.Name != file {
		t.Errorf("the file is %+v", r.File)
	}
	if len(r.Ways) != 4 {
		t.Fatalf("%d ways", len(r.Ways))
	}
	// A single block to each of three receivers passes the sender's uplink two or three
	// times; headers and what was lost come on top.
	limits := []struct {
		path, algorithm string
		least, most     float64
	}{{"switch", "", 1, 1.1}, {"relay", "sequential", 3, 3.3}, {"relay", "chain", 1, 1.1}, {"relay", "binomial-pipeline", 1, 2.2}}
	for i, w := range r.Ways {
		l := limits[i]
		if w.Path != l.path || w.Algorithm != l.algorithm || w.UplinkTimes < l.least || w.UplinkTimes > l.most || w.HostsTimes < w.UplinkTimes {
			t.Errorf("%+v, want %+v", w, l)
		}
		if w.Writes != 13 || w.Seconds <= 0 || w.Goodput <= 0 {
			t.Errorf("%s: %d writes in %v s, %v Gb/s", w.Way, w.Writes, w.Seconds, w.Goodput)
		}
		equal(t, w.Replicas, want, "h2", "h3", "h4")
	}
	if w := r.Ways[0]; w.Posts != 13 || w.Completions != 13 {
		t.Errorf("%s: %d posts and %d completions for 13 writes", w.Way, w.Posts, w.Completions)
	}
	f := r.Failure
	if f.Killed != "h4" || !strings.Contains(strings.Join(f.Events, "\n"), "removed 10.2.0.12 (h4)") || f.Pause <= 0 {
		t.Errorf("%+v", f)
	}
	equal(t, f.Replicas, want, "h2", "h3")
	for _, text := range []string{"torA  merges answers", "h3 10.2.0.11", "kill -9", "x FILE", "\n   100 % of 3.1 MiB"} {
		if !strings.Contains(people.String(), text) {
			t.Errorf("the output for people lacks %q", text)
		}
	}
	if strings.Contains(people.String(), "computes ICRCs anew") {
		t.Error("copies do not keep their ICRC")
	}
}

// equal compares replicas with what they should be.
func equal(t *testing.T, replicas map[string]string, want string, hosts ...string) {
	t.Helper()
	if len(replicas) != len(hosts) {
		t.Errorf("replicas %v, want those of %v", replicas, hosts)
	}
	for _, h := range hosts {
		if replicas[h] != want {
			t.Errorf("the replica of %s is %s, want %s", h, replicas[h], want)
		}
	}
}

// TestSignalsWithoutRace: whenever a signal arrives, the command ends soon with the signal's
// exit code, and leaves nothing.
func TestSignalsWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "TestKeep has a signal, too")
	t.Parallel()
	for name, c := range map[string]struct {
		at     string
		signal syscall.Signal
		times  int
		code   int
	}{
		"while the lab starts":     {"Two racks", syscall.SIGINT, 1, 130},
		"when all is ready":        {"ready after", syscall.SIGTERM, 1, 143},
		"in the first replication": {" % of", syscall.SIGINT, 1, 130},
		"while hosts relay":        {"relayed as chain", syscall.SIGINT, 1, 130},
		"while a receiver dies":    {"kill -9", syscall.SIGINT, 1, 130},
		"in a hurry":               {" % of", syscall.SIGINT, 2, 130},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProgram(t, "--size", "8000000")
			p.begin(t)
			before := p.until(t, c.at)
			for range c.times {
				if err := p.Process.Signal(c.signal); err != nil {
					t.Fatal(err)
				}
			}
			begun := time.Now()
			rest := p.rest(t)
			_ = p.Wait()
			if code := p.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d:\n%s%s", code, c.code, before, rest)
			}
			if c.times == 1 && !strings.Contains(rest, "ended by a signal") {
				t.Errorf("it does not say why:\n%s", rest)
			}
			if d := time.Since(begun); d > 20*time.Second {
				t.Errorf("it took %v", d)
			}
			p.leftovers(t)
		})
	}
}

// TestKilledWithoutRace: receivers end with the process that has started them, however it ends.
func TestKilledWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "nothing of the process that is killed runs")
	t.Parallel()
	p := newProgram(t, "--size", "1000000", "--keep")
	p.begin(t)
	p.until(t, "or kill a receiver")
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.rest(t)
	if err := p.Wait(); err == nil {
		t.Error("no error of a process that was killed")
	}
}

// TestKeep: what is kept goes on, and says what to do with it, until Ctrl-C, even if all receivers are killed.
func TestKeep(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "--size", "1000000", "--keep")
	p.begin(t)
	p.until(t, "SWITCHCTL_AGENT=127.")
	for _, h := range []string{"h2", "h3", "h4"} {
		line := p.until(t, "# on "+h)
		var pid int
		if _, err := fmt.Sscanf(line[strings.LastIndex(line, "kill -9"):], "kill -9 %d", &pid); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	p.until(t, "nothing is written any more")
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest := p.rest(t)
	if err := p.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, rest)
	}
	p.leftovers(t)
}

// TestFailures: what goes wrong is said with the place, and then all is ended.
func TestFailures(t *testing.T) {
	s, err := parse([]string{"--size", "100000"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	d := &demo{settings: s, stderr: os.Stderr, out: os.Stderr, processes: map[string]*process{},
		cancel: func(err error) { t.Error(err) }}
	data, _, err := s.content()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	defer func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := d.start(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	d.sum = sha256.Sum256(data)
	if _, err := d.replicate(t.Context(), 1, ways[0]); err != nil {
		t.Error(err)
	}
	g, err := d.sender.group(t.Context(), ways[0], receivers)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.WriteImm(t.Context(), mcrdma.At{}, 0); err != nil {
		t.Error(err)
	}
	if _, err := d.check(t.Context(), g, receivers); err == nil || !strings.Contains(err.Error(), "not equal") {
		t.Errorf("nothing was written, and the replicas are equal: %v", err)
	}
	if err := d.endGroup(t.Context(), g, receivers); err != nil {
		t.Error(err)
	}
	d.sum[0]++ // some other file's
	if _, err := d.replicate(t.Context(), 1, ways[0]); err == nil || !strings.Contains(err.Error(), "at h2 is not equal") {
		t.Errorf("another file's SHA-256: %v", err)
	}
	w := ways[1]
	w.path = ways[0].path
	if _, err := d.replicate(t.Context(), 2, w); err == nil || !strings.Contains(err.Error(), "path is relay and should be switch") {
		t.Errorf("another path: %v", err)
	}
	p := d.process("h3")
	d.kill("h3")
	if _, err := p.expect(t.Context(), "to speak", func(report) bool { return false }); err == nil || !strings.Contains(err.Error(), "h3") {
		t.Errorf("waiting for a receiver that is gone: %v", err)
	}
	if _, err := d.replicate(t.Context(), 3, ways[0]); err == nil || !strings.Contains(err.Error(), "h3") {
		t.Errorf("no receiver on h3: %v", err)
	}
}

// TestFlags: wrong flags and files are refused before anything is started.
func TestFlags(t *testing.T) {
	dir := t.TempDir()
	empty, large := filepath.Join(dir, "empty"), filepath.Join(dir, "large")
	for name, size := range map[string]int64{empty: 0, large: maxFile + 1} {
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, size)); err != nil {
			t.Fatal(err)
		}
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"--help", 0, "Exit codes"},
		{"--nothing", 2, "nothing"},
		{"file.iso", 2, "--file file.iso"},
		{"--size 0", 2, "--size 0: it is 1 to"},
		{"--write 0", 2, "--write 0"},
		{"--depth 257", 2, "--depth 257: it is 1 to 256"},
		{"--file " + filepath.Join(dir, "none"), 1, "no such file"},
		{"--file " + dir, 1, "is not a regular file"},
		{"--file " + pipe, 1, "is not a regular file"},
		{"--file " + empty, 1, "nothing to replicate"},
		{"--file " + large, 1, "takes 1 GiB at most"},
	} {
		p := newProgram(t, strings.Fields(c.args)...)
		out, err := p.CombinedOutput()
		if code := p.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: exit code %d (%v), want %d and %q:\n%s", c.args, code, err, c.code, c.says, out)
		}
		p.leftovers(t)
	}
}
