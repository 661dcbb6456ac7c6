package grpcserver

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
)

// A host that can connect must not be able to use up file descriptors.
const (
	maxStrangers = 2048             // connections whose handshake is under way; one more closes the oldest
	connectTime  = 10 * time.Second // of a handshake, until requests can come
)

// A perClient bounds the connections of each client, and those of which the client is not known yet.
type perClient struct {
	credentials.TransportCredentials
	cfg   Config
	mu    sync.Mutex
	conns map[string][]net.Conn // of clients, by name; "": of those that are not known yet. The oldest is first.
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
	p.add("", raw, maxStrangers)
	conn, info, err := p.TransportCredentials.ServerHandshake(raw)
	p.remove("", raw)
	if err != nil || p.cfg.Client == nil {
		return conn, info, err
	}
	name, err := p.cfg.Client(grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{Addr: raw.RemoteAddr(), AuthInfo: info}))
	if err != nil {
		return conn, info, nil // its calls are refused
	}
	c := &clientConn{Conn: conn}
	c.end = func() { p.remove(name, c) }
	if p.add(name, c, p.cfg.PerClient) && p.cfg.Closed != nil {
		p.cfg.Closed()
	}
	return c, info, nil
}

// add counts a connection. If there are more than most, it closes the oldest.
func (p *perClient) add(name string, c net.Conn, most int) (closed bool) {
	p.mu.Lock()
	p.conns[name] = append(p.conns[name], c)
	var oldest net.Conn
	if list := p.conns[name]; len(list) > most {
		oldest, p.conns[name] = list[0], list[1:]
	}
	p.mu.Unlock()
	if oldest == nil {
		return false
	}
	_ = oldest.Close()
	return true
}

func (p *perClient) remove(name string, c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(p.conns[name], func(o net.Conn) bool { return o == c })
	if p.conns[name] = list; len(list) == 0 {
		delete(p.conns, name)
	}
}

// Clone returns p itself: the counts belong to one server.
func (p *perClient) Clone() credentials.TransportCredentials { return p }
