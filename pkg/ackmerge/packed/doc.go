// Package packed states how a switch merges answers that has one stateful operation for each
// stage and packet, on 32 bits: Tofino. It is the specification of p4src/tna/merge.p4, as
// [ackmerge] is that of p4src/ackmerge.p4, and tells the sender the same, within bounds. The
// package is pure.
//
// # Records
//
// A record is PSN mod 2^16 in the high half of 32 bits, MSN mod 2^16 in the low half. Of two
// records the later one is that whose difference to the other is positive as a signed number:
// one subtraction. Members have one stage each, and a packet passes the stages in their order.
// The stage of the member that answers takes its record forward. Any other compares its record
// with the lowest one so far, which begins as the answer's own and is passed on from stage to
// stage. (MC-RDMA, §VI-B, takes two stages for each member, and so has 3 on Tofino and 7 on
// Tofino 2.) After the last member comes the stage of what was passed on. The high bits of the
// lowest record are those of the answer, which it is less than 2^15 behind.
//
// # What is asked of others
//
// Two records can be compared if they are less than 2^15 packets apart. So the switch notes
// how far the sender has sent, where its packets arrive, and drops an answer before all else that
// is not in the 2^15 packets up to there ([State.Send]). The control plane sees to it that the
// sender has fewer than 2^15 packets under way: then all records lie there, too, whatever members
// claim, and S1 holds as in ackmerge.
//
// There are no epochs. The control plane writes the registers of a group before it lets answers
// in ([Reset]); a record of a member that was not heard of is one less than what was passed on, so
// that no ACK goes on before all have been heard of, and NAKs do. A switch that has lost its registers
// is programmed with an initial PSN that all members have passed, and that is in the 2^15 packets up
// to the last one sent; it can be read back from where [State.Send] notes it. Nothing is learned from answers.
//
// MSNs are those of one stream: equal at equal PSNs, and 0 just before the initial PSN. Where that is
// not so, an answer for the packet just before the initial one counts as news, and the sender hears again what it knows.
//
// # Where it differs from ackmerge
//
//   - The window is the 2^15 packets up to the last one sent, not 2^22 after what was passed on.
//   - After a removal, an ACK that was overtaken by another of its member tells the sender its own PSN
//     if that is lower than the minimum. What it says is true, and the next answer says the rest.
//   - Time is known modulo 2^32 ns, 4.3 s: after a pause that long, a CNP may be taken for one that comes too soon. The gap is at most [MaxGap].
//   - A drop for being behind what was passed on has the same verdict as one that tells nothing.
package packed
