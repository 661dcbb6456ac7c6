package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Server returns the credentials of a server: TLS 1.3, and clients must have a certificate of the
// CA. For the zero Files there is no TLS, and clients have the identity that they claim. Handlers
// get the caller's identity from FromContext. Errors wrap ErrFiles.
func (f Files) Server() (credentials.TransportCredentials, error) {
	if f.Plain() {
		return plain{insecure.NewCredentials()}, nil
	}
	s, err := newSource(f)
	if err != nil {
		return nil, err
	}
	return &creds{source: s}, nil
}

// ServerConfig is Server for protocols other than gRPC, with the files as they are at each handshake. A client's
// certificate need not have an identity. Errors wrap ErrFiles.
func (f Files) ServerConfig() (*tls.Config, error) {
	s, err := newSource(f)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.get().config(), nil }}, nil
}

// Client returns the credentials of a client whose server must have the expected role and name, and
// own all the expected addresses; zero values match any. For the zero Files there is no TLS, and
// any server without TLS is accepted; one with TLS fails with ErrWantsTLS. Errors wrap ErrFiles.
// Handshakes with another server fail with ErrMismatch, ErrUntrusted or ErrNoIdentity; calls then
// fail as Unavailable, with their text.
func (f Files) Client(expect Identity) (credentials.TransportCredentials, error) {
	if f.Plain() {
		return plainClient{insecure.NewCredentials()}, nil
	}
	s, err := newSource(f)
	if err != nil {
		return nil, err
	}
	return &creds{source: s, expect: expect}, nil
}

// creds are TLS in either direction, with the files as they are at each handshake.
type creds struct {
	source *source
	expect Identity // of a server
}

// authInfo is what a server knows of a client with a certificate.
type authInfo struct {
	credentials.TLSInfo
	id  Identity
	err error
}

func (m *material) config() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.cert},
		ClientCAs:    m.cas,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		// Connections are few and long; each is to be verified by the files of
		// its own time.
		SessionTicketsDisabled: true,
	}
}

func (c *creds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	m := c.source.get()
	var l *lingering
	if tcp, ok := raw.(*net.TCPConn); ok {
		l = &lingering{TCPConn: tcp}
		raw = l
	}
	raw, tls, err := begin(raw)
	if err != nil {
		return nil, nil, err
	}
	if !tls {
		_, _ = raw.Write(notTLS) // the handshake fails either way
	}
	conn, info, err := credentials.NewTLS(m.config()).ServerHandshake(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("identity: client %v: %w", raw.RemoteAddr(), c.source.explain(err, m))
	}
	if l != nil {
		l.accepted = true
	}
	a := authInfo{TLSInfo: info.(credentials.TLSInfo)}
	// FromContext reports a certificate without an identity, so that the client
	// gets to know: an alert of TLS has no words.
	a.id, a.err = FromCert(a.State.PeerCertificates[0])
	return conn, a, nil
}

// Watched are a server's credentials that report each failed handshake. A client that disconnects
// before its end was not refused: a health check, for example, or a host with two connections.
func Watched(c credentials.TransportCredentials, failed func(error)) credentials.TransportCredentials {
	return watched{c, failed}
}

type watched struct {
	credentials.TransportCredentials
	failed func(error)
}

func (w watched) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ServerHandshake(raw)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		w.failed(err)
	}
	return conn, info, err
}

func (w watched) Clone() credentials.TransportCredentials {
	return watched{w.TransportCredentials.Clone(), w.failed}
}

func (c *creds) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	m := c.source.get()
	cfg := m.config()
	cfg.InsecureSkipVerify = true // the names of hosts; verify does the rest
	cfg.VerifyConnection = func(s tls.ConnectionState) error { return m.verify(s.PeerCertificates, c.expect) }
	conn, info, err := credentials.NewTLS(cfg).ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, fmt.Errorf("identity: server %v: %w", raw.RemoteAddr(), c.source.explain(err, m))
	}
	return conn, info, nil
}

// verify checks a server's chain of certificates, and that it is who is expected.
func (m *material) verify(chain []*x509.Certificate, expect Identity) error {
	opts := x509.VerifyOptions{Roots: m.cas, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(opts); err != nil {
		return fmt.Errorf("identity: %w: that of %s: %w; renew it, or give this side the CA that issued it", ErrUntrusted, subject(chain[0]), err)
	}
	id, err := FromCert(chain[0])
	if err != nil {
		return err
	}
	return id.check(expect)
}

// trusts returns the reason why this side would not accept its own certificate by its CA, so that
// others with the same CA will not either; nil: it would. Errors wrap ErrFiles or ErrUntrusted.
func (f Files) trusts(m *material) error {
	chain := []*x509.Certificate{m.cert.Leaf}
	for _, der := range m.cert.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("identity: %w: %s: %w", ErrFiles, f.Cert, err)
		}
		chain = append(chain, c)
	}
	if err := m.verify(chain, Identity{}); err != nil {
		return fmt.Errorf("the CA in %s does not vouch for %s: %w", f.CA, f.Cert, err)
	}
	return nil
}

func (c *creds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (c *creds) Clone() credentials.TransportCredentials {
	return &creds{source: c.source, expect: c.expect}
}

// OverrideServerName always fails: servers are known by their identities.
func (c *creds) OverrideServerName(string) error {
	return errors.New("identity: servers are known by their identities and not by host names; say whom to expect")
}
