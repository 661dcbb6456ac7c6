// Multicast, clones, resubmission, recirculation, truncation, drops and exit, with
// the metadata that each copy has; tables with const entries.

#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> op; bit<8> a; bit<8> b; bit<8> c; bit<32> d; bit<48> e; bit<4> f; bit<4> g; }
header trace_t {
    bit<8> mark; bit<8> instance; bit<16> in_port; bit<16> out_port; bit<16> rid; bit<32> length;
    bit<8> m0; bit<8> m1; bit<8> m2; bit<8> m3; bit<8> m4; bit<16> spec; bit<16> tables;
}
header extra_t { bit<32> x; }

struct headers_t { trace_t t; trace_t t2; key_t k; extra_t x; extra_t x2; }
struct meta_t {
    @field_list(1, 2) bit<8> m0;
    @field_list(2) bit<8> m1;
    @field_list(3) bit<8> m2;
    bit<8> m3;
    bit<8> parsed;
    extra_t keep;
}

parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start {
        m.parsed = m.m0 + 1;
        transition select(p.lookahead<bit<8>>()) { 0xee: traced; default: key; }
    }
    state traced { p.extract(h.t2); transition key; }
    state key {
        p.extract(h.k);
        transition select(h.k.op) { 0x80 &&& 0x80: extra; default: accept; }
    }
    state extra { p.extract(h.x); transition accept; }
}

control V(inout headers_t h, inout meta_t m) { apply { } }

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action to(bit<9> port) { s.egress_spec = port; m.m3 = m.m3 + 1; }
    action drop() { mark_to_drop(s); }
    action group(bit<16> g) { s.mcast_grp = g; }
    action set(bit<8> v) { m.m2 = v; }
    action branch(bit<8> v, bit<9> port) {
        m.m1 = v;
        s.egress_spec = port;
        if (v == 9) { exit; } else if (v == 8) { m.m2 = 1; }
        m.m2 = m.m2 + 3;
    }
    action nop() { }
    table exacts {
        key = { h.k.a: exact; }
        actions = { to; drop; group; branch; nop; }
        default_action = nop();
        const entries = {
            1: to(2); 2: to(3); 3: drop(); 4: group(1); 5: group(2);
            6: branch(9, 4); 7: branch(8, 5); 8: branch(1, 6);
        }
    }
    table prefixes {
        key = { h.k.d: lpm; }
        actions = { set; to; nop; }
        default_action = set(200);
        const entries = {
            0x01000000 &&& 0xff000000: set(1);
            0x01020000 &&& 0xffff0000: set(2);
            0x01020300 &&& 0xfffffff8: to(7);
            0: set(9);
            0x02000000 &&& 0xfe000000: set(3);
        }
    }
    table ternaries {
        key = { h.k.b: ternary; h.x.isValid(): ternary; h.k.f: range; }
        actions = { set; nop; to; }
        default_action = nop();
        const entries = {
            (1 &&& 0x3, true, 0..7): set(10);
            (_, false, 3..5): set(11);
            (4, _, _): set(12);
            (0x7 &&& 0x5, true, 1): to(1);
        }
    }
    table invalids { // fields of invalid headers match as 0
        key = { h.x.x: exact; h.k.op: ternary; h.k.f[1:0]: exact @name("f"); }
        actions = { set; nop; }
        default_action = nop();
        const entries = { (0, 0 &&& 0x80, 0): set(77); (1, _, 0): set(78); }
    }
    table masked {
        key = { h.k.e & 0x00ff00ff00ff: exact @name("e"); }
        actions = { set; nop; }
        default_action = nop();
        const entries = { 1: set(5); 0: set(6); }
    }
    apply {
        if (!h.k.isValid()) {
            s.egress_spec = 1;
            exit;
        }
        h.t.setValid();
        h.t.mark = 0xee;
        h.t.instance = s.instance_type[7:0];
        h.t.in_port = (bit<16>)s.ingress_port;
        h.t.length = s.packet_length;
        h.t.m0 = m.m0;
        h.t.m1 = m.m1;
        h.t.spec = (bit<16>)s.egress_spec;
        h.t.m4 = m.parsed;
        s.egress_spec = (bit<9>)h.k.g;
        if (exacts.apply().hit) { h.t.tables = 1; }
        switch (prefixes.apply().action_run) {
            set: { h.t.tables = h.t.tables + 2; }
            to: { h.t.tables = h.t.tables + 4; }
        }
        ternaries.apply();
        invalids.apply();
        masked.apply();
        m.m0 = h.k.a;
        m.m1 = h.k.b;
        m.m3 = h.k.c;
        if (h.x.isValid()) { m.keep = h.x; m.keep.x = m.keep.x + 1; }
        if (h.k.c[0:0] == 1) { clone_preserving_field_list(CloneType.I2E, (bit<32>)h.k.c[2:1] + 1, 2); }
        if (h.k.c[3:3] == 1 && s.instance_type != 6 && m.parsed == 1) { resubmit_preserving_field_list(1); }
        if (h.k.c[4:4] == 1) { truncate(20); }
        if (h.k.op[2:0] == 5) { h.x.setInvalid(); }
        if (h.k.op[2:0] == 6) { h.x2.setValid(); h.x2.x = 0x12345678; }
        if (h.k.op[2:0] == 7) { h.x2 = h.x; }
    }
}

control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action set(bit<8> v) { m.m3 = v; }
    table replicas {
        key = { s.egress_rid: exact; s.egress_port: exact; }
        actions = { set; NoAction; }
        default_action = NoAction();
        const entries = { (5, 3): set(0x31); (6, 4): set(0x32); (0, 2): set(0x33); }
    }
    table gone { // what has become invalid at ingress matches as 0
        key = { h.x.x: exact; h.k.op[2:0]: exact @name("op"); }
        actions = { set; NoAction; }
        default_action = NoAction();
        const entries = { (0, 5): set(0x44); (0, 4): set(0x45); }
    }
    apply {
        if (!h.k.isValid()) { exit; }
        replicas.apply();
        gone.apply();
        h.t.instance = s.instance_type[7:0];
        h.t.out_port = (bit<16>)s.egress_port;
        h.t.rid = s.egress_rid;
        h.t.m0 = m.m0;
        h.t.m1 = m.m1;
        h.t.m2 = m.m2;
        h.t.m3 = m.m3;
        h.t.spec = (bit<16>)s.egress_spec;
        h.t.length = s.packet_length;
        h.t.tables = h.t.tables ^ (s.mcast_grp << 8);
        if (s.instance_type == 1) { h.t.in_port = (bit<16>)s.ingress_port; }
        if (m.keep.isValid()) { h.t.m4 = 0x99; }
        if (h.k.c[5:5] == 1 && s.instance_type != 2 && s.instance_type != 4) {
            clone_preserving_field_list(CloneType.E2E, 2, 3);
        }
        if (h.k.c[6:6] == 1 && s.instance_type == 0 && h.k.e[0:0] == 0 && !h.t2.isValid()) {
            recirculate_preserving_field_list(2);
            h.k.e[0:0] = 1;
        }
        if (h.k.c[7:7] == 1 && h.k.op[4:4] == 1) { mark_to_drop(s); }
        if (h.k.op[6:5] == 3) { truncate(30); h.t2.setInvalid(); }
        if (h.k.op[6:5] == 2) { h.t.setInvalid(); }
    }
}

control C(inout headers_t h, inout meta_t m) { apply { } }

control D(packet_out p, in headers_t h) {
    apply { p.emit(h.t); p.emit(h.t2); p.emit(h.k); p.emit(h.x); p.emit(h.x2); }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;
