package doctor

import "strings"

// A DropReason explains why a switch drops packets.
type DropReason struct {
	Meaning string
	// Usual: merging drops such packets, and nothing is wrong.
	Usual bool
	// Suspicious: packets that are dropped for this reason should not exist.
	Suspicious bool
	Do         string
}

// DropReasons explains the cells of the drop counters (bmv2.DropReasons).
var DropReasons = map[string]DropReason{
	"malformed": {Meaning: "lengths that disagree, or cut short", Suspicious: true,
		Do: "look for segmentation offloads on the interfaces that lead here (switchctl doctor --interface) and for an MTU that is too small"},
	"ip_checksum": {Meaning: "wrong IPv4 checksum", Suspicious: true,
		Do: "look for checksum offload on virtual interfaces (ethtool -K INTERFACE tx off) and for bad cables"},
	"icrc": {Meaning: "wrong ICRC: the packet was changed on its way", Suspicious: true,
		Do: "look for a switch with another \"icrc\" mode, for offloads on the way, and for bad cables"},
	"ttl":      {Meaning: "TTL used up", Suspicious: true, Do: "look for a routing loop: switchctl routes ADDRESS on each switch"},
	"no_route": {Meaning: "no route to the destination", Do: "see switchctl routes; addresses that no host has, and multicast such as mDNS, count here too"},
	"no_next_hop": {Meaning: "a route's next hop is not there", Suspicious: true,
		Do: "if it rises, restart the agent, which then writes what is missing"},
	"no_neighbour": {Meaning: "a next hop's MAC address is not known", Suspicious: true,
		Do: "if it rises, restart the agent, which then writes what is missing"},
	"unknown_mac": {Meaning: "for a MAC address that is not the router's, where nothing is bridged",
		Do: "usual for what hosts broadcast or multicast, such as IPv6 neighbor discovery"},
	"opcode": {Meaning: "READ, atomic or unknown operation to a group", Suspicious: true,
		Do: "have the application send WRITE and SEND only to groups"},
	"no_replica": {Meaning: "a copy that no rule describes", Suspicious: true,
		Do: "if it rises, a group is half installed: look for problems in switchctl groups"},
	"not_member": {Meaning: "an answer of a receiver that was removed",
		Do: "usual for a moment after a receiver or a group was removed"},
	"syndrome":      {Meaning: "an answer that is neither ACK nor NAK", Suspicious: true, Do: "look for a device that does not speak RoCEv2"},
	"absorbed":      {Meaning: "ACKs merged: the sender learns nothing new by them", Usual: true},
	"stale_nak":     {Meaning: "NAKs of what has arrived since", Usual: true},
	"undecided_nak": {Meaning: "NAKs before every receiver was heard of", Usual: true},
	"cnp_filter":    {Meaning: "CNPs sooner after one another than the group wants", Usual: true},
	"spoofed": {Meaning: "sent in another's name at a guarded port", Suspicious: true,
		Do: "if the host is meant to be there, list its address, MAC and port under hosts in the agent's configuration"},
	"unreadable": {Meaning: "not plain IPv4 nor ARP, at a guarded port: IPv6, VLAN tags, IP options, fragments",
		Do: "usual for what hosts broadcast or multicast, such as IPv6 neighbor discovery and IGMP; send nothing else from hosts behind a guard"},
	"window": {Meaning: "answers behind what the sender was told, or more than 4,194,304 packets ahead",
		Do: "usual for ACKs that overtook one another; if one receiver's rises all the time, its device answers what it was never sent: take it out"},
	"bypass": {Meaning: "from a group's first receiver to the sender's own queue pair, past merging", Suspicious: true,
		Do: "look on that receiver's host for a program that sends RoCE of its own making"},
	"fault": {Meaning: "by a rule of fault injection", Suspicious: true, Do: "remove the rules of *.fault_in and *.fault_out, which are for tests"},
}

// IsDrop reports whether a counter counts drops.
func IsDrop(counter string) bool { return strings.HasSuffix(counter, "drops") }
