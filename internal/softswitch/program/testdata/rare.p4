// What few programs do: numbers of more than 64 bits, a stack's elements by a computed
// index, and CRCs with polynomials that could be others.

#include <core.p4>
#include <v1model.p4>

header op_t { bit<8> op; bit<8> n; }
header wide_t { bit<128> a; bit<128> b; int<72> c; bit<64> d; int<64> e; }
header tag_t { bit<8> more; bit<8> v; }

struct headers_t { op_t op; wide_t w; tag_t[3] tags; }
struct meta_t { bit<32> crc; }

parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.op); transition select(h.op.op[7:4]) { 1: tags; default: wide; } }
    state wide { p.extract(h.w); transition accept; }
    state tags { p.extract(h.tags.next); transition select(h.tags.last.more) { 0: accept; default: tags; } }
}

control V(inout headers_t h, inout meta_t m) { apply { } }

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply {
        s.egress_spec = 1;
        bit<8> i = h.op.n;
        if (h.op.op == 0) { h.w.a = h.w.a + h.w.b; h.w.c = h.w.c - 1; h.w.d = h.w.d |+| 2; h.w.e = h.w.e |-| 2; }
        if (h.op.op == 1) { h.w.a = h.w.a * h.w.b; h.w.c = -h.w.c; h.w.d = h.w.d |-| 2; h.w.e = h.w.e |+| 2; }
        if (h.op.op == 2) { h.w.a = h.w.a << i; h.w.b = h.w.b >> i; h.w.c = h.w.c >> i; }
        if (h.op.op == 3) { h.w.a = h.w.a |+| h.w.b; h.w.c = h.w.c |+| h.w.c; h.w.b = h.w.b |-| 1; }
        if (h.op.op == 4) {
            if (h.w.a < h.w.b) { h.op.n = 1; }
            if (h.w.c < 0) { h.op.n = h.op.n + 2; }
            if (h.w.a - h.w.b >= 128w1 << 127 || !(h.w.c != -1)) { h.op.n = h.op.n + 4; }
        }
        if (h.op.op == 5) { h.w.a = h.w.a > h.w.b ? h.w.a - h.w.b : ~(h.w.b - h.w.a); }
        if (h.op.op == 6) {
            hash(m.crc, HashAlgorithm.crc32_custom, 32w0, { h.w.d }, 64w1 << 32);
            h.w.a = (bit<128>)m.crc;
            hash(m.crc, HashAlgorithm.crc16_custom, 32w0, { h.w.d }, 64w1 << 32);
            h.w.b = (bit<128>)m.crc;
        }
        if (h.op.op == 0x10) { h.tags[i].setInvalid(); }
        if (h.op.op == 0x11) { h.tags[i].setValid(); }
        if (h.op.op == 0x12) { h.tags[i] = h.tags[1]; }
        if (h.op.op == 0x13) { h.tags[i] = h.tags[i ^ 1]; }
    }
}

control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control C(inout headers_t h, inout meta_t m) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
