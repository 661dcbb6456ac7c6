// The hot part of the data plane, as a program of the Linux kernel (XDP). What it leaves alone
// goes on to the switch in user space.

#include "answers.h"

SECTION("license") const char terms[] = "Apache-2.0"; // no helper here asks for the GPL

// merge_answers merges what members of groups answer, and passes everything else.
SECTION("xdp") int merge_answers(struct xdp_md *ctx) {
    struct roce *p = (struct roce *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    if ((void *)(p + 1) > end || p->eth.type != ETHERTYPE_IPV4 || p->ip.version_ihl != 0x45 || !NOT_FRAGMENT(p->ip.frag) ||
        p->ip.proto != PROTO_UDP || p->udp.dst != UDP_ROCE || p->ip.checksum != checksum(&p->ip) ||
        swap16(p->ip.total_len) != swap16(p->udp.length) + sizeof(struct ipv4)) {
        return XDP_PASS;
    }
    if (p->bth.opcode != OP_ACK && p->bth.opcode != OP_CNP) {
        return XDP_PASS;
    }
    return merged(ctx, p, end);
}
