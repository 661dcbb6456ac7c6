// Parser, header stacks, varbit fields, value sets, parser errors, checksums. Each
// packet leaves with a report in front.

#include <core.p4>
#include <v1model.p4>

header kind_t { bit<8> kind; bit<8> len; }
header odd_t { bit<3> a; bit<13> b; bit<6> c; bit<2> d; bit<67> e; bit<5> f; }
header label_t { bit<4> id; bit<3> u; bit<1> last; bit<8> v; }
header options_t { bit<8> t; varbit<320> d; bit<16> tail; }
header sized_t { bit<8> l; varbit<64> d; }
header report_t {
    bit<32> err; bit<32> length; bit<8> checksum; bit<8> labels;
    bit<16> ahead; bit<16> ahead2; bit<32> hash; bit<8> last;
    bit<1> v0; bit<1> v1; bit<1> v2; bit<1> v3; bit<4> length2;
    bit<16> sum; bit<8> elem; bit<8> x;
}

struct headers_t {
    report_t r; kind_t k; odd_t odd; label_t[4] lab; options_t o; options_t o2;
    sized_t s; sized_t s2; kind_t[2] ks; kind_t k3;
}
struct meta_t { bit<8> labels; bit<16> ahead; bit<32> ahead2; bit<80> big; bit<8> i; bit<8> last; }

error { Mine, Other }

parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    value_set<bit<8>>(4) set1;
    value_set<tuple<bit<8>, bit<3>>>(4) set2;

    state start {
        p.extract(h.k);
        transition select(h.k.kind, h.k.len) {
            (0, _): odd;
            (1, _): labels;
            (2, _): options;
            (3, 0..7): look;
            (4, _): sized;
            (5, 8w0 &&& 8w1): skip;
            (5, _): verifying;
            (6, _): two;
            (7, _): big;
            (8, 1): accept;
            (9, _): skip_bits;
            (0x10, _): sets;
            (0x11, _): kinds;
            (0x45, _): dead_end;
            default: accept;
        }
    }
    state odd {
        p.extract(h.odd);
        transition select(h.odd.e) { 0: accept; 67w5 &&& 67w0xf: labels; default: look; }
    }
    state labels {
        p.extract(h.lab.next);
        m.labels = m.labels + 1;
        m.last = (bit<8>)h.lab.lastIndex;
        verify(h.lab.last.id != 15, error.Mine);
        transition select(h.lab.last.last, h.lab.last.v) { (1, _): accept; (0, 0xff): odd; default: labels; }
    }
    state options {
        p.extract(h.o, (bit<32>)h.k.len * 8);
        transition select(h.o.tail) { 0: accept; 0x0101..0x0404: options2; default: look; }
    }
    state options2 { p.extract(h.o2, (bit<32>)(h.k.len - 3) << 3); transition accept; }
    state sized {
        p.extract(h.s, (bit<32>)p.lookahead<bit<8>>());
        transition select(h.s.l) { 8: sized2; 0x10: sized2; default: accept; }
    }
    state sized2 { p.extract(h.s2, (bit<32>)p.lookahead<bit<8>>()); transition accept; }
    state look {
        m.ahead = p.lookahead<bit<16>>();
        m.ahead2 = p.lookahead<bit<21>>() ++ 11w0;
        transition select(m.ahead) { 0 &&& 0xff: odd; default: accept; }
    }
    state skip {
        p.advance((bit<32>)h.k.len << 2);
        transition select(p.lookahead<bit<8>>()) { 0..4: labels; default: accept; }
    }
    state skip_bits { p.advance((bit<32>)h.k.len); transition accept; }
    state verifying {
        verify(h.k.len != 1, error.Other);
        verify(h.k.len != 2, error.NoMatch);
        transition accept;
    }
    state two {
        p.extract(h.k3);
        transition select(h.k3.kind ++ h.k3.len) { 0: accept; 1..5: look; default: odd; }
    }
    state big {
        m.big = p.lookahead<bit<80>>();
        transition select(m.big) { 0: accept; 80w1 &&& 80w3: odd; default: labels; }
    }
    state sets { transition select(h.k.len) { set1: labels; default: sets2; } }
    state sets2 { transition select(h.k.len, h.k.len[2:0]) { set2: odd; default: accept; } }
    state kinds {
        p.extract(h.ks.next);
        transition select(h.ks.last.kind) { 1: kinds; 2: kinds; default: accept; }
    }
    state dead_end { transition select(h.k.len) { 1: accept; 2: labels; 3: odd; } }
}

control V(inout headers_t h, inout meta_t m) {
    apply {
        verify_checksum(h.odd.isValid() && h.lab[0].isValid(),
                        { h.odd.a, h.odd.b, h.odd.c, h.odd.d, h.odd.e }, h.odd.b, HashAlgorithm.csum16);
        verify_checksum(h.o.isValid(), { h.k.kind, h.o.t }, h.o.tail, HashAlgorithm.csum16);
    }
}

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply {
        h.r.setValid();
        if (s.parser_error == error.PacketTooShort) { h.r.err = 2; }
        else if (s.parser_error == error.StackOutOfBounds) { h.r.err = 3; }
        else if (s.parser_error == error.HeaderTooShort) { h.r.err = 4; }
        else if (s.parser_error == error.ParserInvalidArgument) { h.r.err = 5; }
        else if (s.parser_error == error.Mine) { h.r.err = 6; }
        else if (s.parser_error == error.Other) { h.r.err = 7; }
        else if (s.parser_error == error.NoMatch) { h.r.err = 8; }
        else if (s.parser_error != error.NoError) { h.r.err = 9; }
        h.r.length = s.packet_length;
        h.r.checksum = (bit<8>)s.checksum_error;
        h.r.labels = m.labels;
        h.r.ahead = m.ahead;
        h.r.ahead2 = m.ahead2[31:16];
        h.r.last = m.last;
        h.r.v0 = (bit<1>)h.lab[1].isValid();
        h.r.v1 = (bit<1>)h.o.isValid();
        h.r.v2 = (bit<1>)h.s2.isValid();
        if (h.o.isValid() && h.k.len != 0) {
            hash(h.r.hash, HashAlgorithm.crc32, 32w0, { h.k.kind, h.o.d, h.o.tail, m.labels }, 64w0x100000000);
        }
        if (h.s.isValid() && h.s.l != 0) {
            hash(h.r.hash, HashAlgorithm.crc16, 32w0, { h.k.kind, h.s.d, 3w5, m.labels }, 64w0x100000000);
        }
        if (h.odd.isValid()) {
            hash(h.r.hash, HashAlgorithm.crc32, 32w0, { h.k.kind, h.odd.b, h.odd.e, m.labels }, 64w0x100000000);
        }
        if (h.ks[0].isValid()) {
            hash(h.r.hash, HashAlgorithm.crc32, 32w0, { h.ks[0], h.k.kind, h.ks[0].len[2:0], m.labels }, 64w0x100000000);
        }
        if (h.k.isValid()) {
            if (h.lab[3].isValid() && h.k.len != 5) {
                m.i = h.k.len & 3;
                h.r.elem = h.lab[m.i].v;
                h.lab[h.k.len & 3].v = 0x5a;
            }
            if (h.k.len == 1) { h.lab.push_front(1); }
            if (h.k.len == 2) { h.lab.pop_front(1); }
            if (h.k.len == 3) {
                h.lab.push_front(3);
                h.lab[0].setValid();
                h.lab[0].v = 9;
                h.lab[1] = h.lab[3];
            }
            if (h.k.len == 4) { h.lab.pop_front(3); }
            if (h.k.kind == 2 && h.k.len == 5) { h.o.setInvalid(); h.o.setValid(); h.o.t = 3; }
            if (h.k.kind == 2 && h.k.len == 8) { h.o2 = h.o; h.o.setInvalid(); }
            if (h.s.isValid() && h.s.l != 0 && h.k.len == 3) { h.s2 = h.s; }
        }
        s.egress_spec = 2;
    }
}

control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply { h.r.length2 = (bit<4>)s.packet_length; }
}

control C(inout headers_t h, inout meta_t m) {
    apply {
        update_checksum(true, { h.k.kind, h.k.len, h.odd.b, h.odd.c, h.o.d, h.s.d }, h.r.sum, HashAlgorithm.csum16);
        update_checksum_with_payload(h.ks[0].isValid(), { h.k.kind, h.k.len, h.lab[0].u }, h.r.sum, HashAlgorithm.csum16);
    }
}

control D(packet_out p, in headers_t h) { apply { p.emit(h); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
