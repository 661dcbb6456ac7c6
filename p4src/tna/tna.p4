// Reliable multicast for RDMA (RoCEv2) on Tofino: what p4src/mcrdma.p4 does for v1model, as far as docs/hardware.md
// says. The payload is not looked at: what a rewrite changes is canceled, for the ICRC, in the
// IPv4 identification and the UDP source port, by constants that the control plane computes. Answers are read
// whole; their ICRC is verified and computed anew.
//
//   ingress: the copies of a group's packet, by the packet replication engine; of an answer, what is known
//            before merging (merge.p4, Admit); routes
//   egress:  the rewriting of each copy; merging (merge.p4, PackedMerge), at the sender's port; the next hop
//
// MEMBERS, of the command line: how many members a group can have.

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

#define GROUPS   40960
#define REPLICAS 81920 // two for each group: the primary has the third

#define REGISTER(name) Register<bit<32>, bit<16>>(GROUPS) name;
#define OPERATION(name, reg, U, ...)                                               \
    RegisterAction<bit<32>, bit<16>, U>(reg) name = {                              \
        void apply(inout bit<32> value, out U rv) __VA_ARGS__                      \
    };
#define PAIRS(name) Register<pair_t, bit<16>>(GROUPS) name;
#define PAIR_OPERATION(name, reg, U, ...)                                          \
    RegisterAction<pair_t, bit<16>, U>(reg) name = {                               \
        void apply(inout pair_t value, out U rv) __VA_ARGS__                       \
    };
#define EXECUTE(name, to) to = name.execute(m.slot);
#define AFTER(a, b) ((int<32>)(a) - (int<32>)(b) > 0)
#define NEGATIVE(a, b, k) ((int<32>)(a) - (int<32>)(b) < -(k))

#include "headers.p4"
#include "merge.p4"
#include "parser.p4"
#include "ingress.p4"
#include "egress.p4"

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
