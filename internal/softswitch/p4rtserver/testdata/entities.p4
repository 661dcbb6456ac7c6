// One of each thing that P4Runtime can control on v1model, for the tests of the
// service. Compiled by
//   p4c-bm2-ss --std p4-16 --p4runtime-files entities.p4info.txtpb -o entities.json entities.p4
#include <core.p4>
#include <v1model.p4>

#define CPU_PORT 510

@controller_header("packet_out")
header packet_out_h {
    bit<9>  port;
    bit<3>  class;
    bit<12> tag;
}

@controller_header("packet_in")
header packet_in_h {
    bit<9>  port;
    bit<1>  clone;
    bit<70> wide;
}

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv4_h {
    bit<8>  vihl;
    bit<8>  tos;
    bit<16> len;
    bit<32> rest;
    bit<8>  ttl;
    bit<8>  proto;
    bit<16> sum;
    bit<32> src;
    bit<32> dst;
}

struct headers {
    packet_out_h packet_out;
    packet_in_h  packet_in;
    ethernet_h   eth;
    ipv4_h       ip;
}

struct learn_t {
    bit<9>  port;
    bit<48> mac;
}

struct kind_t {
    bit<16> type;
    bit<8> flags;
}

struct metadata {
    bit<128> wide;
    bit<2>   colour;
    bit<2>   direct_colour;
    bit<32>  n;
    bit<1>   punt;
}

parser Parse(packet_in p, out headers h, inout metadata m, inout standard_metadata_t s) {
    value_set<bit<16>>(4) plain;
    value_set<kind_t>(2) kinds;
    state start {
        transition select(s.ingress_port) {
            CPU_PORT: from_cpu;
            default: ethernet;
        }
    }
    state from_cpu {
        p.extract(h.packet_out);
        transition ethernet;
    }
    state ethernet {
        p.extract(h.eth);
        transition select(h.eth.type) {
            0x800: ipv4;
            plain: ipv4;
            default: more;
        }
    }
    state more {
        transition select(h.eth.type, h.eth.dst[7:0]) {
            kinds: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        p.extract(h.ip);
        transition accept;
    }
}

control NoCheck(inout headers h, inout metadata m) { apply { } }

control In(inout headers h, inout metadata m, inout standard_metadata_t s) {
    counter(8, CounterType.packets_and_bytes) seen;
    meter(4, MeterType.bytes) rate;
    register<bit<32>>(16) narrow;
    register<bit<100>>(4) broad;
    direct_counter(CounterType.packets_and_bytes) routed;
    direct_counter(CounterType.packets) fixed_count;
    direct_meter<bit<2>>(MeterType.packets) limit;
    action_selector(HashAlgorithm.crc16, 32w16, 32w8) hops;
    action_profile(32w8) plainly;

    action drop() { mark_to_drop(s); }
    action to(bit<9> port) { s.egress_spec = port; }
    action rewrite(bit<9> port, bit<48> src, bit<48> dst) {
        s.egress_spec = port;
        h.eth.src = src;
        h.eth.dst = dst;
    }
    action limited(bit<9> port) {
        s.egress_spec = port;
        limit.read(m.direct_colour);
    }
    action replicate(bit<16> group) { s.mcast_grp = group; }
    action punt() { m.punt = 1; }
    action mirror() { clone(CloneType.I2E, 7); }
    action learn() { digest<learn_t>(1, {s.ingress_port, h.eth.src}); }
    action note(bit<128> value) { m.wide = value; }

    table routes {
        key = { h.ip.dst: lpm; }
        actions = { to; rewrite; drop; @tableonly punt; @defaultonly NoAction; }
        default_action = drop();
        counters = routed;
        size = 200000;
    }
    table acl {
        key = {
            h.eth.dst: ternary;
            h.eth.type: optional;
            s.ingress_port: range;
            h.ip.isValid(): exact;
            h.ip.src: lpm;
        }
        actions = { limited; drop; replicate; mirror; learn; }
        default_action = drop();
        meters = limit;
        support_timeout = true;
        size = 64;
    }
    table ecmp {
        key = { m.n: exact; h.ip.src: selector; h.ip.dst: selector; }
        actions = { to; rewrite; }
        implementation = hops;
        size = 16;
    }
    table indirect {
        key = { h.eth.src: exact; }
        actions = { to; drop; }
        implementation = plainly;
        size = 16;
    }
    table fixed {
        key = { h.eth.type: ternary; m.n: exact; }
        actions = { to; drop; NoAction; }
        const default_action = NoAction();
        counters = fixed_count;
        const entries = {
            (0x800 &&& 0xff00, 1): to(5);
            (0x900, 2): drop();
        }
    }
    table always {
        actions = { note; NoAction; }
        default_action = note(0x0123456789abcdef0123456789abcdef);
    }
    apply {
        seen.count(0);
        rate.execute_meter<bit<2>>(1, m.colour);
        narrow.read(m.n, 3);
        broad.write(1, (bit<100>)m.wide);
        always.apply();
        if (h.packet_out.isValid()) {
            s.egress_spec = h.packet_out.port;
            h.packet_out.setInvalid();
            exit;
        }
        acl.apply();
        if (h.ip.isValid()) {
            routes.apply();
        }
        ecmp.apply();
        indirect.apply();
        fixed.apply();
        narrow.write(4, m.n + 1);
        if (m.punt == 1) {
            s.egress_spec = CPU_PORT;
            h.packet_in.setValid();
            h.packet_in.port = s.ingress_port;
            h.packet_in.clone = 1;
            h.packet_in.wide = m.wide[69:0];
        }
    }
}

control Out(inout headers h, inout metadata m, inout standard_metadata_t s) { apply { } }

control Deparse(packet_out p, in headers h) {
    apply {
        p.emit(h.packet_in);
        p.emit(h.eth);
        p.emit(h.ip);
    }
}

V1Switch(Parse(), NoCheck(), In(), Out(), NoCheck(), Deparse()) main;
