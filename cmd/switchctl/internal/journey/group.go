package journey

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// groupInfo identifies the packets of a group.
type groupInfo struct {
	source  netip.Addr
	mcid    rocev2.QPN
	sender  rocev2.QPN // the true one
	as      netip.Addr // the address that the sender's queue pair is connected to
	root    string     // the switch where answers are merged
	initial rocev2.PSN
	members []member
}

type member struct {
	addr netip.Addr
	qpn  rocev2.QPN
}

func infoOf(t *grouptree.Tree) (g groupInfo, err error) {
	if t.Group.GetGroup() == nil {
		return g, fmt.Errorf("no agent tells what group %v is: %s", t.Key, strings.Join(t.All(), "; "))
	}
	from := t.Group.GetGroup()
	g = groupInfo{source: t.Key.Source, mcid: rocev2.QPN(t.Key.ID), sender: rocev2.QPN(from.GetSenderQpn()), root: t.Group.GetSwitch(),
		initial: rocev2.PSN(from.GetInitialPsn() & rocev2.Mask24)}
	for _, r := range from.GetReceivers() {
		addr, err := netip.ParseAddr(r.GetAddress())
		if err != nil {
			return g, fmt.Errorf("group %v: receiver %w", t.Key, err)
		}
		g.members = append(g.members, member{addr, rocev2.QPN(r.GetQpn())})
	}
	if len(g.members) == 0 {
		return g, fmt.Errorf("group %v has no receivers", t.Key)
	}
	g.as = g.members[0].addr
	if a := from.GetAddress(); a != "" {
		if g.as, err = netip.ParseAddr(a); err != nil {
			return g, fmt.Errorf("group %v: address %w", t.Key, err)
		}
	}
	return g, nil
}

// holds reports whether a packet belongs to the group.
func (g *groupInfo) holds(x *parsed) bool {
	if x.answer {
		return x.dst == g.source && (x.h.DestQP == g.mcid || g.merged(x) || x.h.DestQP == g.sender && x.src == g.as)
	}
	return x.src == g.source && x.h.Opcode.IsRequest() && (x.h.DestQP == g.mcid || g.receiver(x) >= 0)
}

// fromSender: data as the sender sent it.
func (g *groupInfo) fromSender(x *parsed) bool {
	return !x.answer && x.src == g.source && x.dst == g.as && x.h.DestQP == g.mcid
}

// merged: an answer as the sender gets it, when it leaves the merging switch.
func (g *groupInfo) merged(x *parsed) bool {
	return x.answer && x.Out && x.Switch == g.root && x.dst == g.source && x.h.DestQP == g.sender && x.src == g.as
}

// receiver returns the index of the receiver that data is rewritten for; -1: none.
func (g *groupInfo) receiver(x *parsed) int {
	return slices.IndexFunc(g.members, func(m member) bool { return x.dst == m.addr && x.h.DestQP == m.qpn })
}

// answerer returns the index of the receiver that an answer is from; -1: none.
func (g *groupInfo) answerer(x *parsed) int {
	return slices.IndexFunc(g.members, func(m member) bool { return x.src == m.addr && x.h.DestQP == g.mcid })
}
