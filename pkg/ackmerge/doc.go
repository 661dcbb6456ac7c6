// Package ackmerge states how a switch merges the answers of a multicast group's receivers
// into those of one receiver, which is what the sender's queue pair believes it talks to.
// It is the specification: p4src/ackmerge.p4 and bpf/src/ackmerge.h must answer packet by packet
// as [Merge] does, and the exhaustive exploration of tests/model runs all three.
//
// It is pure, and allocates nothing. The switch (or a model
// of it) finds the group and the member that an answer comes from, calls Merge,
// and sends what comes back, from the address that the sender's queue pair is
// connected to, to the sender's queue pair.
//
// # What is promised
//
// S1: the sender is told that packet p has arrived only if every current member
// has said that p has arrived. No loss, duplication, reordering, wrap of the PSN,
// removal of a member, re-installation of the group or restart of the switch
// breaks it, and no member that answers with PSNs of its own making: it can speak
// for itself only.
//
// L1: as long as packets get through now and then, the sender learns how far the
// slowest current member has got. A member that lies can hold the group up, as one
// that is silent can. Once it is removed, nothing that it said does so any more.
//
// # What a switch keeps
//
// Per member, the highest PSN that it has acknowledged, and the MSN that came with it; the
// last PSN passed on. An acknowledgement is a statement about the past that stays true, so
// the highest is valid, in whatever order they come.
//
// PSNs are the numbers of a circle. Of any two one can be taken for the later, but
// over half the circle that is not transitive: a member that claimed PSNs half the
// circle ahead would make the minimum one that another member has not reached. So
// PSNs are compared by their distance from one place, the PSN passed on last, or
// else the one before the initial PSN. No record is behind it: what is passed on is
// their minimum. An answer behind it, or more than [Window] ahead, is dropped. So
// records are at most Window apart, the distances order them as their members'
// streams do, and no claim brings a record around the circle. What is behind is no
// loss: it was overtaken on the way, for a responder answers a duplicate with
// the last PSN that it has. The sender may have Window less twice [Spread], two
// million, packets under way; a message of 2 GiB has as many at an MTU of 1024.
//
// # The rules, and why
//
// ACK. It moves its member's record forward, never back. If the minimum over the current
// members is then later than what was passed on, the sender hears of the new minimum. The
// paper (MC-RDMA, §IV-C) passes an ACK on if it is itself the smallest. That is safe, but
// may delay progress: with records 4, 2, 5 an ACK 6 of the second member moves the minimum
// from 2 to 4, and is not the smallest. Here the minimum is passed on, whichever member
// moved it. An ACK that moves its member but not the minimum is absorbed. An ACK that moves
// nothing answers a retransmission: the sender did not receive the last merged ACK, so it
// gets the minimum again.
//
// Sequence NAK with PSN e. The member has everything before e: an ACK of e-1. It
// goes on as a NAK with the PSN after the minimum, since a NAK acknowledges what
// precedes it, and members that are behind must not be acknowledged. The sender
// goes back farther than this member needs; it discards what it has. A receiver
// sends one NAK and is then silent until the packet comes, so a NAK is never
// absorbed: where it is lost, the sender's ACK timer is what remains.
//
// RNR NAK. Likewise, with the receiver's timer left in place: the sender waits as
// this receiver asks and begins again behind the minimum.
//
// Any other NAK (invalid request, remote access, remote operational, and the reserved
// codes, which are refusals as well). Likewise, at once: the group's connection is broken,
// and the sender must learn why. Switches count them per member, so that the member to
// blame can be named.
//
// A stale NAK, one for a packet that its member has acknowledged since, was
// overtaken on the way. It says nothing that is still true and would only send
// the sender back: it is dropped.
//
// MSN. A merged answer carries the MSN that came with the minimum. Receivers of
// one stream complete the same messages at the same PSNs, so this is the MSN that
// any of them had there.
//
// Credits. A merged ACK says "no limit" (0x1f). The tightest of the members'
// credits would be right only if the switch knew how many receive requests each
// has used since; RNR NAKs do the same work, exactly.
//
// Stale and reordered ACKs move nothing. Behind what was passed on they are dropped;
// others are answered with the minimum, which the sender may have heard before: a
// duplicate ACK, which it ignores.
//
// Lost merged ACKs. A later one says more. After the last, the sender's timer
// runs out and it retransmits; every member answers a duplicate with an ACK, and
// each of those tells the minimum again.
//
// Epochs. Registers of a switch cannot be cleared by its control plane, and a
// switch that restarts has lost them. So each record carries the epoch that the
// group had when it was written, and a record of another epoch does not count: its
// member has not been heard of ("silent"). Each installation of a group gets a new
// epoch, which is not 0. Until every member has been heard of, no ACK is passed
// on: it could only repeat what the sender knows. A NAK is passed on meanwhile,
// with silent members taken to be just before the initial PSN: so the loss of a
// group's first packet is repaired at once. An answer that lies before the
// initial PSN of an epoch is late news of an earlier one, and is dropped.
//
// A switch that lost its state is programmed again, with a new epoch, while the queue pairs
// run on. How far they are is then often unknown (the initial PSN may be anywhere on the
// circle, and comparisons with it meaningless). With Config.Learn a member's answer is
// believed whatever its PSN, and nothing at all is passed on, NAKs included, until an
// answer finds that all have been heard of and that all records are within Spread of its
// own PSN, on either side. Such records are in one order, and their minimum is the first
// PSN passed on. Until then, a member's record is what it said last: one that said
// something else once, or was overtaken, does not hold up the others forever. The sender's
// timer has it retransmit, and every member answers; honest members, which differ by no
// more than the sender has under way, come together. The statements of an earlier epoch are
// still true, because the queue pairs are the same.
//
// A member that lies can bring the first PSN passed on to twice Spread behind the
// others, no farther: so what they acknowledge when it is removed is in the window.
// For the same reason an initial PSN that is known must not be older than that.
//
// Removal of a member. Its bit is cleared, the minimum is then over the others.
// What it sends afterwards is dropped. The next answer of any other member tells
// the sender; where all are silent because they have everything, the sender's
// timer has them speak. A member that returns has missed packets: it is taken
// back only in a group under a new epoch.
//
// CNP. A congestion notification says nothing of PSNs. All are passed on, as in
// the paper, or one in each Config.CNPGap, so that many congested members do not
// slow the sender more than one would.
//
// # Around the switch
//
// S1 also needs that no unmerged answer reaches the sender's queue pair, even while a
// switch has no rules: a receiver's own ACK would acknowledge for all. So the receivers'
// queue pairs are connected not to the sender's queue pair number but to one that its host
// has given to no queue pair (the group's MC_ID), and only merging puts in the real number.
//
// A member may itself be a subtree whose answers another switch has merged: what
// Merge passes on is an answer as a receiver would give it.
package ackmerge
