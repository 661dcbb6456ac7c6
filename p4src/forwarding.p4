// Unicast. A packet to a MAC of the router is routed: longest prefix, next hop or
// ECMP group, port. Any other is bridged: to the port of its MAC, or to all ports
// of the bridge that it came from. What concerns the router itself goes to the
// agent.

// What the agent learns from every ARP packet.
struct arp_digest_t {
    bit<9>  port;
    bit<48> mac;
    bit<32> ip;
}

control Forward(inout headers hdr, inout metadata meta, inout standard_metadata_t std, out bit<32> drop) {
    const bit<32> FORWARDED = 0xffffffff;
    FlowHash() flow;

    action to_cpu(Punt reason) {
        meta.punt = reason;
        std.egress_spec = CPU_PORT;
    }

    table router_macs {
        key = { hdr.ethernet.dst: exact @name("mac"); }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 1024;
    }

    // Addresses for which the agent answers ARP.
    table arp_targets {
        key = { hdr.arp.tpa: exact @name("ip"); }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 4096;
    }

    action to_next_hop(bit<16> next_hop) { meta.next_hop = next_hop; }
    action to_ecmp(bit<16> ecmp) { meta.ecmp = ecmp; }
    action to_agent() { to_cpu(Punt.LOCAL); }
    action no_route() { drop = DROP_NO_ROUTE; }

    table routes {
        key = { hdr.ipv4.dst: lpm @name("dst"); }
        actions = { to_next_hop; to_ecmp; to_agent; no_route; }
        default_action = no_route();
        size = 65536;
    }

    action_selector(HashAlgorithm.crc16, 32w8192, 32w16) ecmp_selector;

    table ecmp_groups {
        key = {
            meta.ecmp: exact @name("ecmp");
            meta.flow: selector;
        }
        actions = { to_next_hop; }
        implementation = ecmp_selector;
        size = 4096;
    }

    action to_port(bit<9> port) { std.egress_spec = port; }

    table next_hops {
        key = { meta.next_hop: exact @name("next_hop"); }
        actions = { to_port; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 8192;
    }

    table bridge {
        key = { hdr.ethernet.dst: exact @name("mac"); }
        actions = { to_port; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16384;
    }

    apply {
        drop = FORWARDED;
        bool mine = router_macs.apply().hit;
        if (hdr.ethernet.type == ETHERTYPE_HELLO) {
            to_cpu(Punt.HELLO);
        } else {
            if (hdr.arp.isValid()) {
                digest<arp_digest_t>(1, { std.ingress_port, hdr.arp.sha, hdr.arp.spa });
                if (arp_targets.apply().hit) {
                    mine = true;
                }
                if (mine) {
                    to_cpu(Punt.ARP);
                }
            }
            if (mine && hdr.ipv4.isValid()) {
                routes.apply();
                if (meta.ecmp != 0) {
                    flow.apply(hdr, meta);
                    ecmp_groups.apply();
                }
                if (drop == FORWARDED && meta.punt == Punt.NONE) {
                    if (hdr.ipv4.ttl <= 1) {
                        drop = DROP_TTL;
                    } else if (!next_hops.apply().hit) {
                        drop = DROP_NO_NEXT_HOP;
                    }
                }
            } else if (!mine) {
                if (!bridge.apply().hit) {
                    if (meta.flood_group == 0) {
                        drop = DROP_UNKNOWN_MAC;
                    } else {
                        std.mcast_grp = meta.flood_group;
                        meta.flooded = 1;
                    }
                }
            } else if (!hdr.arp.isValid()) {
                drop = DROP_NO_ROUTE; // neither IPv4 nor ARP, to the router
            }
        }
    }
}

// On the way out: the next hop's MAC, and one hop less to live.
control Neighbour(inout headers hdr, inout metadata meta, out bool found) {
    action rewrite(bit<48> src, bit<48> dst) {
        hdr.ethernet.src = src;
        hdr.ethernet.dst = dst;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    table neighbours {
        key = { meta.next_hop: exact @name("next_hop"); }
        actions = { rewrite; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 8192;
    }

    apply { found = neighbours.apply().hit; }
}
