// Every parser operation and kind of transition.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header label_t { bit<20> label; bit<3> tc; bit<1> bottom; bit<8> ttl; }
header options_t { bit<8> length; varbit<320> data; }
header address_t { bit<128> value; }

struct headers_t { ethernet_t eth; label_t[3] labels; label_t[3] saved; options_t options; address_t address; ethernet_t inner; }
struct pair_t { bit<8> kind; bit<16> type; }
struct meta_t { bit<32> depth; bit<16> type; bit<8> next; bit<16> hash; }

parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    value_set<bit<16>>(8) routers;
    value_set<pair_t>(4) pairs;
    state start {
        p.extract(h.eth);
        m.type = h.eth.type;
        m.next = p.lookahead<bit<8>>();
        transition select(h.eth.type) {
            0x8847: label;
            0x9000 &&& 0xf0f0: skip;
            0x0800 .. 0x0806: options;
            routers: address;
            default: second;
        }
    }
    state second {
        transition select(m.next, h.eth.type) {
            pairs: options;
            (1, 2): accept;
            (3, _): reject;
            (_, 7): nothing;
        }
    }
    state label {
        p.extract(h.labels.next);
        m.depth = h.labels.lastIndex;
        verify(h.labels.last.ttl != 0, error.HeaderTooShort);
        transition select(h.labels.last.bottom, p.lookahead<bit<12>>()) {
            (0, _): label;
            (1, 0x123): address;
            (1, 0x400 &&& 0xf00): options;
            default: finish;
        }
    }
    state options {
        p.extract(h.options, ((bit<32>)p.lookahead<bit<8>>() << 3) - 8);
        transition finish;
    }
    state skip {
        p.advance(32);
        p.advance((bit<32>)m.next << 3);
        transition accept;
    }
    state address {
        p.extract(h.address);
        transition select(h.address.value) {
            0x20010db8000000000000000000000000 &&& 0xffffffff000000000000000000000000: finish;
            default: accept;
        }
    }
    state finish {
        h.saved = h.labels;
        h.inner = h.eth;
        h.inner.setInvalid();
        h.inner.setValid();
        transition accept;
    }
    state nothing { transition accept; }
}
control Verify(inout headers_t h, inout meta_t m) { apply { } }
control In(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply { s.egress_spec = (bit<9>)m.next + s.ingress_port; }
}
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control Compute(inout headers_t h, inout meta_t m) { apply { } }
control Deparse(packet_out p, in headers_t h) { apply { p.emit(h.eth); p.emit(h.labels); p.emit(h.options); p.emit(h.address); } }
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
