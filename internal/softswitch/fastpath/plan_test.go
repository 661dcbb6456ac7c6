package fastpath

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// A rig is a pipeline with a plan that follows it, and what the maps would hold.
type rig struct {
	*dataplane.Switch
	plan *plan
	maps map[place]any
}

func noCounts(string, uint32) bpf.Count { return bpf.Count{} }

// follower tells a plan what changes.
type follower struct{ *plan }

func (f follower) EntryChanged(t *pipeline.Table, e *pipeline.Entry, gone bool) {
	f.changed(t, e, gone)
}
func (f follower) SettingChanged(*pipeline.Table) {}
func (f follower) GroupChanged(*pipeline.Profile) {
	for e := range f.ecmpGroups.All() {
		f.touch(unit{kind: ecmp, e: e})
	}
}
func (f follower) Counting(*pipeline.Entry)             {}
func (f follower) CounterUsed(*pipeline.Counter, int)   {}
func (f follower) RegisterUsed(*pipeline.Register, int) {}
func (f follower) RegisterSet(*pipeline.Register, int)  {}

var somePorts = map[uint16]uint32{1: 101, 2: 102, 3: 103, 4: 104, 5: 105}

func newRig(t *testing.T) *rig {
	t.Helper()
	s, err := dataplane.NewRack()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Switch: s, plan: newPlan(s.Pipeline, s.PRE, somePorts, noCounts), maps: map[place]any{}}
	s.SetOffload(follower{r.plan})
	s.PRE.Changed = func(g uint16) { r.plan.touchAll(r.plan.groups.byPRE[g]) }
	r.follow(t)
	return r
}

// follow changes the maps as the plan says.
func (r *rig) follow(t *testing.T) {
	t.Helper()
	c := r.plan.changes()
	for at := range c.remove {
		if _, there := r.maps[at]; !there {
			t.Errorf("%v is to be removed, and is not there", at)
		}
		if _, put := c.put[at]; put {
			t.Errorf("%v is to be removed and put", at)
		}
		if !c.has(at) {
			t.Errorf("packets may meet that %v is removed", at)
		}
		delete(r.maps, at)
	}
	for _, at := range c.order() {
		v := c.put[at]
		if is, there := r.maps[at]; is == v.is {
			t.Errorf("%v is put again", at)
		} else if there && !c.has(at) {
			t.Errorf("packets may meet that %v is changed", at)
		}
		r.maps[at] = v.is
		if p, ok := v.is.(preGroup); ok {
			for i := range uint32(len(p.set.interfaces())) { //nolint:gosec // few
				if _, there := r.maps[place{"copies", p.first + i}]; !there {
					t.Errorf("%v leads to a copy that is not there yet", at)
				}
			}
		}
	}
	c.reset()
	r.plan.cells.sweep()
}

// has reports whether the change prevents packets from seeing half of it at a place.
func (c *change) has(at place) (own bool) {
	_, all := c.turns[everything]
	switch k := at.key.(type) {
	case bpf.GroupKey:
		_, own = c.turns[bpf.CellOf(k.Src, k.MCID)]
	case bpf.MemberKey:
		_, own = c.turns[bpf.CellOf(k.Dst, k.DestQP)]
	default:
		own = len(c.turns) > 0 || at.table == "merge_groups" // of a slot without members
	}
	return all || own
}

// in returns the entries of a map, by their values without cells.
func (r *rig) in(table string) map[any]any {
	out := map[any]any{}
	for at, v := range r.maps {
		if at.table == table {
			out[at.key] = uncounted(v)
		}
	}
	return out
}

func uncounted(v any) any {
	switch v := v.(type) {
	case bpf.Multicast:
		v.Counter = 0
		return v
	case bpf.Copy:
		v.Counter, v.Region.Counter = 0, 0
		return v
	case bpf.Region:
		v.Counter = 0
		return v
	}
	return v
}

// still is a group whose regions are where the sender's packets say.
func still(index int) dataplane.Group {
	g := dataplane.Group{Index: index, Sender: 1, SenderQPN: rocev2.QPN(0x51 + index), MCID: rocev2.QPN(0xe00000 + index), Receivers: []int{2, 3, 4}, Epoch: 1}
	for i := range g.Receivers {
		g.Targets = append(g.Targets, dataplane.Target{QPN: dataplane.ReceiverQPN(i), RKey: dataplane.ReceiverRKey(i), VA: dataplane.SenderVA})
	}
	return g
}

func (r *rig) climbs(t *testing.T) (n int) {
	t.Helper()
	r.follow(t)
	for _, v := range r.in("groups") {
		n += int(v.(bpf.Multicast).Climbs)
	}
	return n
}

// TestGroupsThatClimb: a group whose copies the kernel cannot all make climbs as a whole, and leaves nothing in
// the maps besides; when that has gone, it is copied.
func TestGroupsThatClimb(t *testing.T) {
	g := still(7)
	index := []any{g.Index, 2}
	receiver := func(neutral uint64) []uint64 {
		return []uint64{dataplane.Addr(dataplane.HostIP(3)), uint64(g.Targets[1].QPN), 3, neutral}
	}
	to := func(ports ...uint16) (list []pre.Replica) {
		for i, p := range ports {
			list = append(list, pre.Replica{Port: p, Instance: uint16(i + 1)})
		}
		return list
	}
	preGroup := func(r *rig, list []pre.Replica) {
		if err := r.PRE.ModifyGroup(uint32(g.Index), list); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct{ do, undo func(r *rig) }{
		"no constant": {func(r *rig) { r.Modify("egress.rewrite.replicas", index, "egress.rewrite.to_receiver", receiver(0)...) },
			func(r *rig) { r.Modify("egress.rewrite.replicas", index, "egress.rewrite.to_receiver", receiver(5)...) }},
		"no next hop": {func(r *rig) {
			r.Modify("egress.rewrite.replicas", index, "egress.rewrite.to_branch", dataplane.Addr(dataplane.HostIP(3)), 0, 5)
		}, func(r *rig) { r.Modify("egress.rewrite.replicas", index, "egress.rewrite.to_receiver", receiver(5)...) }},
		"another address without a constant": {func(r *rig) {
			r.Modify("egress.rewrite.replicas", index, "egress.rewrite.to_branch", dataplane.Addr(dataplane.HostIP(3)), 3, 0)
		}, func(r *rig) { r.Modify("egress.rewrite.replicas", index, "egress.rewrite.to_receiver", receiver(5)...) }},
		"two copies at a port":          {func(r *rig) { preGroup(r, to(2, 3, 3)) }, func(r *rig) { preGroup(r, to(2, 3, 4)) }},
		"a port without an interface":   {func(r *rig) { preGroup(r, to(2, 3, 9)) }, func(r *rig) { preGroup(r, to(2, 3, 4)) }},
		"a copy that no rule describes": {func(r *rig) { preGroup(r, []pre.Replica{{Port: 2, Instance: 9}}) }, func(r *rig) { preGroup(r, to(2, 3, 4)) }},
		"a PRE group of two groups": {func(r *rig) {
			r.Add("ingress.replication.groups", []any{1, 2, 3}, "ingress.replication.replicate", 8, uint64(g.Index), 1)
		}, func(r *rig) {
			k := match.Key{{Value: match.Value{1}}, {Value: match.Value{2}}, {Value: match.Value{3}}}
			if err := r.Table("ingress.replication.groups").Delete(k, 0); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.Install(g)
			if n := r.climbs(t); n != 0 || len(r.in("copies")) != 3 || len(r.in("regions"))+len(r.in("group_regions")) != 0 || len(r.in("pre_groups")) != 1 {
				t.Fatalf("%d groups climb; %v", n, r.maps)
			}
			c.do(r)
			if n := r.climbs(t); n != len(r.in("groups")) || len(r.in("copies"))+len(r.in("regions"))+len(r.in("group_regions"))+len(r.in("pre_groups")) != 0 || len(r.plan.room.taken) > 0 {
				t.Errorf("%d groups of %d climb; copies %v", n, len(r.in("groups")), r.in("copies"))
			}
			c.undo(r)
			if n := r.climbs(t); n != 0 || len(r.in("copies")) != 3 {
				t.Errorf("afterward %d groups climb", n)
			}
		})
	}
}

// TestRegions: the kernel processes a group if all receivers' copies change by constants for every
// WRITE, and not if WRITEs to one region would climb, because later packets would overtake them.
func TestRegions(t *testing.T) {
	va := func(first, last uint64) dataplane.Span { return dataplane.Span{Low: first, High: last} }
	for name, c := range map[string]struct {
		add  func(r *rig, g *dataplane.Group)
		want map[any]any // the second of two; nil: it climbs
	}{
		"all": {func(*rig, *dataplane.Group) {}, map[any]any{}},
		"shorter at one": {func(r *rig, g *dataplane.Group) {
			for i, s := range []dataplane.Span{va(1000, 1999), va(1100, 2000), va(0, 1899)} {
				r.Add("egress.rewrite.regions", []any{g.Index, i + 1, 2, s}, "egress.rewrite.translate", 0, 77, 5)
			}
		}, map[any]any{bpf.GroupRegion{Group: 7, RKey: wire(2)}: bpf.Span{First: 1100, Last: 1899}}},
		"not at one": {func(r *rig, g *dataplane.Group) {
			r.Add("egress.rewrite.regions", []any{g.Index, 1, 2, va(0, 9)}, "egress.rewrite.translate", 0, 77, 5)
		}, nil},
		"not at the first": {func(r *rig, g *dataplane.Group) {
			for i := range 2 {
				r.Add("egress.rewrite.regions", []any{g.Index, i + 2, 2, va(0, 9)}, "egress.rewrite.translate", 0, 77, 5)
			}
		}, nil},
		"two at one": {func(r *rig, g *dataplane.Group) {
			r.Add("egress.rewrite.regions", []any{g.Index, 2, 1, va(300, 400)}, "egress.rewrite.translate", 0, 77, 5)
		}, nil},
		"moved": {func(r *rig, g *dataplane.Group) {
			r.Modify("egress.rewrite.regions", []any{g.Index, 2, 1, va(100, 199)}, "egress.rewrite.translate", 4096, 77, 0)
		}, nil},
		"no constant": {func(r *rig, g *dataplane.Group) {
			r.Modify("egress.rewrite.regions", []any{g.Index, 2, 1, va(100, 199)}, "egress.rewrite.translate", 0, 77, 0)
		}, nil},
		"constants that cancel each other": {func(r *rig, g *dataplane.Group) {
			r.Modify("egress.rewrite.regions", []any{g.Index, 2, 1, va(100, 199)}, "egress.rewrite.translate", 0, 77, 9)
		}, nil},
	} {
		r := newRig(t)
		g := still(7)
		if err := r.PRE.InsertGroup(7, []pre.Replica{{Port: 2, Instance: 1}, {Port: 3, Instance: 2}, {Port: 4, Instance: 3}}); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			r.Add("egress.rewrite.replicas", []any{g.Index, i + 1}, "egress.rewrite.to_receiver", dataplane.Addr(dataplane.HostIP(2+i)), 55, uint64(2+i), 9)
			r.Add("egress.rewrite.regions", []any{g.Index, i + 1, 1, va(100, 199)}, "egress.rewrite.translate", 0, 77, 5)
		}
		r.Add("ingress.replication.groups", []any{1, 2, 3}, "ingress.replication.replicate", 7, 7, 1)
		c.add(r, &g)
		if n := r.climbs(t); (n == 1) != (c.want == nil) || !maps.Equal(r.in("group_regions"), c.want) {
			t.Errorf("%s: %d climb; regions %v, expected %v", name, n, r.in("group_regions"), c.want)
		}
		for _, v := range r.in("groups") {
			first := bpf.Multicast{Group: 7, FirstPREGroup: 7, PREGroups: 1, Regions: uint32(1 + len(c.want)), RKey: wire(1), Span: bpf.Span{First: 100, Last: 199}}
			if c.want != nil && v != first {
				t.Errorf("%s: %+v, expected %+v", name, v, first)
			}
		}
		if n := len(r.in("regions")); n != 3*len(c.want) {
			t.Errorf("%s: %d regions", name, n)
		}
	}
}

// TestCannot: what no map can hold ends the fast path, and names why.
func TestCannot(t *testing.T) {
	r := newRig(t)
	selector := r.Profile("ingress.unicast.ecmp_selector")
	group := func(weights ...int) (list []pipeline.Weighted) {
		for i, w := range weights {
			list = append(list, pipeline.Weighted{Member: uint32(i + 1), Weight: w, WatchPort: -1})
		}
		return list
	}
	for i := range 3 {
		if err := selector.InsertMember(uint32(i+1), r.hop(uint64(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	if err := selector.InsertGroup(1, group(60, 4), 0); err != nil {
		t.Fatal(err)
	}
	e := &pipeline.Entry{Key: match.Key{{Value: match.Value{7}}}, Ref: pipeline.RefGroup, Group: 1}
	if err := r.Table("ingress.unicast.ecmp_groups").Insert(e); err != nil {
		t.Fatal(err)
	}
	r.follow(t)
	p := r.in("ecmp_groups")[uint32(7)].(bpf.Paths)
	if p.N != 64 || p.NextHops[59] != 1 || p.NextHops[60] != 2 || r.plan.why() != "" {
		t.Errorf("%+v, %q", p, r.plan.why())
	}
	for _, c := range []struct {
		members []pipeline.Weighted
		ok      bool
	}{{group(60, 5), false}, {group(1, 1), true}, {[]pipeline.Weighted{{Member: 1, Weight: 1, WatchPort: 3}}, false}, {group(1), true}} {
		if err := selector.ModifyGroup(1, c.members, 0); err != nil {
			t.Fatal(err)
		}
		r.follow(t)
		if why := r.plan.why(); (why == "") != c.ok {
			t.Errorf("%+v: %q", c.members, why)
		}
	}
}

// TestOneShot: an ECMP group with actions of its own, as the agent writes it, is one for the kernel.
func TestOneShot(t *testing.T) {
	r := newRig(t)
	set := func(watch int, weights ...int) *pipeline.Entry {
		e := &pipeline.Entry{Key: match.Key{{Value: match.Value{7}}}, Ref: pipeline.RefSet}
		for i, w := range weights {
			e.Set = append(e.Set, pipeline.Weighted{Call: r.hop(uint64(i + 1)), Weight: w, WatchPort: watch})
		}
		return e
	}
	groups := r.Table("ingress.unicast.ecmp_groups")
	for _, c := range []struct {
		e    *pipeline.Entry
		want []uint16
	}{
		{set(-1, 1, 1), []uint16{1, 2}}, {set(-1, 60, 5), nil}, {set(-1, 1, 2, 1), []uint16{1, 2, 2, 3}}, {set(3, 1, 1), nil}, {set(-1, 1), []uint16{1}},
	} {
		if e := groups.Exactly(7); e != nil { // of the row before
			if err := groups.Delete(e.Key, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := groups.Insert(c.e); err != nil {
			t.Fatal(err)
		}
		r.follow(t)
		p, _ := r.in("ecmp_groups")[uint32(7)].(bpf.Paths)
		if why := r.plan.why(); (why == "") != (c.want != nil) || !slices.Equal(p.NextHops[:p.N], c.want) {
			t.Errorf("%+v: %+v, %q", c.e.Set, p, why)
		}
	}
}

// hop is the call of an ECMP group's member.
func (r *rig) hop(n uint64) pipeline.Call {
	for i, a := range r.Program().Actions {
		if a.Name == "ingress.unicast.to_next_hop" {
			return pipeline.Call{Action: i, Args: []match.Value{{n}}}
		}
	}
	panic("no action")
}

// TestFollows: after any changes the maps hold what they would hold if they were built from
// scratch.
func TestFollows(t *testing.T) {
	for seed := range uint64(20) {
		r := newRig(t)
		r.Install(still(1))
		r.Install(still(2))
		rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // for a test
		for range 30 {
			for range 1 + rng.IntN(6) {
				r.anything(rng)
			}
			r.follow(t)
			fresh := newPlan(r.Pipeline, r.PRE, somePorts, noCounts)
			anew := map[place]any{}
			for at, v := range fresh.changes().put {
				anew[at] = v.is
			}
			want, got := stored(t, anew), stored(t, r.maps)
			if !maps.Equal(got, want) {
				for at, v := range want {
					if got[at] != v {
						t.Errorf("%v is %v, expected %v", at, got[at], v)
					}
				}
				for at := range got {
					if _, ok := want[at]; !ok {
						t.Errorf("%v is left", at)
					}
				}
				t.Fatalf("seed %d", seed)
			}
			if fresh.why() != r.plan.why() {
				t.Fatalf("seed %d: %q, expected %q", seed, r.plan.why(), fresh.why())
			}
		}
	}
}

// stored returns the content of maps except counts, independent of the position of copies: those of
// a PRE group must be adjacent, in the order of its interfaces.
func stored(t *testing.T, m map[place]any) map[place]any {
	t.Helper()
	out, copies := map[place]any{}, 0
	for at, v := range m {
		switch v := uncounted(v).(type) {
		case preGroup:
			for i, n := range v.set.interfaces() {
				c, _ := m[place{"copies", v.first + uint32(i)}].(bpf.Copy)
				c.Counter, c.Region.Counter = 0, 0
				if out[place{"copies", place{fmt.Sprint(at.key), n}}] = c; uint32(c.PREGroup) != at.key || c.Interface != n {
					t.Errorf("copy %d of PRE group %d is %+v", i, at.key, c)
				}
			}
			copies += len(v.set.interfaces())
			out[at] = v.set
		case bpf.Copy:
			copies--
		default:
			out[at] = v
		}
	}
	if copies != 0 {
		t.Errorf("%d copies too few", copies)
	}
	return out
}

// TestRoom: no cell is taken twice, and all are given back.
func TestRoom(t *testing.T) {
	const cells = 100
	r, rng := newRoom(cells), rand.New(rand.NewPCG(1, 1)) //nolint:gosec // for a test
	refused := 0
	for range 2000 {
		pre := uint16(rng.IntN(20))
		if rng.IntN(3) == 0 {
			r.give(pre)
		} else {
			had, there := r.taken[pre]
			n := 1 + rng.IntN(16)
			first, ok := r.take(pre, n)
			if !ok {
				refused++
			} else if there && had.n == uint32(n) && had.first != first {
				t.Fatalf("%d cells at %d are moved to %d", n, had.first, first)
			}
		}
		var used [cells]int
		for _, b := range r.taken {
			for i := range b.n {
				used[b.first+i]++
			}
		}
		for i, g := range r.gaps {
			if g.n == 0 || i > 0 && r.gaps[i-1].first+r.gaps[i-1].n >= g.first {
				t.Fatalf("gaps %v", r.gaps)
			}
			for i := range g.n {
				used[g.first+i]++
			}
		}
		for i, n := range used {
			if n != 1 {
				t.Fatalf("cell %d is in %d blocks: %v, %v", i, n, r.taken, r.gaps)
			}
		}
	}
	if refused == 0 {
		t.Error("there was always room")
	}
}

// anything inserts, changes or deletes something.
func (r *rig) anything(rng *rand.Rand) {
	n := func(k int) uint64 { return uint64(rng.IntN(k)) }
	type entry struct {
		table  string
		key    []any
		action string
		args   []uint64
	}
	hop := 1 + n(6)
	all := []entry{
		{"ingress.unicast.routes", []any{dataplane.Prefix{Value: n(3) << 24, Len: 8}}, "ingress.unicast.to_next_hop", []uint64{hop}},
		{"ingress.unicast.routes", []any{dataplane.Prefix{Value: n(3) << 24, Len: 8}}, "ingress.unicast.to_agent", nil},
		{"ingress.unicast.next_hops", []any{hop}, "ingress.unicast.to_port", []uint64{1 + n(7)}},
		{"egress.neighbour.neighbours", []any{hop}, "egress.neighbour.rewrite", []uint64{1, n(3)}},
		{"ingress.unicast.bridge", []any{n(3)}, "ingress.unicast.to_port", []uint64{1 + n(7)}},
		{"ingress.guard.guarded_ports", []any{1 + n(6)}, "NoAction", nil},
		{"ingress.guard.port_hosts", []any{1 + n(3), n(3)}, "ingress.guard.host", []uint64{n(3)}},
		{"ingress.replication.groups", []any{n(2), n(2), n(2)}, "ingress.replication.replicate", []uint64{n(3), 1 + n(3), n(3)}},
		{"egress.rewrite.replicas", []any{n(3), n(3)}, "egress.rewrite.to_receiver", []uint64{n(2), n(2), hop, n(3)}},
		{"egress.rewrite.replicas", []any{n(3), n(3)}, "egress.rewrite.to_branch", []uint64{n(2), hop, n(3)}},
		{"egress.ack_merge.merge_members", []any{n(2), n(2), n(2)}, "egress.ack_merge.from", []uint64{n(3), n(3)}},
		{"egress.ack_merge.merge_groups", []any{n(3)}, "egress.ack_merge.merge", []uint64{7, 1 + n(3), 0, 0, 9, 9, 0}},
	}
	first := n(3)
	all = append(all, entry{"egress.rewrite.regions", []any{n(3), n(3), n(2), dataplane.Span{Low: first, High: first + n(3)}}, "egress.rewrite.translate", []uint64{n(2), 5, n(3)}})
	if rng.IntN(5) == 0 {
		var list []pre.Replica
		for port := range uint16(6) {
			if rng.IntN(2) == 0 {
				list = append(list, pre.Replica{Port: port + 1, Instance: uint16(n(3))})
			}
		}
		id := uint32(1 + n(4))
		switch there := r.PRE.Group(uint16(id)) != nil; {
		case !there:
			_ = r.PRE.InsertGroup(id, list)
		case rng.IntN(3) == 0:
			_ = r.PRE.DeleteGroup(id)
		default:
			_ = r.PRE.ModifyGroup(id, list)
		}
		return
	}
	e := all[rng.IntN(len(all))]
	try := func(f func()) (ok bool) {
		defer func() { ok = recover() == nil }() // what is there already, or is not
		f()
		return true
	}
	switch rng.IntN(3) {
	case 0:
		r.remove(e.table, rng)
	case 1:
		try(func() { r.Modify(e.table, e.key, e.action, e.args...) })
	default:
		if !try(func() { r.Add(e.table, e.key, e.action, e.args...) }) {
			r.remove(e.table, rng)
		}
	}
}

// remove deletes some entry of a table, and sometimes inserts it again, as a roll-back does.
func (r *rig) remove(table string, rng *rand.Rand) {
	t := r.Table(table)
	if t.Len() == 0 {
		return
	}
	i := rng.IntN(t.Len())
	for e := range t.All() {
		if i--; i >= 0 {
			continue
		}
		if err := t.Delete(e.Key, e.Priority); err != nil {
			panic(fmt.Sprint(err))
		}
		if rng.IntN(4) == 0 {
			if err := t.Insert(e); err != nil {
				panic(fmt.Sprint(err))
			}
		}
		return
	}
}
