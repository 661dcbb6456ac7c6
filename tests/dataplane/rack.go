package dataplane

import (
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// RouterMAC is the MAC of every switch.
var RouterMAC = [6]byte{2, 0, 0, 0, 1, 0}

// RackHosts is the number of hosts of a rack. Host n, from 1 on, is on port n.
const RackHosts = 20

// HostIP is the address of host n.
func HostIP(n int) [4]byte { return [4]byte{10, 0, 0, byte(n)} }

// HostMAC is the MAC of host n.
func HostMAC(n int) [6]byte { return [6]byte{2, 0, 0, 0, 0, byte(n)} }

// MAC returns the number that a table key has for a MAC.
func MAC(a [6]byte) (v uint64) {
	for _, b := range a {
		v = v<<8 | uint64(b)
	}
	return v
}

// NewRack returns a switch that routes between RackHosts hosts.
func NewRack() (*Switch, error) {
	s, err := New()
	if err != nil {
		return nil, err
	}
	s.Add("ingress.unicast.router_macs", []any{MAC(RouterMAC)}, "NoAction")
	for n := 1; n <= RackHosts; n++ {
		s.Add("ingress.unicast.routes", []any{Prefix{Addr(HostIP(n)), 32}}, "ingress.unicast.to_next_hop", uint64(n))
		s.Add("ingress.unicast.next_hops", []any{n}, "ingress.unicast.to_port", uint64(n))
		s.Add("egress.neighbour.neighbours", []any{n}, "egress.neighbour.rewrite", MAC(RouterMAC), MAC(HostMAC(n)))
	}
	return s, nil
}

// A Group is a multicast group within a rack: the sender is a host, member i is
// the host Receivers[i].
type Group struct {
	Index      int // of the group and of its merging state
	Sender     int
	SenderQPN  rocev2.QPN
	MCID       rocev2.QPN
	Receivers  []int
	Epoch      int
	InitialPSN rocev2.PSN
	Learn      bool
	Members    uint16   // 0: all
	CNPGap     uint64   // µs
	Targets    []Target // of each member; nil: the functions below say
}

// A Target is where a member's copies go.
type Target struct {
	QPN  rocev2.QPN
	RKey uint32
	VA   uint64 // of what the sender addresses as SenderVA
}

func (g *Group) target(i int) Target {
	if g.Targets != nil {
		return g.Targets[i]
	}
	return Target{ReceiverQPN(i), ReceiverRKey(i), ReceiverVA(i)}
}

// The receivers' side of a group: QPN, rkey and VA offset of member i. The
// sender's region is at SenderVA, RegionLen long, with SenderRKey.
const (
	SenderVA   = 0x10_0000
	RegionLen  = 1 << 30
	SenderRKey = 0x5e
)

// ReceiverQPN is the QPN of member i.
func ReceiverQPN(i int) rocev2.QPN { return rocev2.QPN(0x100 + i) }

// ReceiverRKey is the rkey of member i's region.
func ReceiverRKey(i int) uint32 { return uint32(0xa000 + i) }

// ReceiverVA is where member i's region begins.
func ReceiverVA(i int) uint64 { return 0x7f00_0000_0000 + uint64(i)<<32 }

// Install adds all of a group's entries, in the order that keeps packets from
// meeting half of it.
func (s *Switch) Install(g Group) {
	var replicas []pre.Replica
	for i, host := range g.Receivers {
		to := g.target(i)
		replicas = append(replicas, pre.Replica{Port: uint16(host), Instance: uint16(i + 1)})
		s.Add("egress.rewrite.replicas", []any{g.Index, i + 1}, "egress.rewrite.to_receiver",
			Addr(HostIP(host)), uint64(to.QPN), uint64(host), g.Neutral(host, to.QPN))
		s.Add("egress.rewrite.regions", []any{g.Index, i + 1, SenderRKey, Span{SenderVA, SenderVA + RegionLen - 1}},
			"egress.rewrite.translate", to.VA-SenderVA, uint64(to.RKey), NeutralRegion(to))
		s.Add("egress.ack_merge.merge_members",
			[]any{Addr(HostIP(host)), Addr(HostIP(g.Sender)), uint64(g.MCID)}, "egress.ack_merge.from", uint64(g.Index), uint64(i))
	}
	if err := s.PRE.InsertGroup(uint32(g.Index), replicas); err != nil {
		panic(err)
	}
	s.Add("egress.ack_merge.merge_members", []any{Addr(HostIP(g.Receivers[0])), Addr(HostIP(g.Sender)), uint64(g.SenderQPN)}, "egress.ack_merge.bypass")
	s.Add("egress.ack_merge.merge_groups", []any{g.Index}, "egress.ack_merge.merge", g.merge()...)
	s.Add("ingress.replication.groups", []any{Addr(HostIP(g.Sender)), uint64(g.MCID), Addr(HostIP(g.Receivers[0]))},
		"ingress.replication.replicate", uint64(g.Index), uint64(g.Index), 1)
}

// Neutral is what keeps the ICRC of a copy to a host right; with the MC_ID, that of a copy that
// is copied again.
func (g *Group) Neutral(host int, qpn rocev2.QPN) uint64 {
	c := rocev2.HeaderChange{Dst: HostIP(host), QPN: g.MCID ^ qpn}
	for i, v := range HostIP(g.Receivers[0]) {
		c.Dst[i] ^= v
	}
	return uint64(rocev2.NeutralOf(c))
}

// NeutralRegion is what a region adds, if its address does not move.
func NeutralRegion(to Target) uint64 {
	if to.VA != SenderVA {
		return 0
	}
	return uint64(rocev2.NeutralOf(rocev2.HeaderChange{RKey: SenderRKey ^ to.RKey}))
}

// Modes of the ICRC.
const (
	Recompute = iota
	CheckOff
	Neutral
)

// SetICRC sets the mode.
func (s *Switch) SetICRC(mode uint64) {
	s.Default("ingress.settings", "ingress.configure", mode, 0, 0, 0)
}

// Merge replaces the group's merging configuration.
func (s *Switch) Merge(g Group) {
	s.Modify("egress.ack_merge.merge_groups", []any{g.Index}, "egress.ack_merge.merge", g.merge()...)
}

func (g *Group) merge() []uint64 {
	members := g.Members
	if members == 0 {
		members = uint16(1<<len(g.Receivers) - 1)
	}
	learn := uint64(0)
	if g.Learn {
		learn = 1
	}
	return []uint64{uint64(members), uint64(g.Epoch), uint64(g.InitialPSN), learn,
		Addr(HostIP(g.Receivers[0])), uint64(g.SenderQPN), g.CNPGap}
}

// Between returns a packet from one host to another, by way of the router.
func Between(from, to int, h rocev2.Headers, payload []byte) *Packet {
	p := &Packet{H: h, Payload: payload}
	p.Eth.Dst, p.Eth.Src, p.Eth.EtherType = RouterMAC, HostMAC(from), 0x0800
	p.IP.Src, p.IP.Dst, p.IP.ID = HostIP(from), HostIP(to), 0x4711
	p.UDP.SrcPort = 0xc000
	return p
}

// Data is a request packet of the group's sender.
func (g *Group) Data(op rocev2.Opcode, psn rocev2.PSN, payload []byte) *Packet {
	h := rocev2.Headers{BTH: rocev2.BTH{Opcode: op, MigReq: true, PKey: rocev2.DefaultPKey, DestQP: g.MCID, PSN: psn,
		AckReq: op.IsLast(), Pad: uint8(-len(payload) & 3)},
		RETH: rocev2.RETH{VA: SenderVA, RKey: SenderRKey, Length: uint32(len(payload))}}
	for len(payload)&3 != 0 {
		payload = append(payload[:len(payload):len(payload)], 0)
	}
	return Between(g.Sender, g.Receivers[0], h, payload)
}

// Answer is an acknowledgement of member i.
func (g *Group) Answer(i int, s rocev2.Syndrome, psn rocev2.PSN, msn uint32) *Packet {
	return Between(g.Receivers[i], g.Sender, rocev2.Headers{
		BTH:  rocev2.BTH{Opcode: rocev2.Acknowledge, MigReq: true, PKey: rocev2.DefaultPKey, DestQP: g.MCID, PSN: psn},
		AETH: rocev2.AETH{Syndrome: s, MSN: msn},
	}, nil)
}
