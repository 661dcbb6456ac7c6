// Package packed specifies the merging of answers on a switch that has one stateful operation of 32
// bits per stage and packet: Tofino. It is the specification of p4src/tna/merge.p4, as [ackmerge]
// is that of p4src/ackmerge.p4, and within limits (below) tells the sender the same. The package is
// pure.
//
// # Records
//
// A record has PSN mod 2^16 in the high half of 32 bits, and MSN mod 2^16 in the low half. Of two
// records the later one is that whose difference to the other is positive as a signed number, which
// is one subtraction. Members have one stage each, and a packet passes the stages in order. The
// stage of the answering member advances its record. Any other stage compares its record with the
// lowest so far, which starts as the answer's own and is passed from stage to stage. (MC-RDMA,
// §VI-B, uses two stages per member, and so has 3 members on Tofino and 7 on Tofino 2.) After the
// last member comes the stage for the record passed on. The high bits of the lowest record are
// those of the answer, because it is less than 2^15 behind the answer.
//
// # Requirements
//
// Two records can be compared if they are less than 2^15 packets apart. So the switch records the
// last PSN sent, where the sender's packets arrive, and first drops each answer that is not in the
// 2^15 packets up to it ([State.Send]). The control plane ensures that the sender has fewer than
// 2^15 packets in flight. Then all records are in that range, too, whatever members claim, and S1
// holds as in ackmerge.
//
// There are no epochs. The control plane writes the registers of a group before it admits answers
// ([Reset]). The record of a member that has not answered yet is one less than the record passed
// on, so no ACK is passed on before all have answered, but NAKs are. A switch that has lost its
// registers is programmed with an initial PSN that all members have passed, and that is in the 2^15
// packets up to the last one sent, which can be read back from [State.Send]'s register. Nothing is
// learned from answers.
//
// MSNs are those of one stream: equal at equal PSNs, and 0 just before the initial PSN. Otherwise
// an answer for the packet just before the initial one counts as news, and the sender gets an ACK
// that it knows already.
//
// # Where it differs from ackmerge
//
//   - The window is the 2^15 packets up to the last one sent, not 2^22 after the PSN passed on.
//   - After a removal, an ACK that was overtaken by another of its member is passed on with its own
//     PSN if that is lower than the minimum. That is correct, and the next answer passes on the
//     minimum.
//   - Time is known modulo 2^32 ns, 4.3 s: after a pause that long, a CNP may be taken for one that comes too soon. The gap is at most [MaxGap].
//   - An answer behind the PSN passed on has the same verdict as one without news.
package packed
