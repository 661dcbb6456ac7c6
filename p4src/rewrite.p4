// The rewriting of each copy, at egress. A copy that will be copied again goes to
// the representative of its branch. A copy on its last way gets its receiver's
// address, QPN, and for a WRITE the receiver's virtual address and rkey, so that
// the receiver takes it for unicast.

control Rewrite(inout headers hdr, inout metadata meta, inout standard_metadata_t std, out bool found) {
    direct_counter(CounterType.packets_and_bytes) copies;         // of each branch or member
    direct_counter(CounterType.packets_and_bytes) region_packets; // of each memory region

    action to_branch(bit<32> dst, bit<16> next_hop) {
        hdr.ipv4.dst = dst;
        meta.next_hop = next_hop;
    }

    action to_receiver(bit<32> dst, bit<24> qpn, bit<16> next_hop) {
        hdr.ipv4.dst = dst;
        hdr.bth.dest_qp = qpn;
        meta.next_hop = next_hop;
        meta.last = 1;
    }

    table replicas {
        key = {
            meta.group:     exact @name("group");
            std.egress_rid: exact @name("rid");
        }
        actions = { to_branch; to_receiver; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = copies;
        size = 65536;
    }

    action translate(bit<64> offset, bit<32> rkey) {
        hdr.reth.va = hdr.reth.va + offset;
        hdr.reth.rkey = rkey;
    }

    // No region of the receiver's is there. Its answer will say so to the
    // sender, as in unicast: key 0 opens nothing.
    action no_region() { hdr.reth.rkey = 0; }

    table regions {
        key = {
            meta.group:     exact @name("group");
            std.egress_rid: exact @name("rid");
            hdr.reth.rkey:  exact @name("rkey");
            hdr.reth.va:    range @name("va");
        }
        actions = { translate; @defaultonly no_region; }
        const default_action = no_region();
        counters = region_packets;
        size = 65536;
    }

    apply {
        bit<32> dst = hdr.ipv4.dst;
        found = replicas.apply().hit;
        if (meta.last == 1 && hdr.reth.isValid()) {
            regions.apply();
        }
        if (meta.last == 1 || dst != hdr.ipv4.dst) {
            meta.icrc_stale = 1;
        }
    }
}
