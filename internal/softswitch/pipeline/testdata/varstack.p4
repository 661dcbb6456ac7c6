// A stack of headers with a varbit field.

#include <core.p4>
#include <v1model.p4>

header first_t { bit<8> op; bit<8> n; }
header option_t { bit<8> kind; bit<8> len; varbit<64> d; bit<8> tail; }
header report_t { bit<8> err; bit<8> count; bit<8> kind; bit<32> hash; bit<32> length; bit<8> last; }

struct headers_t { report_t r; first_t f; option_t[3] o; option_t[3] saved; option_t one; }
struct meta_t { bit<8> count; bit<8> last; }

parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start {
        p.extract(h.f);
        transition select(p.lookahead<bit<8>>()) { 0: accept; default: option; }
    }
    state option {
        p.extract(h.o.next, (bit<32>)p.lookahead<bit<16>>()[7:0] << 3);
        m.count = m.count + 1;
        m.last = h.o.last.tail;
        transition select(h.o.last.tail) { 0: accept; 0xff: one; default: option; }
    }
    state one {
        p.extract(h.one, (bit<32>)p.lookahead<bit<16>>()[7:0]);
        transition accept;
    }
}

control V(inout headers_t h, inout meta_t m) { apply { } }

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply {
        h.r.setValid();
        if (s.parser_error == error.PacketTooShort) { h.r.err = 2; }
        else if (s.parser_error == error.StackOutOfBounds) { h.r.err = 3; }
        else if (s.parser_error == error.HeaderTooShort) { h.r.err = 4; }
        else if (s.parser_error == error.ParserInvalidArgument) { h.r.err = 5; }
        else if (s.parser_error != error.NoError) { h.r.err = 9; }
        h.r.count = m.count;
        h.r.last = m.last;
        if (h.o[1].isValid()) { h.r.kind = h.o[1].kind; }
        if (h.o[0].isValid()) {
            hash(h.r.hash, HashAlgorithm.crc32, 32w0, { h.o[0].d, h.o[0].tail, m.count }, 64w0x100000000);
        }
        if (h.f.op == 1) { h.o.push_front(1); }
        if (h.f.op == 2) { h.o.pop_front(1); }
        if (h.f.op == 3) { h.o.push_front(2); h.o[0] = h.o[2]; }
        if (h.f.op == 4) { h.saved = h.o; h.o.pop_front(2); }
        if (h.f.op == 5) { h.o[1].setInvalid(); }
        if (h.f.op == 6) { h.o[0] = h.o[1]; h.o[0].kind = 0x77; }
        if (h.f.op == 7) { h.one = h.o[0]; }
        if (h.f.op == 8) { h.o[2].setInvalid(); h.o[2].setValid(); h.o[2].kind = 3; }
        s.egress_spec = 2;
    }
}

control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply { h.r.length = s.packet_length; }
}
control C(inout headers_t h, inout meta_t m) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
