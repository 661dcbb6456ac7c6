package switchspec

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// PREReplica is a copy that the packet replication engine makes.
type PREReplica struct {
	Port     uint16
	Instance uint16 // the copy's egress_rid
}

// Compare orders replicas as those of a PREGroup are.
func (r PREReplica) Compare(o PREReplica) int {
	return cmp.Or(cmp.Compare(r.Port, o.Port), cmp.Compare(r.Instance, o.Instance))
}

// PREGroup is a group of the packet replication engine.
type PREGroup struct {
	ID uint16
	// Replicas come in ascending order of port, then instance: bmv2 loses some
	// that share an instance otherwise.
	Replicas []PREReplica
}

// Key implements Entity.
func (g PREGroup) Key() Key { return Key{kind: KindPREGroup, a: uint64(g.ID)} }

func (g PREGroup) String() string { return fmt.Sprintf("PRE group %d: %v", g.ID, g.Replicas) }
func (g PREGroup) check() error {
	err := rules(g, rule{g.ID != 0, "the number is 0"})
	for i, r := range g.Replicas {
		err = errors.Join(err, rules(g, rule{r.Port <= MaxPort, "a port is more than 510"},
			rule{i == 0 || g.Replicas[i-1].Compare(r) < 0, "the replicas are not in ascending order"}))
	}
	return err
}

// Match sends a group's packets to the packet replication engine.
type Match struct {
	Src  netip.Addr
	MCID uint32 // the destination QPN in the sender's packets
	Dst  netip.Addr

	Group     uint16 // index by which Replicas and Regions are found
	FirstPRE  uint16 // PRE groups FirstPRE to FirstPRE+PREGroups-1,
	PREGroups uint16 // of which the flow's hash takes one
}

// Key implements Entity.
func (m Match) Key() Key {
	return Key{kind: KindMatch, a: ip(m.Src), b: uint64(m.MCID), c: ip(m.Dst)}
}

func (m Match) String() string {
	return fmt.Sprintf("group match %v, %#06x to %v: group %d, PRE groups %d+%d", m.Src, m.MCID, m.Dst, m.Group, m.FirstPRE, m.PREGroups)
}
func (m Match) check() error {
	return rules(m, rule{m.Src.Is4() && m.Dst.Is4(), "an address is not IPv4"},
		rule{m.MCID <= MaxQPN, "the MC_ID has more than 24 bits"},
		rule{m.FirstPRE != 0 && m.PREGroups != 0, "there is no PRE group"},
		rule{int(m.FirstPRE)+int(m.PREGroups) <= 1<<16, "the PRE groups' numbers are more than 65535"})
}

func (m Match) pre(f func(Key)) {
	for id := range uint64(m.PREGroups) {
		f(Key{kind: KindPREGroup, a: uint64(m.FirstPRE) + id})
	}
}

// Replica is what becomes of a copy. Regions concern the last copies. NextHop is that of
// a Neighbor; 0 leaves the MACs alone.
type Replica struct {
	Group uint16
	bifurcation.Rewrite
}

func replicaKey(group, rid uint16) Key {
	return Key{kind: KindReplica, a: uint64(group), b: uint64(rid)}
}

// Key implements Entity.
func (r Replica) Key() Key { return replicaKey(r.Group, r.RID) }

func (r Replica) String() string {
	if r.Last {
		return fmt.Sprintf("replica %d/%d: to receiver %v, QPN %#06x, next hop %d, neutral %#08x", r.Group, r.RID, r.Dst, r.QPN, r.NextHop, r.Neutral)
	}
	return fmt.Sprintf("replica %d/%d: to branch %v, next hop %d, neutral %#08x", r.Group, r.RID, r.Dst, r.NextHop, r.Neutral)
}
func (r Replica) check() error {
	return rules(r, rule{r.Dst.Is4(), "the address is not IPv4"},
		rule{r.QPN <= MaxQPN, "the QPN has more than 24 bits"},
		rule{r.Last || r.QPN == 0, "a copy that will be copied again keeps its QPN"})
}

// Region translates the addresses of WRITEs for a receiver. Regions of one copy
// do not overlap.
type Region struct {
	Group uint16
	bifurcation.Translation
}

// Key implements Entity.
func (r Region) Key() Key {
	return Key{kind: KindRegion, a: uint64(r.Group)<<16 | uint64(r.RID), b: uint64(r.RKey), c: r.First, d: r.Last}
}

func (r Region) replica() Key { return replicaKey(r.Group, r.RID) }

func (r Region) String() string {
	return fmt.Sprintf("region %d/%d, rkey %#08x, VA %#x to %#x: offset %#x, rkey %#08x, neutral %#08x", r.Group, r.RID, r.RKey, r.First, r.Last, r.Offset, r.NewRKey, r.Neutral)
}
func (r Region) check() error {
	return rules(r, rule{r.First <= r.Last, "the last address is before the first"},
		rule{r.Neutral == 0 || r.Offset == 0, "no constant keeps the ICRC where the virtual address moves"})
}

// MergeMember says whose an answer is.
type MergeMember struct {
	Src    netip.Addr // the receiver's
	Dst    netip.Addr // the sender's
	DestQP uint32     // to which the receiver's queue pair is connected: the MC_ID

	Slot  uint16 // MergeGroup
	Index uint8  // in its Members
}

// Key implements Entity.
func (m MergeMember) Key() Key {
	return Key{kind: KindMergeMember, a: ip(m.Src), b: ip(m.Dst), c: uint64(m.DestQP)}
}

func (m MergeMember) String() string {
	return fmt.Sprintf("merge member %v to %v, QPN %#06x: slot %d, index %d", m.Src, m.Dst, m.DestQP, m.Slot, m.Index)
}
func (m MergeMember) check() error {
	return rules(m, rule{m.Src.Is4() && m.Dst.Is4(), "an address is not IPv4"},
		rule{m.DestQP <= MaxQPN, "the QPN has more than 24 bits"},
		rule{m.Slot <= MaxSlot, "the slot is more than 16383"},
		rule{m.Index < MaxMembers, "the index is more than 15"})
}

// Bypass drops RoCE packets from Src to a group's sender that are not addressed to the
// group: they would pass for merged answers. It is in the table of MergeMembers.
type Bypass struct {
	Src netip.Addr // that the sender is connected to
	Dst netip.Addr // the sender's
	QPN uint32     // the sender's own
}

// Key implements Entity.
func (b Bypass) Key() Key {
	return Key{kind: KindBypass, a: ip(b.Src), b: ip(b.Dst), c: uint64(b.QPN)}
}

func (b Bypass) String() string {
	return fmt.Sprintf("bypass %v to %v, QPN %#06x: dropped", b.Src, b.Dst, b.QPN)
}
func (b Bypass) check() error {
	return rules(b, rule{b.Src.Is4() && b.Dst.Is4(), "an address is not IPv4"},
		rule{b.QPN <= MaxQPN, "the QPN has more than 24 bits"})
}

// MergeGroup says how the answers of a group become one receiver's.
type MergeGroup struct {
	Slot       uint16
	Members    uint16 // bit i: MergeMember with Index i
	Epoch      uint16 // of the slot's use; not 0
	InitialPSN uint32
	Learn      bool       // pass nothing on until each member was heard of
	Source     netip.Addr // that the sender is connected to
	SenderQPN  uint32
	CNPGap     uint32 // least time between two CNPs, in µs; 0: all pass
}

func mergeKey(slot uint16) Key { return Key{kind: KindMergeGroup, a: uint64(slot)} }

// Key implements Entity.
func (g MergeGroup) Key() Key { return mergeKey(g.Slot) }

func (g MergeGroup) String() string {
	return fmt.Sprintf("merge group %d: members %016b, epoch %d, PSN %d, learn %t, as %v to QPN %#06x, CNP gap %d µs",
		g.Slot, g.Members, g.Epoch, g.InitialPSN, g.Learn, g.Source, g.SenderQPN, g.CNPGap)
}
func (g MergeGroup) check() error {
	return rules(g, rule{g.Slot <= MaxSlot, "the slot is more than 16383"},
		rule{g.Epoch != 0, "the epoch is 0"},
		rule{g.InitialPSN <= MaxPSN, "the PSN has more than 24 bits"},
		rule{g.Source.Is4(), "the source is not IPv4"},
		rule{g.SenderQPN <= MaxQPN, "the QPN has more than 24 bits"})
}
