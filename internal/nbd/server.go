package nbd

import (
	"cmp"
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

// A Config configures a Server.
type Config struct {
	// List returns the exports to list to a client.
	List func(context.Context, Client) ([]Info, error)
	// Open returns the export of a name; the empty name means the default export. It decides
	// whether the client may have it. The client gets the error as: no such export; not permitted,
	// if it is EPERM; or ESHUTDOWN.
	Open func(ctx context.Context, c Client, name string) (Export, error)

	// TLS is offered to clients unless it is nil. It also says whether client certificates are
	// required.
	TLS *tls.Config
	// RequireTLS refuses clients without TLS.
	RequireTLS bool

	HandshakeTime time.Duration // limit for the handshake; 0: 30 s
	// StallTime is how long a client may stop in the middle of a payload, or accept no reply data;
	// 0: 1 min. It is at most 5 s in a payload for whose memory others wait (Export.Scarce). Between
	// requests a client may be silent forever.
	StallTime time.Duration
	// MaxConnections bounds the connections, and half of it those of one IP address; 0: 512. A further one
	// takes the place of the oldest that is still in its handshake, or else is closed at once.
	MaxConnections int
	MaxRequests    int // in flight, per connection; 0: 128
	// MaxBytes bounds the memory for READ and WRITE in flight, per connection; the minimum, and the
	// value for 0, is 32 MiB.
	MaxBytes int
	// MaxReading bounds the memory for replies to READ that clients have not read yet, of all
	// connections; at least MaxBytes; 0: 192 MiB. READs of at most 128 KiB have a quarter as much of
	// their own, and 128 KiB more for each connection, which so waits for no other. While little is
	// free, StallTime is at most 5 s for clients that do not read replies.
	MaxReading int
	Log        *slog.Logger // events of connections; nil: none
}

// A Server serves exports. New makes one.
type Server struct {
	config Config
	stats  counters
	pool   *pool

	mu        sync.Mutex
	closed    bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]uint64 // by the order in which they were accepted
	accepted  uint64
	running   sync.WaitGroup // conns, until all their goroutines have ended
}

type counters struct {
	open, refused, handshakes, violations, stalls atomic.Int64
	requests, errors, read, written               atomic.Int64
}

// Stats are counters since the start.
type Stats struct {
	Connections int64 // now
	Refused     int64 // connections closed because of Config.MaxConnections
	Handshakes  int64 // failed ones
	Violations  int64 // connections ended because the client violated the protocol
	Stalls      int64 // connections ended because the client stalled
	Requests    int64 // requests answered
	Errors      int64 // of those, with an error
	Read        int64 // bytes
	Written     int64 // bytes
}

// New returns a server. It returns an error if the configuration is invalid.
func New(c Config) (*Server, error) {
	switch {
	case c.List == nil || c.Open == nil:
		return nil, errors.New("nbd: List and Open are needed")
	case c.RequireTLS && c.TLS == nil:
		return nil, errors.New("nbd: TLS is required of clients, and no certificate is configured: set TLS")
	case c.HandshakeTime < 0 || c.StallTime < 0 || c.MaxConnections < 0 || c.MaxRequests < 0 || c.MaxBytes < 0 || c.MaxReading < 0:
		return nil, errors.New("nbd: a limit is negative")
	}
	c.HandshakeTime = cmp.Or(c.HandshakeTime, 30*time.Second)
	c.StallTime = cmp.Or(c.StallTime, time.Minute)
	c.MaxConnections = cmp.Or(c.MaxConnections, 512)
	c.MaxRequests = cmp.Or(c.MaxRequests, 128)
	c.MaxBytes = max(c.MaxBytes, MaxPayload)
	c.MaxReading = max(cmp.Or(c.MaxReading, 192<<20), c.MaxBytes)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return &Server{config: c, pool: newPool(c.MaxReading), listeners: map[net.Listener]struct{}{}, conns: map[*conn]uint64{}}, nil
}

// Serve accepts connections of a TCP or Unix listener until Shutdown or Close; then it returns nil.
// It closes the listener. It may be called concurrently for several listeners.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	closed := s.closed
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		_ = l.Close() // Shutdown has closed it already
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, l)
	}()
	pause := time.Duration(0)
	for !closed {
		raw, err := l.Accept()
		if s.isClosed() {
			if err == nil {
				_ = raw.Close() // accepted after Shutdown
			}
			return nil
		}
		var passing interface{ Temporary() bool } // such as EMFILE: too many open files
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
	if a, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		c.ip = a.IP.String()
	}
	_ = raw.SetDeadline(time.Now().Add(s.config.HandshakeTime)) // an error shows in the handshake
	log := s.config.Log.With("client", raw.RemoteAddr())
	s.mu.Lock()
	closed := s.closed
	accepted := !closed && s.room(c.ip)
	if accepted {
		s.accepted++
		s.conns[c] = s.accepted
		s.running.Add(1)
	}
	s.mu.Unlock()
	if !accepted {
		if !closed {
			log.Warn("nbd: connection refused: as many are open as may be, of all clients or of half as many from this address", "connections", s.config.MaxConnections)
		}
		cancel(nil)
		_ = raw.Close() // no reply has been sent yet
		return
	}
	s.stats.open.Add(1)
	go func() {
		defer s.running.Done()
		err := c.serve(ctx, func(client Client, info Info) {
			s.mu.Lock()
			c.settled = true
			s.mu.Unlock()
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

// room reports whether there is room for a connection of a client, which may end another one.
func (s *Server) room(ip string) bool {
	return (ip == "" || s.below(max(s.config.MaxConnections/2, 1), func(c *conn) bool { return c.ip == ip })) &&
		s.below(s.config.MaxConnections, func(*conn) bool { return true })
}

// below reports whether fewer of these connections than a limit are open, if need be after it has ended
// the oldest one in its handshake.
func (s *Server) below(limit int, these func(*conn) bool) bool {
	n, oldest := 0, (*conn)(nil)
	for c, number := range s.conns {
		if these(c) {
			if n++; !c.settled && (oldest == nil || number < s.conns[oldest]) {
				oldest = c
			}
		}
	}
	if n < limit {
		return true
	}
	s.stats.refused.Add(1)
	if oldest != nil {
		delete(s.conns, oldest)
		oldest.end(errCrowded)
	}
	return oldest != nil
}

// Shutdown stops accepting connections, completes and answers the requests in flight, and closes
// the connections. If ctx ends first, it does what Close does and returns ctx's error.
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

// stop closes the listeners, and calls end for each connection.
func (s *Server) stop(end func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for l := range s.listeners {
		_ = l.Close() // Serve closes it, too
	}
	for c := range s.conns {
		end(c)
	}
}

// Stats returns the current counters.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{Connections: c.open.Load(), Refused: c.refused.Load(), Handshakes: c.handshakes.Load(),
		Violations: c.violations.Load(), Stalls: c.stalls.Load(), Requests: c.requests.Load(),
		Errors: c.errors.Load(), Read: c.read.Load(), Written: c.written.Load()}
}
