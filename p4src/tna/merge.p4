// Merging with one stateful operation for each stage and packet, on records of 32 bits: PSN mod 2^16,
// MSN mod 2^16. pkg/ackmerge/packed says what it must do, and why that is safe.
//
// It is written for Tofino, and for v1model by other definitions of these macros:
//
//   REGISTER(name)                    32 bits for each group
//   OPERATION(name, register, U, {})  reads `value`, gives the `rv` of type U, writes `value`
//   EXECUTE(name, to)                 does so in slot m.slot
//   AFTER(a, b)                       a is later than b: their difference is positive as a signed number
//   NEGATIVE(a, b, k)                 a - b + k is negative as one
//   MEMBERS                           how many a group can have: a stage for each

// Ingress: what an answer acknowledges, and whether the sender has sent that. A `drop` of 0 may become 1.
control Admit(inout bridge_t m, in bth_t bth, in aeth_t aeth, in bit<32> now, in bit<32> gap, inout bit<8> drop) {
    bit<32> psn;   // in bits 31 to 8
    bit<32> since; // how far the sender has sent since

    REGISTER(sent)
    OPERATION(note_sent, sent, bit<32>, {
        rv = 0;
        if (AFTER(psn, value) && NEGATIVE(psn, value, -0x800000)) { // no sender is farther ahead
            value = psn;
        }
    })
    OPERATION(since_sent, sent, bit<32>, {
        rv = value - psn;
    })

    action acknowledge(bit<8> kind) {
        m.kind = kind;
        m.own = bth.psn_lo ++ aeth.msn_lo;
        psn = bth.psn_hi ++ bth.psn_lo ++ 8w0;
    }
    action ack() { acknowledge(KIND_ACK); }
    action nak() { acknowledge(KIND_NAK); }
    action cnp() {
        m.kind = KIND_CNP;
        m.own = now;
        m.low = now - gap;
    }
    action data() { psn = bth.psn_hi ++ bth.psn_lo ++ 8w0; }
    action refuse() { drop = 1; }

    // The syndrome's high bits: 0 ACK, 1 RNR NAK, 3 NAK; others are reserved.
    table kinds {
        key = {
            m.kind:        ternary;
            bth.opcode:    ternary;
            aeth.syndrome: ternary;
        }
        actions = { ack; nak; cnp; data; refuse; }
        const default_action = refuse();
        const entries = {
            (KIND_DATA, _, _):                data();
            (_, OP_CNP, _):                   cnp();
            (_, OP_ACK, 8w0x00 &&& 8w0xe0):   ack();
            (_, OP_ACK, 8w0x20 &&& 8w0xa0):   nak();
        }
    }

    action current() {}

#define CURRENT(i, mask) (i, mask &&& mask): current();
    table currents {
        key = {
            m.index:   ternary;
            m.members: ternary;
        }
        actions = { current; refuse; }
        const default_action = refuse();
        const entries = {
            CURRENT(0, 0x0001) CURRENT(1, 0x0002) CURRENT(2, 0x0004) CURRENT(3, 0x0008)
            CURRENT(4, 0x0010) CURRENT(5, 0x0020) CURRENT(6, 0x0040) CURRENT(7, 0x0080)
            CURRENT(8, 0x0100) CURRENT(9, 0x0200) CURRENT(10, 0x0400) CURRENT(11, 0x0800)
            CURRENT(12, 0x1000) CURRENT(13, 0x2000) CURRENT(14, 0x4000) CURRENT(15, 0x8000)
        }
    }

    action note() { EXECUTE(note_sent, since) }
    action measure() {
        EXECUTE(since_sent, since)
        m.low = m.own;
    }

    table sendings {
        key = { m.kind: exact; }
        actions = { note; measure; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            KIND_DATA: note();
            KIND_ACK:  measure();
            KIND_NAK:  measure();
        }
    }

    apply {
        kinds.apply();
        if (m.kind != KIND_DATA) {
            currents.apply();
        }
        if (m.kind == KIND_NAK) { // it acknowledges what comes before its PSN
            m.own = m.own - 0x10000;
            psn = psn - 0x100;
        }
        if (drop == 0) {
            sendings.apply();
            if (m.kind == KIND_ACK || m.kind == KIND_NAK) {
                if (since[31:23] != 0) { // 2^15 or more, or not sent
                    drop = 1;
                }
            }
        }
    }
}

// A member's stage. `flag` of an ACK: it advances its member. Of a NAK: it is stale.
#define MEMBER(i)                                                                  \
    REGISTER(acked_##i)                                                            \
    OPERATION(ack_##i, acked_##i, bit<8>, {                                        \
        rv = 0;                                                                    \
        if (AFTER(m.own, value)) {                                                 \
            value = m.own;                                                         \
            rv = 1;                                                                \
        }                                                                          \
    })                                                                             \
    OPERATION(nak_##i, acked_##i, bit<8>, {                                        \
        rv = 0;                                                                    \
        if (AFTER(value, m.own)) {                                                 \
            rv = 1;                                                                \
        }                                                                          \
        if (AFTER(m.own, value)) {                                                 \
            value = m.own;                                                         \
        }                                                                          \
    })                                                                             \
    OPERATION(lower_##i, acked_##i, bit<32>, {                                     \
        if (AFTER(m.low, value)) {                                                 \
            rv = value;                                                            \
        } else {                                                                   \
            rv = m.low;                                                            \
        }                                                                          \
    })                                                                             \
    action own_ack_##i() { EXECUTE(ack_##i, flag) }                                \
    action own_nak_##i() { EXECUTE(nak_##i, flag) }                                \
    action other_##i() { EXECUTE(lower_##i, m.low) }                               \
    table member_##i {                                                             \
        key = {                                                                    \
            m.members[i:i]: ternary @name("current");                              \
            m.index:        ternary;                                               \
            m.kind:         ternary;                                               \
        }                                                                          \
        actions = { own_ack_##i; own_nak_##i; other_##i; @defaultonly NoAction; }  \
        const default_action = NoAction();                                         \
        const entries = {                                                          \
            (1, i, KIND_ACK): own_ack_##i();                                       \
            (1, i, KIND_NAK): own_nak_##i();                                       \
            (1, _, KIND_ACK): other_##i();                                         \
            (1, _, KIND_NAK): other_##i();                                         \
        }                                                                          \
    }

// Egress, at the sender's port: through the stages of the members, and that of what was passed on.
control PackedMerge(inout bridge_t m, inout bth_t bth, inout aeth_t aeth, inout bit<8> drop) {
    bit<8> flag;

    MEMBER(0)
    MEMBER(1)
    MEMBER(2)
    MEMBER(3)
    MEMBER(4)
    MEMBER(5)
#if MEMBERS > 6
    MEMBER(6)
#endif
#if MEMBERS > 7
    MEMBER(7)
#endif
#if MEMBERS > 8
    MEMBER(8)
#endif
#if MEMBERS > 9
    MEMBER(9)
    MEMBER(10)
    MEMBER(11)
    MEMBER(12)
    MEMBER(13)
#endif
#if MEMBERS > 14
    MEMBER(14)
#endif
#if MEMBERS > 15
    MEMBER(15)
#endif

    REGISTER(passed)

    // An ACK that advances its member goes on if it is news,
    OPERATION(tell_news, passed, bit<8>, {
        if (AFTER(m.low, value)) {
            value = m.low;
            rv = 0;
        } else {
            rv = 1;
        }
    })
    // one that does not answers a retransmission,
    OPERATION(tell_again, passed, bit<8>, {
        rv = 0;
        if (AFTER(value, m.low)) {
            rv = 1;
        }
        if (AFTER(m.low, value)) {
            value = m.low;
        }
    })
    // and a NAK is for what follows that which has been passed on.
    OPERATION(tell_nak, passed, bit<32>, {
        if (AFTER(m.low, value)) {
            value = m.low;
            rv = m.low;
        } else {
            rv = value;
        }
    })

    action news() { EXECUTE(tell_news, drop) }
    action again() { EXECUTE(tell_again, drop) }
    action nak() { EXECUTE(tell_nak, m.low) }
    action stale() { drop = 1; }

    table verdicts {
        key = {
            m.kind: exact;
            flag:   exact;
        }
        actions = { news; again; nak; stale; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (KIND_ACK, 1): news();
            (KIND_ACK, 0): again();
            (KIND_NAK, 0): nak();
            (KIND_NAK, 1): stale();
        }
    }

    // The high bits: those of the answer, less one where the low bits have gone through zero between the
    // lowest record and the answer.
    action low_bits() {
        bth.psn_lo = m.low[31:16];
        aeth.msn_lo = m.low[15:0];
    }
    action psn_before() {
        low_bits();
        bth.psn_hi = bth.psn_hi - 1;
    }
    action msn_before() {
        low_bits();
        aeth.msn_hi = aeth.msn_hi - 1;
    }
    action both_before() {
        low_bits();
        bth.psn_hi = bth.psn_hi - 1;
        aeth.msn_hi = aeth.msn_hi - 1;
    }

    table high_bits {
        key = {
            bth.psn_lo[15:15]:  ternary @name("psn");
            m.low[31:31]:       ternary @name("low_psn");
            aeth.msn_lo[15:15]: ternary @name("msn");
            m.low[15:15]:       ternary @name("low_msn");
        }
        actions = { low_bits; psn_before; msn_before; both_before; }
        const default_action = low_bits();
        const entries = {
            (0, 1, 0, 1): both_before();
            (0, 1, _, _): psn_before();
            (_, _, 0, 1): msn_before();
        }
    }

    REGISTER(cnp_at)

    // The last CNP counts if it is less than 2^20 ns further back than the gap: time is a circle, too.
    OPERATION(notify, cnp_at, bit<8>, {
        if (NEGATIVE(m.low, value, 0) && !NEGATIVE(m.low, value, 0x100000)) {
            rv = 1;
        } else {
            value = m.own;
            rv = 0;
        }
    })
    OPERATION(note, cnp_at, bit<8>, {
        value = m.own;
        rv = 0;
    })
    action cnp() { EXECUTE(notify, drop) }
    action any_cnp() { EXECUTE(note, drop) }

    apply {
        if (m.kind == KIND_CNP) {
            if (m.low == m.own) { // no gap
                any_cnp();
            } else {
                cnp();
            }
        } else {
            member_0.apply();
            member_1.apply();
            member_2.apply();
            member_3.apply();
            member_4.apply();
            member_5.apply();
#if MEMBERS > 6
            member_6.apply();
#endif
#if MEMBERS > 7
            member_7.apply();
#endif
#if MEMBERS > 8
            member_8.apply();
#endif
#if MEMBERS > 9
            member_9.apply();
            member_10.apply();
            member_11.apply();
            member_12.apply();
            member_13.apply();
#endif
#if MEMBERS > 14
            member_14.apply();
#endif
#if MEMBERS > 15
            member_15.apply();
#endif
            verdicts.apply();
            if (m.kind == KIND_NAK) {
                m.low[31:16] = m.low[31:16] + 1;
            } else {
                aeth.syndrome = 0x1f; // no credit limit
            }
            high_bits.apply();
        }
    }
}
