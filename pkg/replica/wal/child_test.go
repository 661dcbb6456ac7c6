package wal

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/durable"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// A test starts this program again as a child, which writes to a log.
const childVar = "WAL_TEST_CHILD"

func TestMain(m *testing.M) {
	if args := os.Getenv(childVar); args != "" {
		if err := child(strings.Split(args, ",")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child changes the log at random, and prints what is durable: "<seq>", and once "error <text>" at most.
func child(args []string) error {
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	limit, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	if limit > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
	}
	progress := make(chan uint64, 1)
	ended := make(chan struct{})
	l, err := Open(args[0], 7, Options{SegmentSize: 50_000, Synced: func(seq uint64, err error) {
		if err != nil {
			fmt.Println("error", err)
			close(ended)
			return
		}
		fmt.Println(seq)
		progress <- seq
	}})
	if err != nil {
		return err
	}
	m, err := load(l)
	if err != nil {
		return err
	}
	rnd := rand.New(rand.NewPCG(seed, 9))
	for seq, synced := uint64(0), uint64(0); ; {
		for ; seq < synced+50; seq++ {
			c, e := m.change(rnd)
			l.Persist(core.Persist{Seq: seq + 1, Change: c}, e)
		}
		select {
		case synced = <-progress:
		case <-ended:
			return nil
		}
	}
}

// load is what a log holds.
func load(l *Log) (model, error) {
	s := l.Stored()
	m := model{hard: s.HardState, tail: s.Tail}
	for _, e := range l.Headers() {
		e, err := l.Read(e.Version.Index)
		if err != nil {
			return m, err
		}
		m.entries = append(m.entries, e)
	}
	return m, m.compare(l)
}

// runChild runs a child until it ends, or kills it when it has reported some times. It returns what may be
// durable, from what was reported on.
func runChild(t *testing.T, dir string, m model, seed, limit uint64, kill int) (*life, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%d,%d", childVar, dir, seed, limit))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	f := &life{after: []model{m.clone()}}
	failure := ""
	for lines, n := bufio.NewScanner(out), 0; lines.Scan(); n++ {
		if seq, err := strconv.ParseUint(lines.Text(), 10, 64); err == nil && failure == "" {
			f.synced = seq
		} else if failure != "" {
			t.Errorf("%q after %q", lines.Text(), failure)
		} else {
			failure = lines.Text()
		}
		if n == kill {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); (err == nil) != (failure != "") {
		t.Fatalf("child: %v, %q", err, failure)
	}
	rnd := rand.New(rand.NewPCG(seed, 9))
	for range f.synced + 60 {
		m.change(rnd)
		f.after = append(f.after, m.clone())
	}
	return f, failure
}

// reopen checks that a log has what was reported, and returns what it has.
func (f *life) reopen(t *testing.T, dir string) model {
	t.Helper()
	l, err := Open(dir, 7, Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := f.find(l)
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestKill: a process that is killed while it writes has on disk what it has reported.
func TestKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	var m model
	changes := uint64(0)
	for round := range 12 {
		f, _ := runChild(t, dir, m, uint64(round), 0, round*3)
		m = f.reopen(t, dir)
		changes += f.synced
	}
	if changes < 100 {
		t.Errorf("%d changes in 12 lives", changes)
	}
	t.Logf("%d changes in 12 lives", changes)
}

// TestFull: a full disk, or a file that may not grow, is reported once and as such. What was
// reported durable is there, and the log can be opened and continued when there is space.
func TestFull(t *testing.T) {
	full := func(t *testing.T, dir string, limit uint64, room func()) {
		f, failure := runChild(t, dir, model{}, 1, limit, -1)
		if !strings.Contains(failure, "the disk is full: make space") || f.synced == 0 {
			t.Fatalf("after %d changes: %q", f.synced, failure)
		}
		t.Logf("after %d changes: %s", f.synced, failure)
		room()
		m := f.reopen(t, dir)
		f, _ = runChild(t, dir, m, 2, 0, 5)
		f.reopen(t, dir)
	}
	t.Run("limit of a file", func(t *testing.T) {
		full(t, filepath.Join(t.TempDir(), "log"), 20_000, func() {})
	})
	t.Run("file system", func(t *testing.T) {
		mount := t.TempDir()
		if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=256k"); err != nil {
			testenv.Skip(t, "mounting a tmpfs: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(mount, 0); err != nil {
				t.Error(err)
			}
		})
		ballast := filepath.Join(mount, "ballast")
		if err := os.WriteFile(ballast, make([]byte, 200<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		full(t, filepath.Join(mount, "log"), 0, func() {
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// A second process is refused, with the first one's number.
func TestLockedByProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l, err := Open(dir, 7, Options{})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s,1,0", childVar, dir))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), durable.ErrLocked.Error()) {
		t.Errorf("%v: %s", err, out)
	}
	if who := fmt.Sprintf("process %d", syscall.Getpid()); !strings.Contains(string(out), who) && !strings.Contains(string(out), "the kernel does not say") {
		t.Errorf("it is %s: %s", who, out)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
