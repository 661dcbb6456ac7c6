package nbd

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// pipes is a listener for connections within the process, which virtual time knows.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), ended: make(chan struct{})} }

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}
func (l *pipes) Close() error   { l.once.Do(func() { close(l.ended) }); return nil }
func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (l *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	l.conns <- theirs
	return ours
}

// dialFrom connects from an IP address that ends with a byte.
func (l *pipes) dialFrom(last byte) net.Conn {
	ours, theirs := net.Pipe()
	l.conns <- addressed{theirs, &net.TCPAddr{IP: net.IPv4(10, 0, 0, last), Port: 1}}
	return ours
}

type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }

// only is a Config that serves these exports.
func only(exports ...Export) Config {
	return Config{
		List: func(context.Context, Client) (infos []Info, _ error) {
			for _, e := range exports {
				infos = append(infos, e.Info())
			}
			return infos, nil
		},
		Open: func(_ context.Context, _ Client, name string) (Export, error) {
			for _, e := range exports {
				if e.Info().Name == name {
					return e, nil
				}
			}
			return nil, fmt.Errorf("there is no such export")
		},
	}
}

// start serves l until the test ends.
func start(t testing.TB, c Config, l net.Listener) *Server {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if n := s.Stats().Connections; n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
	return s
}

// unixListener listens on a socket in a directory of the test.
func unixListener(t testing.TB) (net.Listener, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return l, path
}

// A client sends any NBD messages, including invalid ones.
type client struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
	info []byte // of the export, from its size on
}

func newClient(t testing.TB, conn net.Conn) *client {
	t.Cleanup(func() { conn.Close() })
	return &client{t: t, conn: conn, in: bufio.NewReader(conn)}
}

func (c *client) write(parts ...[]byte) {
	c.t.Helper()
	for _, p := range parts {
		if _, err := c.conn.Write(p); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *client) read(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c.in, b); err != nil {
		c.t.Fatal(err)
	}
	return b
}

// ended waits for the server's end of the connection.
func (c *client) ended() {
	c.t.Helper()
	if n, err := c.in.Read(make([]byte, 1)); err == nil {
		c.t.Fatalf("%d more bytes", n)
	}
}

func be16(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }
func be32(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func str(s string) []byte { return append(be32(len(s)), s...) }

func option(kind int, data ...[]byte) []byte {
	d := join(data...)
	b := binary.BigEndian.AppendUint64(nil, optionMagic)
	return join(b, be32(kind), be32(len(d)), d)
}

// greet answers the greeting with client flags.
func (c *client) greet(flags int) *client {
	c.t.Helper()
	if got, want := c.read(18), appendGreeting(nil); string(got) != string(want) {
		c.t.Fatalf("greeting % x", got)
	}
	c.write(be32(flags))
	return c
}

// reply reads one reply to an option.
func (c *client) reply(kind int) (reply uint32, data string) {
	c.t.Helper()
	h := c.read(20)
	if binary.BigEndian.Uint64(h) != replyMagic || binary.BigEndian.Uint32(h[8:]) != uint32(kind) {
		c.t.Fatalf("reply % x to option %d", h, kind)
	}
	return binary.BigEndian.Uint32(h[12:]), string(c.read(int(binary.BigEndian.Uint32(h[16:]))))
}

// ask sends an option and returns the last reply, and the data of those before it.
func (c *client) ask(kind int, data ...[]byte) (last uint32, text string, before []string) {
	c.t.Helper()
	c.write(option(kind, data...))
	for {
		last, text = c.reply(kind)
		if last == repAck || last >= 1<<31 {
			return last, text, before
		}
		before = append(before, text)
	}
}

// must is ask for an option that has to be acknowledged.
func (c *client) must(kind int, data ...[]byte) []string {
	c.t.Helper()
	last, text, before := c.ask(kind, data...)
	if last != repAck {
		c.t.Fatalf("option %d: reply %#x %s", kind, last, text)
	}
	return before
}

// enter goes through the handshake, with or without structured replies.
func (c *client) enter(name string, structured bool) *client {
	c.t.Helper()
	c.greet(flagFixedNewstyle | flagNoZeroes)
	if structured {
		c.must(optStructuredReply)
		c.must(optSetMetaContext, str(name), be32(1), str(contextAllocation))
	}
	for _, info := range c.must(optGo, str(name), be16(0)) {
		if strings.HasPrefix(info, "\x00\x00") {
			c.info = []byte(info[2:])
		}
	}
	return c
}

func req(cmd, flags int, cookie uint64, off int64, n int, payload ...[]byte) []byte {
	b := join(be32(requestMagic), be16(flags), be16(cmd))
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, uint64(off))
	return join(b, be32(n), join(payload...))
}

// simple reads a simple reply without data.
func (c *client) simple() (cookie uint64, e Errno) {
	c.t.Helper()
	b := c.read(simpleLen)
	if binary.BigEndian.Uint32(b) != simpleMagic {
		c.t.Fatalf("simple reply % x", b)
	}
	return binary.BigEndian.Uint64(b[8:]), Errno(binary.BigEndian.Uint32(b[4:]))
}

// do sends a request and reads its simple reply.
func (c *client) do(cmd, flags int, off int64, n int, payload ...[]byte) Errno {
	c.t.Helper()
	c.write(req(cmd, flags, 7, off, n, payload...))
	cookie, e := c.simple()
	if cookie != 7 {
		c.t.Fatalf("cookie %d", cookie)
	}
	return e
}

type chunk struct {
	kind, flags uint16
	cookie      uint64
	data        []byte
}

// chunk reads a chunk of a structured reply.
func (c *client) chunk() chunk {
	c.t.Helper()
	b := c.read(chunkLen)
	if binary.BigEndian.Uint32(b) != structuredMagic {
		c.t.Fatalf("chunk % x", b)
	}
	return chunk{binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint64(b[8:]),
		c.read(int(binary.BigEndian.Uint32(b[16:])))}
}
