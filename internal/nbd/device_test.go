package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// served is an export at a TCP address.
func served(t testing.TB, c Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	start(t, c, l)
	return l.Addr().String()
}

func dial(t testing.TB, at, export string) *Device {
	t.Helper()
	d, err := Dial(t.Context(), at, export, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// TestDevice: what many write at once is read again, and what is refused has its number.
func TestDevice(t *testing.T) {
	m := small("vol")
	m.info.MinBlock = 4096
	d := dial(t, served(t, only(m)), "vol")
	if i := d.Info(); i.Size != 1<<20 || i.MinBlock != 4096 || i.Name != "vol" {
		t.Errorf("%+v", i)
	}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			p, q := bytes.Repeat([]byte{byte(i + 1)}, 4096), make([]byte, 4096)
			err := errors.Join(d.WriteAt(t.Context(), p, int64(i)*4096, i%2 == 0), d.ReadAt(t.Context(), q, int64(i)*4096))
			if err != nil || !bytes.Equal(p, q) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	err := d.Flush(t.Context())
	if now, durable := m.content(0, 64*4096); err != nil || !bytes.Equal(now, durable) {
		t.Error("it is not durable", err)
	}
	for _, err := range []error{d.ReadAt(t.Context(), make([]byte, 4096), 1<<20), d.WriteAt(t.Context(), make([]byte, 1), 0, false)} {
		if !errors.Is(err, EINVAL) && !errors.Is(err, ENOSPC) {
			t.Error(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Flush(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// lateConn is a connection whose writes return after the device has seen the server's end of it.
type lateConn struct {
	net.Conn
	ended <-chan struct{}
}

func (c lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	<-c.ended
	return n, err
}

// TestDeviceClosedFirst: requests after Close fail with net.ErrClosed, even if the server ends the connection before Close does.
func TestDeviceClosedFirst(t *testing.T) {
	d := dial(t, served(t, only(small("vol"))), "vol")
	d.mu.Lock()
	d.conn = lateConn{d.conn, d.stopped}
	d.mu.Unlock()
	_ = d.Close()
	if err := d.Flush(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestDeviceRefused: what a server has against it is in the error.
func TestDeviceRefused(t *testing.T) {
	c := only(small("vol"))
	open := c.Open
	c.Open = func(ctx context.Context, who Client, name string) (Export, error) {
		if name == "secret" {
			return nil, EPERM
		}
		return open(ctx, who, name)
	}
	at := served(t, c)
	if _, err := Dial(t.Context(), at, "secret", nil); !errors.Is(err, EPERM) {
		t.Error(err)
	}
	if _, err := Dial(t.Context(), at, "other", nil); err == nil || !strings.Contains(err.Error(), "there is no such export") {
		t.Error(err)
	}
}

// TestDeviceEnds: the end of a context ends what waits, and so does the end of the export.
func TestDeviceEnds(t *testing.T) {
	m := small("vol")
	b := blocked(m, "read flush")
	at := served(t, only(m))
	d := dial(t, at, "vol")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- d.ReadAt(ctx, make([]byte, 4096), 0) }()
	go func() { ended <- d.Flush(t.Context()) }()
	for b.count() < 2 {
		time.Sleep(time.Millisecond) // it comes by the connection
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	gone := dial(t, at, "vol")
	close(m.gone)
	<-gone.stopped
	if err := gone.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "ended the connection") {
		t.Error(err)
	}
}

// FuzzDevice: for any data from a server, opening its export and reading from it ends, with an
// error or with bytes.
func FuzzDevice(f *testing.F) {
	info := Info{Name: "v", Size: 1 << 20}
	info, err := info.complete()
	if err != nil {
		f.Fatal(err)
	}
	hello := appendInfos(appendGreeting(nil), optGo, info, false, nil)
	reply := append(append(be32(simpleMagic), be32(0)...), append(make([]byte, 7), 1)...)
	f.Add(join(hello, reply, make([]byte, 4096)))
	f.Add(join(hello, reply[:4], be32(22), reply[8:]))
	f.Add(join(hello, reply[:12], be32(9)))
	f.Add(join(appendGreeting(nil), appendReply(nil, optGo, repErrPolicy, []byte("no")...)))
	f.Add(join(appendGreeting(nil), appendReply(nil, optGo, repInfo, 0, 0, 1), appendReply(nil, optGo, repAck)))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(io.Discard, theirs) })
		wg.Go(func() {
			_, _ = theirs.Write(said)
			_ = theirs.Close()
		})
		d, err := open(t.Context(), ours, "v", nil)
		if err == nil {
			go d.receive()
			if d.info.Size <= 0 || d.info.MinBlock <= 0 {
				t.Errorf("%+v", d.info)
			}
			_ = d.ReadAt(t.Context(), make([]byte, 4096), 0)
			_ = d.Close()
		}
		_ = ours.Close()
		wg.Wait()
	})
}
