package bifurcation

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// expect counts the copies of a packet that is at a switch, on each link: the mean
// over all choices.
func (n *network) expect(at Switch, pkt packet, memo map[flight]map[wire]float64) map[wire]float64 {
	key := flight{at, pkt}
	if memo[key] != nil {
		return memo[key]
	}
	mean := map[wire]float64{}
	all, _ := n.choices(at, pkt)
	for _, copies := range all {
		for _, c := range copies {
			mean[wire{at, c.port}] += 1 / float64(len(all))
			if to := n.t.switches[at].ports[c.port-1].to; to != "" {
				for w, x := range n.expect(to, c.pkt, memo) {
					mean[w] += x / float64(len(all))
				}
			}
		}
	}
	memo[key] = mean
	return mean
}

// checkSavings holds Save against the oracle's packets. The fabric's unicast routes
// are free of loops.
func (n *network) checkSavings() error {
	got, err := Save(n.t, n.g, n.p)
	if err != nil {
		return err
	}
	uplinks := n.t.Uplinks(n.g.Source)
	each := 1 / float64(len(uplinks))
	want := map[wire][2]float64{}
	total := [2]float64{1, float64(len(n.g.Receivers))} // the sender's own links
	add := func(which int, pkt packet) {
		for _, s := range uplinks {
			for w, x := range n.expect(s, pkt, map[flight]map[wire]float64{}) {
				both := want[w]
				both[which] += x * each
				want[w] = both
				total[which] += x * each
			}
		}
	}
	add(0, packet{dst: n.address(), qpn: n.g.ID, va: probeVA, rkey: probeRKey})
	for _, r := range n.g.Receivers {
		add(1, packet{dst: r.Addr, qpn: n.g.ID + 1})
	}
	far := func(a, b float64) bool { return math.Abs(a-b) > 1e-9 }
	for _, l := range got.Links {
		w := [2]float64{each, each * float64(len(n.g.Receivers))}
		if l.From != "" {
			w = want[wire{l.From, l.Port}]
			delete(want, wire{l.From, l.Port})
			if to := n.t.switches[l.From].ports[l.Port-1].to; to != l.To {
				return fmt.Errorf("link %v leads to %q", l, to)
			}
		}
		if far(l.Group, w[0]) || far(l.Unicast, w[1]) {
			return fmt.Errorf("link %v carries %v", l, w)
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("links left out: %v", want)
	}
	if far(got.Group, total[0]) || far(got.Unicast, total[1]) {
		return fmt.Errorf("sums are %v and %v, want %v", got.Group, got.Unicast, total)
	}
	return nil
}

func TestSave(t *testing.T) {
	fabric := &Topology{}
	for _, s := range []Switch{"tor1", "spine1", "spine2", "tor2"} {
		must(fabric.AddSwitch(s, true))
	}
	for _, s := range []Switch{"spine1", "spine2"} {
		must(fabric.Connect("tor1", s))
		must(fabric.Connect(s, "tor2"))
	}
	must(fabric.AddHost(addr(1), "tor1"))
	for i := range 3 {
		must(fabric.AddHost(addr(2+i), "tor2"))
	}
	g := groupOf([]netip.Addr{addr(1), addr(2), addr(3), addr(4)})
	p, err := Plan(fabric, g, 0)
	must(err)
	got, err := Save(fabric, g, p)
	must(err)
	want := Savings{Group: 6, Unicast: 12, Links: []LinkLoad{
		{"", 0, "tor1", 1, 3},
		{"spine1", 2, "tor2", 0.5, 1.5}, {"spine2", 2, "tor2", 0.5, 1.5},
		{"tor1", 1, "spine1", 0.5, 1.5}, {"tor1", 2, "spine2", 0.5, 1.5},
		{"tor2", 3, "", 1, 1}, {"tor2", 4, "", 1, 1}, {"tor2", 5, "", 1, 1},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	// What only unicast can run into.
	must(fabric.SetRoute("spine1", addr(3), "tor1"))
	if _, err := Save(fabric, g, p); !errors.Is(err, ErrLoop) {
		t.Errorf("%v, want a loop", err)
	}
	must(fabric.SetRoute("spine1", addr(3)))
	if _, err := Save(fabric, g, p); !errors.Is(err, ErrNoRoute) {
		t.Errorf("%v, want no route", err)
	}
}

// TestSaveTwoUplinks: a sender on two switches, each of which gets half of the flows.
func TestSaveTwoUplinks(t *testing.T) {
	fabric := &Topology{}
	must(fabric.AddSwitch("core", true))
	for _, s := range []Switch{"left", "right"} {
		must(fabric.AddSwitch(s, false))
		must(fabric.Connect(s, "core"))
	}
	must(fabric.AddHost(addr(1), "left", "right"))
	must(fabric.AddHost(addr(2), "core"))
	must(fabric.AddHost(addr(3), "core"))
	g := groupOf([]netip.Addr{addr(1), addr(2), addr(3)})
	p, err := Plan(fabric, g, 0)
	must(err)
	n, err := newNetwork(fabric, g, p)
	must(err)
	if err := errors.Join(n.check(), n.checkSavings()); err != nil {
		t.Fatal(err)
	}
	got, err := Save(fabric, g, p)
	must(err)
	if l := got.Links[0]; l != (LinkLoad{"", 0, "left", 0.5, 1}) {
		t.Errorf("%+v", got)
	}
}

// unattached is a fabric that does not know where one host is attached.
type unattached struct {
	*Topology
	host netip.Addr
}

func (u unattached) Uplinks(host netip.Addr) []Switch {
	if host == u.host {
		return nil
	}
	return u.Topology.Uplinks(host)
}

func TestUnattached(t *testing.T) {
	fabric, hosts := leafSpine(2, 2, 2, always, func() bool { return false })
	for _, left := range []netip.Addr{{}, addr(99)} {
		g := groupOf(hosts[:3])
		g.Address = left
		if _, err := MergePoint(unattached{fabric, g.Source}, g); !errors.Is(err, ErrNoRoute) {
			t.Errorf("%v", err)
		}
	}
}
