package simnet

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Group is a multicast group. Its sender's writes complete when all receivers have them.
type Group struct {
	Sender    *Endpoint
	Receivers []*Endpoint
	// Verdicts counts what became of answers at the merge point.
	Verdicts [ackmerge.OutsideWindow + 1]uint64

	sender, address int32 // hosts: whose the packets are, and whom they are addressed to
	senderQPN       rocev2.QPN
	mergeAt         int32
	merge           ackmerge.Config
	state           ackmerge.State
	members         []int32
	steps           []step
	plan            bifurcation.Planned
	group           bifurcation.Group
}

// A step is what a switch does to packets with a destination address.
type step struct {
	sw, dst int32
	groups  [][]replica
}

// A replica is a copy and how it is rewritten.
type replica struct {
	port, dst int32
	qpn       rocev2.QPN
	last      bool
	offset    uint64 // of its region, for the first packet of a WRITE
	rkey      uint32
	neutral   uint16 // what the constants that keep the ICRC do to the source port
	region    uint16 // likewise that of the region
}

// Group makes a multicast group of hosts. Errors are those of bifurcation.Plan: the fabric cannot have it.
func (s *Sim) Group(sender int, receivers ...int) (*Group, error) {
	id := rocev2.QPN(firstMCID + len(s.groups)) //nolint:gosec // memory ends before
	s.flows++
	sport := 0xc000 | s.flows&0x3fff
	g := &Group{sender: int32(sender), address: none} //nolint:gosec // an index
	b := bifurcation.Group{Source: s.nodes[sender].Address, ID: uint32(id), Late: s.p.Late}
	for _, r := range receivers {
		e := s.endpoint(int32(r), g.sender, id, sport) //nolint:gosec // likewise
		g.Receivers = append(g.Receivers, e)
		g.members = append(g.members, e.host)
		region := bifurcation.Region{Length: 1 << 40, ReceiverRKey: uint32(e.cfg.LocalQPN)} // of a sender that writes to 0 with key 0
		if !s.p.Late {
			region.ReceiverVA = uint64(e.cfg.LocalQPN) << 40
		}
		b.Receivers = append(b.Receivers, bifurcation.Receiver{Addr: s.nodes[r].Address, QPN: uint32(e.cfg.LocalQPN), Regions: []bifurcation.Region{region}})
	}
	if len(g.members) > 0 {
		g.address = g.members[0]
	}
	g.Sender = s.endpoint(g.sender, g.address, id, sport)
	g.senderQPN = g.Sender.cfg.LocalQPN
	b.SenderQPN = uint32(g.senderQPN)
	p, err := bifurcation.Plan(s.fabric, b, 0)
	if err != nil {
		return nil, fmt.Errorf("group of %s: %w", s.nodes[sender].Name, err)
	}
	g.plan, g.group = p, b
	g.mergeAt = s.fabric.sw[p.MergePoint]
	g.merge = ackmerge.Config{Members: p.Merge.Current, Epoch: 1, InitialPSN: rocev2.PSN(p.Merge.InitialPSN), CNPGap: s.p.CNPGap}
	for i := range p.Steps {
		if st := &p.Steps[i]; !st.Rules.Empty() {
			g.steps = append(g.steps, s.compile(st, b))
		}
	}
	s.groups = append(s.groups, g)
	return g, nil
}

// compile resolves a step's rules to ports.
func (s *Sim) compile(st *bifurcation.SwitchStep, g bifurcation.Group) step {
	sw := s.fabric.sw[st.At]
	if s.p.Late {
		st.Rules.Neutralize(st.Dst, g.ID, neutral)
	}
	out := step{sw: sw, dst: s.fabric.host[st.Dst]}
	for _, group := range st.Rules.PREGroups {
		slices.SortFunc(group, func(a, b bifurcation.Replica) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.RID, b.RID))
		}) // as switches are told
		var copies []replica
		for _, r := range group {
			w := st.Rules.Rewrites[r.RID-1]
			c := replica{port: s.fabric.port(sw, r.Port), dst: s.fabric.host[w.Dst], qpn: rocev2.QPN(w.QPN),
				neutral: rocev2.Neutral(w.Neutral).SrcPort(), last: w.Last}
			for _, t := range st.Rules.Translations {
				if t.RID == r.RID {
					c.offset, c.rkey, c.region = t.Offset, t.NewRKey, rocev2.Neutral(t.Neutral).SrcPort()
				}
			}
			copies = append(copies, c)
		}
		out.groups = append(out.groups, copies)
	}
	return out
}

// group finds a group by its number in packets; nil: it is none's.
func (s *Sim) group(q rocev2.QPN) *Group {
	if i := int(q) - firstMCID; i >= 0 && i < len(s.groups) {
		return s.groups[i]
	}
	return nil
}

// step finds what a switch does for the group; nil: nothing.
func (g *Group) step(sw, dst int32) *step {
	for i := range g.steps {
		if st := &g.steps[i]; st.sw == sw && st.dst == dst {
			return st
		}
	}
	return nil
}

// member is a receiver's place in the group.
func (g *Group) member(host int32) int { return slices.Index(g.members, host) }

// neutral is the constant that keeps a packet's ICRC right.
func neutral(c bifurcation.Change) uint32 {
	h := rocev2.HeaderChange{QPN: rocev2.QPN(c.QPN ^ c.NewQPN), RKey: c.RKey ^ c.NewRKey}
	if c.Dst.Is4() && c.NewDst.Is4() {
		from, to := c.Dst.As4(), c.NewDst.As4()
		for i := range h.Dst {
			h.Dst[i] = from[i] ^ to[i]
		}
	}
	return uint32(rocev2.NeutralOf(h))
}
