package nbd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// writeStep is the most that is read or written within one Config.StallTime, in bytes, so that a
// slow but steady client is not disconnected.
const writeStep = 1 << 20

// lingerTime is how long a finished connection waits for the client to close. Closing with unread
// input would send a reset, which destroys replies that the client has not read.
const lingerTime = time.Second

var (
	errStopped = errors.New("the server or the export has been shut down")
	errStalled = errors.New("stalled")
	errCrowded = errors.New("it gave way to another client: as many are open as may be")
)

// A conn is one connection.
type conn struct {
	config *Config
	stats  *counters
	pool   *pool
	raw    net.Conn // for deadlines
	ip     string   // of the client; "": it came by a Unix socket
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	waiting  bool // for the first byte of a request; before that, for the handshake
	bounded  bool // the read deadline is set
	stopping bool

	settled bool // the handshake is done; the server's mu

	patience time.Duration // what the read deadline was set to last; the reader's
}

// A session is a connection after its handshake: what its reader needs.
type session struct {
	*conn
	handler
	in      *bufio.Reader
	budget  *budget
	jobs    chan job
	workers sync.WaitGroup
	started int
	header  [requestLen]byte
}

// serve serves the client until one side ends the connection, and returns why it ended.
func (c *conn) serve(ctx context.Context, began func(Client, Info)) error {
	raw := newDirect(c.raw)
	h := handshake{config: c.config, conn: raw, in: bufio.NewReaderSize(raw, 16<<10),
		client: Client{Addr: c.raw.RemoteAddr()}}
	limited, cancel := context.WithTimeout(ctx, c.config.HandshakeTime)
	err := h.run(limited)
	cancel()
	if err != nil {
		if !errors.Is(err, errAbort) {
			c.stats.handshakes.Add(1)
		}
		if h.farewell {
			c.linger(h.conn)
		}
		return fmt.Errorf("in the handshake: %w", err)
	}
	began(h.client, h.info)

	out := &replies{failed: c.end}
	out.write = func(b []byte) error { return c.write(h.conn, b) }
	if d, ok := h.conn.(*direct); ok { // not TLS
		out.now = d.atOnce
	}
	s := &session{conn: c, in: h.in, budget: newBudget(c.config.MaxRequests, c.config.MaxBytes), jobs: make(chan job)}
	out.budget = s.budget
	s.handler = handler{export: h.export, out: out, stats: c.stats, pool: c.pool, share: newShare(), limits: limits{h.info, h.structured, h.structured && h.selected}}
	unwatch := make(chan struct{})
	s.workers.Go(func() {
		select {
		case <-h.export.Done():
			c.stop()
		case <-unwatch:
		}
	})
	err = s.read(ctx)
	close(unwatch)
	switch {
	case err == nil: // DISC: requests in flight are completed, within StallTime
		defer time.AfterFunc(c.config.StallTime, func() { c.cancel(errStalled) }).Stop()
	case !errors.Is(err, errStopped):
		c.cancel(err)
	}
	close(s.jobs)
	s.workers.Wait()
	s.budget.wait(ctx)
	err = cmp.Or(err, context.Cause(ctx))
	if _, broken := errors.AsType[violation](err); broken {
		c.stats.violations.Add(1)
	}
	c.linger(h.conn)
	return err
}

// read reads requests from the client. It returns nil after DISC.
func (s *session) read(ctx context.Context) error {
	for s.await() {
		if _, err := io.ReadFull(s.in, s.header[:]); err != nil {
			return s.readError(ctx, err, "before a request")
		}
		r, err := parseRequest(s.header[:])
		if err != nil || r.cmd == cmdDisc {
			return err
		}
		refused := s.check(r)
		s.budget.take(r.weight())
		if r.cmd == cmdWrite && r.length > 0 {
			if err := s.readPayload(ctx, r, refused); err != nil {
				return s.readError(ctx, err, "in the payload of a request")
			}
			continue
		}
		s.begin(ctx, job{request: r, refused: refused})
	}
	return errStopped
}

// readError returns the reason why a read failed.
func (s *session) readError(ctx context.Context, err error, where string) error {
	_, broken := errors.AsType[violation](err)
	switch {
	case broken:
		return err
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded) && s.stopped():
		return errStopped
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.conn.stats.stalls.Add(1)
		return fmt.Errorf("the client %w for %v %s", errStalled, s.patience, where)
	}
	return fmt.Errorf("the client went away %s: %w", where, err)
}

// readPayload reads the payload of a WRITE into the export's buffers and starts the writes, or
// discards it if the request is refused or fails.
func (s *session) readPayload(ctx context.Context, r request, refused error) error {
	if r.length > MaxPayload {
		return violation(fmt.Sprintf("a WRITE of %d bytes; at most %d", r.length, MaxPayload))
	}
	left := int(r.length)
	w := s.newWrite(r)
	for refused == nil && left > 0 {
		var b Buffer
		if b, refused = s.export.Buffer(ctx, left); refused != nil {
			break
		}
		p := b.Bytes()
		if len(p) == 0 || len(p) > left {
			b.Release()
			refused = fmt.Errorf("the export has a buffer of %d bytes for %d: %w", len(p), left, EIO)
			break
		}
		if err := s.fill(p); err != nil {
			b.Release()
			return err
		}
		at := int64(r.offset) + int64(r.length) - int64(left)
		if left -= len(p); left > 0 {
			w.add()
		}
		s.begin(ctx, job{request: r, write: w, buffer: b, at: at})
	}
	if refused == nil {
		return nil
	}
	for left > 0 {
		s.within(s.config.StallTime)
		n, err := s.in.Discard(min(left, writeStep))
		if left -= n; err != nil {
			return err
		}
	}
	s.begin(ctx, job{request: r, write: w, refused: refused})
	return nil
}

// fill reads the next bytes of a payload.
func (s *session) fill(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), writeStep)
		if err := s.step(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// step reads at most writeStep bytes of a payload within StallTime. While others wait for the buffer, some
// must come within each shortStall.
func (s *session) step(p []byte) error {
	if len(p) <= s.in.Buffered() {
		_, err := io.ReadFull(s.in, p)
		return err
	}
	for begun, limit := time.Now(), min(s.config.StallTime, shortStall); ; limit = min(s.config.StallTime, limit+shortStall) {
		s.within(limit - time.Since(begun))
		there := s.in.Buffered()
		n, err := io.ReadFull(s.in, p)
		p, s.patience = p[n:], limit
		if !errors.Is(err, os.ErrDeadlineExceeded) || limit == s.config.StallTime || n <= there && s.export.Scarce() {
			return err
		}
	}
}

// begin gives a job to an idle worker goroutine, or to a new one.
func (s *session) begin(ctx context.Context, j job) {
	if j.short() {
		s.handle(ctx, j)
		return
	}
	if s.started < s.config.MaxRequests {
		select {
		case s.jobs <- j:
		default:
			s.started++
			first := j // j itself would be allocated for each job
			s.workers.Go(func() {
				for j, ok := first, true; ok; j, ok = <-s.jobs {
					s.handle(ctx, j)
				}
			})
		}
		return
	}
	s.jobs <- j
}

// await is called before a request is read, and reports whether to read it.
func (c *conn) await() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = true
	if c.bounded && !c.stopping {
		c.bounded = false
		_ = c.raw.SetReadDeadline(time.Time{}) // an error shows in the read
	}
	return !c.stopping
}

// within is called in the middle of a request: the client must continue within a limit.
func (c *conn) within(limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting, c.bounded, c.patience = false, true, limit
	_ = c.raw.SetReadDeadline(time.Now().Add(limit)) // as above
}

// stop ends the connection after the requests already read have been answered.
func (c *conn) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	if c.waiting {
		_ = c.raw.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
	}
}

// end closes the connection at once, even with requests in flight.
func (c *conn) end(why error) {
	c.cancel(why)
	_ = c.raw.Close() // the error does not matter: the connection is dropped
}

func (c *conn) stopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopping
}

// write writes all of b, as long as the client accepts some of it within each StallTime.
func (c *conn) write(to io.Writer, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeStep)
		stall := c.pool.stall(c.config.StallTime)
		_ = c.raw.SetWriteDeadline(time.Now().Add(stall)) // an error shows in Write
		if _, err := to.Write(b[:n]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.stats.stalls.Add(1)
				err = fmt.Errorf("the client %w: it took no reply for %v", errStalled, stall)
			}
			return err
		}
		b = b[n:]
	}
	return nil
}

// linger closes the write side of the connection, and waits up to lingerTime for the client to
// close its side.
func (c *conn) linger(conn net.Conn) {
	_ = c.raw.SetDeadline(time.Now().Add(lingerTime)) // as above
	for _, half := range []net.Conn{conn, c.raw} {    // TLS sends close_notify within TCP
		if h, ok := half.(interface{ CloseWrite() error }); ok {
			_ = h.CloseWrite() // the client may have disconnected
		}
	}
	_, _ = io.Copy(io.Discard, c.raw)
}
