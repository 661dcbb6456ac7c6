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
// copies that are under way leave: then no more are made. Number 0 is for what all packets share; the others are for what
// a group's packets and answers alone find, so that its changes disturb no other's, but for one in CELLS.
#define ENDING 2
#define CELL_BITS 14
#define CELLS (1 << CELL_BITS)
MAP(BPF_MAP_TYPE_ARRAY, u32, u64, CELLS + 1, 0) generation SECTION(".maps");

// cell_of is the number of a group's packets and answers: by its sender, and by the QPN that both are for.
INLINE u32 cell_of(u32 sender, u32 qpn) {
    u32 h = (swap32(sender) * 0x9e3779b1) ^ (low24(qpn) * 0x85ebca6b);
    h ^= h >> 15;
    return 1 + ((h * 0xc2b2ae35) >> (32 - CELL_BITS));
}

// A reading is one look at the tables.
struct reading {
    const volatile u64 *all;
    const volatile u64 *own; // of the packet's cell
    u64 all_began;
    u64 own_began;
};

INLINE bool begin(struct reading *r) {
    u32 zero = 0;
    r->own = r->all = lookup(&generation, &zero);
    if (!r->all) {
        return false;
    }
    r->own_began = r->all_began = *r->all;
    barrier();
    return true;
}

// begin_own is to be called before any table of a cell is read.
INLINE bool begin_own(struct reading *r, u32 cell) {
    r->own = lookup(&generation, &cell);
    if (!r->own) {
        return false;
    }
    r->own_began = *r->own;
    barrier();
    return true;
}

// same says that two numbers are of the same tables.
INLINE bool same(u64 a, u64 b) { return ((a ^ b) & ~(u64)ENDING) == 0; }

// stays says that no table has changed since begin.
INLINE bool stays(const struct reading *r) { return same(*r->all, r->all_began) && same(*r->own, r->own_began); }

// whole says that what was read since begin is of one moment.
INLINE bool whole(const struct reading *r) {
    barrier();
    return !((r->all_began | r->own_began) & 1) && stays(r);
}
