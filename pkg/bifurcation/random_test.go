package bifurcation

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
)

var seedFlag = flag.Uint64("bifurcation.seed", 0, "run TestRandom with this seed only")

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func addr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// yes decides, for each switch, whether it is programmable.
type yes func() bool

func always() bool { return true }

// leafSpine connects each leaf to each spine, now and then twice.
func leafSpine(leaves, spines, hosts int, prog yes, twice yes) (*Topology, []netip.Addr) {
	t := &Topology{}
	for s := range spines {
		must(t.AddSwitch(Switch(fmt.Sprintf("spine%d", s)), prog()))
	}
	var all []netip.Addr
	for l := range leaves {
		leaf := Switch(fmt.Sprintf("leaf%d", l))
		must(t.AddSwitch(leaf, prog()))
		for s := range spines {
			must(t.Connect(leaf, Switch(fmt.Sprintf("spine%d", s))))
			if twice() {
				must(t.Connect(leaf, Switch(fmt.Sprintf("spine%d", s))))
			}
		}
		for range hosts {
			all = append(all, addr(len(all)+1))
			must(t.AddHost(all[len(all)-1], leaf))
		}
	}
	return t, all
}

// fatTree is the usual three-tier fat tree of k-port switches.
func fatTree(k int, prog yes) (*Topology, []netip.Addr) {
	t, h := &Topology{}, k/2
	var all []netip.Addr
	for c := range h * h {
		must(t.AddSwitch(Switch(fmt.Sprintf("core%d", c)), prog()))
	}
	for p := range k {
		for a := range h {
			agg := Switch(fmt.Sprintf("agg%d.%d", p, a))
			must(t.AddSwitch(agg, prog()))
			for c := range h {
				must(t.Connect(agg, Switch(fmt.Sprintf("core%d", a*h+c))))
			}
		}
		for e := range h {
			tor := Switch(fmt.Sprintf("tor%d.%d", p, e))
			must(t.AddSwitch(tor, prog()))
			for a := range h {
				must(t.Connect(tor, Switch(fmt.Sprintf("agg%d.%d", p, a))))
			}
			for range h {
				all = append(all, addr(len(all)+1))
				must(t.AddHost(all[len(all)-1], tor))
			}
		}
	}
	return t, all
}

// randomDAG is a connected random graph with, for each host, random next-hop sets
// that hold no loop: each points down in an order of its own.
func randomDAG(rnd *rand.Rand, single bool, prog yes) (*Topology, []netip.Addr) {
	t, n := &Topology{}, 3+rnd.IntN(9)
	name := func(i int) Switch { return Switch(fmt.Sprintf("s%d", i)) }
	near := make([][]int, n)
	for i := range n {
		must(t.AddSwitch(name(i), prog()))
		for j := range i {
			if j == i-1 && len(near[i]) == 0 || rnd.IntN(2) == 0 {
				must(t.Connect(name(i), name(j)))
				near[i], near[j] = append(near[i], j), append(near[j], i)
			}
		}
	}
	home := map[netip.Addr]int{}
	var all []netip.Addr
	for i := range 3 + rnd.IntN(10) {
		a := addr(i + 1)
		home[a] = rnd.IntN(n)
		must(t.AddHost(a, name(home[a])))
		all = append(all, a)
	}
	for _, a := range all {
		rank := order(rnd, near, home[a])
		for i := range n {
			if i == home[a] {
				continue
			}
			var to []Switch
			for _, j := range near[i] {
				if rank[j] < rank[i] && rnd.IntN(4) > 0 {
					to = append(to, name(j))
				}
			}
			if to == nil || single {
				down := slices.MinFunc(near[i], func(a, b int) int { return rank[a] - rank[b] })
				to = []Switch{name(down)}
			}
			must(t.SetRoute(name(i), a, to...))
		}
	}
	return t, all
}

// order ranks nodes so that each but the root has a neighbor before it.
func order(rnd *rand.Rand, near [][]int, root int) []int {
	rank := make([]int, len(near))
	seen := make([]bool, len(near))
	edge := []int{root}
	seen[root] = true
	for n := 0; len(edge) > 0; n++ {
		i := rnd.IntN(len(edge))
		at := edge[i]
		edge = slices.Delete(edge, i, i+1)
		rank[at] = n
		for _, j := range near[at] {
			if !seen[j] {
				seen[j] = true
				edge = append(edge, j)
			}
		}
	}
	return rank
}

// groupOf makes the first host the sender.
func groupOf(hosts []netip.Addr) Group {
	g := Group{Source: hosts[0], ID: 0xabc, SenderQPN: 0x11, InitialPSN: 5}
	for i, h := range hosts[1:] {
		g.Receivers = append(g.Receivers, Receiver{Addr: h, QPN: uint32(0x100 + i), Regions: []Region{
			{RKey: probeRKey, VA: probeVA, Length: probeLen, ReceiverRKey: uint32(0x1000 + i), ReceiverVA: uint64(i) << 20},
			{RKey: probeRKey, VA: probeVA + probeLen, Length: 1, ReceiverRKey: 9, ReceiverVA: 0},
		}})
	}
	return g
}

// leave connects the sender, in every other group, to an address that is not the first
// receiver's or no receiver's: a host, perhaps out of some switches' reach, or an unused
// address.
func leave(rnd *rand.Rand, t *Topology, g *Group, hosts []netip.Addr) {
	switch rnd.IntN(6) {
	case 0:
		g.Address = g.Receivers[rnd.IntN(len(g.Receivers))].Addr
	case 1:
		g.Address = addr(1 << 20)
	case 2:
		if len(g.Receivers) < 2 {
			return
		}
		g.Address = g.Receivers[0].Addr
		g.Receivers = g.Receivers[1:]
		lost := slices.Sorted(maps.Keys(t.switches))
		for range rnd.IntN(3) {
			must(t.SetRoute(lost[rnd.IntN(len(lost))], g.Address))
		}
	}
}

func pick(rnd *rand.Rand, hosts []netip.Addr, most int) Group {
	rnd.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	return groupOf(hosts[:2+rnd.IntN(min(most, len(hosts)-1))])
}

// tally counts what random runs have seen, so that no case is missing from them.
type tally struct{ planned, refused, early, ecmp, looked, left, late int }

func (c *tally) run(rnd *rand.Rand) (err error) {
	density := []int{0, 0, 2, 5, 9}[rnd.IntN(5)] // tenths that are not programmable
	prog := func() bool { return rnd.IntN(10) >= density }
	twice := func() bool { return rnd.IntN(8) == 0 }
	if rnd.IntN(2) == 0 {
		twice = func() bool { return false }
	}
	var t *Topology
	var hosts []netip.Addr
	kind, single := rnd.IntN(4), rnd.IntN(3) == 0
	switch kind {
	case 0:
		t, hosts = leafSpine(2+rnd.IntN(5), 1+rnd.IntN(4), 1+rnd.IntN(4), prog, twice)
	case 1:
		t, hosts = fatTree(2+2*rnd.IntN(4), prog)
	default:
		t, hosts = randomDAG(rnd, single, prog)
	}
	t.SinglePath = single
	g := pick(rnd, hosts, MaxReceivers)
	leave(rnd, t, &g, hosts)
	limit := max(0, rnd.IntN(12)-6)
	g.Late = rnd.IntN(2) == 0
	p, err := Plan(t, g, limit)
	n, _ := newNetwork(t, g, p)
	if err != nil {
		if !errors.Is(err, ErrNoMergePoint) || len(n.meetingPoints()) > 0 {
			return fmt.Errorf("%w, though all meet at %v", err, n.meetingPoints())
		}
		c.refused++
		return nil
	}
	c.planned++
	for _, s := range p.Steps {
		for _, b := range s.Branches {
			if len(b.Receivers) == 1 {
				c.late++
			}
		}
	}
	if g.astray() {
		c.left++
	}
	c.early += p.Early
	if p.Early > 0 && kind < 2 {
		return fmt.Errorf("%d branches given up in a regular fabric", p.Early)
	}
	if n, err = newNetwork(t, g, p); err != nil {
		return err
	}
	n.narrow = limit > 0
	if err := n.check(); err != nil {
		return err
	}
	if err := n.checkSavings(); err != nil {
		return err
	}
	for _, s := range p.Steps {
		if len(s.Rules.PREGroups) > 1 {
			c.ecmp++
		}
	}
	if kind < 2 && density == 0 {
		for range 4 {
			for w, copies := range n.trace(rnd) {
				if copies > 1 {
					return fmt.Errorf("link %v carries %d copies", w, copies)
				}
			}
		}
	} else if density > 0 {
		c.looked++
	}
	return nil
}

func TestRandom(t *testing.T) {
	if *seedFlag != 0 {
		var c tally
		if err := c.run(rand.New(rand.NewPCG(*seedFlag, 0))); err != nil {
			t.Fatal(err)
		}
		return
	}
	runs := uint64(2000)
	if os.Getenv("MCRDMA_LONG") != "" {
		runs = 100000
	}
	var c tally
	for seed := uint64(1); seed <= runs; seed++ {
		if err := c.run(rand.New(rand.NewPCG(seed, 0))); err != nil {
			t.Fatalf("%v\nreplay: go test ./pkg/bifurcation -run 'TestRandom$' -bifurcation.seed=%d", err, seed)
		}
	}
	t.Logf("%+v", c)
	if c.left < 200 || c.planned < 500 || c.refused < 50 || c.early < 2 || c.ecmp < 200 || c.looked < 200 || c.late < 500 {
		t.Errorf("the runs have not seen enough: %+v", c)
	}
}

// TestUnion: with one path to each host and all switches programmable, a packet
// uses each link of the union of the unicast paths once, and no other.
func TestUnion(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		fabric, hosts := fatTree(2+2*rnd.IntN(4), always)
		fabric.SinglePath = true
		g := pick(rnd, hosts, MaxReceivers)
		g.Late = seed%2 == 1
		p, err := Plan(fabric, g, 0)
		if err != nil {
			t.Fatal(err)
		}
		n, err := newNetwork(fabric, g, p)
		if err != nil {
			t.Fatal(err)
		}
		want := map[wire]int{}
		for _, r := range g.Receivers {
			for at := fabric.Uplinks(g.Source)[0]; at != ""; {
				l := fabric.NextHops(at, r.Addr)[0]
				want[wire{at, l.Port}] = 1
				at = l.To
			}
		}
		if got := n.trace(rnd); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("seed %d: copies on links\n%v, want\n%v", seed, got, want)
		}
	}
}
