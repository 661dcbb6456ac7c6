package connmgr

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// A user is the process at the other end of the unix socket, as the kernel reports it.
type user struct{ uid, pid uint32 }

func (u user) root() bool { return u.uid == 0 }

// userInfo is a connection's user.
type userInfo struct {
	credentials.CommonAuthInfo
	user
}

func (userInfo) AuthType() string { return "peercred" }

// peerCred is the credentials of a server on a unix socket: clients prove nothing, the
// kernel identifies them (SO_PEERCRED). Other connections are refused.
type peerCred struct{}

// A PeerCreder is a connection that itself knows which process is at its other end, for
// an Options.Apps that is no unix socket.
type PeerCreder interface {
	PeerCred() (uid, pid uint32)
}

func (peerCred) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c, ok := raw.(PeerCreder); ok {
		uid, pid := c.PeerCred()
		return raw, userInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, user{uid, pid}}, nil
	}
	c, ok := raw.(*net.UnixConn)
	if !ok {
		return nil, nil, fmt.Errorf("connmgr: a connection from %v: applications connect by the unix socket only", raw.RemoteAddr())
	}
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, nil, fmt.Errorf("connmgr: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := rc.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) //nolint:gosec // a file descriptor
	}); err != nil {
		return nil, nil, fmt.Errorf("connmgr: %w", err)
	}
	if credErr != nil {
		return nil, nil, fmt.Errorf("connmgr: the kernel does not say who connects: %w", credErr)
	}
	return raw, userInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		user{cred.Uid, uint32(max(cred.Pid, 0))}}, nil //nolint:gosec // not negative
}

func (peerCred) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("connmgr: credentials of a server cannot be a client's")
}

func (peerCred) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peercred"}
}

func (c peerCred) Clone() credentials.TransportCredentials { return c }

func (peerCred) OverrideServerName(string) error { return nil }

// userOf returns the user that calls.
func userOf(ctx context.Context) (user, error) {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if u, ok := p.AuthInfo.(userInfo); ok {
			return u.user, nil
		}
	}
	return user{}, failure.New(mcrdmav1.Reason_DENIED, "the caller is not known: applications connect by the unix socket only")
}
