// The invariant CRC of an answer. What is longer than any answer is not computed here: in mode
// neutral, the packets of a group keep the ICRC that they come with.
#pragma once

#include "crc32.h"
#include "headers.h"

#define MAX_ICRC_TAIL 64 // bytes behind the BTH that an ICRC is computed over

// icrc_at finds the ICRC of a packet and computes what it must be, as it is on the wire. It
// returns no place if the packet is cut short, or too long for this.
INLINE u32 *icrc_at(struct roce *p, void *end, u32 *value) {
    u8 *head = (u8 *)&p->ip;
    u32 crc = 0xdebb20e3; // after eight bytes of ones
#pragma clang loop unroll(full)
    for (int i = 0; i < 40; i++) {
        // ToS, TTL, both checksums, and byte 4 of the BTH change on the way.
        bool masked = i == 1 || i == 8 || i == 10 || i == 11 || i == 26 || i == 27 || i == 32;
        crc = crc32_byte(crc, masked ? 0xff : head[i]);
    }
    u32 tail = swap16(p->udp.length) - (u32)(sizeof(struct udp) + sizeof(struct bth) + 4);
    if (tail > MAX_ICRC_TAIL) {
        return 0;
    }
    u8 *b = (u8 *)(p + 1);
    u32 *trailer = (u32 *)(b + tail);
    if ((void *)(trailer + 1) > end) {
        return 0;
    }
    // The verifier may not see that n is tail: else it follows all that comes after for each length.
    u32 n = tail;
    forget(n);
    n &= 2 * MAX_ICRC_TAIL - 1;
    for (u32 i = 0; i < MAX_ICRC_TAIL && i < n; i++, b++) {
        forget(b); // or else the compiler compares with end less something, which the verifier does not follow
        if ((void *)(b + 1) > end) {
            return 0;
        }
        crc = crc32_byte(crc, *b);
    }
    *value = ~crc; // its least significant byte comes first, which is this machine's order as well
    return trailer;
}
