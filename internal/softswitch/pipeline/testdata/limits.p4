// What a program had better not do, and what only the switch knows: packets that
// never end, loops, bad indices, random numbers, queues, time.

#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> op; bit<8> n; bit<16> x; }
header report_t {
    bit<32> r; bit<48> in_time; bit<48> out_time; bit<32> enq_time; bit<32> delta;
    bit<19> enq_depth; bit<19> deq_depth; bit<2> pad; bit<8> q; bit<8> err; bit<32> length;
}
header var_t { varbit<256> d; }

struct headers_t { report_t r; key_t k; key_t[2] more; var_t v; }
struct meta_t { @field_list(1) bit<8> pass; bit<32> r; }

struct seen_t { bit<9> port; bit<16> x; }

parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    value_set<bit<8>>(4) set1;
    value_set<tuple<bit<8>, bit<16>>>(4) set2;
    state start {
        m.pass = m.pass + 1;
        p.extract(h.k);
        transition select(h.k.op) { 0x80: spin; 0x81: sets; 0x82: options; 0x83: twice; 13: more; default: accept; }
    }
    state spin { transition select(h.k.n) { 0: accept; default: spin; } }
    state sets { transition select(h.k.n) { set1: more; default: sets2; } }
    state sets2 { transition select(h.k.n, h.k.x) { set2: more; default: accept; } }
    state options { p.extract(h.v, ((bit<32>)h.k.n - 5) << 5); transition accept; }
    state twice { p.extract(h.v, (bit<32>)h.k.n << 3); transition again; }
    state again { p.extract(h.v, (bit<32>)h.k.x << 3); transition accept; }
    state more { p.extract(h.more.next); transition accept; }
}

control V(inout headers_t h, inout meta_t m) {
    apply { verify_checksum(true, { h.k.n }, h.more[0].x, HashAlgorithm.csum16); }
}

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    register<bit<8>>(4) reg;
    action endless(bit<8> n) {
        for (bit<8> i = 1; i != n; i = i + 0) { m.r = m.r + 1; }
    }
    action leave() {
        if (h.k.n == 1) { exit; }
        m.r = 5;
    }
    apply {
        if (!h.k.isValid()) { mark_to_drop(s); exit; }
        s.egress_spec = 1;
        if (h.k.op == 12) { h.more[0].setValid(); }
        if (h.k.op == 0) { resubmit_preserving_field_list(1); }
        if (h.k.op == 4) { s.mcast_grp = h.k.x; }
        if (h.k.op == 5) { random(m.r, (bit<32>)h.k.n, (bit<32>)h.k.x); }
        if (h.k.op == 6) { log_msg("op {} x {}", { h.k.op, h.k.x }); }
        if (h.k.op == 7) { assert(h.k.n != 0); }
        if (h.k.op == 9) { endless(h.k.n); }
        if (h.k.op == 11) { digest<seen_t>(1, { s.ingress_port, h.k.x }); }
        if (h.k.op == 12) { clone(CloneType.I2E, (bit<32>)h.k.x); }
        if (h.k.op == 13) { m.r = (bit<32>)h.more[h.k.n].x; h.more[h.k.n].x = 0xabcd; }
        if (h.k.op == 14) { s.priority = h.k.n[2:0]; truncate((bit<32>)h.k.x); }
        if (h.k.op == 16 && s.instance_type == 0) {
            truncate(2);
            resubmit_preserving_field_list(1);
        }
        if (h.k.op == 19) { s.mcast_grp = 1; mark_to_drop(s); }
        if (h.k.op == 20) {
            leave();
            m.r = m.r + 1;
        }
        if (h.k.op == 15) { bit<8> v; reg.read(v, (bit<32>)h.k.x); reg.write((bit<32>)h.k.x, h.k.n); m.r = (bit<32>)v; }
    }
}

control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action add() { m.r = m.r + 16; }
    table ops {
        key = { h.k.op: exact; }
        actions = { add; NoAction; }
        default_action = NoAction();
        const entries = { 17: add(); 20: add(); }
    }
    apply {
        if (h.k.op == 1) { recirculate_preserving_field_list(1); }
        if (h.k.op == 2) { clone_preserving_field_list(CloneType.E2E, 1, 1); }
        if (h.k.op == 3) {
            clone_preserving_field_list(CloneType.E2E, 1, 1);
            recirculate_preserving_field_list(1);
        }
        if (h.k.op == 17 && s.instance_type == 0) {
            clone(CloneType.E2E, 1);
            exit;
        }
        if (h.k.op == 18) { truncate((bit<32>)h.k.n); }
        if (h.k.op == 4 && h.k.n != 0) { recirculate_preserving_field_list(1); }
        ops.apply();
        h.r.setValid();
        h.r.r = m.r;
        if (h.k.op == 14) {
            h.r.in_time = s.ingress_global_timestamp;
            h.r.out_time = s.egress_global_timestamp;
            h.r.enq_time = s.enq_timestamp;
            h.r.delta = s.deq_timedelta;
            h.r.enq_depth = s.enq_qdepth;
            h.r.deq_depth = s.deq_qdepth;
        }
        h.r.q = m.pass;
        h.r.length = s.packet_length;
        if (s.checksum_error == 1) { h.r.err = 8; }
        if (s.parser_error == error.PacketTooShort) { h.r.err = 1; }
        if (s.parser_error == error.HeaderTooShort) { h.r.err = 2; }
        if (s.parser_error == error.ParserInvalidArgument) { h.r.err = 3; }
    }
}

control C(inout headers_t h, inout meta_t m) {
    apply { update_checksum_with_payload(h.k.op == 18, { h.k.n }, h.k.x, HashAlgorithm.csum16); }
}
control D(packet_out p, in headers_t h) { apply { p.emit(h.k); p.emit(h.r); p.emit(h.more); p.emit(h.v); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
