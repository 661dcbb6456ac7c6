package agents

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// An Error is a call to an agent that failed, in words that say what to do.
type Error struct {
	Agent string // address
	Code  codes.Code
	// Reason is the agent's, such as NO_ROUTE; empty if it gives none.
	Reason string

	text string
	err  error
}

func (e *Error) Error() string { return "agent " + e.Agent + " " + e.text }

func (e *Error) Unwrap() error { return e.err }

// Unreachable says whether err tells that an agent did not answer at all.
func Unreachable(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Code == codes.Unavailable || e.Code == codes.DeadlineExceeded)
}

// explain makes an Error of gRPC's.
func explain(address, method string, o Options, err error) error {
	s := status.Convert(err)
	e := &Error{Agent: address, Code: s.Code(), err: err}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "mcrdma" {
			e.Reason = cli.Clean(info.GetReason())
		}
	}
	said := cli.Clean(s.Message())
	switch s.Code() {
	case codes.Unavailable:
		e.text = unavailable(said, o)
	case codes.DeadlineExceeded:
		e.text = fmt.Sprintf("did not answer within %v; is it the right address, and does a firewall let it pass? --timeout allows more", o.Timeout)
	case codes.Canceled:
		e.text, e.err = "was not waited for: interrupted", context.Canceled
	case codes.Unimplemented:
		e.text = fmt.Sprintf("does not know %s: something else than a switch agent listens there, or another version of it", method)
	case codes.Unauthenticated:
		e.text = "does not accept who calls: " + said
	case codes.PermissionDenied:
		e.text = "refuses: " + said + "; use the certificate of an administrator (mcrdma:admin:NAME)"
	case codes.ResourceExhausted:
		e.text = "has more to say than fits in one answer, or is overloaded: " + said
	default:
		e.text = "answers: " + said
	}
	if e.Reason != "" {
		e.text += " (" + e.Reason + ")"
	}
	return e
}

// unavailable says why there is no connection. gRPC's text is that of the error,
// wrapped twice.
func unavailable(said string, o Options) string {
	why := said
	for _, prefix := range []string{"connection error: desc = ", `"transport: `, "Error while dialing: ", "authentication handshake failed: "} {
		why = strings.TrimPrefix(why, prefix)
	}
	why = strings.TrimSuffix(strings.ReplaceAll(why, `\"`, `"`), `"`)
	if at := strings.LastIndex(why, ": connect: "); at >= 0 {
		why = why[at+len(": connect: "):]
	}
	switch {
	case strings.Contains(said, "connection refused"):
		return "cannot be reached: connection refused; is \"switchctl agent\" running there, and is this the address in its \"listen\"?"
	case strings.Contains(said, "no such host"), strings.Contains(said, "server misbehaving"):
		return "cannot be reached: " + why + "; give its address, or put the name into DNS or /etc/hosts"
	case strings.Contains(said, "handshake failed"):
		return "cannot be trusted, or does not trust: " + why
	case o.TLS.Plain() && (strings.Contains(said, "error reading server preface") || strings.Contains(said, "reset by peer")):
		return "hangs up: " + why + "; perhaps it wants TLS: --tls-cert, --tls-key and --tls-ca"
	case !o.TLS.Plain() && strings.Contains(said, "error reading server preface"):
		return "hangs up: " + why + "; its log says why it does not accept this certificate"
	}
	return "cannot be reached: " + why
}
