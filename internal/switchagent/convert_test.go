package switchagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
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
		if err != nil || sk != (stepKey{k, dst}) {
			t.Fatalf("%v, %v", sk, err)
		}
		back, err := parseStepKey(sk.appendTo(nil))
		if err != nil || back != sk {
			t.Fatalf("%v came back as %v, %v", sk, back, err)
		}
	})
}

func TestStepKeysSortAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() stepKey {
			return stepKey{groupKey{anAddr(t, "source"), rapid.Uint32Range(1, 0xffffff).Draw(t, "id")}, anAddr(t, "dst")}
		}
		x, y := draw(), draw()
		if x.source == y.source && x.id == y.id {
			return
		}
		if bytes.Compare(x.appendTo(nil), y.appendTo(nil)) != compareGroups(x.groupKey, y.groupKey) {
			t.Fatalf("%v and %v", x, y)
		}
	})
}

func FuzzParseStepKey(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{10, 0, 0, 1, 0x80, 0, 1, 10, 0, 0, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parseStepKey(b)
		if err == nil && (!bytes.Equal(k.appendTo(nil), b) || !k.source.Is4() || !k.dst.Is4()) {
			t.Fatalf("%x is %v", b, k)
		}
	})
}

// A memStore holds records that tests make up.
type memStore struct {
	records [][2][]byte
}

func (m *memStore) Boot() uint64                                { return 1 }
func (m *memStore) Commit(context.Context, ...store.Edit) error { return nil }
func (m *memStore) Failed() error                               { return nil }
func (m *memStore) Close() error                                { return nil }

func (m *memStore) Load(string) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		for _, r := range m.records {
			if !yield(r[0], r[1]) {
				return
			}
		}
	}
}

// bare is an agent that has only its state.
func bare(s Store) *Agent {
	c := &config.Config{Name: "sw1", State: "/var/lib/x.db", Leases: config.Leases{Group: time.Minute, Branch: time.Minute}}
	return &Agent{cfg: c, name: "sw1", store: s, steps: map[stepKey]*step{}, groups: map[groupKey]*group{},
		slots: newSlots(s), log: slog.New(slog.DiscardHandler),
		groupNumbers: newNumbers("groups", 65535), preNumbers: newNumbers("replication groups", 65535)}
}

var aStepKey = stepKey{groupKey{hostAddr(1, 1), 0x800001}, hostAddr(1, 2)}

// goodRecords are of a group, and of a step that others hold.
func goodRecords(t testing.TB) (root, held []byte) {
	receivers, err := receiversFrom([]*mcrdmav1.Receiver{aReceiver(hostAddr(1, 2), 1), aReceiver(hostAddr(2, 1), 2)})
	if err != nil {
		t.Fatal(err)
	}
	sp := spec{Generation: 3, Receivers: receivers}
	root = store.Encode(stepRecord{Spec: sp, Group: &groupRecord{SenderQPN: 5, InitialPSN: 6, CNPGap: time.Millisecond, Lease: time.Minute}})
	held = store.Encode(stepRecord{Spec: sp, Holders: map[bifurcation.Switch]holder{"sw2": {spec: spec{Generation: 3, Via: []bifurcation.Switch{"sw2"}}, Sequence: 9},
		"sw3": {spec: spec{Generation: 2, Receivers: receivers[:1]}, Sequence: 8}}})
	return root, held
}

// sound fails if what was loaded could not be put on a switch, or does not belong
// together.
func sound(t testing.TB, a *Agent) {
	t.Helper()
	var want switchspec.State
	for k, s := range a.steps {
		g := bifurcation.Group{Source: k.source, ID: k.id, Address: k.dst, Receivers: s.spec.Receivers}
		if err := g.Validate(); err != nil {
			t.Errorf("step %v: %v", k, err)
		}
		if (s.group == nil) == (len(s.holders) == 0) {
			t.Errorf("step %v is for a group %v and %d holders", k, s.group, len(s.holders))
		}
		if s.group != nil && (a.groups[k.groupKey] != s.group || s.group.step != s) {
			t.Errorf("step %v: its group is another", k)
		}
		for _, h := range s.holders {
			g.Receivers = h.Receivers
			if err := g.Validate(); err != nil {
				t.Errorf("step %v: holder: %v", k, err)
			}
		}
	}
	for k, g := range a.groups {
		if err := g.Validate(); err != nil {
			t.Errorf("group %v: %v", k, err)
		}
	}
	if _, err := a.adoptMerging(&switchspec.State{}, &want); err != nil {
		t.Error(err)
	}
	if len(a.slots.used) != len(a.groups) {
		t.Errorf("%d slots for %d groups", len(a.slots.used), len(a.groups))
	}
}

func FuzzRecord(f *testing.F) {
	root, held := goodRecords(f)
	f.Add(aStepKey.appendTo(nil), root)
	f.Add(aStepKey.appendTo(nil), held)
	f.Add([]byte{1}, []byte("{}"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		a := bare(&memStore{records: [][2][]byte{{key, value}}})
		err := a.load()
		if err == nil {
			sound(t, a)
			return
		}
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), a.cfg.State) || !strings.Contains(err.Error(), "move the file away") {
			t.Fatal(err)
		}
	})
}

// badRecords are records that no agent can have stored, each changed from a good one.
func badRecords(t testing.TB) map[string][2][]byte {
	root, held := goodRecords(t)
	key := aStepKey.appendTo(nil)
	edit := func(b []byte, f func(r *stepRecord)) []byte {
		var r stepRecord
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		f(&r)
		return store.Encode(r)
	}
	many := func(r *stepRecord) {
		for i := range 17 {
			r.Spec.Receivers = append(r.Spec.Receivers, bifurcation.Receiver{Addr: hostAddr(3, i)})
		}
	}
	return map[string][2][]byte{
		"short key":           {key[:10], root},
		"long key":            {append(key[:11:11], 0), root},
		"no JSON":             {key, []byte("\x00\x01")},
		"half JSON":           {key, root[:len(root)/2]},
		"other JSON":          {key, []byte(`[1,2]`)},
		"null":                {key, []byte(`null`)},
		"unknown field":       {key, append(slices.Clone(root[:len(root)-1]), `,"Future":1}`...)},
		"two values":          {key, append(slices.Clone(root), root...)},
		"of neither":          {key, edit(root, func(r *stepRecord) { r.Group = nil })},
		"of both":             {key, edit(held, func(r *stepRecord) { r.Group = &groupRecord{Lease: time.Minute} })},
		"no receivers":        {key, edit(root, func(r *stepRecord) { r.Spec.Receivers = nil })},
		"17 receivers":        {key, edit(root, many)},
		"two of one":          {key, edit(root, func(r *stepRecord) { r.Spec.Receivers[1] = r.Spec.Receivers[0] })},
		"IPv6 receiver":       {key, edit(root, func(r *stepRecord) { r.Spec.Receivers[1].Addr = netip.IPv6Loopback() })},
		"no address":          {key, edit(root, func(r *stepRecord) { r.Spec.Receivers[1].Addr = netip.Addr{} })},
		"PSN":                 {key, edit(root, func(r *stepRecord) { r.Group.InitialPSN = 1 << 24 })},
		"negative lease":      {key, edit(root, func(r *stepRecord) { r.Group.Lease = -1 })},
		"CNP gap of a year":   {key, edit(root, func(r *stepRecord) { r.Group.CNPGap = 365 * 24 * time.Hour })},
		"holder's receivers":  {key, edit(held, func(r *stepRecord) { r.Holders["sw3"].Receivers[0].Addr = netip.IPv6Loopback() })},
		"MC_ID 0":             {stepKey{groupKey{hostAddr(1, 1), 0}, hostAddr(1, 2)}.appendTo(nil), root},
		"sender receives":     {stepKey{groupKey{hostAddr(2, 1), 1}, hostAddr(1, 2)}.appendTo(nil), root},
		"sender is the group": {stepKey{groupKey{hostAddr(1, 1), 1}, hostAddr(1, 1)}.appendTo(nil), root},
	}
}

func TestBadRecordsAreRefused(t *testing.T) {
	for name, r := range badRecords(t) {
		a := bare(&memStore{records: [][2][]byte{r}})
		if err := a.load(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), a.cfg.State) {
			t.Errorf("%s: %v", name, err)
		}
	}
	root, held := goodRecords(t)
	other := stepKey{aStepKey.groupKey, hostAddr(2, 1)}.appendTo(nil)
	a := bare(&memStore{records: [][2][]byte{{aStepKey.appendTo(nil), root}, {other, root}}})
	if err := a.load(); !errors.Is(err, ErrConfig) {
		t.Errorf("one group at two addresses: %v", err)
	}
	a = bare(&memStore{records: [][2][]byte{{aStepKey.appendTo(nil), root},
		{stepKey{groupKey{hostAddr(1, 3), 1}, hostAddr(1, 2)}.appendTo(nil), held}}})
	if err := a.load(); err != nil {
		t.Fatal(err)
	}
	sound(t, a)
	s := a.steps[stepKey{groupKey{hostAddr(1, 3), 1}, hostAddr(1, 2)}]
	if len(s.holders["sw2"].Receivers) != 2 || len(s.holders["sw3"].Receivers) != 1 {
		t.Errorf("%+v", s.holders)
	}
}

// TestBadStateStopsTheAgent: a record in the file itself.
func TestBadStateStopsTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		cfg := l.config(1)
		cfg.Listen = "127.0.0.1:0"
		for name, r := range badRecords(t) {
			cfg.State = filepath.Join(t.TempDir(), "x.db")
			s, err := store.Open(t.Context(), cfg.State, store.Options{NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Commit(t.Context(), store.Edit{Bucket: bucket, Key: r[0], Value: r[1]}); err != nil {
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
