// Arithmetic, slices, comparisons, hashes and registers. Each packet brings the
// operands and leaves with the results.

#include <core.p4>
#include <v1model.p4>

header operands_t {
    bit<8> op; bit<8> a; bit<16> b; bit<32> c; bit<64> d;
    int<8> i; int<16> j; int<32> k;
    bit<128> w; bit<3> x; bit<5> y; bit<48> z;
}

header results_t {
    bit<8> a0; bit<8> a1; bit<8> a2; bit<8> a3; bit<8> a4; bit<8> a5; bit<8> a6;
    bit<16> b0; bit<16> b1; bit<16> b2; bit<16> b3; bit<16> b4;
    bit<32> c0; bit<32> c1; bit<32> c2; bit<32> c3; bit<32> c4; bit<32> c5; bit<32> c6; bit<32> c7; bit<32> c8;
    bit<64> d0; bit<64> d1; bit<64> d2; bit<64> d3; bit<64> d4; bit<64> d5; bit<64> d6; bit<64> d7;
    int<8> i0; int<8> i1; int<8> i2; int<8> i3; int<8> i4; int<8> i5; int<8> i6;
    int<16> j0; int<16> j1; int<16> j2; int<16> j3;
    int<32> k0; int<32> k1; int<32> k2; int<32> k3;
    bit<128> w0; bit<128> w1; bit<128> w2; bit<128> w3; bit<128> w4; bit<128> w5; bit<128> w6;
    bit<96> v0; bit<72> v1;
    bit<1> t0; bit<1> t1; bit<1> t2; bit<1> t3; bit<1> t4; bit<1> t5; bit<1> t6; bit<1> t7;
    bit<1> t8; bit<1> t9; bit<1> ta; bit<1> tb; bit<1> tc; bit<1> td; bit<1> te; bit<1> tf;
    bit<32> h0; bit<16> h1; bit<16> h2; bit<16> h3; bit<64> h4; bit<32> h5; bit<32> h6; bit<64> h7; bit<16> h8;
}

struct headers_t { operands_t i; results_t o; }
struct meta_t { bit<32> r; bool q; int<8> neg; bit<9> p9; bit<65> w65; int<7> s7; }

parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.i); transition accept; }
}

control V(inout headers_t h, inout meta_t m) { apply { } }

control Unsigned(inout headers_t h) {
    apply {
        h.o.a0 = h.i.a + h.i.op;
        h.o.a1 = h.i.a - h.i.op;
        h.o.a2 = h.i.a * h.i.op;
        h.o.a3 = h.i.a |+| h.i.op;
        h.o.a4 = h.i.a |-| h.i.op;
        h.o.a5 = ~h.i.a ^ h.i.op;
        h.o.a6 = h.i.x ++ h.i.y;
        h.o.b0 = h.i.b << h.i.y;
        h.o.b1 = h.i.b >> h.i.y;
        h.o.b2 = (bit<16>)h.i.a;
        h.o.b3 = h.i.c[19:4];
        h.o.b4 = h.i.a ++ h.i.op;
        h.o.c0 = (bit<32>)h.i.d;
        h.o.c1 = h.i.c - (bit<32>)h.i.b;
        h.o.c2 = h.i.c[7:0] ++ h.i.c[15:8] ++ h.i.c[23:16] ++ h.i.c[31:24];
        h.o.c3 = h.i.c |-| (bit<32>)h.i.b;
        h.o.c4 = h.i.c << h.i.a;
        h.o.c5 = (bit<32>)h.i.c[23:23];
        h.o.c6 = h.i.c;
        h.o.c6[15:8] = h.i.a;
        h.o.c7 = ((bit<32>)h.i.b << 20) >> 8 | 0x80000001;
        h.o.c8 = (h.i.c & 0x00ffff00) >> 8 << 12;
        h.o.d0 = h.i.d + (bit<64>)h.i.c;
        h.o.d1 = h.i.d - (bit<64>)h.i.c;
        h.o.d2 = h.i.d * 3;
        h.o.d3 = h.i.w[127:64];
        h.o.d4 = h.i.w[99:36];
        h.o.d5 = h.i.d >> h.i.a;
        h.o.d6 = -h.i.d;
        h.o.d7 = h.i.w[63:0] & h.i.d;
        h.o.w0 = h.i.w & 0xff00ff00ff00ff00ff00ff00ff00ff00;
        h.o.w1 = h.i.w << 17;
        h.o.w2 = h.i.w >> 70;
        h.o.w3 = h.i.d ++ h.i.d;
        h.o.w4 = ~h.i.w ^ (bit<128>)h.i.c;
        h.o.w5 = h.i.w;
        h.o.w5[80:60] = h.i.c[20:0];
        h.o.w6 = h.i.a > 5 ? h.i.w : 128w7;
        h.o.v0 = h.i.c ++ h.i.d;
        h.o.v1 = h.i.w[100:29];
    }
}

control Signed(inout headers_t h) {
    apply {
        h.o.i0 = h.i.i + 1;
        h.o.i1 = h.i.i - h.i.i |-| 3;
        h.o.i2 = h.i.i |+| 100;
        h.o.i3 = h.i.i |-| 100;
        h.o.i4 = h.i.i >> h.i.x;
        h.o.i5 = h.i.i << h.i.x;
        h.o.i6 = -h.i.i;
        h.o.j0 = h.i.j * 3;
        h.o.j1 = (int<16>)h.i.i;
        h.o.j2 = h.i.j |+| (int<16>)h.i.i;
        h.o.j3 = h.i.j ^ 0x55;
        h.o.k0 = h.i.k - (int<32>)h.i.j;
        h.o.k1 = ~h.i.k;
        h.o.k2 = (int<32>)(bit<32>)h.i.c;
        h.o.k3 = h.i.k >> 5;
    }
}

control Tests(inout headers_t h, inout meta_t m, in bit<9> port) {
    apply {
        m.w65 = h.i.w[64:0];
        if (m.w65 == (1w1 ++ h.i.d)) { h.o.t0 = 1; }
        if (h.i.w == 0) { h.o.t1 = 1; }
        if (h.i.i < 0) { h.o.t2 = 1; }
        if (h.i.i < (int<8>)h.i.a) { h.o.t3 = 1; }
        if (h.i.d > (bit<64>)h.i.c && h.i.b <= (bit<16>)h.i.a || h.i.x == 3) { h.o.t4 = 1; }
        if (h.i.d >= 0x8000000000000000) { h.o.t5 = 1; }
        if (!(h.i.a == h.i.op)) { h.o.t6 = 1; }
        if ((h.i.c - (bit<32>)h.i.b)[23:23] == 1) { h.o.t7 = 1; }
        m.q = h.i.y > 7;
        if (m.q) { h.o.t8 = 1; }
        if (m.q == (h.i.x > 3)) { h.o.t9 = 1; }
        if (h.i.w[127:64] == h.i.d) { h.o.ta = 1; }
        m.neg = h.i.i - 5;
        if (m.neg >= h.i.i) { h.o.tb = 1; }
        m.s7 = (int<7>)h.i.a[6:0];
        if (m.s7 < -3) { h.o.tc = 1; }
        if ((int<8>)m.s7 == h.i.i) { h.o.td = 1; }
        if (h.i.w != 1 && h.i.i != -1) { h.o.te = 1; }
        if (h.i.isValid() && h.o.isValid() && port == 1) { h.o.tf = 1; }
    }
}

control Hashes(inout headers_t h, inout meta_t m) {
    apply {
        hash(h.o.h0, HashAlgorithm.crc32, 32w0,
             { 64w0xffffffffffffffff, h.i.a, h.i.x, h.i.z, h.i.w, h.i.i, 5w7 }, 64w0x100000000);
        hash(h.o.h1, HashAlgorithm.crc16, 16w0, { h.i.a, h.i.b, h.i.y, h.i.z, h.i.x, h.i.w }, 32w0x10000);
        hash(h.o.h2, HashAlgorithm.csum16, 16w5, { h.i.a, h.i.b, h.i.c, h.i.d, h.i.i, h.i.w, h.i.z }, 32w1000);
        hash(h.o.h3, HashAlgorithm.xor16, 16w0, { h.i.a, h.i.b, h.i.c, h.i.x }, 32w0x10000);
        hash(h.o.h4, HashAlgorithm.identity, 64w0, { h.i.a, h.i.b, h.i.x }, 64w0xffffffffffffffff);
        hash(h.o.h5, HashAlgorithm.crc32, 32w10, { h.i.y, h.i.d }, 32w7);
        hash(h.o.h6, HashAlgorithm.crc32, 32w1, { h.i.z }, (bit<32>)h.i.a);
        hash(h.o.h7, HashAlgorithm.crc32, 64w0, { h.i, h.o.h0 }, 64w0x100000000);
        m.p9 = (bit<9>)h.i.b;
        h.o.h8 = (bit<16>)m.p9;
    }
}

// Registers of several widths. An index out of range reads and writes nothing.
control Registers(inout headers_t h, inout meta_t m) {
    register<bit<32>>(256) plain;
    register<int<8>>(16) signed_;
    register<bit<128>>(8) wide;
    register<bit<5>>(16) narrow;
    apply {
        plain.read(m.r, (bit<32>)h.i.a);
        plain.write((bit<32>)h.i.op, m.r + h.i.c);
        h.o.c5 = h.o.c5 + m.r;
        plain.write(h.i.c, 5);
        m.r = 77;
        plain.read(m.r, 256);
        h.o.c6 = h.o.c6 ^ m.r;
        int<8> sv;
        signed_.read(sv, (bit<32>)h.i.x);
        h.o.i0 = h.o.i0 + sv;
        signed_.write((bit<32>)h.i.y, h.i.i - 7);
        bit<128> wv;
        wide.read(wv, (bit<32>)h.i.x);
        h.o.w0 = h.o.w0 ^ wv;
        wide.write((bit<32>)h.i.y, h.i.w);
        bit<5> nv;
        narrow.read(nv, (bit<32>)h.i.x);
        narrow.write((bit<32>)h.i.y, nv + h.i.y);
        h.o.a0 = h.o.a0 ^ (bit<8>)nv;
    }
}

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    Unsigned() u; Signed() i; Tests() t; Hashes() f; Registers() r;
    apply {
        h.o.setValid();
        u.apply(h);
        i.apply(h);
        t.apply(h, m, s.ingress_port);
        f.apply(h, m);
        r.apply(h, m);
        s.egress_spec = (bit<9>)h.i.x;
    }
}

control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control C(inout headers_t h, inout meta_t m) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h.o); p.emit(h.i); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
