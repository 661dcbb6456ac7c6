// Parsers and deparsers of tna.p4.

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header reth_t {
    bit<32> va_hi;
    bit<32> va_lo;
    bit<32> rkey;
    bit<32> length;
}

struct headers {
    bridge_t   bridge;
    record_t   record;
    ethernet_t ethernet;
    ipv4_t     ipv4;
    ports_t    ports; // of UDP or TCP
    udp_rest_t udp;
    bth_t      bth;
    reth_t     reth;
    aeth_t     aeth;
    icrc_t     icrc;  // of an answer
}

struct ingress_meta {
    bool    bad_checksum;
    bit<8>  drop;      // why a packet is dropped: its sender, or what it is
    bit<8>  lost;      // no route
    bit<8>  stranger;  // of no current member
    bit<8>  corrupt;   // wrong ICRC
    bit<8>  outside;   // of what was not sent
    bit<8>  bypass;    // it leaves as it came
    bit<32> gap;       // ns between CNPs
    bit<16> id;        // see Ingress.from
    bit<16> src_port;
    bit<16> ecmp;
    bit<2>  elsewhere; // not 0: another pipe has the sender's port
    bit<32> crc;
    bit<32> psn;       // the last word of the BTH, then the PSN in bits 31 to 8
}

struct egress_meta {
    bit<8>  drop;
    bit<32> own;       // what is acknowledged, as a record
    bit<32> low;       // the lowest record so far
    bit<32> crc;
}

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> UDP_ROCE = 4791;

// RoCE over IP with options or in fragments is not for this switch; see ingress.
#define PARSE_FROM_ETHERNET                                                        \
    state ethernet {                                                               \
        packet.extract(hdr.ethernet);                                              \
        transition select(hdr.ethernet.type) {                                     \
            ETHERTYPE_IPV4: ipv4;                                                  \
            default: accept;                                                       \
        }                                                                          \
    }                                                                              \
    state l4 {                                                                     \
        packet.extract(hdr.ports);                                                 \
        transition select(hdr.ipv4.proto, hdr.ports.dst) {                         \
            (17, UDP_ROCE): roce;                                                  \
            default: accept;                                                       \
        }                                                                          \
    }                                                                              \
    state roce {                                                                   \
        packet.extract(hdr.udp);                                                   \
        PEEK_PSN                                                                   \
        packet.extract(hdr.bth);                                                   \
        transition select(hdr.bth.opcode) {                                        \
            0x06: reth;                                                            \
            0x0a: reth;                                                            \
            0x0b: reth;                                                            \
            OP_ACK: aeth;                                                          \
            default: accept;                                                       \
        }                                                                          \
    }                                                                              \
    state reth {                                                                   \
        packet.extract(hdr.reth);                                                  \
        transition accept;                                                         \
    }                                                                              \
    state aeth {                                                                   \
        packet.extract(hdr.aeth);                                                  \
        packet.extract(hdr.icrc);                                                  \
        transition accept;                                                         \
    }

#define SELECT_L4                                                                  \
    transition select(hdr.ipv4.version_ihl, hdr.ipv4.frag, hdr.ipv4.proto) {       \
        (0x45, 0 &&& 0x3fff, 17): l4;                                              \
        (0x45, 0 &&& 0x3fff, 6): l4;                                               \
        default: accept;                                                           \
    }

parser IngressParser(packet_in packet, out headers hdr, out ingress_meta ig, out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() checksum;

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        hdr.bridge.setValid();
        hdr.bridge.kind = KIND_NONE;
        hdr.bridge.index = 0;
        hdr.bridge.slot = 0;
        hdr.bridge.members = 0;
        hdr.bridge.next_hop = 0;
        hdr.bridge.now = 0;
        hdr.bridge.since = 0;
        hdr.record.setValid();
        hdr.record.psn = 0;
        hdr.record.msn = 0;
        ig.psn = 0;
        ig.bad_checksum = false;
        ig.drop = 0;
        ig.lost = 0;
        ig.stranger = 0;
        ig.corrupt = 0;
        ig.outside = 0;
        ig.bypass = 0;
        ig.gap = 0;
        ig.id = 0;
        ig.src_port = 0;
        ig.ecmp = 0;
        ig.elsewhere = 0;
        ig.crc = 0;
        transition ethernet;
    }

#define PEEK_PSN ig.psn = packet.lookahead<bit<96>>()[31:0];
    PARSE_FROM_ETHERNET

    state ipv4 {
        packet.extract(hdr.ipv4);
        checksum.add(hdr.ipv4);
        ig.bad_checksum = checksum.verify();
        SELECT_L4
    }
}

control IngressDeparser(packet_out packet, inout headers hdr, in ingress_meta ig,
                        in ingress_intrinsic_metadata_for_deparser_t deparser) {
    apply { packet.emit(hdr); }
}

parser EgressParser(packet_in packet, out headers hdr, out egress_meta eg, out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.extract(hdr.bridge);
        eg.own = packet.lookahead<bit<32>>();
        eg.low = packet.lookahead<bit<32>>();
        packet.advance(32);
        eg.drop = 0;
        eg.crc = 0;
        transition ethernet;
    }

#undef PEEK_PSN
#define PEEK_PSN
    PARSE_FROM_ETHERNET

    state ipv4 {
        packet.extract(hdr.ipv4);
        SELECT_L4
    }
}

control EgressDeparser(packet_out packet, inout headers hdr, in egress_meta eg,
                       in egress_intrinsic_metadata_for_deparser_t deparser) {
    Checksum() checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = checksum.update({
                hdr.ipv4.version_ihl, hdr.ipv4.tos, hdr.ipv4.total_len, hdr.ipv4.id, hdr.ipv4.frag,
                hdr.ipv4.ttl, hdr.ipv4.proto, hdr.ipv4.src, hdr.ipv4.dst });
        }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ports);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
        packet.emit(hdr.reth);
        packet.emit(hdr.aeth);
        packet.emit(hdr.icrc);
    }
}
