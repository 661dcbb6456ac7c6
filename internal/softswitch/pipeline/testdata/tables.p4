// Tables that the control plane fills: selectors, profiles, default actions,
// direct counters and meters, actions with jumps and loops.

#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> a; bit<8> b; bit<16> c; bit<32> d; bit<128> e; }
header out_t { bit<8> hit; bit<8> run; bit<16> sel; bit<16> prof; bit<8> loop; bit<8> colour; bit<128> e; }

struct headers_t { out_t o; key_t k; }
struct meta_t { bit<2> colour; bit<16> hash; }

parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.k); transition accept; }
}

control V(inout headers_t h, inout meta_t m) { apply { } }

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<2>>(MeterType.packets) rate;
    counter(16, CounterType.packets_and_bytes) seen;
    meter(16, MeterType.bytes) amount;

    action pick(bit<16> v, bit<9> port) { h.o.sel = v; s.egress_spec = port; }
    action other(bit<16> v) { h.o.sel = v + 1; }
    action note(bit<16> v) { h.o.prof = v; }
    action wide(bit<128> v) { h.o.e = v & h.k.e; }
    action steps(bit<8> n) {
        h.o.loop = 0;
        if (n > 4) { h.o.loop = 40; }
        for (bit<8> i = 0; i < n; i = i + 1) { h.o.loop = h.o.loop + i; }
        if (h.o.loop == 3) { h.o.loop = 33; } else { h.o.run = h.o.run + 8; }
    }
    action metered(bit<8> v) { h.o.colour = v; rate.read(m.colour); }
    action drop() { mark_to_drop(s); }

    action_selector(HashAlgorithm.crc16, 32w64, 32w8) sel;
    table selected {
        key = { h.k.a: exact; h.k.b: selector; h.k.d: selector; m.hash: selector; }
        actions = { pick; other; NoAction; }
        implementation = sel;
    }
    action_profile(32) prof;
    table profiled {
        key = { h.k.b: ternary; }
        actions = { note; drop; }
        implementation = prof;
    }
    table direct {
        key = { h.k.c: exact; h.k.e: lpm; }
        actions = { wide; steps; drop; NoAction; }
        default_action = steps(3);
        counters = hits;
        support_timeout = true;
    }
    table limited {
        key = { h.k.a: range; }
        actions = { metered; NoAction; }
        default_action = NoAction();
        meters = rate;
    }
    table settings {
        actions = { note; NoAction; }
        default_action = NoAction();
    }
    apply {
        h.o.setValid();
        s.egress_spec = 1;
        m.hash = h.k.c;
        if (selected.apply().hit) { h.o.hit = 1; }
        switch (profiled.apply().action_run) {
            note: { h.o.run = 1; }
            drop: { h.o.run = 2; }
            default: { h.o.run = 3; }
        }
        if (direct.apply().miss) { h.o.hit = h.o.hit + 2; }
        limited.apply();
        settings.apply();
        h.o.colour = h.o.colour + (bit<8>)m.colour;
        seen.count((bit<32>)h.k.b);
        amount.execute_meter<bit<2>>((bit<32>)h.k.b, m.colour);
    }
}

control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control C(inout headers_t h, inout meta_t m) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
