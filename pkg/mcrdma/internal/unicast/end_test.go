package unicast

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
)

var localhost = netip.MustParseAddr("127.0.0.1")

// taken counts what an end delivers.
type taken struct {
	mu sync.Mutex
	n  int
}

func (c *taken) deliver(Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

// frame is one, with so much behind it.
func frame(h header, body int) []byte { return append(h.appendTo(nil), make([]byte, body)...) }

// limits is a board that lets the peer send.
func limits() []byte { return appendBoard(nil, Board{Limit: Slots}) }

// TestHostileMember: what a member may send over TCP that it must not. The connection ends with an error that
// says so, and so do operations.
func TestHostileMember(t *testing.T) {
	for name, c := range map[string]struct {
		sends []byte
		says  string
	}{
		"no frame":           {bytes.Repeat([]byte{255}, 100), "kind 255"},
		"a board of another": {frame(header{Kind: kindBoard, Length: 3}, 3), "kind 0"},
		"a limit too large":  {appendBoard(nil, Board{Limit: math.MaxInt64}), "messages"},
		"a negative limit":   {appendBoard(nil, Board{Limit: -1}), "messages"},
		"a WRITE":            {frame(header{Kind: kindWrite, Length: 5}, 5), "region 0, of 0"},
		"a READ":             {frame(header{Kind: kindRead, Length: 5}, 0), "region 0, of 0"},
		"a long message":     {frame(header{Kind: kindSend, Length: MaxMessage + 1}, 0), "kind 1"},
		"too many messages":  {bytes.Repeat(frame(header{Kind: kindSend, Length: 5}, 5), 1000), "without a slot"},
		"done too often":     {frame(header{Kind: kindDone, Offset: 3}, 0), "were not sent"},
		"a READ is done":     {frame(header{Kind: kindDone, Offset: 2}, 0), "READs without data"},
		"done endlessly":     {frame(header{Kind: kindDone, Offset: math.MaxUint64}, 0), "were not sent"},
		"data":               {frame(header{Kind: kindData, Length: 5}, 5), "were not read"},
		"it ends":            {nil, "closed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got taken
				e := NewEnd(Config{Window: 10, Lengths: []uint64{100}, Deliver: got.deliver})
				mine, theirs := net.Pipe()
				done := make(chan error, 2)
				for _, kind := range []qp.Opcode{qp.OpWrite, qp.OpRead} {
					if err := e.Submit(&Op{Kind: kind, Bufs: []Buf{{Bytes: []byte("hello")}}, Done: func(err error) { done <- err }}); err != nil {
						t.Fatal(err)
					}
				}
				go func() {
					if _, err := ReadHello(theirs); err != nil {
						t.Error(err)
					}
					_ = writeHello(theirs, Hello{}, []Remote{{Length: 100}})
					_, _ = io.ReadFull(theirs, make([]byte, 1))
					_, _ = io.ReadFull(theirs, make([]byte, headerLen+boardLen+2*headerLen+5)) // a board, and both operations
					go io.Copy(io.Discard, theirs)                                             //nolint:errcheck // it ends
					_, _ = theirs.Write(c.sends)
					if c.sends == nil {
						_ = theirs.Close()
					}
				}()
				err := e.Dial(t.Context(), mine, localhost, Secret{1})
				if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, ErrPeer) != (c.sends != nil) {
					t.Errorf("%v; want %q in it", err, c.says)
				}
				for range 2 {
					if err := <-done; !errors.Is(err, ErrLost) {
						t.Errorf("the operation: %v", err)
					}
				}
				if got.n > Slots {
					t.Errorf("%d messages were delivered", got.n)
				}
			})
		})
	}
}

// TestHostileSender: what a sender must not do over TCP changes nothing in the regions.
func TestHostileSender(t *testing.T) {
	for name, c := range map[string]struct {
		sends []byte
		says  string
	}{
		"another region":      {frame(header{Kind: kindWrite, Region: 1, Length: 5}, 5), "region 1, of 1"},
		"behind the end":      {frame(header{Kind: kindWrite, Offset: 96, Length: 5}, 5), "from 96 on"},
		"overflow":            {frame(header{Kind: kindWriteImm, Offset: math.MaxUint64, Length: 5}, 5), "from 18446744073709551615 on"},
		"a READ behind it":    {frame(header{Kind: kindRead, Offset: 101}, 0), "from 101 on"},
		"a SEND with a place": {frame(header{Kind: kindSend, Offset: 1}, 0), "kind 1"},
		"too many writes":     {bytes.Repeat(frame(header{Kind: kindWriteImm}, 0), 1000), "without a slot"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got taken
				region := make([]byte, 200)
				e := NewEnd(Config{Member: true, Window: 10, Regions: []Region{{Bytes: region[:100]}}, Deliver: got.deliver, Sync: func() {}})
				mine, theirs := net.Pipe()
				go func() {
					if _, err := ReadHello(theirs); err != nil {
						t.Error(err)
					}
					if _, err := readRegions(theirs, 1); err != nil {
						t.Error(err)
					}
					_, _ = theirs.Write([]byte{0})
					go io.Copy(io.Discard, theirs) //nolint:errcheck // it ends
					_, _ = theirs.Write(append(limits(), c.sends...))
				}()
				err := e.Serve(t.Context(), mine, Hello{}, localhost)
				if !errors.Is(err, ErrPeer) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v; want %q in it", err, c.says)
				}
				if !bytes.Equal(region, make([]byte, 200)) || got.n > Slots {
					t.Errorf("%d messages, region %x", got.n, region)
				}
			})
		})
	}
}

// TestCloseWaits: Close returns when the sender's connection no longer writes to a region.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, free := make(chan struct{}), make(chan struct{})
		e := NewEnd(Config{Member: true, Regions: []Region{{Bytes: make([]byte, 100)}}, Sync: func() {
			busy <- struct{}{}
			<-free
		}})
		mine, theirs := net.Pipe()
		go func() { _ = e.Serve(t.Context(), mine, Hello{}, localhost) }()
		go func() {
			_, _ = theirs.Write([]byte{0})
			_, _ = theirs.Write(frame(header{Kind: kindWrite, Length: 5}, 5))
		}()
		go io.Copy(io.Discard, theirs) //nolint:errcheck // it ends
		<-busy
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			e.Close(errors.New("for the test"))
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("it has not waited")
		default:
		}
		free <- struct{}{} // it begins to write, and finds that the connection is closed, or has all
		<-busy
		free <- struct{}{}
		<-closed
		if err := e.Submit(&Op{}); err == nil {
			t.Error("it takes operations")
		}
	})
}

// TestNewestConnection: while a connection ends, the sender gives one up and makes another: that one is carried,
// and none waits for the one that was given up.
func TestNewestConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, free := make(chan struct{}), make(chan struct{})
		e := NewEnd(Config{Member: true, Regions: []Region{{Bytes: make([]byte, 100)}}, Sync: func() {
			busy <- struct{}{}
			<-free
		}})
		ends := make(chan error, 3)
		serve := func() net.Conn {
			mine, theirs := net.Pipe()
			go func() { ends <- e.Serve(t.Context(), mine, Hello{}, localhost) }()
			synctest.Wait()
			return theirs
		}
		first := serve()
		go io.Copy(io.Discard, first) //nolint:errcheck // it ends
		_, _ = first.Write([]byte{0})
		_, _ = first.Write(frame(header{Kind: kindWrite, Length: 5}, 5)[:headerLen])
		<-busy
		serve() // its other end is not used any more
		last := serve()
		free <- struct{}{}
		<-busy
		begun := time.Now()
		free <- struct{}{}
		for range 2 {
			if err := <-ends; !errors.Is(err, errReplaced) {
				t.Errorf("an earlier one has ended: %v", err)
			}
		}
		if _, err := ReadHello(last); err != nil || time.Since(begun) > 0 {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		_ = last.Close()
		if err := <-ends; err == nil {
			t.Error("it has ended without an error")
		}
	})
}

// TestBadHello: what answers that is no member, or another one.
func TestBadHello(t *testing.T) {
	hello := func(h Hello, regions ...Remote) []byte {
		var b bytes.Buffer
		_ = writeHello(&b, h, regions)
		return b.Bytes()
	}
	newer := hello(Hello{}, Remote{Length: 100})
	newer[5]++
	for name, c := range map[string]struct {
		sends []byte
		says  string
	}{
		"another protocol":   {append([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), make([]byte, 100)...), "begins with"},
		"another version":    {newer, "version 2"},
		"bad queue pair":     {hello(Hello{QPN: 1, MTU: 1024}, Remote{Length: 100}), "number 0x1"},
		"bad MTU":            {hello(Hello{QPN: 9, MTU: 1000}, Remote{Length: 100}), "MTU 1000"},
		"no regions":         {hello(Hello{}), "has 0 regions"},
		"a smaller region":   {hello(Hello{}, Remote{Length: 99}), "has 99 bytes"},
		"very many regions":  {append(hello(Hello{})[:35], 255, 255, 255, 255), "4294967295 regions"},
		"it ends":            {nil, "EOF"},
		"it ends in between": {hello(Hello{}, Remote{Length: 100})[:45], "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := NewEnd(Config{Window: 10, Lengths: []uint64{100}})
				mine, theirs := net.Pipe()
				go func() {
					_, _ = ReadHello(theirs)
					_, _ = theirs.Write(c.sends)
					_ = theirs.Close()
				}()
				if err := e.Dial(t.Context(), mine, localhost, Secret{}); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v; want %q in it", err, c.says)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // one that never answers
		e := NewEnd(Config{Window: 10})
		mine, theirs := net.Pipe()
		go io.Copy(io.Discard, theirs) //nolint:errcheck // it ends
		begun := time.Now()
		if err := e.Dial(t.Context(), mine, localhost, Secret{}); err == nil || time.Since(begun) != patience {
			t.Errorf("%v, after %v", err, time.Since(begun))
		}
	})
}

// pair connects a sender's end and a member's, on queue pairs, and returns why each ended.
func pair(t *testing.T, sender, member *Config) (s, m *End, ended func() (error, error)) {
	t.Helper()
	return pairOver(t, sender, member, func(c net.Conn) net.Conn { return c })
}

// pairOver is pair, with another connection at the member.
func pairOver(t *testing.T, sender, member *Config, at func(net.Conn) net.Conn) (s, m *End, ended func() (error, error)) {
	t.Helper()
	for i, cfg := range []*Config{sender, member} {
		dev, err := softroce.Open(fmt.Sprintf("127.0.61.%d?rx=udp", i+1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dev.Close() })
		if cfg.PD, err = dev.AllocPD(); err != nil {
			t.Fatal(err)
		}
		cfg.Device, cfg.Window, cfg.SGEs, cfg.Timeout = dev, 64, 2, 14
	}
	member.Member, member.Sync = true, func() {}
	s, m = NewEnd(*sender), NewEnd(*member)
	mine, theirs := net.Pipe()
	theirs = at(theirs)
	var errs [2]error
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	wg.Go(func() { errs[0] = s.Dial(ctx, mine, member.Device.Attr().Addr, Secret{}) })
	wg.Go(func() {
		h, err := ReadHello(theirs)
		if err == nil {
			err = m.Serve(ctx, theirs, h, sender.Device.Attr().Addr)
		}
		errs[1] = err
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s, m, func() (error, error) {
		wg.Wait()
		return errs[0], errs[1]
	}
}

// A hookedConn calls a function before it is closed.
type hookedConn struct {
	net.Conn
	once  sync.Once
	hook  func()
	ended chan struct{} // reading fails when it is closed
}

// Read implements net.Conn.
func (c *hookedConn) Read(b []byte) (int, error) {
	read := make(chan struct{})
	defer close(read)
	go func() {
		select {
		case <-c.ended:
			_ = c.SetReadDeadline(time.Unix(1, 0))
		case <-read:
		}
	}()
	return c.Conn.Read(b)
}

// Close implements net.Conn.
func (c *hookedConn) Close() error {
	c.once.Do(c.hook)
	return c.Conn.Close()
}

// TestAcknowledgedMessages: a message that a member's device has acknowledged is delivered, also if it came while the connection ended.
func TestAcknowledgedMessages(t *testing.T) {
	var got taken
	conn := &hookedConn{ended: make(chan struct{})}
	s, m, ended := pairOver(t, &Config{Deliver: got.deliver}, &Config{Deliver: got.deliver}, func(c net.Conn) net.Conn {
		conn.Conn = c
		return conn
	})
	result := make(chan error, 1)
	conn.hook = func() {
		if err := s.Submit(&Op{Kind: qp.OpSend, Bufs: []Buf{{Bytes: []byte("x")}}, Done: func(err error) { result <- err }}); err != nil {
			result <- err
		}
		select {
		case err := <-result:
			result <- err
		case <-time.After(10 * time.Second):
		}
	}
	for !s.Connected() || !m.Connected() {
		time.Sleep(time.Millisecond)
	}
	close(conn.ended)
	_, _ = ended()
	if err := <-result; err != nil || got.n != 1 {
		t.Errorf("the sender is told %v, and %d messages were delivered", err, got.n)
	}
}

// TestHostileQueuePair: a member floods, on a queue pair. The sender keeps as many messages as it has
// slots, and ends the connection.
func TestHostileQueuePair(t *testing.T) {
	for name, flood := range map[string]func(m *End, q *rdma){
		"messages": func(m *End, _ *rdma) { m.core.peer.Limit = 1000 },
		"no frames": func(_ *End, q *rdma) {
			_ = q.send(idBoard, 0, 5)
		},
		"frames of TCP": func(_ *End, q *rdma) {
			h := header{Kind: kindWrite, Length: 5}
			_ = q.send(idBoard, 0, len(append(h.appendTo(q.slot(0)), 1, 2, 3, 4, 5)))
		},
		"a short board": func(_ *End, q *rdma) {
			_ = q.send(idBoard, 0, len(appendBoard(q.slot(0), Board{}))-1)
		},
		"TCP": func(_ *End, q *rdma) {
			_, _ = q.conn.Write([]byte{0})
		},
		"writes": func(_ *End, q *rdma) {
			_ = q.qp.PostSend(&qp.SendWR{ID: idBoard, Opcode: qp.OpWriteImm})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got taken
			_, m, ended := pair(t, &Config{Deliver: got.deliver}, &Config{Deliver: got.deliver})
			for range 100 {
				if err := m.Submit(&Op{Kind: qp.OpSend, Bufs: []Buf{{Bytes: []byte("x")}}, Done: func(error) {}}); err != nil {
					t.Fatal(err)
				}
			}
			for done := false; !done; time.Sleep(time.Millisecond) { // as many as it may, and slot 0 is free
				m.mu.Lock()
				done = m.core.sent == Slots && m.core.flying == 0
				m.mu.Unlock()
			}
			m.mu.Lock()
			flood(m, m.link.(*rdma))
			m.push()
			m.mu.Unlock()
			if err, _ := ended(); !errors.Is(err, ErrPeer) {
				t.Errorf("the sender's end: %v", err)
			}
			if got.n > Slots {
				t.Errorf("%d messages were delivered", got.n)
			}
		})
	}
}
