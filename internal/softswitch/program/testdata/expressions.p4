// Every operation of expressions, narrow and wide, signed and unsigned.
#include <core.p4>
#include <v1model.p4>

header item_t { bit<32> a; bit<32> b; bit<64> c; int<32> d; int<64> e; bit<128> w; bit<8> i; }
header out_t { bit<32> n0; bit<32> n1; bit<32> n2; bit<32> n3; bit<32> n4; bit<32> n5; bit<32> n6; bit<32> n7; bit<32> n8; bit<32> n9; bit<32> n10; bit<32> n11; bit<32> n12; bit<32> n13; bit<32> n14; bit<32> n15; bit<32> n16; bit<64> c0; bit<64> c1; bit<64> c2; bit<64> c3; int<32> z0; int<32> z1; int<32> z2; int<32> z3; int<32> z4; bit<128> w0; bit<128> w1; bit<128> w2; bit<128> w3; bit<128> w4; bit<256> v0; int<128> zw0; bit<1> b0; bit<1> b1; bit<1> b2; bit<5> pad; }
header small_t { bit<4> x; bit<12> y; }
struct headers_t { item_t h; out_t o; small_t[4] s; }
struct meta_t { bit<32> n; bit<64> c; bit<128> w; bit<256> v; int<32> z; int<128> zw; bool b; }

parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control Verify(inout headers_t h, inout meta_t m) { apply { } }
control In(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action arithmetic(bit<32> p, bit<128> q) {
        h.o.n0 = h.h.a + p;
        h.o.n1 = h.h.a - h.h.b;
        h.o.n2 = h.h.a * 3;
        h.o.n3 = -h.h.a;
        h.o.n4 = h.h.a |+| h.h.b;
        h.o.n5 = h.h.a |-| h.h.b;
        h.o.c0 = h.h.c + 1;
        h.o.c1 = h.h.c * h.h.c - m.c;
        h.o.z0 = h.h.d + 5;
        h.o.z1 = h.h.d |-| m.z;
        h.o.z2 = -m.z;
        h.o.w0 = q;
    }
    action bits() {
        h.o.n6 = h.h.a & h.h.b | ~m.n ^ 7;
        h.o.n7 = h.h.a << 3 >> 5;
        h.o.n8 = h.h.a << h.h.i[4:0];
        h.o.n9 = h.h.a >> h.h.i;
        h.o.z3 = h.h.d >> 4;
        h.o.n10 = h.h.a[15:0] ++ h.h.b[31:16];
        m.n[7:4] = h.h.i[3:0];
        h.o.c2 = h.h.a ++ h.h.b;
    }
    action wide() {
        h.o.w1 = h.h.w & ~m.w | 128w0xff << 100;
        h.o.w2 = h.h.w << 8 >> 16;
        m.w[63:0] = h.h.c;
        h.o.w3 = (bit<128>)h.h.a;
        h.o.v0 = h.h.w ++ m.w;
        h.o.n11 = m.w[95:64];
        h.o.zw0 = m.zw;
        h.o.n12 = (bit<32>)(m.w >> 96);
        h.o.b0 = (bit<1>)(m.v != 5);
        h.o.b1 = (bit<1>)(m.w == h.h.w);
        h.o.w4 = m.b ? h.h.w : 0;
    }
    action casts() {
        h.o.n13 = (bit<32>)h.h.c;
        h.o.c3 = (bit<64>)h.h.a;
        h.o.z4 = (int<32>)h.h.a;
        h.o.n14 = (bit<32>)h.h.d;
        h.o.b2 = h.h.i[0:0];
        h.o.n15 = (bit<32>)(bit<1>)m.b;
    }
    action stacks() {
        h.s[h.h.i].x = h.s[h.h.a + 1].x + 1;
        h.o.n16 = (bit<32>)h.s[2].y;
    }
    table t { key = { h.h.i: exact; } actions = { arithmetic; bits; wide; casts; stacks; } }
    apply {
        t.apply();
        m.b = h.h.a < h.h.b && h.h.a <= 3 || h.h.c > 5 && !(h.h.d >= -7);
        m.b = m.b != h.h.isValid();
        if (h.h.c == 0xffffffffffffffff) { m.n = h.h.a != 2 ? h.h.b : 9; }
    }
}
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control Compute(inout headers_t h, inout meta_t m) { apply { } }
control Deparse(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
