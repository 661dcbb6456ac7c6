package cli

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A Daemon is a connection to a daemon. Its calls have a timeout, their results have no control
// characters, and errors say what to do.
type Daemon struct {
	mcrdmav1.ApplicationsClient
	Socket string
	Callee Callee
	conn   *grpc.ClientConn
}

// DialDaemon returns the daemon at a socket, for a program; it connects at the first call. The
// error is a usage error.
func DialDaemon(socket, program string, timeout time.Duration) (*Daemon, error) {
	if timeout <= 0 {
		return nil, Usagef("--timeout %v: it is more than 0, such as 5s", timeout)
	}
	d := &Daemon{Socket: socket, Callee: Callee{Name: "daemon at " + socket, Kind: "cmd-daemon", Timeout: timeout, Unavailable: unavailable,
		Words: map[codes.Code]string{codes.PermissionDenied: "refuses: ", codes.Unauthenticated: "refuses: "}}}
	var err error
	d.conn, err = grpc.NewClient("passthrough:///daemon",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the kernel gives the daemon the caller's credentials
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", d.Socket)
		}),
		grpc.WithUserAgent(program),
		d.Callee.Intercept(),
	)
	if err != nil {
		return nil, fmt.Errorf("daemon at %s: %w", d.Socket, err)
	}
	d.ApplicationsClient = mcrdmav1.NewApplicationsClient(d.conn)
	return d, nil
}

// Close closes the connection.
func (d *Daemon) Close() { _ = d.conn.Close() }

// unavailable explains why there is no connection. gRPC's error is wrapped.
func unavailable(said string) string {
	switch {
	case strings.Contains(said, "no such file"):
		return "cannot be reached: there is no such socket; is \"cmd-daemon run\" running, and is this the \"socket\" of its configuration? (--socket, $" + SocketEnv + ")"
	case strings.Contains(said, "connection refused"):
		return "cannot be reached: no process listens there; start \"cmd-daemon run\""
	case strings.Contains(said, "permission denied"):
		return "cannot be reached: permission denied; be root, or one of the users to whom the socket's mode and group give access"
	case strings.Contains(said, "not a socket"), strings.Contains(said, "wrong type"):
		return "cannot be reached: that is not a unix socket; name the \"socket\" of the daemon's configuration"
	case strings.Contains(said, "invalid argument"):
		return "cannot be reached: the name of a unix socket has at most 107 bytes; name a shorter one"
	case strings.Contains(said, "EOF"), strings.Contains(said, "reset by peer"), strings.Contains(said, "broken pipe"):
		return "hung up: " + said + "; its log says why"
	}
	return "cannot be reached: " + said
}
