// Settings, and what keeps a packet from meeting half an update.
#pragma once

#include "drops.h"

// What becomes of the ICRC, as in p4src/headers.p4.
enum { ICRC_RECOMPUTE, ICRC_OFF, ICRC_NEUTRAL };

struct settings {
    u32 icrc_mode;
    u32 hash_seed;
    u32 climbs;    // everything: user space owns all state
    u32 told;      // the time is what follows, not the kernel's: for tests
    u64 now;       // ns
};

MAP(BPF_MAP_TYPE_ARRAY, u32, struct settings, 1, 0) settings SECTION(".maps");

// Odd while user space changes tables, another number afterward. Packets that see it change
// have perhaps seen half of what it changed. Before, user space sets ENDING for some time, so that
// copies that are under way leave: then no more are made.
#define ENDING 2
MAP(BPF_MAP_TYPE_ARRAY, u32, u64, 1, 0) generation SECTION(".maps");

// A reading is one look at the tables.
struct reading {
    const volatile u64 *now;
    u64 began;
};

INLINE bool begin(struct reading *r) {
    u32 zero = 0;
    r->now = lookup(&generation, &zero);
    if (!r->now) {
        return false;
    }
    r->began = *r->now;
    barrier();
    return true;
}

// same says that two numbers are of the same tables.
INLINE bool same(u64 a, u64 b) { return ((a ^ b) & ~(u64)ENDING) == 0; }

// whole says that what was read since begin is of one moment.
INLINE bool whole(const struct reading *r) {
    barrier();
    return !(r->began & 1) && same(*r->now, r->began);
}
