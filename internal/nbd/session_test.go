package nbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// bubble has a server and clients in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) { testenv.Bubble(t, name, f) }

func small(name string) *memory { return newMemory(Info{Name: name, Size: 1 << 20}) }

// blocker has an export's methods wait until they are let go, and counts those that wait.
type blocker struct {
	mu      sync.Mutex
	methods string // those that wait, as one string
	waiting int
	let     chan struct{}
}

func (b *blocker) before(ctx context.Context, method string) error {
	b.mu.Lock()
	blocks := strings.Contains(b.methods, method)
	if blocks {
		b.waiting++
	}
	b.mu.Unlock()
	if !blocks {
		return nil
	}
	defer func() {
		b.mu.Lock()
		b.waiting--
		b.mu.Unlock()
	}()
	select {
	case <-b.let:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *blocker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting
}

func blocked(m *memory, methods string) *blocker {
	b := &blocker{methods: methods, let: make(chan struct{})}
	m.before = b.before
	return b
}

// TestReplies: the replies to each command, simple and structured.
func TestReplies(t *testing.T) {
	l := newPipes()
	m := small("vol")
	s := start(t, only(m), l)
	c := newClient(t, l.dial()).enter("vol", false)
	data := bytes.Repeat([]byte("ab"), 50)
	if e := c.do(cmdWrite, flagFUA, 1000, 100, data); e != 0 {
		t.Fatal(e)
	}
	c.write(req(cmdRead, 0, 5, 998, 104))
	if cookie, e := c.simple(); cookie != 5 || e != 0 {
		t.Fatal(cookie, e)
	}
	if got := c.read(104); string(got) != "\x00\x00"+string(data)+"\x00\x00" {
		t.Fatalf("%q", got)
	}
	for _, r := range []struct {
		cmd, flags int
		off        int64
		n          int
		want       Errno
	}{
		{cmdRead, 0, 0, 0, 0}, {cmdWrite, 0, 1 << 20, 0, 0}, {cmdTrim, flagFUA, 0, 0, 0}, {cmdFlush, flagFUA, 0, 0, 0},
		{cmdRead, flagDF, 0, 1, EINVAL}, {cmdRead, 0, 1 << 20, 1, EINVAL}, {cmdRead, 0, -1, 1, EINVAL}, {cmdRead, 0, 1, -1, EINVAL},
		{cmdTrim, 0, 1<<20 - 1, 2, EINVAL}, {cmdWriteZeroes, 0, 1<<20 - 1, 2, ENOSPC}, {cmdBlockStatus, 0, 0, 1, EINVAL},
		{cmdFlush, 0, 0, 1, EINVAL}, {5, 0, 0, 1, EINVAL}, {8, 0, 0, 1, EINVAL}, {77, 0, 0, 1, EINVAL}, {cmdTrim, 1 << 15, 0, 1, EINVAL},
		{cmdWriteZeroes, flagFUA | flagNoHole, 1 << 19, 4096, 0}, {cmdTrim, flagFUA, 0, 1 << 20, 0}, {cmdWriteZeroes, flagFastZero | flagNoHole, 0, 1 << 20, ENOTSUP},
	} {
		if e := c.do(r.cmd, r.flags, r.off, r.n); e != r.want {
			t.Errorf("%+v: %d", r, e)
		}
	}
	if e := c.do(cmdWrite, flagNoHole, 0, 4, []byte("abcd")); e != EINVAL {
		t.Error(e)
	}

	c = newClient(t, l.dial()).enter("vol", true)
	c.write(req(cmdRead, flagDF, 1, 4096, 512), req(cmdRead, 0, 2, 0, 0), req(cmdRead, 0, 3, 1<<20, 1), req(77, 0, 4, 0, 0))
	got := map[uint64]chunk{}
	for range 4 {
		k := c.chunk()
		got[k.cookie] = k
	}
	for cookie, want := range map[uint64]struct {
		kind uint16
		data string
	}{1: {replyOffsetData, "\x00\x00\x00\x00\x00\x00\x10\x00" + strings.Repeat("\x00", 512)}, 2: {replyNone, ""},
		3: {replyError, "1 bytes at 1048576 of an export of 1048576: invalid argument"}, 4: {replyError, "not offered"}} {
		if k := got[cookie]; k.kind != want.kind || k.flags != replyDone || !strings.Contains(string(k.data), want.data) {
			t.Errorf("cookie %d: %+v", cookie, k)
		}
	}
	c.write(req(cmdWrite, 0, 1, 8192, 4096, make([]byte, 4096)))
	if cookie, e := c.simple(); cookie != 1 || e != 0 {
		t.Error(cookie, e)
	}
	c.write(req(cmdBlockStatus, 0, 1, 0, 16384))
	zero := "\x00\x00\x00\x01\x00\x00\x20\x00\x00\x00\x00\x03"
	if k := c.chunk(); k.kind != replyBlockStatus || string(k.data) != zero+"\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x03" {
		t.Errorf("%+v", k)
	}
	c.write(req(cmdBlockStatus, flagReqOne, 1, 0, 16384))
	if k := c.chunk(); string(k.data) != zero {
		t.Errorf("%+v", k)
	}
	c.write(req(cmdBlockStatus, 0, 1, 0, 0))
	if k := c.chunk(); k.kind != replyError {
		t.Errorf("%+v", k)
	}
	want := Stats{Connections: 2, Requests: 30, Errors: 17, Read: 616, Written: 4196}
	if got := s.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestErrors: an export's errors reach the client, with their texts; the connection stays usable.
func TestErrors(t *testing.T) {
	l := newPipes()
	m := small("vol")
	m.before = func(_ context.Context, method string) error {
		return fmt.Errorf("host c: %s \x00 %w \xff%s", method, ENOSPC, strings.Repeat("x", 2000))
	}
	start(t, only(m), l)
	c := newClient(t, l.dial()).enter("vol", true)
	for cmd, method := range map[int]string{cmdRead: "read", cmdWrite: "buffer", cmdFlush: "flush", cmdTrim: "trim",
		cmdWriteZeroes: "zeroes", cmdBlockStatus: "extents"} {
		n := 512
		if cmd == cmdFlush {
			n = 0
		}
		c.write(req(cmd, 0, 1, 0, n))
		if cmd == cmdWrite {
			c.write(make([]byte, n))
		}
		k := c.chunk()
		if text := string(k.data[6:]); k.kind != replyError || k.data[3] != byte(ENOSPC) || len(text) > maxText ||
			!strings.HasPrefix(text, "host c: "+method+"  no space left on device x") {
			t.Errorf("command %d: %+v", cmd, k)
		}
	}
	m.before = nil
	if e := c.do(cmdFlush, 0, 0, 0); e != 0 {
		t.Error(e)
	}
}

// TestPieces: a WRITE whose buffers are short is several writes and one reply, and fails if
// one of them does, with the rest of the payload dropped.
func TestPieces(t *testing.T) {
	l := newPipes()
	m := small("vol")
	m.pieces = 1000
	start(t, only(m), l)
	c := newClient(t, l.dial()).enter("vol", false)
	data := make([]byte, 70_000)
	for i := range data {
		data[i] = byte(i * 31 >> 4)
	}
	if e := c.do(cmdWrite, flagFUA, 333, len(data), data); e != 0 {
		t.Fatal(e)
	}
	if now, durable := m.content(333, len(data)); !bytes.Equal(now, data) || !bytes.Equal(durable, data) {
		t.Error("the content differs")
	}
	for _, method := range []string{"buffer", "write"} {
		var mu sync.Mutex
		calls := 0
		m.before = func(_ context.Context, called string) error {
			mu.Lock()
			defer mu.Unlock()
			if called == method {
				calls++
			}
			if calls == 20 {
				calls++
				return ENOSPC
			}
			return nil
		}
		if e := c.do(cmdWrite, 0, 0, len(data), data); e != ENOSPC {
			t.Errorf("%s: %d", method, e)
		}
		if e := c.do(cmdWrite, 0, 0, 10, data[:10]); e != 0 {
			t.Errorf("%s: then %d", method, e)
		}
	}
	m.pieces = -1
	m.before = nil
	if !m.unused() {
		t.Error("buffers are not given back")
	}
}

// TestWriteTooLong: a WRITE of more than MaxPayload ends the connection.
func TestWriteTooLong(t *testing.T) {
	l := newPipes()
	s := start(t, only(newMemory(Info{Name: "vol", Size: 64 * mib})), l)
	c := newClient(t, l.dial()).enter("vol", false)
	if e := c.do(cmdWrite, 0, 0, 8192, bytes.Repeat([]byte{2}, 8192)); e != 0 {
		t.Error(e)
	}
	c.write(req(cmdWrite, 0, 1, 0, MaxPayload+1))
	c.ended()
	if n := s.Stats().Violations; n != 1 {
		t.Errorf("%d violations", n)
	}
}

// TestOrder: replies come in the order in which requests end.
func TestOrder(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newPipes()
		m := small("vol")
		b := blocked(m, "read")
		start(t, only(m), l)
		c := newClient(t, l.dial()).enter("vol", false)
		c.write(req(cmdRead, 0, 1, 0, 8), req(cmdWrite, 0, 2, 0, 4, []byte("abcd")), req(cmdFlush, 0, 3, 0, 0))
		first, _ := c.simple()
		second, _ := c.simple()
		if first+second != 5 {
			t.Errorf("replies to %d and %d", first, second)
		}
		b.let <- struct{}{}
		if cookie, e := c.simple(); cookie != 1 || e != 0 || string(c.read(8)) != "abcd\x00\x00\x00\x00" {
			t.Error(cookie, e)
		}
	})
}

// TestBudget: the requests and bytes in flight on one connection stay within the limits, and other
// connections are not affected.
func TestBudget(t *testing.T) {
	for _, c := range []struct {
		name       string
		cmd        int
		method     string
		n          int
		sent, want int
	}{{"requests", cmdRead, "read", 512, 12, 5}, {"bytes of replies", cmdRead, "read", 3 * mib, 5, 2}, {"bytes", cmdWrite, "write", 10 * mib, 5, 3}} {
		bubble(t, c.name, func(t *testing.T) {
			l := newPipes()
			m, other := newMemory(Info{Name: "vol", Size: 16 * mib}), small("other")
			b := blocked(m, c.method)
			config := only(m, other)
			config.MaxRequests = 5
			start(t, config, l)
			one := newClient(t, l.dial()).enter("vol", false)
			payload, reply := make([]byte, c.n), simpleLen
			if c.cmd == cmdRead {
				payload, reply = nil, reply+c.n
			}
			go func() {
				for i := range c.sent {
					if _, err := one.conn.Write(req(c.cmd, 0, uint64(i), 0, c.n, payload)); err != nil {
						return
					}
				}
			}()
			synctest.Wait()
			if n := b.count(); n != c.want {
				t.Errorf("%d requests under way, want %d", n, c.want)
			}
			two := newClient(t, l.dial()).enter("other", false)
			if e := two.do(cmdWrite, 0, 0, 3, []byte("abc")); e != 0 {
				t.Error(e)
			}
			b.let <- struct{}{} // its reply is not read: its place is not free
			synctest.Wait()
			if n := b.count(); n != c.want-1 {
				t.Errorf("%d requests under way before the reply is read, want %d", n, c.want-1)
			}
			one.read(reply)
			synctest.Wait()
			if n := b.count(); n != c.want {
				t.Errorf("%d requests under way after it, want %d", n, c.want)
			}
		})
	}
}

// TestConnections: what one connection has been told is written, all read; a FLUSH of one
// makes durable what others were told; a FUA, what it writes and no more.
func TestConnections(t *testing.T) {
	m := small("vol")
	l, path := unixListener(t)
	start(t, only(m), l)
	var clients []*client
	for range 4 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, newClient(t, conn).enter("vol", false))
	}
	for i := range 400 {
		writer, reader, flusher := clients[i%4], clients[i/4%4], clients[i/16%4]
		data, off := bytes.Repeat([]byte{byte(i%251 + 1)}, 512), int64(i*512)
		flags := i % 3 / 2 * flagFUA
		if e := writer.do(cmdWrite, flags, off, 512, data); e != 0 {
			t.Fatal(e)
		}
		reader.write(req(cmdRead, 0, 1, off, 512))
		if _, e := reader.simple(); e != 0 || !bytes.Equal(reader.read(512), data) {
			t.Fatalf("write %d is not read on another connection (%d)", i, e)
		}
		if _, durable := m.content(int(off), 512); bytes.Equal(durable, data) != (flags == flagFUA) {
			t.Fatalf("write %d with flags %d: durable %v", i, flags, !(flags == flagFUA))
		}
		if i%7 == 0 {
			if e := flusher.do(cmdFlush, 0, 0, 0); e != 0 {
				t.Fatal(e)
			}
			if now, durable := m.content(0, 1<<20); !bytes.Equal(now, durable) {
				t.Fatalf("after a flush on another connection, %d is not durable", i)
			}
		}
	}
}

// TestDisc: after DISC, requests in flight are completed, and later ones are not executed.
func TestDisc(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newPipes()
		m := small("vol")
		b := blocked(m, "write")
		start(t, only(m), l)
		c := newClient(t, l.dial()).enter("vol", false)
		c.write(req(cmdWrite, 0, 1, 0, 3, []byte("abc")), req(cmdDisc, 0, 2, 0, 0))
		go func() { _, _ = c.conn.Write(req(cmdWriteZeroes, 0, 3, 0, 512)) }() // the server may hang up
		synctest.Wait()
		b.let <- struct{}{}
		if cookie, e := c.simple(); cookie != 1 || e != 0 {
			t.Error(cookie, e)
		}
		c.ended()
		if now, _ := m.content(0, 3); string(now) != "abc" {
			t.Errorf("%q", now)
		}
	})
}

// TestVanish: a client that goes away without DISC ends its requests, and gives back what
// it held.
func TestVanish(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newPipes()
		m := small("vol")
		b := blocked(m, "write,read")
		s := start(t, only(m), l)
		c := newClient(t, l.dial()).enter("vol", false)
		c.write(req(cmdWrite, 0, 1, 0, 3, []byte("abc")), req(cmdRead, 0, 2, 0, 3), req(cmdWrite, 0, 3, 0, 100, []byte("half")))
		synctest.Wait()
		if n := b.count(); n != 2 {
			t.Errorf("%d under way", n)
		}
		c.conn.Close()
		synctest.Wait()
		if n := s.Stats().Connections; n != 0 || !m.unused() {
			t.Errorf("%d connections, buffers given back: %v", n, m.unused())
		}
	})
}

// TestShutdown: requests in flight are completed and answered, also one whose payload is still
// arriving; then connections end, as do idle ones and handshakes.
func TestShutdown(t *testing.T) {
	for _, vanish := range []bool{false, true} { // the export alone
		bubble(t, fmt.Sprintf("export=%v", vanish), func(t *testing.T) {
			l := newPipes()
			m := small("vol")
			b := blocked(m, "read")
			s := start(t, only(m), l)
			shaking := newClient(t, l.dial()).greet(fixed)
			idle := newClient(t, l.dial()).enter("vol", false)
			busy := newClient(t, l.dial()).enter("vol", false)
			busy.write(req(cmdRead, 0, 1, 0, 8), req(cmdWrite, 0, 2, 0, 4, []byte("ab")))
			synctest.Wait()

			ended := make(chan error, 1)
			if vanish {
				close(m.gone)
				shaking.write(option(optAbort))
				shaking.reply(optAbort)
				ended <- nil
			} else {
				go func() { ended <- s.Shutdown(t.Context()) }()
			}
			idle.ended()
			shaking.ended()
			busy.write([]byte("cd"))
			if cookie, e := busy.simple(); cookie != 2 || e != 0 {
				t.Error(cookie, e)
			}
			b.let <- struct{}{}
			if cookie, e := busy.simple(); cookie != 1 || e != 0 || string(busy.read(8)) != "abcd\x00\x00\x00\x00" {
				t.Error(cookie, e)
			}
			busy.ended()
			for _, c := range []*client{shaking, idle, busy} {
				c.conn.Close()
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if n := s.Stats().Connections; n != 0 {
				t.Errorf("%d connections", n)
			}
		})
	}
	bubble(t, "too late", func(t *testing.T) {
		l := newPipes()
		m := small("vol")
		blocked(m, "flush")
		s := start(t, only(m), l)
		c := newClient(t, l.dial()).enter("vol", false)
		c.write(req(cmdFlush, 0, 1, 0, 0))
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		c.ended()
		again := newPipes()
		if err := s.Serve(again); err != nil {
			t.Error(err)
		}
	})
}

// TestRefused: a connection beyond the limit takes the place of the oldest one in its handshake. If there is none, it is
// closed, until others have ended.
func TestRefused(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newPipes()
		config := only(small("vol"))
		config.MaxConnections = 3
		s := start(t, config, l)
		first := newClient(t, l.dial()).enter("vol", false)
		silent := newClient(t, l.dial())
		silent.read(18)
		later := newClient(t, l.dial()).greet(fixed)
		second := newClient(t, l.dial()).enter("vol", false)
		silent.ended()
		later.must(optGo, str("vol"), be16(0))
		synctest.Wait()
		newClient(t, l.dial()).ended()
		if n := s.Stats(); n.Refused != 2 || n.Connections != 3 {
			t.Errorf("%+v", n)
		}
		first.conn.Close()
		synctest.Wait()
		newClient(t, l.dial()).enter("vol", false)
		if e := second.do(cmdFlush, 0, 0, 0); e != 0 {
			t.Error(e)
		}
	})
}

// TestAddressLimit: connections of one address leave half of the room to others, whatever they have chosen.
func TestAddressLimit(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newPipes()
		config := only(small("vol"))
		config.MaxConnections = 4
		s := start(t, config, l)
		for range 2 {
			newClient(t, l.dialFrom(1)).enter("vol", false)
		}
		synctest.Wait()
		newClient(t, l.dialFrom(1)).ended()
		newClient(t, l.dialFrom(2)).enter("vol", false)
		synctest.Wait()
		silent := newClient(t, l.dialFrom(2))
		silent.read(18)
		newClient(t, l.dialFrom(1)).ended() // in place of its own connections alone
		newClient(t, l.dialFrom(3)).enter("vol", false)
		silent.ended()
		synctest.Wait()
		if n := s.Stats(); n.Refused != 3 || n.Connections != 4 {
			t.Errorf("%+v", n)
		}
	})
}

// TestAllocationsWithoutRace: requests of a connection in its steady state need no memory.
func TestAllocationsWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "the race detector takes memory out of pools")
	l, path := unixListener(t)
	start(t, only(small("vol")), l)
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, conn).enter("vol", true)
	write, read := req(cmdWrite, 0, 1, 0, 4096, make([]byte, 4096)), req(cmdRead, 0, 2, 0, 4096)
	reply := make([]byte, simpleLen+dataLen+4096)
	var before, after runtime.MemStats
	const rounds = 5000
	for i := range 2 * rounds {
		if i == rounds {
			runtime.ReadMemStats(&before)
		}
		roundTrip(t, c, write, reply[:simpleLen])
		roundTrip(t, c, read, reply[:dataLen+4096])
	}
	runtime.ReadMemStats(&after)
	if n := float64(after.Mallocs-before.Mallocs) / (2 * rounds); n > 0.1 {
		t.Errorf("%.2f allocations per request", n)
	}
}
