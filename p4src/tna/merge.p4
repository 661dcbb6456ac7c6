// Merging with one stateful operation for each stage and packet, on records of 32 bits: PSN mod 2^16,
// MSN mod 2^16. pkg/ackmerge/packed says what it must do, and why that is safe.
//
// It is written for Tofino, and for v1model by other definitions of these macros:
//
//   REGISTER(name)                    32 bits for each group
//   OPERATION(name, register, U, {})  reads `value`, gives the `rv` of type U, writes `value`
//   PAIRS, PAIR_OPERATION             the same with a pair_t
//   EXECUTE(name, to)                 does so in slot m.slot
//   AFTER(a, b)                       a is later than b: their difference is positive as a signed number
//   NEGATIVE(a, b, k)                 a - b + k is negative as one
//   MEMBERS                           how many a group can have: a stage for each

// Ingress: what an answer acknowledges, and whether the sender has sent that. A `drop` of 0 may become 1.
// `psn` is the last word of the BTH; bits 31 to 8 of it become the PSN.
control Admit(inout bridge_t m, inout record_t own, in bth_t bth, in aeth_t aeth, inout bit<32> psn, in bit<32> now,
              inout bit<8> drop) {
    bit<32> since = 0; // how far the sender has sent since

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

    action ack() {
        m.kind = KIND_ACK;
        own.psn = bth.psn_lo;
        own.msn = aeth.msn_lo;
        psn = psn << 8;
    }
    action nak() { // it acknowledges what comes before its PSN
        m.kind = KIND_NAK;
        own.psn = bth.psn_lo - 1;
        own.msn = aeth.msn_lo;
        psn = psn << 8;
    }
    action cnp() {
        m.kind = KIND_CNP;
        m.now = now;
    }
    action data() { psn = psn << 8; }
    action refuse() { m.kind = KIND_REFUSED; }

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
        size = 4;
    }

    action note() { EXECUTE(note_sent, since) }
    action measure() { EXECUTE(since_sent, since) }

    table sendings {
        key = { m.kind: exact; }
        actions = { note; measure; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            KIND_DATA: note();
            KIND_ACK:  measure();
            KIND_NAK:  measure();
        }
        size = 4;
    }

    action outside() { drop = 1; }

    // An answer is about one of the 2^15 packets up to the last that the sender has sent.
    table windows {
        key = {
            m.kind: ternary;
            since:  ternary;
        }
        actions = { outside; NoAction; }
        const default_action = outside();
        const entries = {
            (KIND_NAK, 0x007fff00):                  outside(); // of its own PSN, which is one more
            (KIND_NAK, 0xffffff00):                  NoAction();
            (KIND_NAK, 32w0 &&& 32w0xff800000):      NoAction();
            (KIND_ACK, 32w0 &&& 32w0xff800000):      NoAction();
            (KIND_DATA, _):                          NoAction();
            (KIND_CNP, _):                           NoAction();
        }
        size = 8;
    }

    apply {
        kinds.apply();
        sendings.apply();
        windows.apply();
    }
}

// Ingress: whether who answers is a current member, by its bit.
control Members(in bridge_t m, inout bit<8> drop) {
    action stranger() { drop = 1; }

#define CURRENT(i, mask) (i, mask &&& mask): NoAction();
    table currents {
        key = {
            m.index:   ternary;
            m.members: ternary;
        }
        actions = { NoAction; stranger; }
        const default_action = stranger();
        const entries = {
            CURRENT(0, 0x0001) CURRENT(1, 0x0002) CURRENT(2, 0x0004) CURRENT(3, 0x0008)
            CURRENT(4, 0x0010) CURRENT(5, 0x0020) CURRENT(6, 0x0040) CURRENT(7, 0x0080)
            CURRENT(8, 0x0100) CURRENT(9, 0x0200) CURRENT(10, 0x0400) CURRENT(11, 0x0800)
            CURRENT(12, 0x1000) CURRENT(13, 0x2000) CURRENT(14, 0x4000) CURRENT(15, 0x8000)
        }
        size = 16;
    }

    apply { currents.apply(); }
}

// A member's stage. `flag` of an ACK: it advances its member. Of a NAK: it is stale.
#define MEMBER(i)                                                                  \
    PAIRS(acked_##i)                                                               \
    PAIR_OPERATION(ack_##i, acked_##i, bit<8>, {                                   \
        rv = 0;                                                                    \
        if (AFTER(own, value.acked)) {                                             \
            value.acked = own;                                                     \
            rv = 1;                                                                \
        }                                                                          \
    })                                                                             \
    PAIR_OPERATION(nak_##i, acked_##i, bit<8>, {                                   \
        rv = 0;                                                                    \
        if (AFTER(value.acked, own)) {                                             \
            rv = 1;                                                                \
        }                                                                          \
        if (AFTER(own, value.acked)) {                                             \
            value.acked = own;                                                     \
        }                                                                          \
    })                                                                             \
    PAIR_OPERATION(lower_##i, acked_##i, bit<32>, {                                \
        if (AFTER(low, value.acked)) {                                             \
            value.lower = value.acked;                                             \
        } else {                                                                   \
            value.lower = low;                                                     \
        }                                                                          \
        rv = value.lower;                                                          \
    })                                                                             \
    action own_ack_##i() { EXECUTE(ack_##i, flag) }                                \
    action own_nak_##i() { EXECUTE(nak_##i, flag) }                                \
    action other_##i() { EXECUTE(lower_##i, low) }                                 \
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
control PackedMerge(inout bridge_t m, in bit<32> own, inout bit<32> low, inout bth_t bth, inout aeth_t aeth, inout bit<8> drop) {
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
        if (AFTER(low, value)) {
            value = low;
            rv = 0;
        } else {
            rv = 1;
        }
    })
    // one that does not answers a retransmission,
    OPERATION(tell_again, passed, bit<8>, {
        rv = 0;
        if (AFTER(value, low)) {
            rv = 1;
        }
        if (AFTER(low, value)) {
            value = low;
        }
    })
    // and a NAK is for what follows that which has been passed on.
    OPERATION(tell_nak, passed, bit<32>, {
        if (AFTER(low, value)) {
            value = low;
            rv = low + 0x10000;
        } else {
            rv = value + 0x10000;
        }
    })

    action news() { EXECUTE(tell_news, drop) }
    action again() { EXECUTE(tell_again, drop) }
    action nak() { EXECUTE(tell_nak, low) }
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
        bth.psn_lo = low[31:16];
        aeth.msn_lo = low[15:0];
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
            low[31:31]:         ternary @name("low_psn");
            aeth.msn_lo[15:15]: ternary @name("msn");
            low[15:15]:         ternary @name("low_msn");
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
        if (NEGATIVE(m.since, value, 0) && !NEGATIVE(m.since, value, 0x100000)) {
            rv = 1;
        } else {
            value = m.now;
            rv = 0;
        }
    })
    OPERATION(note, cnp_at, bit<8>, {
        value = m.now;
        rv = 0;
    })
    action cnp() { EXECUTE(notify, drop) }
    action any_cnp() { EXECUTE(note, drop) }

    apply {
        if (m.kind == KIND_CNP) {
            if (m.since == m.now) { // no gap
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
            if (m.kind == KIND_ACK) {
                aeth.syndrome = 0x1f; // no credit limit
            }
            high_bits.apply();
        }
    }
}
