package store

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// Tests here start the test's own binary as another process; the environment
// says what it does.
const (
	childRole = "STORE_TEST_CHILD"
	childFile = "STORE_TEST_FILE"
)

const workers = 8

// child is what the other process does until it is killed. It writes a line for
// all that was acknowledged.
func child(role string) {
	s, err := Open(context.Background(), os.Getenv(childFile), Options{Wait: time.Minute})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("open")
	alive := func() { _, _ = io.Copy(io.Discard, os.Stdin) } // as long as the test
	if role == "hold" {
		alive()
		return
	}
	if role == "panic" {
		if err := s.Commit(context.Background(), Edit{"b", []byte("before"), []byte("v")}); err != nil {
			fmt.Println("error", err)
		}
		err := s.submit(context.Background(), func(tx *bbolt.Tx) error {
			if err := put(tx, "b", []byte("half"), []byte("v")); err != nil {
				return err
			}
			panic("page 7")
		})
		fmt.Println("it goes on", err)
		os.Exit(0)
	}
	go func() {
		alive()
		os.Exit(1)
	}()
	var mu sync.Mutex
	say := func(args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(args...)
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := 0; ; i++ {
				if w == 0 {
					first, err := s.Reserve("n", 3)
					if err != nil {
						say("error", err)
						return
					}
					say("reserved", first)
					continue
				}
				if err := s.Commit(context.Background(), pairs(s.Boot(), w, i)...); err != nil {
					say("error", err)
					return
				}
				say("done", s.Boot(), w, i)
			}
		})
	}
	wg.Wait()
	os.Exit(1)
}

// pairs is commit i of a worker: in two buckets, some of it large, deleting what
// is old.
func pairs(boot uint64, w, i int) []Edit {
	key := func(i int) []byte { return fmt.Appendf(nil, "%d %d %06d", boot, w, i) }
	value := []byte(strings.Repeat(string(key(i)), 1+i%7*i%150))
	edits := []Edit{{"first", key(i), value}, {"second", key(i), value[:20]}}
	if i >= keep {
		edits = append(edits, Edit{"first", key(i - keep), nil}, Edit{"second", key(i - keep), nil})
	}
	return edits
}

const keep = 20

func start(t *testing.T, role, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childFile+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil { // it ends with this process
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // if the test did not get that far
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "open" {
		_ = cmd.Process.Kill()
		t.Fatalf("the other process says %q", lines.Text())
	}
	return cmd, lines
}

// A process is killed again and again while it commits. All acknowledged commits are
// there, and none in part.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	rounds, acks, reserved := 12, 0, uint64(0)
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		cmd, lines := start(t, "commit", path)
		time.AfterFunc(time.Duration(rand.IntN(120))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		last := map[int]int{}
		var boot uint64
		for lines.Scan() {
			var w, i int
			switch text := lines.Text(); {
			case strings.HasPrefix(text, "reserved "):
				n, err := strconv.ParseUint(strings.TrimPrefix(text, "reserved "), 10, 64)
				if err != nil || n <= reserved {
					t.Fatalf("%q after %d: %v", text, reserved, err)
				}
				reserved = n + 2
			default:
				if _, err := fmt.Sscanf(text, "done %d %d %d", &boot, &w, &i); err != nil {
					t.Fatalf("%q: %v", text, err)
				}
				last[w] = i
				acks++
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatal(err)
		}
		s := mustOpen(t, path, Options{})
		have := map[string]map[string][]byte{}
		for _, bucket := range []string{"first", "second"} {
			have[bucket] = map[string][]byte{}
			for k, v := range s.Load(bucket) {
				have[bucket][string(k)] = v
			}
		}
		if len(have["first"]) != len(have["second"]) {
			t.Errorf("half a commit: %d and %d pairs", len(have["first"]), len(have["second"]))
		}
		for w, i := range last {
			// The last that was acknowledged, or the next one, which was not.
			later := pairs(boot, w, i+1)
			if _, ok := have["first"][string(later[0].Key)]; ok {
				i++
			}
			for n := max(0, i-keep+1); n <= i; n++ {
				for _, e := range pairs(boot, w, n)[:2] {
					if got := have[e.Bucket][string(e.Key)]; string(got) != string(e.Value) {
						t.Errorf("%s %s: %.40q, want %.40q", e.Bucket, e.Key, got, e.Value)
					}
				}
			}
			if e := pairs(boot, w, i)[:]; len(e) == 4 && have["first"][string(e[2].Key)] != nil {
				t.Errorf("%s should be deleted", e[2].Key)
			}
		}
		if first, err := s.Reserve("n", 1); err != nil || first <= reserved {
			t.Errorf("reserved %d after %d, %v", first, reserved, err)
		} else {
			reserved = first
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if acks < rounds {
		t.Errorf("only %d commits in %d rounds", acks, rounds)
	}
	t.Logf("%d commits acknowledged in %d lives", acks, rounds)
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	cmd, _ := start(t, "hold", path)
	for _, wait := range []time.Duration{0, 30 * time.Millisecond} {
		_, err := Open(t.Context(), path, Options{Wait: wait})
		if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) {
			t.Fatal(err)
		}
		if strings.Contains(err.Error(), "agent") || !strings.Contains(err.Error(), `give this one another state file`) {
			t.Error(err) // a daemon has one too
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("process %d, ", cmd.Process.Pid)) && !strings.Contains(err.Error(), "the kernel does not say") {
			t.Errorf("%v: it is process %d", err, cmd.Process.Pid)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, path, Options{Wait: time.Hour}); !errors.Is(err, ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		s, err := Open(context.Background(), path, Options{Wait: time.Minute})
		if err == nil {
			err = s.Close()
		}
		got <- err
	}()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if err := <-got; err != nil {
		t.Error(err)
	}
	// The same within one process.
	s := mustOpen(t, path, Options{})
	if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrLocked) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Several processes may find no file at once; they make one.
func TestCreateAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	var wg sync.WaitGroup
	var mu sync.Mutex
	boots := map[uint64]bool{}
	for range 6 {
		wg.Go(func() {
			s, err := Open(context.Background(), path, Options{Wait: time.Minute})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			boots[s.Boot()] = true
			mu.Unlock()
			key := binary.BigEndian.AppendUint64(nil, s.Boot())
			if err := errors.Join(s.Commit(context.Background(), Edit{"b", key, key}), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := mustOpen(t, path, Options{})
	n := 0
	for range s.Load("b") {
		n++
	}
	if len(boots) != 6 || n != 6 {
		t.Errorf("%d boot numbers, and the file has %d of them", len(boots), n)
	}
}

// A panic while the file is written ends the process. The next one finds the file as
// it was before.
func TestPanicEndsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	cmd, lines := start(t, "panic", path)
	for lines.Scan() {
		t.Error(lines.Text())
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended as if all were well")
	}
	s := mustOpen(t, path, Options{})
	if got := all(s, "b"); !slices.Equal(got, []string{"before=v"}) {
		t.Errorf("b holds %q", got)
	}
}
