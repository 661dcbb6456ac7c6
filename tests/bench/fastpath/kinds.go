package main

import (
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// The goals: the ratio of packets in the kernel, and of packets for the same processor time.
const (
	unicastGoal = 10
	copiesGoal  = 6
	bmv2Goal    = 30
	groupsGoal  = 1.5 // at most, the ratio of processor time with all groups to one group
)

// Hosts 1 to 4 form a group, and host 1 is its sender. Sources are at host 1 and at hosts without a
// group.
const (
	hosts      = 6
	maxSources = 3
)

var sourceHosts = [maxSources]int{1, 5, 6}

// theGroup is group i of the switch.
func theGroup(i int) dataplane.Group {
	g := dataplane.Group{Index: i + 1, Sender: 1, SenderQPN: rocev2.QPN(0x10000 + i), MCID: rocev2.QPN(firstMCID + i), Receivers: []int{2, 3, 4}, Epoch: 1}
	for j := range g.Receivers {
		g.Targets = append(g.Targets, dataplane.Target{QPN: dataplane.ReceiverQPN(j), RKey: dataplane.ReceiverRKey(j), VA: dataplane.SenderVA})
	}
	return g
}

const firstMCID = 0x80_0000

// A kind is a kind of packets.
type kind struct {
	name  string
	goal  float64
	frame func(size int) []byte
	first []func() []byte // frames to send once before
	out   int             // how many packets leave for each that arrives
}

var (
	unicast = kind{name: "unicast", goal: unicastGoal, out: 1, frame: func(size int) []byte {
		return dataplane.Between(1, 2, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, PKey: rocev2.DefaultPKey, DestQP: 0x77}}, make([]byte, size-58)).Frame()
	}}
	copies = kind{name: "1 to 3", goal: copiesGoal, out: 3, frame: func(size int) []byte {
		g := theGroup(0)
		return g.Data(rocev2.WriteOnly, 1, make([]byte, (size-74)&^3)).Frame()
	}}
	allKinds = []kind{
		unicast, copies,
		{name: "1 to 3, in the middle of a WRITE", out: 3, frame: func(size int) []byte {
			g := theGroup(0)
			return g.Data(rocev2.WriteMiddle, 1, make([]byte, (size-58)&^3)).Frame()
		}},
		{name: "an ACK, merged away", frame: func(int) []byte { return ack(0) }},
		{name: "an ACK, passed on", out: 1, first: []func() []byte{func() []byte { return ack(1) }, func() []byte { return ack(2) }}, frame: func(int) []byte { return ack(0) }},
		{name: "climbs, and is dropped", frame: func(size int) []byte {
			p := dataplane.Between(1, 2, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, DestQP: 0x77}}, make([]byte, size-58))
			p.IP.Dst = [4]byte{192, 0, 2, 1} // without a route
			return p.Frame()
		}},
	}
)

func ack(member int) []byte {
	g := theGroup(0)
	return g.Answer(member, rocev2.AckNoLimit, 5, 1).Frame()
}
