package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		child(role)
		return
	}
	goleak.VerifyTestMain(m)
}

func mustOpen(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func mustCommit(t testing.TB, s *Store, edits ...Edit) {
	t.Helper()
	if err := s.Commit(context.Background(), edits...); err != nil {
		t.Fatal(err)
	}
}

// all lists a bucket as "key=value".
func all(s *Store, bucket string) (list []string) {
	for k, v := range s.Load(bucket) {
		list = append(list, fmt.Sprintf("%s=%s", k, v))
	}
	return list
}

func set(bucket, key, value string) Edit { return Edit{bucket, []byte(key), []byte(value)} }

func TestCommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "sw1.db")
	s := mustOpen(t, path, Options{})
	if s.Boot() < uint64(time.Now().Add(-time.Hour).UnixNano()) {
		t.Errorf("boot %d", s.Boot())
	}
	mustCommit(t, s, set("b", "k2", "v2"), set("b", "k1", "v1"), set("c", "k1", "other"), set("b", "k3", ""))
	mustCommit(t, s, set("b", "k2", "again"), Edit{Bucket: "c", Key: []byte("k1")}, Edit{Bucket: "none", Key: []byte("k")})
	mustCommit(t, s)
	check := func(s *Store) {
		t.Helper()
		if got := all(s, "b"); !slices.Equal(got, []string{"k1=v1", "k2=again", "k3="}) {
			t.Errorf("b holds %q", got)
		}
		if got := slices.Concat(all(s, "c"), all(s, "none"), all(s, own)); len(got) != 0 {
			t.Errorf("%q are there", got)
		}
	}
	check(s)
	for k, v := range s.Load("b") { // committing in the loop
		mustCommit(t, s, Edit{"copy", k, v})
		if string(k) == "k1" {
			break
		}
	}
	if got := all(s, "copy"); !slices.Equal(got, []string{"k1=v1"}) {
		t.Errorf("copy holds %q", got)
	}
	for i := range 500 {
		mustCommit(t, s, set("large", fmt.Sprint(i), "value"))
	}
	for k, v := range s.Load("large") { // what it yields belongs to the caller
		k[0], v[0] = 'x', 'x'
	}
	boot := s.Boot()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), set("b", "k", "v")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := s.Reserve("n", 1); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if got := all(s, "b"); got != nil {
		t.Errorf("closed, it holds %q", got)
	}
	s = mustOpen(t, path, Options{})
	if s.Boot() <= boot {
		t.Errorf("boot %d after %d", s.Boot(), boot)
	}
	check(s)
	if rest, err := filepath.Glob(path + "?*"); err != nil || len(rest) != 0 {
		t.Errorf("left over: %q, %v", rest, err)
	}
}

// Boot rises even if the clock was far ahead once.
func TestBoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	s := mustOpen(t, path, Options{})
	const ahead = 1 << 62
	if err := s.submit(t.Context(), func(tx *bbolt.Tx) error { return put(tx, own, bootKey, []byte{0x40, 7: 0}) }); err != nil {
		t.Fatal(err)
	}
	for want := uint64(ahead + perBoot); want <= ahead+3*perBoot; want += perBoot {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s = mustOpen(t, path, Options{}); s.Boot() != want {
			t.Errorf("boot %d, want %d", s.Boot(), want)
		}
	}
}

func TestReserve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	s := mustOpen(t, path, Options{NoSync: true})
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[uint64]bool{}
	for n := range uint64(40) {
		wg.Go(func() {
			first, err := s.Reserve("group", n%4+1)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range n%4 + 1 {
				if seen[first+i] {
					t.Errorf("%d twice", first+i)
				}
				seen[first+i] = true
			}
		})
	}
	wg.Wait()
	if most := slices.Max(slices.Collect(maps.Keys(seen))); most != 100 || len(seen) != 100 || seen[0] {
		t.Errorf("%d numbers up to %d", len(seen), most)
	}
	if first, err := s.Reserve("other", 1<<63); first != 1 || err != nil {
		t.Error(first, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, Options{})
	if first, err := s.Reserve("group", 1); first != 101 || err != nil {
		t.Error(first, err)
	}
	if first, err := s.Reserve("other", 1<<63); !errors.Is(err, ErrInvalid) {
		t.Error(first, err)
	}
	if first, err := s.Reserve("other", 1); first != 1<<63+1 || err != nil { // the refusal took none
		t.Error(first, err)
	}
}

func TestInvalid(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "x.db"), Options{NoSync: true})
	long := make([]byte, bbolt.MaxKeySize+1)
	for _, e := range []Edit{{"", []byte("k"), nil}, {own, []byte("boot"), nil}, {string(long), []byte("k"), nil}, {"b", nil, nil}, {"b", long, nil},
		{"b", []byte("k"), make([]byte, maxValue+1)}} {
		if err := s.Commit(t.Context(), set("b", "good", "1"), e); !errors.Is(err, ErrInvalid) {
			t.Errorf("bucket %.10q, key of %d: %v", e.Bucket, len(e.Key), err)
		}
	}
	for _, name := range []string{"", string(long)} {
		if _, err := s.Reserve(name, 1); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	}
	if _, err := s.Reserve("n", 0); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if got := all(s, "b"); got != nil {
		t.Errorf("half a commit: %q", got)
	}
	mustCommit(t, s, Edit{"b", long[1:], []byte("v")})
}

// hold keeps the writer busy until the returned function is called.
func hold(t *testing.T, s *Store) (release func()) {
	taken, wait, done := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		if err := s.submit(context.Background(), func(*bbolt.Tx) error { close(taken); <-wait; return nil }); err != nil {
			t.Error(err)
		}
	}()
	<-taken
	return func() { close(wait); <-done }
}

func lastTx(t *testing.T, s *Store) (id int) {
	t.Helper()
	if err := s.db.View(func(tx *bbolt.Tx) error { id = tx.ID(); return nil }); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestShare(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "x.db"), Options{})
	before := lastTx(t, s)
	release := hold(t, s)
	const n = 200
	var wg sync.WaitGroup
	var ready atomic.Int64
	for i := range n {
		wg.Go(func() {
			ready.Add(1)
			if err := s.Commit(context.Background(), set("b", fmt.Sprintf("%03d", i), "v")); err != nil {
				t.Error(err)
			}
		})
	}
	for ready.Load() < n {
		runtime.Gosched()
	}
	release()
	wg.Wait()
	if got := len(all(s, "b")); got != n {
		t.Errorf("%d of %d are there", got, n)
	}
	if used := lastTx(t, s) - before; used > n/4 {
		t.Errorf("%d commits took %d transactions", n, used)
	} else {
		t.Logf("%d commits took %d transactions", n, used)
	}
}

// A commit whose caller gives up before the writer took it is not done; if it gives up
// later, it is.
func TestContext(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "x.db"), Options{NoSync: true})
	release := hold(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Commit(ctx, set("b", "early", "v")); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := s.Commit(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	release()
	ctx, cancel = context.WithCancel(t.Context())
	if err := s.submit(ctx, func(tx *bbolt.Tx) error { cancel(); return set("b", "late", "v").apply(tx) }); err != nil {
		t.Error(err)
	}
	for range 100 { // not by the luck of a select
		if err := s.Commit(ctx, set("b", "over", "v")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if got := all(s, "b"); !slices.Equal(got, []string{"late=v"}) {
		t.Errorf("b holds %q", got)
	}
}

// A disk that is full: every caller in the transaction gets the error, nothing more is
// written, and what was acknowledged is there afterwards.
func TestFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	s := mustOpen(t, path, Options{})
	mustCommit(t, s, set("b", "before", "v"))
	s.db.MaxSize = 1 << 20
	release := hold(t, s)
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			err := s.Commit(context.Background(), set("b", fmt.Sprint(i), strings.Repeat("x", i<<22)))
			if i == 2 && !errors.Is(err, ErrFailed) {
				t.Error(err)
			}
		})
	}
	release()
	wg.Wait()
	if err := s.Commit(t.Context(), set("b", "after", "v")); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	if err := s.Failed(); !errors.Is(err, ErrFailed) {
		t.Errorf("failed: %v", err)
	}
	if _, err := s.Reserve("n", 1); !errors.Is(err, ErrFailed) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, Options{})
	if got := all(s, "b"); !slices.Contains(got, "before=v") || slices.Contains(got, "after=v") {
		t.Errorf("b holds %q", got)
	}
}

// TestRemoved: what would be written to a file without a name would be lost at the next start.
func TestRemoved(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"removed": os.Remove,
		"replaced": func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
		},
		"directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "d", "x.db")
			s := mustOpen(t, path, Options{})
			mustCommit(t, s, set("b", "before", "v"))
			if err := s.Failed(); err != nil {
				t.Error(err)
			}
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			for _, err := range []error{s.Failed(), s.Commit(t.Context(), set("b", "after", "v"))} {
				if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "removed or replaced") {
					t.Errorf("%v", err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("not a directory"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), filepath.Join(file, "x.db"), Options{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Error(err)
	}
	if _, err := Open(t.Context(), dir, Options{}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
	if _, err := Open(t.Context(), file, Options{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), file) {
		t.Error(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), empty, Options{}); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	foreign := filepath.Join(dir, "foreign")
	db, err := bbolt.Open(foreign, 0o600, &bbolt.Options{PageSize: pageSize})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), foreign, Options{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "it has no format") {
		t.Error(err)
	}
}

// TestKind: a program does not open another one's state, but takes over an earlier release's, which does not say whose it is.
func TestKind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	for _, c := range []struct{ kind, words string }{
		{"", ""}, {"switch agent", ""}, {"daemon", "it is the state of a switch agent, and this is a daemon"}, {"switch agent", ""}, {"", ""},
	} {
		s, err := Open(t.Context(), path, Options{Kind: c.kind})
		if (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Fatalf("%q: %v", c.kind, err)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	s := mustOpen(t, path, Options{})
	if err := s.submit(t.Context(), func(tx *bbolt.Tx) error { return put(tx, own, versionKey, []byte{7: version + 1}) }); err != nil {
		t.Fatal(err)
	}
	boot := lastTx(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), path) {
			t.Fatal(err)
		}
	}
	db, err := bbolt.Open(path, 0, options(Options{}))
	if err != nil {
		t.Fatal(err)
	}
	if got := db.View(func(tx *bbolt.Tx) error {
		if tx.ID() != boot {
			return fmt.Errorf("transaction %d after %d: a file of a newer version was written to", tx.ID(), boot)
		}
		return nil
	}); got != nil {
		t.Error(got)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
