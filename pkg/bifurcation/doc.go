// Package bifurcation decides where a multicast group's packets are copied, and
// how each copy is rewritten: Algorithm 1 of the MC-RDMA paper (§IV-B), with
// equal-cost paths (§VI-A), with switches that cannot be programmed (§V-A), and
// with the memory regions of one-sided operations (§IV-E).
//
// The package is pure. A switch's agent calls [Step] for its own switch, installs
// the [Rules] that come back, and hands each [Branch] to the agents that it names.
// [Plan] does the same for a whole [Fabric] at once, for planning and tests.
//
// # One switch's step
//
// A switch gets the receivers that its packets are still to reach, in the group's order.
// Packets come to it with the address of the first one, the representative, and with the
// group's MC_ID as destination QPN. Receivers stay together as long as their paths do; each
// set of receivers that leaves together is a branch, and gets one copy. A branch's
// representative is its first receiver, so packets that merely pass need no change.
//
//   - A branch of several receivers gets a copy to its representative. The MC_ID
//     stays, and some switch behind copies it again.
//   - A branch of one receiver gets a copy that is rewritten in full: address, QPN,
//     and for a WRITE, virtual address and rkey. No switch behind takes it for the
//     group's, as it no longer carries the MC_ID. So each copy is rewritten in full
//     exactly once.
//   - Where all receivers leave as one branch nothing is installed: the packet
//     follows its unicast route. A group of a single receiver is the exception that
//     the paper leaves out: nothing ever splits, yet the QPN must be rewritten, and
//     that happens in the first step.
//
// # When rewriting keeps the ICRC
//
// A switch need not compute the ICRC anew if a constant, XORed into IPv4 identification and UDP
// source port, cancels what the rewriting does to it ([Rules.Neutralize]; rocev2.NeutralOf
// has the arithmetic). A packet with a RETH then gets another source port than the
// other packets of its message, and switches behind, which choose among equal paths by
// it, would send them different ways. [Request.Late] avoids that: a copy for one
// receiver keeps the MC_ID as long as a programmable switch is ahead on all of its paths, and is
// rewritten in full at the last. Until then one constant serves all packets, so that
// a flow stays one flow. It costs a rule at each receiver's last switch. A copy that is kept apart
// by [Request.Early] is rewritten at once all the same.
//
// # When the representative leaves
//
// The sender's queue pair cannot be connected anew: its packets keep the address of
// a receiver that may be gone ([Group.Address]). The first step, at the merge point,
// then matches this address ([Request.Dst]) and rewrites every copy, that of a
// single branch too, which could pass otherwise: it gets a copy to its
// representative. No switch behind sees the old address. The same request serves a
// switch in between whose branch lost its representative, as long as the switch
// before still sends packets with the old one.
//
// # What "the same way" means
//
// Receivers share a branch if the sets of the next programmable switches on their ways are
// equal. Sets that overlap do not merge (§VI-A): the flow's hash might choose a switch that
// one of the two does not lead through. Switches that are not programmable are looked
// through; [Ahead] finds what is behind them. If any of a receiver's paths meets no further
// programmable switch, its copy is rewritten in full here, and no other receiver shares it.
//
// So every switch that a branch is handed to lies on a unicast path to each of the
// branch's receivers, and routing that is free of loops gives replication that is.
//
// # Equal-cost paths
//
// A branch leaves by each of its representative's next hops, for some of the flows.
// The switch has several PRE groups and the flow's hash takes one of them; in group
// number k a branch of w next hops uses number (k+s) mod w, in ascending order, where
// s keeps its copies from the ports of earlier branches' copies as far as it can: racks
// behind a switch that only routes are branches of their own by the same next hops, and
// their copies, with the same s, would share one link. Branches
// of different widths are all spread evenly if the number of groups is a multiple
// of each width, so the least common multiple is taken. Where that exceeds the limit
// ([DefaultMaxPREGroups]), it is the number within the limit that uses all paths and
// loads the busiest one least above its share: 15 for widths 4 and 5 and the limit
// 16, where the paths of one branch get 4, 4, 4 and 3 parts. A branch with more next
// hops than the limit uses only so many.
//
// # Where branches meet again
//
// With equal-cost paths two branches can reach one switch. If their representatives differ,
// the switch tells them apart by the destination address (that is why it is in the match),
// and the switch has two steps. If the representative is the same and the receivers are
// not, nothing in the packet tells them apart. That is [ErrAmbiguous]. It cannot happen in
// leaf-spine fabrics and fat trees without failures. The solution is [Request.Early]: the
// previous switch makes the copies of that branch itself. Plan does so.
//
// # Where answers meet
//
// All of the sender's packets and all answers of all receivers have to pass one
// programmable switch, the merge point: there the first step is made and answers
// are merged. [MergePoint] finds the nearest to the sender, in practice its ToR.
package bifurcation
