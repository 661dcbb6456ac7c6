package switchagent

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// toStatus is what a switch's agent answers for an error.
func toStatus(name bifurcation.Switch, err error) error { return (&Agent{name: name}).explain(err) }

// TestErrorsToldAndHeard: an error that an agent sends by gRPC is the same error at the
// next one, at the same switch, however many agents it passes.
func TestErrorsToldAndHeard(t *testing.T) {
	for _, r := range reasons {
		cause := fmt.Errorf("%w: some words", r.err)
		err := toStatus("sw3", cause)
		code := status.Code(err)
		for _, peer := range []bifurcation.Switch{"sw3", "sw2", "sw1"} {
			err = toStatus(peer, heard(peer, err))
		}
		text := "switch sw3: " + cause.Error()
		if got := status.Convert(err); got.Code() != code || got.Message() != text {
			t.Errorf("%v: after three agents: %v %q", r.err, got.Code(), got.Message())
		}
		told := heard("sw1", err)
		if where, ok := errors.AsType[*failure.Error](told); !ok || where.Switch != "sw3" {
			t.Errorf("%v: at %v", r.err, where)
		}
		if !errors.Is(told, r.err) || isUnreachable(told) {
			t.Errorf("%v is heard as %v", r.err, told)
		}
	}
	if heard("sw1", nil) != nil {
		t.Error("an error of nothing")
	}
	if err := toStatus("sw1", errors.New("odd")); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "switch sw1: odd") {
		t.Error(err)
	}
}

// FuzzHeardError: whatever another agent answers, the error says which switch, is
// short enough to be passed on, and can be.
func FuzzHeardError(f *testing.F) {
	f.Add(uint32(9), "message", "AMBIGUOUS", "mcrdma", "sw3", "text", []byte{})
	f.Add(uint32(9), "message", "AMBIGUOUS", "elsewhere", "", "", []byte{})
	f.Add(uint32(14), strings.Repeat("x", 5000), "PEER", "mcrdma", strings.Repeat("y", 5000), strings.Repeat("z", 9000), []byte{})
	f.Add(uint32(99), "\xff\xfe", "NOT_READY", "mcrdma", "\n", "\x00", []byte{0xff, 1, 2})
	f.Fuzz(func(t *testing.T, code uint32, message, reason, domain, at, text string, raw []byte) {
		if code%20 == 0 {
			code = 1
		}
		s := status.New(codes.Code(code%20), strings.ToValidUTF8(message, "?"))
		valid := func(s string) string { return strings.ToValidUTF8(s, "?") }
		p := s.Proto()
		if with, err := s.WithDetails(&errdetails.ErrorInfo{Reason: valid(reason), Domain: valid(domain),
			Metadata: map[string]string{"switch": valid(at), "text": valid(text)}}); err == nil {
			p = with.Proto()
		}
		if len(p.Details) > 0 && len(raw) > 0 {
			p.Details[0].Value = raw
		}
		err := heard("sw9", status.ErrorProto(p))
		if err == nil {
			t.Fatal("no error")
		}
		told := toStatus("sw1", err)
		if size := proto.Size(status.Convert(told).Proto()); size > 8<<10 {
			t.Fatalf("%d bytes are told on", size)
		}
		if domain != failure.Domain && !errors.Is(err, ErrPeer) {
			t.Fatalf("%v is none of ours", err)
		}
	})
}

// anAddr, aReceivers and aGroupMessage draw valid content.
func anAddr(t *rapid.T, what string) netip.Addr {
	return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, what)))
}

func drawReceivers(t *rapid.T) []*mcrdmav1.Receiver {
	var out []*mcrdmav1.Receiver
	for range rapid.IntRange(0, 16).Draw(t, "receivers") {
		r := &mcrdmav1.Receiver{Address: anAddr(t, "receiver").String(), Qpn: rapid.Uint32().Draw(t, "qpn")}
		for range rapid.IntRange(0, 3).Draw(t, "regions") {
			u := func(what string) uint64 { return rapid.Uint64().Draw(t, what) }
			r.Regions = append(r.Regions, &mcrdmav1.MemoryRegion{Rkey: uint32(u("rkey")), Va: u("va"), Length: u("length"),
				ReceiverRkey: uint32(u("receiver rkey")), ReceiverVa: u("receiver va")})
		}
		out = append(out, r)
	}
	return out
}

func TestConvertRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := &mcrdmav1.GroupKey{Source: anAddr(t, "source").String(), McId: rapid.Uint32Range(1, 0xffffff).Draw(t, "MC_ID")}
		k, err := groupKeyFrom(key)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(key, groupKeyProto(k), protocmp.Transform()); diff != "" {
			t.Fatal(diff)
		}
		list := drawReceivers(t)
		receivers, err := receiversFrom(list)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(list, receiversProto(receivers), protocmp.Transform()); len(list) > 0 && diff != "" {
			t.Fatal(diff)
		}
		dst := anAddr(t, "destination")
		sk, err := stepKeyFrom(key, dst.String())
		if err != nil || sk != (groups.StepKey{Key: k, Dst: dst}) {
			t.Fatalf("%v, %v", sk, err)
		}
	})
}

// TestBadStateStopsTheAgent: a record in the file itself.
func TestBadStateStopsTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		cfg := l.config(1)
		cfg.Listen = "127.0.0.1:0"
		key := []byte{10, 1, 0, 11, 0x80, 0, 1, 10, 1, 0, 12}
		for name, r := range map[string]store.Edit{
			"key":       {Bucket: bucket, Key: key[:10], Value: []byte("{}")},
			"record":    {Bucket: bucket, Key: key, Value: []byte("[1,2]")},
			"ownership": {Bucket: ownBucket, Key: []byte("ownership"), Value: []byte("{}")},
		} {
			cfg.State = filepath.Join(t.TempDir(), "x.db")
			s, err := store.Open(t.Context(), cfg.State, store.Options{NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Commit(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			a, err := New(t.Context(), cfg, Options{})
			if a != nil || !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), cfg.State) {
				t.Errorf("%s: %v", name, err)
			}
			// What was opened is closed again.
			s, err = store.Open(t.Context(), cfg.State, store.Options{NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
