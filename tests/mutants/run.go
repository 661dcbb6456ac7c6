package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A suite is the tests of one package, as they run without a mutation.
type suite struct {
	root, dir string
	tmp       string

	measure sync.Once
	flags   []string // of all runs
	err     error
	steps   []step // the cheapest first
}

// A step is a run of some of a suite's tests.
type step struct {
	args []string
	took time.Duration // without a mutation
	cpu  time.Duration
}

// slow is what a test may take before it gets a run of its own, after the others.
const slow = 100 * time.Millisecond

// patience is how often as much time as without the mutation a run may take.
const patience = 5

// baseline runs the tests without a mutation, once: they must pass, and how long each takes
// says in which order they run, and when a run hangs.
func (s *suite) baseline(ctx context.Context) error {
	s.measure.Do(func() {
		bin := filepath.Join(s.tmp, strings.ReplaceAll(s.dir, "/", "+")+".test")
		if s.err = s.compile(ctx, bin, ""); s.err != nil {
			return
		}
		if s.flags, s.err = flagsOf(bin); s.err != nil {
			return
		}
		start := time.Now()
		out, state, err := s.execute(ctx, bin, step{[]string{"-test.v"}, time.Hour, time.Hour})
		took := time.Since(start)
		if err != nil {
			s.err = fmt.Errorf("%s fails without a mutation: %w\n%s", s.dir, err, tail(out))
			return
		}
		s.steps = steps(string(out), took, state.UserTime()+state.SystemTime())
	})
	return s.err
}

// flagsOf returns the flags with which a test program leaves nothing behind: rapid keeps what has failed, for the next run to begin with.
func flagsOf(bin string) (flags []string, err error) {
	b, err := os.ReadFile(bin)
	if flag := "rapid.nofailfile"; bytes.Contains(b, []byte(flag)) {
		flags = []string{"-" + flag}
	}
	return flags, err
}

var passed = regexp.MustCompile(`(?m)^--- PASS: (\w+) \((\d+\.\d+)s\)`)

// steps are the runs that the tests of a run are divided into.
func steps(out string, took, cpu time.Duration) []step {
	var slower []step
	var names []string
	for _, m := range passed.FindAllStringSubmatch(out, -1) {
		seconds, _ := strconv.ParseFloat(m[2], 64)
		if d := time.Duration(seconds * float64(time.Second)); d > slow {
			slower = append(slower, step{[]string{"-test.failfast", "-test.run=^" + m[1] + "$"}, d, min(d, cpu)})
			names = append(names, m[1])
			took -= d
		}
	}
	slices.SortStableFunc(slower, func(a, b step) int { return int(a.took - b.took) })
	fast := step{[]string{"-test.failfast", "-test.skip=^(" + strings.Join(names, "|") + ")$"}, max(0, took), min(max(0, took), cpu)}
	return append([]step{fast}, slower...)
}

func (s *suite) compile(ctx context.Context, bin, overlay string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-p=1", "-vet=off", "-ldflags=-s -w", "-o", bin, "-overlay="+overlay, "./"+s.dir)
	cmd.Dir = s.root
	cmd.Env = append(os.Environ(), "TMPDIR="+s.tmp)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s does not compile: %w\n%s", s.dir, err, tail(out))
	}
	return nil
}

// memory is what a test may allocate, in KiB: a loop without an end must not take all.
const memory = 4 << 20

// execute runs a test program, on one processor, and no longer than the limits: that of its
// processor's time counts, since the machine may be busy; the other is for what waits.
func (s *suite) execute(ctx context.Context, bin string, run step) ([]byte, *os.ProcessState, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience*run.took+20*time.Second, errHangs)
	defer cancel()
	seconds := strconv.Itoa(int((patience * run.cpu).Seconds()) + 2)
	sh := append([]string{"-c", `ulimit -d ` + strconv.Itoa(memory) + `; ulimit -t ` + seconds + `; exec "$0" "$@"`, bin, "-test.timeout=0"}, slices.Concat(s.flags, run.args)...)
	cmd := exec.CommandContext(ctx, "sh", sh...)
	cmd.Dir = filepath.Join(s.root, s.dir)
	cmd.Env = append(os.Environ(), "TMPDIR="+s.tmp, "GOMAXPROCS=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if err != nil && (errors.Is(context.Cause(ctx), errHangs) || cmd.ProcessState != nil && killedBySystem(cmd.ProcessState)) {
		err = errHangs
	}
	return out.Bytes(), cmd.ProcessState, err
}

var errHangs = errors.New("it hangs")

// killedBySystem is whether the limit of processor time has ended a process.
func killedBySystem(state *os.ProcessState) bool {
	w, ok := state.Sys().(syscall.WaitStatus)
	return ok && w.Signaled() && (w.Signal() == syscall.SIGKILL || w.Signal() == syscall.SIGXCPU)
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(panic: .*|fatal error: .*)`)

// try tests a mutation by the suites in turn, and returns what kills it, or "".
func (m *mutation) try(ctx context.Context, tmp string, suites []*suite) (by string, err error) {
	dir, err := os.MkdirTemp(tmp, "mutant")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	file, overlay := filepath.Join(dir, filepath.Base(m.File)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{m.of.path: file}})
	if err := errors.Join(err, os.WriteFile(file, m.mutated(), 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return "", err
	}
	for _, s := range suites {
		if err := s.baseline(ctx); err != nil {
			return "", err
		}
		bin := filepath.Join(dir, "test")
		if err := s.compile(ctx, bin, overlay); err != nil {
			return "", err
		}
		for _, run := range s.steps {
			out, _, err := s.execute(ctx, bin, run)
			switch {
			case ctx.Err() != nil:
				return "", ctx.Err()
			case err == nil:
				continue
			case errors.Is(err, errHangs):
				return s.dir + ": it hangs", nil
			}
			if f := failed.FindStringSubmatch(string(out)); f != nil {
				return s.dir + ": " + f[1] + f[2], nil
			}
			return s.dir + ": " + err.Error(), nil
		}
	}
	return "", nil
}

// tail is the last that a program has printed.
func tail(out []byte) string { return string(out[max(0, len(out)-2000):]) }
