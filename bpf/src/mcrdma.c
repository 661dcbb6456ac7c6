// The hot part of the data plane, as programs of the Linux kernel (XDP): unicast, the copying of
// groups' requests, and the merging of answers, as p4src has them. All else, and what meets half
// an update of the tables, climbs to the switch in user space, which has the same tables; an
// answer that meets half an update is dropped, because the state to merge it with is here.
//
//   ackmerge.h   the rules of merging
//   answers.h    answers: found, merged, addressed
//   replicate.h  requests to groups: copied, rewritten
//   forward.h    unicast
//   tables.h     settings; no packet meets half an update
//   icrc.h, crc32.h, headers.h, drops.h, helpers.h

#include "answers.h"
#include "replicate.h"

SECTION("license") const char terms[] = "Apache-2.0"; // no helper here asks for the GPL

// Each packet that comes in at a port. What fills more than a page climbs: of such a frame, the kernel would copy the
// first page only, or send none.
SECTION("xdp.frags") int ingress(struct xdp_md *ctx) {
    struct ethernet *eth = (struct ethernet *)(long)ctx->data;
    struct ipv4 *ip = (struct ipv4 *)(eth + 1);
    void *end = (void *)(long)ctx->data_end;
    if ((void *)(ip + 1) > end || eth->type != ETHERTYPE_IPV4 || ip->version_ihl != 0x45 || !NOT_FRAGMENT(ip->frag) ||
        ip->checksum != checksum(ip)) {
        return XDP_PASS;
    }
    u64 bytes = length(ctx);
    if (bytes != (u64)(end - (void *)eth)) {
        return XDP_PASS;
    }
    struct roce *p = (struct roce *)eth;
    bool roce = false;
    if (ip->proto == PROTO_UDP) {
        if ((void *)(&p->udp + 1) > end) {
            return XDP_PASS;
        }
        roce = p->udp.dst == UDP_ROCE;
        if (roce && ((void *)(p + 1) > end || !fits(p, bytes))) {
            return XDP_PASS;
        }
    }
    u32 zero = 0, in = ctx->ingress_ifindex;
    struct reading r;
    struct settings *set = lookup(&settings, &zero);
    struct port *port = lookup(&ports_in, &in);
    if (!set || !port || !begin(&r) || set->climbs) {
        return XDP_PASS;
    }
    bool spoofed = false;
    if (port->guarded) {
        struct port_host key = {port->number, ip->src};
        struct mac *mac = lookup(&port_hosts, &key);
        spoofed = !mac || !same_mac(mac->at, eth->src);
    }
    struct member *m = 0;
    u32 wrong = DROP_REASONS;
    if (roce && (p->bth.opcode == OP_ACK || p->bth.opcode == OP_CNP)) {
        u32 icrc, *trailer = icrc_at(p, end, &icrc);
        if (!trailer) {
            wrong = DROP_MALFORMED;
        } else if (set->icrc_mode != ICRC_OFF && *trailer != icrc) {
            wrong = DROP_ICRC;
        }
        if (!begin_own(&r, cell_of(ip->dst, p->bth.dest_qp))) {
            return XDP_PASS;
        }
        m = member_of(p);
        if (m ? m->bypass : wrong < DROP_REASONS) {
            return XDP_PASS;
        }
    } else if (roce) {
        if (spoofed || set->icrc_mode == ICRC_RECOMPUTE || unfinished(ctx, ip, end)) {
            return XDP_PASS;
        }
        u32 cell = cell_of(ip->src, p->bth.dest_qp);
        if (!begin_own(&r, cell)) {
            return XDP_PASS;
        }
        struct group_key key = {ip->src, ip->dst, p->bth.dest_qp & swap32(0xffffff)};
        struct multicast *g = lookup(&groups, &key);
        if (g) {
            return replicate(ctx, p, end, set, g, &r, cell);
        }
        if (member_of(p)) {
            return XDP_PASS;
        }
    }
    struct way w;
    unicast(eth, ip, ports_of(ip, end), set->hash_seed, &w);
    if (m) {
        u32 flood = port->flood;
        w.flood = flood && w.reason == DROP_UNKNOWN_MAC ? lookup(&port_sets, &flood) : 0;
        return answered(ctx, p, end, set, m, &w, spoofed, wrong, &r);
    }
    if (spoofed || w.climbs || (w.routed && !w.hop.known) || unfinished(ctx, ip, end) || !whole(&r)) {
        return XDP_PASS;
    }
    count(ctx, &handled, ROUTED);
    return leave(ctx, eth, ip, &w);
}

// Each packet that leaves by a port: copies of requests to groups are rewritten.
SECTION("xdp.frags/devmap") int copy_out(struct xdp_md *ctx) { return copied(ctx); }
