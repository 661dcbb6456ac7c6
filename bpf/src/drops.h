// Why packets are dropped: the numbers of p4src/drops.p4, as far as the kernel comes to drop any,
// behind them one of its own. A test compares.
#pragma once

#include "helpers.h"

#define DROP_MALFORMED 0
#define DROP_ICRC 2
#define DROP_TTL 3
#define DROP_NO_ROUTE 4
#define DROP_NO_NEXT_HOP 5
#define DROP_NO_NEIGHBOUR 6
#define DROP_UNKNOWN_MAC 7
#define DROP_NO_REPLICA 9
#define DROP_NOT_MEMBER 10
#define DROP_SYNDROME 11
#define DROP_ABSORBED 12
#define DROP_STALE_NAK 13
#define DROP_UNDECIDED_NAK 14
#define DROP_CNP_FILTER 15
#define DROP_SPOOFED 17
#define DROP_WINDOW 19
#define DROP_UPDATE 32 // an answer or a copy that met half an update of the tables
#define DROP_REASONS 33

struct count {
    u64 packets;
    u64 bytes;
};

MAP(BPF_MAP_TYPE_PERCPU_ARRAY, u32, struct count, DROP_REASONS, 0) drops SECTION(".maps");

// The direct counters of tables, by the numbers that entries have. 0 counts for none. All processors share them: those
// of a group are side by side, and with many groups that saves more than an atomic addition takes.
MAP(BPF_MAP_TYPE_ARRAY, u32, struct count, 16384, BPF_F_MMAPABLE) counters SECTION(".maps");

// What was not dropped and did not climb.
enum { ROUTED, REQUESTS, COPIES, PASSED_ON, HANDLED };

MAP(BPF_MAP_TYPE_PERCPU_ARRAY, u32, struct count, HANDLED, 0) handled SECTION(".maps");

INLINE void count(struct xdp_md *ctx, const void *map, u32 number) {
    struct count *c = lookup(map, &number);
    if (c) {
        c->packets++;
        c->bytes += ctx->data_end - ctx->data;
    }
}

// counted counts for an entry.
INLINE void counted(struct xdp_md *ctx, u32 number) {
    struct count *c = lookup(&counters, &number);
    if (c) {
        __sync_fetch_and_add(&c->packets, 1);
        __sync_fetch_and_add(&c->bytes, ctx->data_end - ctx->data);
    }
}

INLINE int drop(struct xdp_md *ctx, u32 reason) {
    count(ctx, &drops, reason);
    return XDP_DROP;
}
