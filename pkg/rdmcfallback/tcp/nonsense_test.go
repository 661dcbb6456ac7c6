package tcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// A liar is one member of two: it greets as the protocol requires, and then sends what the
// test wants.
type liar struct {
	t       *testing.T
	self    int
	members []string
	listen  net.Listener
	run     uint64 // of the honest member
	ctl     net.Conn
	x       *Transport // the honest member
}

// newLiar returns one that is member 1.
func newLiar(t *testing.T) *liar { return newLiarAs(t, 1) }

func newLiarAs(t *testing.T, self int) *liar {
	l := &liar{t: t, self: self}
	var ls [2]net.Listener
	for i := range ls {
		var err error
		if ls[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		l.members = append(l.members, ls[i].Addr().String())
	}
	l.listen = ls[self]
	t.Cleanup(func() { ls[self].Close() })
	done := make(chan error, 1)
	go func() {
		var err error
		l.x, err = Connect(t.Context(), Options{Members: l.members, Self: 1 - self, Listener: ls[1-self]})
		done <- err
	}()
	if self == 1 {
		l.ctl = l.call(greetControl)
	} else {
		l.ctl = l.called(greetControl)
	}
	l.write(l.ctl, []byte{frameMet, 0, 0, 0})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(l.ctl, make([]byte, 4)); err != nil { // it has met all, too
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.ctl.Close() // so that Close doesn't wait for it
		l.x.Close()
	})
	return l
}

func (l *liar) write(c net.Conn, b []byte) {
	if _, err := c.Write(b); err != nil {
		l.t.Fatal(err)
	}
}

func (l *liar) greeting(kind uint8) *greeting {
	return &greeting{Kind: kind, From: l.self, To: 1 - l.self, Run: 99, ToRun: l.run, Members: l.members}
}

// call connects to the honest member.
func (l *liar) call(kind uint8) net.Conn {
	c, err := net.Dial("tcp", l.members[1-l.self])
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	l.write(c, l.greeting(kind).encode())
	g, err := readGreeting(c)
	if err != nil || g.Kind != kind {
		l.t.Fatal(g, err)
	}
	l.run = g.Run
	return c
}

// called answers a call of the honest member.
func (l *liar) called(kind uint8) net.Conn {
	c, err := l.listen.Accept()
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	g, err := readGreeting(c)
	if err != nil || g.Kind != kind {
		l.t.Fatal(g, err)
	}
	l.run = g.Run
	l.write(c, l.greeting(kind).encode())
	return c
}

// wantDown expects that the honest member notices, and reports what.
func (l *liar) wantDown(sentinel error, text string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Second)
	defer cancel()
	events := make([]rdmcfallback.Event, 1)
	for {
		_, err := l.x.Events(ctx, events)
		if err != nil {
			l.t.Fatal(err)
		}
		if e := events[0]; e.Kind == rdmcfallback.EventDown {
			if e.Peer != l.self || sentinel != nil && !errors.Is(e.Err, sentinel) || !strings.Contains(e.Err.Error(), text) {
				l.t.Errorf("down: %v, want %q", e.Err, text)
			}
			return
		}
	}
}

func words(w ...uint32) (b []byte) {
	for _, x := range w {
		b = binary.BigEndian.AppendUint32(b, x)
	}
	return b
}

func TestNonsenseControl(t *testing.T) {
	for name, b := range map[string][]byte{
		"kind 9":         {9, 0, 0, 1, 0},
		"kind 0":         {0, 0, 0, 0},
		"0 bytes":        {frameTold, 0, 0, 0},
		"65535 bytes":    {frameTold, 0, 0xff, 0xff},
		"0147":           {frameTold, 'G', 'E', 'T'}, // the hexadecimal dump
		"members twice":  {frameMet, 0, 0, 0},
		"kind 3":         {frameAbort, 0, 0xff, 0xff},
		"no mood, ?sry?": append([]byte{frameAbort, 0, 0, 15, 0}, "no mood, \x1bsry\n"...),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLiar(t)
			l.write(l.ctl, b)
			if name == "0147" {
				l.wantDown(ErrProtocol, "01474554")
			} else if b[0] == frameAbort && b[2] == 0 {
				l.wantDown(ErrFailed, name)
			} else {
				l.wantDown(ErrProtocol, name)
			}
		})
	}
	t.Run("ended", func(t *testing.T) {
		l := newLiar(t)
		l.write(l.ctl, []byte{frameTold, 0, 0, 100, 1, 2})
		l.ctl.Close()
		l.wantDown(io.ErrUnexpectedEOF, "the peer ended the connection")
	})
}

func TestNonsenseBlocks(t *testing.T) {
	for name, b := range map[string][]byte{
		"a block of 101 bytes for a buffer of 100":        words(blockMagic, 0, 101, 0),
		"a block of 4294967295 bytes for a buffer of 100": words(blockMagic, 0, 1<<32-1, 0),
		"48545450 where":                     []byte("HTTP/1.1 200 OK\r\n"),
		"block 1 follows":                    words(blockMagic, 0, 1, 1),
		"for which no buffer was posted":     append(append(words(blockMagic, 0, 100, 0), make([]byte, 100)...), words(blockMagic, 0, 1, 1)...),
		"the peer ended the connection: EOF": {},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLiar(t)
			if err := l.x.PostRecv(1, make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			c := l.called(greetBlocks)
			// Readiness that isn't read would make the end a reset.
			if _, err := io.ReadFull(c, make([]byte, countBytes)); err != nil {
				t.Fatal(err)
			}
			l.write(c, b)
			if len(b) == 0 {
				c.Close()
			}
			l.wantDown(nil, name)
		})
	}
}

func TestNonsenseReady(t *testing.T) {
	for name, b := range map[string][]byte{
		"65 buffers posted, after 0": words(MaxPosted + 1),
		"0 buffers posted":           words(0),
		"7 buffers posted, after 7":  words(7, 7),
		"6 buffers posted, after 7":  words(7, 6),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLiar(t)
			l.write(l.call(greetBlocks), b)
			l.wantDown(ErrProtocol, name)
		})
	}
}

// A root that puts what it must not.
func TestNonsenseSmall(t *testing.T) {
	full := slices.Concat(words(smallMagic, 0, 0, 0), words(smallMagic, 0, 0, 1), words(smallMagic, 0, 0, 2))
	for name, b := range map[string][]byte{
		"a block of 11 bytes for a buffer of 10":     words(smallMagic, 0, 11, 0),
		"424c4b31 where":                             words(blockMagic, 0, 1, 0),
		"block 1 follows":                            words(smallMagic, 0, 1, 1),
		"all 3 slots are in use":                     slices.Concat(full, words(smallMagic, 0, 0, 3)),
		"the peer ended the connection: EOF":         full,
		"the peer ended the connection: unexpected ": append(words(smallMagic, 0, 10, 0), 1, 2, 3),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLiarAs(t, 0)
			if err := l.x.OpenRing(3, 10); err != nil {
				t.Fatal(err)
			}
			c := l.call(greetRing)
			l.write(c, b)
			if strings.Contains(name, "ended") {
				c.Close()
				l.wantDown(nil, name)
			} else {
				l.wantDown(ErrProtocol, name)
			}
		})
	}
}

// A peer that fails otherwise is Down, though its connection for small messages stays.
func TestRingEndsWithPeer(t *testing.T) {
	for self := range 2 {
		l := newLiarAs(t, self)
		if err := l.x.OpenRing(3, 10); err != nil {
			t.Fatal(err)
		}
		if self == 0 {
			l.call(greetRing)
		} else {
			if err := l.x.PutSmall(1, 0, nil); err != nil {
				t.Fatal(err)
			}
			l.called(greetRing)
		}
		l.write(l.ctl, []byte{9, 0, 0, 1, 0})
		l.wantDown(ErrProtocol, "kind 9")
	}
}

// A receiver that frees what it must not.
func TestNonsenseFreed(t *testing.T) {
	for name, b := range map[string][]byte{
		"3 slots freed, after 0 before; there can be 2 more": words(3),
		"0 slots freed":          words(0),
		"1 slots freed, after 1": words(1, 1),
		"1 slots freed, after 2": words(2, 1),
		"4294967295 slots freed, after 1 before; there can be 1 more": words(1, 1<<32-1),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLiar(t)
			if err := errors.Join(l.x.OpenRing(3, 10), l.x.PutSmall(1, 0, nil), l.x.PutSmall(1, 0, nil)); err != nil {
				t.Fatal(err)
			}
			l.write(l.called(greetRing), b)
			l.wantDown(ErrProtocol, name)
		})
	}
}

// Only the root may connect for a ring, once, and only if there is one.
func TestCallsForRings(t *testing.T) {
	reject := func(l *liar, want error) {
		t.Helper()
		conn, err := net.Dial("tcp", l.members[1-l.self])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		l.write(conn, l.greeting(greetRing).encode())
		g, err := readGreeting(conn)
		if err != nil || g.Kind != greetReject || !errors.Is(g.err(), want) {
			t.Errorf("%+v, %v", g, err)
		}
	}
	l := newLiarAs(t, 0)
	reject(l, ErrMismatch) // there is no ring
	if err := l.x.OpenRing(3, 10); err != nil {
		t.Fatal(err)
	}
	l.call(greetRing)
	reject(l, ErrDuplicate)
	if err := l.x.peers[0].drain(nil); !errors.Is(err, net.ErrClosed) { // two came at once
		t.Errorf("a second connection: %v", err)
	}
	l = newLiar(t)
	if err := l.x.OpenRing(3, 10); err != nil {
		t.Fatal(err)
	}
	reject(l, ErrMismatch) // it isn't the root
	// The process that answers the root must be the one that was met.
	if err := l.x.PutSmall(1, 0, nil); err != nil {
		t.Fatal(err)
	}
	conn, err := l.listen.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l.write(conn, l.greeting(greetBlocks).encode())
	l.wantDown(ErrProtocol, "another process answers")
}

// A peer that is called for blocks may be gone, or another process.
func TestCalledForBlocks(t *testing.T) {
	for _, c := range []struct {
		text   string
		answer *greeting
	}{
		{"another process answers", &greeting{Kind: greetBlocks, From: 1, Run: 98}},
		{"another process answers", &greeting{Kind: greetControl, From: 1, Run: 99}},
		{"who are you", &greeting{Kind: greetReject, Code: codeOf(ErrDuplicate), Reason: "who are you"}},
		{"of kind 77", &greeting{Kind: 77}},
	} {
		l := newLiar(t)
		if err := l.x.PostRecv(1, nil); err != nil {
			t.Fatal(err)
		}
		conn, err := l.listen.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l.write(conn, c.answer.encode())
		l.wantDown(nil, c.text)
		conn.Close()
	}
	l := newLiar(t)
	l.listen.Close()
	if err := l.x.PostRecv(1, nil); err != nil {
		t.Fatal(err)
	}
	l.wantDown(nil, "refused")
}

// Callers that come when the group is complete are rejected and do no harm.
func TestLateCallers(t *testing.T) {
	l := newLiar(t)
	good := l.greeting(greetBlocks)
	for _, c := range []struct {
		change func(g *greeting)
		want   error
	}{
		{func(g *greeting) { g.Kind, g.Run = greetControl, 98 }, ErrDuplicate},
		{func(g *greeting) { g.Run = 98 }, ErrDuplicate},
		{func(g *greeting) { g.ToRun++ }, ErrDuplicate},
		{func(g *greeting) { g.From = 0 }, ErrDuplicate},
		{func(g *greeting) { g.From = 2 }, ErrMismatch},
		{func(g *greeting) { g.From = 1 << 31 }, ErrMismatch},
		{func(g *greeting) { g.To = 1 }, ErrMismatch},
		{func(g *greeting) { g.Group = 1 }, ErrMismatch},
		{func(g *greeting) { g.Epoch = 1 }, errNotYet},
		{func(g *greeting) { g.Kind = greetReject }, ErrMismatch},
	} {
		g := *good
		c.change(&g)
		conn, err := net.Dial("tcp", l.members[1-l.self])
		if err != nil {
			t.Fatal(err)
		}
		l.write(conn, g.encode())
		answer, err := readGreeting(conn)
		if err != nil || answer.Kind != greetReject || !errors.Is(answer.err(), c.want) {
			t.Errorf("%+v was answered by %+v, %v; want %v", g, answer, err, c.want)
		}
		conn.Close()
	}
	l.write(l.call(greetBlocks), words(3)) // and the true one is let in
	events := make([]rdmcfallback.Event, 8)
	for got := 0; got < 3; {
		n, err := l.x.Events(t.Context(), events)
		if err != nil || events[0].Kind != rdmcfallback.EventReady {
			t.Fatal(events[:n], err)
		}
		got += n
	}
}

func FuzzGreeting(f *testing.F) {
	members := []string{"a:1", "b:2", "c:3"}
	for _, g := range []*greeting{
		{Kind: greetControl, Group: 1, Epoch: 2, From: 1, To: 2, Run: 3, Members: members, Hello: []byte("hello")},
		{Kind: greetBlocks, From: 1, To: 2, Run: 3, ToRun: 4},
		{Kind: greetRing, From: 0, To: 2, Run: 3, ToRun: 4},
		{Kind: greetReject, Code: codeOf(ErrMismatch), Reason: "no"},
		{Kind: greetReject, Abort: []byte("\x02no")},
	} {
		f.Add(g.encode())
	}
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := readGreeting(bytes.NewReader(b))
		if err != nil {
			if g != nil {
				t.Error("greeting and error")
			}
			return
		}
		if g.Kind == greetReject {
			if g.err() == nil {
				t.Error("a rejection is no error")
			}
			_ = g.err().Error()
		}
		again := g.encode()
		if h, err := readGreeting(bytes.NewReader(again)); err != nil || !bytes.Equal(h.encode(), again) {
			t.Errorf("%x was parsed to %+v, and that to %+v, %v", b, g, h, err)
		}
		sameMembers(members, g.Members)
	})
}

func FuzzControl(f *testing.F) {
	f.Add([]byte{frameTold, 0, 0, 2, 1, 2, frameMet, 0, 0, 0, frameTold, 0, 0, 1, 7})
	f.Add([]byte{frameAbort, 0, 0, 3, 2, 'n', 'o'})
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		x := newTransport(Options{Members: []string{"a:1", "b:1"}, Self: 0, Listener: l})
		defer x.Close()
		done := make(chan error)
		go func() { done <- x.peers[1].readFrames(bufio.NewReader(bytes.NewReader(b))) }()
		events := make([]rdmcfallback.Event, 4)
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan int)
		go func() {
			sum := 0
			defer func() { told <- sum }()
			for {
				n, err := x.Events(ctx, events)
				if err != nil {
					return
				}
				for _, e := range events[:n] {
					sum += 4 + len(e.Msg)
				}
			}
		}()
		if err := <-done; err == nil {
			t.Error("it never ends")
		}
		cancel()
		if sum := <-told; sum > len(b) {
			t.Errorf("%d bytes told in %d", sum, len(b))
		}
	})
}

func FuzzBlocks(f *testing.F) {
	f.Add(append(words(blockMagic, 1, 3, 0), 1, 2, 3), uint16(8))
	f.Add(slices.Concat(words(blockMagic, 1, 0, 0), words(blockMagic, 1, 0, 1)), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, room uint16) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		x := newTransport(Options{Members: []string{"a:1", "b:1"}, Self: 0, Listener: l})
		defer x.Close()
		p := x.peers[1]
		p.in.dialed = true // by the test
		buf := make([]byte, int(room)+1)
		for range 3 {
			if err := x.PostRecv(1, buf[:room]); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.readBlocks(bytes.NewReader(b)); err == nil {
			t.Error("it never ends")
		}
		if buf[room] != 0 {
			t.Error("wrote behind the buffer")
		}
		if err := p.readReadies(bytes.NewReader(b)); err == nil {
			t.Error("it never ends")
		}
		if n := p.out.credits.Load(); n < 0 || n > MaxPosted {
			t.Errorf("%d blocks may be sent", n)
		}
	})
}

func FuzzRing(f *testing.F) {
	f.Add(append(words(smallMagic, 1, 3, 0), 1, 2, 3))
	f.Add(slices.Concat(words(smallMagic, 1, 0, 0), words(smallMagic, 1, 0, 1)))
	f.Add(words(1, 2, 5))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		x := newTransport(Options{Members: []string{"a:1", "b:1"}, Self: 1, Listener: l})
		defer x.Close()
		p := x.peers[0]
		p.ring.slots, p.ring.size, p.ring.memory = 3, 8, make([]byte, 3*8+1)
		if err := p.readSmall(bytes.NewReader(b)); err == nil {
			t.Error("it never ends")
		}
		if p.ring.memory[3*8] != 0 || p.ring.nPut > 3 {
			t.Errorf("%d messages", p.ring.nPut)
		}
		p.ring = ring{slots: 3, size: 8, nPut: 6, nFreed: 3}
		if err := p.readFreed(bytes.NewReader(b)); err == nil {
			t.Error("it never ends")
		}
		if p.ring.nFreed < 3 || p.ring.nFreed > 6 {
			t.Errorf("%d slots are freed", p.ring.nFreed)
		}
	})
}
