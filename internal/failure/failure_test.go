package failure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// TestReasons: each reason of the contract has a code, which is the one that its comment
// names, and arrives at a client with all that is known.
func TestReasons(t *testing.T) {
	proto, err := os.ReadFile("../../api/mcrdma/v1/error.proto")
	if err != nil {
		t.Fatal(err)
	}
	for n, name := range mcrdmav1.Reason_name {
		r := mcrdmav1.Reason(n)
		code, ok := codeOf[r]
		if !ok {
			t.Errorf("%s has no code", name)
		}
		if r == mcrdmav1.Reason_REASON_UNSPECIFIED {
			continue
		}
		documented := regexp.MustCompile(`([A-Z_]+)\.\n  ` + name + " = ").FindSubmatch(proto)
		var want codes.Code
		if documented == nil || want.UnmarshalJSON([]byte(`"`+string(documented[1])+`"`)) != nil || want != code {
			t.Errorf("%s: %v, and the contract says %q", name, code, documented)
		}
		e := &Error{Reason: r, Host: "h1", Text: "no", Formation: 7, Sequence: 8}
		if s := status.Convert(fmt.Errorf("around it: %w", e)); s.Code() != code || s.Message() != "around it: host h1: no" {
			t.Errorf("%s: %v", name, s.Proto())
		}
		if got := Read(e.GRPCStatus().Err()); got == nil || *got != *e {
			t.Errorf("%s: %+v is read as %+v", name, e, got)
		}
	}
	if len(codeOf) != len(mcrdmav1.Reason_name) {
		t.Errorf("%d codes for %d reasons", len(codeOf), len(mcrdmav1.Reason_name))
	}
}

// TestRead: what is none of ours, or not known, is not read; long texts are cut.
func TestRead(t *testing.T) {
	if s := new(Error).GRPCStatus(); s.Code() != codes.Internal || len(s.Details()) != 0 {
		t.Errorf("without a reason: %v", s.Proto())
	}
	future, err := status.New(codes.NotFound, "of the future").WithDetails(&errdetails.ErrorInfo{Domain: Domain, Reason: "FULL_MOON"})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{nil, errors.New("odd"), status.Error(codes.NotFound, "none"), future.Err()} {
		if e := Read(err); e != nil {
			t.Errorf("%v is read as %+v", err, e)
		}
	}
	if info := Info(future.Err()); info.GetReason() != "FULL_MOON" {
		t.Errorf("%v", info)
	}
	long := &Error{Reason: mcrdmav1.Reason_LIMIT, Switch: strings.Repeat("s", 5000), Text: strings.Repeat("t", 5000)}
	if e := Read(long.GRPCStatus().Err()); len(e.Switch) > MaxName+len("…") || len(e.Text) > MaxText+len("…") {
		t.Errorf("%d and %d bytes are kept", len(e.Switch), len(e.Text))
	}
}

func TestOf(t *testing.T) {
	e := New(mcrdmav1.Reason_LIMIT, "full").AtHost("h1")
	for _, tt := range []struct {
		err  error
		want mcrdmav1.Reason
	}{
		{fmt.Errorf("x: %w", e), mcrdmav1.Reason_LIMIT},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), mcrdmav1.Reason_TIMEOUT},
		{context.Canceled, mcrdmav1.Reason_CLOSED},
	} {
		if got := Of(tt.err); got == nil || got.Reason != tt.want {
			t.Errorf("%v: %+v", tt.err, got)
		}
	}
	if Of(errors.New("odd")) != nil || Of(nil) != nil || Is(nil, 0) || !Is(e, mcrdmav1.Reason_LIMIT) || Is(e, mcrdmav1.Reason_STALE) {
		t.Error("odd")
	}
}

// TestSaid: what gRPC puts around the reason for which a connection failed is no help.
func TestSaid(t *testing.T) {
	for said, want := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 192.0.2.1:9560: connect: connection refused"`:                                         "connection refused",
		`connection error: desc = "transport: Error while dialing: dial tcp: lookup torX: no such host"`:                                                          "dial tcp: lookup torX: no such host",
		`last connection error: connection error: desc = "error reading server preface: EOF"`:                                                                     "it has closed the connection: EOF",
		`connection error: desc = "error reading server preface: raw-read tcp 127.0.0.1:49438->127.0.0.1:9559: use of closed network connection"`:                 silence,
		`connection error: desc = "error reading server preface: identity: server 192.0.2.1:9560: it speaks TLS"`:                                                 "identity: server 192.0.2.1:9560: it speaks TLS",
		`connection error: desc = "transport: authentication handshake failed: x509: \"torA\" has expired"`:                                                       `authentication handshake failed: x509: "torA" has expired`,
		"keepalive ping failed to receive ACK within timeout":                                                                                                     "it was silent for too long",
		`closing transport due to: connection error: desc = "error reading from server: EOF", received prior goaway: code: NO_ERROR, debug data: "graceful_stop"`: "the connection was lost: EOF",
		`connection error: desc = "keepalive ping failed to receive ACK within timeout"`:                                                                          "it was silent for too long",
		`latest balancer error: connection error: desc = "transport: Error while dialing: dial tcp 192.0.2.1:2379: connect: connection refused"`:                  "connection refused",
		`connection error: desc = "transport: Error while dialing: dial tcp 192.0.2.1:2379: i/o timeout"`:                                                         "nothing came back in time",
		"context deadline exceeded while waiting for connections to become ready":                                                                                 "no connection was made in time",
		"context deadline exceeded": "no answer came in time",
		"the switch is full":        "the switch is full",
	} {
		if got := Said(status.Error(codes.Unavailable, said)); got != want {
			t.Errorf("%s: %q, want %q", said, got, want)
		}
	}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	late := &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	lost := fmt.Errorf("dial tcp 192.0.2.1:9561: %w", os.ErrDeadlineExceeded) // as grpcclient has it
	if a, b, c := Said(fmt.Errorf("h1: %w", refused)), Said(late), Said(lost); a != "connection refused" || b != silence || c != silence {
		t.Errorf("%q, %q, %q", a, b, c)
	}
	for _, ended := range []error{context.DeadlineExceeded, fmt.Errorf("%w", context.Canceled)} {
		if err := Plain(ended); strings.Contains(err.Error(), "context") || !errors.Is(err, ended) {
			t.Errorf("%v: %v", ended, err)
		}
	}
	if err := Plain(nil); err != nil {
		t.Error(err)
	}
}
