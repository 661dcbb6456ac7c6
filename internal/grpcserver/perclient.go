package grpcserver

import (
	"context"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/mcrdma/mcrdma/internal/identity"
)

type perClient struct {
	credentials.TransportCredentials
	most   int
	closed func() // called for each connection that is closed
	mu     sync.Mutex
	conns  map[string][]*clientConn // the oldest first
}

// PerClient has a server keep at most so many connections of each identity. One more closes the
// oldest, so that a client that comes back is not kept out by its stale connections; closed is
// called then. In plain text the callers are unknown, and all are let in.
func PerClient(c credentials.TransportCredentials, most int, closed func()) credentials.TransportCredentials {
	return &perClient{TransportCredentials: c, most: most, closed: closed, conns: map[string][]*clientConn{}}
}

// A clientConn is a connection that is counted.
type clientConn struct {
	net.Conn
	end func() // stops counting it
}

func (c *clientConn) Close() error {
	c.end()
	return c.Conn.Close()
}

func (p *perClient) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, info, err
	}
	id, err := identity.FromContext(grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{Addr: raw.RemoteAddr(), AuthInfo: info}))
	if err != nil {
		return conn, info, nil // its calls are refused
	}
	key, c := id.String(), &clientConn{Conn: conn}
	c.end = func() { p.remove(key, c) }
	p.mu.Lock()
	p.conns[key] = append(p.conns[key], c)
	var oldest net.Conn
	if list := p.conns[key]; len(list) > p.most {
		oldest = list[0]
	}
	p.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
		p.closed()
	}
	return c, info, nil
}

func (p *perClient) remove(key string, c *clientConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(p.conns[key], func(o *clientConn) bool { return o == c })
	if p.conns[key] = list; len(list) == 0 {
		delete(p.conns, key)
	}
}

// Clone returns p itself: the counts belong to one server.
func (p *perClient) Clone() credentials.TransportCredentials { return p }
