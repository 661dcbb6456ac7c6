package core

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// absent has a host crash, and writes so many entries without it. The logs keep so many for it.
func (w *world) absent(t *testing.T, entries int, keep uint64) (back *host) {
	t.Helper()
	p := w.primary(t)
	for _, h := range w.hosts {
		h.n.cfg.Keep, h.n.cfg.Limit = keep, 4*keep
	}
	back = w.hosts[(p.id+1)%3]
	w.crash(back, 0)
	w.pass(time.Second)
	for i := range entries {
		w.write(t, i%blocks)
	}
	return back
}

// together passes the time until all hosts are in the acting set.
func (w *world) together(t *testing.T, each func()) {
	t.Helper()
	for range 100_000 {
		if len(w.osdmap.Acting) == len(w.hosts) && !slices.ContainsFunc(w.osdmap.Acting, func(m Member) bool { return w.host(m) == nil }) {
			return
		}
		each()
		w.pass(20 * time.Millisecond)
	}
	t.Fatalf("it does not come back:\n%s", w.status())
}

// TestCatchUpBytes: a member that comes back is sent what it missed once, also over a link that takes longer than
// leases last: then at first a little of it again.
func TestCatchUpBytes(t *testing.T) {
	const missed = 300
	for _, c := range []struct {
		takes time.Duration // a Push
		most  int           // entries that are sent
	}{{0, missed}, {3 * 300 * time.Millisecond, missed}, {10 * 300 * time.Millisecond, missed * 11 / 10}} {
		w := begun(t, 3, 2)
		back, sent := w.absent(t, missed, 1000), 0
		w.holds = func(m Message) time.Duration {
			p, ok := m.Body.(Push)
			if !ok {
				return 0
			}
			if len(p.Runs) > 0 {
				sent += int(p.Runs[len(p.Runs)-1].Index - p.Prev.Index)
			}
			return c.takes
		}
		w.start(back)
		w.together(t, func() {})
		if sent < missed || sent > c.most || w.tally.backfills > 0 {
			t.Errorf("%d entries were missed, and %d sent, each %d of them in %v; %d backfills", missed, sent, back.n.cfg.Batch, c.takes, w.tally.backfills)
		}
		for _, h := range w.hosts {
			h.n.cfg = w.config(h.id)
		}
		w.ends(t)
	}
}

// TestBackfillRests: a copy of the store takes a seventh of the time while clients write, read or flush, and all of it
// while they do not.
func TestBackfillRests(t *testing.T) {
	const takes = 200 * time.Millisecond // a piece
	for _, c := range []struct {
		name        string
		do          func(w *world, h *host) bool
		least, most time.Duration // from one piece to the next
	}{
		{"no calls", func(*world, *host) bool { return true }, takes, takes + 20*time.Millisecond},
		{"writes", func(w *world, h *host) bool { return w.client.write(w, h, 0) }, 7 * takes, 7*takes + 150*time.Millisecond},
		{"reads", func(w *world, h *host) bool { return w.client.read(w, h, 0) }, 7 * takes, 7*takes + 150*time.Millisecond},
		{"flushes", func(w *world, h *host) bool { return w.client.flushAll(w, h) }, 7 * takes, 7*takes + 150*time.Millisecond},
	} {
		w := begun(t, 3, 2)
		back := w.absent(t, 60, 8)
		var sent []time.Duration
		longest := 0
		w.holds = func(m Message) time.Duration {
			if _, ok := m.Body.(Chunk); !ok {
				return 0
			}
			sent = append(sent, w.now)
			return takes
		}
		w.start(back)
		w.together(t, func() {
			if !c.do(w, w.primary(t)) {
				t.Fatalf("%s: a call is not taken", c.name)
			}
			if back.n.hard.Backfilling {
				longest = max(longest, len(back.log))
			}
		})
		if n := int(7 * takes / (20 * time.Millisecond)); longest > n+30 { // writes from one piece to the next
			t.Errorf("%s: its log becomes %d entries long, and %d come with a piece", c.name, longest, n)
		}
		if len(sent) != blocks {
			t.Errorf("%s: %d pieces", c.name, len(sent))
		}
		for i := range sent[1:] {
			if d := sent[i+1] - sent[i]; d < c.least || d > c.most {
				t.Errorf("%s: a piece %v after the one before, want %v to %v", c.name, d, c.least, c.most)
			}
		}
		w.ends(t)
	}
}

// TestBackfillEven: beside a client that writes all the time, one piece of the store follows the other after the pause
// that is meant for it, whatever the disks take. None is refused because the member has applied later entries, and no
// report is late because another has come by the group.
func TestBackfillEven(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ takes, every, syncs time.Duration }{ // a piece; from one write to the next; a sync
		{0, 20 * ms, 20 * ms}, {2 * ms, 5 * ms, 60 * ms}, {10 * ms, 20 * ms, 60 * ms}, {10 * ms, ms, 0}, {50 * ms, ms, 0},
	} {
		w := begun(t, 3, 2)
		back := w.absent(t, 60, 8)
		w.syncs, w.pieces = c.syncs, 12
		var sent []time.Duration
		w.holds = func(m Message) time.Duration {
			if _, ok := m.Body.(Chunk); !ok {
				return 0
			}
			sent = append(sent, w.now)
			return c.takes
		}
		w.start(back)
		for _, h := range w.hosts { // as many writes come in a pause
			h.n.cfg.Keep, h.n.cfg.Limit, h.n.cfg.Near, h.n.cfg.Batch = 100, 4000, 64, 1000
		}
		for i := 0; len(w.osdmap.Acting) < 3 || w.host(Member{back.id, back.n.self.Incarnation}) == nil || back.n.hard.Backfilling; i++ {
			w.client.write(w, w.primary(t), i%blocks)
			if w.pass(c.every); i > 20_000 {
				t.Fatalf("%+v: it does not come back:\n%s", c, w.status())
			}
		}
		for i := range sent[1:] {
			if d := sent[i+1] - sent[i]; d > 7*c.takes+150*ms {
				t.Errorf("%+v: piece %d of %d comes %v after the one before", c, i+1, len(sent), d)
			}
		}
	}
}

// TestCatchUpRace: clients that write as fast as the volume takes it do not keep a host away that comes back, from the log or
// by a copy, even if more is written while entries are sent to it than these are, or while it begins anew.
func TestCatchUpRace(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		missed int
		takes  time.Duration // a Push
		writes int           // in a millisecond, at most
		syncs  time.Duration
		copies int
	}{
		{"as fast", 100, 10 * ms, 2, 0, 0},
		{"five times as fast", 100, 10 * ms, 10, 0, 0},
		{"a slow link", 100, 200 * ms, 2, 0, 0},
		{"a copy", 300, 10 * ms, 10, 0, 1},
		{"a copy, and slow disks", 300, 10 * ms, 2, 30 * ms, 1},
		{"a copy, and a slow link", 300, 200 * ms, 10, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := begun(t, 3, 2)
			back := w.absent(t, c.missed, 100)
			w.syncs = c.syncs
			w.holds = func(m Message) time.Duration {
				if _, ok := m.Body.(Push); ok {
					return c.takes
				}
				return 0
			}
			w.start(back)
			for _, h := range w.hosts {
				h.n.cfg.Keep, h.n.cfg.Limit, h.n.cfg.Near, h.n.cfg.Batch = 100, 400, 10, 20
			}
			for p := w.primary(t).n; c.copies == 0 && (p.peer(back.n.self) == nil || !p.peer(back.n.self).known); {
				w.pass(ms)
			}
			begun, done := w.now, 0
			for len(w.osdmap.Acting) < 3 || w.host(Member{back.id, back.n.self.Incarnation}) == nil || !w.osdmap.Acts(back.n.self) {
				for range c.writes {
					if w.client.write(w, w.primary(t), done%blocks) {
						done++
					}
				}
				if w.pass(ms); w.now-begun > 20*time.Second {
					t.Fatalf("it does not come back; %d copies are begun:\n%s", w.tally.backfills, w.status())
				}
			}
			t.Logf("back after %v, beside %d writes", w.now-begun, done)
			if w.tally.backfills != c.copies {
				t.Errorf("%d copies are begun", w.tally.backfills)
			}
			for _, h := range w.hosts {
				h.n.cfg = w.config(h.id)
			}
			w.ends(t)
		})
	}
}

// TestCatchUpBehindWrites: what a host is sent that comes back is behind more writes on the primary's link than this carries
// in a lease, as there are so many clients. It comes back all the same.
func TestCatchUpBehindWrites(t *testing.T) {
	const ms, takes, clients = time.Millisecond, 20 * time.Millisecond, 64 // an entry
	w := begun(t, 3, 2)
	back := w.absent(t, 300, 1000)
	var busy time.Duration // until then
	link := func(entries int) time.Duration {
		busy = max(busy, w.now) + time.Duration(entries)*takes
		return busy - w.now
	}
	w.posts = func() time.Duration { return link(1) }
	w.holds = func(m Message) time.Duration {
		if p, ok := m.Body.(Push); ok && len(p.Runs) > 0 {
			return link(int(p.Runs[len(p.Runs)-1].Index - p.Prev.Index)) //nolint:gosec // few
		}
		return 0
	}
	w.start(back)
	for _, h := range w.hosts {
		h.n.cfg.Keep, h.n.cfg.Limit, h.n.cfg.Near = 1000, 4000, 10
	}
	begun, p := w.now, w.primary(t)
	for !w.osdmap.Acts(back.n.self) {
		for p.n.log.head().Index-p.n.commit < clients && w.client.write(w, p, 0) {
		}
		if w.pass(ms); w.now-begun > 2*(300+clients)*2*takes || w.tally.backfills > 0 {
			t.Fatalf("it does not come back, by %d copies:\n%s", w.tally.backfills, w.status())
		}
	}
	t.Logf("back after %v", w.now-begun)
	for _, h := range w.hosts {
		h.n.cfg = w.config(h.id)
	}
	w.ends(t)
}

// TestCatchUpEnds: clients that wait for a host that is catching up go on, a lease after it has failed.
func TestCatchUpEnds(t *testing.T) {
	const ms = time.Millisecond
	w := begun(t, 3, 2)
	back := w.absent(t, 300, 1000)
	w.holds = func(m Message) time.Duration {
		if _, ok := m.Body.(Push); ok {
			return 20 * ms
		}
		return 0
	}
	w.start(back)
	for _, h := range w.hosts {
		h.n.cfg.Near, h.n.cfg.Batch = 10, 20
	}
	p := w.primary(t)
	writes := func() bool {
		ok := w.client.write(w, p, 0)
		w.pass(ms)
		return ok
	}
	waits := func() bool {
		why, _ := p.n.Waits(p.clock(w.now))
		return strings.Contains(why, "catching up")
	}
	for begun := w.now; !waits(); writes() {
		if w.now-begun > 10*time.Second {
			t.Fatalf("no client waits:\n%s", w.status())
		}
	}
	w.crash(back, 0)
	failed := w.now
	for !writes() {
		if w.now-failed > p.n.cfg.Lease+100*ms {
			t.Fatalf("clients wait after %v, a lease is %v:\n%s", w.now-failed, p.n.cfg.Lease, w.status())
		}
	}
	t.Logf("clients go on after %v", w.now-failed)
	if waits() {
		t.Error("clients still wait")
	}
}
