package connmgr

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
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

// mayCreate refuses, or counts a group that a session makes until leave is called.
func (m *Manager) mayCreate(s *session) (leave func(), err error) {
	if !s.creating.TryAcquire(1) {
		return nil, failure.New(mcrdmav1.Reason_LIMIT, "the application makes %d groups at the same time, and is allowed no more: wait for some", maxCreating)
	}
	if !m.creating.TryAcquire(1) {
		s.creating.Release(1)
		return nil, failure.New(mcrdmav1.Reason_LIMIT, "the applications of this host make %d groups at the same time, and no more are allowed: try again later", maxCreatingAll)
	}
	return func() {
		m.creating.Release(1)
		s.creating.Release(1)
	}, nil
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
