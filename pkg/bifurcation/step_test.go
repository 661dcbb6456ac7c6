package bifurcation

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var addrs = cmpopts.EquateComparable(netip.Addr{})

func TestValidate(t *testing.T) {
	good := func() Group { return groupOf([]netip.Addr{addr(1), addr(2), addr(3)}) }
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		spoil func(*Group)
		want  error
	}{
		{"no receivers", func(g *Group) { g.Receivers = nil }, ErrNoReceivers},
		{"17 receivers", func(g *Group) {
			for i := range 15 {
				g.Receivers = append(g.Receivers, Receiver{Addr: addr(i + 10)})
			}
		}, ErrTooManyReceivers},
		{"twice", func(g *Group) { g.Receivers[1].Addr = g.Receivers[0].Addr }, ErrDuplicateAddress},
		{"sender", func(g *Group) { g.Receivers[1].Addr = g.Source }, ErrSenderReceives},
		{"no sender", func(g *Group) { g.Source = netip.Addr{} }, ErrInvalid},
		{"IPv6 sender", func(g *Group) { g.Source = netip.IPv6Loopback() }, ErrInvalid},
		{"mapped receiver", func(g *Group) { g.Receivers[0].Addr = netip.MustParseAddr("::ffff:10.0.0.2") }, ErrInvalid},
		{"no receiver's address", func(g *Group) { g.Receivers[1].Addr = netip.Addr{} }, ErrInvalid},
		{"MC_ID", func(g *Group) { g.ID = 1 << 24 }, ErrInvalid},
		{"IPv6 address", func(g *Group) { g.Address = netip.IPv6Loopback() }, ErrInvalid},
		{"connected to itself", func(g *Group) { g.Address = g.Source }, ErrInvalid},
		{"QPN", func(g *Group) { g.Receivers[0].QPN = 1 << 24 }, ErrInvalid},
		{"sender's QPN", func(g *Group) { g.SenderQPN = 1 << 24 }, ErrInvalid},
		{"PSN", func(g *Group) { g.InitialPSN = 1 << 24 }, ErrInvalid},
		{"empty region", func(g *Group) { g.Receivers[0].Regions = []Region{{}} }, ErrInvalid},
		{"region past the end", func(g *Group) { g.Receivers[0].Regions = []Region{{VA: math.MaxUint64, Length: 2}} }, ErrInvalid},
		{"receiver's region past the end", func(g *Group) { g.Receivers[0].Regions = []Region{{ReceiverVA: math.MaxUint64, Length: 2}} }, ErrInvalid},
		{"regions overlap", func(g *Group) { g.Receivers[0].Regions = []Region{{VA: 9, Length: 5}, {VA: 5, Length: 5}} }, ErrInvalid},
		{"regions overlap, apart", func(g *Group) {
			g.Receivers[0].Regions = []Region{{RKey: 1, VA: 9, Length: 5}, {RKey: 2, VA: 9, Length: 5}, {RKey: 1, VA: 9, Length: 1}}
		}, ErrInvalid},
	} {
		g := good()
		c.spoil(&g)
		if err := g.Validate(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	g := good()
	g.Receivers[0].Regions = []Region{
		{RKey: 2, VA: 9, Length: 5}, {RKey: 1, VA: 10, Length: 5}, {RKey: 1, VA: 5, Length: 5},
		{RKey: 3, VA: 0, Length: math.MaxUint64}, {RKey: 3, VA: math.MaxUint64, Length: 1},
	}
	before := slices.Clone(g.Receivers[0].Regions)
	if err := g.Validate(); err != nil {
		t.Error(err)
	}
	if !slices.Equal(before, g.Receivers[0].Regions) {
		t.Error("regions were reordered")
	}
}

// routes answers from a table.
func routes(m map[netip.Addr]Route) func(netip.Addr) (Route, error) {
	return func(dst netip.Addr) (Route, error) { return m[dst], nil }
}

func hops(ports ...uint16) []Hop {
	var all []Hop
	for _, p := range ports {
		all = append(all, Hop{NextHop: p, Port: uint32(p) + 100})
	}
	return all
}

func request(receivers int) Request {
	all := []netip.Addr{addr(1)}
	for i := range receivers {
		all = append(all, addr(i+2))
	}
	g := groupOf(all)
	return Request{Source: g.Source, ID: g.ID, Receivers: g.Receivers, Via: []Switch{"up", "here"}}
}

func TestStepRefuses(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		route Route
		err   error
		want  error
	}{
		{"no hop", Route{Next: []Switch{"x"}}, nil, ErrNoRoute},
		{"to nowhere", Route{Hops: hops(1)}, nil, ErrNoRoute},
		{"back to itself", Route{Hops: hops(1, 2), Next: []Switch{"x", "here"}}, nil, ErrLoop},
		{"back up", Route{Hops: hops(1), Next: []Switch{"up"}, Direct: true}, nil, ErrLoop},
		{"too many hops", Route{Hops: make([]Hop, 5000), Direct: true}, nil, ErrInvalid},
		{"route's own error", Route{}, broken, broken},
	} {
		got, err := Step(request(2), func(dst netip.Addr) (Route, error) {
			if dst == addr(2) {
				return Route{Hops: hops(1), Next: []Switch{"x"}}, nil
			}
			return c.route, c.err
		})
		if !errors.Is(err, c.want) || got.Branches != nil || !got.Rules.Empty() {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
	r := request(1)
	r.Receivers = append(r.Receivers, r.Receivers[0])
	if _, err := Step(r, routes(nil)); !errors.Is(err, ErrDuplicateAddress) {
		t.Errorf("a request that is not valid: %v", err)
	}
}

// TestStepWhole is one step with everything in it, in full.
func TestStepWhole(t *testing.T) {
	r := request(4)
	for i := range r.Receivers {
		r.Receivers[i].Regions = r.Receivers[i].Regions[:1]
	}
	wide := Route{Hops: hops(4, 3, 4), Next: []Switch{"y", "x"}}
	got, err := Step(r, routes(map[netip.Addr]Route{
		addr(2): wide,
		addr(3): {Hops: hops(9, 8, 7), Next: []Switch{"y"}},
		addr(4): {Hops: hops(5), Next: []Switch{"x", "y", "x"}},
		addr(5): {Hops: hops(6), Direct: true},
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := Result{
		Rules: Rules{
			PREGroups: [][]Replica{
				{{1, 103}, {3, 107}, {6, 106}}, {{2, 104}, {4, 108}, {6, 106}}, {{1, 103}, {5, 109}, {6, 106}},
				{{2, 104}, {3, 107}, {6, 106}}, {{1, 103}, {4, 108}, {6, 106}}, {{2, 104}, {5, 109}, {6, 106}},
			},
			Rewrites: []Rewrite{
				{RID: 1, NextHop: 3, Dst: addr(2)}, {RID: 2, NextHop: 4, Dst: addr(2)},
				{3, 7, addr(3), true, 0x101, 0}, {4, 8, addr(3), true, 0x101, 0}, {5, 9, addr(3), true, 0x101, 0},
				{6, 6, addr(5), true, 0x103, 0},
			},
			Translations: []Translation{
				{3, probeRKey, 0x1000, 0x17ff, 0xff000, 0x1001, 0}, {4, probeRKey, 0x1000, 0x17ff, 0xff000, 0x1001, 0},
				{5, probeRKey, 0x1000, 0x17ff, 0xff000, 0x1001, 0}, {6, probeRKey, 0x1000, 0x17ff, 0x2ff000, 0x1003, 0},
			},
		},
		Branches: []Branch{{Next: []Switch{"x", "y"}, Receivers: []Receiver{r.Receivers[0], r.Receivers[2]}}},
	}
	if d := cmp.Diff(want, got, addrs); d != "" {
		t.Error(d)
	}
	if !slices.Equal(wide.Hops, hops(4, 3, 4)) || !slices.Equal(wide.Next, []Switch{"y", "x"}) {
		t.Error("a route was changed")
	}
}

// TestStepApart: racks behind a switch that only routes are branches of their own, by the same equal
// paths. No two copies of a packet share one while others are free, and each path gets each
// branch's share of the flows.
func TestStepApart(t *testing.T) {
	for _, c := range []struct{ racks, paths int }{{2, 2}, {3, 4}, {4, 4}, {5, 4}, {6, 4}, {16, 4}, {3, 2}, {7, 16}} {
		m := map[netip.Addr]Route{addr(2): {Hops: hops(99), Direct: true}} // in the sender's rack
		for i := range c.racks - 1 {
			r := Route{Next: []Switch{Switch(fmt.Sprint("tor", i))}}
			for p := range c.paths {
				r.Hops = append(r.Hops, hops(uint16(p+1))...)
			}
			m[addr(3+i)] = r
		}
		got, err := Step(request(c.racks), routes(m))
		if err != nil {
			t.Fatal(err)
		}
		flows := map[uint16]int{} // by copy
		for k, group := range got.Rules.PREGroups {
			copies := map[uint32]int{}
			for _, r := range group {
				flows[r.RID]++
				copies[r.Port]++
				if want := (c.racks - 2 + c.paths) / c.paths; copies[r.Port] > want {
					t.Errorf("%+v: of group %d, %d copies leave by port %d, want %d", c, k, copies[r.Port], r.Port, want)
				}
			}
		}
		for rid, n := range flows {
			if rid > 1 && n != 1 {
				t.Errorf("%+v: copy %d is in %d PRE groups", c, rid, n)
			}
		}
	}
}

// TestStepLeft: packets still come with the address of a receiver that has left.
func TestStepLeft(t *testing.T) {
	r := request(3)
	r.Dst = addr(99)
	got, err := Step(r, func(netip.Addr) (Route, error) { return Route{Hops: hops(1, 2), Next: []Switch{"x"}}, nil })
	want := Result{
		Rules: Rules{
			PREGroups: [][]Replica{{{1, 101}}, {{2, 102}}},
			Rewrites:  []Rewrite{{RID: 1, NextHop: 1, Dst: addr(2)}, {RID: 2, NextHop: 2, Dst: addr(2)}},
		},
		Branches: []Branch{{Next: []Switch{"x"}, Receivers: r.Receivers}},
	}
	if d := cmp.Diff(want, got, addrs); d != "" || err != nil {
		t.Errorf("%v, %s", err, d)
	}
	r.Dst = addr(3) // is another one's: that one represents its branch
	got, err = Step(r, func(netip.Addr) (Route, error) { return Route{Hops: hops(1), Next: []Switch{"x"}}, nil })
	want = Result{Branches: []Branch{{Next: []Switch{"x"}, Receivers: []Receiver{r.Receivers[1], r.Receivers[0], r.Receivers[2]}}}}
	if d := cmp.Diff(want, got, addrs); d != "" || err != nil {
		t.Errorf("%v, %s", err, d)
	}
	if r.Receivers[0].Addr != addr(2) {
		t.Error("the request's receivers were reordered")
	}
	r.Receivers = r.Receivers[:1]
	got, err = Step(r, func(netip.Addr) (Route, error) { return Route{Hops: hops(1), Direct: true}, nil })
	if err != nil || len(got.Rules.Rewrites) != 1 || !got.Rules.Rewrites[0].Last || got.Rules.Rewrites[0].Dst != addr(2) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestEarly(t *testing.T) {
	r := request(3)
	together := func(netip.Addr) (Route, error) { return Route{Hops: hops(1), Next: []Switch{"x"}}, nil }
	r.Early = []netip.Addr{addr(3), addr(99)}
	got, err := Step(r, together)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Branches) != 1 || len(got.Branches[0].Receivers) != 2 || got.Branches[0].Receivers[1].Addr != addr(4) ||
		!got.Rules.Rewrites[1].Last || got.Rules.Rewrites[1].Dst != addr(3) {
		t.Errorf("%+v", got)
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		widths []int
		limit  int
		want   int
	}{
		{[]int{1}, 16, 1}, {[]int{4}, 16, 4}, {[]int{2, 3}, 16, 6}, {[]int{2, 3, 4}, 16, 12}, {[]int{4, 4, 1, 2}, 16, 4},
		{[]int{4, 5}, 16, 15}, // 20 is too many; 15 is even for 5 and 4:4:4:3 for 4
		{[]int{2, 3}, 5, 5}, {[]int{2, 3}, 3, 3}, {[]int{1, 1}, 1, 1}, {[]int{16, 15}, 16, 16}, {[]int{7, 8}, 16, 14},
	} {
		if got := spread(c.widths, c.limit); got != c.want {
			t.Errorf("%v within %d: %d, want %d", c.widths, c.limit, got, c.want)
		}
	}
}

// arbitrary makes requests and routes of any kind from bytes.
func arbitrary(data []byte) (Request, map[netip.Addr]Route) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b)
	}
	r := request(next() % 18)
	r.MaxPREGroups = next()%24 - 1
	if b := next(); b < 128 {
		r.Dst = addr(b%24 + 1) // perhaps a receiver's
	}
	m := map[netip.Addr]Route{}
	for i := range r.Receivers {
		var way Route
		b := next()
		way.Direct = b%8 == 0
		for range b >> 3 % 6 {
			p := next()
			way.Hops = append(way.Hops, hops(uint16(p%8+1))...)
			if p >= 16 {
				way.Next = append(way.Next, []Switch{"a", "b", "c", "d", "e", "here"}[min(p>>3%6+p/255, 5)])
			}
		}
		if b >= 250 {
			r.Early = append(r.Early, r.Receivers[i].Addr)
		}
		if b == 249 {
			r.Receivers[i].Addr = addr(next())
		}
		m[r.Receivers[i].Addr] = way
	}
	return r, m
}

var sentinels = []error{
	ErrNoReceivers, ErrTooManyReceivers, ErrDuplicateAddress, ErrSenderReceives, ErrNoRoute, ErrLoop, ErrNoMergePoint, ErrInvalid,
}

func known(err error) bool {
	return slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) })
}

func FuzzStep(f *testing.F) {
	f.Add([]byte{3, 5, 9, 17, 18, 18, 18, 20})
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		b := make([]byte, rnd.IntN(80))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, m := arbitrary(data)
		got, err := Step(r, routes(m))
		if err != nil {
			if !known(err) {
				t.Fatal(err)
			}
			return
		}
		checkStep(t, r, m, got)
		for dst, way := range m {
			slices.Reverse(way.Hops)
			slices.Reverse(way.Next)
			m[dst] = way
		}
		again, err := Step(r, routes(m))
		if d := cmp.Diff(got, again, addrs); d != "" || err != nil {
			t.Errorf("another order of the sets gives %v, %s", err, d)
		}
	})
}

// checkStep holds what is true of every step.
func checkStep(t *testing.T, r Request, m map[netip.Addr]Route, got Result) {
	t.Helper()
	seen := map[netip.Addr]int{}
	if got.Rules.Empty() && r.Dst.IsValid() && r.Dst != got.Branches[0].Receivers[0].Addr {
		t.Errorf("packets to %v pass, to %v", r.Dst, got.Branches[0].Receivers)
	}
	for _, b := range got.Branches {
		if len(b.Receivers) < 2 || len(b.Next) == 0 || !slices.IsSorted(b.Next) {
			t.Errorf("branch %+v", b)
		}
		for _, x := range b.Receivers {
			seen[x.Addr]++
			if x.Addr == r.Dst && b.Receivers[0].Addr != r.Dst {
				t.Errorf("%v does not represent %v", r.Dst, b)
			}
			if m[x.Addr].Direct || !sameSet(m[x.Addr].Next, b.Next) || slices.Contains(r.Early, x.Addr) {
				t.Errorf("%v is in branch %v", x.Addr, b)
			}
		}
	}
	limit := r.MaxPREGroups
	if limit <= 0 {
		limit = DefaultMaxPREGroups
	}
	if len(got.Rules.PREGroups) > limit {
		t.Errorf("%d PRE groups, more than %d", len(got.Rules.PREGroups), limit)
	}
	port := map[uint16]uint32{}
	uses := map[netip.Addr]int{}
	of := map[uint16]netip.Addr{}
	for i, w := range got.Rules.Rewrites {
		if int(w.RID) != i+1 || !slices.Contains(m[w.Dst].Hops, Hop{w.NextHop, uint32(w.NextHop) + 100}) {
			t.Errorf("rewrite %+v", w)
		}
		port[w.RID], of[w.RID] = uint32(w.NextHop)+100, w.Dst
		uses[w.Dst] = 0
		if w.Last {
			seen[w.Dst] = 1
		}
	}
	used := map[uint16]int{}
	for _, group := range got.Rules.PREGroups {
		once := map[netip.Addr]int{}
		for _, c := range group {
			if p, ok := port[c.RID]; !ok || p != c.Port {
				t.Errorf("replica %v", c)
			}
			once[of[c.RID]]++
			used[c.RID]++
		}
		for dst := range uses {
			if once[dst] != 1 {
				t.Errorf("%d copies to %v in %v", once[dst], dst, group)
			}
		}
	}
	if len(used) != len(got.Rules.Rewrites) {
		t.Errorf("%d of %d copies are used", len(used), len(got.Rules.Rewrites))
	}
	for _, x := range r.Receivers {
		if seen[x.Addr] != 1 {
			t.Errorf("%v is served %d times", x.Addr, seen[x.Addr])
		}
	}
}

// FuzzPlan makes fabrics with any routes at all: Plan gives a reason or a plan that
// the oracle accepts.
func FuzzPlan(f *testing.F) {
	rnd := rand.New(rand.NewPCG(2, 1))
	for range 300 {
		b := make([]byte, 20+rnd.IntN(150))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fabric, g, limit := arbitraryFabric(data)
		p, err := Plan(fabric, g, limit)
		if err != nil {
			if !known(err) {
				t.Fatal(err)
			}
			return
		}
		n, err := newNetwork(fabric, g, p)
		if err != nil {
			t.Fatal(err)
		}
		n.narrow = limit > 0
		if err := n.check(); err != nil {
			t.Fatal(err)
		}
	})
}

func arbitraryFabric(data []byte) (*Topology, Group, int) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b)
	}
	fabric := &Topology{SinglePath: next()%4 == 0}
	limit := max(0, next()%10-5)
	all := []Switch{"a", "b", "c", "d", "e", "f", "g"}[:2+next()%6]
	for i, s := range all {
		must(fabric.AddSwitch(s, next()%4 > 0))
		for j := range i {
			if next()%3 > 0 {
				must(fabric.Connect(s, all[j]))
			}
		}
	}
	var hosts []netip.Addr
	for i := range 2 + next()%8 {
		hosts = append(hosts, addr(i+1))
		b := next()
		to := []Switch{all[b%len(all)]}
		if b > 240 && to[0] != all[0] {
			to = append(to, all[0])
		}
		must(fabric.AddHost(hosts[i], to...))
	}
	for len(data) >= 3 {
		at, dst, b := all[next()%len(all)], hosts[next()%len(hosts)], next()
		var to []Switch
		for i, s := range all {
			if b>>i&1 == 1 && s != at && slices.ContainsFunc(fabric.switches[at].ports, func(p topologyPort) bool { return p.to == s }) {
				to = append(to, s)
			}
		}
		if b < 250 && to == nil {
			continue
		}
		must(fabric.SetRoute(at, dst, to...))
	}
	g := groupOf(hosts)
	if n := len(g.Receivers); limit%2 == 1 && n > 1 {
		g.Address, g.Receivers = g.Receivers[n-1].Addr, g.Receivers[:n-1]
	}
	return fabric, g, limit
}

func benchmarkStep(b *testing.B, receivers int) {
	r := request(receivers)
	m := map[netip.Addr]Route{}
	next := []Switch{"agg0", "agg1", "agg2", "agg3"}
	for i, x := range r.Receivers {
		switch i % 3 {
		case 0:
			m[x.Addr] = Route{Hops: hops(1, 2, 3, 4), Next: next}
		case 1:
			m[x.Addr] = Route{Hops: hops(4, 3, 2, 1), Next: next}
		case 2:
			m[x.Addr] = Route{Hops: hops(uint16(i + 10)), Direct: true}
		}
	}
	route := routes(m)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Step(r, route); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStep3(b *testing.B)  { benchmarkStep(b, 3) }
func BenchmarkStep16(b *testing.B) { benchmarkStep(b, 16) }

// BenchmarkPlanFatTree8 plans a group of 16 receivers across a fat tree of 80
// switches and 128 hosts, with ECMP.
func BenchmarkPlanFatTree8(b *testing.B) {
	fabric, hosts := fatTree(8, always)
	g := pick(rand.New(rand.NewPCG(3, 3)), hosts, 1)
	g = groupOf(append([]netip.Addr{g.Source}, slices.DeleteFunc(hosts, func(a netip.Addr) bool { return a == g.Source })[:16]...))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Plan(fabric, g, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// TestNeutralize: what a constant may stand for is asked for; where the virtual address
// moves, nothing is.
func TestNeutralize(t *testing.T) {
	g := groupOf([]netip.Addr{addr(1), addr(2), addr(3), addr(4)})
	for i := range g.Receivers {
		g.Receivers[i].Regions[0].ReceiverVA = probeVA
	}
	res, err := Step(Request{Source: g.Source, ID: g.ID, Receivers: g.Receivers}, func(dst netip.Addr) (Route, error) {
		if dst == addr(2) {
			return Route{Hops: []Hop{{NextHop: 1, Port: 1}}, Direct: true}, nil
		}
		return Route{Hops: []Hop{{NextHop: 2, Port: 2}}, Next: []Switch{"s"}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var asked []Change
	res.Rules.Neutralize(addr(2), g.ID, func(c Change) uint32 {
		asked = append(asked, c)
		return uint32(len(asked))
	})
	want := []Change{
		{Dst: addr(2), NewDst: addr(2), QPN: g.ID, NewQPN: 0x100},
		{Dst: addr(2), NewDst: addr(3), QPN: g.ID, NewQPN: g.ID},
		{RKey: probeRKey, NewRKey: 0x1000},
	}
	if d := cmp.Diff(want, asked, addrs); d != "" {
		t.Error(d)
	}
	var got []uint32
	for _, w := range res.Rules.Rewrites {
		got = append(got, w.Neutral)
	}
	for _, x := range res.Rules.Translations {
		got = append(got, x.Neutral)
	}
	if d := cmp.Diff([]uint32{1, 2, 3, 0}, got); d != "" {
		t.Error(d)
	}
}
