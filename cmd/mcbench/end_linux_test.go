package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// processes counts the processes with a variable in their environment.
func processes(t *testing.T, variable string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		// Processes that have ended meanwhile cannot be read, nor can those of other users.
		if env, err := os.ReadFile(f); err == nil && bytes.Contains(env, []byte(variable+"\x00")) {
			n++
		}
	}
	return n
}

// TestInterruptWithoutRace: interrupted ranks of a lab report it once.
func TestInterruptWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "TestLab sees the same code")
	mark := fmt.Sprintf("MCBENCH_TEST_MARK=%d-%d", os.Getpid(), time.Now().UnixNano())
	var errs testenv.SyncBuffer
	cmd := exec.Command(os.Args[0], "coll", "--lab", "--ranks", "3", "-s", "8", "-n", "1000000")
	cmd.Env = append(os.Environ(), commandEnv+"=1", "TMPDIR="+t.TempDir(), mark)
	cmd.Stderr = &errs
	cmd.WaitDelay = 2 * time.Minute
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test has failed
	eventually(t, func() bool { return processes(t, mark) == 4 })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || strings.TrimSpace(errs.String()) != "mcbench coll: interrupted" {
		t.Errorf("%v: %q", err, errs.String())
	}
}

// TestInterruptStarting: a lab that is interrupted before it has started says so, too.
func TestInterruptStarting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errs testenv.SyncBuffer
	if code := run(ctx, []string{"coll", "--lab"}, io.Discard, &errs); code != 1 || errs.String() != "mcbench coll: interrupted\n" {
		t.Errorf("%d: %q", code, errs.String())
	}
}

// TestEndWithoutRace: a lab that is ended during a measurement, in order or by force, ends with all
// its processes.
func TestEndWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "TestLab sees the same code")
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			dir := t.TempDir()
			mark := fmt.Sprintf("MCBENCH_TEST_MARK=%d-%d", os.Getpid(), time.Now().UnixNano())
			var out, errs testenv.SyncBuffer
			cmd := exec.Command(os.Args[0], "compare", "--lab", "-r", "h2,h3", "--ways", "multicast,chain", "-s", "128", "-n", "1000000", "--json")
			cmd.Env = append(os.Environ(), commandEnv+"=1", "TMPDIR="+dir, mark)
			cmd.Stdout, cmd.Stderr = &out, &errs
			cmd.WaitDelay = 2 * time.Minute // the others have its outputs, too
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test has failed
			eventually(t, func() bool { return strings.Contains(errs.String(), "round 1 of 3: ") })
			if n := processes(t, mark); n != 4 {
				t.Errorf("%d processes: want the lab's, the sender's and two receivers'", n)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			err := <-ended
			eventually(t, func() bool { return processes(t, mark) == 0 })
			if signal == syscall.SIGKILL {
				return // no process was left to report anything
			}
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errs.String(), `{"command":"mcbench compare","error":`) || out.String() != "" {
				t.Errorf("%v, %q, %q", err, out.String(), errs.String())
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("it has left %v, %v", left, err)
			}
		})
	}
}
