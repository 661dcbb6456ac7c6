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
