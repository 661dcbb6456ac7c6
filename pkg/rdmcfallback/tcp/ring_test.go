package tcp_test

import (
	"bytes"
	"errors"
	"runtime"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

const ringSlots, ringSize = 5, 100

// ringPair returns a root and a receiver with a ring.
func ringPair(t testing.TB) (root, receiver *inbox) {
	root, receiver = pair(t)
	check(t, errors.Join(root.x.OpenRing(ringSlots, ringSize), receiver.x.OpenRing(ringSlots, ringSize)))
	return root, receiver
}

func TestRing(t *testing.T) {
	a, b := ringPair(t)
	n := 0
	message := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, i*29%(ringSize+1)) }
	for free := range 60 {
		// The first ones are put when there is no connection yet.
		for range ringSlots {
			check(t, a.x.PutSmall(1, uint32(n)<<5, message(n)))
			n++
		}
		if err := a.x.PutSmall(1, 0, nil); !errors.Is(err, tcp.ErrNotReady) {
			t.Fatalf("one more message than slots: %v", err)
		}
		var got [][]byte
		for i := n - ringSlots; i < n; i++ {
			e := b.want(rdmcfallback.EventSmall, 0)
			if e.Imm != uint32(i)<<5 || !bytes.Equal(e.Msg, message(i)) {
				t.Fatalf("message %d came as %+v", i, e)
			}
			got = append(got, e.Msg)
		}
		for i, msg := range got { // they stay where they are until they are freed
			if !bytes.Equal(msg, message(n-ringSlots+i)) {
				t.Fatalf("message %d was overwritten", n-ringSlots+i)
			}
		}
		free = 1 + free%ringSlots
		if err := b.x.FreeSmall(ringSlots + 1); err == nil {
			t.Fatal("more was freed than there is")
		}
		check(t, b.x.FreeSmall(free))
		if free < ringSlots {
			check(t, b.x.FreeSmall(ringSlots-free))
		}
		for freed := 0; freed < ringSlots; {
			freed += a.want(rdmcfallback.EventFreed, 1).N
		}
	}
}

func TestRingMisuse(t *testing.T) {
	a, b := pair(t)
	if err := a.x.PutSmall(1, 0, nil); !errors.Is(err, tcp.ErrNotReady) {
		t.Errorf("PutSmall without a ring: %v", err)
	}
	for _, n := range [][2]int{{0, 1}, {-1, 1}, {tcp.MaxSlots + 1, 1}, {1, -1}, {1, 1<<30 + 1}} {
		if err := a.x.OpenRing(n[0], n[1]); err == nil {
			t.Errorf("a ring of %d slots of %d bytes", n[0], n[1])
		}
	}
	check(t, errors.Join(a.x.OpenRing(1, 3), b.x.OpenRing(1, 3)))
	for name, err := range map[string]error{
		"a second ring":   a.x.OpenRing(1, 3),
		"too long":        a.x.PutSmall(1, 0, make([]byte, 4)),
		"to itself":       a.x.PutSmall(0, 0, nil),
		"to no member":    a.x.PutSmall(2, 0, nil),
		"by a receiver":   b.x.PutSmall(0, 0, nil),
		"nothing to free": b.x.FreeSmall(1),
		"freeing nothing": b.x.FreeSmall(0),
		"freeing at root": a.x.FreeSmall(1),
	} {
		if err == nil {
			t.Errorf("%s: allowed", name)
		}
	}
	check(t, a.x.Close())
	for name, err := range map[string]error{"OpenRing": a.x.OpenRing(1, 1), "PutSmall": a.x.PutSmall(1, 0, nil), "FreeSmall": a.x.FreeSmall(1)} {
		if !errors.Is(err, tcp.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	b.want(rdmcfallback.EventDown, 0)
	check(t, b.x.FreeSmall(1)) // vanishes
}

// What is put to a peer that has gone vanishes, whether or not it was ever reached.
func TestRingDown(t *testing.T) {
	for _, before := range []int{0, 1} {
		a, b := ringPair(t)
		for range before {
			check(t, a.x.PutSmall(1, 0, nil))
			b.want(rdmcfallback.EventSmall, 0)
		}
		check(t, b.x.Close())
		for a.next().Kind != rdmcfallback.EventDown {
		}
		for range 2 * ringSlots {
			check(t, a.x.PutSmall(1, 0, nil))
		}
	}
}

func TestRingAllocs(t *testing.T) {
	a, b := ringPair(t)
	msg := make([]byte, ringSize)
	events := make([]rdmcfallback.Event, 1)
	fetch := func(x *tcp.Transport, kind rdmcfallback.EventKind) {
		if _, err := x.Events(t.Context(), events); err != nil || events[0].Kind != kind {
			t.Fatalf("%+v, %v", events[0], err)
		}
	}
	const rounds = 500
	var before, after runtime.MemStats
	for i := range rounds {
		if i == 5 {
			runtime.ReadMemStats(&before)
		}
		for range ringSlots {
			check(t, a.x.PutSmall(1, 1, msg))
			fetch(b.x, rdmcfallback.EventSmall)
		}
		check(t, b.x.FreeSmall(ringSlots))
		fetch(a.x, rdmcfallback.EventFreed)
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > rounds/10 {
		t.Errorf("%d allocations for %d small messages", n, rounds*ringSlots)
	}
}
