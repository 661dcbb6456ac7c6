package p4rtserver

import (
	"fmt"
	"slices"
	"testing"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestFirstControllerIsPrimary(t *testing.T) {
	r := newRig(t, Options{})
	s := r.open(5)
	if m := s.expectArbitration(codes.OK, 5); m.GetRole() != nil {
		t.Errorf("role %v in the default role", m.GetRole())
	}
}

func TestHigherElectionTakesOver(t *testing.T) {
	r := newRig(t, Options{})
	a := r.open(5)
	a.expectArbitration(codes.OK, 5)
	b := r.open(3)
	b.expectArbitration(codes.AlreadyExists, 5)
	a.expectSilence() // nothing changed for it

	b.arbitrate(9)
	a.expectArbitration(codes.AlreadyExists, 9)
	b.expectArbitration(codes.OK, 9)
	expectError(t, r.tryWrite(0), codes.PermissionDenied, "election id 1 is not that of the primary of the default role, which is 9")
}

// After the primary has gone there is none, even if a backup is there, until a
// controller arbitrates with an id at least as high as any before.
func TestNoPrimaryAfterDisconnect(t *testing.T) {
	r := newRig(t, Options{})
	a, b := r.open(5), r.channel()
	a.expectArbitration(codes.OK, 5)
	b.arbitrate(3)
	b.expectArbitration(codes.AlreadyExists, 5)
	a.close()
	b.expectArbitration(codes.NotFound, 5)
	expectError(t, r.tryWrite(0), codes.PermissionDenied, "the default role has no primary now")

	b.arbitrate(4) // still lower than 5
	b.expectArbitration(codes.NotFound, 5)
	c := r.open(5) // the old id again is enough
	b.expectArbitration(codes.AlreadyExists, 5)
	c.expectArbitration(codes.OK, 5)
}

func TestPrimaryHalfCloses(t *testing.T) {
	r := newRig(t, Options{})
	a, b := r.open(5), r.channel()
	a.expectArbitration(codes.OK, 5)
	b.arbitrate(3)
	b.expectArbitration(codes.AlreadyExists, 5)
	if err := a.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	b.expectArbitration(codes.NotFound, 5)
	for range a.in {
	}
	if a.err.Error() != "EOF" {
		t.Errorf("the stream ended with %v, want a clean end", a.err)
	}
}

func TestPrimaryStepsDown(t *testing.T) {
	r := newRig(t, Options{})
	a, b := r.open(5), r.channel()
	a.expectArbitration(codes.OK, 5)
	b.arbitrate(3)
	b.expectArbitration(codes.AlreadyExists, 5)
	a.arbitrate(4)
	a.expectArbitration(codes.NotFound, 5)
	b.expectArbitration(codes.NotFound, 5)

	a.arbitrate(6)
	b.expectArbitration(codes.AlreadyExists, 6)
	a.expectArbitration(codes.OK, 6)
	a.update(&p4.MasterArbitrationUpdate{DeviceId: device}) // no id: lower than any
	a.expectArbitration(codes.NotFound, 6)
	b.expectArbitration(codes.NotFound, 6)
}

func TestPrimaryArbitratesAgain(t *testing.T) {
	r := newRig(t, Options{})
	a := r.open(5)
	a.expectArbitration(codes.OK, 5)
	b := r.open(1)
	b.expectArbitration(codes.AlreadyExists, 5)
	a.arbitrate(5)
	b.expectArbitration(codes.AlreadyExists, 5)
	a.expectArbitration(codes.OK, 5)
}

func TestUnsetElectionNeverWins(t *testing.T) {
	r := newRig(t, Options{})
	a := r.channel()
	a.update(&p4.MasterArbitrationUpdate{DeviceId: device})
	if m := a.expectArbitration(codes.NotFound, 0); m.GetElectionId() != nil {
		t.Errorf("election id %v before there was a primary", m.GetElectionId())
	}
	b := r.channel() // and two of them do not clash
	b.update(&p4.MasterArbitrationUpdate{DeviceId: device})
	b.expectArbitration(codes.NotFound, 0)
	expectError(t, r.tryWrite(0), codes.PermissionDenied, "no primary")

	c := r.open(0) // 0 is a number, not the absence of one
	a.expectArbitration(codes.AlreadyExists, 0)
	b.expectArbitration(codes.AlreadyExists, 0)
	if m := c.expectArbitration(codes.OK, 0); m.GetElectionId() == nil {
		t.Error("no election id although there is a primary")
	}
	_, err := r.client.Write(t.Context(), &p4.WriteRequest{DeviceId: device})
	expectError(t, err, codes.PermissionDenied, "no election id is given; the primary of the default role has 0")
	_, err = r.client.Write(t.Context(), &p4.WriteRequest{DeviceId: device, ElectionId: &p4.Uint128{}})
	expectError(t, err, codes.FailedPrecondition, "no forwarding pipeline config has been set yet")
}

func TestElectionHas128Bits(t *testing.T) {
	r := newRig(t, Options{})
	a, b := r.channel(), r.channel()
	a.update(&p4.MasterArbitrationUpdate{DeviceId: device, ElectionId: &p4.Uint128{Low: 1 << 63}})
	a.expectArbitration(codes.OK, 1<<63)
	b.update(&p4.MasterArbitrationUpdate{DeviceId: device, ElectionId: &p4.Uint128{High: 1}})
	a.expectArbitration(codes.AlreadyExists, 0)
	if m := b.expectArbitration(codes.OK, 0); m.GetElectionId().GetHigh() != 1 {
		t.Errorf("election id %v", m.GetElectionId())
	}
	expectError(t, r.tryWrite(0), codes.PermissionDenied, "which is (1, 0)")
}

func TestRefusedArbitration(t *testing.T) {
	config, err := anypb.New(&p4.Uint128{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		joined bool // on a stream that has arbitrated already
		update *p4.MasterArbitrationUpdate
		code   codes.Code
		text   string
	}{
		{"device", false, &p4.MasterArbitrationUpdate{DeviceId: 8}, codes.NotFound, "there is no device 8 here; this is device 3"},
		{"other device", true, &p4.MasterArbitrationUpdate{DeviceId: 8}, codes.FailedPrecondition, "belongs to device 3 and cannot change to device 8"},
		{"duplicate", false, arbitration(5), codes.InvalidArgument, "election id 5 is already that of another controller of the default role"},
		{"duplicate later", true, arbitration(5), codes.InvalidArgument, "election id 5 is already"},
		{"role config", false, &p4.MasterArbitrationUpdate{DeviceId: device, Role: &p4.Role{Name: "a", Config: config}}, codes.InvalidArgument, "role.config is set (type.googleapis.com/p4.v1.Uint128)"},
		{"role config later", true, &p4.MasterArbitrationUpdate{DeviceId: device, Role: &p4.Role{Config: config}}, codes.InvalidArgument, "role.config is set"},
		{"role number", false, &p4.MasterArbitrationUpdate{DeviceId: device, Role: &p4.Role{Id: 4}}, codes.InvalidArgument, "numeric role id is not supported"}, //nolint:staticcheck // the deprecated field is the point
		{"other role", true, &p4.MasterArbitrationUpdate{DeviceId: device, Role: &p4.Role{Name: "a"}}, codes.FailedPrecondition, `belongs to the default role and cannot change to role "a"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Options{})
			a := r.open(5)
			a.expectArbitration(codes.OK, 5)
			b := r.channel()
			if c.joined {
				b.arbitrate(2)
				b.expectArbitration(codes.AlreadyExists, 5)
			}
			b.update(c.update)
			b.expectEnd(c.code, c.text)
			a.expectSilence()
		})
	}
}

// TestStreamLimits: of as many streams as there may be, those with the highest election ids stay.
func TestStreamLimits(t *testing.T) {
	r := newRig(t, Options{MaxStreams: 2})
	none := func() *session {
		s := r.channel()
		s.update(&p4.MasterArbitrationUpdate{DeviceId: device})
		return s
	}
	full := "the default role has 2 controllers already"
	first, second := none(), none()
	first.next()
	second.next()
	none().expectEnd(codes.ResourceExhausted, full)
	r.open(8).next()
	r.open(9).next()
	for _, s := range []*session{first, second, r.open(1), none()} {
		s.expectEnd(codes.ResourceExhausted, full)
	}
	for i := 1; i < maxRoles; i++ {
		s := r.channel()
		s.update(&p4.MasterArbitrationUpdate{DeviceId: device, Role: &p4.Role{Name: fmt.Sprint("role", i)}})
		s.next()
		s.close()
	}
	s := r.channel()
	s.update(&p4.MasterArbitrationUpdate{DeviceId: device, Role: &p4.Role{Name: "one too many"}})
	s.expectEnd(codes.ResourceExhausted, "there are 64 roles already")
}

// Each role has a primary of its own, which must say which role it means.
func TestRoles(t *testing.T) {
	r, a := ready(t)
	b := r.channel()
	b.update(&p4.MasterArbitrationUpdate{DeviceId: device, Role: &p4.Role{Name: "stats"}, ElectionId: &p4.Uint128{Low: 7}})
	if m := b.expectArbitration(codes.OK, 7); m.GetRole().GetName() != "stats" {
		t.Errorf("role %v", m.GetRole())
	}
	a.expectSilence()
	write := func(role string, id uint64) error {
		req := r.request(0, `INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }`,
			`DELETE packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }`)
		req.Role, req.ElectionId = role, &p4.Uint128{Low: id}
		_, err := r.client.Write(t.Context(), req)
		return err
	}
	if err := write("stats", 7); err != nil {
		t.Error(describe(err))
	}
	if err := write("", 1); err != nil {
		t.Error(describe(err))
	}
	expectError(t, write("stats", 1), codes.PermissionDenied, `not that of the primary of role "stats"`)
	expectError(t, write("", 7), codes.PermissionDenied, "not that of the primary of the default role")
	expectError(t, write("unknown", 7), codes.NotFound, `there is no role "unknown"`)

	for role, want := range map[string]codes.Code{"stats": codes.OK, "": codes.OK, "unknown": codes.NotFound} {
		stream, err := r.client.Read(t.Context(), &p4.ReadRequest{DeviceId: device, Role: role})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if err.Error() == "EOF" {
			err = nil
		}
		expectError(t, err, want, "")
	}
}

func TestWhoMayWrite(t *testing.T) {
	r := newRig(t, Options{})
	expectError(t, r.tryWrite(0), codes.PermissionDenied, "there is no primary: send a MasterArbitrationUpdate on a StreamChannel first")
	_, err := r.client.Write(t.Context(), &p4.WriteRequest{DeviceId: 8})
	expectError(t, err, codes.NotFound, "there is no device 8")
	_, err = r.client.Write(t.Context(), &p4.WriteRequest{DeviceId: device, RoleId: 8}) //nolint:staticcheck // the deprecated field is the point
	expectError(t, err, codes.NotFound, "no role with the number 8")
	expectError(t, r.trySet(p4.SetForwardingPipelineConfigRequest_VERIFY, r.config()), codes.PermissionDenied, "there is no primary")
	_, err = r.client.SetForwardingPipelineConfig(t.Context(), &p4.SetForwardingPipelineConfigRequest{DeviceId: 8})
	expectError(t, err, codes.NotFound, "there is no device 8")
	_, err = r.client.GetForwardingPipelineConfig(t.Context(), &p4.GetForwardingPipelineConfigRequest{DeviceId: 8})
	expectError(t, err, codes.NotFound, "there is no device 8")

	_, err = r.tryRead(`table_entry {}`)
	expectError(t, err, codes.FailedPrecondition, "no forwarding pipeline config has been set yet")
	stream, err := r.client.Read(t.Context(), &p4.ReadRequest{DeviceId: 8})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	expectError(t, err, codes.NotFound, "there is no device 8")
}

// A new primary learns that it is one only when the Writes of the previous one
// have ended.
func TestNewPrimaryWaitsForWrites(t *testing.T) {
	r, a := ready(t)
	b := r.channel()
	r.bench.mu.Lock() // holds up the Write
	wrote := make(chan error)
	req := r.request(0, `INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }`)
	go func() {
		_, err := r.client.Write(t.Context(), req)
		wrote <- err
	}()
	eventually(t, "the Write has begun", func() bool {
		ok := r.server.state.TryLock()
		if ok {
			r.server.state.Unlock()
		}
		return !ok
	})
	b.arbitrate(9)
	a.expectArbitration(codes.AlreadyExists, 9)
	// From here on no controller may write, and b has not been notified yet. Packets go to no controller.
	r.bench.packetIn(make([]byte, 100))
	if st := r.server.Stats(); st.PacketIns != 0 || st.PacketInDrops != 1 {
		t.Errorf("stats %+v", st)
	}
	late := make(chan error)
	go func() {
		_, err := r.client.Write(t.Context(), r.request(0))
		late <- err
	}()
	select {
	case m := <-b.in:
		t.Fatalf("%v before the Write has ended", m)
	case <-time.After(20 * time.Millisecond):
	}
	r.bench.mu.Unlock()
	expectError(t, <-late, codes.PermissionDenied, "") // before or after b became the primary
	if err := <-wrote; err != nil {
		t.Error(describe(err))
	}
	b.expectArbitration(codes.OK, 9)
}

func TestCapabilities(t *testing.T) {
	r := newRig(t, Options{})
	for id, code := range map[uint64]codes.Code{0: codes.OK, device: codes.OK, 8: codes.NotFound} {
		got, err := r.client.Capabilities(t.Context(), &p4.CapabilitiesRequest{DeviceId: id})
		expectError(t, err, code, "")
		if err == nil && got.GetP4RuntimeApiVersion() != "1.5.0" {
			t.Errorf("version %q", got.GetP4RuntimeApiVersion())
		}
	}
}

func TestCloseEndsStreams(t *testing.T) {
	r := newRig(t, Options{})
	a := r.open(5)
	a.expectArbitration(codes.OK, 5)
	r.server.Close()
	a.expectEnd(codes.Unavailable, "the switch is shutting down")
	b := r.channel()
	b.expectEnd(codes.Unavailable, "the switch is shutting down")
	r.server.Close() // again does no harm
}

// After each arbitration, the stream that learns that it is the primary may write and
// set the pipeline with the election id that it has then, and no other stream may.
func TestWhoMayWriteAfterArbitration(t *testing.T) {
	r, a := ready(t) // election id 1
	b := r.open(0)
	b.expectArbitration(codes.AlreadyExists, 1)
	only := func(what string, allowed ...uint64) {
		t.Helper()
		for id := range uint64(10) {
			want := codes.PermissionDenied
			if slices.Contains(allowed, id) {
				want = codes.OK
			}
			req := r.request(0, `INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }`,
				`DELETE packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }`)
			req.ElectionId = &p4.Uint128{Low: id}
			if _, err := r.client.Write(t.Context(), req); status.Code(err) != want {
				t.Errorf("%s: id %d writes: %v", what, id, err)
			}
			_, err := r.client.SetForwardingPipelineConfig(t.Context(), &p4.SetForwardingPipelineConfigRequest{DeviceId: device,
				ElectionId: &p4.Uint128{Low: id}, Action: p4.SetForwardingPipelineConfigRequest_VERIFY, Config: r.config()})
			if status.Code(err) != want {
				t.Errorf("%s: id %d sets the pipeline: %v", what, id, err)
			}
		}
	}
	only("one primary", 1)
	b.arbitrate(5)
	a.expectArbitration(codes.AlreadyExists, 5)
	b.expectArbitration(codes.OK, 5)
	only("another has taken over", 5)
	b.arbitrate(7)
	a.expectArbitration(codes.AlreadyExists, 7)
	b.expectArbitration(codes.OK, 7)
	only("the primary has another id", 7)
	a.arbitrate(6)
	a.expectArbitration(codes.AlreadyExists, 7)
	only("a backup has another id", 7)
	b.arbitrate(3)
	a.expectArbitration(codes.NotFound, 7)
	b.expectArbitration(codes.NotFound, 7)
	only("the primary has stepped down")
	a.arbitrate(7)
	b.expectArbitration(codes.AlreadyExists, 7)
	a.expectArbitration(codes.OK, 7)
	only("the backup is the primary", 7)
	b.close()
	only("a backup has left", 7)
	a.close()
	c := r.open(2)
	c.expectArbitration(codes.NotFound, 7)
	only("the primary has left")
	c.arbitrate(9)
	c.expectArbitration(codes.OK, 9)
	only("another has come", 9)
}
