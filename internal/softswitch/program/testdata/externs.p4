// Every primitive and extern of the feature set.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header tag_t { bit<3> pcp; bit<1> dei; bit<12> vid; bit<16> type; }
header body_t { varbit<8192> data; }
header sum_t { bit<16> sum; bit<32> crc; }

struct headers_t { ethernet_t eth; tag_t[2] tags; tag_t[2] copies; body_t body; sum_t sum; }
struct digest_t { bit<9> port; bit<48> mac; }
struct meta_t {
    @field_list(1, 2) bit<32> a;
    @field_list(2) bit<16> b;
    bit<2> color;
    bit<128> wide;
    int<16> level;
    bool flag;
}

parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start {
        p.extract(h.eth);
        p.extract(h.body, (s.packet_length - 20) << 3);
        p.extract(h.sum);
        transition accept;
    }
}
control Verify(inout headers_t h, inout meta_t m) {
    apply {
        verify_checksum(true, { h.eth.dst, h.eth.type }, h.sum.sum, HashAlgorithm.csum16);
        verify_checksum_with_payload(h.sum.isValid(), { h.eth.dst, 16w0x1234, h.body.data }, h.sum.crc, HashAlgorithm.crc32);
    }
}
control In(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    counter(64, CounterType.packets_and_bytes) seen;
    direct_counter(CounterType.bytes) hits;
    meter(8, MeterType.packets) rate;
    direct_meter<bit<2>>(MeterType.bytes) direct_rate;
    register<bit<32>>(1024) sequence;
    register<int<16>>(4) levels;
    register<bit<128>>(4) addresses;

    action drop() { mark_to_drop(s); }
    action forward(bit<9> port) { s.egress_spec = port; hits.count(); }
    action police() { direct_rate.read(m.color); }
    action chosen(bit<32> index, bit<1> loud) {
        if (loud == 1) {
            log_msg("index {} of {}", { index, m.a });
        } else {
            log_msg("nothing");
        }
        for (bit<8> i = 0; i < 4; i = i + 1) {
            m.a = m.a + index;
        }
        seen.count(index);
    }
    table counted { key = { h.eth.dst: exact; } actions = { forward; drop; } counters = hits; }
    table metered { key = { h.eth.src: exact; } actions = { police; NoAction; } meters = direct_rate; default_action = NoAction; }
    table logged { key = { m.b: exact; } actions = { chosen; } }
    apply {
        counted.apply();
        metered.apply();
        logged.apply();
        rate.execute_meter(m.a, m.color);
        hash(m.a, HashAlgorithm.crc32, 32w0, { 64w0xffffffffffffffff, h.eth, h.body.data }, 64w0x100000000);
        hash(m.b, HashAlgorithm.crc16, 16w1, { m.a, 3w5 }, 16w7);
        hash(m.b, HashAlgorithm.xor16, 16w0, { h.eth.src }, 16w64);
        hash(m.b, HashAlgorithm.identity, 16w0, { h.eth.type }, 16w64);
        hash(m.b, HashAlgorithm.random, 16w0, { h.eth.type }, 16w64);
        random(m.b, 16w3, 16w9);
        sequence.read(m.a, (bit<32>)m.b);
        sequence.write((bit<32>)m.b, m.a + 1);
        levels.read(m.level, 2);
        levels.write(2, -m.level);
        addresses.read(m.wide, 1);
        addresses.write(1, m.wide ^ 128w1);
        h.tags.push_front(1);
        h.tags[0].setValid();
        h.tags[0].vid = 7;
        h.tags[1] = h.tags[0];
        h.copies = h.tags;
        h.copies.pop_front(2);
        h.tags[1].setInvalid();
        digest<digest_t>(1, { s.ingress_port, h.eth.src });
        clone(CloneType.I2E, 5);
        clone_preserving_field_list(CloneType.I2E, m.a, 2);
        resubmit_preserving_field_list(1);
        truncate(128);
        assert(m.a != 0);
        assume(m.flag);
        if (m.color == 2) { exit; }
    }
}
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply {
        clone_preserving_field_list(CloneType.E2E, 6, 1);
        recirculate_preserving_field_list(2);
        truncate(s.packet_length - 4);
    }
}
control Compute(inout headers_t h, inout meta_t m) {
    apply {
        update_checksum(h.sum.isValid() && m.flag, { h.eth.dst, h.eth.type, h.body.data }, h.sum.sum, HashAlgorithm.csum16);
        update_checksum_with_payload(true, { h.eth }, h.sum.crc, HashAlgorithm.crc32);
    }
}
control Deparse(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
