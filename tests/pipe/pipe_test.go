package pipe

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
)

// counters compares those that want names.
func counters(t *testing.T, e *End, want map[string]uint64) {
	t.Helper()
	got := map[string]uint64{}
	e.Counters(got)
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s is %d, want %d", name, got[name], n)
		}
	}
}

func frames(ss ...string) (fs [][]byte) {
	for _, s := range ss {
		fs = append(fs, []byte(s))
	}
	return fs
}

// drain receives until it has n frames.
func drain(t *testing.T, c *End, n int) (got []string) {
	t.Helper()
	fs := make([][]byte, 7)
	for len(got) < n {
		k, err := c.Recv(fs)
		if err != nil || k == 0 {
			t.Fatalf("after %d of %d frames: %d, %v", len(got), n, k, err)
		}
		for _, f := range fs[:k] {
			got = append(got, string(f))
		}
	}
	return got
}

func TestOverflow(t *testing.T) {
	a, b := New(Config{Queue: 4})
	for range 3 { // around the ring
		if err := a.Send(frames("1", "2", "3", "4", "5", "6")); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(drain(t, b, 4), ""); got != "1234" {
			t.Errorf("received %s, want the first four", got)
		}
	}
	counters(t, b, map[string]uint64{"rx_drop_overflow": 6, "rx_drop_impaired": 0})
	counters(t, a, map[string]uint64{"rx_drop_overflow": 0})
}

// What was received stays as it is until the next Recv, whatever is sent.
func TestOwnership(t *testing.T) {
	a, b := New(Config{Queue: 2})
	sent := frames("aa", "bb")
	if err := a.Send(sent); err != nil {
		t.Fatal(err)
	}
	fs := make([][]byte, 2)
	if n, err := b.Recv(fs); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	copy(sent[0], "xx")
	for range 5 {
		if err := a.Send(frames("cc", "dd")); err != nil {
			t.Fatal(err)
		}
	}
	if string(fs[0]) != "aa" || string(fs[1]) != "bb" {
		t.Errorf("received frames became %q, %q", fs[0], fs[1])
	}
}

func TestImpairment(t *testing.T) {
	outcomes := map[uint64]Outcome{
		1: {Drop: true, Dups: 3},
		2: {Dups: 2},
		4: {Late: 2},
		7: {Late: 1, Dups: 1},
		9: {Late: 1}, // nothing comes after it
	}
	var seen []uint64
	a, b := New(Config{Impair: [2]Impairment{func(n uint64, f []byte) Outcome {
		seen = append(seen, n)
		if n == 3 {
			f[0] = '!'
		}
		return outcomes[n]
	}, nil}})
	sent := frames("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
	if err := a.Send(sent); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(drain(t, b, 11), ""), "0222!564"+"877"; got != want {
		t.Errorf("received %s, want %s", got, want)
	}
	if string(sent[3]) != "3" {
		t.Error("the impairment changed the sender's frame")
	}
	counters(t, b, map[string]uint64{"rx_drop_impaired": 1})
	if err := b.Send(frames("back")); err != nil {
		t.Fatal(err)
	}
	if got := drain(t, a, 1); got[0] != "back" || len(seen) != 10 {
		t.Errorf("the way back: %q; %d frames impaired", got, len(seen))
	}
}

func TestClose(t *testing.T) {
	a, b := New(Config{})
	if n, err := b.Recv(nil); n != 0 || err != nil {
		t.Errorf("Recv(nil) = %d, %v", n, err)
	}
	if err := a.Send(frames("last")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := a.Recv(make([][]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("blocked Recv: %v", err)
		}
	})
	a.Close()
	wg.Wait()
	if err := a.Send(frames("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
	if got := drain(t, b, 1); got[0] != "last" {
		t.Errorf("the other end got %q", got)
	}
	if err := b.Send(frames("x")); err != nil {
		t.Errorf("Send to a closed end: %v", err)
	}
	b.Close()
	b.Close()
}
