// The answers of groups' members: found, merged, and addressed to the sender. p4src/ackmerge.p4
// has the same tables and counters.
#pragma once

#include "ackmerge.h"
#include "drops.h"
#include "icrc.h"

// Where an answer comes from, and for whom. In network order, the QPN in the low three bytes.
struct member_key {
    u32 src;
    u32 dst;
    u32 dest_qp;
};

struct member {
    u32 slot;
    u16 index;
    u16 bypass; // to the sender's queue pair itself
};

// What merging is to do for a group, and how the sender is addressed (network order).
struct group {
    struct config config;
    u32 source;
    u32 sender_qpn;
};

// How many of each kind a member has sent.
enum { ACKS, SEQUENCE_NAKS, RNR_NAKS, FATAL_NAKS, CNPS, KINDS };

// What the kernel alone writes. counts are user space's to read.
struct slot {
    struct bpf_spin_lock lock;
    u32 pad;
    struct state state;
    u64 answers; // before merging
    u64 counts[MAX_MEMBERS][KINDS];
};

MAP(BPF_MAP_TYPE_HASH, struct member_key, struct member, 131072, BPF_F_NO_PREALLOC) merge_members SECTION(".maps");
MAP(BPF_MAP_TYPE_HASH, u32, struct group, 16384, BPF_F_NO_PREALLOC) merge_groups SECTION(".maps");
MAP(BPF_MAP_TYPE_ARRAY, u32, struct slot, 16384, 0) merge_slots SECTION(".maps");

// Odd while user space changes tables, another number afterward. Packets that see it change
// have perhaps seen half of what it changed.
MAP(BPF_MAP_TYPE_ARRAY, u32, u64, 1, BPF_F_MMAPABLE) generation SECTION(".maps");

struct settings {
    u32 icrc_off; // mode nic-check-off: ICRCs are neither checked nor set
    u32 told;     // the time is what follows, not the kernel's: for tests
    u64 now;      // ns
};

MAP(BPF_MAP_TYPE_ARRAY, u32, struct settings, 1, 0) settings SECTION(".maps");

// kind_of is the counter of an answer, KINDS if there is none.
INLINE u32 kind_of(const struct answer *a) {
    if (a->cnp) {
        return CNPS;
    }
    switch (a->syndrome >> 5) {
    case KIND_ACK:
        return ACKS;
    case KIND_RNR:
        return RNR_NAKS;
    case KIND_NAK:
        return a->syndrome == 0x60 ? SEQUENCE_NAKS : FATAL_NAKS;
    }
    return KINDS;
}

// reason is what a verdict is counted as.
INLINE u32 reason(enum verdict v) {
    switch (v) {
    case NOT_MEMBER:
        return DROP_NOT_MEMBER;
    case BAD_SYNDROME:
        return DROP_SYNDROME;
    case ABSORBED:
        return DROP_ABSORBED;
    case STALE_NAK:
        return DROP_STALE_NAK;
    case UNDECIDED_NAK:
        return DROP_UNDECIDED_NAK;
    case FILTERED_CNP:
        return DROP_CNP_FILTER;
    case OUTSIDE_WINDOW:
        return DROP_WINDOW;
    case PASS:
        break;
    }
    return DROP_REASONS;
}

// locked merges an answer as one step of its slot. It returns false, and has done nothing, if
// tables have changed since began.
INLINE bool locked(struct slot *slot, const struct config *c, struct answer *a, u64 now, const volatile u64 *gen, u64 began,
                   enum verdict *v) {
    bool whole = false;
    *v = NOT_MEMBER;
    u32 kind = kind_of(a);
    spin_lock(&slot->lock);
    if (*gen == began) {
        whole = true;
        slot->answers++;
        *v = merge(c, &slot->state, a, now);
        u32 own = a->member & (MAX_MEMBERS - 1);
        if (*v != NOT_MEMBER && kind < KINDS) {
            slot->counts[own][kind]++;
        }
    }
    spin_unlock(&slot->lock);
    return whole;
}

// merged says what becomes of an answer. XDP_TX: it is now what the sender is to receive, but for
// MAC addresses and TTL. XDP_PASS: it concerns no group of this switch, or is dropped by the
// pipeline in any case before it would be merged.
INLINE int merged(struct xdp_md *ctx, struct roce *p, void *end) {
    struct member_key key = {p->ip.src, p->ip.dst, p->bth.dest_qp & swap32(0xffffff)};
    u32 zero = 0;
    const volatile u64 *gen = lookup(&generation, &zero);
    struct settings *set = lookup(&settings, &zero);
    if (!gen || !set) {
        return XDP_PASS;
    }
    u64 began = *gen;
    barrier();
    struct member *m = lookup(&merge_members, &key);
    if (!m || m->bypass) {
        return XDP_PASS;
    }
    u32 number = m->slot, icrc;
    struct answer a = {.member = m->index, .cnp = p->bth.opcode == OP_CNP, .psn = low24(p->bth.psn)};
    u32 *trailer = icrc_at(p, end, &icrc);
    if (!trailer || (!set->icrc_off && *trailer != icrc)) {
        return XDP_PASS;
    }
    struct aeth *aeth = (struct aeth *)(p + 1);
    if ((void *)(aeth + 1) > end) {
        return XDP_PASS;
    }
    if (!a.cnp) {
        a.syndrome = swap32(aeth->syndrome_msn) >> 24;
        a.msn = low24(aeth->syndrome_msn);
    }
    struct group *g = lookup(&merge_groups, &number);
    struct slot *slot = lookup(&merge_slots, &number);
    if (!slot) {
        return drop(ctx, DROP_NOT_MEMBER);
    }
    struct config c = {};
    u32 source = 0, sender_qpn = 0;
    if (g) {
        c = g->config;
        source = g->source;
        sender_qpn = g->sender_qpn;
    }
    barrier();
    u64 now = set->told ? set->now : monotonic();
    enum verdict v;
    if ((began & 1) || !locked(slot, &c, &a, now, gen, began, &v)) {
        return drop(ctx, DROP_UPDATE);
    }
    if (v != PASS) {
        return drop(ctx, reason(v));
    }
    if (!a.cnp) {
        p->bth.psn = with24(p->bth.psn, a.psn);
        aeth->syndrome_msn = swap32((u32)a.syndrome << 24 | a.msn);
    }
    p->ip.src = source;
    p->bth.dest_qp = (p->bth.dest_qp & swap32(0xff000000)) | sender_qpn;
    p->udp.checksum = 0;
    if (!set->icrc_off) {
        trailer = icrc_at(p, end, &icrc);
        if (!trailer) {
            return XDP_DROP; // it was there before
        }
        *trailer = icrc;
    }
    p->ip.checksum = checksum(&p->ip);
    return XDP_TX;
}
