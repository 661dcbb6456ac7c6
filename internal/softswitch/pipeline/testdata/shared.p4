// Two tables that share a selector, and two that share a profile. The compiler
// gives each table its own copies of the actions, which lead on to other places.
// They may be in another order, and they differ where a parameter has a direction.

#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> a; bit<8> b; bit<8> c; bit<8> d; }
header out_t { bit<8> first; bit<8> second; bit<8> third; bit<8> fourth; bit<8> path; }

struct headers_t { out_t o; key_t k; }
struct meta_t { }

parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.k); transition accept; }
}

control V(inout headers_t h, inout meta_t m) { apply { } }

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    bit<8> got = 0;

    action pick(bit<8> v) { got = v; }
    action twice(bit<8> v) { got = v << 1; }
    action sum(in bit<8> x, bit<8> v) { got = x + v; }

    action_selector(HashAlgorithm.identity, 32w8, 32w8) sel;
    table first {
        key = { h.k.a: exact; h.k.d: selector; }
        actions = { pick; twice; NoAction; }
        implementation = sel;
    }
    table second {
        key = { h.k.b: exact; h.k.d: selector; }
        actions = { twice; pick; NoAction; }
        implementation = sel;
    }
    action_profile(8) prof;
    table third {
        key = { h.k.a: exact; }
        actions = { pick; sum(h.k.a); }
        implementation = prof;
    }
    table fourth {
        key = { h.k.b: exact; }
        actions = { pick; sum(h.k.b); }
        implementation = prof;
    }
    apply {
        h.o.setValid();
        s.egress_spec = 1;
        switch (first.apply().action_run) {
            pick: { h.o.path = h.o.path | 1; }
            twice: { h.o.path = h.o.path | 2; }
        }
        h.o.first = got;
        got = 0;
        switch (second.apply().action_run) {
            twice: { h.o.path = h.o.path | 4; }
            pick: { h.o.path = h.o.path | 8; }
            default: { h.o.path = h.o.path | 16; }
        }
        h.o.second = got;
        got = 0;
        third.apply();
        h.o.third = got;
        got = 0;
        if (fourth.apply().hit) { h.o.path = h.o.path | 32; }
        h.o.fourth = got;
    }
}

control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control C(inout headers_t h, inout meta_t m) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
