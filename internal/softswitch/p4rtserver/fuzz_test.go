package p4rtserver

import (
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
	return out
}

// FuzzWrite writes arbitrary batches. None may panic; one that fails under an
// atomic mode must leave everything as it was; what is said about each update
// must agree with that; and whatever is read back can be written again.
func FuzzWrite(f *testing.F) {
	seeds, _ := direct(f)
	for _, batch := range [][]string{aBitOfAll, changeAll, append(append([]string{}, aBitOfAll...), changeAll...)} {
		add := func(a p4.WriteRequest_Atomicity, lines ...string) {
			req := &p4.WriteRequest{Atomicity: a, Updates: seeds.updates(lines...)}
			b, err := proto.Marshal(req)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
		for a := range p4.WriteRequest_Atomicity(3) {
			add(a, batch...)
			add(a, append(batch[:len(batch):len(batch)], hopeless)...)
		}
		for _, l := range batch {
			add(1, l, hopeless)
		}
	}
	for _, c := range badUpdates {
		req := &p4.WriteRequest{Atomicity: 1}
		if c.before != "" {
			req.Updates = seeds.updates(c.before)
		}
		req.Updates = append(req.Updates, seeds.updates(c.update)...)
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &p4.WriteRequest{}
		if proto.Unmarshal(b, req) != nil {
			return
		}
		r, s := direct(t)
		if _, err := s.Write(t.Context(), &p4.WriteRequest{DeviceId: device, ElectionId: &p4.Uint128{Low: 1}, Updates: r.updates(aBitOfAll...)}); err != nil {
			t.Fatal(describe(err))
		}
		before := snapshot(t, s)
		req.DeviceId, req.ElectionId, req.Role, req.RoleId = device, &p4.Uint128{Low: 1}, "", 0 //nolint:staticcheck // set so that the batch is looked at
		_, err := s.Write(t.Context(), req)
		if err != nil && status.Code(err) == codes.Unknown {
			if n := len(details(err)); n != len(req.GetUpdates()) {
				t.Fatalf("%d errors for %d updates", n, len(req.GetUpdates()))
			}
		} else if err != nil && status.Code(err) != codes.InvalidArgument {
			t.Fatal(err)
		}
		after := snapshot(t, s)
		if err != nil && req.GetAtomicity() != p4.WriteRequest_CONTINUE_ON_ERROR {
			expectSame(t, before, after)
			for i, e := range details(err) {
				if e.GetCanonicalCode() == 0 {
					t.Errorf("update %d is reported as done", i)
				}
			}
		}
		for _, e := range details(err) {
			if e.GetCanonicalCode() == int32(codes.Internal) {
				t.Errorf("internal error: %v", e)
			}
		}
		// All that is there fits into a new pipeline.
		c := r.config()
		if err := s.setConfig(reconcile, c); err != nil {
			t.Fatal(err)
		}
		for _, e := range after {
			if te := e.GetTableEntry(); te != nil {
				te.TimeSinceLastHit = nil
			}
		}
		carried := snapshot(t, s)
		for _, e := range carried {
			if te := e.GetTableEntry(); te != nil {
				te.TimeSinceLastHit = nil
			}
		}
		expectSame(t, after, carried)
	})
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
		_, err := s.collect(req)
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

// FuzzConfig sets arbitrary P4Infos and programs: a changed copy of one of both.
func FuzzConfig(f *testing.F) {
	r, s := direct(f)
	info, err := proto.Marshal(r.info)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(info, entitiesJSON, 0)
	f.Add(info, []byte("{}"), 1)
	f.Add([]byte{}, entitiesJSON, 2)
	f.Fuzz(func(t *testing.T, info, json []byte, action int) {
		c := r.config()
		if proto.Unmarshal(info, c.P4Info) != nil {
			return
		}
		c.P4DeviceConfig = json
		a := p4.SetForwardingPipelineConfigRequest_Action(uint(action) % 6)
		if err := s.setConfig(a, c); err != nil {
			if codeOf(err) == codes.Internal {
				t.Error(err)
			}
			return
		}
		snapshot(t, s)
		s.packetIn(make([]byte, 100))
		s.saved = nil
	})
}
