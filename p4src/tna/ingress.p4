// Ingress of tna.p4.

control Ingress(inout headers hdr, inout ingress_meta ig, in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t deparser,
                inout ingress_intrinsic_metadata_for_tm_t tm) {
    Admit() admit;
    Members() members;
    Hash<bit<32>>(HashAlgorithm_t.CRC32) icrc;
    Hash<bit<13>>(HashAlgorithm_t.CRC16) flow;
    DirectCounter<bit<32>>(CounterType_t.PACKETS) packets; // of each group
    DirectCounter<bit<32>>(CounterType_t.PACKETS) answers; // of each member

    action discard() { ig.drop = 1; }
    action lose() { ig.lost = 1; }

    // What the agent answers or learns from: ARP, hellos.
    action to_agent(PortId_t port) {
        tm.ucast_egress_port = port;
        ig.bypass = 1;
    }

    table punt {
        key = { hdr.ethernet.type: exact @name("type"); }
        actions = { to_agent; discard; }
        const default_action = discard();
        size = 16;
    }

    table router_macs {
        key = { hdr.ethernet.dst: exact @name("mac"); }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    // Source guard: who may send from a guarded port.
    table guarded_ports {
        key = { intrinsic.ingress_port: exact @name("port"); }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 512;
    }

    table port_hosts {
        key = {
            intrinsic.ingress_port: exact @name("port");
            hdr.ipv4.src:           exact @name("ip");
            hdr.ethernet.src:       exact @name("mac");
        }
        actions = { NoAction; @defaultonly discard; }
        const default_action = discard();
        size = 4096;
    }

    // The group's PRE group has a node for each member or branch; equal paths are members of a node.
    action replicate(bit<16> slot, MulticastGroupId_t pre_group) {
        hdr.bridge.kind = KIND_DATA;
        hdr.bridge.slot = slot;
        tm.mcast_grp_a = pre_group;
        packets.count();
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
        size = GROUPS;
    }

    // An answer of member `index`. id, src_port: what cancels, for the ICRC of a CNP, that its source and queue pair
    // change; an acknowledgment's is computed anew. Where the sender's port is in another pipe, that pipe's registers know what
    // was sent: the answer goes there first, by its port for recirculation.
    action from(bit<16> slot, bit<8> index, bit<16> id, bit<16> src_port, PortId_t recirculation) {
        hdr.bridge.kind = KIND_ACK;
        hdr.bridge.slot = slot;
        hdr.bridge.index = index;
        ig.id = id;
        ig.src_port = src_port;
        tm.ucast_egress_port = recirculation;
        ig.elsewhere = DEVPORT_PIPE(intrinsic.ingress_port) ^ DEVPORT_PIPE(recirculation);
        answers.count();
    }

    // To the sender's queue pair itself: it would take the answer of one member for that of all.
    action bypass() {
        ig.drop = 1;
        answers.count();
    }

    table merge_members {
        key = {
            hdr.ipv4.src:    exact @name("src");
            hdr.ipv4.dst:    exact @name("dst");
            hdr.bth.dest_qp: exact @name("dest_qp");
        }
        actions = { from; bypass; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = answers;
        size = REPLICAS;
    }

    // source, sender_qpn: the address that the sender's queue pair is connected to, and its own number. gap: ns.
    action merge(bit<16> members, bit<32> source, bit<24> sender_qpn, bit<32> gap) {
        hdr.bridge.members = members;
        hdr.ipv4.src = source;
        hdr.bth.dest_qp = sender_qpn;
        ig.gap = gap;
    }

    table merge_groups {
        key = { hdr.bridge.slot: exact @name("slot"); }
        actions = { merge; @defaultonly NoAction; }
        const default_action = NoAction(); // no member is current
        size = GROUPS;
    }

    action to_next_hop(bit<16> next_hop) { hdr.bridge.next_hop = next_hop; }
    action to_ecmp(bit<16> ecmp) { ig.ecmp = ecmp; }

    table routes {
        key = { hdr.ipv4.dst: lpm @name("dst"); }
        actions = { to_next_hop; to_ecmp; to_agent; lose; }
        default_action = lose();
        size = 8192;
    }

    Hash<bit<16>>(HashAlgorithm_t.CRC16) ecmp_hash;
    ActionProfile(4096) ecmp_members;
    ActionSelector(ecmp_members, ecmp_hash, SelectorMode_t.FAIR, 16, 1024) ecmp_selector;

    table ecmp_groups {
        key = {
            ig.ecmp:        exact @name("ecmp");
            hdr.ipv4.src:   selector;
            hdr.ipv4.dst:   selector;
            hdr.ipv4.proto: selector;
            hdr.ports.src:  selector;
            hdr.ports.dst:  selector;
        }
        actions = { to_next_hop; @defaultonly lose; }
        const default_action = lose();
        implementation = ecmp_selector;
        size = 1024;
    }

    action to_port(PortId_t port) { tm.ucast_egress_port = port; }

    table next_hops {
        key = { hdr.bridge.next_hop: exact @name("next_hop"); }
        actions = { to_port; @defaultonly lose; }
        const default_action = lose();
        size = 4096;
    }

    apply {
        bool guarded = guarded_ports.apply().hit;
        bool routed = router_macs.apply().hit;
        if (hdr.ethernet.type != ETHERTYPE_IPV4) {
            punt.apply();
        } else if (!routed || ig.bad_checksum || hdr.ipv4.version_ihl != 0x45 || hdr.ipv4.ttl <= 1) {
            discard();
        } else {
            if (guarded) {
                port_hosts.apply();
            }
            if (hdr.aeth.isValid()) {
                ig.crc = icrc.get({ ICRC_OF_ANSWER, hdr.icrc.b0, hdr.icrc.b1, hdr.icrc.b2, hdr.icrc.b3 });
            }
            if (hdr.bth.isValid()) {
                if (groups.apply().hit) {
                    tm.level2_mcast_hash = flow.get({ hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.proto, hdr.ports.src, hdr.ports.dst });
                } else {
                    merge_members.apply();
                }
            }
            if (ig.elsewhere != 0) {
                ig.bypass = 1;
            } else {
                if (hdr.bridge.kind != KIND_DATA) {
                    routes.apply();
                    if (ig.ecmp != 0) {
                        ecmp_groups.apply();
                    }
                    if (ig.bypass == 0) {
                        next_hops.apply();
                    }
                }
                if (hdr.bridge.kind == KIND_ACK) {
                    merge_groups.apply();
                    members.apply(hdr.bridge, ig.stranger);
                    if (hdr.aeth.isValid()) {
                        if (hdr.udp.length != 28 || hdr.ipv4.total_len != 48) {
                            ig.corrupt = 1;
                        } else if (ig.crc != ICRC_RESIDUE) {
                            ig.corrupt = 1;
                        }
                    }
                }
                if (hdr.bridge.kind != KIND_NONE) {
                    admit.apply(hdr.bridge, hdr.record, hdr.bth, hdr.aeth, ig.psn, from_parser.global_tstamp[31:0], ig.outside);
                }
                if (hdr.bridge.kind == KIND_CNP) {
                    hdr.bridge.since = hdr.bridge.now - ig.gap;
                    hdr.ipv4.id = hdr.ipv4.id ^ ig.id;
                    hdr.ports.src = hdr.ports.src ^ ig.src_port;
                    hdr.udp.checksum = 0;
                }
            }
        }
        if (ig.bypass != 0) { // as it came
            tm.bypass_egress = 1;
            hdr.bridge.setInvalid();
            hdr.record.setInvalid();
        }
        if (ig.drop != 0 || ig.stranger != 0 || ig.corrupt != 0 || ig.outside != 0 || ig.lost != 0) {
            deparser.drop_ctl = 1;
        }
    }
}
