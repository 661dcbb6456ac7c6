package connmgr

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/mcrdma/mcrdma/internal/identity"
)

// Limits on what callers can have the daemon do at a time.
const (
	maxStreams       = 1024 // calls of another host's connection; the caller queues the rest
	maxHostConns     = 8    // connections of another host; its daemon has one
	maxCreating      = 32   // groups that a session makes
	maxCreatingAll   = 128  // the same, of all sessions
	maxIdlePeers     = 64   // connections to hosts that are not configured, for groups to come
	maxAgentCounters = 8    // reads of counters at the switch's agent for stalls
)

// A gate limits how much is under way at a time, for each session and in total.
type gate struct {
	mu  sync.Mutex
	all int
	of  map[*session]int
}

// enter refuses, or counts the request until leave is called.
func (g *gate) enter(s *session) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.of[s] >= maxCreating:
		return nil, refuse(Limit, "the application makes %d groups at the same time, and is allowed no more: wait for some", g.of[s])
	case g.all >= maxCreatingAll:
		return nil, refuse(Limit, "the applications of this host make %d groups at the same time, and no more are allowed: try again later", g.all)
	}
	if g.of == nil {
		g.of = map[*session]int{}
	}
	g.all++
	g.of[s]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.all--
		if g.of[s]--; g.of[s] == 0 {
			delete(g.of, s)
		}
	}, nil
}

// A shared is a task that runs once at a time. A caller that asks for it meanwhile gets the
// same outcome.
type shared struct {
	mu  sync.Mutex
	now *outcome // nil: nothing is under way
}

type outcome struct {
	done     chan struct{}
	suspects []netip.Addr // once done
}

// do runs f in the background, unless it runs already, and waits until it or ctx ends.
func (s *shared) do(ctx context.Context, m *Manager, f func() []netip.Addr) ([]netip.Addr, error) {
	s.mu.Lock()
	o := s.now
	if o == nil {
		o = &outcome{done: make(chan struct{})}
		s.now = o
		m.background(func(context.Context) {
			o.suspects = f()
			s.mu.Lock()
			s.now = nil
			s.mu.Unlock()
			close(o.done)
		})
	}
	s.mu.Unlock()
	select {
	case <-o.done:
		return o.suspects, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// perHost is the credentials of a server that keeps maxHostConns connections of each
// identity. One more closes the oldest, so that a host that comes back is not kept out by
// its stale connections. In plain text the callers are unknown, and all are let in.
type perHost struct {
	credentials.TransportCredentials
	closed func() // called for each connection that is closed
	mu     sync.Mutex
	conns  map[string][]*hostConn // the oldest first
}

func newPerHost(c credentials.TransportCredentials, closed func()) *perHost {
	return &perHost{TransportCredentials: c, closed: closed, conns: map[string][]*hostConn{}}
}

// A hostConn is a connection that is counted.
type hostConn struct {
	net.Conn
	end func() // stops counting it
}

func (c *hostConn) Close() error {
	c.end()
	return c.Conn.Close()
}

func (p *perHost) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, info, err
	}
	id, err := identity.FromContext(grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{Addr: raw.RemoteAddr(), AuthInfo: info}))
	if err != nil {
		return conn, info, nil // its calls are refused
	}
	key, c := id.String(), &hostConn{Conn: conn}
	c.end = func() { p.remove(key, c) }
	p.mu.Lock()
	list := append(p.conns[key], c)
	p.conns[key] = list
	p.mu.Unlock()
	if len(list) > maxHostConns {
		_ = list[0].Close()
		p.closed()
	}
	return c, info, nil
}

func (p *perHost) remove(key string, c *hostConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var left []*hostConn
	for _, o := range p.conns[key] {
		if o != c {
			left = append(left, o)
		}
	}
	if p.conns[key] = left; len(left) == 0 {
		delete(p.conns, key)
	}
}

// Clone returns p itself: the counts belong to one server.
func (p *perHost) Clone() credentials.TransportCredentials { return p }
