// Unicast, as p4src/forwarding.p4 has it: a packet to a MAC of the router is routed, any other
// bridged, if the port of its MAC is known.
#pragma once

#include "crc32.h"
#include "headers.h"
#include "tables.h"

#define MAX_PATHS 64 // of an ECMP group, each as often as its weight says

struct mac {
    u8 at[6];
    u8 pad[2];
};

// A port that the switch receives from.
struct port {
    u32 number;
    u32 guarded;
    u32 flood; // the set of its bridge's ports; 0: it has none
};

struct port_host {
    u32 port;
    u32 ip;
};

struct prefix {
    u32 bits;
    u32 dst;
};

struct route {
    u16 next_hop;
    u16 ecmp;   // if not 0, next_hop is 0
    u32 climbs; // the agent's, or none
};

struct paths {
    u32 n; // 0: none that the kernel can choose from
    u16 next_hops[MAX_PATHS];
};

struct next_hop {
    u32 port;
    u32 known; // its MAC is
    u8 dst[6]; // as in the frame: the neighbor's MAC, and then ours
    u8 src[6];
};

MAP(BPF_MAP_TYPE_HASH, u32, struct port, 512, BPF_F_NO_PREALLOC) ports_in SECTION(".maps"); // by interface
MAP(BPF_MAP_TYPE_HASH, struct port_host, struct mac, 16384, BPF_F_NO_PREALLOC) port_hosts SECTION(".maps");
MAP(BPF_MAP_TYPE_HASH, struct mac, u32, 1024, BPF_F_NO_PREALLOC) router_macs SECTION(".maps");
MAP(BPF_MAP_TYPE_HASH, struct mac, u32, 16384, BPF_F_NO_PREALLOC) bridge SECTION(".maps");
MAP(BPF_MAP_TYPE_LPM_TRIE, struct prefix, struct route, 65536, BPF_F_NO_PREALLOC) routes SECTION(".maps");
MAP(BPF_MAP_TYPE_HASH, u32, struct paths, 4096, BPF_F_NO_PREALLOC) ecmp_groups SECTION(".maps");
MAP(BPF_MAP_TYPE_HASH, u32, struct next_hop, 8192, BPF_F_NO_PREALLOC) next_hops SECTION(".maps");
MAP(BPF_MAP_TYPE_DEVMAP_HASH, u32, struct bpf_devmap_val, 512, 0) ports_out SECTION(".maps"); // by number, with copy_out
MAP(BPF_MAP_TYPE_PERCPU_ARRAY, u32, struct count, 512, 0) ecn_seen SECTION(".maps"); // by port
MAP(BPF_MAP_TYPE_HASH, u32, u32, 512, BPF_F_NO_PREALLOC) ecn_ports SECTION(".maps");

// Sets of ports, each with the program copy_out. PRE groups of the same ports share one: a change of port_sets takes user
// space some milliseconds, so none is made while tables change.
struct {
    int (*type)[BPF_MAP_TYPE_HASH_OF_MAPS];
    u32 *key;
    int (*max_entries)[4096];
    int (*map_flags)[BPF_F_NO_PREALLOC];
    struct {
        int (*type)[BPF_MAP_TYPE_DEVMAP_HASH];
        u32 *key;
        int (*value_size)[sizeof(struct bpf_devmap_val)];
        int (*max_entries)[512];
    } *values[];
} port_sets SECTION(".maps");

INLINE bool same_mac(const u8 *a, const u8 *b) {
    u8 differs = 0;
    for (int i = 0; i < 6; i++) {
        differs |= a[i] ^ b[i];
    }
    return !differs;
}

// flow_hash is p4src/flow.p4.
INLINE u32 flow_hash(const struct ipv4 *ip, u32 ports, u32 seed) {
    u32 h = 0xffffffff;
    const u8 *addresses = (const u8 *)&ip->src, *l4 = (const u8 *)&ports;
#pragma clang loop unroll(full)
    for (int i = 0; i < 8; i++) {
        h = crc32_byte(h, addresses[i]);
    }
    h = crc32_byte(h, ip->proto);
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; i++) {
        h = crc32_byte(h, l4[i]);
    }
    h = ~h ^ seed;
    h ^= h >> 16;
    h *= 0x85ebca6b;
    h ^= h >> 13;
    h *= 0xc2b2ae35;
    return h ^ (h >> 16);
}

// choice is CRC-16/ARC of a flow's hash, by which one of equal paths is chosen.
INLINE u32 choice(u32 flow) {
    u32 sum = 0;
#pragma clang loop unroll(full)
    for (int i = 24; i >= 0; i -= 8) {
        sum ^= flow >> i & 0xff;
#pragma clang loop unroll(full)
        for (int bit = 0; bit < 8; bit++) {
            u32 low = sum & 1;
            forget(low); // a product, not a branch: the verifier would go both ways at each bit
            sum = (sum >> 1) ^ (low * 0xa001);
        }
    }
    return sum;
}

// ports_of returns the layer 4 ports that ECMP chooses by.
INLINE u32 ports_of(const struct ipv4 *ip, void *end) {
    u32 *ports = (u32 *)(ip + 1);
    if ((ip->proto != PROTO_UDP && ip->proto != PROTO_TCP) || (void *)(ports + 1) > end) {
        return 0;
    }
    return *ports;
}

// A way is where unicast takes a packet.
struct way {
    bool climbs;   // to user space
    u32 reason;    // of a drop before egress, less than DROP_REASONS
    bool routed;   // hop is known then
    u32 port;      // of egress
    void *flood;   // instead: the ports of the bridge, for an answer to a MAC that it does not know
    struct next_hop hop;
};

// unicast finds the way of a packet. ports are its layer 4 ports, 0 where there are none.
INLINE void unicast(const struct ethernet *eth, const struct ipv4 *ip, u32 ports, u32 seed, struct way *w) {
    struct mac mac = {};
    __builtin_memcpy(mac.at, eth->dst, 6);
    w->climbs = false;
    w->reason = DROP_REASONS;
    w->routed = lookup(&router_macs, &mac) != 0;
    w->port = 0;
    w->flood = 0;
    if (!w->routed) {
        u32 *port = lookup(&bridge, &mac);
        if (port) {
            w->port = *port;
            return;
        }
        w->climbs = true; // flooded, or dropped
        w->reason = DROP_UNKNOWN_MAC;
        return;
    }
    struct prefix key = {32, ip->dst};
    struct route *r = lookup(&routes, &key);
    w->climbs = true;
    if (!r || r->climbs) {
        w->reason = DROP_NO_ROUTE;
        return;
    }
    u32 next_hop = r->next_hop, ecmp = r->ecmp;
    if (ecmp) {
        struct paths *p = lookup(&ecmp_groups, &ecmp);
        u32 n = p ? p->n : 0;
        if (n == 0 || n > MAX_PATHS) {
            w->reason = DROP_NO_NEXT_HOP;
            return;
        }
        u32 i = choice(flow_hash(ip, ports, seed)) % n;
        i &= MAX_PATHS - 1;
        forget(i);
        next_hop = p->next_hops[i & (MAX_PATHS - 1)];
    }
    if (ip->ttl <= 1) {
        w->reason = DROP_TTL;
        return;
    }
    struct next_hop *h = lookup(&next_hops, &next_hop);
    if (!h) {
        w->reason = DROP_NO_NEXT_HOP;
        return;
    }
    w->climbs = false;
    w->hop = *h;
    w->port = h->port;
}

// seen counts what p4src/ecn.p4 would look at. Nothing is marked: no queue is here.
INLINE void seen(struct xdp_md *ctx, const struct ipv4 *ip, u32 port) {
    u8 ecn = ip->tos & 3;
    if ((ecn == 1 || ecn == 2) && lookup(&ecn_ports, &port)) {
        count(ctx, &ecn_seen, port);
    }
}

// leave sends a packet to its neighbor, one hop less to live.
INLINE int leave(struct xdp_md *ctx, struct ethernet *eth, struct ipv4 *ip, const struct way *w) {
    if (w->routed) {
        __builtin_memcpy(eth->dst, w->hop.dst, 6);
        __builtin_memcpy(eth->src, w->hop.src, 6);
        ip->ttl--;
        ip->checksum = checksum(ip);
    }
    if (!w->flood) {
        seen(ctx, ip, w->port);
    }
    int carries = ctx->data - ctx->data_meta;
    if (carries > 0 && adjust_meta(ctx, carries)) { // it would be taken for a copy
        return drop(ctx, DROP_MALFORMED);
    }
    return w->flood ? redirect(w->flood, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS) : redirect(&ports_out, w->port, XDP_DROP);
}
