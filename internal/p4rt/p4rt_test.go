package p4rt

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// list is a state to compare and to print.
func list(s *switchspec.State) (out []string) {
	for e := range s.All() {
		out = append(out, e.(interface{ String() string }).String())
	}
	return out
}

// reach brings the switch to a state, and checks that it is there.
func reach(t testing.TB, s *Session, want *switchspec.State) {
	t.Helper()
	have, err := s.Read(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(within(t), switchspec.Diff(have, want)); err != nil {
		t.Fatal(err)
	}
	if have, err = s.Read(within(t)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(list(want), list(have)); d != "" {
		t.Fatalf("wanted (-) and read back (+) differ:\n%s", d)
	}
	if d := switchspec.Diff(have, want); len(d) != 0 {
		t.Fatalf("still to do: %v", d)
	}
}

func states(t *testing.T, s *Session) {
	full := everything(t)
	reach(t, s, full)
	other := full.Clone() // one modification of each table
	if err := errors.Join(group(other, 2), other.Put(
		switchspec.Settings{HashSeed: 3},
		switchspec.PREGroup{ID: 4095, Replicas: []switchspec.PREReplica{{Port: 2, Instance: 1}, {Port: 7, Instance: 2}}},
		switchspec.ECMPGroup{ID: 4, Hops: []switchspec.ECMPHop{{NextHop: 2, Weight: 2}}},
		switchspec.NextHop{ID: 1, Port: 4}, switchspec.Neighbor{NextHop: 1},
		switchspec.BridgePort{Port: 3}, switchspec.Replica{Group: 1, Rewrite: bifurcation.Rewrite{RID: 9, Last: true, Dst: ip(3), QPN: 5}},
		switchspec.MergeGroup{Slot: 1, Members: 3, Epoch: 2, Learn: true, Source: ip(1), SenderQPN: 1<<24 - 1, CNPGap: 50},
		switchspec.Region{Group: 1, Translation: bifurcation.Translation{RID: 3, RKey: 9, First: 0, Last: 1<<64 - 1, Offset: 4}},
	)); err != nil {
		t.Fatal(err)
	}
	reach(t, s, other)
	reach(t, s, full)
	reach(t, s, &switchspec.State{})
	pushed, err := s.EnsurePipeline(within(t))
	if pushed || err != nil {
		t.Fatalf("the program was pushed again (%t), or %v", pushed, err)
	}
}

func TestWhatIsWrittenReadsBack(t *testing.T) { states(t, ready(t, embedded(t).target)) }

func TestWhatIsWrittenReadsBackFromBMv2(t *testing.T) { states(t, ready(t, real(t))) }

func failover(t *testing.T, target string) {
	first := ready(t, target) // 0.1
	second := open(t, client(t, Config{Target: target, ElectionID: ElectionID{Low: 2}}))
	if err := second.WaitPrimary(within(t)); err != nil { // higher
		t.Fatal(err)
	}
	if err := first.wait(within(t), func() bool { return first.role == Backup }); err != nil {
		t.Fatal(err)
	}
	changes := switchspec.Diff(nil, everything(t))
	if err := first.Apply(within(t), changes); !errors.Is(err, ErrNotPrimary) {
		t.Fatalf("a backup writes: %v", err)
	}
	if err := second.Apply(within(t), changes); err != nil {
		t.Fatal(err)
	}
	second.Close()
	if err := first.WaitPrimary(within(t)); err != nil {
		t.Fatal(err)
	}
	reach(t, first, everything(t))
	reach(t, first, &switchspec.State{})
	first.Close()
}

func TestFailover(t *testing.T) {
	r := embedded(t)
	failover(t, r.target)
	// An agent that comes back with a lower id than before becomes the primary
	// all the same if there is none.
	if s := ready(t, r.target); s.ElectionID().High == 0 {
		t.Errorf("primary as %v, after higher ones", s.ElectionID())
	}
}

func TestFailoverOfBMv2(t *testing.T) { failover(t, real(t)) }

func TestStreamLossIsReported(t *testing.T) {
	r := embedded(t)
	s := ready(t, r.target)
	r.close()
	select {
	case <-s.Done():
	case <-within(t).Done():
		t.Fatal("not noticed")
	}
	if !errors.Is(s.Err(), ErrStreamLost) {
		t.Errorf("%v", s.Err())
	}
	if err := s.Apply(within(t), switchspec.Diff(nil, everything(t))); !errors.Is(err, ErrStreamLost) {
		t.Errorf("Apply: %v", err)
	}
	if err := s.WaitPrimary(within(t)); !errors.Is(err, ErrStreamLost) {
		t.Errorf("WaitPrimary: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if again, err := s.c.Open(ctx); err == nil {
		again.Close()
		t.Error("a session with a switch that is gone")
	}
}

func TestRefusedUpdatesAreNamed(t *testing.T) {
	s := ready(t, embedded(t).target)
	good := switchspec.Change{Op: switchspec.Insert, Entity: switchspec.Neighbor{NextHop: 1}}
	missing := switchspec.Change{Op: switchspec.Modify, Entity: switchspec.NextHop{ID: 2}}
	later := switchspec.Change{Stage: 1, Op: switchspec.Insert, Entity: switchspec.NextHop{ID: 1}}
	err := s.Apply(within(t), []switchspec.Change{good, missing, later})
	w, ok := errors.AsType[*WriteError](err)
	if !ok || len(w.Failed) != 1 || len(w.Done) != 1 || len(w.Left) != 1 || w.Done[0] != good || w.Left[0] != later {
		t.Fatalf("%v", err)
	}
	if u, ok := errors.AsType[*UpdateError](err); !ok || u.Code != codes.NotFound || u.Object != "ingress.unicast.next_hops" || u.Change != missing || u.Text == "" {
		t.Errorf("%#v", u)
	}
	have, err := s.Read(within(t))
	if err != nil || have.Len() != 1 {
		t.Errorf("%v, %v", list(have), err)
	}
}

// TestLostAnswers loses answers of Writes that were done, or that were not.
func TestLostAnswers(t *testing.T) {
	var n atomic.Int64
	r := embedded(t, grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if _, ok := req.(*p4.WriteRequest); !ok {
			return handle(ctx, req)
		}
		switch n.Add(1) % 5 {
		case 1:
			return nil, status.Error(codes.Unavailable, "before")
		case 3:
			_, _ = handle(ctx, req)
			return nil, status.Error(codes.Unavailable, "after")
		}
		return handle(ctx, req)
	}))
	s := ready(t, r.target)
	s.c.wait, s.c.attempts = time.Microsecond, 20
	states(t, s)
	s.c.attempts = 1
	n.Store(0)
	changes := switchspec.Diff(nil, everything(t))
	err := s.Apply(within(t), changes)
	if w, ok := errors.AsType[*WriteError](err); !ok || len(w.Unknown) == 0 || len(w.Unknown)+len(w.Left) != len(changes) {
		t.Errorf("%v", err)
	}
}

func TestPacketsAndDigests(t *testing.T) {
	r := embedded(t)
	s := ready(t, r.target)
	if err := s.EnableDigests(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.EnableDigests(within(t)); err != nil {
		t.Fatal("again:", err)
	}
	hello := append(bytes.Repeat([]byte{2}, 12), 0x88, 0xb5)
	hello = append(hello, make([]byte, 46)...)
	arp := append(bytes.Repeat([]byte{0xff}, 6), 2, 0, 0, 0, 0, 7, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 7, 10, 0, 0, 5, 0, 0, 0, 0, 0, 0, 10, 0, 0, 6)
	if n := r.port.Send([][]byte{hello, arp}); n != 2 {
		t.Fatal(n, "sent")
	}
	ctx := within(t)
	select {
	case p := <-s.PacketIns():
		if p.Port != 1 || !bytes.Equal(p.Frame, hello) {
			t.Errorf("%+v", p)
		}
	case <-ctx.Done():
		t.Fatal("no packet-in")
	}
	select {
	case d := <-s.Digests():
		if want := (ARPDigest{1, switchspec.MAC{2, 5: 7}, ip(5)}); d != want {
			t.Errorf("%v, want %v", d, want)
		}
	case <-ctx.Done():
		t.Fatal("no digest")
	}
	if err := s.PacketOut(1, hello); err != nil {
		t.Fatal(err)
	}
	frames := make([][]byte, 8)
	for i := range frames {
		frames[i] = make([]byte, 2048)
	}
	if n, err := r.port.Recv(frames); err != nil || n != 1 || !bytes.Equal(frames[0], hello) {
		t.Errorf("%d, %v: %x", n, err, frames[0])
	}
}

func BenchmarkGroups(b *testing.B) {
	s := ready(b, embedded(b).target)
	base := &switchspec.State{}
	if err := base.Put(switchspec.Neighbor{NextHop: 1}); err != nil {
		b.Fatal(err)
	}
	want := base.Clone()
	const groups = 2000
	for n := range uint16(groups) {
		if err := group(want, n+1); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Apply(within(b), switchspec.Diff(nil, base)); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Apply(within(b), switchspec.Diff(base, want)); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Apply(within(b), switchspec.Diff(want, base)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(groups*float64(b.N)/b.Elapsed().Seconds(), "groups/s")
}

// TestElectionIDsEnd: the primary that has left had the highest High there is. A client
// with a higher Low follows it, and others get an error.
func TestElectionIDsEnd(t *testing.T) {
	target := embedded(t).target
	ctx := within(t)
	try := func(id ElectionID) (*Session, error) {
		c, err := New(Config{Target: target, DeviceID: device, ElectionID: id})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		s, err := c.Open(ctx)
		if err != nil {
			return nil, err
		}
		t.Cleanup(s.Close)
		return s, s.WaitPrimary(ctx)
	}
	last, err := try(ElectionID{math.MaxUint64, 5})
	if err != nil {
		t.Fatal(err)
	}
	if err := last.Takeover(ElectionID{math.MaxUint64, 6}); !errors.Is(err, ErrElection) {
		t.Errorf("a takeover of what is higher: %v", err)
	}
	last.Close()
	for _, low := range []uint64{1, 5} {
		if _, err := try(ElectionID{Low: low}); !errors.Is(err, ErrElection) || !strings.Contains(err.Error(), "18446744073709551615.5") {
			t.Errorf("Low %d: %v", low, err)
		}
	}
	if s, err := try(ElectionID{Low: 7}); err != nil || s.ElectionID() != (ElectionID{math.MaxUint64, 7}) {
		t.Errorf("Low 7: %v", err)
	}
}
