package p4rtserver

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// direct is a server without gRPC, with a pipeline and a primary (election id 1).
func direct(t testing.TB) (*rig, *Server) {
	t.Helper()
	r := &rig{t: t, bench: &bench{}, info: parseInfo(t, entitiesInfo)}
	r.ids = idsOf(r.info)
	s := New(r.bench, Options{DeviceID: device})
	t.Cleanup(s.Close)
	st := &stream{ctl: make(chan *p4.StreamMessageResponse, 10), data: make(chan *p4.StreamMessageResponse, 10), end: make(chan error, 1)}
	if err := s.arbitrate(st, arbitration(1)); err != nil {
		t.Fatal(err)
	}
	r.server = s
	if err := s.setConfig(commitNew, r.config()); err != nil {
		t.Fatal(err)
	}
	return r, s
}

// snapshot reads everything without gRPC.
func snapshot(t testing.TB, s *Server) []*p4.Entity {
	t.Helper()
	requests := everything()
	for _, q := range requests {
		if te := q.GetTableEntry(); te != nil && !te.GetIsDefaultAction() {
			te.TimeSinceLastHit = &p4.TableEntry_IdleTimeout{}
		}
	}
	out, err := s.collect(&p4.ReadRequest{DeviceId: device, Entities: requests})
	if err != nil {
		t.Fatal(describe(err))
	}
	return slices.Collect(out.all())
}

// lines are all updates of the other tests, good and bad.
func lines() []string {
	all := append(append([]string{}, aBitOfAll...), changeAll...)
	for _, c := range badUpdates {
		if c.before != "" {
			all = append(all, c.before)
		}
		all = append(all, c.update)
	}
	return all
}

// FuzzWrite writes batches made of the updates of the other tests, changed at
// random places. None may panic; one that fails under an atomic mode must leave
// everything as it was; what is said about each update must agree with that; and
// what there is then must fit into a new pipeline.
func FuzzWrite(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed%5), uint8(seed%4), uint8(1+seed%9))
	}
	f.Fuzz(func(t *testing.T, seed uint64, edits, atomicity, size uint8) {
		r, s := direct(t)
		m := &mutator{Rand: rand.New(rand.NewPCG(seed, 0)), ids: slices.Sorted(maps.Values(r.ids))}
		first := &p4.WriteRequest{DeviceId: device, ElectionId: &p4.Uint128{Low: 1}, Updates: r.updates(aBitOfAll...)}
		if _, err := s.Write(t.Context(), first); err != nil {
			t.Fatal(describe(err))
		}
		before := snapshot(t, s)
		req := &p4.WriteRequest{}
		for range size % 32 {
			req.Updates = append(req.Updates, r.updates(lines()[m.IntN(len(lines()))])...)
		}
		m.mutate(req, int(edits%32))
		req.DeviceId, req.ElectionId, req.Role, req.RoleId = device, &p4.Uint128{Low: 1}, "", 0 //nolint:staticcheck // set so that the batch is looked at
		req.Atomicity = p4.WriteRequest_Atomicity(atomicity % 4)
		_, err := s.Write(t.Context(), req)
		after := snapshot(t, s)
		checkWrite(t, req, err, before, after)
		// All that is there fits into a new pipeline.
		if err := s.setConfig(reconcile, r.config()); err != nil {
			t.Fatal(err)
		}
		carried := snapshot(t, s)
		expectSame(t, timeless(after), timeless(carried))
	})
}

func checkWrite(t *testing.T, req *p4.WriteRequest, err error, before, after []*p4.Entity) {
	t.Helper()
	switch status.Code(err) {
	case codes.OK:
		return
	case codes.InvalidArgument:
		if req.GetAtomicity() != 3 {
			t.Fatal(err)
		}
	case codes.Unknown:
		if n := len(details(err)); n != len(req.GetUpdates()) {
			t.Fatalf("%d errors for %d updates", n, len(req.GetUpdates()))
		}
	default:
		t.Fatal(describe(err))
	}
	for i, e := range details(err) {
		switch {
		case e.GetCanonicalCode() == int32(codes.Internal):
			t.Errorf("internal error: %v\n%v", e, req.GetUpdates()[i])
		case e.GetCanonicalCode() == 0 && req.GetAtomicity() != p4.WriteRequest_CONTINUE_ON_ERROR:
			t.Errorf("update %d is reported as done", i)
		}
	}
	if req.GetAtomicity() != p4.WriteRequest_CONTINUE_ON_ERROR {
		expectSame(t, before, after)
	}
}

// timeless takes the times since the last hit out.
func timeless(list []*p4.Entity) []*p4.Entity {
	for _, e := range list {
		if te := e.GetTableEntry(); te != nil {
			te.TimeSinceLastHit = nil
		}
	}
	return list
}

// FuzzRead reads arbitrary requests.
func FuzzRead(f *testing.F) {
	seeds, _ := direct(f)
	all := everything()
	for _, l := range append(append([]string{}, aBitOfAll...), changeAll...) {
		all = append(all, seeds.updates(l)[0].GetEntity())
	}
	for _, e := range all {
		b, err := proto.Marshal(&p4.ReadRequest{Entities: []*p4.Entity{e}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	r, s := direct(f)
	if _, err := s.Write(f.Context(), &p4.WriteRequest{DeviceId: device, ElectionId: &p4.Uint128{Low: 1}, Updates: r.updates(aBitOfAll...)}); err != nil {
		f.Fatal(describe(err))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &p4.ReadRequest{}
		if proto.Unmarshal(b, req) != nil {
			return
		}
		req.DeviceId, req.Role = device, ""
		out, err := s.collect(req)
		for e := range out.all() {
			if e.GetEntity() == nil {
				t.Fatal("an empty entity")
			}
		}
		if err == nil {
			return
		}
		if n := len(details(err)); status.Code(err) != codes.Unknown || n != len(req.GetEntities()) {
			t.Fatalf("%v: %d errors for %d requests", err, n, len(req.GetEntities()))
		}
		for _, e := range details(err) {
			if e.GetCanonicalCode() == int32(codes.Internal) {
				t.Errorf("internal error: %v", e)
			}
		}
	})
}

// FuzzConfig sets P4Infos and programs that are changed at random places.
func FuzzConfig(f *testing.F) {
	r, s := direct(f)
	if err := s.setConfig(commitNew, r.config()); err != nil {
		f.Fatal(err)
	}
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed%4), uint8(seed/4%3), uint8(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, edits, cuts, action uint8) {
		m := &mutator{Rand: rand.New(rand.NewPCG(seed, 0)), ids: slices.Sorted(maps.Values(r.ids))}
		c := r.config()
		m.mutate(c.P4Info, int(edits%16))
		c.P4DeviceConfig = slices.Clone(c.P4DeviceConfig)
		for range cuts % 4 {
			c.P4DeviceConfig = m.cut(c.P4DeviceConfig)
		}
		a := p4.SetForwardingPipelineConfigRequest_Action(action % 7)
		if err := s.setConfig(a, c); err != nil {
			if code := codeOf(err); code != codes.InvalidArgument && code != codes.NotFound {
				t.Error(code, err)
			}
			return
		}
		// Whatever was accepted works.
		snapshot(t, s)
		s.packetIn(make([]byte, 2000))
		s.saved = nil
	})
}
