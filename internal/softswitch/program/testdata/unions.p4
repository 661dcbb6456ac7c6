// Header unions and stacks of them, comparisons of varbit fields, mark_to_drop on
// a copy of the standard metadata, and a key of type error.
#include <core.p4>
#include <v1model.p4>

header kind_t { bit<8> what; bit<8> next; }
header a_t { bit<8> tag; bit<16> x; }
header c_t { bit<8> tag; bit<32> y; }
header v_t { bit<8> len; varbit<64> d; }
header_union u_t { a_t a; c_t c; }
struct headers_t { kind_t k; u_t u; u_t v; u_t[3] s; v_t b1; v_t b2; }
struct meta_t { bit<8> n; }

parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start {
        p.extract(h.k);
        transition select(h.k.next) {
            1: one;
            2: stack;
            3: pair;
            default: accept;
        }
    }
    state one {
        transition select(p.lookahead<bit<8>>()) {
            0x0a: one_a;
            0x0c: one_c;
            default: accept;
        }
    }
    state one_a { p.extract(h.u.a); transition one; }
    state one_c { p.extract(h.u.c); transition accept; }
    state stack {
        transition select(p.lookahead<bit<8>>()) {
            0x0a: stack_a;
            0x0c: stack_c;
            default: accept;
        }
    }
    state stack_a { p.extract(h.s.next.a); transition stack; }
    state stack_c { p.extract(h.s.next.c); transition stack; }
    state pair {
        p.extract(h.b1, (bit<32>)(p.lookahead<bit<8>>()) << 3);
        p.extract(h.b2, (bit<32>)(p.lookahead<bit<8>>()) << 3);
        transition accept;
    }
}
control Verify(inout headers_t h, inout meta_t m) { apply { } }
control In(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action failed(bit<8> n) { m.n = n; }
    table errors {
        key = { s.parser_error : exact; }
        actions = { failed; NoAction; }
        const default_action = NoAction();
    }
    action mark(inout standard_metadata_t copy) { mark_to_drop(copy); }
    apply {
        m.n = 0;
        s.egress_spec = 1;
        errors.apply();
        if (h.k.what == 1) {
            h.u.c.setValid();
            h.u.c = { 0x0c, 0x01020304 };
        } else if (h.k.what == 2) {
            h.v = h.u;
        } else if (h.k.what == 3) {
            h.u.a.setInvalid();
            h.u.c.setInvalid();
        } else if (h.k.what == 4) {
            h.s.push_front(1);
        } else if (h.k.what == 5) {
            h.s.pop_front(1);
        } else if (h.k.what == 6) {
            standard_metadata_t t = s;
            mark(t);
            if (h.u.isValid()) {
                s = t;
            }
        } else if (h.k.what == 7) {
            h.s[1] = h.s[0];
        }
        if (h.u.isValid()) {
            m.n = m.n + 1;
        }
        if (h.b1.isValid() && h.b1 == h.b2) {
            m.n = m.n + 2;
        }
        h.k.what = m.n;
    }
}
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control Compute(inout headers_t h, inout meta_t m) { apply { } }
control Deparse(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
