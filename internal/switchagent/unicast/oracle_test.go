package unicast

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// The oracle gets the same inputs as the table, and computes each answer afresh, from
// the rules of the package comment, without numbers, sets or caches.
type oracle struct {
	cfg     Config
	routes  map[netip.Prefix]routing.Hops
	neigh   map[routing.NeighborKey]switchspec.MAC
	links   map[uint16]*switchspec.MAC // nil: down; not there: never told
	hosts   map[netip.Addr]oracleHost
	kept    map[netip.Prefix][]hopKey // adopted
	gleaned map[netip.Prefix]bool     // adopted, to the agent
	assumed map[uint16]switchspec.MAC
	settled bool
	uses    map[hopKey]int
}

type oracleHost struct {
	Host
	static bool
	heard  time.Time
	asked  []time.Time
}

func newOracle(cfg Config) *oracle {
	o := &oracle{cfg: cfg, routes: map[netip.Prefix]routing.Hops{}, neigh: map[routing.NeighborKey]switchspec.MAC{},
		links: map[uint16]*switchspec.MAC{}, hosts: map[netip.Addr]oracleHost{}, uses: map[hopKey]int{}}
	for _, h := range cfg.Hosts {
		o.hosts[h.Addr] = oracleHost{Host: h, static: true}
	}
	return o
}

func (o *oracle) port(n uint16) *Port {
	for i := range o.cfg.Ports {
		if o.cfg.Ports[i].Number == n {
			return &o.cfg.Ports[i]
		}
	}
	return nil
}

func (o *oracle) src(p *Port) switchspec.MAC {
	if p.MAC == (switchspec.MAC{}) {
		return o.cfg.MAC
	}
	return p.MAC
}

func (o *oracle) inOwn(p netip.Prefix) bool {
	for _, q := range o.cfg.Prefixes {
		if q.Overlaps(p) && q.Bits() <= p.Bits() {
			return true
		}
	}
	return false
}

// link says whether a port is usable, and the neighboring switch's MAC, if known.
func (o *oracle) link(p *Port) (switchspec.MAC, bool) {
	if p.To == "" {
		return switchspec.MAC{}, true
	}
	if !p.Hello {
		return p.PeerMAC, true
	}
	m, told := o.links[p.Number]
	switch {
	case told && m == nil, !told && o.assumed[p.Number] == switchspec.MAC{}:
		return switchspec.MAC{}, false
	case !told:
		return o.assumed[p.Number], true
	case *m != switchspec.MAC{}:
		return *m, true
	}
	return p.PeerMAC, true
}

// hop returns what a hop of a route to p stands for, and whether it waits for a host.
func (o *oracle) hop(p netip.Prefix, h routing.NextHop) (keys []hopKey, waits bool) {
	if !h.Addr.IsValid() && p.IsSingleIP() {
		h.Addr = p.Addr()
	}
	for i := range o.cfg.Ports {
		port := &o.cfg.Ports[i]
		switch {
		case h.Port != "":
			if h.Port != port.Name && h.Port != fmt.Sprint(port.Number) {
				continue
			}
		case !h.Addr.IsValid():
			continue
		default:
			sw := slices.IndexFunc(o.cfg.Switches, func(s Switch) bool { return slices.Contains(s.Addrs, h.Addr) })
			if sw >= 0 && o.cfg.Switches[sw].Name != port.To {
				continue
			}
			if known, ok := o.hosts[h.Addr]; sw < 0 && (!ok || known.Port != port.Number) {
				continue
			}
		}
		m, ok := o.link(port)
		if !ok {
			continue
		}
		candidates := []switchspec.MAC{m}
		if h.Addr.IsValid() {
			for _, name := range []string{h.Port, port.Name, fmt.Sprint(port.Number)} {
				candidates = append(candidates, o.neigh[routing.NeighborKey{Addr: h.Addr, Port: name}])
			}
		}
		if known := o.hosts[h.Addr]; known.Port == port.Number {
			candidates = append(candidates, known.MAC)
		}
		m = cmp.Or(candidates...)
		if m == (switchspec.MAC{}) {
			waits = waits || port.To == ""
		} else if m[0]&1 == 0 && m != o.cfg.MAC && !slices.ContainsFunc(o.cfg.Ports, func(q Port) bool { return q.MAC == m }) {
			keys = append(keys, hopKey{port.Number, o.src(port), m})
		}
	}
	return keys, waits
}

// An outcome is a route without numbers.
type outcome struct {
	to   switchspec.RouteTo // ToECMP for any number of next hops
	keys []hopKey
}

// all computes all routes.
func (o *oracle) all() map[netip.Prefix]outcome {
	out := map[netip.Prefix]outcome{}
	set := func(p netip.Prefix, keys []hopKey) {
		slices.SortFunc(keys, hopKey.compare)
		if keys = slices.Compact(keys); len(keys) > 0 {
			out[p] = outcome{switchspec.ToECMP, keys}
		} else {
			out[p] = outcome{to: switchspec.ToNowhere}
		}
	}
	for p, list := range o.kept {
		var keys []hopKey
		for _, k := range list {
			port := o.port(k.port)
			m, ok := o.link(port)
			if _, told := o.links[k.port]; port.Hello && !told {
				m = k.dst
			}
			if ok {
				keys = append(keys, hopKey{k.port, o.src(port), cmp.Or(m, k.dst)})
			}
		}
		set(p, keys)
	}
	for p, ok := range o.gleaned {
		if ok {
			out[p] = outcome{to: switchspec.ToAgent}
		}
	}
	for p, hops := range o.routes {
		var keys []hopKey
		waits := false
		for _, h := range hops {
			k, w := o.hop(p, h)
			keys = append(keys, k...)
			waits = waits || w
		}
		if set(p, keys); len(keys) == 0 && waits && o.inOwn(p) {
			out[p] = outcome{to: switchspec.ToAgent}
		}
	}
	for _, p := range o.cfg.Prefixes {
		out[p] = outcome{to: switchspec.ToAgent}
	}
	for a, h := range o.hosts {
		set(netip.PrefixFrom(a, 32), []hopKey{{h.Port, o.src(o.port(h.Port)), h.MAC}})
	}
	for _, a := range append([]netip.Addr{o.cfg.Addr}, o.cfg.Gateways...) {
		out[netip.PrefixFrom(a, 32)] = outcome{to: switchspec.ToAgent}
	}
	return out
}

func longest[T any](m map[netip.Prefix]T, a netip.Addr) (at netip.Prefix, ok bool) {
	for p := range m {
		if p.Contains(a) && (!ok || p.Bits() > at.Bits()) {
			at, ok = p, true
		}
	}
	return at, ok
}

// beyond returns the next programmable switches, and whether there are none on a way.
func (o *oracle) beyond(keys []hopKey, dst netip.Addr) (next []bifurcation.Switch, direct bool) {
	holders := map[netip.Prefix]Switch{}
	for _, s := range o.cfg.Switches {
		for _, p := range s.Prefixes {
			holders[p] = s
		}
	}
	for _, k := range keys {
		at := Switch{}
		for _, s := range o.cfg.Switches {
			if s.Name == o.port(k.port).To {
				at = s
			}
		}
		if at.Name != "" && !at.Programmable {
			p, _ := longest(holders, dst)
			at = holders[p]
		}
		if at.Name == "" || !at.Programmable {
			direct = true
		} else {
			next = append(next, bifurcation.Switch(at.Name))
		}
	}
	slices.Sort(next)
	return slices.Compact(next), direct
}

// world is what the random test chooses from.
var world = func() (w struct {
	cfg    Config
	prefix []netip.Prefix
	hops   []routing.NextHop
	macs   []switchspec.MAC
	addrs  []netip.Addr
	hosts  []netip.Addr
}) {
	w.cfg = Config{
		Name: "torA", MAC: mac("a0"), Addr: netip.MustParseAddr("10.255.0.1"),
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("10.1.4.0/31")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
		Ports: []Port{{Number: 1, Hello: true}, {Number: 2, Name: "h2", MAC: mac("a2")},
			{Number: 9, To: "core", Name: "swp9", Hello: true}, {Number: 10, To: "core", Hello: true, PeerMAC: mac("ca")},
			{Number: 11, To: "spine", Hello: true}, {Number: 12, To: "rim", PeerMAC: mac("52")}, {Number: 13, To: "bare"}},
		Switches: []Switch{{Name: "core", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.0")}},
			{Name: "spine", Programmable: true, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
			{Name: "rim", Programmable: true, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.3")}},
			{Name: "bare", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.4")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.128/25")}},
			{Name: "torB", Programmable: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}},
			{Name: "torC", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/24")}}},
		Hosts: []Host{{netip.MustParseAddr("10.1.0.11"), mac("11"), 1}},
	}
	for _, p := range []string{"0.0.0.0/0", "10.1.0.0/24", "10.1.0.0/28", "10.1.0.11/32", "10.1.0.12/32", "10.1.0.13/32", "10.1.0.1/32",
		"10.0.0.0/8", "10.2.0.0/24", "10.2.0.128/25", "10.2.0.7/32", "10.3.0.0/24", "10.255.0.0/16", "10.1.4.1/32"} {
		w.prefix = append(w.prefix, netip.MustParsePrefix(p))
	}
	for _, h := range []string{"10.0.0.0@", "10.0.0.0@9", "10.0.0.0@swp9", "10.0.0.2@", "10.0.0.3@", "10.0.0.3@12", "10.0.0.4@", "10.0.0.4@13", "10.0.0.77@",
		"10.0.0.2@77", "@1", "@h2", "@11", "@", "10.1.0.12@1", "10.1.0.12@", "10.1.0.13@2", "10.2.0.7@1", "10.255.0.1@"} {
		w.hops = append(w.hops, hop(h))
	}
	for _, m := range []string{"11", "12", "13", "14", "c1", "c2", "a2", "ff", "00"} {
		w.macs = append(w.macs, mac(m))
	}
	for _, a := range []string{"10.1.0.11", "10.1.0.12", "10.1.0.13", "10.1.4.0", "10.1.4.1", "10.1.0.1", "10.1.0.255", "10.2.0.7"} {
		w.hosts = append(w.hosts, netip.MustParseAddr(a))
	}
	w.addrs = slices.Clone(w.hosts)
	for _, a := range []string{"10.1.0.0", "10.1.0.20", "10.2.0.8", "10.2.0.200", "10.3.0.1", "10.255.0.1", "10.255.0.2", "8.8.8.8", "10.77.0.1"} {
		w.addrs = append(w.addrs, netip.MustParseAddr(a))
	}
	return w
}()

// TestRandom compares the table with the oracle, step by step, and restarts it now
// and then.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &run{T: t, table: must(New(world.cfg)), oracle: newOracle(world.cfg), now: epoch}
		r.check()
		t.Repeat(map[string]func(*rapid.T){
			"routes":  func(*rapid.T) { r.changeRoutes() },
			"link":    func(*rapid.T) { r.changeLink() },
			"learn":   func(*rapid.T) { r.learn() },
			"probe":   func(*rapid.T) { r.probe() },
			"use":     func(*rapid.T) { r.use() },
			"unuse":   func(*rapid.T) { r.unuse() },
			"settled": func(*rapid.T) { r.settle() },
			"restart": func(*rapid.T) { r.restart() },
			"":        func(*rapid.T) { r.check() },
		})
	})
}

type run struct {
	*rapid.T
	table  *Table
	oracle *oracle
	now    time.Time

	last     *switchspec.State // at the last check
	answers  string
	version  uint64
	ways     uint64
	usedNow  []uint16
	restarts int
}

func pick[T any](t *rapid.T, what string, list []T) T {
	return list[rapid.IntRange(0, len(list)-1).Draw(t, what)]
}

func (r *run) changeRoutes() {
	var d routing.Delta
	for range rapid.IntRange(0, 3).Draw(r.T, "routes") {
		p := pick(r.T, "prefix", world.prefix)
		if slices.ContainsFunc(d.Routes, func(o routing.Route) bool { return o.Prefix == p }) {
			continue
		}
		if rapid.Bool().Draw(r.T, "withdraw") {
			d.Withdrawn = append(d.Withdrawn, p)
			delete(r.oracle.routes, p)
			delete(r.oracle.kept, p)
			delete(r.oracle.gleaned, p)
			continue
		}
		var hops []routing.NextHop
		for range rapid.IntRange(0, 3).Draw(r.T, "hops") {
			hops = append(hops, pick(r.T, "hop", world.hops))
		}
		d.Withdrawn = slices.DeleteFunc(d.Withdrawn, func(o netip.Prefix) bool { return o == p })
		d.Routes = append(d.Routes, routing.Route{Prefix: p, Hops: hops})
		r.oracle.routes[p] = hops
	}
	if rapid.Bool().Draw(r.T, "neighbor") {
		n := routing.Neighbor{NeighborKey: routing.NeighborKey(pick(r.T, "of", world.hops)), MAC: pick(r.T, "MAC", world.macs)}
		if r.oracle.neigh[n.NeighborKey] = n.MAC; n.MAC == (routing.MAC{}) {
			d.Lost = append(d.Lost, n.NeighborKey)
		} else {
			d.Neighbors = append(d.Neighbors, n)
		}
	}
	r.table.Routes(d)
}

func (r *run) changeLink() {
	p := pick(r.T, "port", world.cfg.Ports)
	up, m := rapid.Bool().Draw(r.T, "up"), pick(r.T, "MAC", []switchspec.MAC{mac("c1"), mac("c2"), mac("00")})
	r.table.Link(p.Number, up, m)
	if p.Hello && up {
		r.oracle.links[p.Number] = &m
	} else if p.Hello {
		r.oracle.links[p.Number] = nil
	}
}

func (r *run) learn() {
	h := Host{pick(r.T, "host", world.hosts), pick(r.T, "MAC", world.macs), pick(r.T, "port", []uint16{1, 2, 9, 77})}
	o := r.oracle
	refused := h.Port > 2 || h.Addr == world.cfg.Gateways[0] || h.Addr == netip.MustParseAddr("10.1.0.255") || !o.inOwn(netip.PrefixFrom(h.Addr, 32)) ||
		h.MAC[0]&1 == 1 || h.MAC == switchspec.MAC{} || h.MAC == mac("a2")
	for _, k := range o.hosts {
		refused = refused || k.static && (k.Addr == h.Addr && k.Host != h || k.MAC == h.MAC && k.Port != h.Port)
	}
	changed := !refused && o.hosts[h.Addr].Host != h
	if !refused {
		for a, k := range o.hosts {
			if k.MAC == h.MAC {
				k.Port = h.Port
				o.hosts[a] = k
			}
		}
		o.hosts[h.Addr] = oracleHost{h, o.hosts[h.Addr].static, r.now, nil}
	}
	if got := r.table.Learn(h, r.now); got != changed {
		r.Fatalf("Learn(%v) = %t, want %t", h, got, changed)
	}
}

func (r *run) probe() {
	r.now = r.now.Add(pick(r.T, "after", []time.Duration{time.Millisecond, time.Second, time.Minute}))
	var want []netip.Addr
	forgot := false
	for a, h := range r.oracle.hosts {
		switch {
		case h.static || r.now.Before(h.heard.Add(time.Minute)):
		case len(h.asked) > 0 && r.now.Before(h.asked[len(h.asked)-1].Add(time.Second)):
		case len(h.asked) == 3:
			delete(r.oracle.hosts, a)
			forgot = true
		default:
			h.asked = append(h.asked, r.now)
			r.oracle.hosts[a] = h
			want = append(want, a)
		}
	}
	ask, changed := r.table.Probe(r.now)
	var got []netip.Addr
	for _, h := range ask {
		got = append(got, h.Addr)
	}
	slices.SortFunc(want, netip.Addr.Compare)
	if !slices.Equal(got, want) || changed != forgot {
		r.Fatalf("Probe: %v, %t; want %v, %t", got, changed, want, forgot)
	}
}

func (r *run) use() {
	if hops := r.table.HopList(); len(hops) > 0 {
		h := pick(r.T, "hop", hops)
		if !r.table.Use(h.Number) {
			r.Fatalf("cannot use %d", h.Number)
		}
		r.usedNow = append(r.usedNow, h.Number)
		r.oracle.uses[hopKey{h.Port, h.Src, h.Dst}]++
	}
}

func (r *run) unuse() {
	if len(r.usedNow) == 0 {
		return
	}
	i := rapid.IntRange(0, len(r.usedNow)-1).Draw(r.T, "use")
	number := r.usedNow[i]
	k := r.table.hops.at(number).key
	r.usedNow = slices.Delete(r.usedNow, i, i+1)
	if r.oracle.uses[k]--; r.oracle.uses[k] == 0 {
		delete(r.oracle.uses, k)
	}
	r.table.Unuse(number)
}

func (r *run) settle() {
	r.table.Settled()
	r.oracle.settled = true
	r.oracle.kept, r.oracle.gleaned, r.oracle.assumed = nil, nil, nil
}

// restart replaces the table by one that has adopted the state and was told the same,
// or, if routes have not settled, part of it.
func (r *run) restart() {
	state, o := r.table.Wanted(), r.oracle
	before := switchspec.Diff(&switchspec.State{}, state)
	if len(before) == 0 {
		r.Fatal("nothing is wanted")
	}
	next := must(New(world.cfg))
	next.Adopt(state)
	there := state.Clone()
	if write(there, next.Changes()); !there.Equal(next.Wanted()) {
		r.Fatalf("the switch that was adopted lacks %v", switchspec.Diff(there, next.Wanted()))
	}
	same := func(when string) {
		if d := switchspec.Diff(state, next.Wanted()); len(d) > 0 {
			r.Fatalf("%s, the difference is %v", when, d)
		}
	}
	same("of a table that knows nothing else")
	all := o.settled || rapid.Bool().Draw(r.T, "told all")
	forget := func() bool { return !all && rapid.Bool().Draw(r.T, "not told") }
	for _, p := range slices.Sorted(maps.Keys(o.links)) {
		m := o.links[p]
		if forget() {
			delete(o.links, p)
		} else if m == nil {
			next.Link(p, false, switchspec.MAC{})
		} else {
			next.Link(p, true, *m)
		}
	}
	guessed := r.adoptedBy(o, state)
	var d routing.Delta
	for _, p := range world.prefix {
		hops, ok := o.routes[p]
		if ok && forget() {
			delete(o.routes, p)
		} else if ok {
			d.Routes = append(d.Routes, routing.Route{Prefix: p, Hops: hops})
		}
	}
	for k, m := range o.neigh {
		d.Neighbors = append(d.Neighbors, routing.Neighbor{NeighborKey: k, MAC: m})
	}
	next.Routes(d)
	if all && !guessed {
		same("once told all")
	}
	for _, n := range r.usedNow {
		if !next.Use(n) {
			r.Fatalf("number %d is not there any more", n)
		}
	}
	if o.settled {
		next.Settled()
		r.oracle.kept, r.oracle.gleaned, r.oracle.assumed = nil, nil, nil
		if !guessed {
			same("once settled")
		}
	}
	r.table, r.version, r.ways = next, 0, 0
	r.restarts++
}

// adoptedBy makes the oracle adopt a state. It reports whether routes of the source are taken
// for hosts, so that others which lead by these addresses may differ.
func (r *run) adoptedBy(o *oracle, state *switchspec.State) (guessed bool) {
	routes, _ := r.meaning(state)
	bridged := map[switchspec.MAC]uint16{}
	for b := range switchspec.Of[switchspec.BridgeMAC](state) {
		bridged[b.MAC] = b.Port
	}
	hosts := map[netip.Addr]oracleHost{}
	for a, h := range o.hosts {
		if h.static {
			hosts[a] = h
		}
	}
	o.kept, o.gleaned, o.assumed = map[netip.Prefix][]hopKey{}, map[netip.Prefix]bool{}, map[uint16]switchspec.MAC{}
	for rt := range switchspec.Of[switchspec.Route](state) {
		out := routes[rt.Dst]
		if out.to == switchspec.ToAgent {
			o.gleaned[rt.Dst] = o.inOwn(rt.Dst)
			continue
		}
		if k := out.keys; rt.Dst.IsSingleIP() && o.inOwn(rt.Dst) && len(k) == 1 && bridged[k[0].dst] == k[0].port && k[0].port <= 2 {
			if _, known := hosts[rt.Dst.Addr()]; !known {
				hosts[rt.Dst.Addr()] = oracleHost{Host: Host{rt.Dst.Addr(), k[0].dst, k[0].port}}
				_, known := o.hosts[rt.Dst.Addr()]
				guessed = guessed || !known
			}
			continue
		}
		o.kept[rt.Dst] = out.keys
		for _, k := range out.keys {
			o.assumed[k.port] = k.dst
		}
	}
	o.hosts = hosts
	if len(hosts) < len(r.table.hosts) {
		r.Fatalf("hosts were lost: %v of %v are left", hosts, r.table.HostList())
	}
	return guessed
}

// meaning removes the numbers from a state.
func (r *run) meaning(s *switchspec.State) (map[netip.Prefix]outcome, map[uint16]hopKey) {
	hops := map[uint16]hopKey{}
	for n := range switchspec.Of[switchspec.NextHop](s) {
		e, _ := s.Find(switchspec.Neighbor{NextHop: n.ID}.Key())
		m := e.(switchspec.Neighbor)
		hops[n.ID] = hopKey{n.Port, m.Src, m.Dst}
	}
	groups := map[uint16][]hopKey{}
	for g := range switchspec.Of[switchspec.ECMPGroup](s) {
		for _, h := range g.Hops {
			groups[g.ID] = append(groups[g.ID], hops[h.NextHop])
		}
		slices.SortFunc(groups[g.ID], hopKey.compare)
	}
	out := map[netip.Prefix]outcome{}
	for rt := range switchspec.Of[switchspec.Route](s) {
		switch rt.To {
		case switchspec.ToNextHop:
			out[rt.Dst] = outcome{switchspec.ToECMP, []hopKey{hops[rt.Number]}}
		case switchspec.ToECMP:
			if len(groups[rt.Number]) < 2 {
				r.Fatalf("a group of one: %v", rt)
			}
			out[rt.Dst] = outcome{switchspec.ToECMP, groups[rt.Number]}
		default:
			out[rt.Dst] = outcome{to: rt.To}
		}
	}
	return out, hops
}

func (r *run) check() {
	version, ways := r.table.Version(), r.table.WaysVersion()
	want := r.oracle.all()
	answers := ""
	for _, a := range world.addrs { // before Wanted: the order must not matter
		answers += r.checkAnswer(want, a)
	}
	state := r.table.Wanted()
	if err := state.Check(); err != nil {
		r.Fatal(err)
	}
	got, hops := r.meaning(state)
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		r.Fatalf("routes are\n%s\nwant\n%s", g, w)
	}
	r.checkHops(want, hops)
	r.checkBridge(state)
	if v := r.table.Version(); v != version || r.table.WaysVersion() != ways {
		r.Fatal("asking changed the version")
	}
	if r.version != 0 { // not just restarted
		if version == r.version && !state.Equal(r.last) {
			r.Fatalf("Wanted changed by %v, the version did not", switchspec.Diff(r.last, state))
		}
		if ways == r.ways && answers != r.answers {
			r.Fatalf("answers were\n%sand are\n%sand the version is the same", r.answers, answers)
		}
	}
	if r.last != nil {
		_, before := r.meaning(r.last)
		for n, k := range before {
			if now, ok := hops[n]; ok && now != k {
				r.Fatalf("next hop %d was %v and is %v", n, k, now)
			}
		}
	}
	r.last, r.version, r.ways, r.answers = state, version, ways, answers
}

func (r *run) checkAnswer(want map[netip.Prefix]outcome, a netip.Addr) string {
	route, err := r.table.Resolve(a)
	p, ok := longest(want, a)
	out := want[p]
	if !ok || len(out.keys) == 0 {
		var unresolved *Unresolved
		glean := out.to == switchspec.ToAgent && r.oracle.inOwn(netip.PrefixFrom(a, 32)) && a != world.cfg.Gateways[0] &&
			a != netip.MustParseAddr("10.1.0.0") && a != netip.MustParseAddr("10.1.0.255")
		if !errors.Is(err, bifurcation.ErrNoRoute) || errors.As(err, &unresolved) != glean || glean && unresolved.Addr != a {
			r.Fatalf("Resolve(%v): %v, %v; want an error, unresolved %t", a, route, err, glean)
		}
		return fmt.Sprintln(a, err)
	}
	var keys []hopKey
	for _, h := range route.Hops {
		s := r.table.hops.at(h.NextHop)
		if s == nil || uint32(s.key.port) != h.Port {
			r.Fatalf("Resolve(%v): there is no hop %v", a, h)
		}
		keys = append(keys, s.key)
	}
	slices.SortFunc(keys, hopKey.compare)
	next, direct := r.oracle.beyond(out.keys, a)
	if err != nil || !slices.Equal(keys, out.keys) || !slices.Equal(route.Next, next) || route.Direct != direct {
		r.Fatalf("Resolve(%v): %v → %v, %v; want %v, next %v, direct %t", a, route, keys, err, out.keys, next, direct)
	}
	return fmt.Sprintln(a, route)
}

// checkHops wants numbers for what routes lead to and what is in use, and, once
// settled, for nothing else.
func (r *run) checkHops(want map[netip.Prefix]outcome, hops map[uint16]hopKey) {
	need := map[hopKey]bool{}
	for _, out := range want {
		for _, k := range out.keys {
			need[k] = true
		}
	}
	for k := range r.oracle.uses {
		need[k] = true
	}
	have := map[hopKey]bool{}
	for n, k := range hops {
		if have[k] {
			r.Fatalf("%v has two numbers", k)
		}
		if have[k] = true; !need[k] && (r.oracle.settled || r.restarts == 0) {
			r.Fatalf("next hop %d, %v, is neither wanted nor in use", n, k)
		}
		delete(need, k)
	}
	if len(need) > 0 {
		r.Fatalf("next hops without a number: %v", need)
	}
}

func (r *run) checkBridge(s *switchspec.State) {
	got, want := map[switchspec.MAC]uint16{}, map[switchspec.MAC]uint16{}
	for b := range switchspec.Of[switchspec.BridgeMAC](s) {
		got[b.MAC] = b.Port
	}
	for _, h := range r.oracle.hosts {
		if p, ok := want[h.MAC]; ok && p != h.Port {
			r.Fatalf("%v is at two ports", h.MAC)
		}
		want[h.MAC] = h.Port
	}
	if !maps.Equal(got, want) {
		r.Fatalf("the bridge knows %v, want %v", got, want)
	}
}
