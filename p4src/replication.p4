// Replication, at ingress: a packet from the source of a group, to its MC_ID and
// to the address that this switch expects, is copied by the packet replication
// engine. Equal-cost paths: the group has several PRE groups, one after another,
// and the flow chooses one, so that a flow stays on one path on each branch.

control Replicate(inout headers hdr, inout metadata meta, inout standard_metadata_t std, out bit<32> drop) {
    const bit<32> REPLICATED = 0xffffffff;
    FlowHash() flow;
    direct_counter(CounterType.packets_and_bytes) packets; // of each group

    action replicate(bit<16> group, bit<16> first_pre_group, bit<16> pre_groups) {
        meta.group = group;
        meta.replicated = 1;
        std.mcast_grp = first_pre_group;
        meta.pre_groups = pre_groups;
    }

    table groups {
        key = {
            hdr.ipv4.src:    exact @name("src");
            hdr.bth.dest_qp: exact @name("mc_id");
            hdr.ipv4.dst:    exact @name("dst");
        }
        actions = { replicate; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = packets;
        size = 16384;
    }

    apply {
        drop = REPLICATED;
        if (groups.apply().hit) {
            if (hdr.bth.opcode > OP_WRITE_ONLY_IMM) {
                drop = DROP_OPCODE;
            } else if (hdr.ipv4.ttl <= 1) {
                drop = DROP_TTL;
            } else if (meta.pre_groups > 1) {
                flow.apply(hdr, meta);
                hash(std.mcast_grp, HashAlgorithm.crc16, std.mcast_grp, { meta.flow }, meta.pre_groups);
            }
        }
    }
}
