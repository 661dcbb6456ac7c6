// Package bifurcation decides where a multicast group's packets are copied, and how each copy is
// rewritten: Algorithm 1 of the MC-RDMA paper (§IV-B), with equal-cost paths (§VI-A),
// non-programmable switches (§V-A), and the memory regions of one-sided operations (§IV-E).
//
// The package is pure. A switch's agent calls [Step] for its own switch, installs the resulting
// [Rules], and passes each [Branch] to the agents that it names. [Plan] does the same for a whole
// [Fabric] at once, for planning and tests.
//
// # One switch's step
//
// A switch gets the receivers that its packets still have to reach, in the group's order. Packets
// arrive with the address of the first one, the representative, and with the group's MC_ID as
// destination QPN. Receivers share a copy as long as they share paths; each set of receivers that
// leaves together is a branch, and gets one copy. A branch's representative is its first receiver,
// so packets that a switch only forwards need no change.
//
//   - A branch of several receivers gets a copy to its representative. The MC_ID stays, and a later
//     switch copies it again.
//   - A branch of one receiver gets a copy that is rewritten in full: address, QPN, and for a
//     WRITE, virtual address and rkey. It no longer carries the MC_ID, so no later switch takes it
//     for the group's. So each copy is rewritten in full exactly once.
//   - If all receivers leave as one branch nothing is installed: the packet follows its unicast
//     route. A group with a single receiver is an exception that the paper omits: nothing ever
//     splits, but the QPN must be rewritten, which happens in the first step.
//
// # When rewriting keeps the ICRC
//
// A switch need not recompute the ICRC if a constant, XORed into IPv4 identification and UDP source
// port, cancels the effect of the rewriting ([Rules.Neutralize]; rocev2.NeutralOf has the
// arithmetic). A packet with a RETH then gets a different source port than the other packets of its
// message, and later switches, whose ECMP hash includes it, would send them different ways.
// [Request.Late] avoids that: a copy for one receiver keeps the MC_ID as long as there is a
// programmable switch ahead on all of its paths, and is rewritten in full at the last one. Until
// then one constant serves all packets, so a flow stays one flow. This costs a rule at each
// receiver's last switch. A copy that [Request.Early] separates is still rewritten at once.
//
// # When the representative leaves
//
// The sender's queue pair cannot be reconnected: its packets keep the address of a receiver that
// may be gone ([Group.Address]). The first step, at the merge point, then matches this address
// ([Request.Dst]) and rewrites every copy, even that of a single branch, which otherwise needs no
// copy: it gets a copy to its representative. No later switch sees the old address. The same
// request serves an intermediate switch whose branch lost its representative, as long as the
// previous switch still sends packets with the old address.
//
// # What "the same way" means
//
// Receivers share a branch if the sets of the next programmable switches on their paths are equal.
// Sets that only overlap do not merge (§VI-A): the flow's hash might choose a switch that is not on
// the other receiver's paths. [Ahead] looks through non-programmable switches to those behind them.
// If any of a receiver's paths meets no further programmable switch, its copy is rewritten in full
// here, and no other receiver shares it.
//
// So every switch that gets a branch is on a unicast path to each of the branch's receivers, and if
// routing is free of loops, so is replication.
//
// # Equal-cost paths
//
// A branch uses each of its representative's next hops, for some of the flows. The switch has
// several PRE groups, and the flow's hash selects one of them. In group number k a branch of w next
// hops uses number (k+s) mod w, in ascending order. The shift s keeps its copies away from the
// ports of earlier branches' copies as far as possible: racks behind a switch that only routes are
// separate branches with the same next hops, and with the same s their copies would share one link.
// All branches are spread evenly if the number of groups is a multiple of each width w, so their
// least common multiple is used. If that exceeds the limit ([DefaultMaxPREGroups]), it is the
// number within the limit that uses all paths and overloads the busiest one least: 15 for widths 4
// and 5 and the limit 16, where the paths of one branch get 4, 4, 4 and 3 parts. A branch with more
// next hops than the limit uses only as many as the limit.
//
// # Where branches meet again
//
// With equal-cost paths two branches can reach the same switch. If their representatives differ,
// the switch distinguishes them by the destination address (which is why the match includes it),
// and has two steps. If the representative is the same and the receivers are not, nothing in the
// packet distinguishes them: that is [ErrAmbiguous]. It cannot happen in leaf-spine fabrics and fat
// trees without failures. The solution is [Request.Early]: the previous switch makes the copies of
// that branch itself. Plan does so.
//
// # Where answers meet
//
// All of the sender's packets and all answers of all receivers must pass one programmable switch,
// the merge point, which makes the first step and merges the answers. [MergePoint] finds the one
// nearest to the sender, in practice its ToR.
package bifurcation
