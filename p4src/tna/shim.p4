// The merging on v1model, so that it runs on bmv2 and the embedded switch: each stateful operation as
// read, modify and write. A frame is what ingress has found out in tna.p4, and an answer; it comes back merged.

#include <core.p4>
#include <v1model.p4>

#define MEMBERS 16
#define SLOTS   16
#define REGISTER(name) register<bit<32>>(SLOTS) name;
#define OPERATION(name, reg, U, ...)                                               \
    action name(out U rv) {                                                        \
        bit<32> value;                                                             \
        reg.read(value, (bit<32>)m.slot);                                          \
        __VA_ARGS__                                                                \
        reg.write((bit<32>)m.slot, value);                                         \
    }
#define EXECUTE(name, to) name(to);
#define AFTER(a, b) ((int<32>)((a) - (b)) > 0)
#define NEGATIVE(a, b, k) ((int<32>)((a) - (b)) + (k) < 0)

#include "headers.p4"
#include "merge.p4"

// What the tables of a group would say, and the verdict.
header frame_t {
    bit<32> now;
    bit<32> gap;
    bit<8>  drop;
}

struct headers {
    frame_t  frame;
    bridge_t bridge;
    bth_t    bth;
    aeth_t   aeth;
}

struct metadata {}

parser parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.bridge);
        packet.extract(hdr.bth);
        packet.extract(hdr.aeth);
        transition accept;
    }
}

control ingress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    Admit() admit;
    apply {
        std.egress_spec = std.ingress_port;
        admit.apply(hdr.bridge, hdr.bth, hdr.aeth, hdr.frame.now, hdr.frame.gap, hdr.frame.drop);
    }
}

control egress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    PackedMerge() merge;
    apply {
        if (hdr.frame.drop == 0 && hdr.bridge.kind != KIND_DATA) {
            merge.apply(hdr.bridge, hdr.bth, hdr.aeth, hdr.frame.drop);
        }
    }
}

control verify_checksums(inout headers hdr, inout metadata meta) { apply {} }

control update_checksums(inout headers hdr, inout metadata meta) { apply {} }

control deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.frame);
        packet.emit(hdr.bridge);
        packet.emit(hdr.bth);
        packet.emit(hdr.aeth);
    }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), update_checksums(), deparse()) main;
