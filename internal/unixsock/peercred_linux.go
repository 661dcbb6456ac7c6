package unixsock

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

// A User is the process at the other end of a unix socket, as the kernel reports it.
type User struct{ UID, PID uint32 }

// May reports whether a user may use what belongs to another: root, or the same.
func (u User) May(uid uint32) bool { return u.UID == 0 || u.UID == uid }

// userInfo is a connection's user.
type userInfo struct {
	credentials.CommonAuthInfo
	User
}

func (userInfo) AuthType() string { return "peercred" }

// Creds are the credentials of a server on a unix socket: clients prove nothing, the
// kernel identifies them (SO_PEERCRED). Other connections are refused.
func Creds() credentials.TransportCredentials { return creds{} }

type creds struct{}

// A PeerCreder is a connection that itself knows which process is at its other end, for
// one that is no unix socket.
type PeerCreder interface {
	PeerCred() (uid, pid uint32)
}

func (creds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	user, err := Peer(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("unixsock: %w", err)
	}
	return raw, userInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, user}, nil
}

// Peer returns the process at the other end of a unix socket, or of a [PeerCreder].
func Peer(conn net.Conn) (User, error) {
	if c, ok := conn.(PeerCreder); ok {
		uid, pid := c.PeerCred()
		return User{uid, pid}, nil
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return User{}, fmt.Errorf("a connection from %v: applications connect by the unix socket only", conn.RemoteAddr())
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return User{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) //nolint:gosec // a file descriptor
	}); err != nil {
		return User{}, err
	}
	if credErr != nil {
		return User{}, fmt.Errorf("the kernel does not say who connects: %w", credErr)
	}
	return User{cred.Uid, uint32(max(cred.Pid, 0))}, nil //nolint:gosec // not negative
}

func (creds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("unixsock: credentials of a server cannot be a client's")
}

func (creds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peercred"}
}

func (c creds) Clone() credentials.TransportCredentials { return c }

func (creds) OverrideServerName(string) error { return nil }

// UserOf returns the user that calls.
func UserOf(ctx context.Context) (User, error) {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if u, ok := p.AuthInfo.(userInfo); ok {
			return u.User, nil
		}
	}
	return User{}, failure.New(mcrdmav1.Reason_DENIED, "the caller is not known: applications connect by the unix socket only")
}
