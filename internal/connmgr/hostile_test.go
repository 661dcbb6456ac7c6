package connmgr

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
)

var hostileSeed = flag.Uint64("connmgr.seed", 0, "seed of hostile requests; 0: 1, or those up to 9 with MCRDMA_LONG=1")

// scramble fills a message with whatever fits its fields' types, now and then with
// something that makes sense here.
func scramble(rnd *rand.Rand, m protoreflect.Message, known []string, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if rnd.IntN(4) == 0 || depth > 4 {
			continue
		}
		switch {
		case f.IsMap():
		case f.IsList():
			l := m.Mutable(f).List()
			for range []int{0, 1, 2, 3, 17, 300}[rnd.IntN(6)] {
				if f.Kind() == protoreflect.MessageKind {
					e := l.NewElement()
					scramble(rnd, e.Message(), known, depth+1)
					l.Append(e)
				} else {
					l.Append(scalar(rnd, f, known))
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			scramble(rnd, m.Mutable(f).Message(), known, depth+1)
		default:
			m.Set(f, scalar(rnd, f, known))
		}
	}
}

func scalar(rnd *rand.Rand, f protoreflect.FieldDescriptor, known []string) protoreflect.Value {
	n := []uint64{0, 1, 2, 5, 0x800000, 0xffffff, 1 << 24, 1<<32 - 1, 1 << 40, 1 << 63, 1<<64 - 1, 1024, rnd.Uint64()}[rnd.IntN(13)]
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n&1 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(n)))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(n)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(known[rnd.IntN(len(known))])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	}
	return f.Default()
}

// TestHostile: whatever is asked for in whatever order, there is no internal error,
// what cannot be meant is counted, and a good application's group lives on.
func TestHostile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seeds := []uint64{1}
		switch {
		case *hostileSeed != 0:
			seeds = []uint64{*hostileSeed}
		case os.Getenv("MCRDMA_LONG") != "":
			seeds = []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}
		}
		for _, seed := range seeds {
			r := newRig(t, 3, withSwitch)
			r.receivers()
			good := r.host(1).app("")
			f := good.create(good.request()).GetFormation()
			bad := r.host(1).app("")
			bad2 := r.host(2).app("") // where the receivers are
			rnd := rand.New(rand.NewPCG(seed, 1))
			known := []string{"", "store", "h2", "h3", "127.9.0.1", "127.9.0.2", "127.9.0.9", "::1", "0.0.0.0", "127.0.0.1:1", "rdma", "tcp", "auto", "hybrid", "chain",
				"\x00", strings.Repeat("long", 2000), bad.token, bad2.token, "999.1.1.1"}
			calls := map[string]struct {
				req  proto.Message
				call func(context.Context, *app, proto.Message) error
			}{
				"Listen": {&mcrdmav1.ListenRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.Listen(ctx, q.(*mcrdmav1.ListenRequest)))
				}},
				"Unlisten": {&mcrdmav1.UnlistenRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.Unlisten(ctx, q.(*mcrdmav1.UnlistenRequest)))
				}},
				"AnswerAttach": {&mcrdmav1.AnswerAttachRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.AnswerAttach(ctx, q.(*mcrdmav1.AnswerAttachRequest)))
				}},
				"Leave": {&mcrdmav1.LeaveRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.Leave(ctx, q.(*mcrdmav1.LeaveRequest)))
				}},
				"CreateGroup": {&mcrdmav1.CreateGroupRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.CreateGroup(ctx, q.(*mcrdmav1.CreateGroupRequest)))
				}},
				"ReformGroup": {&mcrdmav1.ReformGroupRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.ReformGroup(ctx, q.(*mcrdmav1.ReformGroupRequest)))
				}},
				"ReportStall": {&mcrdmav1.ReportStallRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.ReportStall(ctx, q.(*mcrdmav1.ReportStallRequest)))
				}},
				"CloseGroup": {&mcrdmav1.CloseGroupRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.CloseGroup(ctx, q.(*mcrdmav1.CloseGroupRequest)))
				}},
				"GetGroup": {&mcrdmav1.GetGroupRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.GetGroup(ctx, q.(*mcrdmav1.GetGroupRequest)))
				}},
				"ResumeGroup": {&mcrdmav1.ResumeGroupRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.ResumeGroup(ctx, q.(*mcrdmav1.ResumeGroupRequest)))
				}},
				"ResumeMember": {&mcrdmav1.ResumeMemberRequest{}, func(ctx context.Context, a *app, q proto.Message) error {
					return second(a.rpc.ResumeMember(ctx, q.(*mcrdmav1.ResumeMemberRequest)))
				}},
			}
			hosts := r.host(2).caller(identity.Files{})
			hostCalls := map[string]struct {
				req  proto.Message
				call func(context.Context, proto.Message) error
			}{
				"Prepare": {&mcrdmav1.PrepareRequest{}, func(ctx context.Context, q proto.Message) error {
					return second(hosts.Prepare(ctx, q.(*mcrdmav1.PrepareRequest)))
				}},
				"Commit": {&mcrdmav1.CommitRequest{}, func(ctx context.Context, q proto.Message) error {
					return second(hosts.Commit(ctx, q.(*mcrdmav1.CommitRequest)))
				}},
				"Drop": {&mcrdmav1.DropRequest{}, func(ctx context.Context, q proto.Message) error {
					return second(hosts.Drop(ctx, q.(*mcrdmav1.DropRequest)))
				}},
				"Beat": {&mcrdmav1.BeatRequest{}, func(ctx context.Context, q proto.Message) error {
					return second(hosts.Beat(ctx, q.(*mcrdmav1.BeatRequest)))
				}},
			}
			check := func(method string, req proto.Message, err error) {
				t.Helper()
				if c := status.Code(err); c == codes.Internal && !strings.Contains(err.Error(), "invalid UTF-8") || c == codes.Unknown {
					t.Fatalf("-connmgr.seed=%d: %s(%v): %v", seed, method, req, err)
				}
			}
			for range 150 {
				for method, c := range calls {
					req := proto.Clone(c.req)
					scramble(rnd, req.ProtoReflect(), known, 0)
					a := []*app{bad, bad2}[rnd.IntN(2)]
					if _, ok := req.(*mcrdmav1.GetGroupRequest); !ok && rnd.IntN(2) == 0 {
						set := req.ProtoReflect()
						set.Set(set.Descriptor().Fields().ByName("token"), protoreflect.ValueOfString(a.token))
					}
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					check(method, req, c.call(ctx, a, req))
					cancel()
				}
				for method, c := range hostCalls {
					req := proto.Clone(c.req)
					scramble(rnd, req.ProtoReflect(), known, 0)
					if d, ok := req.(*mcrdmav1.DropRequest); ok && d.GetGroup().GetNumber() == f.GetGroup().GetNumber() {
						continue // in plain text, any caller on loopback can be any host
					}
					if c, ok := req.(*mcrdmav1.CommitRequest); ok && c.GetFormation().GetGroup().GetNumber() == f.GetGroup().GetNumber() {
						continue
					}
					if p, ok := req.(*mcrdmav1.PrepareRequest); ok && p.GetGroup().GetNumber() == f.GetGroup().GetNumber() {
						continue
					}
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					check(method, req, c.call(ctx, req))
					cancel()
				}
			}
			r.pass(time.Second)
			if got := r.host(1).members(f.GetGroup()); got != "2 3" {
				t.Errorf("-connmgr.seed=%d: members %q", seed, got)
			}
			for _, h := range r.hosts[:2] {
				if h.refused("INVALID") == 0 {
					t.Errorf("-connmgr.seed=%d: %s has counted no invalid request", seed, h.name)
				}
			}
			good.closeGroup(f.GetGroup())
			bad.end()
			bad2.end()
			r.pass(2 * time.Hour) // leases that were asked for
			r.pass(200 * time.Millisecond)
			r.wantNothing()
			r.close()
		}
	})
}
