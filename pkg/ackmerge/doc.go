// Package ackmerge specifies how a switch merges the answers of a multicast group's receivers into
// those of a single receiver, the peer that the sender's queue pair is connected to.
// p4src/ackmerge.p4 and bpf/src/ackmerge.h must behave packet by packet as [Merge] does; the
// exhaustive exploration of tests/model runs all three.
//
// The package is pure, and allocates nothing. The switch (or a model of it) finds the group and the
// member that an answer comes from, calls Merge, and sends the result to the sender's queue pair,
// from the address that the queue pair is connected to.
//
// # Guarantees
//
// S1: the sender gets an acknowledgement of packet p only if every current member has acknowledged
// p. This holds under loss, duplication, reordering, wrap of the PSN, removal of a member,
// re-installation of the group and restart of the switch. A member that answers with arbitrary PSNs
// cannot break it: it can acknowledge only for itself.
//
// L1: as long as packets get through now and then, the sender learns the progress of the slowest
// current member. A lying member can stall the group, as a silent one can. Once it is removed, its
// answers no longer have any effect.
//
// # State of a switch
//
// A switch keeps, for each member, the highest PSN that it has acknowledged, with its MSN, and for
// the group the last PSN passed on. An acknowledgement stays true, so the highest one counts, in
// whatever order they arrive.
//
// PSNs are circular. Serial comparison of two PSNs is not transitive over more than half of the
// circle: a member that claimed PSNs half the circle ahead would make the minimum one that another
// member has not reached. So PSNs are compared by their distance from one reference, the last PSN
// passed on, or at first the one before the initial PSN. No record is behind the reference, because
// their minimum is what is passed on. An answer behind it, or more than [Window] ahead, is dropped.
// So records are at most Window apart, their distances have the order of the members' streams, and
// no claim moves a record around the circle. Dropping answers that are behind loses nothing: they
// were overtaken in transit, because a responder answers a duplicate with the last PSN that it has.
// The sender may have Window less twice [Spread], two million, packets in flight, which is a
// message of 2 GiB at an MTU of 1024.
//
// # The rules, and why
//
// ACK. It advances its member's record, never moves it back. If the minimum over the current
// members is then later than the PSN passed on, the new minimum is passed on. The paper (MC-RDMA,
// §IV-C) passes an ACK on if it is itself the smallest. That is safe, but may delay progress: with
// records 4, 2, 5 an ACK 6 of the second member moves the minimum from 2 to 4, and is not the
// smallest. Here the minimum is passed on, whichever member advanced it. An ACK that advances its
// member but not the minimum is absorbed. An ACK that advances nothing answers a retransmission:
// the sender did not receive the last merged ACK, so it gets the minimum again.
//
// Sequence NAK with PSN e. The member has everything before e, so it counts as an ACK of e-1. It is
// passed on as a NAK with the PSN after the minimum, because a NAK acknowledges all packets before
// it, and must not acknowledge for members that are behind. So the sender may go back farther than
// this member needs; the member discards duplicates. A receiver sends one NAK and is then silent
// until the packet arrives, so a NAK is never absorbed: if it is lost, only the sender's ACK timer
// is left.
//
// RNR NAK. The same, with the receiver's timer unchanged: the sender waits as this receiver asks,
// and starts again after the minimum.
//
// Any other NAK (invalid request, remote access, remote operational, and the reserved codes, which
// are refusals as well). The same: the group's connection is broken, and the sender must learn why.
// Switches count them per member, so that the daemon can name the member.
//
// A stale NAK, for a packet that its member has acknowledged since, was overtaken in transit. It is
// no longer true, and would only make the sender go back: it is dropped.
//
// MSN. A merged answer carries the MSN of the minimum's record. Receivers of one stream complete
// the same messages at the same PSNs, so all of them have the same MSN there.
//
// Credits. A merged ACK says "no limit" (0x1f). The smallest of the members' credits would be right
// only if the switch knew how many receive requests each has used since; RNR NAKs do the same,
// exactly.
//
// Stale and reordered ACKs advance nothing. Those behind the PSN passed on are dropped. For others
// the minimum is passed on, which may be a duplicate ACK that the sender ignores.
//
// Lost merged ACKs. A later one replaces a lost one. If the last one is lost, the sender's timer
// expires and it retransmits; every member answers a duplicate with an ACK, and each of these
// passes on the minimum again.
//
// Epochs. The control plane cannot clear a switch's registers, and a switch that restarts has lost
// them. So each record carries the group's epoch at the time it was written, and a record of
// another epoch does not count: its member is "silent". Each installation of a group gets a new
// epoch, which is not 0. Until every member has answered, no ACK is passed on: it could only repeat
// what the sender knows. A NAK is passed on meanwhile, with silent members taken to be just before
// the initial PSN, so that the loss of a group's first packet is repaired at once. An answer from
// before the initial PSN of an epoch belongs to an earlier epoch, and is dropped.
//
// A switch that lost its state is programmed again, with a new epoch, while the queue pairs keep
// running. Their progress is then often unknown (the initial PSN may be anywhere on the circle, so
// comparisons with it mean nothing). With Config.Learn, a member's answer is accepted whatever its
// PSN, and nothing at all is passed on, NAKs included, until an answer finds that all members have
// answered, and that all records are within Spread of its own PSN, on either side. Such records
// have a total order, and their minimum is the first PSN passed on. Until then, a member's record
// is its last answer, so a single wrong or overtaken answer does not stall the group forever. The
// sender's timer makes it retransmit, and every member answers. The records of honest members,
// which differ by no more than the sender has in flight, converge. Answers from an earlier epoch
// are still true, because the queue pairs are the same.
//
// A lying member can make the first PSN passed on at most twice Spread older than the others'
// records. So when it is removed, the others' acknowledgements are in the window. For the same
// reason a known initial PSN must not be older than that.
//
// Removal of a member. Its bit is cleared, and the minimum is then over the others. Its later
// answers are dropped. The next answer of any other member passes on the new minimum; if all are
// silent because they have everything, the sender's timer makes it retransmit, and they answer. A
// member that returns has missed packets, and can join only under a new epoch.
//
// CNP. A congestion notification has no PSN. All are passed on, as in the paper, or at most one per
// Config.CNPGap, so that many congested members do not slow the sender down more than one would.
//
// # Around the switch
//
// S1 also requires that no unmerged answer reaches the sender's queue pair, even while a switch has
// no rules: a receiver's own ACK would acknowledge for all. So the receivers' queue pairs are
// connected not to the sender's QPN but to one that its host has given to no queue pair (the
// group's MC_ID), and only merging inserts the real QPN.
//
// A member may itself be a subtree whose answers another switch has merged, because Merge returns
// an answer as a receiver would send it.
package ackmerge
