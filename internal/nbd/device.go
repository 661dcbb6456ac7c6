package nbd

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// A Device is a client's connection to an export. Its methods may be called by several goroutines;
// their requests are in flight concurrently.
type Device struct {
	info Info
	conn net.Conn
	in   *bufio.Reader

	send    sync.Mutex // requests are sent one at a time
	mu      sync.Mutex
	next    uint64
	calls   map[uint64]*call // in flight, by cookie
	broken  error            // why the connection has ended
	stopped chan struct{}    // the reader has ended
}

type call struct {
	read []byte // the buffer of a READ
	done chan error
}

// Dial opens an export of a server at a TCP address, over TLS if t is not nil. ctx bounds the
// handshake only.
func Dial(ctx context.Context, address, export string, t *tls.Config) (*Device, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("nbd: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	d, err := open(ctx, conn, export, t)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("nbd: export %q of %s: %w", export, address, err)
	}
	go d.receive()
	return d, nil
}

// open is the client's half of the handshake.
func open(ctx context.Context, conn net.Conn, export string, t *tls.Config) (*Device, error) {
	d := &Device{conn: conn, in: bufio.NewReader(conn), calls: map[uint64]*call{}, stopped: make(chan struct{})}
	var greeting [18]byte
	if _, err := io.ReadFull(d.in, greeting[:]); err != nil {
		return nil, fmt.Errorf("no greeting: %w", err)
	}
	if g := greeting[:]; binary.BigEndian.Uint64(g) != initMagic || binary.BigEndian.Uint64(g[8:]) != optionMagic || g[17]&flagFixedNewstyle == 0 {
		return nil, violation("it is no server of the fixed newstyle")
	}
	flags := uint32(greeting[17] & (flagFixedNewstyle | flagNoZeroes))
	if _, err := d.conn.Write(binary.BigEndian.AppendUint32(nil, flags)); err != nil {
		return nil, err
	}
	if t != nil {
		if err := d.startTLS(ctx, t); err != nil {
			return nil, err
		}
	}
	data := append(binary.BigEndian.AppendUint32(nil, uint32(len(export))), export...)
	err := d.option(optGo, append(data, 0, 0), d.take)
	if err == nil && d.info.Size == 0 {
		err = violation("it has not said how large the export is")
	}
	if err == nil {
		d.info.Name = export
		d.info, err = d.info.complete()
	}
	return d, err
}

func (d *Device) startTLS(ctx context.Context, t *tls.Config) error {
	if err := d.option(optStartTLS, nil, nil); err != nil {
		return err
	}
	if d.in.Buffered() > 0 {
		return violation("data before TLS")
	}
	conn := tls.Client(d.conn, t)
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	d.conn = conn
	d.in.Reset(conn)
	return nil
}

// option sends an option, and passes to info the data of each reply before the ACK.
func (d *Device) option(option uint32, data []byte, info func([]byte) error) error {
	b := binary.BigEndian.AppendUint64(nil, optionMagic)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	if _, err := d.conn.Write(append(b, data...)); err != nil {
		return err
	}
	for {
		var h [20]byte
		if _, err := io.ReadFull(d.in, h[:]); err != nil {
			return err
		}
		kind, n := binary.BigEndian.Uint32(h[12:]), binary.BigEndian.Uint32(h[16:])
		if binary.BigEndian.Uint64(h[:]) != replyMagic || binary.BigEndian.Uint32(h[8:]) != option || n > maxOption {
			return violation(fmt.Sprintf("a reply % x to option %d", h, option))
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(d.in, text); err != nil {
			return err
		}
		switch {
		case kind == repAck:
			return nil
		case kind == repErrPolicy && option == optGo:
			return fmt.Errorf("%w: %s", EPERM, clean(string(text), maxName))
		case kind >= 1<<31:
			return fmt.Errorf("the server refuses: %s", clean(string(text), maxName))
		case kind == repInfo && info != nil:
			if err := info(text); err != nil {
				return err
			}
		}
	}
}

// take parses one NBD_INFO.
func (d *Device) take(b []byte) error {
	if len(b) < 2 {
		return violation("an information without a type")
	}
	switch kind := binary.BigEndian.Uint16(b); {
	case kind == infoExport && len(b) == 12:
		d.info.Size = int64(binary.BigEndian.Uint64(b[2:])) //nolint:gosec // complete refuses a negative one
	case kind == infoBlockSize && len(b) == 14:
		d.info.MinBlock = int(min(binary.BigEndian.Uint32(b[2:]), MaxPayload)) // complete refuses that
	case kind == infoExport || kind == infoBlockSize:
		return violation(fmt.Sprintf("information %d of %d bytes", kind, len(b)))
	}
	return nil
}

// Info describes the export; it has no Description.
func (d *Device) Info() Info { return d.info }

// ReadAt fills p: at most MaxPayload bytes.
func (d *Device) ReadAt(ctx context.Context, p []byte, off int64) error {
	return d.do(ctx, request{cmd: cmdRead, offset: uint64(off), length: uint32(len(p))}, p, nil) //nolint:gosec // the server checks the range
}

// WriteAt writes p: at most MaxPayload bytes. With fua they are durable when it returns.
func (d *Device) WriteAt(ctx context.Context, p []byte, off int64, fua bool) error {
	r := request{cmd: cmdWrite, offset: uint64(off), length: uint32(len(p))} //nolint:gosec // as above
	if fua {
		r.flags = flagFUA
	}
	return d.do(ctx, r, nil, p)
}

// Flush makes all completed writes durable.
func (d *Device) Flush(ctx context.Context) error { return d.do(ctx, request{cmd: cmdFlush}, nil, nil) }

// do sends a request and waits for the reply. If ctx ends first, it closes the connection, so that
// the caller may reuse the request's buffer.
func (d *Device) do(ctx context.Context, r request, read, payload []byte) error {
	c := &call{read: read, done: make(chan error, 1)}
	d.mu.Lock()
	err := d.broken
	if err == nil {
		d.next++
		r.cookie = d.next
		d.calls[r.cookie] = c
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { d.fail(ctx.Err()) })()
	if err := d.write(r, payload); err != nil {
		d.fail(err)
	}
	return <-c.done
}

func (d *Device) write(r request, payload []byte) error {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, requestLen), requestMagic)
	b = binary.BigEndian.AppendUint16(b, r.flags)
	b = binary.BigEndian.AppendUint16(b, r.cmd)
	b = binary.BigEndian.AppendUint64(b, r.cookie)
	b = binary.BigEndian.AppendUint64(b, r.offset)
	parts := net.Buffers{binary.BigEndian.AppendUint32(b, r.length), payload}
	d.send.Lock()
	defer d.send.Unlock()
	_, err := parts.WriteTo(d.conn)
	return err
}

// receive handles replies until the connection ends.
func (d *Device) receive() {
	defer close(d.stopped)
	var h [simpleLen]byte
	for {
		if _, err := io.ReadFull(d.in, h[:]); err != nil {
			d.fail(err)
			return
		}
		cookie, e := binary.BigEndian.Uint64(h[8:]), Errno(binary.BigEndian.Uint32(h[4:]))
		d.mu.Lock()
		c := d.calls[cookie]
		delete(d.calls, cookie)
		d.mu.Unlock()
		if c == nil || binary.BigEndian.Uint32(h[:]) != simpleMagic {
			d.fail(violation(fmt.Sprintf("a reply % x to no request", h)))
			return
		}
		var err error
		if e != 0 {
			err = e
		} else if _, broken := io.ReadFull(d.in, c.read); broken != nil {
			d.fail(broken)
			c.done <- broken
			return
		}
		c.done <- err
	}
}

// refuse makes later requests fail with err, or with the error of an earlier call.
func (d *Device) refuse(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the server has ended the connection")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken == nil {
		d.broken = fmt.Errorf("nbd: export %q: %w", d.info.Name, err)
	}
}

// fail ends the connection and all requests in flight.
func (d *Device) fail(err error) {
	d.refuse(err)
	_ = d.conn.Close() // the connection is broken in any case
	d.mu.Lock()
	defer d.mu.Unlock()
	for cookie, c := range d.calls {
		delete(d.calls, cookie)
		c.done <- d.broken
	}
}

// Close sends DISC and closes the connection.
func (d *Device) Close() error {
	d.refuse(net.ErrClosed)                 // first, because the server may close the connection at once
	_ = d.write(request{cmd: cmdDisc}, nil) // the connection may have ended already
	d.fail(net.ErrClosed)
	<-d.stopped
	return nil
}
