package grpcclient

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

var errNot = errors.New("it does not")

// TestDialMany: a lost attempt is repeated long before the kernel does it, and of several
// connections one is left.
func TestDialMany(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes []time.Duration // of each try; 0: never
		fails int             // a try that does, from 1
		want  time.Duration
		err   error
	}{
		{name: "at once", takes: []time.Duration{time.Millisecond}, want: time.Millisecond},
		{name: "lost", takes: []time.Duration{0, time.Millisecond}, want: dialAgain + time.Millisecond},
		{name: "lost thrice", takes: []time.Duration{0, 0, 0, time.Millisecond}, want: 7*dialAgain + time.Millisecond},
		{name: "slow", takes: []time.Duration{dialAgain + 2*time.Millisecond, time.Millisecond}, want: dialAgain + time.Millisecond},
		{name: "refused", takes: []time.Duration{0, time.Millisecond}, fails: 2, want: dialAgain + time.Millisecond, err: errNot},
		{name: "no answer", takes: []time.Duration{0, 0, 0, 0}, want: ConnectTime, err: os.ErrDeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), ConnectTime)
				defer cancel()
				var tries, open atomic.Int32
				begun := time.Now()
				c, err := dialMany(ctx, "x:1", func(ctx context.Context, _ string) (net.Conn, error) {
					n := int(tries.Add(1))
					takes := tt.takes[n-1]
					if takes == 0 {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					time.Sleep(takes) // of a bubble; and ends even if no caller wants it any more
					if n == tt.fails {
						return nil, errNot
					}
					open.Add(1)
					return &countedConn{open: &open}, nil
				})
				if !errors.Is(err, tt.err) || (err == nil) != (c != nil) {
					t.Errorf("%v, %v", c, err)
				}
				if took := time.Since(begun); took != tt.want || int(tries.Load()) != len(tt.takes) {
					t.Errorf("%v and %d tries", took, tries.Load())
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if want := map[bool]int32{true: 1}[err == nil]; open.Load() != want {
					t.Errorf("%d connections are open", open.Load())
				}
			})
		})
	}
}

type countedConn struct {
	net.Conn
	open *atomic.Int32
}

func (c *countedConn) Close() error { c.open.Add(-1); return nil }

// TestAcknowledged: the kernel at the other end acknowledges what its program does not read.
func TestAcknowledged(t *testing.T) {
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begun := time.Now()
	c, err := dialOnce(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // of the kernel's time
	sent := time.Now()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	for {
		ago, ok := acknowledged(c)
		if now := time.Now(); !ok || ago > now.Sub(begun)+time.Millisecond {
			t.Fatalf("%v ago, %v", ago, ok)
		} else if now.Add(-ago).After(sent) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for info, want := range map[unix.TCPInfo]time.Duration{
		{Last_ack_recv: 500}:                   0, // nothing was sent since
		{Last_ack_recv: 500, Unacked: 1}:       500 * time.Millisecond,
		{Last_ack_recv: 500, Notsent_bytes: 1}: 500 * time.Millisecond,
	} {
		if got := sinceAck(&info); got != want {
			t.Errorf("%+v: %v", info, got)
		}
	}
	_ = c.Close()
	if _, ok := acknowledged(c); ok {
		t.Error("it is closed")
	}
	if _, ok := acknowledged(nil); ok {
		t.Error("there is no connection")
	}
	if _, ok := acknowledged(&countedConn{}); ok {
		t.Error("it is not TCP")
	}
}
