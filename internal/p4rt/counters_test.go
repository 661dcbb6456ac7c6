package p4rt

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// preset sets counters, for which the switch would need packets otherwise.
func preset(t *testing.T, s *Session, entities ...*p4.Entity) {
	t.Helper()
	for len(entities) > 0 {
		n := min(len(entities), 64)
		var updates []*p4.Update
		for _, e := range entities[:n] {
			updates = append(updates, &p4.Update{Type: p4.Update_MODIFY, Entity: e})
		}
		if err := s.call(within(t), updates); err != nil {
			t.Fatal(err)
		}
		entities = entities[n:]
	}
}

func atCell(s *Session, name string, index int, c Count) *p4.Entity {
	return &p4.Entity{Entity: &p4.Entity_CounterEntry{CounterEntry: &p4.CounterEntry{CounterId: s.c.schema.counters[name],
		Index: &p4.Index{Index: int64(index)}, Data: &p4.CounterData{PacketCount: int64(c.Packets), ByteCount: int64(c.Bytes)}}}}
}

func cells(t *testing.T, s *Session) {
	var entities []*p4.Entity
	var drops []Counter
	for n, name := range dropCounters {
		for i, reason := range bmv2.DropReasons {
			c := Count{uint64(n*100 + i), 1<<40 + uint64(i)}
			drops = append(drops, Counter{name, reason, c})
			entities = append(entities, atCell(s, name, i, c))
		}
	}
	slots := map[uint16]*[16]MemberCounts{0: {}, 1: {}, switchspec.MaxSlot: {}}
	for slot, members := range slots {
		for i := range members {
			v := uint64(slot)*1000 + uint64(i)*10 + 1
			members[i] = MemberCounts{v, v + 1, v + 2, v + 3, v + 4}
			for n, name := range memberCounters {
				entities = append(entities, atCell(s, name, 16*int(slot)+i, Count{Packets: v + uint64(n)}))
			}
		}
	}
	preset(t, s, entities...)
	got, err := s.ReadCounters(within(t))
	if d := cmp.Diff(drops, got); d != "" || err != nil {
		t.Errorf("drops, set (-) and read (+): %v\n%s", err, d)
	}
	slots[7] = &[16]MemberCounts{}
	for slot, want := range slots {
		got, err := s.ReadMemberCounters(within(t), slot)
		if d := cmp.Diff(*want, got); d != "" || err != nil {
			t.Errorf("slot %d, set (-) and read (+): %v\n%s", slot, err, d)
		}
	}
	if _, err := s.ReadMemberCounters(within(t), switchspec.MaxSlot+1); !errors.Is(err, switchspec.ErrInvalid) {
		t.Errorf("a slot too many: %v", err)
	}
}

// TestAcked: the last answers of a slot's members are read, and not those of its neighbors.
// bmv2 refuses to have registers read, which is no error.
func TestAcked(t *testing.T) {
	var refuses atomic.Bool
	r := embedded(t, grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if refuses.Load() && strings.HasSuffix(info.FullMethod, "/Read") {
			return status.Error(codes.Unimplemented, "Register reads are not supported yet")
		}
		return handle(srv, stream)
	}))
	s := ready(t, r.target)
	set := func(cell int64, v uint64) *p4.Entity {
		return &p4.Entity{Entity: &p4.Entity_RegisterEntry{RegisterEntry: &p4.RegisterEntry{RegisterId: s.c.schema.acked,
			Index: &p4.Index{Index: cell}, Data: &p4.P4Data{Data: &p4.P4Data_Bitstring{Bitstring: number(v)}}}}}
	}
	preset(t, s, set(16*5-1, 1<<48|1), set(16*5, 7<<48|3<<24|0xabcdef), set(16*5+15, 0xffff<<48|9), set(16*6, 1<<48|2))
	want := [16]Acked{0: {7, 0xabcdef}, 15: {0xffff, 9}}
	if got, known, err := s.ReadAcked(within(t), 5); got != want || !known || err != nil {
		t.Errorf("%v, %t, %v; want %v", got, known, err, want)
	}
	if _, _, err := s.ReadAcked(within(t), switchspec.MaxSlot+1); !errors.Is(err, switchspec.ErrInvalid) {
		t.Errorf("a slot too many: %v", err)
	}
	refuses.Store(true)
	if got, known, err := s.ReadAcked(within(t), 5); known || err != nil {
		t.Errorf("%v, %t, %v", got, known, err)
	}
}

func entries(t *testing.T, s *Session) {
	state := everything(t)
	reach(t, s, state)
	var ask []switchspec.Entity
	var set []*p4.Entity
	want := map[switchspec.Key]Count{}
	for e := range state.All() {
		x, err := s.c.schema.encode(e)
		if err != nil {
			t.Fatal(err)
		}
		te := x.GetTableEntry()
		if !s.c.schema.direct[te.GetTableId()] {
			if got, err := s.ReadDirect(within(t), e); !errors.Is(err, switchspec.ErrInvalid) {
				t.Errorf("%v counts %v, %v", e, got, err)
			}
			continue
		}
		n := uint64(len(ask) + 1)
		te.Action = nil
		c := Count{Packets: n, Bytes: 100 * n}
		switch e.(type) {
		case switchspec.MergeGroup, switchspec.ECNPort:
			c.Bytes = 0
		}
		want[e.Key()] = c
		ask = append(ask, e)
		set = append(set, &p4.Entity{Entity: &p4.Entity_DirectCounterEntry{DirectCounterEntry: &p4.DirectCounterEntry{
			TableEntry: te, Data: &p4.CounterData{PacketCount: int64(c.Packets), ByteCount: int64(c.Bytes)}}}})
	}
	preset(t, s, set...)
	missing := []switchspec.Entity{switchspec.Match{Src: ip(1), MCID: 1, Dst: ip(2)}, switchspec.Replica{Group: 7, Rewrite: bifurcation.Rewrite{RID: 7, Dst: ip(1)}},
		switchspec.Region{Group: 1, Translation: bifurcation.Translation{RID: 3, RKey: 9, First: 5, Last: 6}}, switchspec.MergeGroup{Slot: 9, Source: ip(1)}}
	check := func(e switchspec.Entity, want Count) {
		t.Helper()
		if got, err := s.ReadDirect(within(t), e); err != nil || got != want {
			t.Errorf("%v has %v, %v; set to %v", e, got, err, want)
		}
	}
	for _, e := range ask {
		check(e, want[e.Key()])
	}
	for _, e := range missing {
		check(e, Count{})
	}
	match := switchspec.Match{Src: ip(9), MCID: 1, Dst: ip(1)} // what identifies it
	if check(match, want[match.Key()]); want[match.Key()] == (Count{}) {
		t.Errorf("there is no %v", match)
	}
}

// push pushes the pipeline on a switch that is in use.
func push(t *testing.T, s *Session) {
	if err := s.PushPipeline(within(t)); err != nil {
		t.Fatal(err)
	}
	have, err := s.Read(within(t))
	if err != nil || have.Len() != 0 {
		t.Errorf("left: %v, %v", list(have), err)
	}
	drops, err := s.ReadCounters(within(t))
	if err != nil || len(drops) != 2*len(bmv2.DropReasons) {
		t.Errorf("%v, %v", drops, err)
	}
	for _, c := range drops {
		if c.Count != (Count{}) {
			t.Errorf("left: %v", c)
		}
	}
	if ok, err := s.HasPipeline(within(t)); !ok || err != nil {
		t.Errorf("the pipeline is there: %t, %v", ok, err)
	}
	if err := s.EnableDigests(within(t)); err != nil {
		t.Errorf("digests again: %v", err)
	}
	reach(t, s, everything(t))
}

// TestGroupsAreDeletedBeforeThePipelineIsPushed: bmv2 does not show that it would
// keep them.
func TestGroupsAreDeletedBeforeThePipelineIsPushed(t *testing.T) {
	var deleted, left atomic.Int64
	r := embedded(t, grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		switch x := req.(type) {
		case *p4.WriteRequest:
			for _, u := range x.GetUpdates() {
				if u.GetType() == p4.Update_DELETE && u.GetEntity().GetPacketReplicationEngineEntry() != nil {
					deleted.Add(1)
				}
			}
		case *p4.SetForwardingPipelineConfigRequest:
			left.Store(deleted.Load())
		}
		return handle(ctx, req)
	}))
	s := ready(t, r.target)
	s.c.batch = 4
	state := &switchspec.State{}
	for n := range uint16(10) {
		if err := state.Put(switchspec.PREGroup{ID: n + 1, Replicas: []switchspec.PREReplica{{Port: 1, Instance: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	reach(t, s, state)
	if err := s.PushPipeline(within(t)); err != nil || left.Load() != 10 {
		t.Errorf("%d groups deleted before, %v", left.Load(), err)
	}
}

func counters(t *testing.T, target string) {
	s := ready(t, target)
	cells(t, s)
	entries(t, s)
	push(t, s)
	other := open(t, client(t, Config{Target: target, ElectionID: ElectionID{Low: 2}}))
	if err := other.WaitPrimary(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.wait(within(t), func() bool { return s.role == Backup }); err != nil {
		t.Fatal(err)
	}
	reach(t, other, &switchspec.State{})
	// Not even the switch is asked.
	if err := s.PushPipeline(within(t)); !errors.Is(err, ErrNotPrimary) || !strings.Contains(err.Error(), "this session is a backup") {
		t.Errorf("a backup pushes: %v", err)
	}
	s.mu.Lock()
	s.role = Primary // as if it did not know yet
	s.mu.Unlock()
	if err := s.PushPipeline(within(t)); !errors.Is(err, ErrNotPrimary) {
		t.Errorf("a backup that does not know it pushes: %v", err)
	}
	if _, err := s.ReadCounters(within(t)); err != nil {
		t.Errorf("a backup reads: %v", err)
	}
}

func TestCounters(t *testing.T) { counters(t, embedded(t).target) }

func TestCountersOfBMv2(t *testing.T) { counters(t, real(t)) }

// TestPacketsAreCounted makes the switch drop packets, and replicate one for which no
// copy is described.
func TestPacketsAreCounted(t *testing.T) {
	r := embedded(t)
	s := ready(t, r.target)
	match := switchspec.Match{Src: ip(9), MCID: 77, Dst: ip(1), Group: 1, FirstPRE: 1, PREGroups: 1}
	state := &switchspec.State{}
	if err := state.Put(match, switchspec.Settings{ICRC: switchspec.ICRCOff}, switchspec.PREGroup{ID: 1, Replicas: []switchspec.PREReplica{{Port: 2, Instance: 5}}}); err != nil {
		t.Fatal(err)
	}
	reach(t, s, state)
	bad := roce(match.Src, match.Dst, match.MCID)
	bad[24] ^= 1 // checksum
	if n := r.port.Send([][]byte{bad, roce(match.Src, match.Dst, match.MCID), bad}); n != 3 {
		t.Fatal(n, "sent")
	}
	want := map[string]uint64{"ingress.drops ip_checksum": 2, "egress.drops no_replica": 1}
	for ctx := within(t); ; {
		got, err := s.ReadCounters(ctx)
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]uint64{}
		for _, c := range got {
			if c.Packets != 0 {
				have[c.Name+" "+c.Reason] = c.Packets
			}
		}
		if cmp.Equal(want, have) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(have)
		}
	}
	got, err := s.ReadDirect(within(t), match)
	if c := (Count{1, uint64(len(bad))}); err != nil || got != c {
		t.Errorf("%v, %v; want %v", got, err, c)
	}
}

// roce is a SEND without payload.
func roce(src, dst netip.Addr, qpn uint32) []byte {
	f := append(make([]byte, 12), 8, 0, 0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 17, 0, 0)
	f = append(append(f, src.AsSlice()...), dst.AsSlice()...)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(f[i])<<8 | uint32(f[i+1])
	}
	sum = sum&0xffff + sum>>16
	f[24], f[25] = ^byte(sum>>8), ^byte(sum)
	f = append(f, 0xc0, 0, 4791>>8, 4791&0xff, 0, 24, 0, 0)                          // UDP
	f = append(f, 4, 0, 0xff, 0xff, 0, byte(qpn>>16), byte(qpn>>8), byte(qpn), 0x80) // BTH
	return append(f, 0, 0, 1, 0, 0, 0, 0)
}
