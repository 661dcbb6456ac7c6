package mcrdma

import (
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/hostclock"
)

// A member has what was complete when its formation began, and what was complete before it
// was left out; the rest is not promised.
func TestLacks(t *testing.T) {
	const at = 1 << 40
	for name, tt := range map[string]struct {
		since int64
		want  uint64
	}{
		"only not in the next": {0, 30}, "long ago": {longAgo, 10}, "before the formation": {at - 1, 10},
		"at a mark": {at + 10_000, 10}, "after a mark": {at + 10_001, 20}, "later": {at + 1<<30, 25},
	} {
		l := lacks{began: 10, ended: 30, first: map[string]uint64{}}
		for i, n := range []uint64{5, 20, 25} {
			l.marks.put(at+int64(i)*10_000, n)
		}
		l.out("a", tt.since)
		l.out("a", 0) // known already
		if got := l.first["a"]; got != tt.want {
			t.Errorf("%s: it is said to have %d operations, and has %d", name, got, tt.want)
		}
	}
}

// A time of another clock, or of the future, says nothing.
func TestSince(t *testing.T) {
	now, clock := hostclock.Now(), hostclock.Name()
	for _, tt := range []struct {
		at    int64
		clock string
		want  int64
	}{
		{now, clock, now}, {0, clock, 0}, {0, "", 0}, {now, "", longAgo}, {now, clock + "x", longAgo}, {now + 1e9, clock, longAgo},
		{time.Now().UnixMicro(), "", longAgo}, // as daemons of older releases say it
	} {
		if got := since(tt.at, tt.clock); got != tt.want {
			t.Errorf("since %d by %q is %d, not %d", tt.at, tt.clock, got, tt.want)
		}
	}
}

// A daemon that is back may say of a member of the present formation that it is out, and
// since when, or not.
func TestLacking(t *testing.T) {
	now := hostclock.Now()
	g := &Group{info: &mcrdmav1.FormationInfo{Formation: 4}, lacks: lacks{began: 3, ended: 9, first: map[string]uint64{}}}
	g.lacks.marks.put(now-1, 5)
	after := &mcrdmav1.FormationInfo{Formation: 4, Departures: []*mcrdmav1.Departure{
		{Address: "a", Since: now, Clock: hostclock.Name()}, {Address: "b", Since: now, Clock: "another"}}}
	for address, want := range map[string]uint64{"a": 5, "b": 3, "not said": 3} {
		g.lacking(address, after)
		if got := g.lacks.first[address]; got != want {
			t.Errorf("%s: %d operations, not %d", address, got, want)
		}
	}
	after.Formation++
	g.lacking("c", after)
	if got := g.lacks.first["c"]; got != 9 {
		t.Errorf("not in the next formation: %d operations, not 9", got)
	}
}

// TestOperationOfRemoved: what Event.Operation says of a member that was taken out, in the
// first and in a later formation, while operations are under way.
func TestOperationOfRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, true, GroupConfig{Transport: transportTCP})
	write := func(n int) {
		t.Helper()
		for range n {
			if err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 10)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * fineMarks * time.Microsecond)
	}
	remove := func(i int, since int64, clock string, want uint64) {
		t.Helper()
		r.src.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_GroupChanged{GroupChanged: &mcrdmav1.GroupChanged{
			Group: r.g.id.wire(), Formation: r.g.Info().Formation, Type: mcrdmav1.GroupChanged_TYPE_REMOVED,
			Address: r.ds[i].address, Since: since, Clock: clock}}})
		if e := event(t, r.g.Events(), Removed); e.Address != r.ds[i].address || e.Operation != want {
			t.Errorf("%+v; it has %d operations", e, want)
		}
	}
	reform := func() {
		r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
		event(t, r.g.Events(), Reformed)
	}
	write(5)
	write(1) // when this is complete, 5 are known to have been
	left := hostclock.Now()
	write(3)
	for range 2 { // under way: nothing is posted to receive them
		if err := r.g.Submit(t.Context(), &Op{Kind: OpSend, Done: func(*Op) {}}); err != nil {
			t.Fatal(err)
		}
	}
	remove(0, left, hostclock.Name(), 5)
	// A clock that says nothing: what was complete when the formation began.
	reform()
	remove(1, left+1, "another", 9)
	// It is only not in the next formation: it has what was complete in this one.
	for _, o := range r.rs {
		for range 2 {
			if err := o.m.PostRecv(Piece{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(1)
	if err := r.g.Submit(t.Context(), &Op{Kind: OpSend, Done: func(*Op) {}}); err != nil {
		t.Fatal(err)
	}
	r.w.mu.Lock()
	r.w.groups[r.g.id.Number].gone[r.ds[2].address] = true
	r.w.mu.Unlock()
	reform()
	if e := event(t, r.g.Events(), Removed); e.Address != r.ds[2].address || e.Operation != 12 {
		t.Errorf("%+v", e)
	}
}

// TestRemovedThenAdded: the event that a member was removed comes before the event that it
// is back, even if the daemon has not said why yet; what the daemon says of the removal
// later is not taken for another one.
func TestRemovedThenAdded(t *testing.T) {
	member := &mcrdmav1.Member{Address: "127.0.0.9", Host: "h"}
	g := &Group{events: newEventQueue(), removed: map[string]bool{}, lacks: lacks{first: map[string]uint64{}, ended: 7},
		info: &mcrdmav1.FormationInfo{Formation: 1, Members: []*mcrdmav1.Member{member}}}
	g.mu.Lock()
	without := &mcrdmav1.FormationInfo{Formation: 2}
	g.lostMembers(g.info.GetMembers(), without, "for the test")
	g.info = &mcrdmav1.FormationInfo{Formation: 3, Members: []*mcrdmav1.Member{member}}
	list := g.joined(nil, nil, nil, 8)
	g.mu.Unlock()
	if len(list) != 2 || list[0].Type != Removed || list[0].Operation != 7 || list[0].Text != "for the test" || list[1].Type != Added || list[1].Operation != 8 {
		t.Errorf("%+v", list)
	}
	g.tellMissing(time.Now())
	g.changed(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_REMOVED, Formation: 2, Address: member.GetAddress()})
	if len(g.Events()) > 0 {
		t.Errorf("%+v", <-g.Events())
	}
	g.changed(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_REMOVED, Formation: 3, Address: member.GetAddress()})
	if e := event(t, g.Events(), Removed); e.Operation != 0 {
		t.Errorf("%+v", e)
	}
}

// TestOperationOfAdded: a receiver that joins has what comes after the operations that all
// members turned out to have when the formation began.
func TestOperationOfAdded(t *testing.T) {
	g := &Group{ctx: t.Context(), events: newEventQueue(), room: make(chan struct{}, 9), drained: make(chan struct{}),
		removed: map[string]bool{}, lacks: lacks{first: map[string]uint64{}, ended: 4}}
	g.stats.Completed, g.stats.Operations = 4, 7
	for range 3 {
		g.queue.push(&Op{Kind: OpSend, Done: func(*Op) {}})
		g.queue.advance()
	}
	g.queue.rewind()
	g.next = &formation{path: nothing{}, info: &mcrdmav1.FormationInfo{Formation: 2, Have: 2,
		Members: []*mcrdmav1.Member{{Address: "127.0.0.8"}, {Address: "127.0.0.9"}}}}
	g.begin([]*mcrdmav1.Member{{Address: "127.0.0.8"}}, nil, nil)
	if e := event(t, g.Events(), Added); e.Address != "127.0.0.9" || e.Operation != 6 || len(g.Events()) > 0 {
		t.Errorf("%+v", e)
	}
	g.cut(nil)
}
