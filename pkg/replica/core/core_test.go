package core

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// begun is a world without faults, in which a volume has become active. All hosts are in the acting set.
func begun(t *testing.T, hosts, minSize int) *world {
	w := newWorld(hosts, hosts, minSize)
	w.rnd, w.calm, w.trace = rand.New(rand.NewPCG(1, 1)), true, *coreTrace
	for _, h := range w.hosts {
		w.start(h)
	}
	w.pass(2 * time.Second)
	w.primary(t)
	return w
}

// primary is the host that serves.
func (w *world) primary(t *testing.T) *host {
	t.Helper()
	if w.err != nil {
		t.Fatal(w.err)
	}
	i := slices.IndexFunc(w.hosts, func(h *host) bool { return h.n != nil && !h.frozen && h.n.leased(h.clock(w.now)) })
	if i < 0 {
		t.Fatalf("no host serves:\n%s", w.status())
	}
	return w.hosts[i]
}

func (w *world) write(t *testing.T, block int) {
	t.Helper()
	acked := len(w.client.acks)
	if !w.client.write(w, w.primary(t), block) {
		t.Fatal("the write is not taken")
	}
	if w.pass(100 * time.Millisecond); len(w.client.acks) != acked+1 {
		t.Fatalf("the write is not done:\n%s", w.status())
	}
}

func (w *world) ends(t *testing.T) {
	t.Helper()
	w.rest()
	if w.client.judge(w); w.err != nil {
		t.Fatal(w.err)
	}
}

// TestManagerAway: the configuration manager is needed for changes only.
func TestManagerAway(t *testing.T) {
	w := begun(t, 3, 2)
	w.away = true
	epoch := w.osdmap.Epoch
	for range 60 {
		w.pass(time.Second)
		w.write(t, 0)
	}
	if w.osdmap.Epoch != epoch {
		t.Errorf("the map has changed: %+v", w.osdmap)
	}
	w.ends(t)
}

// TestReplicaKilled: the primary goes on without it after one change of the map, and takes it back with the log.
func TestReplicaKilled(t *testing.T) {
	w := begun(t, 3, 2)
	p := w.primary(t)
	other := w.hosts[(p.id+1)%3]
	w.crash(other, 0)
	w.pass(50 * time.Millisecond)
	w.write(t, 0)
	if len(w.osdmap.Acting) != 2 || w.osdmap.Primary != p.n.self {
		t.Fatalf("%+v", w.osdmap)
	}
	w.start(other)
	w.ends(t)
	if w.tally.backfills != 0 || w.primary(t) != p {
		t.Errorf("%d backfills, and %d is the primary", w.tally.backfills, w.primary(t).id)
	}
}

// TestPrimaryFrozen: another takes over after Grace; thawed, the old one serves nothing, not even what it has read before.
func TestPrimaryFrozen(t *testing.T) {
	w := begun(t, 3, 2)
	w.write(t, 0)
	p := w.primary(t)
	if !w.client.read(w, p, 0) {
		t.Fatal("the read is not taken")
	}
	read := len(w.client.ops) - 1
	p.frozen = true
	w.pass(2 * time.Second)
	if w.primary(t) == p {
		t.Fatal("it still serves")
	}
	w.write(t, 0)
	p.frozen = false
	if _, _, ok := p.n.Read(p.clock(w.now)); ok {
		t.Error("it takes a read")
	}
	w.pass(time.Second)
	if w.client.ops[read].ended != never {
		t.Error("it has served the read")
	}
	w.ends(t)
}

// TestMinSize: with fewer, the volume waits, and goes on when they are back.
func TestMinSize(t *testing.T) {
	w := begun(t, 2, 2)
	w.write(t, 0)
	p := w.primary(t)
	other := w.hosts[1-p.id]
	w.crash(other, 0)
	w.pass(10 * time.Second)
	if slices.ContainsFunc(w.hosts, func(h *host) bool { return h.n != nil && h.n.leased(h.clock(w.now)) }) || len(w.osdmap.Acting) != 2 {
		t.Fatalf("it serves alone, with %+v", w.osdmap)
	}
	w.start(other)
	w.ends(t)
}

// TestPowerLoss: all restart; the volume goes on when all are back, or when the operator says that they will not be.
func TestPowerLoss(t *testing.T) {
	for _, lost := range []bool{false, true} {
		w := begun(t, 3, 1)
		w.write(t, 0)
		w.client.flushAll(w, w.primary(t))
		w.pass(100 * time.Millisecond)
		w.write(t, 1)
		for _, h := range w.hosts {
			w.crash(h, 0)
		}
		w.start(w.hosts[1])
		w.start(w.hosts[2])
		w.pass(10 * time.Second)
		if slices.ContainsFunc(w.hosts, func(h *host) bool { return h.n != nil && h.n.lead != nil }) {
			t.Fatal("it goes on without one that may have more")
		}
		if lost {
			w.operate(w.osdmap.Without(0))
			w.pass(3 * time.Second)
			w.write(t, 2)
		}
		w.start(w.hosts[0])
		w.ends(t)
	}
}

// TestDiskReplaced: an empty disk is not taken for the one that was there.
func TestDiskReplaced(t *testing.T) {
	w := begun(t, 2, 1)
	w.write(t, 0)
	for _, h := range w.hosts {
		w.crash(h, 0)
	}
	w.hosts[0].disk, w.hosts[0].store, w.hosts[0].safe = disklog{hard: HardState{Incarnation: 100}}, store{}, store{}
	w.start(w.hosts[0])
	w.start(w.hosts[1])
	w.pass(10 * time.Second)
	if slices.ContainsFunc(w.hosts, func(h *host) bool { return h.n.lead != nil }) {
		t.Fatal("it goes on with a disk that was not there before")
	}
	w.operate(w.osdmap.Without(0))
	w.ends(t)
	if w.tally.backfills+len(w.hosts[0].log) == 0 {
		t.Error("the new disk has nothing")
	}
}

// TestRefused: what breaks a rule is counted, and changes nothing.
func TestRefused(t *testing.T) {
	w := begun(t, 3, 2)
	w.write(t, 0)
	p := w.primary(t)
	o := w.hosts[(p.id+1)%3]
	iv, now := p.n.lead.interval, func(h *host) time.Duration { return h.clock(w.now) }
	head := p.n.log.head().Index
	for _, c := range []struct {
		name string
		to   *host
		m    Message
	}{
		{"another volume", o, Message{8, p.n.self, o.n.self, iv, Lease{Epoch: 2, Sent: 1}}},
		{"for another incarnation", o, Message{7, p.n.self, Member{o.id, 99}, iv, Lease{Epoch: 2, Sent: 1}}},
		{"not from the primary", o, Message{7, w.hosts[(p.id+2)%3].n.self, o.n.self, iv, Lease{Epoch: 2, Sent: 1}}},
		{"the primary's former incarnation", o, Message{7, Member{p.id, 0}, o.n.self, iv, Start{}}},
		{"an older epoch", o, Message{7, p.n.self, o.n.self, Interval{iv.Since - 1, 5}, Push{}}},
		{"an older group", o, Message{7, p.n.self, o.n.self, Interval{iv.Since, 0}, Push{}}},
		{"an unknown host", p, Message{7, Member{9, 1}, p.n.self, iv, Notify{}}},
		{"another incarnation's notify", p, Message{7, Member{o.id, 7}, p.n.self, Interval{}, Notify{HardState: HardState{Incarnation: 6}}}},
		{"durable before it has come", p, Message{7, o.n.self, p.n.self, iv, Report{Received: head, Durable: head + 1}}},
		{"more than there is", p, Message{7, o.n.self, p.n.self, iv, Report{Received: head + 1}}},
		{"a lease for a request to come", p, Message{7, o.n.self, p.n.self, iv, Report{Sent: now(p) + 1}}},
		{"a report of another group", p, Message{7, o.n.self, p.n.self, Interval{iv.Since, 9}, Report{}}},
		{"on a member's disk what was never written", p, Message{7, o.n.self, p.n.self, iv, Durable{head + 1}}},
		{"durable in another group", p, Message{7, o.n.self, p.n.self, Interval{iv.Since, 9}, Durable{}}},
		{"a report to a replica", o, Message{7, p.n.self, o.n.self, iv, Report{}}},
	} {
		before, refused := (&encoder{}), c.to.n.refused
		before.state(c.to.n)
		c.to.n.Step(c.m, now(c.to))
		after := &encoder{}
		if after.state(c.to.n); c.to.n.refused != refused+1 || string(before.b) != string(after.b) {
			t.Errorf("%s: %d refused, changed: %v", c.name, c.to.n.refused-refused, string(before.b) != string(after.b))
		}
	}
	refused := o.n.refused
	o.n.Landed(Interval{1, 1}, Post{Version: Version{1, 5}}, now(o))
	o.n.Landed(iv, Post{Version: Version{iv.Since, head + 2}}, now(o))
	o.n.Synced(1_000_000, now(o))
	if o.n.refused != refused+3 || o.n.log.head().Index != head {
		t.Errorf("%d refused", o.n.refused-refused)
	}
	w.ends(t)
}

// TestHostile: a member, and one that is none, send what they like; the volume goes on.
func TestHostile(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	w := begun(t, 4, 2)
	p := w.primary(t)
	bad := w.hosts[(p.id+1)%4]
	small := func() uint64 {
		return []uint64{0, 1, 2, 3, rnd.Uint64N(10), rnd.Uint64N(100), rnd.Uint64(), Full}[rnd.IntN(8)]
	}
	version := func() Version { return Version{small(), small()} }
	for range 20_000 {
		hard := HardState{small(), small(), small(), small(), small(), rnd.IntN(2) == 0}
		runs := []Version{version(), version()}[:rnd.IntN(3)]
		m := Message{Volume: 7, From: bad.n.self, Interval: []Interval{p.n.lead.interval, {small(), small()}}[rnd.IntN(2)], Body: []Body{
			Lease{small(), time.Duration(small()), small(), small(), small()}, Push{version(), runs, rnd.IntN(2) == 0, small()}, Start{version()},
			Chunk{small(), small(), small()}, Notify{hard, version()},
			Report{time.Duration(small()), runs, small(), small(), small(), rnd.IntN(2) == 0, Backfill(small()), small()}, Durable{small()}}[rnd.IntN(7)]}
		if rnd.IntN(3) == 0 {
			m.From.Incarnation = uint64(rnd.IntN(2)) // with a later one it would shut itself out
		}
		for _, h := range w.hosts {
			if m.To = h.n.self; h != bad {
				h.n.Step(m, h.clock(w.now))
				w.settle(h)
			}
		}
	}
	w.crash(bad, 0) // what was believed of it is of no use
	w.pass(time.Second)
	w.write(t, 0)
	w.start(bad)
	w.ends(t)
}

// TestNothingBeforeTheIncarnation: a node says nothing before its incarnation is durable.
func TestNothingBeforeTheIncarnation(t *testing.T) {
	w := newWorld(3, 3, 2)
	n := New(w.config(0), Stored{}, time.Second)
	n.MapIs(w.osdmap, time.Second)
	n.Tick(time.Second)
	for _, a := range n.Take() {
		if _, ok := a.(Send); ok {
			t.Errorf("%+v", a)
		}
	}
}

// TestNothingBeforeTheMap: a node says nothing of its log before it durably knows the epoch in which that was made.
func TestNothingBeforeTheMap(t *testing.T) {
	w := newWorld(3, 2, 2)
	n := New(w.config(2), Stored{}, time.Second)
	said := func(at time.Duration) (list []Notify) {
		n.Tick(at)
		for _, a := range n.Take() {
			if s, ok := a.(Send); ok {
				list = append(list, s.Message.Body.(Notify))
			}
		}
		return list
	}
	n.Synced(n.disk.seq, time.Second)
	if list := said(2 * time.Second); len(list) > 0 {
		t.Errorf("without a map: %+v", list)
	}
	n.MapIs(w.osdmap, 2*time.Second)
	if list := said(3 * time.Second); len(list) > 0 {
		t.Errorf("before the map's epoch is durable: %+v", list)
	}
	n.Synced(n.disk.seq, 3*time.Second)
	if list := said(4 * time.Second); len(list) != 2 || list[0].Born != 1 {
		t.Errorf("%+v", list)
	}
}

// TestPushRefused: a member takes no entries whose predecessor it lacks, and none while its store was left incomplete.
func TestPushRefused(t *testing.T) {
	primary, now := Member{0, 1}, time.Second
	for _, c := range []struct {
		name string
		hard HardState
		push Push
		want uint64 // entries that it has
	}{
		{"the first", HardState{}, Push{Runs: []Version{{2, 3}}}, 3},
		{"a gap", HardState{}, Push{Prev: Version{2, 5}, Runs: []Version{{2, 6}}}, 0},
		{"an incomplete store", HardState{Backfilling: true}, Push{Runs: []Version{{2, 3}}}, 0},
	} {
		n := New(newWorld(2, 1, 1).config(1), Stored{HardState: c.hard}, now)
		n.MapIs(Map{Epoch: 2, Since: 2, Primary: primary, Acting: []Member{primary}, MinSize: 1}, now)
		n.Synced(n.disk.seq, now)
		n.Take()
		n.Step(Message{7, primary, n.self, Interval{2, 1}, c.push}, now)
		list := n.Take()
		i := slices.IndexFunc(list, func(a Action) bool { _, ok := a.(Send); return ok })
		if i < 0 {
			t.Fatalf("%s: no report: %+v", c.name, list)
		}
		if r := list[i].(Send).Message.Body.(Report); r.Received != c.want || n.log.head().Index != c.want {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

// stopBeats has no node do what waits for a beat.
func (w *world) stopBeats() {
	w.queue = slices.DeleteFunc(w.queue, func(e *event) bool { return e.kind == evTick })
}

// TestWithoutBeats: beats are for what is lost. All else is done when what it waits for happens.
func TestWithoutBeats(t *testing.T) {
	for name, happens := range map[string]func(w *world, p, o *host){
		"the group fails": func(w *world, p, _ *host) {
			w.stopBeats()
			w.breaks(w.group(p.n.self, p.n.lead.interval))
			w.settle(p)
		},
		"a member is gone": func(w *world, _, o *host) {
			w.stopBeats()
			w.crash(o, 0)
		},
		"a store is copied": func(w *world, p, o *host) {
			w.crash(o, 0)
			w.pass(time.Second)
			for range 4 * w.config(0).Keep {
				w.write(t, 0)
			}
			w.start(o)
			for o.n.follow.stage != Pulling {
				w.pass(time.Millisecond)
			}
			w.stopBeats()
			w.pass(90 * time.Millisecond)
			if stage := p.n.peer(o.n.self).stage; stage != Filled {
				t.Errorf("the copy is at stage %d", stage)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := begun(t, 3, 2)
			p := w.primary(t)
			o := w.hosts[(p.id+1)%3]
			happens(w, p, o)
			w.pass(90 * time.Millisecond)
			if s := p.n.Status(p.clock(w.now)); s.State != Active || s.Map.Acts(Member{o.id, 1}) != (name == "the group fails") {
				t.Errorf("%+v", s)
			}
			for _, h := range w.hosts {
				w.tick(h)
			}
			w.pass(200 * time.Millisecond)
			w.write(t, 0)
			if o.n == nil {
				w.start(o)
			}
			w.ends(t)
		})
	}
}

// TestHurry: a flush has all members make durable at once what it covers, and the next entries; it tells them once.
func TestHurry(t *testing.T) {
	w := begun(t, 3, 2)
	p := w.primary(t)
	now := p.clock(w.now)
	p.n.Write(now)
	head := p.n.log.head().Index
	p.n.Take()
	hurry := func(list []Action) (to []uint64) {
		for _, a := range list {
			if h, ok := a.(Hurry); ok {
				to = append(to, h.To)
			}
			if s, ok := a.(Send); ok {
				to = append(to, s.Message.Body.(Lease).Hurry)
			}
		}
		return to
	}
	p.n.Flush(1, now)
	want := head + eager
	list := p.n.Take()
	if got := hurry(list); !slices.Equal(got, []uint64{want, want, want}) {
		t.Errorf("the first flush: %v", got)
	}
	p.n.Write(now)
	p.n.Take()
	if p.n.Flush(2, now); len(p.n.Take()) != 0 {
		t.Error("the next flush tells it again")
	}
	m := list[1].(Send).Message
	o := w.hosts[m.To.ID]
	o.n.Step(m, o.clock(w.now))
	if i := slices.Index(o.n.Take(), Action(Hurry{want})); i < 0 {
		t.Error("the member does not hurry")
	}
}

// TestQuiet: while nothing happens, members talk of leases only.
func TestQuiet(t *testing.T) {
	w := begun(t, 3, 2)
	w.write(t, 0)
	w.pass(time.Second)
	for range 500 {
		w.pass(time.Millisecond)
		for _, e := range w.queue {
			switch e.msg.Body.(type) {
			case nil, Lease, Report:
			default:
				t.Fatalf("%T %+v", e.msg.Body, e.msg)
			}
		}
	}
}

// TestLateReset: what told a member to begin anew, and comes when the member has gone on and is in the acting set, is void.
func TestLateReset(t *testing.T) {
	w := begun(t, 3, 2)
	w.write(t, 0)
	p := w.primary(t)
	o := w.hosts[(p.id+1)%3]
	stale := w.osdmap
	stale.Acting = []Member{p.n.self} // it has not heard yet that it is in the acting set
	o.n.osdmap = stale
	head := o.n.log.head()
	for _, b := range []Push{{Prev: head, Reset: true, Have: head.Index}, {Prev: Version{head.Epoch, head.Index + 1}, Reset: true}} {
		o.n.Step(Message{7, p.n.self, o.n.self, p.n.lead.interval, b}, o.clock(w.now))
	}
	if o.n.hard.Backfilling || o.n.log.head() != head || len(o.n.log.runs) == 0 {
		t.Errorf("it has begun anew: %+v", o.n.log)
	}
	o.n.osdmap = w.osdmap
	w.ends(t)
}

// TestResetPending: a member that was told to begin anew is not promoted before that is void, or done.
func TestResetPending(t *testing.T) {
	w := begun(t, 3, 2)
	p := w.primary(t)
	o := w.hosts[(p.id+1)%3]
	w.crash(o, 0)
	w.pass(time.Second)
	w.start(o)
	peer := p.n.peer(o.n.self)
	for peer == nil || !peer.known {
		w.pass(time.Millisecond)
		peer = p.n.peer(o.n.self)
	}
	peer.reset = reset{true, p.n.log.head().Index, p.n.log.head().Index + 1}
	w.pass(3 * time.Second)
	if w.osdmap.Acts(o.n.self) {
		t.Error("it is promoted")
	}
	w.write(t, 0)
	w.ends(t)
}

func TestConfigCheck(t *testing.T) {
	good := newWorld(3, 3, 2).config(1)
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for _, lease := range []time.Duration{1, 4, 300} {
		least := Config{Self: 1, Up: good.Up, Lease: lease, Grace: lease * 5 / 4, Beat: 1, Keep: 1, Limit: 2, Batch: 1}
		if err := least.Check(); err != nil {
			t.Error(err)
		}
	}
	for want, change := range map[string]func(c *Config){
		"host 9 is not among": func(c *Config) { c.Self = 9 },
		"grace 374ms":         func(c *Config) { c.Grace = 374 * time.Millisecond },
		"lease 0s":            func(c *Config) { c.Lease = 0 },
		"beat 0s":             func(c *Config) { c.Beat = 0 },
		"keep 0":              func(c *Config) { c.Keep = 0 },
		"batch 0":             func(c *Config) { c.Batch = 0 },
		"limit 9":             func(c *Config) { c.Limit = 9 },
	} {
		c := good
		change(&c)
		if err := c.Check(); !errors.Is(err, errConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	w := newWorld(1, 1, 1)
	w.rnd, w.calm = rand.New(rand.NewPCG(1, 1)), true
	w.start(w.hosts[0])
	w.pass(2 * time.Second)
	n, now := w.hosts[0].n, w.hosts[0].clock(w.now)
	iv := n.lead.interval
	b.ReportAllocs()
	for b.Loop() {
		v, ok := n.Write(now)
		if !ok {
			b.Fatal("the volume waits")
		}
		n.Synced(n.disk.seq, now)
		n.Completed(iv, v.Index, now)
		n.Synced(n.disk.seq, now)
		n.Take()
	}
}
