package nbd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A Config says what a Server serves, and to whom.
type Config struct {
	// List is the exports that a client is shown.
	List func(context.Context, Client) ([]Info, error)
	// Open is the export of a name; the empty name asks for the default one. It decides
	// whether the client may have it. The client is told its error: that there is no such
	// export, or that it is not allowed if the error is EPERM, or ESHUTDOWN.
	Open func(ctx context.Context, c Client, name string) (Export, error)

	// TLS is offered to clients; nil: it is not. Certificates of clients are asked for as it
	// says.
	TLS *tls.Config
	// RequireTLS has clients without TLS refused.
	RequireTLS bool

	HandshakeTime time.Duration // a handshake may take so long; 0: 30 s
	// StallTime is for how long a client may neither go on with a payload that it has begun nor
	// take replies; 0: 1 min. Between requests it may be silent for ever.
	StallTime      time.Duration
	MaxConnections int // more are closed at once; 0: 256
	MaxRequests    int // under way, of one connection; 0: 128
	// MaxBytes bounds the memory for READ and WRITE that are under way, of one connection; at
	// least, and if 0, 32 MiB.
	MaxBytes int
	// MaxReading bounds the memory for replies to READ that clients have not taken yet, of all
	// connections; at least MaxBytes, and 512 MiB if 0. While less than MaxPayload is
	// left, StallTime is 5 s at most for those that take replies.
	MaxReading int
	Log        *slog.Logger // of connections; nil: none
}

// A Server serves exports. New makes one.
type Server struct {
	config Config
	stats  counters
	pool   *pool

	mu        sync.Mutex
	closed    bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	running   sync.WaitGroup // conns, until all of theirs has ended
}

type counters struct {
	open, refused, handshakes, violations, stalls atomic.Int64
	requests, errors, read, written               atomic.Int64
}

// Stats are counts since the start.
type Stats struct {
	Connections int64 // now
	Refused     int64 // connections beyond Config.MaxConnections
	Handshakes  int64 // that failed
	Violations  int64 // connections that the server ended because they broke the protocol
	Stalls      int64 // connections that the server ended because the client stalled
	Requests    int64 // that were replied to
	Errors      int64 // of these, with an error
	Read        int64 // bytes
	Written     int64 // bytes
}

// New returns a server. It fails if the configuration cannot be meant.
func New(c Config) (*Server, error) {
	switch {
	case c.List == nil || c.Open == nil:
		return nil, errors.New("nbd: List and Open are needed")
	case c.RequireTLS && c.TLS == nil:
		return nil, errors.New("nbd: TLS is required of clients, and no certificate is configured: set TLS")
	case c.HandshakeTime < 0 || c.StallTime < 0 || c.MaxConnections < 0 || c.MaxRequests < 0 || c.MaxBytes < 0 || c.MaxReading < 0:
		return nil, errors.New("nbd: a limit is negative")
	}
	if c.HandshakeTime == 0 {
		c.HandshakeTime = 30 * time.Second
	}
	if c.StallTime == 0 {
		c.StallTime = time.Minute
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 256
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = 128
	}
	c.MaxBytes = max(c.MaxBytes, MaxPayload)
	if c.MaxReading == 0 {
		c.MaxReading = 512 << 20
	}
	c.MaxReading = max(c.MaxReading, c.MaxBytes)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{config: c, pool: newPool(c.MaxReading), listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}}, nil
}

// Serve accepts connections of a TCP or Unix listener until Shutdown or Close; then it
// returns nil. It closes the listener. Several may be served at the same time.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	closed := s.closed
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		_ = l.Close() // Shutdown has done it
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, l)
	}()
	pause := time.Duration(0)
	for !closed {
		raw, err := l.Accept()
		if s.isClosed() {
			if err == nil {
				_ = raw.Close() // it came too late
			}
			return nil
		}
		var passing interface{ Temporary() bool } // such as: too many open files
		if errors.As(err, &passing) && passing.Temporary() {
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.config.Log.Warn("nbd: cannot accept a connection", "error", err, "retry", pause)
			time.Sleep(pause)
			continue
		}
		if err != nil {
			return fmt.Errorf("nbd: accept: %w", err)
		}
		pause = 0
		s.start(raw)
	}
	return nil
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// start serves a connection in a goroutine of its own.
func (s *Server) start(raw net.Conn) {
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &conn{config: &s.config, stats: &s.stats, pool: s.pool, raw: raw, cancel: cancel, waiting: true, bounded: true}
	_ = raw.SetDeadline(time.Now().Add(s.config.HandshakeTime)) // an error shows in the handshake
	log := s.config.Log.With("client", raw.RemoteAddr())
	s.mu.Lock()
	full := len(s.conns) >= s.config.MaxConnections
	if !s.closed && !full {
		s.conns[c] = struct{}{}
		s.running.Add(1)
	}
	refused := s.closed || full
	s.mu.Unlock()
	if refused {
		if full {
			s.stats.refused.Add(1)
			log.Warn("nbd: connection refused: as many are open as may be", "connections", s.config.MaxConnections)
		}
		cancel(nil)
		_ = raw.Close() // nothing has been said
		return
	}
	s.stats.open.Add(1)
	go func() {
		defer s.running.Done()
		err := c.serve(ctx, func(client Client, info Info) {
			log = log.With("export", info.Name, "tls", client.TLS != nil)
			log.Info("nbd: client connected")
		})
		c.end(err)
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		s.stats.open.Add(-1)
		log.Info("nbd: client disconnected", "why", err)
	}()
}

// Shutdown accepts no more connections, has the requests that are under way carried out and
// replied to, and closes the connections. If ctx ends first, it does what Close does and
// returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop((*conn).stop)
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		s.Close()
		return ctx.Err()
	}
}

// Close ends all connections at once, and returns when they have ended.
func (s *Server) Close() {
	s.stop(func(c *conn) { c.end(fmt.Errorf("the server was closed: %w", context.Canceled)) })
	s.running.Wait()
}

// stop ends listeners, and connections by end.
func (s *Server) stop(end func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for l := range s.listeners {
		_ = l.Close() // Serve has it closed, too
	}
	for c := range s.conns {
		end(c)
	}
}

// Stats returns the present counts.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{Connections: c.open.Load(), Refused: c.refused.Load(), Handshakes: c.handshakes.Load(),
		Violations: c.violations.Load(), Stalls: c.stalls.Load(), Requests: c.requests.Load(),
		Errors: c.errors.Load(), Read: c.read.Load(), Written: c.written.Load()}
}
