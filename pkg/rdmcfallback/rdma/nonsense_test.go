package rdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// wantDown waits for the end of member 0.
func (b *inbox) wantDown(what string, want error) {
	b.t.Helper()
	for {
		e := b.next()
		if e.Kind != rdmcfallback.EventDown {
			continue
		}
		if !errors.Is(e.Err, want) {
			b.t.Errorf("%s: %v", what, e.Err)
		}
		if errors.Is(want, ErrProtocol) && !errors.Is(e.Err, rdmcfallback.ErrProtocol) {
			b.t.Errorf("%s: %v isn't a violation to the group", what, e.Err)
		}
		return
	}
}

func TestOtherProtocols(t *testing.T) {
	for name, c := range map[string]struct {
		change func(h []byte) []byte
		want   error
	}{
		"TCP only":   {func([]byte) []byte { return nil }, ErrVersion},
		"version":    {func(h []byte) []byte { h[len(magic)+1]++; return h }, ErrVersion},
		"magic":      {func(h []byte) []byte { h[0]++; return h }, ErrVersion},
		"short":      {func(h []byte) []byte { return h[:helloBytes-1] }, ErrVersion},
		"path MTU":   {func(h []byte) []byte { binary.BigEndian.PutUint16(h[len(magic)+2:], 1500); return h }, ErrProtocol},
		"no address": {func(h []byte) []byte { clear(h[len(magic)+4:]); return h }, ErrProtocol},
		"multicast":  {func(h []byte) []byte { h[len(magic)+4] = 224; return h }, ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			all := options(t, 2)
			h := hello{mtu: 1024, addr: all[0].Device.Attr().Addr}
			o := all[0].Options
			o.Hello = c.change(h.encode())
			ctx := limited(t)
			done := make(chan error)
			go func() {
				x, err := tcp.Connect(ctx, o)
				if err == nil {
					var ev [1]rdmcfallback.Event
					_, err = x.Events(ctx, ev[:])
					err = errors.Join(err, x.Close())
				}
				done <- err
			}()
			if _, err := Connect(ctx, all[1]); !errors.Is(err, c.want) {
				t.Errorf("%v", err)
			}
			if err := <-done; err != nil {
				t.Errorf("the other: %v", err) // it sees Down, after it has met all members
			}
		})
	}
}

// nonsense is control messages that a peer should not send.
var nonsense = map[string][]byte{
	"kind":                 {9, 1, 2, 3},
	"nothing told":         {kindTold},
	"short beginning":      {kindPart, 1, 2},
	"short offer":          {kindOffer, 0, 0, 0, 5},
	"queue pair 0":         {kindOffer, 0, 0, 0, 0, 0, 0, 0, 1},
	"queue pair 1":         {kindOffer, 0, 0, 0, 1, 0, 0, 0, 1},
	"queue pair of 25 bit": {kindOffer, 1, 0, 0, 5, 0, 0, 0, 1},
	"PSN of 25 bit":        {kindOffer, 0, 0, 0, 5, 1, 0, 0, 1},
	"answer to nothing":    {kindAnswer, 0, 0, 0, 5, 0, 0, 0, 1},
}

func TestNonsenseTold(t *testing.T) {
	for name, msg := range nonsense {
		a, b := pair(t)
		check(t, a.x.mesh.Tell(1, msg))
		b.wantDown(name, ErrProtocol)
		// After Down nothing comes of it.
		check(t, a.x.Tell(1, []byte("still there")))
		check(t, a.x.Close())
		ctx, cancel := context.WithTimeout(t.Context(), 50e6)
		if n, _ := b.x.Events(ctx, b.buf[:]); n != 0 {
			t.Errorf("%s: %+v after Down", name, b.buf[0])
		}
		cancel()
	}
}

func TestTwice(t *testing.T) {
	a, b := pair(t)
	offer := []byte{kindOffer, 0, 0, 0, 77, 0, 0, 0, 1}
	check(t, a.x.mesh.Tell(1, offer))
	check(t, a.x.mesh.Tell(1, offer))
	b.wantDown("two offers", ErrProtocol)

	a, b = pair(t)
	check(t, b.x.PostRecv(0, nil))
	answer := []byte{kindAnswer, 0, 0, 0, 77, 0, 0, 0, 1}
	check(t, a.x.mesh.Tell(1, answer))
	check(t, a.x.mesh.Tell(1, answer))
	b.wantDown("two answers", ErrProtocol)

	a, b = pair(t)
	part := append([]byte{kindPart}, make([]byte, partBytes)...)
	check(t, a.x.mesh.Tell(1, part))
	check(t, a.x.mesh.Tell(1, []byte{kindTold, 1, 2}))
	b.wantDown("too long a message", ErrProtocol)
}

// A queue pair that isn't there is noticed when the device doesn't answer.
func TestWrongQPN(t *testing.T) {
	a, b := pair(t)
	check(t, b.x.PostRecv(0, make([]byte, 10)))
	check(t, a.x.mesh.Tell(1, []byte{kindAnswer, 0xee, 0xee, 0xee, 0xee, 0, 0, 0, 1}[:addressBytes]))
	b.wantDown("wrong number", ErrProtocol)

	a, b = pair(t)
	check(t, b.x.PostRecv(0, make([]byte, 10)))
	check(t, a.x.mesh.Tell(1, []byte{kindAnswer, 0, 0xee, 0xee, 0xee, 0, 0, 0, 1}))
	b.wantDown("no such queue pair", ErrQueuePair)
}

// A block that is longer than its buffer ends the connection at both ends.
func TestTooLong(t *testing.T) {
	a, b := pair(t)
	link(t, a, b)
	check(t, b.x.PostRecv(0, make([]byte, 99)))
	a.want(rdmcfallback.EventReady, 1)
	check(t, a.x.Send(1, 0, make([]byte, 100)))
	b.wantDown("long block", ErrProtocol)
	if e := a.want(rdmcfallback.EventDown, 1); !errors.Is(e.Err, ErrQueuePair) && !errors.Is(e.Err, qp.StatusError{Status: qp.StatusRemInvReqErr}) {
		t.Errorf("at the sender: %v", e.Err)
	}
}

// send posts any request on the queue pair for blocks from a to b.
func (b *inbox) send(q qp.QP, op qp.Opcode, imm uint32) {
	b.t.Helper()
	check(b.t, q.PostSend(&qp.SendWR{ID: requestID(len(b.x.peers), 0), Opcode: op, Imm: imm}))
}

func TestNonsenseOnQueuePairs(t *testing.T) {
	for name, op := range map[string]qp.Opcode{"SEND": qp.OpSend, "WRITE": qp.OpWriteImm} {
		a, b := pair(t)
		link(t, a, b)
		check(t, b.x.PostRecv(0, make([]byte, 99)))
		a.want(rdmcfallback.EventReady, 1)
		a.send(a.x.peers[1].out.qp, op, 5)
		b.wantDown("block as "+name, ErrProtocol)
	}
	for name, imm := range map[string]uint32{"the same": 1, "less": 0, "too many": 2 + MaxPosted} {
		a, b := pair(t)
		link(t, b, a) // a tells b its readiness
		a.send(a.x.peers[1].in.qp, qp.OpSendImm, imm)
		b.wantDown("readiness "+name, ErrProtocol)
	}
	// A block that was not asked for is not taken.
	a, b := pair(t)
	link(t, a, b)
	a.x.peers[1].out.ready++
	check(t, a.x.Send(1, 0, nil))
	if e := a.want(rdmcfallback.EventDown, 1); !errors.Is(e.Err, ErrQueuePair) {
		t.Errorf("block not asked for: %v", e.Err)
	}
}

func FuzzHello(f *testing.F) {
	f.Add([]byte(magic))
	f.Add([]byte(magic + "\x00\x01\x10\x00\x7f\x00\x00\x01user"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err == nil && !bytes.Equal(h.encode(), b) {
			t.Errorf("%x is also %x", b, h.encode())
		}
	})
}

func FuzzTold(f *testing.F) {
	for _, msg := range nonsense {
		f.Add(msg)
	}
	f.Add([]byte{kindOffer, 0, 0, 0, 2, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAddress(b)
		if err == nil && !bytes.Equal(a.encode(b[0]), b) {
			t.Errorf("%x is also %x", b, a.encode(b[0]))
		}
	})
}

// A failing is a completion queue with what a failed queue pair leaves there.
type failing struct {
	qp.CQ
	left []qp.WC
}

func (f *failing) Poll(wc []qp.WC) (int, error) {
	n := copy(wc, f.left)
	f.left = f.left[n:]
	return n, nil
}

// The reason is the request that failed, even if others were flushed before it
// was told.
func TestReason(t *testing.T) {
	a, _ := pair(t)
	a.x.mu.Lock()
	a.x.cq = &failing{a.x.cq, []qp.WC{
		{ID: requestID(1, sendReady), Status: qp.StatusWRFlushErr},
		{ID: requestID(1, recvBlock), Status: qp.StatusLocLenErr},
		{ID: requestID(7, recvBlock), Status: qp.StatusLocLenErr},
		{ID: requestID(0, recvBlock), Status: qp.StatusLocLenErr},
	}}
	a.x.mu.Unlock()
	if e := a.want(rdmcfallback.EventDown, 1); !errors.Is(e.Err, ErrProtocol) {
		t.Errorf("%v", e.Err)
	}
}
