package identity

import (
	"context"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc/credentials"
)

// Without TLS at one side only, each side is to say so. A connection of TLS begins with a
// record of a handshake, or of an alert where it fails (RFC 8446, 5.1); one of HTTP/2 does
// not.
const (
	alertRecord     = 21
	handshakeRecord = 22
)

// notTLS is an alert of a server that speaks TLS only: protocol_version, fatal.
var notTLS = []byte{alertRecord, 3, 1, 0, 2, 2, 70}

// notPlain is what a server in plain text answers TLS with, which is no record of TLS: empty
// SETTINGS of HTTP/2.
var notPlain = []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}

// plain is plain text on a server that was told to allow it.
type plain struct {
	credentials.TransportCredentials
}

// plainInfo marks its connections, so that claims are believed on no others.
type plainInfo struct{ credentials.CommonAuthInfo }

func (plainInfo) AuthType() string { return "insecure" }

func (plain) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, tls, err := begin(raw)
	if err != nil {
		return nil, nil, err
	}
	if tls {
		_, _ = raw.Write(notPlain) // the connection is closed either way
		if tcp, ok := raw.(*net.TCPConn); ok {
			_ = (&lingering{TCPConn: tcp}).Close()
		}
		return nil, nil, fmt.Errorf("identity: client %v speaks TLS, and this side has no certificate: give it certificate files, or none to the other side", raw.RemoteAddr())
	}
	return conn, plainInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}, nil
}

func (p plain) Clone() credentials.TransportCredentials { return plain{p.TransportCredentials.Clone()} }

// begin reads a client's first byte, by which TLS is told, and returns the connection as if
// it had not been read.
func begin(raw net.Conn) (conn net.Conn, tls bool, err error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(raw, first); err != nil {
		return nil, false, fmt.Errorf("identity: client %v: %w", raw.RemoteAddr(), err)
	}
	return &begun{raw, first}, first[0] == handshakeRecord, nil
}

// begun is a connection from which bytes have been read already.
type begun struct {
	net.Conn
	first []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.first)
	b.first = b.first[n:]
	return n, nil
}

// plainClient is plain text of a client.
type plainClient struct {
	credentials.TransportCredentials
}

func (p plainClient) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return &plainConn{Conn: conn}, info, nil
}

func (p plainClient) Clone() credentials.TransportCredentials {
	return plainClient{p.TransportCredentials.Clone()}
}

// A plainConn finds out whether the server speaks TLS.
type plainConn struct {
	net.Conn
	read bool // something has come; the reader's
}

func (c *plainConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.read {
		if c.read = true; b[0] == alertRecord {
			return 0, fmt.Errorf("identity: server %v: %w: give it certificate files, or none to the other side", c.RemoteAddr(), ErrWantsTLS)
		}
	}
	return n, err
}
