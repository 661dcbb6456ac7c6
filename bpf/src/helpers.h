// What the kernel gives a program: helpers by their numbers in linux/bpf.h, and the words for
// maps and sections that loaders read.
#pragma once

#include <linux/bpf.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef _Bool bool;
#define true 1
#define false 0

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

// Maps are described by the types of a variable's members.
#define MAP(type_, key_, value_, max_, flags_)                                     \
    struct {                                                                       \
        int (*type)[type_];                                                        \
        key_ *key;                                                                 \
        value_ *value;                                                             \
        int (*max_entries)[max_];                                                  \
        int (*map_flags)[flags_];                                                  \
    }

static void *(*const lookup)(const void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const redirect)(const void *map, u64 key, u64 flags) = (void *)BPF_FUNC_redirect_map;
static u64 (*const length)(struct xdp_md *ctx) = (void *)BPF_FUNC_xdp_get_buff_len;
static long (*const adjust_meta)(struct xdp_md *ctx, int by) = (void *)BPF_FUNC_xdp_adjust_meta;
static long (*const load_bytes)(struct xdp_md *ctx, u32 from, void *to, u32 n) = (void *)BPF_FUNC_xdp_load_bytes;
static long (*const sum_of)(const void *no, u32 none, const void *words, u32 n, u32 and) = (void *)BPF_FUNC_csum_diff;
static u64 (*const monotonic)(void) = (void *)BPF_FUNC_ktime_get_ns;
static void (*const spin_lock)(struct bpf_spin_lock *) = (void *)BPF_FUNC_spin_lock;
static void (*const spin_unlock)(struct bpf_spin_lock *) = (void *)BPF_FUNC_spin_unlock;

#define swap16(x) __builtin_bswap16(x)
#define swap32(x) __builtin_bswap32(x)

// low24 is the number in the low 24 bits of a word of the wire.
INLINE u32 low24(u32 word) { return swap32(word) & 0xffffff; }

// The compiler may not know more of x than is written: else it leaves out the check of an index
// that the kernel's verifier wants to see.
#define forget(x) asm volatile("" : "+r"(x))

// All before it is read or written before all after it: an atomic operation that returns
// something is a full barrier.
INLINE void barrier(void) {
    u64 cell = 0;
    __sync_fetch_and_add(&cell, 1);
    forget(cell);
}
