// The answers of groups' members: found, merged, and addressed to the sender. p4src/ackmerge.p4
// has the same tables and counters.
#pragma once

#include "ackmerge.h"
#include "forward.h"
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
    u64 counts[MAX_MEMBERS * KINDS]; // of member 0, then of member 1, and so on
};

MAP(BPF_MAP_TYPE_HASH, struct member_key, struct member, 131072, BPF_F_NO_PREALLOC) merge_members SECTION(".maps");
MAP(BPF_MAP_TYPE_HASH, u32, struct group, 16384, BPF_F_NO_PREALLOC) merge_groups SECTION(".maps");
MAP(BPF_MAP_TYPE_ARRAY, u32, struct slot, 16384, 0) merge_slots SECTION(".maps");

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
INLINE bool locked(struct slot *slot, const struct config *c, struct answer *a, u64 now, const struct reading *r, enum verdict *v) {
    bool in_time = false;
    *v = NOT_MEMBER;
    u32 kind = kind_of(a);
    spin_lock(&slot->lock);
    if (stays(r)) {
        in_time = true;
        slot->answers++;
        *v = merge(c, &slot->state, a, now);
        u32 at = a->member * KINDS + kind;
        forget(at); // its own check, beside its use: Linux 6.1 does not see what is known of the two
        if (*v != NOT_MEMBER && kind < KINDS && at < MAX_MEMBERS * KINDS) {
            slot->counts[at]++;
        }
    }
    spin_unlock(&slot->lock);
    return in_time;
}

INLINE struct member *member_of(const struct roce *p) {
    struct member_key key = {p->ip.src, p->ip.dst, p->bth.dest_qp & swap32(0xffffff)};
    return lookup(&merge_members, &key);
}

// answered says what becomes of an answer of m. None climbs: the state to merge it with is here.
// What the program in user space would drop before it merges is dropped for the same reason; wrong
// is one, if less than DROP_REASONS.
INLINE int answered(struct xdp_md *ctx, struct roce *p, void *end, const struct settings *set, const struct member *m,
                    const struct way *w, bool spoofed, u32 wrong, const struct reading *r) {
    u32 number = m->slot, icrc;
    struct answer a = {.member = m->index, .cnp = p->bth.opcode == OP_CNP, .psn = low24(p->bth.psn)};
    struct group *g = lookup(&merge_groups, &number);
    struct slot *slot = lookup(&merge_slots, &number);
    struct config c = {};
    u32 source = 0, sender_qpn = 0;
    if (g) {
        c = g->config;
        source = g->source;
        sender_qpn = g->sender_qpn;
    }
    if (!whole(r)) {
        return drop(ctx, DROP_UPDATE);
    }
    if (wrong == DROP_MALFORMED) {
        return drop(ctx, DROP_MALFORMED);
    }
    if (spoofed) {
        return drop(ctx, DROP_SPOOFED);
    }
    if (wrong == DROP_ICRC) {
        return drop(ctx, DROP_ICRC);
    }
    struct aeth *aeth = (struct aeth *)(p + 1);
    if ((void *)(aeth + 1) > end) {
        return drop(ctx, DROP_MALFORMED);
    }
    if (w->reason < DROP_REASONS && !w->flood) {
        return drop(ctx, w->reason);
    }
    if (!slot) {
        return drop(ctx, DROP_NOT_MEMBER);
    }
    if (!a.cnp) {
        a.syndrome = swap32(aeth->syndrome_msn) >> 24;
        a.msn = low24(aeth->syndrome_msn);
    }
    u64 now = set->told ? set->now : monotonic();
    enum verdict v;
    if (!locked(slot, &c, &a, now, r, &v)) {
        return drop(ctx, DROP_UPDATE);
    }
    if (v != PASS) {
        return drop(ctx, reason(v));
    }
    if (w->routed && !w->hop.known) {
        return drop(ctx, DROP_NO_NEIGHBOUR);
    }
    if (!a.cnp) {
        p->bth.psn = with24(p->bth.psn, a.psn);
        aeth->syndrome_msn = swap32((u32)a.syndrome << 24 | a.msn);
    }
    p->ip.src = source;
    p->bth.dest_qp = (p->bth.dest_qp & swap32(0xff000000)) | sender_qpn;
    p->udp.checksum = 0;
    if (set->icrc_mode != ICRC_OFF) {
        u32 *trailer = icrc_at(p, end, &icrc);
        if (!trailer) {
            return drop(ctx, DROP_MALFORMED);
        }
        *trailer = icrc;
    }
    p->ip.checksum = checksum(&p->ip);
    count(ctx, &handled, PASSED_ON);
    return leave(ctx, &p->eth, &p->ip, w);
}
