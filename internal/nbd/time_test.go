package nbd

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestTimeLimits: how long a client may take, in virtual time.
func TestTimeLimits(t *testing.T) {
	type lab struct {
		*testing.T
		l    *pipes
		m    *memory
		s    *Server
		from time.Time
	}
	after := func(x *lab, want time.Duration) {
		x.Helper()
		if got := time.Since(x.from); got != want {
			x.Errorf("after %v instead of %v", got, want)
		}
	}
	for name, f := range map[string]func(x *lab){
		"a client that says nothing": func(x *lab) {
			c := newClient(x, x.l.dial())
			c.read(18)
			c.ended()
			after(x, 30*time.Second)
		},
		"a client that reads no greeting": func(x *lab) {
			x.l.dial()
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if n := x.s.Stats().Connections; n != 0 {
				x.Errorf("%d connections", n)
			}
		},
		"options without end": func(x *lab) {
			c := newClient(x, x.l.dial()).greet(fixed)
			for i := 0; ; i++ {
				if _, err := c.conn.Write(option(optAbort + 97)); err != nil {
					break
				}
				if _, err := c.in.Discard(20 + len("option 99 is not known here")); err != nil {
					break
				}
				time.Sleep(700 * time.Millisecond)
			}
			after(x, 30100*time.Millisecond) // the next option after 30 s
		},
		"a client that is silent between requests": func(x *lab) {
			c := newClient(x, x.l.dial()).enter("vol", false)
			for range 10 {
				time.Sleep(100 * time.Hour)
				if e := c.do(cmdWrite, 0, 0, 3, []byte("abc")); e != 0 {
					x.Error(e)
				}
			}
		},
		"a payload that stops": func(x *lab) {
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdWrite, 0, 1, 0, 100, []byte("begin")))
			c.ended()
			after(x, time.Minute+lingerTime)
			if n := x.s.Stats().Stalls; n != 1 || !x.m.unused() {
				x.Errorf("%d stalls, buffers given back: %v", n, x.m.unused())
			}
		},
		"a payload that stops while others wait for its buffer": func(x *lab) {
			x.m.scarce.Store(true)
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdWrite, 0, 1, 0, 100, []byte("begin")))
			c.ended()
			after(x, shortStall+lingerTime)
			if !x.m.unused() {
				x.Error("it still has the buffer")
			}
		},
		"a payload that has stopped when others begin to wait for its buffer": func(x *lab) {
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdWrite, 0, 1, 0, 100, []byte("begin")))
			time.Sleep(12 * time.Second)
			x.m.scarce.Store(true)
			c.ended()
			after(x, 3*shortStall+lingerTime)
		},
		"a payload that comes slowly while others wait": func(x *lab) {
			x.m.scarce.Store(true)
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdWrite, 0, 1, 0, 10))
			for range 10 {
				time.Sleep(4900 * time.Millisecond)
				c.write([]byte{'p'})
			}
			if _, e := c.simple(); e != 0 {
				x.Error(e)
			}
			if got, _ := x.m.content(0, 11); string(got) != "pppppppppp\x00" {
				x.Errorf("%q", got)
			}
		},
		"a payload that is refused and stops": func(x *lab) {
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdWrite, 0, 1, 1<<20, 100, []byte("begin")))
			c.ended()
			after(x, time.Minute+lingerTime)
		},
		"a payload that comes slowly": func(x *lab) {
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdWrite, 0, 1, 0, 8*mib))
			for range 8 {
				time.Sleep(59 * time.Second)
				c.write(make([]byte, mib))
			}
			if _, e := c.simple(); e != 0 {
				x.Error(e)
			}
			time.Sleep(time.Hour)
			if e := c.do(cmdFlush, 0, 0, 0); e != 0 {
				x.Error(e)
			}
		},
		"a reply that is not taken": func(x *lab) {
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdRead, 0, 1, 0, 4*mib), req(cmdRead, 0, 2, 0, 4*mib))
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := x.s.Stats(); n.Stalls != 1 || n.Connections != 0 {
				x.Errorf("%+v", n)
			}
		},
		"a reply that is taken slowly": func(x *lab) {
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdRead, 0, 1, 0, 8*mib))
			for range 8 {
				time.Sleep(59 * time.Second)
				c.read(mib)
			}
			c.read(simpleLen)
			if e := c.do(cmdFlush, 0, 0, 0); e != 0 {
				x.Error(e)
			}
		},
		"an export that hangs after DISC": func(x *lab) {
			blocked(x.m, "flush")
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdFlush, 0, 1, 0, 0), req(cmdDisc, 0, 2, 0, 0))
			if _, e := c.simple(); e != ESHUTDOWN {
				x.Error(e)
			}
			after(x, time.Minute)
			c.ended()
		},
		"a client that stays after the end": func(x *lab) {
			c := newClient(x, x.l.dial()).enter("vol", false)
			c.write(req(cmdDisc, 0, 1, 0, 0))
			c.ended()
			after(x, lingerTime)
		},
	} {
		bubble(t, name, func(t *testing.T) {
			x := &lab{T: t, l: newPipes(), m: newMemory(Info{Name: "vol", Size: 8 * mib}), from: time.Now()}
			if name == "a payload that is refused and stops" {
				x.m = small("vol")
			}
			x.s = start(t, only(x.m), x.l)
			f(x)
		})
	}
}

// exhausted is a listener that cannot accept a few times.
type exhausted struct {
	*pipes
	left atomic.Int32
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.pipes.Accept()
}

// TestAccept: a passing error of the listener is no reason to stop, another is.
func TestAccept(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := &exhausted{pipes: newPipes()}
		l.left.Store(12)
		from := time.Now()
		start(t, only(small("vol")), l)
		c := newClient(t, l.dial()).enter("vol", false)
		if got, want := time.Since(from), (5+10+20+40+80+160+320+640+4000)*time.Millisecond; got != want {
			t.Errorf("a connection after %v, want %v", got, want)
		}
		if e := c.do(cmdFlush, 0, 0, 0); e != 0 {
			t.Error(e)
		}
	})
	s, err := New(only())
	if err != nil {
		t.Fatal(err)
	}
	l := newPipes()
	l.Close()
	if err := s.Serve(l); err == nil {
		t.Error("a listener that is closed is served")
	}
}

// TestSlowReader: a client that reads nothing takes neither time nor memory of another's.
func TestSlowReader(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newPipes()
		m := newMemory(Info{Name: "vol", Size: 8 * mib})
		start(t, only(m), l)
		slow := newClient(t, l.dial()).enter("vol", false)
		for i := range 4 {
			slow.write(req(cmdRead, 0, uint64(i), 0, 8*mib))
		}
		go func() { _, _ = slow.conn.Write(req(cmdRead, 0, 9, 0, 8*mib)) }() // it is never read
		from := time.Now()
		fast := newClient(t, l.dial()).enter("vol", false)
		for i := range 100 {
			data := bytes.Repeat([]byte{byte(i)}, 4096)
			if e := fast.do(cmdWrite, flagFUA, int64(i*4096), 4096, data); e != 0 {
				t.Fatal(e)
			}
		}
		if d := time.Since(from); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// TestReading: replies that clients do not take have bounded memory, of all connections together; who keeps it from others
// is not waited for as long as otherwise.
func TestReading(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newPipes()
		config := only(newMemory(Info{Name: "vol", Size: 8 * mib}))
		config.MaxReading = 1 // and so MaxBytes
		s := start(t, config, l)
		for range 4 {
			greedy := newClient(t, l.dial()).enter("vol", false)
			for i := range 4 {
				greedy.write(req(cmdRead, 0, uint64(i), 0, 8*mib))
			}
		}
		synctest.Wait()
		from := time.Now()
		other := newClient(t, l.dial()).enter("vol", false)
		read := func(n int) {
			if e := other.do(cmdRead, 0, 0, n); e != 0 {
				t.Error(e)
			}
			other.read(n)
		}
		for range 100 {
			read(shortRead)
		}
		if d := time.Since(from); d != 0 {
			t.Errorf("short reads took %v", d)
		}
		read(8 * mib)
		if d := time.Since(from); d != shortStall || s.Stats().Stalls != 4 {
			t.Errorf("another client's read took %v, and %d have stalled", d, s.Stats().Stalls)
		}
		gone := newClient(t, l.dial()).enter("vol", false)
		for i := range 4 {
			gone.write(req(cmdRead, 0, uint64(i), 0, 8*mib))
		}
		synctest.Wait()
		gone.conn.Close()
		for range 9 { // all that it had is free again
			if e := other.do(cmdRead, 0, 0, 8*mib); e != 0 {
				t.Error(e)
			}
			other.read(8 * mib)
		}
	})
}

// TestReadingWhole: the bound on replies is one on memory: a buffer counts whole, also where it is longer than the data.
func TestReadingWhole(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newPipes()
		m := newMemory(Info{Name: "vol", Size: 32 * mib})
		var begun atomic.Int32
		m.before = func(_ context.Context, method string) error {
			if method == "read" {
				begun.Add(1)
			}
			return nil
		}
		config := only(m)
		config.MaxReading = 32 * mib
		start(t, config, l)
		for range 8 {
			newClient(t, l.dial()).enter("vol", false).write(req(cmdRead, 0, 1, 0, 4*mib+512))
		}
		synctest.Wait()
		if n := begun.Load(); n != 32/8 {
			t.Errorf("%d replies of 4 MiB and a block, in buffers of 8 MiB each, where 32 MiB are to be the most", n)
		}
	})
}

// TestReadingShort: a client that takes its replies gets short ones at once, however many clients
// leave theirs.
func TestReadingShort(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newPipes()
		config := only(newMemory(Info{Name: "vol", Size: mib}))
		config.MaxReading = 1 // and so MaxBytes, of which a quarter is for short replies
		s := start(t, config, l)
		for range 40 {
			greedy := newClient(t, l.dial()).enter("vol", false)
			for i := range 16 {
				greedy.write(req(cmdRead, 0, uint64(i), 0, shortRead))
			}
		}
		synctest.Wait()
		from := time.Now()
		other := newClient(t, l.dial()).enter("vol", false)
		for _, n := range []int{512, 4096, shortRead, 4096} {
			const depth = 8
			for i := range depth {
				other.write(req(cmdRead, 0, uint64(i), 0, n))
			}
			for range depth {
				if _, e := other.simple(); e != 0 {
					t.Error(e)
				}
				other.read(n)
			}
		}
		if d := time.Since(from); d != 0 {
			t.Errorf("short reads took %v", d)
		}
		time.Sleep(time.Minute) // the StallTime of those that came first
		synctest.Wait()
		if n := s.Stats().Stalls; n != 40 {
			t.Errorf("%d have stalled", n)
		}
	})
}
