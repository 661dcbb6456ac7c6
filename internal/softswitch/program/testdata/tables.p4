// Every kind of table, key, entry and control flow.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv6_t { bit<4> version; bit<12> class; bit<128> src; bit<128> dst; }
struct headers_t { ethernet_t eth; ipv6_t ip; ipv6_t[2] stack; }
struct meta_t { bit<32> n; bit<16> port; bool seen; int<8> level; error reason; }

parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.eth); transition select(h.eth.type) { 0x86dd: ip; default: accept; } }
    state ip { p.extract(h.ip); transition accept; }
}
control Verify(inout headers_t h, inout meta_t m) { apply { } }
control In(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action drop() { mark_to_drop(s); }
    action forward(bit<9> port, bit<48> mac) { s.egress_spec = port; h.eth.dst = mac; }
    action set(bit<128> address, int<8> level, bit<1> seen) { h.ip.dst = address; m.level = level; m.seen = (bool)seen; }
    action via(bit<9> port) { s.egress_spec = port; }

    table exacts {
        key = { h.eth.dst: exact; h.ip.isValid(): exact; h.stack[1].class: exact @name("class"); }
        actions = { forward; drop; NoAction; }
        const default_action = drop();
        size = 100000;
    }
    table routes {
        key = { m.port: exact; h.ip.dst: lpm; }
        actions = { forward; drop; }
        default_action = forward(3, 0x010203040506);
        support_timeout = true;
    }
    table acl {
        key = { h.eth.src & 0xffffff000000: exact; h.eth.type: ternary; h.ip.class: optional; m.n: lpm; m.seen: exact; }
        actions = { set; @tableonly forward; @defaultonly drop; }
        default_action = drop;
        const entries = {
            (0xabcdef000000, 0x0800 &&& 0xff00, 5, 0x0a000000 &&& 0xff000000, true): set(1, 2, 1);
            (0xabcdef000000, _, _, _, false): forward(7, 8);
        }
    }
    table ports {
        key = { m.port: range; h.eth.type: ternary; }
        actions = { drop; NoAction; }
        entries = {
            (0 .. 1023, _): drop();
            (1024, 0x0800): NoAction();
        }
    }
    table keyless { actions = { drop; via; } default_action = via(9); }
    action_profile(16) members;
    table indirect { key = { h.eth.dst: ternary; } actions = { via; drop; } implementation = members; }
    action_selector(HashAlgorithm.crc32, 1024, 16) spread;
    table balanced { key = { h.ip.dst: lpm; h.eth.src: selector; h.ip.src: selector; } actions = { via; NoAction; } implementation = spread; }
    table also { key = { m.n: exact; h.eth.src: selector; h.ip.src: selector; } actions = { via; NoAction; } implementation = spread; }
    apply {
        if (h.ip.isValid() && !h.stack[0].isValid() || m.level < -3) {
            if (exacts.apply().hit) { m.n = 1; } else { m.n = 2; }
            if (routes.apply().miss) { ports.apply(); }
            switch (acl.apply().action_run) {
                set: { keyless.apply(); }
                forward: { indirect.apply(); }
                default: { exit; }
            }
        } else if (s.parser_error == error.PacketTooShort) {
            m.reason = s.parser_error;
            balanced.apply();
        }
        also.apply();
    }
}
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action rewrite(bit<128> to) { h.ip.dst = to; }
    table replicas { key = { s.egress_rid: exact; } actions = { rewrite; NoAction; } }
    apply { replicas.apply(); }
}
control Compute(inout headers_t h, inout meta_t m) { apply { } }
control Deparse(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
