// Headers, and the constants of the wire that the program tells apart. Fields are in network order.
#pragma once

#include "helpers.h"

#define PACKED __attribute__((packed, aligned(2))) // frames begin at even addresses

struct PACKED ethernet {
    u8 dst[6];
    u8 src[6];
    u16 type;
};

struct PACKED ipv4 {
    u8 version_ihl;
    u8 tos;
    u16 total_len;
    u16 id;
    u16 frag;
    u8 ttl;
    u8 proto;
    u16 checksum;
    u32 src;
    u32 dst;
};

struct PACKED udp {
    u16 src;
    u16 dst;
    u16 length;
    u16 checksum;
};

struct PACKED tcp {
    u16 src;
    u16 dst;
    u32 numbers[2];
    u16 flags;
    u16 window;
    u16 checksum;
};

struct PACKED bth {
    u8 opcode;
    u8 flags;
    u16 pkey;
    u32 dest_qp; // the first byte is FECN, BECN and reserved bits
    u32 psn;     // the first byte is AckReq and reserved bits
};

struct PACKED reth {
    u64 va;
    u32 rkey;
    u32 length;
};

struct PACKED aeth {
    u32 syndrome_msn;
};

// RoCE is a packet as far as the program changes it.
struct PACKED roce {
    struct ethernet eth;
    struct ipv4 ip;
    struct udp udp;
    struct bth bth;
};

#define ETHERTYPE_IPV4 swap16(0x0800)
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_SCTP 132
#define UDP_ROCE swap16(4791)
#define NOT_FRAGMENT(frag) (((frag) & swap16(0x3fff)) == 0)

#define OP_WRITE_FIRST 0x06
#define OP_WRITE_ONLY 0x0a
#define OP_WRITE_ONLY_IMM 0x0b
#define OP_ACK 0x11
#define OP_CNP 0x81

INLINE bool is_write(u8 opcode) {
    return opcode == OP_WRITE_FIRST || opcode == OP_WRITE_ONLY || opcode == OP_WRITE_ONLY_IMM;
}

// fits says that the lengths of a RoCE packet, of so many bytes with Ethernet, have room for its headers and the
// ICRC, and that all of it came. Any other is malformed: p4src/parser.p4.
INLINE bool fits(const struct roce *p, u64 bytes) {
    u32 n = swap16(p->udp.length), headers = sizeof(struct udp) + sizeof(struct bth) + 4;
    if (is_write(p->bth.opcode)) {
        headers += sizeof(struct reth);
    } else if (p->bth.opcode == OP_ACK) {
        headers += sizeof(struct aeth);
    }
    return n >= headers && swap16(p->ip.total_len) == n + sizeof(struct ipv4) && bytes >= n + sizeof(struct ethernet) + sizeof(struct ipv4);
}

// with24 is a word of the wire with another number in its low 24 bits.
INLINE u32 with24(u32 word, u32 value) { return (word & swap32(0xff000000)) | swap32(value & 0xffffff); }

// checksum is that of an IPv4 header without options, counted without what its checksum field
// holds: 0xffff less the sum of the others.
INLINE u16 checksum(const struct ipv4 *ip) {
    const u16 *w = (const u16 *)ip;
    u32 sum = (u32)w[0] + w[1] + w[2] + w[3] + w[4] + w[6] + w[7] + w[8] + w[9];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return ~sum;
}

// computed says that the n bytes of layer 4 have a right checksum. sum is that of the pseudo-header. It is not static, so that the kernel verifies
// it once, and not at each call.
__attribute__((noinline)) u32 computed(struct xdp_md *ctx, u32 n, u32 sum) {
    u8 part[64];
    if (n > 4096) {
        return false;
    }
#pragma clang loop unroll(disable)
    for (u32 at = 0; at < 4096 && at < n; at += sizeof(part)) {
        u32 len = n - at < sizeof(part) ? n - at : sizeof(part);
        __builtin_memset(part, 0, sizeof(part));
        forget(len);
        if (len > sizeof(part)) {
            return false;
        }
        forget(len); // else both checks become one, which the verifier of Linux 6.1 does not follow
        if ((int)len < 1 || load_bytes(ctx, sizeof(struct ethernet) + sizeof(struct ipv4) + at, part, len)) {
            return false;
        }
        sum = sum_of(0, 0, part, sizeof(part), sum);
    }
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16) == 0xffff;
}

// unfinished says that the checksum of layer 4 is still to be computed. A virtual interface hands on packets
// so that were to be finished by hardware; what is redirected would leave as it is. Such a checksum is the sum
// over the pseudo-header. One in 65,536 others looks the same, and is looked at in full: if it climbed, those behind would overtake it.
INLINE bool unfinished(struct xdp_md *ctx, const struct ipv4 *ip, void *end) {
    struct udp *udp = (struct udp *)(ip + 1);
    struct tcp *tcp = (struct tcp *)(ip + 1);
    u16 is;
    if (ip->proto == PROTO_UDP && (void *)(udp + 1) <= end) {
        is = udp->checksum;
    } else if (ip->proto == PROTO_TCP && (void *)(tcp + 1) <= end) {
        is = tcp->checksum;
    } else {
        return ip->proto == PROTO_UDP || ip->proto == PROTO_TCP || ip->proto == PROTO_SCTP;
    }
    u32 sum = (ip->src & 0xffff) + (ip->src >> 16) + (ip->dst & 0xffff) + (ip->dst >> 16);
    sum += swap16(ip->proto) + (u32)swap16(swap16(ip->total_len) - sizeof(struct ipv4));
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return is == sum && !computed(ctx, (u32)swap16(ip->total_len) - sizeof(struct ipv4), sum);
}
