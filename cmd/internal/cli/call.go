package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/internal/failure"
)

// A Callee is a gRPC server, as error messages describe it.
type Callee struct {
	Name    string        // such as "agent 192.0.2.1:9560"
	Kind    string        // what should listen there, such as "a switch agent"
	Timeout time.Duration // of each call
	// Words replace "answers: " in messages, by code; the server's text follows.
	Words map[codes.Code]string
	// Unavailable explains why there is no connection.
	Unavailable func(said string) string
}

// A callError is a failed call, with a message that says what to do.
type callError struct {
	code codes.Code
	text string
	err  error
}

func (e *callError) Error() string { return e.text }
func (e *callError) Unwrap() error { return e.err }

// CodeOf returns the code of a failed call.
func CodeOf(err error) codes.Code {
	if e, ok := errors.AsType[*callError](err); ok {
		return e.code
	}
	return codes.Unknown
}

// Intercept limits the time of each call, removes control characters from answers, and explains
// errors.
func (c Callee) Intercept() grpc.DialOption {
	return grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
			return c.Explain(method, err)
		}
		if m, ok := reply.(proto.Message); ok {
			CleanMessage(m)
		}
		return nil
	})
}

// Explain returns the error of a call with a message that says what to do.
func (c Callee) Explain(method string, err error) error {
	s := status.Convert(err)
	e := &callError{code: s.Code(), err: err}
	said := Clean(failure.Said(err))
	what := cmp.Or(c.Words[s.Code()], "answers: ") + said
	info := failure.Info(err)
	switch s.Code() {
	case codes.Unavailable:
		if info != nil { // the server has answered
			break
		}
		what = c.Unavailable(said)
	case codes.DeadlineExceeded:
		what = fmt.Sprintf("did not answer within %v%s; --timeout allows more", c.Timeout, c.Words[s.Code()])
	case codes.Canceled:
		what, e.err = "was not waited for: interrupted", context.Canceled
	case codes.Unimplemented:
		what = fmt.Sprintf("does not know %s: it is something else than %s, or another version of it", method, c.Kind)
	}
	if info != nil {
		what += " (" + Clean(info.GetReason()) + ")"
	}
	e.text = c.Name + " " + what
	return e
}
