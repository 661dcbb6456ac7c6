package dataplane

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

var seedFlag = flag.Uint64("dataplane.seed", 0, "seed of the only simulation of TestSimulated; 0: all")

// TestSimulated: the simulator's switches, and the compiled program with the embedded switch's queues in their place, do
// the same in a fabric, packet by packet: each link carries the same packets at the same times. Fabrics, groups, what
// is sent, losses and marks are drawn from a seed.
func TestSimulated(t *testing.T) {
	first, last := uint64(1), uint64(40)
	if os.Getenv("MCRDMA_LONG") != "" {
		last = 1000
	}
	if *seedFlag != 0 {
		first, last = *seedFlag, *seedFlag
	}
	var seen tally
	for seed := first; seed <= last; seed++ {
		if err := compare(seed, &seen); err != nil {
			t.Fatalf("seed %d: %v\nreplay: go test ./tests/dataplane -run TestSimulated -dataplane.seed=%d", seed, err, seed)
		}
	}
	t.Logf("%+v", seen)
	if *seedFlag == 0 {
		for what, n := range map[string]uint64{"packets": seen.packets, "lost": seen.lost, "marked": seen.marked, "absorbed": seen.absorbed, "CNPs filtered": seen.filtered,
			"NAKs": seen.naks, "late": seen.late, "steps with equal paths": seen.choices, "reads": seen.reads, "forged": seen.forged} {
			if n == 0 {
				t.Errorf("nothing has %s", what)
			}
		}
	}
}

// tally is what simulations have seen.
type tally struct{ packets, lost, marked, absorbed, filtered, naks, late, choices, reads, forged uint64 }

// compare runs a simulation in both forms.
func compare(seed uint64, seen *tally) error {
	fast, err := simulate(seed, false)
	if err != nil {
		return err
	}
	exact, err := simulate(seed, true)
	if err != nil {
		return err
	}
	if first := differ(fast, exact); first != "" {
		return fmt.Errorf("%s; drops in the exact form: %v", first, exact.drops)
	}
	for _, list := range fast.links {
		for i := range list {
			seen.packets++
			if list[i].Opcode.HasAETH() && list[i].AETH.Syndrome.IsNak() {
				seen.naks++
			}
		}
	}
	if len(fast.links) != len(exact.links) {
		return fmt.Errorf("%d directions of links in use, %d in the exact form", len(fast.links), len(exact.links))
	}
	for verdict, reason := range reasons {
		if fast.verdicts[verdict] != exact.drops[reason] {
			return fmt.Errorf("%v: %d, in the exact form %d", verdict, fast.verdicts[verdict], exact.drops[reason])
		}
		delete(exact.drops, reason)
	}
	if len(exact.drops) > 0 || exact.counts.Damaged+fast.counts.Dropped > 0 || fast.counts.Stray != exact.counts.Stray || fast.counts.Lost != exact.counts.Lost {
		return fmt.Errorf("drops %v, counts %+v, in the fast form %+v", exact.drops, exact.counts, fast.counts)
	}
	seen.lost += fast.counts.Lost
	seen.marked += fast.counts.Marked
	seen.absorbed += fast.verdicts[ackmerge.Absorbed]
	seen.filtered += fast.verdicts[ackmerge.FilteredCNP]
	seen.late += fast.late
	seen.choices += fast.choices
	seen.reads += fast.reads
	seen.forged += fast.forged
	return nil
}

// differ describes the first packet that is not the same; "": there is none.
func differ(fast, exact *observed) (text string) {
	var at time.Duration
	for link, want := range fast.links {
		got := exact.links[link]
		i := 0
		for i < len(want) && i < len(got) && same(&want[i], &got[i]) {
			i++
		}
		end := func(list []simnet.Seen) (time.Duration, string) {
			if i == len(list) {
				return time.Hour, "nothing"
			}
			return list[i].At, fmt.Sprintf("%+v", list[i])
		}
		a, one := end(want)
		b, other := end(got)
		if one != other && (text == "" || min(a, b) < at) {
			at, text = min(a, b), fmt.Sprintf("packet %d of %s:\n%s\nand in the exact form\n%s", i, link, one, other)
		}
	}
	return text
}

func same(a, b *simnet.Seen) bool {
	return a.At == b.At && a.Src == b.Src && a.Dst == b.Dst && a.SrcPort == b.SrcPort && a.Payload == b.Payload && a.CE == b.CE &&
		bytes.Equal(a.Headers.AppendTo(nil), b.Headers.AppendTo(nil))
}

// observed is what a simulation came to.
type observed struct {
	links                map[string][]simnet.Seen // by sending end
	counts               simnet.Counts
	verdicts             [ackmerge.OutsideWindow + 1]uint64
	drops                map[string]uint64
	late, choices, reads uint64
	forged               uint64 // packets that no queue pair has made
}

// simulate draws a simulation from a seed and runs it.
func simulate(seed uint64, exact bool) (*observed, error) {
	rng := rand.New(rand.NewPCG(seed, 24))
	topo, err := drawFabric(rng)
	if err != nil {
		return nil, err
	}
	p := drawParams(rng)
	s, err := simnet.New(topo, p, seed)
	if err != nil {
		return nil, err
	}
	out := &observed{links: map[string][]simnet.Seen{}, drops: map[string]uint64{}}
	s.Watch(func(k *simnet.Seen) {
		link := fmt.Sprint(k.From, " ", k.Port)
		out.links[link] = append(out.links[link], *k)
	})
	groups, err := out.load(s, rng)
	if err != nil {
		return nil, err
	}
	out.forge(s, rng, groups)
	for range rng.IntN(4) {
		l := topo.Links[rng.IntN(len(topo.Links))]
		if err := s.SetLoss(l.A.Node, l.B.Node, 0.01); err != nil {
			return nil, err
		}
	}
	var switches []*Switch
	for i, n := range topo.Nodes() {
		if n.Switch == nil || !exact {
			continue
		}
		sw, err := programmed(s, i, topo, p, groups)
		if err != nil {
			return nil, err
		}
		switches = append(switches, sw)
		if err := s.Replace(n.Name, func(emit func(uint16, []byte)) (simnet.Switch, error) { return sw.managed(s, n, emit) }); err != nil {
			return nil, err
		}
	}
	s.Run(40 * time.Millisecond)
	out.counts = s.Counts()
	for _, g := range groups {
		for v, n := range g.Verdicts {
			out.verdicts[v] += n
		}
		if p.Late {
			out.late++
		}
		_, plan := g.Plan()
		for _, st := range plan.Steps {
			if len(st.Rules.PREGroups) > 1 {
				out.choices++
			}
		}
	}
	for _, sw := range switches {
		for reason, n := range sw.Dropped() {
			out.drops[reason] += n
		}
	}
	return out, nil
}

// drawParams draws what the embedded switch can have, too: queues without PFC, marks without chance, and rates at which
// each byte takes whole nanoseconds.
func drawParams(rng *rand.Rand) simnet.Params {
	rate := func() float64 { return []float64{8e9, 4e9, 2e9}[rng.IntN(3)] }
	p := simnet.Defaults()
	p.HostRate, p.FabricRate = rate(), rate()
	p.HostDelay, p.FabricDelay = time.Duration(100+rng.IntN(2000)), time.Duration(100+rng.IntN(2000))
	p.Framing, p.PFC, p.Buffer = 0, false, 1<<30
	p.MTU = []int{256, 1024, 4096}[rng.IntN(3)]
	p.AckEvery, p.Timeout = 1+rng.IntN(16), 6
	p.KMax, p.PMax = (1+rng.IntN(20))*(p.MTU+58), 0 // so many full packets
	p.KMin = rng.IntN(p.KMax)
	p.CNPGap = time.Duration(rng.IntN(3)) * 20 * time.Microsecond
	p.Late = rng.IntN(2) == 0
	return p
}

// drawFabric draws racks below switches that may or may not be programmable, with one or more links to each.
func drawFabric(rng *rand.Rand) (*topology.Topology, error) {
	var topo topology.Topology
	ports := map[string]uint32{}
	sw := func(name string, programmable bool) {
		topo.Switches = append(topo.Switches, topology.Switch{Name: name, Programmable: programmable, Address: netip.AddrFrom4([4]byte{10, 255, 0, byte(len(topo.Switches))})})
	}
	end := func(name string) topology.End {
		if name[0] == 'h' {
			return topology.End{Node: name}
		}
		ports[name]++
		return topology.End{Node: name, Port: ports[name]}
	}
	link := func(a, b string) { topo.Links = append(topo.Links, topology.Link{A: end(a), B: end(b)}) }
	racks, above, each, full := 2+rng.IntN(3), 1+rng.IntN(3), 1+rng.IntN(2), rng.IntN(2) == 0
	for r := range racks {
		tor := fmt.Sprint("tor", r)
		sw(tor, rng.IntN(6) > 0)
		topo.Switches[len(topo.Switches)-1].Prefixes = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r), 0, 0}), 16)}
		for h := range max(1+rng.IntN(3), 2-r) { // the first forges, beside another
			name := fmt.Sprintf("h%d-%d", r, h)
			topo.Hosts = append(topo.Hosts, topology.Host{Name: name, Address: netip.AddrFrom4([4]byte{10, byte(r), 0, byte(h + 1)})})
			link(name, tor)
		}
	}
	for a := range above {
		sw(fmt.Sprint("spine", a), full)
		for r := range racks {
			for range each {
				link(fmt.Sprint("tor", r), fmt.Sprint("spine", a))
			}
		}
	}
	if rng.IntN(3) == 0 { // one more level, which no shortest path needs unless a link below is missing
		sw("core", full)
		for a := range above {
			link(fmt.Sprint("spine", a), "core")
		}
	}
	data, err := json.Marshal(topo)
	if err != nil {
		return nil, err
	}
	return topology.Parse(data, "a fabric that was drawn")
}

// load has hosts send: groups, and connections besides.
func (o *observed) load(s *simnet.Sim, rng *rand.Rand) ([]*simnet.Group, error) {
	hosts := s.Hosts()[1:] // the first forges
	var groups []*simnet.Group
	post := func(from *simnet.Endpoint, ops []qp.Opcode, to ...*simnet.Endpoint) {
		for range 1 + rng.IntN(12) {
			op, size := ops[rng.IntN(len(ops))], rng.IntN(40_000)
			if op == qp.OpRead {
				o.reads++
				size++
			}
			at := time.Duration(rng.IntN(200)) * time.Microsecond
			s.At(at, func() {
				for _, e := range to {
					_ = e.PostRecv(size) // without which the receiver is not ready, which is what happens if it cannot be posted
				}
				_ = from.Post(op, size, 7) // in the error state it completes with an error
			})
		}
	}
	for range 1 + rng.IntN(3) {
		list := slices.Clone(hosts)
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		g, err := s.Group(list[0], list[1:2+rng.IntN(len(list)-1)]...)
		if errors.Is(err, bifurcation.ErrNoMergePoint) {
			continue // the sender's switch only routes
		} else if err != nil {
			return nil, err
		}
		groups = append(groups, g)
		post(g.Sender, []qp.Opcode{qp.OpWrite, qp.OpWrite, qp.OpWriteImm, qp.OpSend}, g.Receivers...)
	}
	for range rng.IntN(5) {
		a, b := rng.IntN(len(hosts)), rng.IntN(len(hosts))
		if a == b {
			continue
		}
		from, to := s.Connect(hosts[a], hosts[b])
		post(from, []qp.Opcode{qp.OpWrite, qp.OpRead, qp.OpSendImm}, to)
	}
	return groups, nil
}

// forge has the first host send what it should not: answers of members and of others, with any syndrome, and packets of groups
// with a source or an address that is not the group's.
func (o *observed) forge(s *simnet.Sim, rng *rand.Rand, groups []*simnet.Group) {
	hosts := s.Hosts()
	at := time.Duration(rng.IntN(50)) * time.Microsecond
	for range min(len(groups), 1) * rng.IntN(20) {
		group, _ := groups[rng.IntN(len(groups))].Plan()
		member := func() int {
			addr := group.Receivers[rng.IntN(len(group.Receivers))].Addr
			return hosts[slices.IndexFunc(hosts, func(h int) bool { return s.Addr(h) == addr })]
		}
		sender := hosts[slices.IndexFunc(hosts, func(h int) bool { return s.Addr(h) == group.Source })]
		src, dst := member(), sender
		h := rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.Acknowledge, DestQP: rocev2.QPN(group.ID), PSN: rocev2.PSN(rng.IntN(64)), MigReq: true},
			AETH: rocev2.AETH{Syndrome: rocev2.Syndrome(rng.IntN(256)), MSN: uint32(rng.IntN(8))}}
		switch rng.IntN(6) {
		case 0:
			h = rocev2.CNPHeaders(rocev2.QPN(group.ID))
		case 1: // of any host
			src = hosts[rng.IntN(len(hosts))]
		case 2: // to another one
			dst = hosts[rng.IntN(len(hosts))]
		case 3, 4: // of the group's packets, from another host, or to another one
			h = rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, DestQP: rocev2.QPN(group.ID), PSN: rocev2.PSN(rng.IntN(64)), MigReq: true}}
			src, dst = hosts[rng.IntN(len(hosts))], member()
			if rng.IntN(2) == 0 {
				src = sender
			}
		}
		if src == dst {
			continue
		}
		o.forged++
		sport := uint16(0xc000 | rng.IntN(1<<14))
		s.At(at, func() { s.Inject(hosts[0], src, dst, sport, h, 0) })
		at += time.Duration(1+rng.IntN(20)) * time.Microsecond // the one before has left
	}
}

// programmed is a switch of a fabric with its routes, and its part in groups.
func programmed(s *simnet.Sim, number int, topo *topology.Topology, p simnet.Params, groups []*simnet.Group) (*Switch, error) {
	sw, err := New()
	if err != nil {
		return nil, err
	}
	mode, node := Recompute, topo.Nodes()[number]
	if p.Late {
		mode = Neutral
	}
	sw.Default("ingress.settings", "ingress.configure", uint64(mode), uint64(s.HashSeed(number)), 0, 0)
	sw.Add("ingress.unicast.router_macs", []any{MAC(simnet.MAC)}, "NoAction")
	for _, at := range node.Ports {
		port := uint64(at.Near.Port)
		sw.Add("ingress.unicast.next_hops", []any{port}, "ingress.unicast.to_port", port)
		sw.Add("egress.neighbour.neighbours", []any{port}, "egress.neighbour.rewrite", MAC(simnet.MAC), MAC(simnet.MAC))
		sw.Add("egress.ecn.ports", []any{port}, "egress.ecn.red", uint64(p.KMin), uint64(p.KMax-1), 0)
	}
	at, ecmp := bifurcation.Switch(node.Name), 0
	for _, n := range topo.Nodes() {
		if n.Switch != nil {
			continue
		}
		hops := s.Fabric().NextHops(at, n.Address)
		dst := []any{Prefix{Addr(n.Address.As4()), 32}}
		if len(hops) == 1 {
			sw.Add("ingress.unicast.routes", dst, "ingress.unicast.to_next_hop", uint64(hops[0].NextHop))
			continue
		}
		ecmp++
		sw.Add("ingress.unicast.routes", dst, "ingress.unicast.to_ecmp", uint64(ecmp))
		t := sw.Table("ingress.unicast.ecmp_groups")
		e := &pipeline.Entry{Key: match.Key{{Value: match.Value{uint64(ecmp)}}}, Ref: pipeline.RefSet}
		for _, h := range hops {
			e.Set = append(e.Set, pipeline.Weighted{Call: sw.call(t, "ingress.unicast.to_next_hop", []uint64{uint64(h.NextHop)}), Weight: 1, WatchPort: -1})
		}
		if err := t.Insert(e); err != nil {
			return nil, err
		}
	}
	index := 0
	for slot, g := range groups {
		group, plan := g.Plan()
		for _, st := range plan.Steps {
			if st.At == at && !st.Rules.Empty() {
				index++
				sw.installStep(index, group, &st)
			}
		}
		if plan.MergePoint == at {
			sw.installMerge(slot, group, &plan.Merge, p.CNPGap)
		}
	}
	return sw, nil
}

// installStep adds the entries of a step's rules.
func (s *Switch) installStep(index int, g bifurcation.Group, st *bifurcation.SwitchStep) {
	first := 16 * index
	for k, group := range st.Rules.PREGroups {
		var replicas []pre.Replica
		for _, r := range group {
			replicas = append(replicas, pre.Replica{Port: uint16(r.Port), Instance: r.RID})
		}
		slices.SortFunc(replicas, func(a, b pre.Replica) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Instance, b.Instance))
		})
		if err := s.PRE.InsertGroup(uint32(first+k), replicas); err != nil {
			panic(err)
		}
	}
	for _, w := range st.Rules.Rewrites {
		key, dst := []any{index, int(w.RID)}, Addr(w.Dst.As4())
		if w.Last {
			s.Add("egress.rewrite.replicas", key, "egress.rewrite.to_receiver", dst, uint64(w.QPN), uint64(w.NextHop), uint64(w.Neutral))
		} else {
			s.Add("egress.rewrite.replicas", key, "egress.rewrite.to_branch", dst, uint64(w.NextHop), uint64(w.Neutral))
		}
	}
	for _, r := range st.Rules.Translations {
		s.Add("egress.rewrite.regions", []any{index, int(r.RID), uint64(r.RKey), Span{r.First, r.Last}}, "egress.rewrite.translate", r.Offset, uint64(r.NewRKey), uint64(r.Neutral))
	}
	s.Add("ingress.replication.groups", []any{Addr(g.Source.As4()), uint64(g.ID), Addr(st.Dst.As4())}, "ingress.replication.replicate",
		uint64(index), uint64(first), uint64(len(st.Rules.PREGroups)))
}

// installMerge adds the entries of a merge point.
func (s *Switch) installMerge(slot int, g bifurcation.Group, m *bifurcation.Merge, gap time.Duration) {
	for _, x := range m.Members {
		s.Add("egress.ack_merge.merge_members", []any{Addr(x.Src.As4()), Addr(x.Dst.As4()), uint64(x.QPN)}, "egress.ack_merge.from", uint64(slot), uint64(x.Index))
	}
	s.Add("egress.ack_merge.merge_members", []any{Addr(m.Source.As4()), Addr(g.Source.As4()), uint64(m.SenderQPN)}, "egress.ack_merge.bypass")
	s.Add("egress.ack_merge.merge_groups", []any{slot}, "egress.ack_merge.merge", uint64(m.Current), 1, uint64(m.InitialPSN), 0,
		Addr(m.Source.As4()), uint64(m.SenderQPN), uint64(gap/time.Microsecond))
}

// managed gives the switch the embedded switch's queues, with the rates of its links.
func (s *Switch) managed(sim *simnet.Sim, n *topology.Node, emit func(uint16, []byte)) (*traffic.Manager, error) {
	m, err := traffic.New(traffic.Config{Memory: traffic.Memory{Shared: 1 << 30}, Unit: 1}, emit)
	if err != nil {
		return nil, err
	}
	m.Load(s.Pipeline)
	for _, p := range n.Ports {
		rate := sim.Params().FabricRate
		if p.To.Switch == nil {
			rate = sim.Params().HostRate
		}
		if err := m.SetRate(uint16(p.Near.Port), traffic.Rate{PerSecond: uint64(rate), Bits: true}); err != nil {
			return nil, err
		}
	}
	return m, nil
}
