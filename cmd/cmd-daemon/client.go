package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
)

// socketEnv is the environment variable that --socket is taken from; applications take
// theirs from it too.
const socketEnv = "MCRDMA_SOCKET"

// daemonFlags say which daemon a command talks to, and how.
type daemonFlags struct {
	socket  string
	timeout time.Duration
}

func addDaemonFlags(cmd *cobra.Command) *daemonFlags {
	f := &daemonFlags{}
	addSocketFlag(cmd, &f.socket)
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "`time` that the daemon has for each answer")
	return f
}

func addSocketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVarP(socket, "socket", "s", "", "the daemon's unix socket, a `file`; default: $"+socketEnv+", else "+config.DefaultSocket)
	cli.CompleteFile(cmd, "socket", "sock")
}

// socketOr is the socket to be used.
func socketOr(flag string) string { return cmp.Or(flag, os.Getenv(socketEnv), config.DefaultSocket) }

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
	d := &daemon{socket: socketOr(f.socket)}
	var err error
	d.conn, err = grpc.NewClient("passthrough:///daemon",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the kernel gives the daemon the caller's credentials
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", d.socket)
		}),
		grpc.WithUserAgent("cmd-daemon"),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := context.WithTimeout(ctx, f.timeout)
			defer cancel()
			if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
				return d.explain(method, f.timeout, err)
			}
			if m, ok := reply.(proto.Message); ok {
				cli.CleanMessage(m)
			}
			return nil
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("daemon at %s: %w", d.socket, err)
	}
	d.ApplicationsClient = mcrdmav1.NewApplicationsClient(d.conn)
	return d, nil
}

func (d *daemon) close() { _ = d.conn.Close() }

// A daemonError is a call that failed, in words that say what to do.
type daemonError struct {
	code codes.Code
	text string
	err  error
}

func (e *daemonError) Error() string { return e.text }
func (e *daemonError) Unwrap() error { return e.err }

// explain makes a daemonError of gRPC's.
func (d *daemon) explain(method string, timeout time.Duration, err error) error {
	s := status.Convert(err)
	e := &daemonError{code: s.Code(), err: err}
	said := cli.Clean(s.Message())
	what := "answers: " + said
	switch s.Code() {
	case codes.Unavailable:
		what = unavailable(said)
	case codes.DeadlineExceeded:
		what = fmt.Sprintf("did not answer within %v; --timeout allows more", timeout)
	case codes.Canceled:
		what, e.err = "was not waited for: interrupted", context.Canceled
	case codes.Unimplemented:
		what = fmt.Sprintf("does not know %s: it is something else than cmd-daemon, or another version of it", method)
	case codes.PermissionDenied, codes.Unauthenticated:
		what = "refuses: " + said
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "mcrdma" {
			what += " (" + cli.Clean(info.GetReason()) + ")"
		}
	}
	e.text = "daemon at " + d.socket + " " + what
	return e
}

// unavailable says why there is no connection. gRPC's text is that of the error, wrapped.
func unavailable(said string) string {
	switch {
	case strings.Contains(said, "no such file"):
		return "cannot be reached: there is no such socket; is \"cmd-daemon run\" running, and is this the \"socket\" of its configuration? (--socket, $" + socketEnv + ")"
	case strings.Contains(said, "connection refused"):
		return "cannot be reached: no process listens there; start \"cmd-daemon run\""
	case strings.Contains(said, "permission denied"):
		return "cannot be reached: permission denied; be root, or one of the users to whom the socket's mode and group give access"
	case strings.Contains(said, "not a socket"), strings.Contains(said, "wrong type"):
		return "cannot be reached: that is no unix socket; name the \"socket\" of the daemon's configuration"
	case strings.Contains(said, "EOF"), strings.Contains(said, "reset by peer"), strings.Contains(said, "broken pipe"):
		return "hung up: " + said + "; its log says why"
	}
	return "cannot be reached: " + said
}

// errorCode is what kind of failure a call to the daemon was.
func errorCode(err error) codes.Code {
	if e, ok := errors.AsType[*daemonError](err); ok {
		return e.code
	}
	return codes.Unknown
}
