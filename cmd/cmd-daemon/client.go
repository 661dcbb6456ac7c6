package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// daemonFlags say which daemon a command talks to, and how.
type daemonFlags struct {
	socket  string
	timeout time.Duration
}

func addDaemonFlags(cmd *cobra.Command) *daemonFlags {
	f := &daemonFlags{}
	cli.AddSocketFlag(cmd, &f.socket, "s")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "`time` that the daemon has for each answer")
	return f
}

// A daemon is a connection to one. Its calls end after the flags' timeout, what they
// return has no control characters, and errors say what to do.
type daemon struct {
	mcrdmav1.ApplicationsClient
	conn   *grpc.ClientConn
	socket string
}

// dial returns a daemon; it connects when it is first called. The error is one of usage.
func (f *daemonFlags) dial() (*daemon, error) {
	if f.timeout <= 0 {
		return nil, cli.Usagef("--timeout %v: it is more than 0, such as 5s", f.timeout)
	}
	d := &daemon{socket: cli.Socket(f.socket)}
	var err error
	d.conn, err = grpc.NewClient("passthrough:///daemon",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the kernel gives the daemon the caller's credentials
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", d.socket)
		}),
		grpc.WithUserAgent("cmd-daemon"),
		cli.Callee{Name: "daemon at " + d.socket, Kind: "cmd-daemon", Timeout: f.timeout, Unavailable: unavailable,
			Words: map[codes.Code]string{codes.PermissionDenied: "refuses: ", codes.Unauthenticated: "refuses: "}}.Intercept(),
	)
	if err != nil {
		return nil, fmt.Errorf("daemon at %s: %w", d.socket, err)
	}
	d.ApplicationsClient = mcrdmav1.NewApplicationsClient(d.conn)
	return d, nil
}

func (d *daemon) close() { _ = d.conn.Close() }

// unavailable says why there is no connection. gRPC's text is that of the error, wrapped.
func unavailable(said string) string {
	switch {
	case strings.Contains(said, "no such file"):
		return "cannot be reached: there is no such socket; is \"cmd-daemon run\" running, and is this the \"socket\" of its configuration? (--socket, $" + cli.SocketEnv + ")"
	case strings.Contains(said, "connection refused"):
		return "cannot be reached: no process listens there; start \"cmd-daemon run\""
	case strings.Contains(said, "permission denied"):
		return "cannot be reached: permission denied; be root, or one of the users to whom the socket's mode and group give access"
	case strings.Contains(said, "not a socket"), strings.Contains(said, "wrong type"):
		return "cannot be reached: that is not a unix socket; name the \"socket\" of the daemon's configuration"
	case strings.Contains(said, "EOF"), strings.Contains(said, "reset by peer"), strings.Contains(said, "broken pipe"):
		return "hung up: " + said + "; its log says why"
	}
	return "cannot be reached: " + said
}
