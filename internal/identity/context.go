package identity

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// header is the metadata by which a client claims an identity in plain text.
const header = "mcrdma-identity"

// FromContext returns the caller's identity, in a handler of a server with the credentials of
// Files.Server. Errors have the gRPC code Unauthenticated and may be returned as they are; they
// wrap ErrNoIdentity.
//
// Without TLS the caller has the identity that it claims, or is a host named by its address. It
// owns the addresses that it claims, because a daemon's connections may come from another address
// than its device's, and that of the connection; on loopback, where tests run whole fabrics, it
// owns all loopback addresses.
func FromContext(ctx context.Context) (Identity, error) {
	id, err := fromContext(ctx)
	if err != nil {
		return Identity{}, unauthenticated{err}
	}
	return id, nil
}

// Certified returns the name that the caller's certificate proves. All certificates without an identity have one
// name together. Without TLS there is none.
func Certified(ctx context.Context) (string, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.AuthInfo.(authInfo); ok {
			if a.err != nil {
				return "no identity", nil
			}
			return a.id.String(), nil
		}
	}
	return "", ErrNoIdentity
}

func fromContext(ctx context.Context) (Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Identity{}, fmt.Errorf("identity: %w: not in a call by gRPC", ErrNoIdentity)
	}
	switch a := p.AuthInfo.(type) {
	case authInfo:
		return a.id, a.err
	case plainInfo:
		return claimed(p.Addr, metadata.ValueFromIncomingContext(ctx, header))
	}
	return Identity{}, fmt.Errorf("identity: %w: the server has other credentials than those of Files.Server", ErrNoIdentity)
}

// claimed is who calls in plain text.
func claimed(from net.Addr, claims []string) (Identity, error) {
	tcp, ok := from.(*net.TCPAddr)
	if !ok {
		return Identity{}, fmt.Errorf("identity: %w: a peer at %v, which is not TCP", ErrNoIdentity, from)
	}
	addr := tcp.AddrPort().Addr().Unmap()
	id := Identity{Role: Host, Name: addr.String()}
	switch len(claims) {
	case 0:
	case 1:
		var err error
		if id, err = parse(claims[0]); err != nil {
			return Identity{}, fmt.Errorf("identity: claim in the metadata %q: %w", header, err)
		}
	default:
		return Identity{}, fmt.Errorf("identity: %w: %d claims in the metadata %q; send one", ErrNoIdentity, len(claims), header)
	}
	if id.loopback = addr.IsLoopback(); !id.loopback && !id.Owns(addr) || len(id.Addrs) == 0 {
		id.Addrs = append(id.Addrs, addr)
	}
	return id, nil
}

type unauthenticated struct{ error }

func (e unauthenticated) Unwrap() error { return e.error }

func (e unauthenticated) GRPCStatus() *status.Status {
	return status.New(codes.Unauthenticated, e.Error())
}

// Claim makes a client without TLS state its identity. It has no effect with TLS, where only
// certificates count. An identity that Parse rejects fails each call.
func Claim(id Identity) grpc.DialOption {
	c := claim{text: id.String()}
	_, c.err = Parse(c.text)
	return grpc.WithPerRPCCredentials(c)
}

type claim struct {
	text string
	err  error
}

func (c claim) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if c.err != nil {
		return nil, unauthenticated{c.err}
	}
	return map[string]string{header: c.text}, nil
}

func (claim) RequireTransportSecurity() bool { return false }
