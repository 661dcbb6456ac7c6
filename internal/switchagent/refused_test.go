package switchagent

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// refuseNext makes the switch refuse the next write after the flag is set.
func refuseNext(armed *atomic.Bool) func(*config.Config, *Options) {
	return func(_ *config.Config, o *Options) {
		o.DialSwitch = append(o.DialSwitch, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				w, ok := req.(*p4.WriteRequest)
				if !ok || !armed.CompareAndSwap(true, false) {
					return invoke(ctx, method, req, reply, cc, opts...)
				}
				var details []protoadapt.MessageV1
				for range w.GetUpdates() {
					details = append(details, protoadapt.MessageV1Of(&p4.Error{CanonicalCode: int32(codes.InvalidArgument), Message: "not today"}))
				}
				s, err := status.New(codes.Unknown, "refused").WithDetails(details...)
				if err != nil {
					return err
				}
				return s.Err()
			}))
	}
}

// TestRefusedLeaving: the switch refuses that a receiver leaves. The receiver stays a
// member, also of what the switch gets when it has been restarted.
func TestRefusedLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		var refuse atomic.Bool
		l.start(1, refuseNext(&refuse))
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(1, 3), hostAddr(1, 4))
		l.install(1, g)
		want := l.canonical()
		refuse.Store(true)
		_, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, Receivers: g.Receivers[:2]})
		refused{codes.Internal, "SWITCH", "sw1", []string{"not today"}}.check(t, "update", err)
		n := l.nodes[0]
		n.sw.close()
		n.sw, _ = l.startSwitch(n.p4)
		eventually(t, "the switch merges again", func() bool { s, err := l.read(1); return err == nil && len(multicast(s)) > 0 && l.consistent() == "" })
		if have := l.canonical(); !slices.Equal(have, want) {
			t.Errorf("have %v, want %v", have, want)
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}

// TestMergingThatIsMadeAnew: where the receivers are in another order, merging begins
// anew without a PSN, and waits until all members have answered. With new receivers it
// begins at the PSN that is given.
func TestMergingThatIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(1, 3), hostAddr(1, 4))
		l.install(1, g)
		psn, three := uint32(77), g.Receivers
		used := map[uint16]bool{}
		for _, x := range []struct {
			name  string
			list  []*mcrdmav1.Receiver
			psn   *uint32
			learn bool
			at    uint32
		}{
			{"as installed", nil, nil, false, 0xfffff0},
			{"in another order", []*mcrdmav1.Receiver{three[2], three[0], three[1]}, nil, true, 0xfffff0},
			{"with another one", append(slices.Clone(three), aReceiver(hostAddr(1, 5), 0x300)), &psn, false, psn},
		} {
			if x.list != nil {
				if _, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, Receivers: x.list, InitialPsn: x.psn}); err != nil {
					t.Fatalf("%s: %v", x.name, err)
				}
			}
			for m := range switchspec.Of[switchspec.MergeGroup](l.state(1)) {
				if m.Learn != x.learn || m.InitialPSN != x.at || used[m.Slot] {
					t.Errorf("%s: %v", x.name, m)
				}
				used[m.Slot] = true
			}
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}
