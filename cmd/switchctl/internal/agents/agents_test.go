package agents

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseAddress(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":          " 192.0.2.1:9560",
		"192.0.2.1:5":        " 192.0.2.1:5",
		"torA=192.0.2.1":     "torA 192.0.2.1:9560",
		"torA=sw.example:5":  "torA sw.example:5",
		"::1":                " [::1]:9560",
		"[::1]":              " [::1]:9560",
		"[2001:db8::1]:7":    " [2001:db8::1]:7",
		"localhost":          " localhost:9560",
		"":                   "is not a host",
		":5":                 "is not a host",
		"=a:5":               "no switch before",
		"a:b:5":              "too many colons",
		"a:x":                `the port "x"`,
		"a:0":                `the port "0"`,
		"a:65536":            `the port "65536"`,
		"a:-1":               `the port "-1"`,
		"unix:///tmp/x":      "the port",
		"passthrough:///a:5": "too many colons",
		"/tmp/x:5":           "is not a host",
		"a b:5":              "is not a host",
	} {
		a, err := ParseAddress(in)
		got := a.Switch + " " + a.HostPort
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != want || !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

// chain is an agent that names endless peers, all of them itself.
type chain struct {
	mcrdmav1.UnimplementedSwitchStatusServer
	self  func(n int64) string
	calls atomic.Int64
	fail  error
	start time.Time
}

func (c *chain) GetStatus(context.Context, *mcrdmav1.GetStatusRequest) (*mcrdmav1.GetStatusResponse, error) {
	if c.fail != nil {
		return nil, c.fail
	}
	n := c.calls.Add(1)
	out := &mcrdmav1.GetStatusResponse{Name: "liar", Started: timestamppb.New(c.start)}
	if c.start.IsZero() { // always another one
		out.Started = timestamppb.New(time.Unix(n, 0))
	}
	for i := range int64(3) {
		out.Peers = append(out.Peers, &mcrdmav1.PeerStatus{Name: fmt.Sprint("peer", n, i), Agent: c.self(3*n + i)})
	}
	out.Peers = append(out.Peers, &mcrdmav1.PeerStatus{Name: "not programmable"}, &mcrdmav1.PeerStatus{Name: "broken", Agent: "a:b:c"})
	return out, nil
}

// serve listens on all of 127/8, so that one server has many addresses.
func (c *chain) serve(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	c.self = func(n int64) string { return fmt.Sprintf("127.1.%d.%d:%d", n>>8&255, n&255, port) }
	g := grpc.NewServer()
	mcrdmav1.RegisterSwitchStatusServer(g, c)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestDiscoverEnds: an agent that names endless others is not followed forever.
func TestDiscoverEnds(t *testing.T) {
	c := &chain{}
	c.serve(t)
	f := NewFleet(Options{Timeout: 5 * time.Second})
	defer f.Close()
	first := Address{HostPort: c.self(0)}
	found, complete, err := f.Discover(t.Context(), []Address{first}, true, 20)
	if err != nil || complete || len(found) != 20 {
		t.Errorf("%d found, %v, %v", len(found), complete, err)
	}
	found, complete, err = f.Discover(t.Context(), []Address{first}, false, 20)
	if err != nil || !complete || len(found) != 1 {
		t.Errorf("%d found, %v, %v", len(found), complete, err)
	}
}

// TestDiscoverOnce: one agent at many addresses is one.
func TestDiscoverOnce(t *testing.T) {
	c := &chain{start: time.Unix(5, 0)}
	c.serve(t)
	f := NewFleet(Options{Timeout: 5 * time.Second})
	defer f.Close()
	found, complete, err := f.Discover(t.Context(), []Address{{HostPort: c.self(0)}, {HostPort: c.self(1)}}, true, 50)
	if err != nil || !complete || len(found) != 1 || found[0].Name() != "liar" {
		t.Errorf("%d found, %v, %v", len(found), complete, err)
	}
}

// TestExplain: codes of gRPC become advice.
func TestExplain(t *testing.T) {
	limit, err := status.New(codes.ResourceExhausted, "\x1bfull").WithDetails(&errdetails.ErrorInfo{Domain: "mcrdma", Reason: "LIMIT"})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := status.New(codes.Internal, "odd").WithDetails(&errdetails.ErrorInfo{Domain: "other", Reason: "X"})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		err         error
		want        string
		unreachable bool
	}{
		{status.Error(codes.Unimplemented, ""), "does not know /mcrdma.v1.SwitchStatus/GetStatus: it is something else than a switch agent", false},
		{status.Error(codes.PermissionDenied, "only admins"), "refuses; the certificate of an administrator (mcrdma:admin:NAME) is needed: only admins", false},
		{status.Error(codes.Unauthenticated, "who"), "does not accept who calls: who", false},
		{limit.Err(), "is overloaded: \uFFFDfull (LIMIT)", false},
		{foreign.Err(), "answers: odd", false},
		{status.Error(codes.Unavailable, "the agent is ending"), "cannot be reached: the agent is ending", true},
	} {
		c := &chain{fail: x.err}
		c.serve(t)
		f := NewFleet(Options{Timeout: 5 * time.Second})
		found, _, err := f.Discover(t.Context(), []Address{{HostPort: c.self(0)}}, true, 5)
		if err != nil || len(found) != 1 || found[0].Err == nil || !strings.Contains(found[0].Err.Error(), x.want) ||
			(cli.CodeOf(found[0].Err) == codes.Unavailable) != x.unreachable || strings.Contains(found[0].Err.Error(), "(X)") {
			t.Errorf("%v, %v; want %s", found[0].Err, err, x.want)
		}
		f.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := NewFleet(Options{Timeout: 5 * time.Second})
	defer f.Close()
	found, _, _ := f.Discover(ctx, []Address{{HostPort: "127.0.0.1:1"}}, true, 5)
	if len(found) != 1 || !strings.Contains(found[0].Err.Error(), "interrupted") {
		t.Errorf("%v", found)
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"torA=192.0.2.1:5", "[::1]:9", "::1", "a", "=:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err != nil {
			return
		}
		text := a.HostPort
		if a.Switch != "" {
			text = a.Switch + "=" + text
		}
		if again, err := ParseAddress(text); err != nil || again != a {
			t.Errorf("%q: %+v, then %+v, %v", s, a, again, err)
		}
	})
}
