package unicast

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// TestAdoptElse adopts states that another configuration or another program left.
// Lines of have are: hop number port src dst; ecmp number hop/weight…; route prefix
// to number; bridge mac port. Those of want must be in Wanted, and those of never not.
func TestAdoptElse(t *testing.T) {
	const hops = "hop 1 9 a0 51;hop 2 10 a0 52;hop 3 1 a0 12"
	const host = "route 10.1.0.12/32 hop 3;bridge 12 1"
	for _, c := range []struct {
		name, have  string
		change      func(*Config)
		before      func(*Table)
		after       func(*Table)
		want, never string
	}{
		{name: "as before", have: hops + ";" + host + ";route 10.2.0.0/16 hop 1",
			want: hops + ";" + host + ";route 10.2.0.0/16 hop 1"},
		{name: "two numbers for one next hop", have: "hop 7 9 a0 51;hop 5 9 a0 51;route 10.2.0.0/16 hop 7",
			want: "hop 5 9 a0 51;route 10.2.0.0/16 hop 5", never: "hop 7 9 a0 51"},
		{name: "a number that the switch does not have", have: "hop 9000 9 a0 51;route 10.2.0.0/16 hop 9000",
			want: "hop 1 9 a0 51;route 10.2.0.0/16 hop 1"},
		{name: "a port has another MAC", have: hops + ";" + host + ";route 10.2.0.0/16 hop 2",
			change: func(c *Config) { c.Ports[0].MAC, c.Ports[2].MAC = mac("d1"), mac("d2") },
			want:   "hop 4 1 d1 12;hop 5 10 d2 52;route 10.1.0.12/32 hop 4;route 10.2.0.0/16 hop 5"},
		{name: "a port is gone", have: hops + ";ecmp 3 1/1 2/1;route 10.2.0.0/16 ecmp 3",
			change: func(c *Config) { c.Ports = c.Ports[:2] },
			want:   "route 10.2.0.0/16 hop 1"},
		{name: "a port of hosts leads to a switch", have: hops + ";" + host,
			change: func(c *Config) { c.Ports[0].To, c.Ports[0].PeerMAC = "rim", mac("66") },
			never:  "route 10.1.0.12/32;bridge 12 1"},
		{name: "the host is static elsewhere", have: hops + ";" + host,
			change: func(c *Config) {
				c.Ports = append(c.Ports, Port{Number: 2})
				c.Hosts = []Host{{netip.MustParseAddr("10.1.0.12"), mac("12"), 2}}
			},
			want: "route 10.1.0.12/32 hop 4;hop 4 2 a0 12;bridge 12 2"},
		{name: "the host's MAC is static elsewhere", have: hops + ";" + host,
			change: func(c *Config) {
				c.Ports = append(c.Ports, Port{Number: 2})
				c.Hosts = []Host{{netip.MustParseAddr("10.1.0.13"), mac("12"), 2}}
			},
			want: "bridge 12 2", never: "route 10.1.0.12/32"},
		{name: "other addresses", have: "route 10.255.0.9/32 agent;route 10.7.0.0/24 agent;route 10.1.0.16/28 agent",
			want: "route 10.1.0.16/28 agent", never: "route 10.255.0.9/32;route 10.7.0.0/24"},
		{name: "a host of another prefix", have: hops + ";route 10.7.0.12/32 hop 3;bridge 12 1",
			want: "route 10.7.0.12/32 hop 3", never: "bridge 12 1"},
		{name: "a bridge's MAC at another port", have: hops + ";route 10.1.0.12/32 hop 3;bridge 12 2",
			want: "route 10.1.0.12/32 hop 3", never: "bridge 12 1;bridge 12 2"},
		{name: "weights", have: hops + ";ecmp 3 1/2 2/1;route 10.2.0.0/16 ecmp 3",
			want: "ecmp 1 1/1 2/1;route 10.2.0.0/16 ecmp 1", never: "ecmp 3"},
		{name: "dangling", have: "hop 1 9 a0 51;ecmp 3 1/1 2/1;route 10.2.0.0/16 ecmp 3;route 10.3.0.0/16 hop 4",
			never: "route 10.2.0.0/16;route 10.3.0.0/16;ecmp 3"},
		{name: "MACs that are no neighbor's", have: "hop 1 9 a0 ff;hop 2 9 a0 a0;route 10.2.0.0/16 hop 1;route 10.3.0.0/16 hop 2",
			change: func(c *Config) { c.Ports[1].Hello = false },
			want:   "route 10.2.0.0/16 nowhere;route 10.3.0.0/16 nowhere"},
		{name: "a link that is up knows better", have: hops + ";route 10.2.0.0/16 hop 1",
			change: func(c *Config) { c.Ports[1].PeerMAC = mac("53") },
			before: func(tb *Table) { tb.Link(9, true, switchspec.MAC{}) },
			want:   "hop 4 9 a0 53;route 10.2.0.0/16 hop 4"},
		{name: "a link that is down knows better", have: hops + ";route 10.2.0.0/16 hop 1",
			before: func(tb *Table) { tb.Link(9, false, switchspec.MAC{}) },
			want:   "route 10.2.0.0/16 nowhere"},
		{name: "two MACs behind a link that is not known", have: "hop 1 9 a0 51;hop 2 9 a0 52;route 10.2.0.0/16 hop 1;route 10.3.0.0/16 hop 2",
			want: "route 10.2.0.0/16 hop 1;route 10.3.0.0/16 hop 2"},
		{name: "after it settled", have: hops + ";" + host + ";route 10.2.0.0/16 hop 1",
			before: func(tb *Table) { tb.Settled() },
			want:   "hop 3 1 a0 12;" + host, never: "hop 1 9 a0 51;hop 2 10 a0 52;route 10.2.0.0/16"},
		{name: "the numbers of which the table knows others", have: "hop 1 10 a0 52;route 10.2.0.0/16 hop 1",
			before: func(tb *Table) {
				tb.Link(9, true, mac("51"))
				tb.Routes(delta([]string{"10.4.0.0/16 10.0.0.1"}))
				tb.Problems()
			},
			want: "hop 1 9 a0 51;hop 2 10 a0 52;route 10.2.0.0/16 hop 2"},
		{name: "settled, links are down of which nothing was heard", have: hops + ";route 10.2.0.0/16 hop 1",
			before: func(tb *Table) { tb.Routes(delta([]string{"10.4.0.0/16 10.0.0.1"})) },
			after:  func(tb *Table) { tb.Settled() },
			want:   "route 10.4.0.0/16 nowhere", never: "hop 1 9 a0 51;route 10.2.0.0/16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{Name: "a", MAC: mac("a0"), Addr: netip.MustParseAddr("10.255.0.1"), Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")},
				Ports:    []Port{{Number: 1}, {Number: 9, To: "rim", Hello: true}, {Number: 10, To: "rim", Hello: true}},
				Switches: []Switch{{Name: "rim", Programmable: true, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}}
			if c.change != nil {
				c.change(&cfg)
			}
			tb := must(New(cfg))
			if c.before != nil {
				c.before(tb)
			}
			s := &switchspec.State{}
			for _, e := range entities(t, c.have) {
				if err := s.Put(e); err != nil {
					t.Fatal(err)
				}
			}
			tb.Adopt(s)
			if c.after != nil {
				c.after(tb)
			}
			got := tb.Wanted()
			if err := got.Check(); err != nil {
				t.Error(err)
			}
			want := got.Clone()
			for _, e := range entities(t, c.want) {
				if err := want.Put(e); err != nil {
					t.Fatal(err)
				}
			}
			for _, e := range entities(t, c.never) {
				want.Delete(e.Key())
			}
			if d := switchspec.Diff(got, want); len(d) > 0 {
				t.Errorf("to do: %v", d)
			}
		})
	}
}

func entities(t *testing.T, text string) []switchspec.Entity {
	var list []switchspec.Entity
	for line := range strings.SplitSeq(text, ";") {
		w := strings.Fields(line)
		if len(w) == 0 {
			continue
		}
		switch w[0] {
		case "hop":
			n := port16(w[1])
			list = append(list, switchspec.NextHop{ID: n, Port: port16(w[2])}, switchspec.Neighbor{NextHop: n, Src: mac(w[3]), Dst: mac(w[4])})
		case "ecmp":
			g := switchspec.ECMPGroup{ID: port16(w[1])}
			for _, h := range w[2:] {
				n, weight, _ := strings.Cut(h, "/")
				g.Hops = append(g.Hops, switchspec.ECMPHop{NextHop: port16(n), Weight: port16(weight)})
			}
			list = append(list, g)
		case "route":
			r := switchspec.Route{Dst: netip.MustParsePrefix(w[1])}
			if len(w) > 2 {
				r.To = map[string]switchspec.RouteTo{"hop": switchspec.ToNextHop, "ecmp": switchspec.ToECMP, "agent": switchspec.ToAgent}[w[2]]
			}
			if len(w) > 3 {
				r.Number = port16(w[3])
			}
			list = append(list, r)
		case "bridge":
			list = append(list, switchspec.BridgeMAC{MAC: mac(w[1]), Port: port16(w[2])})
		default:
			t.Fatal(line)
		}
	}
	return list
}

// Only what changes something raises the versions.
func TestVersion(t *testing.T) {
	tb := must(New(world.cfg))
	same := func(what string, f func()) {
		t.Helper()
		v, w := tb.Version(), tb.WaysVersion()
		if f(); v != tb.Version() || w != tb.WaysVersion() {
			t.Errorf("%s changed the version", what)
		}
	}
	d := delta([]string{"10.2.0.0/24 10.0.0.2 10.0.0.3", "neighbor 10.0.0.2@ 51"})
	tb.Routes(d)
	tb.Link(9, true, mac("c1"))
	tb.Learn(Host{world.hosts[1], mac("12"), 1}, epoch)
	same("a route that is there", func() { tb.Routes(d) })
	same("nothing", func() { tb.Routes(routing.Delta{}) })
	same("an IPv6 route", func() { tb.Routes(delta([]string{"fd00::/8 10.0.0.2", "withdrawn fd00::/9"})) })
	same("a route that is not there", func() { tb.Routes(delta([]string{"withdrawn 10.77.0.0/24", "lost 10.0.0.99@"})) })
	same("a link that is up", func() { tb.Link(9, true, mac("c1")) })
	same("a port of hosts", func() { tb.Link(1, false, mac("c1")) })
	same("a link without hellos", func() { tb.Link(12, false, mac("c1")) })
	same("no port", func() { tb.Link(300, true, mac("c1")) })
	same("a host that is there", func() { tb.Learn(Host{world.hosts[1], mac("12"), 1}, epoch) })
	same("a host that is refused", func() { tb.Learn(Host{world.hosts[1], mac("12"), 9}, epoch) })
	same("no probe", func() { tb.Probe(epoch) })
	tb.Settled()
	same("settled as before", func() { tb.Settled() })
	same("asking", func() {
		tb.Wanted()
		tb.Problems()
		tb.HopList()
		tb.RouteList()
		tb.HostList()
		_, _ = tb.Resolve(world.addrs[0])
	})
	same("a use of what is wanted", func() { tb.Use(1); tb.Unuse(1) })
}

// A withdrawal alone removes an adopted route.
func TestWithdrawAdopted(t *testing.T) {
	old := must(New(world.cfg))
	old.Routes(delta([]string{"10.2.0.0/24 10.0.0.3"}))
	tb := must(New(world.cfg))
	tb.Adopt(old.Wanted())
	if r, err := tb.Resolve(netip.MustParseAddr("10.2.0.1")); err != nil || len(r.Hops) != 1 {
		t.Fatal(r, err)
	}
	v := tb.WaysVersion()
	tb.Routes(delta([]string{"withdrawn 10.2.0.0/24"}))
	if r, err := tb.Resolve(netip.MustParseAddr("10.2.0.1")); err == nil || tb.WaysVersion() == v {
		t.Errorf("still there: %v", r)
	}
}

// A number that is wanted again, though no call has returned it yet, is not freed by
// its last user.
func TestUnuseBeforeAsking(t *testing.T) {
	tb := must(New(world.cfg))
	tb.Link(11, true, mac("51"))
	tb.Routes(delta([]string{"10.2.0.0/24 10.0.0.2"}))
	number := func() uint16 { return must(tb.Resolve(netip.MustParseAddr("10.2.0.1"))).Hops[0].NextHop }
	n := number()
	tb.Use(n)
	tb.Link(11, false, mac("00"))
	tb.Wanted()
	tb.Link(11, true, mac("51"))
	tb.Unuse(n)
	if now := number(); now != n {
		t.Errorf("%d became %d", n, now)
	}
}
