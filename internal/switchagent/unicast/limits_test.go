package unicast

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

func addr(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

func wantProblem(t *testing.T, tb *Table, text string) {
	t.Helper()
	if p := strings.Join(tb.Problems(), "\n"); text == "" && p != "" || !strings.Contains(p, text) {
		t.Errorf("problems are %q, want %q", p, text)
	}
}

// stations makes routes of 32 bits to n hosts with MACs of their own, and their
// withdrawal.
func stations(from, n uint32) (there, gone routing.Delta) {
	for i := from; i < from+n; i++ {
		h := routing.NextHop{Addr: addr(20<<24 + i), Port: "1"}
		p := netip.PrefixFrom(h.Addr, 32)
		there.Routes = append(there.Routes, routing.Route{Prefix: p, Hops: routing.NewHops(h)})
		there.Neighbors = append(there.Neighbors, routing.Neighbor{NeighborKey: routing.NeighborKey(h), MAC: routing.MAC{2, 1, 0, 0, byte(i >> 8), byte(i)}})
		gone.Withdrawn = append(gone.Withdrawn, p)
	}
	return there, gone
}

func TestNextHopsRunOut(t *testing.T) {
	tb := must(New(Config{Name: "a", MAC: mac("a0"), Ports: []Port{{Number: 1}}}))
	there, _ := stations(0, MaxNextHops)
	tb.Routes(there)
	wantProblem(t, tb, "")
	kept := must(tb.Resolve(addr(20 << 24)))
	if !tb.Use(kept.Hops[0].NextHop) {
		t.Fatal("Use")
	}
	more, _ := stations(MaxNextHops, 2)
	tb.Routes(more)
	wantProblem(t, tb, fmt.Sprintf("all %d numbers of next hops are in use", MaxNextHops))
	if _, err := tb.Resolve(addr(20<<24 + MaxNextHops)); !errors.Is(err, bifurcation.ErrNoRoute) {
		t.Errorf("without a number: %v", err)
	}
	s := tb.Wanted()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if e, _ := s.Find(switchspec.Route{Dst: netip.PrefixFrom(addr(20<<24+MaxNextHops), 32)}.Key()); e.(switchspec.Route).To != switchspec.ToNowhere {
		t.Errorf("without a number: %v", e)
	}
	if again := must(tb.Resolve(addr(20 << 24))); again.Hops[0] != kept.Hops[0] {
		t.Errorf("%v was %v", again, kept)
	}
	// What goes makes room at once, but for what is in use.
	_, gone := stations(0, 1)
	tb.Routes(gone)
	wantProblem(t, tb, "all")
	_, gone = stations(1, 2)
	tb.Routes(gone)
	wantProblem(t, tb, "")
	if err := tb.Wanted().Check(); err != nil {
		t.Fatal(err)
	}
	next := must(New(Config{Name: "a", MAC: mac("a0"), Ports: []Port{{Number: 1}}}))
	next.Adopt(tb.Wanted())
	if d := switchspec.Diff(tb.Wanted(), next.Wanted()); len(d) > 0 {
		t.Errorf("adopted, %d differences, %v for one", len(d), d[0])
	}
}

// fan is a switch with many links to others, and routes by all pairs or more of them.
func fan(ports int) Config {
	cfg := Config{Name: "a", MAC: mac("a0")}
	for i := range ports {
		name := fmt.Sprint("s", i)
		cfg.Ports = append(cfg.Ports, Port{Number: uint16(i + 1), To: name, PeerMAC: switchspec.MAC{2, 2, 0, 0, 0, byte(i)}})
		cfg.Switches = append(cfg.Switches, Switch{Name: name, Programmable: true, Addrs: []netip.Addr{addr(30<<24 + uint32(i))}})
	}
	return cfg
}

func TestECMPGroupsRunOut(t *testing.T) {
	for _, width := range []int{2, 4} {
		tb := must(New(fan(128)))
		rng := rand.New(rand.NewPCG(1, 2))
		var d routing.Delta
		sets := map[string]bool{}
		fit := min(MaxECMPGroups, MaxECMPMembers/width)
		for i := uint32(0); len(sets) < fit+1; i++ {
			var hops []routing.NextHop
			for _, p := range rng.Perm(128)[:width] {
				hops = append(hops, routing.NextHop{Addr: addr(30<<24 + uint32(p))})
			}
			r := routing.Route{Prefix: netip.PrefixFrom(addr(20<<24+i), 32), Hops: routing.NewHops(hops...)}
			if sets[r.Hops.String()] {
				continue
			}
			sets[r.Hops.String()] = true
			d.Routes = append(d.Routes, r)
		}
		last := len(d.Routes) - 1
		tb.Routes(routing.Delta{Routes: d.Routes[:last]})
		wantProblem(t, tb, "")
		before := tb.Wanted()
		tb.Routes(routing.Delta{Routes: d.Routes[last:]})
		wantProblem(t, tb, "ECMP groups")
		s := tb.Wanted()
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		for _, w := range tb.RouteList() {
			if left := w.Prefix == d.Routes[last].Prefix; left != (w.Note == NoteUnresolved) || left != (len(w.Hops) == 0) {
				t.Errorf("width %d: the list has %v", width, w)
			}
		}
		if _, err := tb.Resolve(d.Routes[last].Prefix.Addr()); !errors.Is(err, bifurcation.ErrNoRoute) {
			t.Errorf("width %d: without a group: %v", width, err)
		}
		if diff := switchspec.Diff(before, s); len(diff) != 1 {
			t.Errorf("width %d: the others are not as they were: %v", width, diff)
		}
		tb.Routes(routing.Delta{Withdrawn: []netip.Prefix{d.Routes[0].Prefix}})
		wantProblem(t, tb, "")
		if r := must(tb.Resolve(d.Routes[last].Prefix.Addr())); len(r.Hops) != width {
			t.Errorf("width %d: with room again: %v", width, r)
		}
	}
}

func TestTooManyRoutes(t *testing.T) {
	tb := must(New(fan(1)))
	hops := routing.NewHops(routing.NextHop{Addr: addr(30 << 24)})
	d := routing.Delta{Routes: []routing.Route{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Hops: hops}}}
	for i := range uint32(MaxRoutes) {
		d.Routes = append(d.Routes, routing.Route{Prefix: netip.PrefixFrom(addr(20<<24+i), 32)})
	}
	tb.Routes(d)
	wantProblem(t, tb, fmt.Sprintf("room for %d routes", MaxRoutes))
	n := 0
	for range switchspec.Of[switchspec.Route](tb.Wanted()) {
		n++
	}
	if n != MaxRoutes {
		t.Errorf("%d routes", n)
	}
	// What is left out follows the shorter prefix on the switch, and here.
	if r, err := tb.Resolve(addr(20<<24 + MaxRoutes - 1)); err != nil || len(r.Hops) != 1 {
		t.Errorf("left out: %v, %v", r, err)
	}
	tb.Routes(routing.Delta{Withdrawn: []netip.Prefix{d.Routes[1].Prefix}})
	wantProblem(t, tb, "")
}

func TestTooManyHosts(t *testing.T) {
	tb := must(New(Config{Name: "a", MAC: mac("a0"), Ports: []Port{{Number: 1}}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}))
	host := func(i uint32) Host {
		return Host{addr(10<<24 + i), switchspec.MAC{2, 1, 0, 0, byte(i >> 8), byte(i)}, 1}
	}
	for i := range uint32(MaxHosts) {
		if !tb.Learn(host(i+1), epoch) {
			t.Fatal(i)
		}
	}
	for i := range uint32(3) {
		if tb.Learn(host(MaxHosts+1+i), epoch) {
			t.Error("one more is taken")
		}
	}
	wantProblem(t, tb, fmt.Sprintf("there is room for %d hosts, and others are not known", MaxHosts))
	moved := host(1)
	moved.MAC = mac("77")
	if !tb.Learn(moved, epoch) {
		t.Error("a known host cannot move when there are many")
	}
	if n := len(tb.HostList()); n != MaxHosts {
		t.Errorf("%d hosts", n)
	}
}

// The cache of answers does not grow without bounds.
func TestManyDestinations(t *testing.T) {
	cfg := fan(1)
	cfg.Switches[0].Programmable = false
	tb := must(New(cfg))
	tb.Routes(routing.Delta{Routes: []routing.Route{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Hops: routing.NewHops(routing.NextHop{Addr: addr(30 << 24)})}}})
	for i := range uint32(3 * maxCache) {
		if _, err := tb.Resolve(addr(i)); err != nil || len(tb.cache) > maxCache {
			t.Fatal(i, err, len(tb.cache))
		}
	}
}

// Config.Next looks through neighbors that are not programmable, and only those.
func TestNext(t *testing.T) {
	cfg := fan(2)
	cfg.Switches[1].Programmable = false
	answer := []bifurcation.Switch{"x", "s0"}
	cfg.Next = func(neighbor string, dst netip.Addr) ([]bifurcation.Switch, bool) {
		if neighbor != "s1" || dst != addr(5) {
			t.Errorf("asked for %v through %s", dst, neighbor)
		}
		return answer, false
	}
	tb := must(New(cfg))
	tb.Routes(routing.Delta{Routes: []routing.Route{{Prefix: netip.MustParsePrefix("0.0.0.0/0"),
		Hops: routing.NewHops(routing.NextHop{Addr: addr(30 << 24)}, routing.NextHop{Addr: addr(30<<24 + 1)})}}})
	if r := must(tb.Resolve(addr(5))); fmt.Sprint(r.Next, r.Direct) != "[s0 x] false" {
		t.Errorf("%v", r)
	}
	if r := must(tb.Resolve(addr(5))); fmt.Sprint(r.Next, r.Direct) != "[s0 x] false" {
		t.Errorf("asked again: %v", r)
	}
	answer = nil
	version := tb.WaysVersion()
	tb.Routes(routing.Delta{Routes: []routing.Route{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}})
	if r := must(tb.Resolve(addr(5))); fmt.Sprint(r.Next, r.Direct) != "[s0] true" || tb.WaysVersion() == version {
		t.Errorf("after a change: %v", r)
	}
}

// Answers for different destinations share nothing that changes.
func TestAnswersStay(t *testing.T) {
	cfg := fan(7)
	cfg.Switches[5].Programmable, cfg.Switches[6].Programmable = false, false
	cfg.Next = func(neighbor string, dst netip.Addr) ([]bifurcation.Switch, bool) {
		if neighbor == "s5" {
			return []bifurcation.Switch{bifurcation.Switch("to " + dst.String())}, dst == addr(5)
		}
		return []bifurcation.Switch{"s0"}, false
	}
	tb := must(New(cfg))
	var hops []routing.NextHop
	for i := range uint32(7) {
		hops = append(hops, routing.NextHop{Addr: addr(30<<24 + i)})
	}
	tb.Routes(routing.Delta{Routes: []routing.Route{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Hops: routing.NewHops(hops...)}}})
	five, six := must(tb.Resolve(addr(5))), must(tb.Resolve(addr(6)))
	if got := fmt.Sprint(five.Next, five.Direct, six.Next, six.Direct); got != "[s0 s1 s2 s3 s4 to 0.0.0.5] true [s0 s1 s2 s3 s4 to 0.0.0.6] false" {
		t.Error(got)
	}

	state := tb.Wanted()
	state.Delete(switchspec.NextHop{ID: 1}.Key())
	if err := tb.Wanted().Check(); err != nil {
		t.Errorf("Wanted is shared: %v", err)
	}
}

// All ports mark, and what cannot be is refused.
func TestECN(t *testing.T) {
	cfg := Config{Name: "a", MAC: mac("a0"), Ports: []Port{{Number: 1}, {Number: 9, To: "b"}}, Switches: []Switch{{Name: "b"}},
		ECN: &switchspec.ECNPort{Port: 77, KMin: 20, KMax: 80, PMax: 6554}}
	s := must(New(cfg)).Wanted()
	n := 0
	for e := range switchspec.Of[switchspec.ECNPort](s) {
		if n++; e.KMin != 20 || e.KMax != 80 || e.PMax != 6554 || e.Port != 1 && e.Port != 9 {
			t.Errorf("%v", e)
		}
	}
	if err := s.Check(); n != 2 || err != nil {
		t.Errorf("%d ports mark, %v", n, err)
	}
	for _, e := range []switchspec.ECNPort{{KMin: 2, KMax: 1}, {KMax: switchspec.MaxDepth + 1}} {
		cfg.ECN = &e
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%v: %v", e, err)
		}
	}
}
