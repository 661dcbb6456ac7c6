package switchagent

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

// strangely are options by which a switch answers otherwise than it should, while on is set: it never answers calls of the
// named method, or changes what it sends.
func strangely(on *atomic.Bool, method string, change func(any)) func(*config.Config, *Options) {
	hangs := func(name string) bool { return on.Load() && method != "" && strings.HasSuffix(name, "/"+method) }
	return func(_ *config.Config, o *Options) {
		o.DialSwitch = append(o.DialSwitch,
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, name string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if hangs(name) {
					<-ctx.Done()
					return status.FromContextError(ctx.Err()).Err()
				}
				return invoke(ctx, name, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, name string, to grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				s, err := to(ctx, d, cc, name, opts...)
				return strangeStream{s, func() bool { return hangs(name) }, func(m any) {
					if on.Load() && change != nil {
						change(m)
					}
				}}, err
			}))
	}
}

type strangeStream struct {
	grpc.ClientStream
	hangs  func() bool
	change func(any)
}

func (s strangeStream) RecvMsg(m any) error {
	if s.hangs() {
		<-s.Context().Done()
		return status.FromContextError(s.Context().Err()).Err()
	}
	err := s.ClientStream.RecvMsg(m)
	s.change(m)
	return err
}

// TestStrangeSwitch: a switch that hangs in a call while it answers others, or has no primary however often it is asked, is not waited for
// without end, nor asked without pause; the status says what is wrong, and the agent is ready soon after it is mended.
func TestStrangeSwitch(t *testing.T) {
	var asked atomic.Int64
	orphaned := func(m any) {
		if r, ok := m.(*p4.StreamMessageResponse); ok && r.GetArbitration() != nil {
			asked.Add(1)
			r.GetArbitration().Status = &spb.Status{Code: int32(codes.NotFound)}
		}
	}
	for _, c := range []struct {
		name, method string
		change       func(any)
		says         string
	}{
		{"does not tell its program", "GetForwardingPipelineConfig", nil, "the switch does not answer"},
		{"does not take a program", "SetForwardingPipelineConfig", nil, "the switch does not answer"},
		{"cannot be read", "Read", nil, "the switch does not answer"},
		{"has no primary", "", orphaned, "does not make"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, 1)
				on := &atomic.Bool{}
				on.Store(true)
				a := l.launch(1, strangely(on, c.method, c.change)).agent
				time.Sleep(30 * time.Second)
				if st, err := mcrdmav1.NewSwitchStatusClient(l.conn(1)).GetStatus(t.Context(), &mcrdmav1.GetStatusRequest{}); err != nil ||
					c.method != "" && !st.GetP4Runtime().GetPrimary() {
					t.Errorf("no other agent has the switch: %v, %v", st.GetP4Runtime(), err)
				}
				time.Sleep(31 * time.Second)
				if d, _ := a.driver.current(); d.err == nil || !strings.Contains(d.err.Error(), c.says) {
					t.Errorf("it says %v", d.err)
				}
				if n := asked.Load(); n > 1000 {
					t.Errorf("asked %d times in a minute", n)
				}
				on.Store(false)
				time.Sleep(65 * time.Second)
				if why := a.waitsFor(); why != "" {
					t.Errorf("a minute after the switch was mended: %s", why)
				}
			})
		})
	}
}
