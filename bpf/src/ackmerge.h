// Merging: pkg/ackmerge, rule by rule, in its order and its words. Its comments say why; here is
// only what differs. A test gives both the same answers.
//
// The state of a group belongs to the kernel alone. Ports receive at the same time on several
// processors, so that state has a lock; merge is called with it held, and so calls no helper.
#pragma once

#include "helpers.h"

#define MAX_MEMBERS 16
#define WINDOW (1 << 22)
#define SPREAD (1 << 20)
#define MASK24 0xffffff

struct config {
    u64 cnp_gap;     // ns
    u32 initial_psn;
    u16 members;
    u16 epoch;
    u8 learn;
};

struct record {
    u32 msn;
    u32 psn;
    u32 epoch;
};

struct state {
    struct record acked[MAX_MEMBERS];
    struct record passed;
    u64 cnp_at; // ns
};

struct answer {
    u32 member;
    u32 psn;
    u32 msn;
    u8 syndrome;
    bool cnp;
};

enum verdict {
    PASS,
    NOT_MEMBER,
    BAD_SYNDROME,
    ABSORBED,
    STALE_NAK,
    UNDECIDED_NAK,
    FILTERED_CNP,
    OUTSIDE_WINDOW,
};

struct view {
    const struct config *c;
    struct state *s;
    u32 base;
    u32 reach;
    bool undecided;
};

// Kinds of a syndrome: its three high bits.
enum { KIND_ACK = 0, KIND_RNR = 1, KIND_NAK = 3 };

INLINE u32 add(u32 psn, int n) { return (psn + n) & MASK24; }

INLINE u32 before(const struct config *c) { return add(c->initial_psn, -1); }

// look finds where PSNs are measured from when a member has acknowledged psn.
INLINE void look(struct view *v, u32 psn) {
    v->reach = WINDOW;
    v->undecided = false;
    if (v->s->passed.epoch == v->c->epoch) {
        v->base = v->s->passed.psn;
    } else if (v->c->learn) {
        v->base = add(psn, -SPREAD);
        v->reach = 2 * SPREAD;
        v->undecided = true;
    } else {
        v->base = before(v->c);
    }
}

// ahead is how far psn lies ahead of the base, around the circle.
INLINE u32 ahead(const struct view *v, u32 psn) { return (psn - v->base) & MASK24; }

// note records that member i has everything up to psn.
INLINE void note(struct view *v, u32 i, u32 psn, u32 msn, bool *advanced, bool *stale) {
    struct record *r = &v->s->acked[i];
    u32 now = ahead(v, psn), known = ahead(v, r->psn);
    *advanced = false;
    *stale = false;
    if (v->undecided || r->epoch != v->c->epoch || now > known) {
        r->epoch = v->c->epoch;
        r->msn = msn & MASK24;
        r->psn = psn;
        *advanced = true;
        return;
    }
    *stale = now < known;
}

// What follows is without branches: the verifier goes each way at each of them, at one member after
// the other. Numbers are less than 2^31.
INLINE u32 less(u32 a, u32 b) { return (a - b) >> 31; }

INLINE u32 differ(u32 a, u32 b) { return less(0, a ^ b); }

INLINE u32 pick(u32 bit, u32 yes, u32 no) {
    u32 mask = 0 - bit;
    forget(mask);
    return (yes & mask) | (no & ~mask);
}

// record is what member i has acknowledged, or what is assumed if it has not been heard of; its
// epoch is then 0.
INLINE struct record record(const struct view *v, u32 i) {
    struct record r = v->s->acked[i];
    u32 unheard = differ(r.epoch, v->c->epoch);
    r.epoch = pick(unheard, 0, r.epoch);
    r.msn = pick(unheard, 0, r.msn);
    r.psn = pick(unheard, before(v->c), r.psn);
    return r;
}

// lowest is the record of the current member that is farthest behind.
INLINE struct record lowest(const struct view *v, u32 own, bool *silent, bool *far) {
    struct record low = record(v, own);
    u32 any_silent = 0, any_far = 0;
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < MAX_MEMBERS; i++) {
        u32 member = v->c->members >> i & 1;
        struct record r = record(v, i);
        any_silent |= member & differ(r.epoch, v->c->epoch);
        any_far |= member & less(v->reach, ahead(v, r.psn));
        u32 behind = member & less(ahead(v, r.psn), ahead(v, low.psn));
        low.msn = pick(behind, r.msn, low.msn);
        low.psn = pick(behind, r.psn, low.psn);
    }
    low.epoch = v->c->epoch;
    *silent = any_silent;
    *far = any_far;
    return low;
}

// merge processes an answer that arrives at now, and says what becomes of it. If it is to be
// passed on, it is afterwards what the sender sees.
INLINE enum verdict merge(const struct config *c, struct state *s, struct answer *a, u64 now) {
    u32 own = a->member;
    if (own >= MAX_MEMBERS || !(c->members >> own & 1) || c->epoch == 0) {
        return NOT_MEMBER;
    }
    forget(own);
    own &= MAX_MEMBERS - 1;
    if (a->cnp) {
        if (s->cnp_at != 0 && now - s->cnp_at < c->cnp_gap) {
            return FILTERED_CNP;
        }
        s->cnp_at = now;
        return PASS;
    }
    u8 kind = a->syndrome >> 5;
    bool ack = kind == KIND_ACK;
    u32 psn = a->psn & MASK24; // the last one that is acknowledged
    if (!ack) {
        if (kind != KIND_RNR && kind != KIND_NAK) {
            return BAD_SYNDROME;
        }
        psn = add(psn, -1);
    }
    struct view v = {.c = c, .s = s};
    look(&v, psn);
    if (ahead(&v, psn) > v.reach) {
        return OUTSIDE_WINDOW;
    }
    bool advanced, stale, silent, far;
    note(&v, own, psn, a->msn, &advanced, &stale);
    if (stale && !ack) {
        return STALE_NAK;
    }
    struct record low = lowest(&v, own, &silent, &far);
    bool news = ahead(&v, low.psn) > 0;
    if (ack && (silent || far || (advanced && !news))) {
        return ABSORBED;
    }
    if (!ack && (far || (silent && c->learn))) {
        return UNDECIDED_NAK;
    }
    if (news) {
        s->passed = low;
    }
    a->msn = low.msn;
    if (ack) {
        a->syndrome = 0x1f; // no credit limit
        a->psn = low.psn;
    } else {
        a->psn = add(low.psn, 1);
    }
    return PASS;
}
