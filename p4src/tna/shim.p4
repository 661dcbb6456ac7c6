// The merging on v1model, so that it runs on bmv2 and the embedded switch: each stateful operation as
// read, modify and write. A frame is what the tables of tna.p4 say, and an answer from IP on; it comes back merged.

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
#define PAIRS(name) register<bit<64>>(SLOTS) name;
#define PAIR_OPERATION(name, reg, U, ...)                                          \
    action name(out U rv) {                                                        \
        bit<64> both;                                                              \
        pair_t value;                                                              \
        reg.read(both, (bit<32>)m.slot);                                           \
        value.acked = both[63:32];                                                 \
        value.lower = both[31:0];                                                  \
        __VA_ARGS__                                                                \
        reg.write((bit<32>)m.slot, value.acked ++ value.lower);                    \
    }
#define EXECUTE(name, to) name(to);
#define WHOLE_CRC 64w0x100000000
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
    frame_t    frame;
    bridge_t   bridge;
    record_t   record;
    ipv4_t     ipv4;
    ports_t    ports;
    udp_rest_t udp;
    bth_t      bth;
    aeth_t     aeth;
    icrc_t     icrc;
}

struct metadata {}

parser parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.bridge);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.ports);
        packet.extract(hdr.udp);
        packet.extract(hdr.bth);
        packet.extract(hdr.aeth);
        packet.extract(hdr.icrc);
        transition accept;
    }
}

control ingress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    Admit() admit;
    Members() members;
    apply {
        std.egress_spec = std.ingress_port;
        bit<32> crc;
        hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_OF_ANSWER, hdr.icrc.b0, hdr.icrc.b1, hdr.icrc.b2, hdr.icrc.b3 }, WHOLE_CRC);
        if (hdr.bridge.kind != KIND_DATA) {
            members.apply(hdr.bridge, hdr.frame.drop);
        }
        hdr.record.setValid();
        bit<32> psn = hdr.bth.ack_req ++ hdr.bth.psn_hi ++ hdr.bth.psn_lo;
        admit.apply(hdr.bridge, hdr.record, hdr.bth, hdr.aeth, psn, hdr.frame.now, hdr.frame.drop);
        hdr.bridge.since = hdr.bridge.now - hdr.frame.gap;
        if (hdr.bridge.kind != KIND_CNP && crc != ICRC_RESIDUE) {
            hdr.frame.drop = 1;
        }
    }
}

control egress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    PackedMerge() merge;
    apply {
        if (hdr.frame.drop == 0 && hdr.bridge.kind != KIND_DATA) {
            bit<32> own = hdr.record.psn ++ hdr.record.msn;
            bit<32> low = own;
            merge.apply(hdr.bridge, own, low, hdr.bth, hdr.aeth, hdr.frame.drop);
            bit<32> crc;
            hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_OF_ANSWER }, WHOLE_CRC);
            hdr.icrc.b0 = crc[7:0];
            hdr.icrc.b1 = crc[15:8];
            hdr.icrc.b2 = crc[23:16];
            hdr.icrc.b3 = crc[31:24];
        }
    }
}

control verify_checksums(inout headers hdr, inout metadata meta) { apply {} }

control update_checksums(inout headers hdr, inout metadata meta) { apply {} }

control deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.frame);
        packet.emit(hdr.bridge);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ports);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
        packet.emit(hdr.aeth);
        packet.emit(hdr.icrc);
    }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), update_checksums(), deparse()) main;
