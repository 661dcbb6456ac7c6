// The packets of groups: copied to ports by the kernel, and rewritten copy by copy by a program
// at each, as p4src/replication.p4 and rewrite.p4 have it in mode neutral: the ICRC that
// a packet comes with stays right, because identification and source port cancel the change.
#pragma once

#include "forward.h"

// In network order, the MC_ID in the low three bytes.
struct group_key {
    u32 src;
    u32 dst;
    u32 mc_id;
};

struct multicast {
    u32 group;
    u32 first_pre_group;
    u32 pre_groups;
    u32 climbs;  // what must be done for some copy cannot be done here
    u32 regions; // how many: some copy is its receiver's, and WRITEs need them. The first is here
    u32 counter;
    u64 first_va; // of the region, both ends included: where all copies can be rewritten
    u64 last_va;
    u32 rkey; // network order
    u32 pad;
};

// The other regions of groups.
struct group_region {
    u32 group;
    u32 rkey; // network order
};

// Virtual addresses, both ends included, at which all copies can be rewritten.
struct span {
    u64 first;
    u64 last;
};

// What a copy's requests are rewritten to that write to a region.
struct region {
    u32 rkey;
    u16 id; // what cancels the change
    u16 sport;
    u32 counter;
};

// One copy that a PRE group makes. Each port gets at most one. It fills a cache line: with many groups, that is what a
// copy takes.
struct copy {
    u32 dst;
    u32 qpn;    // in the low three bytes
    u16 id;     // what cancels the change
    u16 sport;
    u16 pre_group;
    u8 last;    // it is its receiver's: QPN and region are rewritten
    u8 known;   // its next hop's MAC is
    u32 ifindex;
    u32 number; // of the copy, which its other regions refer to
    u32 counter;
    u32 port;
    u8 eth_dst[6]; // as in the frame
    u8 eth_src[6];
    u32 regions;   // 0: the following is none
    u32 rkey;      // of its first region, network order
    struct region region;
};

// The other regions of copies.
struct region_key {
    u32 copy;
    u32 rkey; // network order
};

// The ports that a PRE group copies to, and where its copies are: side by side, in the order of the set.
struct pre_group {
    u16 set; // 0: none
    u16 n;
    u32 first;
};

// Where the copy to a port is, among those of a set.
struct place_key {
    u32 set;
    u32 ifindex;
};

MAP(BPF_MAP_TYPE_HASH, struct group_key, struct multicast, 16384, BPF_F_NO_PREALLOC) groups SECTION(".maps");
MAP(BPF_MAP_TYPE_HASH, struct group_region, struct span, 65536, BPF_F_NO_PREALLOC) group_regions SECTION(".maps");
MAP(BPF_MAP_TYPE_ARRAY, u32, struct copy, 131072, BPF_F_MMAPABLE) copies SECTION(".maps"); // which begins at a page then
MAP(BPF_MAP_TYPE_HASH, struct region_key, struct region, 65536, BPF_F_NO_PREALLOC) regions SECTION(".maps");
MAP(BPF_MAP_TYPE_ARRAY, u32, struct pre_group, 65536, 0) pre_groups SECTION(".maps");
MAP(BPF_MAP_TYPE_HASH, struct place_key, u32, 131072, BPF_F_NO_PREALLOC) places SECTION(".maps");

// What a packet carries from its copying to its copies, ahead of the frame.
struct carried {
    u64 all; // generations
    u64 own;
    u32 cell;
    u32 pre_group;
    u32 set;
    u32 first;
};

#define MAX_ASKED 16

// ask has the cache fetch what the copies will look at: what is fetched together takes hardly longer than one of it, and each
// copy would wait for its own.
INLINE void ask(u32 first, u32 n) {
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < MAX_ASKED && i < n; i++) {
        u32 at = first + i;
        struct copy *c = lookup(&copies, &at);
        u32 number = c ? c->counter : 0;
        struct count *counts = lookup(&counters, &number);
        u64 is = counts ? counts->packets : 0;
        forget(is);
    }
}

// replicate copies a request to a group. XDP_PASS: it climbs. r has been begun, and g read since.
INLINE int replicate(struct xdp_md *ctx, struct roce *p, void *end, const struct settings *set, const struct multicast *g,
                     const struct reading *r, u32 cell) {
    if (g->climbs || set->icrc_mode != ICRC_NEUTRAL || p->bth.opcode > OP_WRITE_ONLY_IMM || p->ip.ttl <= 1) {
        return XDP_PASS;
    }
    if (is_write(p->bth.opcode) && g->regions) {
        struct reth *reth = (struct reth *)(p + 1);
        if ((void *)(reth + 1) > end) {
            return XDP_PASS;
        }
        u64 va = __builtin_bswap64(reth->va), first_va = g->first_va, last_va = g->last_va;
        if (reth->rkey != g->rkey) {
            struct group_region key = {g->group, reth->rkey};
            struct span *all = g->regions > 1 ? lookup(&group_regions, &key) : 0;
            if (!all) {
                return XDP_PASS;
            }
            first_va = all->first;
            last_va = all->last;
        }
        if (va < first_va || va > last_va) {
            return XDP_PASS;
        }
    }
    u32 pre_group = g->first_pre_group;
    if (g->pre_groups > 1) {
        pre_group = (pre_group + choice(flow_hash(&p->ip, ports_of(&p->ip, end), set->hash_seed)) % g->pre_groups) & 0xffff;
    }
    struct pre_group *pre = lookup(&pre_groups, &pre_group);
    u32 counter = g->counter, set_of = pre ? pre->set : 0, first = pre ? pre->first : 0;
    ask(first, pre ? pre->n : 0);
    void *to = set_of ? lookup(&port_sets, &set_of) : 0;
    if (!to || (r->all_began | r->own_began) & ENDING || !whole(r) || adjust_meta(ctx, -(int)sizeof(struct carried))) {
        return XDP_PASS;
    }
    struct carried *c = (struct carried *)(long)ctx->data_meta;
    if ((void *)(c + 1) > (void *)(long)ctx->data) {
        return XDP_PASS;
    }
    c->all = r->all_began;
    c->own = r->own_began;
    c->cell = cell;
    c->pre_group = pre_group;
    c->set = set_of;
    c->first = first;
    counted(ctx, counter);
    count(ctx, &handled, REQUESTS);
    return redirect(to, 0, BPF_F_BROADCAST);
}

// change is how much the sum of a checksum changes with a word.
INLINE u32 change(u32 before, u32 after) {
    u64 sum = (u64)(u16)~before + (u16)~(before >> 16) + (u16)after + (after >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

// copied rewrites a copy. Other packets meet it too: the kernel has one program for all that wait for an interface.
INLINE int copied(struct xdp_md *ctx) {
    struct carried *c = (struct carried *)(long)ctx->data_meta;
    struct roce *p = (struct roce *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    if ((void *)(c + 1) > (void *)p) {
        return XDP_PASS; // no copy: it leaves as it is
    }
    if ((void *)(p + 1) > end) {
        return drop(ctx, DROP_NO_REPLICA);
    }
    u64 all = c->all, own = c->own;
    u32 pre_group = c->pre_group, at = c->first;
    struct place_key key = {c->set, ctx->egress_ifindex};
    struct reading r;
    if (!begin(&r) || !begin_own(&r, c->cell) || !same(r.all_began, all) || !same(r.own_began, own)) {
        return drop(ctx, DROP_UPDATE);
    }
    u32 *place = lookup(&places, &key);
    at += place ? *place : 0;
    struct copy *found = lookup(&copies, &at), to = {};
    struct region *where = 0, in = {};
    struct reth *reth = (struct reth *)(p + 1);
    bool write = false;
    bool here = found && found->pre_group == pre_group && found->ifindex == ctx->egress_ifindex;
    if (here) {
        to = *found;
        write = to.last && is_write(p->bth.opcode) && (void *)(reth + 1) <= end;
        if (write && to.regions && to.rkey == reth->rkey) {
            where = &found->region;
        } else if (write) {
            struct region_key rkey = {to.number, reth->rkey};
            where = lookup(&regions, &rkey);
        }
        if (where) {
            in = *where;
        }
    }
    if (!whole(&r)) {
        return drop(ctx, DROP_UPDATE);
    }
    if (!here || (write && !where)) {
        return drop(ctx, DROP_NO_REPLICA);
    }
    counted(ctx, to.counter);
    u32 sum = change(p->ip.dst, to.dst);
    p->ip.dst = to.dst;
    u16 sport = p->udp.src ^ to.sport ^ in.sport;
    sum += change(p->udp.src, sport);
    p->udp.src = sport;
    p->ip.id ^= to.id ^ in.id;
    if (to.last) {
        u32 qpn = (p->bth.dest_qp & swap32(0xff000000)) | to.qpn;
        sum += change(p->bth.dest_qp, qpn);
        p->bth.dest_qp = qpn;
    }
    if (write && (void *)(reth + 1) <= end) {
        counted(ctx, in.counter);
        sum += change(reth->rkey, in.rkey);
        reth->rkey = in.rkey;
    }
    if (p->udp.checksum) { // RFC 1624
        sum += (u16)~p->udp.checksum;
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        p->udp.checksum = (u16)~sum ? (u16)~sum : 0xffff; // 0 would mean none
    }
    if (!to.known) {
        return drop(ctx, DROP_NO_NEIGHBOUR);
    }
    __builtin_memcpy(p->eth.dst, to.eth_dst, 6);
    __builtin_memcpy(p->eth.src, to.eth_src, 6);
    p->ip.ttl--;
    p->ip.checksum = checksum(&p->ip);
    seen(ctx, &p->ip, to.port);
    count(ctx, &handled, COPIES);
    return adjust_meta(ctx, sizeof(struct carried)) ? drop(ctx, DROP_NO_REPLICA) : XDP_PASS; // here, PASS sends it
}
