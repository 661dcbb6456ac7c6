package core

import "testing"

// TestAddedLate: a member has come into the group and left it again before the primary is told that it was added. That
// does not count: the member is to be added once more, or it would never get what it lacks.
func TestAddedLate(t *testing.T) {
	for without := range 3 { // views without the member, before Added
		w := begun(t, 3, 2)
		p := w.primary(t)
		n, now := p.n, p.clock(w.now)
		iv, head := n.lead.interval, n.log.head().Index
		m := n.lead.peers[0].member
		n.lead.peers[0] = peer{member: m, heard: now, known: true, adding: true}
		n.View(iv, 100, []Member{n.lead.peers[1].member, m}, now)
		for i := range without {
			n.View(iv, uint32(101+i), []Member{n.lead.peers[1].member}, now) //nolint:gosec // small
		}
		n.Added(iv, m, head+1, now)
		x := n.lead.peers[0]
		if got := x.from != 0; got != (without == 0) || x.left {
			t.Errorf("after %d views without it: %+v", without, x)
		}
	}
}

// TestLeaseBegins: a request of the clock's first moment counts; no request does not.
func TestLeaseBegins(t *testing.T) {
	none, first := peer{}, peer{lease: 1}
	if none.leased(9, 10) || !first.leased(9, 10) || first.leased(11, 10) {
		t.Errorf("%v, %v, %v", none.leased(9, 10), first.leased(9, 10), first.leased(11, 10))
	}
}

// TestResetUnderWay: until when a Push with Reset, which was sent, may yet do its work.
func TestResetUnderWay(t *testing.T) {
	for _, c := range []struct {
		why   string
		reset reset
		match uint64
		stage Backfill
		want  bool
	}{
		{"none was sent", reset{have: 9}, 0, Intact, false},
		{"it was where it is", reset{true, 5, 9}, 5, Intact, true},
		{"it has gone on", reset{true, 5, 9}, 6, Intact, false},
		{"the copy is of an earlier one", reset{true, 5, 9}, 4, Filled, true},
		{"it is done", reset{true, 9, 9}, 9, Filled, false},
		{"to nothing, from nothing", reset{true, 0, 0}, 0, Intact, true},
	} {
		if p := (&peer{recovery: recovery{reset: c.reset}, match: c.match, stage: c.stage}); p.resetPending() != c.want {
			t.Errorf("%s: %v", c.why, !c.want)
		}
	}
}
