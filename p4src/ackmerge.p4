// Merging: what a group's members answer becomes what one receiver would answer.
// All answers to a sender leave by one port, so egress sees them one at a time.
//
// The promise: the sender is told that packet p arrived only if every current
// member has said so, whatever is lost, doubled or reordered. Per member the
// switch keeps the highest PSN acknowledged and its MSN; per group the last PSN
// passed on. Registers cannot be written by the control plane, so each value
// carries the epoch of the group in which it was written. A value of another
// epoch does not count: that member has not been heard of. It is then taken to
// have acknowledged what came before initial_psn; where that PSN is not known any
// more (`learn`), nothing is passed on until each member has been heard of.
//
// PSNs are numbers of a circle. They are compared by their distance from what the
// sender was told last, which no member's record is behind. An answer behind it, or
// more than WINDOW ahead, is dropped: so whatever a member claims, no record leaves
// the half of the circle ahead, and the one that is nearest is the minimum. While the
// sender has been told nothing and the initial PSN is not known, the records must
// lie within SPREAD of the PSN that is answered.

const bit<32> MERGE_GROUPS  = 16384;
const bit<32> MERGE_SLOTS   = 262144;  // 16 members for each group
const bit<24> WINDOW        = 0x400000;
const bit<24> SPREAD        = 0x100000;

#define EPOCH(state) state[63:48]
#define MSN(state)   state[47:24]
#define PSN(state)   state[23:0]

// Takes member i into the minimum.
#define CONSIDER(i)                                                                \
    if (meta.merge.members[i:i] == 1) {                                            \
        acked.read(state, slots + i);                                              \
        if (EPOCH(state) != meta.merge.epoch) {                                    \
            silent = 1;                                                            \
            state = meta.merge.epoch ++ 24w0 ++ meta.merge.before;                 \
        }                                                                          \
        distance = PSN(state) - base;                                              \
        if (distance < least) {                                                    \
            least = distance;                                                      \
            meta.merge.lowest = state;                                             \
        }                                                                          \
        if (distance > reach) {                                                    \
            far = 1;                                                               \
        }                                                                          \
    }

control AckMerge(inout headers hdr, inout metadata meta, inout standard_metadata_t std, out bit<32> drop) {
    const bit<32> PASS = 0xffffffff;

    register<bit<64>>(MERGE_SLOTS)  acked;  // epoch 16, MSN 24, PSN 24
    register<bit<64>>(MERGE_GROUPS) passed; // the same
    register<bit<48>>(MERGE_GROUPS) cnp_at; // µs, when a CNP was passed on last

    // Of each member.
    counter(MERGE_SLOTS, CounterType.packets) acks;
    counter(MERGE_SLOTS, CounterType.packets) sequence_naks;
    counter(MERGE_SLOTS, CounterType.packets) rnr_naks;
    counter(MERGE_SLOTS, CounterType.packets) fatal_naks;
    counter(MERGE_SLOTS, CounterType.packets) cnps;
    direct_counter(CounterType.packets) answers; // of each group, before merging

    // The packet comes from member `index` of the group in `slot`.
    action from(bit<16> slot, bit<4> index) {
        meta.merge.slot  = slot;
        meta.merge.index = index;
    }

    // The packet goes to the sender's queue pair itself, from the address that this
    // is connected to. It would take the answer of one member for that of all.
    action bypass() { meta.merge.bypass = 1; }

    table merge_members {
        key = {
            hdr.ipv4.src:    exact @name("src");
            hdr.ipv4.dst:    exact @name("dst");
            hdr.bth.dest_qp: exact @name("dest_qp");
        }
        actions = { from; bypass; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 131072;
    }

    // members: a bit for each current member. epoch: not 0, which is what
    // registers hold that were never written. source, sender_qpn: the address that
    // the sender's queue pair is connected to, and its own number. cnp_gap: µs
    // between CNPs that are passed on, 0: all are.
    action merge(bit<16> members, bit<16> epoch, bit<24> initial_psn, bit<1> learn,
                 bit<32> source, bit<24> sender_qpn, bit<32> cnp_gap) {
        meta.merge.members    = members;
        meta.merge.epoch      = epoch;
        meta.merge.before     = initial_psn - 1;
        meta.merge.learn      = learn;
        meta.merge.source     = source;
        meta.merge.sender_qpn = sender_qpn;
        meta.merge.cnp_gap    = cnp_gap;
    }

    table merge_groups {
        key = { meta.merge.slot: exact @name("slot"); }
        actions = { merge; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = answers;
        size = MERGE_GROUPS;
    }

    action address() {
        hdr.ipv4.src = meta.merge.source;
        hdr.bth.dest_qp = meta.merge.sender_qpn;
        meta.icrc_stale = 1;
    }

    apply {
        drop = PASS;
        if (merge_members.apply().hit) {
            bit<32> slots = (bit<32>)meta.merge.slot << 4;
            bit<32> own   = slots + (bit<32>)meta.merge.index;
            bool known = meta.merge.bypass == 0 && merge_groups.apply().hit;
            bit<16> member = meta.merge.members >> (bit<8>)meta.merge.index;
            if (meta.merge.bypass == 1) {
                drop = DROP_BYPASS;
            } else if (!known || meta.merge.epoch == 0 || member[0:0] == 0) {
                drop = DROP_NOT_MEMBER;
            } else if (hdr.bth.opcode != OP_ACK && hdr.bth.opcode != OP_CNP) {
                drop = DROP_OPCODE;
            } else if (hdr.bth.opcode == OP_CNP) {
                cnps.count(own);
                bit<48> last;
                cnp_at.read(last, (bit<32>)meta.merge.slot);
                bit<48> gap = std.egress_global_timestamp - last;
                if (meta.merge.cnp_gap != 0 && last != 0 && gap < (bit<48>)meta.merge.cnp_gap) {
                    drop = DROP_CNP_FILTER;
                } else {
                    cnp_at.write((bit<32>)meta.merge.slot, std.egress_global_timestamp);
                    address();
                }
            } else {
                bit<3>  kind = hdr.aeth.syndrome[7:5]; // 0 ACK, 1 RNR NAK, 3 NAK, others reserved
                bit<1>  ack  = 0;
                bit<24> psn  = hdr.bth.psn - 1; // what a NAK acknowledges
                if (kind == 0) {
                    ack = 1;
                    psn = hdr.bth.psn;
                    acks.count(own);
                } else if (kind == 1) {
                    rnr_naks.count(own);
                } else if (hdr.aeth.syndrome == 0x60) {
                    sequence_naks.count(own);
                } else if (kind == 3) { // refused; what the reserved codes mean, too
                    fatal_naks.count(own);
                } else {
                    drop = DROP_SYNDROME;
                }

                // PSNs are compared by how far they lie ahead of base: what the sender
                // has been told. Before it has been told anything, that is what comes
                // before the initial PSN; where that is not known, the place from
                // which records on both sides of this answer are ahead.
                bit<64> told;
                passed.read(told, (bit<32>)meta.merge.slot);
                bit<24> base  = PSN(told);
                bit<24> reach = WINDOW;
                bit<1>  undecided = 0;
                if (EPOCH(told) != meta.merge.epoch) {
                    undecided = meta.merge.learn;
                    base = meta.merge.before;
                    if (undecided == 1) {
                        base  = psn - SPREAD;
                        reach = 2 * SPREAD;
                    }
                }
                bit<24> least = psn - base;
                if (drop == PASS && least > reach) {
                    drop = DROP_WINDOW;
                }

                // The member's own state. It only moves forward, but where nothing is
                // decided yet: there the last answer counts.
                bit<64> state;
                bit<24> distance;
                bit<1>  silent   = 0; // some member has not been heard of in this epoch
                bit<1>  far      = 0; // some member's PSN cannot be compared
                bit<1>  advanced = 0;
                if (drop == PASS) {
                    acked.read(meta.merge.lowest, own);
                    state = meta.merge.epoch ++ hdr.aeth.msn ++ psn;
                    distance = PSN(meta.merge.lowest) - base;
                    if (undecided == 1 || EPOCH(meta.merge.lowest) != meta.merge.epoch || distance < least) {
                        advanced = 1;
                        meta.merge.lowest = state;
                        acked.write(own, state);
                    } else {
                        if (ack == 0 && distance != least) {
                            drop = DROP_STALE_NAK;
                        }
                        least = distance;
                    }
                }

                // The minimum over the current members.
                if (drop == PASS) {
                    CONSIDER(0)
                    CONSIDER(1)
                    CONSIDER(2)
                    if (meta.merge.members[15:3] != 0) {
                        CONSIDER(3)
                        CONSIDER(4)
                        CONSIDER(5)
                        CONSIDER(6)
                        if (meta.merge.members[15:7] != 0) {
                            CONSIDER(7)
                            CONSIDER(8)
                            CONSIDER(9)
                            CONSIDER(10)
                            CONSIDER(11)
                            CONSIDER(12)
                            CONSIDER(13)
                            CONSIDER(14)
                            CONSIDER(15)
                        }
                    }

                    // What the sender is told. An ACK that moves the minimum is
                    // news. One that only repeats answers a retransmission: the
                    // sender may have missed the news. One that advances a member
                    // ahead of others is neither.
                    if (ack == 1 && (silent == 1 || far == 1 || (advanced == 1 && least == 0))) {
                        drop = DROP_ABSORBED;
                    } else if (ack == 0 && (far == 1 || (silent == 1 && meta.merge.learn == 1))) {
                        drop = DROP_UNDECIDED_NAK;
                    } else {
                        if (least != 0) {
                            passed.write((bit<32>)meta.merge.slot, meta.merge.lowest);
                        }
                        if (ack == 1) {
                            hdr.bth.psn = PSN(meta.merge.lowest);
                            hdr.aeth.syndrome = 0x1f; // no credit limit
                        } else {
                            hdr.bth.psn = PSN(meta.merge.lowest) + 1;
                        }
                        hdr.aeth.msn = MSN(meta.merge.lowest);
                        address();
                    }
                }
            }
        }
    }
}
