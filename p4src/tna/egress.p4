// Egress of tna.p4.

control Egress(inout headers hdr, inout egress_meta eg, in egress_intrinsic_metadata_t intrinsic,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t deparser,
               inout egress_intrinsic_metadata_for_output_port_t port) {
    PackedMerge() merge;
    Hash<bit<32>>(HashAlgorithm_t.CRC32) icrc;
    DirectCounter<bit<32>>(CounterType_t.PACKETS) copies; // of each branch or member

    action discard() { eg.drop = 1; }

    // id, src_port: what cancels, for the ICRC, that the destination changes.
    action to_branch(bit<32> dst, bit<16> next_hop, bit<16> id, bit<16> src_port) {
        hdr.ipv4.dst = dst;
        hdr.bridge.next_hop = next_hop;
        hdr.ipv4.id = hdr.ipv4.id ^ id;
        hdr.ports.src = hdr.ports.src ^ src_port;
        hdr.udp.checksum = 0;
        copies.count();
    }

    action to_receiver(bit<32> dst, bit<24> qpn, bit<16> next_hop, bit<16> id, bit<16> src_port) {
        hdr.ipv4.dst = dst;
        hdr.bth.dest_qp = qpn;
        hdr.bridge.next_hop = next_hop;
        hdr.ipv4.id = hdr.ipv4.id ^ id;
        hdr.ports.src = hdr.ports.src ^ src_port;
        hdr.udp.checksum = 0;
        copies.count();
    }

    table replicas {
        key = {
            hdr.bridge.slot:      exact @name("group");
            intrinsic.egress_rid: exact @name("rid");
        }
        actions = { to_branch; to_receiver; @defaultonly discard; }
        const default_action = discard();
        counters = copies;
        size = REPLICAS;
    }

    // A region of a receiver: the bits in which its key and addresses differ from the sender's, and what cancels
    // those. Regions registered at the sender's addresses differ in none; others must be aligned to their size.
    action translate(bit<32> va_hi, bit<32> va_lo, bit<32> rkey, bit<16> id, bit<16> src_port) {
        hdr.reth.va_hi = hdr.reth.va_hi ^ va_hi;
        hdr.reth.va_lo = hdr.reth.va_lo ^ va_lo;
        hdr.reth.rkey = hdr.reth.rkey ^ rkey;
        hdr.ipv4.id = hdr.ipv4.id ^ id;
        hdr.ports.src = hdr.ports.src ^ src_port;
    }

    // No miss is an error: a branch translates nothing, and where the receiver has no such region, the
    // sender's key opens none.
    table regions {
        key = {
            hdr.bridge.slot:      exact @name("group");
            intrinsic.egress_rid: exact @name("rid");
            hdr.reth.rkey:        exact @name("rkey");
        }
        actions = { translate; @defaultonly NoAction; }
        const default_action = NoAction();
        size = REPLICAS;
    }

    action neighbor(bit<48> src, bit<48> dst) {
        hdr.ethernet.src = src;
        hdr.ethernet.dst = dst;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    table neighbors {
        key = { hdr.bridge.next_hop: exact @name("next_hop"); }
        actions = { neighbor; discard; }
        const default_action = discard();
        size = 4096;
    }

    apply {
        if (hdr.bridge.kind == KIND_DATA) {
            replicas.apply();
            if (hdr.reth.isValid()) {
                regions.apply();
            }
        } else if (hdr.bridge.kind != KIND_NONE) {
            merge.apply(hdr.bridge, eg.own, eg.low, hdr.bth, hdr.aeth, eg.drop);
            if (hdr.aeth.isValid()) {
                hdr.udp.checksum = 0;
                eg.crc = icrc.get({ ICRC_OF_ANSWER });
                hdr.icrc.b0 = eg.crc[7:0];
                hdr.icrc.b1 = eg.crc[15:8];
                hdr.icrc.b2 = eg.crc[23:16];
                hdr.icrc.b3 = eg.crc[31:24];
            }
        }
        neighbors.apply();
        if (eg.drop != 0) {
            deparser.drop_ctl = 1;
        }
    }
}
