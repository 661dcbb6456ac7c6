// Why packets are dropped: the numbers of p4src/drops.p4, as far as the kernel comes to drop any,
// behind them one of its own. A test compares.
#pragma once

#include "helpers.h"

#define DROP_NOT_MEMBER 10
#define DROP_SYNDROME 11
#define DROP_ABSORBED 12
#define DROP_STALE_NAK 13
#define DROP_UNDECIDED_NAK 14
#define DROP_CNP_FILTER 15
#define DROP_WINDOW 19
#define DROP_UPDATE 32 // an answer that met half an update of the tables
#define DROP_REASONS 33

struct count {
    u64 packets;
    u64 bytes;
};

MAP(BPF_MAP_TYPE_PERCPU_ARRAY, u32, struct count, DROP_REASONS, 0) drops SECTION(".maps");

INLINE int drop(struct xdp_md *ctx, u32 reason) {
    struct count *c = lookup(&drops, &reason);
    if (c) {
        c->packets++;
        c->bytes += ctx->data_end - ctx->data;
    }
    return XDP_DROP;
}
