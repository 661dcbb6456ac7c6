package rdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

const ringSlots, ringSize = 5, 100

// ringPair returns a root and a receiver with a ring.
func ringPair(t testing.TB) (root, receiver *inbox) {
	root, receiver = pair(t)
	check(t, errors.Join(root.x.OpenRing(ringSlots, ringSize), receiver.x.OpenRing(ringSlots, ringSize)))
	return root, receiver
}

// connectRing lets both do what is to be done for the first message: the root has
// to call Events as well.
func connectRing(root, receiver *inbox) {
	root.t.Helper()
	up := func(x *inbox) func() bool {
		return func() bool {
			x.x.mu.Lock()
			defer x.x.mu.Unlock()
			return x.x.peers[1-x.x.self].ring.up
		}
	}
	receiver.turn(up(receiver))
	root.turn(up(root))
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
		if err := a.x.PutSmall(1, 0, nil); !errors.Is(err, ErrNotReady) {
			t.Fatalf("one more message than slots: %v", err)
		}
		var got [][]byte
		if n == ringSlots {
			connectRing(a, b)
		}
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
	if err := a.x.PutSmall(1, 0, nil); !errors.Is(err, ErrNotReady) {
		t.Errorf("PutSmall without a ring: %v", err)
	}
	for _, n := range [][2]int{{0, 1}, {-1, 1}, {MaxSlots + 1, 1}, {1, -1}, {1, 1<<30 + 1}, {3, 1 << 30}} {
		if err := a.x.OpenRing(n[0], n[1]); err == nil {
			t.Errorf("a ring of %d slots of %d bytes", n[0], n[1])
		}
	}
	check(t, errors.Join(a.x.OpenRing(1, 3), b.x.OpenRing(1, 3)))
	late, other := pair(t)
	link(t, late, other)
	if err := late.x.OpenRing(1, 3); !errors.Is(err, qp.ErrBusy) {
		t.Errorf("a ring after the first block: %v", err)
	}
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
		if !errors.Is(err, ErrClosed) {
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
			connectRing(a, b)
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

func TestRingAllocsWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "the race detector allocates")
	a, b := ringPair(t)
	msg := make([]byte, ringSize)
	ctx := limited(t)
	events := make([]rdmcfallback.Event, 1)
	fetch := func(x *Transport, kind rdmcfallback.EventKind) {
		if _, err := x.Events(ctx, events); err != nil || events[0].Kind != kind {
			t.Fatalf("%+v, %v", events[0], err)
		}
	}
	check(t, a.x.PutSmall(1, 1, msg))
	connectRing(a, b)
	fetch(b.x, rdmcfallback.EventSmall)
	check(t, b.x.FreeSmall(1))
	fetch(a.x, rdmcfallback.EventFreed)
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
		for freed := 0; freed < ringSlots; freed += events[0].N {
			fetch(a.x, rdmcfallback.EventFreed)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > rounds/10 {
		t.Errorf("%d allocations for %d small messages", n, rounds*ringSlots)
	}
}

// ringUp returns a root and a receiver that have exchanged two messages.
func ringUp(t *testing.T) (root, receiver *inbox) {
	a, b := ringPair(t)
	check(t, errors.Join(a.x.PutSmall(1, 0, nil), a.x.PutSmall(1, 0, nil)))
	connectRing(a, b)
	b.want(rdmcfallback.EventSmall, 0)
	b.want(rdmcfallback.EventSmall, 0)
	return a, b
}

// A root that writes what it must not, and where.
func TestRingNonsense(t *testing.T) {
	for name, lie := range map[string]func(slot []byte, wr *qp.SendWR){
		"beyond the ring":   func(_ []byte, wr *qp.SendWR) { wr.RemoteAddr += 5 * 128 },
		"before the ring":   func(_ []byte, wr *qp.SendWR) { wr.RemoteAddr -= 128 * 128 },
		"another key":       func(_ []byte, wr *qp.SendWR) { wr.RKey ^= 0xff00 },
		"the next slot":     func(_ []byte, wr *qp.SendWR) { wr.RemoteAddr += 128 },
		"another number":    func(slot []byte, _ *qp.SendWR) { slot[3]++ },
		"another immediate": func(_ []byte, wr *qp.SendWR) { wr.Imm++ },
		"longer":            func(slot []byte, _ *qp.SendWR) { slot[11]++ },
		"as long as it can be and longer": func(slot []byte, wr *qp.SendWR) {
			slot[11] = ringSize + 1
			wr.SGEs[0].Length = slotHeader + ringSize + 1
		},
		"endless":        func(slot []byte, _ *qp.SendWR) { slot[8] = 0xff },
		"nothing":        func(_ []byte, wr *qp.SendWR) { wr.SGEs = nil },
		"a SEND":         func(_ []byte, wr *qp.SendWR) { wr.Opcode, wr.SGEs = qp.OpSendImm, nil },
		"a SEND of some": func(_ []byte, wr *qp.SendWR) { wr.Opcode = qp.OpSendImm },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := ringUp(t)
			r := &a.x.peers[1].ring
			off := r.offset(r.nPut)
			slot := r.memory[off:]
			slot[3] = byte(r.nPut)
			slot[11] = 7
			wr := qp.SendWR{ID: requestID(len(a.x.peers), 0), Opcode: qp.OpWriteImm, Imm: uint32(r.nPut), SGEs: []qp.SGE{r.mr.SGE(off, slotHeader+7)},
				RemoteAddr: r.remote.Addr + uint64(off), RKey: r.remote.RKey}
			lie(slot, &wr)
			check(t, r.qp.PostSend(&wr))
			want := ErrProtocol
			if wr.RKey != r.remote.RKey || wr.RemoteAddr < r.remote.Addr || wr.RemoteAddr >= r.remote.Addr+uint64(r.remote.Size) {
				// The device refuses it, and only says that the queue pair has ended.
				want = ErrQueuePair
			}
			b.wantDown(name, want)
		})
	}
}

// A receiver that frees what it must not.
func TestRingFreedTooMuch(t *testing.T) {
	for name, imm := range map[string]uint32{"nothing": 0, "too much": 3, "less": 1<<32 - 1} {
		a, b := ringUp(t)
		check(t, b.x.peers[0].ring.qp.PostSend(&qp.SendWR{ID: requestID(9, 0), Opcode: qp.OpSendImm, Imm: imm}))
		if e := a.want(rdmcfallback.EventDown, 1); !errors.Is(e.Err, ErrProtocol) {
			t.Errorf("%s: %v", name, e.Err)
		}
	}
	a, b := ringUp(t)
	check(t, b.x.peers[0].ring.qp.PostSend(&qp.SendWR{ID: requestID(9, 0), Opcode: qp.OpSend}))
	if e := a.want(rdmcfallback.EventDown, 1); !errors.Is(e.Err, ErrProtocol) {
		t.Errorf("no number: %v", e.Err)
	}
}

// A root that ignores whether there is a free slot is refused.
func TestRingOverrun(t *testing.T) {
	a, b := ringUp(t)
	for range ringSlots - 2 {
		check(t, a.x.PutSmall(1, 0, nil))
		b.want(rdmcfallback.EventSmall, 0)
	}
	r := &a.x.peers[1].ring
	check(t, r.qp.PostSend(&qp.SendWR{ID: requestID(1, putSmall), Opcode: qp.OpWriteImm, Imm: ringSlots, RemoteAddr: r.remote.Addr, RKey: r.remote.RKey}))
	if e := a.want(rdmcfallback.EventDown, 1); !errors.Is(e.Err, ErrQueuePair) {
		t.Errorf("no slot: %v", e.Err)
	}
}

// Offers and answers at the wrong time, of the wrong size, by the wrong member.
func TestRingOffers(t *testing.T) {
	offer := []byte{kindRing, 0, 0, 0, 77, 0, 0, 0, 1}
	answer := slices.Concat([]byte{kindSlots, 0, 0, 0, 77, 0, 0, 0, 1}, make([]byte, 16))
	wrong := func(what string, from, to *inbox, msgs ...[]byte) {
		t.Helper()
		for _, msg := range msgs {
			check(t, from.x.mesh.Tell(1-from.x.self, msg))
		}
		for {
			if e := to.next(); e.Kind == rdmcfallback.EventDown {
				if !errors.Is(e.Err, ErrProtocol) {
					t.Errorf("%s: %v", what, e.Err)
				}
				return
			}
		}
	}
	a, b := pair(t)
	wrong("no ring", a, b, offer)
	a, b = ringPair(t)
	wrong("two offers", a, b, offer, offer)
	a, b = ringPair(t)
	wrong("an offer to the root", b, a, offer)
	a, b = ringPair(t)
	wrong("an answer to nothing", b, a, answer)
	a, b = ringPair(t)
	wrong("an answer to a receiver", a, b, answer)
	a, b = ringPair(t)
	wrong("a short offer", a, b, offer[:8])
	a, b = ringPair(t)
	check(t, a.x.PutSmall(1, 0, nil))
	wrong("a short answer", b, a, answer[:24])
	a, b = ringPair(t)
	check(t, a.x.PutSmall(1, 0, nil))
	wrong("a ring of 0 bytes", b, a, answer)
	a, b = ringPair(t)
	check(t, a.x.PutSmall(1, 0, nil))
	wrong("queue pair 0", b, a, append([]byte{kindSlots, 0, 0, 0, 0}, answer[5:]...))
	a, b = ringPair(t)
	check(t, a.x.PutSmall(1, 0, nil))
	there := remote{Size: 5 * 128}
	good := there.append([]byte{kindSlots, 0, 0, 0, 77, 0, 0, 0, 1})
	wrong("two answers", b, a, good, good)
	a, b = ringPair(t)
	check(t, a.x.PutSmall(1, 0, nil))
	wrong("a long answer", b, a, append(slices.Clone(good), 0))
}

// completed is what a device could say, but softroce can't be made to.
func (b *inbox) completed(kind int, wc qp.WC) {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	check(b.t, b.x.completeRing(b.x.peers[1-b.x.self], kind, &wc))
}

func TestRingOddCompletions(t *testing.T) {
	for name, wc := range map[string]qp.WC{
		"a number of freed slots that isn't one": {Opcode: qp.WCRecv, Imm: 1},
		"a number of freed slots by a WRITE":     {Opcode: qp.WCRecvWriteImm, HasImm: true, Imm: 1},
	} {
		a, _ := ringUp(t)
		a.completed(recvFreed, wc)
		a.wantDownOf(1, name)
	}
	a, b := ringUp(t)
	check(t, a.x.PutSmall(1, 0, nil))
	b.want(rdmcfallback.EventSmall, 0)
	b.x.peers[0].ring.nPut-- // it is there already
	b.completed(recvSmall, qp.WC{Opcode: qp.WCRecv, HasImm: true, Imm: 2, ByteLen: slotHeader})
	b.wantDownOf(0, "a small message by a SEND")
}

func (b *inbox) wantDownOf(peer int, what string) {
	b.t.Helper()
	if e := b.want(rdmcfallback.EventDown, peer); !errors.Is(e.Err, ErrProtocol) {
		b.t.Errorf("%s: %v", what, e.Err)
	}
}

// If many messages are in flight, freed slots are reported later, all at once.
func TestRingTellsLater(t *testing.T) {
	a, b := ringUp(t)
	r := &b.x.peers[0].ring
	r.telling = ringSlots
	check(t, b.x.FreeSmall(1))
	check(t, b.x.FreeSmall(1))
	if r.told != 0 {
		t.Fatalf("%d freed slots are being told", r.told)
	}
	b.completed(sendFreed, qp.WC{})
	for freed := 0; freed < 2; {
		freed += a.want(rdmcfallback.EventFreed, 1).N
	}
	if r.told != 2 {
		t.Fatalf("%d freed slots are told", r.told)
	}
}

// A slot is Freed only when the device has done with the root's copy as well, and
// none twice.
func TestRingFreedEarly(t *testing.T) {
	a, _ := ringUp(t)
	a.turn(func() bool {
		a.x.mu.Lock()
		defer a.x.mu.Unlock()
		return a.x.peers[1].ring.nDone == 2
	})
	a.x.mu.Lock()
	a.x.peers[1].ring.nDone = 1 // as if the second one's completion were still to come
	check(t, a.x.completeRing(a.x.peers[1], recvFreed, &qp.WC{Opcode: qp.WCRecv, HasImm: true, Imm: 2}))
	a.x.mu.Unlock()
	if e := a.want(rdmcfallback.EventFreed, 1); e.N != 1 {
		t.Errorf("%d slots are free", e.N)
	}
	a.x.mu.Lock()
	check(t, a.x.completeRing(a.x.peers[1], putSmall, &qp.WC{}))
	a.x.mu.Unlock()
	if e := a.want(rdmcfallback.EventFreed, 1); e.N != 1 {
		t.Errorf("%d slots are free", e.N)
	}
}

func FuzzSlots(f *testing.F) {
	f.Add(append([]byte{kindSlots, 0, 0, 0, 77, 0, 0, 0, 1}, make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, r, err := parseSlots(b)
		if err == nil && !bytes.Equal(r.append(a.encode(b[0])), b) {
			t.Errorf("%x is also %x", b, r.append(a.encode(b[0])))
		}
	})
}

// append appends what follows the address in the answer to a ring's offer.
func (r *remote) append(b []byte) []byte {
	b, _ = binary.Append(b, binary.BigEndian, r)
	return b
}
