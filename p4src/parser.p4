// Parser, checksums and deparser.

error {
    IPv4Header, // neither version 4 nor a header length of at least 20 bytes
    RoceLength  // the lengths of IP and UDP disagree
}

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU_PORT: from_agent;
            default:  ethernet;
        }
    }

    state from_agent {
        packet.extract(hdr.packet_out);
        transition accept;
    }

    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_ARP:  arp;
            default:        accept;
        }
    }

    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    // RoCE over IP with options or in fragments is forwarded like any other IP. Of
    // fragments only the first has ports: none are used, so all take one path.
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version_ihl, hdr.ipv4.frag, hdr.ipv4.proto) {
            (0x45, 0 &&& 0x3fff, PROTO_UDP): udp;
            (0x45, 0 &&& 0x3fff, PROTO_TCP): tcp;
            (0x45, _, _):                    accept;
            (0x40 &&& 0xf0, _, _):           ipv4_options;
            default:                         not_ipv4;
        }
    }

    state not_ipv4 {
        verify(false, error.IPv4Header);
        transition accept;
    }

    state ipv4_options {
        verify(hdr.ipv4.version_ihl[3:0] > 5, error.IPv4Header);
        packet.extract(hdr.ipv4_options, ((bit<32>)hdr.ipv4.version_ihl[3:0] - 5) << 5);
        transition accept;
    }

    state tcp {
        packet.extract(hdr.tcp);
        meta.l4_src = hdr.tcp.src;
        meta.l4_dst = hdr.tcp.dst;
        transition accept;
    }

    state udp {
        packet.extract(hdr.udp);
        meta.l4_src = hdr.udp.src;
        meta.l4_dst = hdr.udp.dst;
        transition select(hdr.udp.dst) {
            UDP_ROCE: roce;
            default:  accept;
        }
    }

    state roce {
        verify(hdr.ipv4.total_len == hdr.udp.length + 20, error.RoceLength);
        packet.extract(hdr.bth);
        meta.rest = hdr.udp.length - 24; // UDP, BTH, ICRC
        transition select(hdr.bth.opcode) {
            OP_WRITE_FIRST:    reth;
            OP_WRITE_ONLY:     reth;
            OP_WRITE_ONLY_IMM: reth;
            OP_ACK:            aeth;
            default:           payload;
        }
    }

    state reth {
        packet.extract(hdr.reth);
        meta.rest = meta.rest - 16;
        transition payload;
    }

    state aeth {
        packet.extract(hdr.aeth);
        meta.rest = meta.rest - 4;
        transition payload;
    }

    // Where the UDP length is too small for the headers, rest has wrapped and is
    // more than the payload can hold: an error, like a packet that is cut short.
    state payload {
        packet.extract(hdr.payload, (bit<32>)meta.rest << 3);
        packet.extract(hdr.icrc);
        transition accept;
    }
}

#define IPV4_CHECKSUM(op)                                                          \
    op(hdr.ipv4.isValid(),                                                         \
       { hdr.ipv4.version_ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len,    \
         hdr.ipv4.id, hdr.ipv4.frag, hdr.ipv4.ttl, hdr.ipv4.proto,                 \
         hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4_options.data },                      \
       hdr.ipv4.checksum, HashAlgorithm.csum16)

control VerifyIPv4(inout headers hdr, inout metadata meta) {
    apply { IPV4_CHECKSUM(verify_checksum); }
}

control UpdateIPv4(inout headers hdr, inout metadata meta) {
    apply { IPV4_CHECKSUM(update_checksum); }
}

control Deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv4_options);
        packet.emit(hdr.tcp);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
        packet.emit(hdr.reth);
        packet.emit(hdr.aeth);
        packet.emit(hdr.payload);
        packet.emit(hdr.icrc);
    }
}
