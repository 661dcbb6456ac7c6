// A small router for tests and benchmarks of the embedded switch: a bit of each
// thing that a switch has to do with packets besides running a program.
#include <core.p4>
#include <v1model.p4>

@controller_header("packet_out")
header packet_out_h {
    bit<9> port;
    bit<7> _pad;
}

@controller_header("packet_in")
header packet_in_h {
    bit<9> port;
    bit<7> _pad;
}

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<6>  dscp;
    bit<2>  ecn;
    bit<16> length;
    bit<16> id;
    bit<16> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

struct headers_t {
    packet_out_h packet_out;
    packet_in_h  packet_in;
    ethernet_h   ethernet;
    ipv4_h       ipv4;
}

struct seen_t {
    bit<48> src;
    bit<9>  port;
}

struct meta_t { }

#define CPU_PORT 510

parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
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
        p.extract(h.ethernet);
        transition select(h.ethernet.type) {
            0x0800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        p.extract(h.ipv4);
        transition accept;
    }
}

control Verify(inout headers_t h, inout meta_t m) {
    apply { }
}

control In(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action drop() {
        mark_to_drop(s);
    }
    action forward(bit<9> port) {
        s.egress_spec = port;
    }
    action route(bit<9> port, bit<48> src, bit<48> dst) {
        s.egress_spec = port;
        h.ethernet.src = src;
        h.ethernet.dst = dst;
        h.ipv4.ttl = h.ipv4.ttl - 1;
    }
    action replicate(bit<16> group) {
        s.mcast_grp = group;
    }
    action forward_and_clone(bit<9> port, bit<32> session) {
        s.egress_spec = port;
        clone(CloneType.I2E, session);
    }
    action forward_and_learn(bit<9> port) {
        s.egress_spec = port;
        digest<seen_t>(1, { h.ethernet.src, s.ingress_port });
    }
    action to_cpu() {
        s.egress_spec = CPU_PORT;
    }

    // What is not IPv4, or not routed, goes by the port that it came in on.
    table patch {
        key = { s.ingress_port: exact; }
        actions = { forward; replicate; forward_and_clone; forward_and_learn; to_cpu; drop; }
        default_action = drop();
        support_timeout = true;
        size = 512;
    }
    table routes {
        key = { h.ipv4.dst: lpm; }
        actions = { route; to_cpu; @defaultonly NoAction; }
        default_action = NoAction();
        size = 4096;
    }

    apply {
        if (h.packet_out.isValid()) {
            s.egress_spec = h.packet_out.port;
            h.packet_out.setInvalid();
        } else if (h.ipv4.isValid() && routes.apply().hit) {
        } else {
            patch.apply();
        }
    }
}

control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action mark(bit<19> depth) {
        if (h.ipv4.isValid() && h.ipv4.ecn != 0 && s.enq_qdepth >= depth) {
            h.ipv4.ecn = 3;
        }
    }
    table congestion {
        key = { s.egress_port: exact; }
        actions = { mark; @defaultonly NoAction; }
        default_action = NoAction();
        size = 512;
    }

    apply {
        congestion.apply();
        if (s.egress_port == CPU_PORT) {
            h.packet_in.setValid();
            h.packet_in.port = s.ingress_port;
        }
    }
}

control Compute(inout headers_t h, inout meta_t m) {
    apply {
        update_checksum(h.ipv4.isValid(), { h.ipv4.version, h.ipv4.ihl, h.ipv4.dscp, h.ipv4.ecn, h.ipv4.length,
            h.ipv4.id, h.ipv4.fragment, h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst },
            h.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out p, in headers_t h) {
    apply {
        p.emit(h.packet_in);
        p.emit(h.ethernet);
        p.emit(h.ipv4);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
