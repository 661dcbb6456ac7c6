// Reliable multicast for RDMA (RoCEv2): a router that copies the packets of a
// multicast group as late as it can, makes each copy look like unicast to its
// receiver, and merges the receivers' answers. For v1model.
//
// The way of a packet:
//
//   parser.p4       Ethernet, ARP, IPv4, UDP, BTH, RETH, AETH, payload, ICRC
//   guard.p4        hosts at guarded ports speak for themselves only, and plainly
//   icrc.p4         a RoCE packet whose ICRC is wrong goes no further (mode neutral: an answer)
//   replication.p4  ⟨source, MC_ID⟩ of a group: to the replication engine
//   flow.p4         equal paths: which one
//   forwarding.p4   anything else: routed, bridged, or to the agent
//   rewrite.p4      egress, copies: the receiver's address, QPN, VA, rkey (mode neutral:
//                   and what keeps the ICRC right)
//   ackmerge.p4     egress, ACK, NAK, CNP of a group's members: merged; to a
//                   group's sender nothing else passes
//   forwarding.p4   egress: the next hop's MAC
//   ecn.p4          egress: marked by queue depth
//   icrc.p4         egress: computed anew if a field that it covers has changed, and nothing
//                   cancels that
//
// fault.p4 injects faults for tests; drops.p4 lists why packets are dropped.

#include <core.p4>
#include <v1model.p4>

#include "headers.p4"
#include "drops.p4"
#include "parser.p4"
#include "icrc.p4"
#include "fault.p4"
#include "guard.p4"
#include "flow.p4"
#include "forwarding.p4"
#include "replication.p4"
#include "rewrite.p4"
#include "ackmerge.p4"
#include "ecn.p4"

control ingress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    counter(DROP_REASONS, CounterType.packets_and_bytes) drops;
    Fault() fault_in;
    Guard() guard;
    Icrc() icrc;
    Replicate() replication;
    Forward() unicast;

    action discard(bit<32> reason) {
        mark_to_drop(std);
        drops.count(reason);
    }

    action configure(IcrcMode icrc_mode, bit<32> hash_seed, bit<64> owner, bit<64> numbers) {
        meta.icrc_mode = icrc_mode;
        meta.hash_seed = hash_seed;
    }

    // Settings of the switch. owner and numbers are a note of the agent to itself: which of its state files programmed
    // this switch, and the first number that it had not reserved by then.
    table settings {
        key = {}
        actions = { configure; }
        default_action = configure(IcrcMode.RECOMPUTE, 0, 0, 0);
        size = 1;
    }

    action bridge_port(bit<16> flood_group) { meta.flood_group = flood_group; }

    // Ports that bridge, and the PRE group of their bridge.
    table bridge_ports {
        key = { std.ingress_port: exact @name("port"); }
        actions = { bridge_port; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 512;
    }

    apply {
        if (hdr.packet_out.isValid()) {
            meta.direct = 1;
            std.priority = URGENT;
            std.egress_spec = hdr.packet_out.egress_port;
            exit;
        }
        if (std.parser_error != error.NoError) {
            discard(DROP_MALFORMED);
            exit;
        }
        if (std.checksum_error == 1) {
            discard(DROP_IP_CHECKSUM);
            exit;
        }
        settings.apply();
        bridge_ports.apply();

        bit<32> drop;
        guard.apply(hdr, std, drop);
        if (drop < DROP_REASONS) {
            discard(drop);
            exit;
        }
        if (hdr.ethernet.type == ETHERTYPE_HELLO) {
            std.priority = URGENT;
        }
        if (hdr.bth.isValid()) {
            bool faulty;
            fault_in.apply(hdr, meta, std, std.ingress_port, faulty);
            if (faulty) {
                discard(DROP_FAULT);
                exit;
            }
            bool answer = hdr.bth.opcode == OP_ACK || hdr.bth.opcode == OP_CNP;
            if (meta.icrc_mode == IcrcMode.RECOMPUTE || (meta.icrc_mode == IcrcMode.NEUTRAL && answer)) {
                bit<32> crc;
                icrc.apply(hdr, crc);
                if (crc != hdr.icrc.value || meta.corrupt == 1) {
                    discard(DROP_ICRC);
                    exit;
                }
            }
            if (answer) {
                std.priority = URGENT;
            } else {
                replication.apply(hdr, meta, std, drop);
                if (drop < DROP_REASONS) {
                    discard(drop);
                    exit;
                }
            }
        }
        if (meta.replicated == 0) {
            unicast.apply(hdr, meta, std, drop);
            if (drop < DROP_REASONS) {
                discard(drop);
            }
        }
    }
}

control egress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    counter(DROP_REASONS, CounterType.packets_and_bytes) drops;
    Rewrite() rewrite;
    AckMerge() ack_merge;
    Neighbour() neighbour;
    Ecn() ecn;
    Fault() fault_out;
    Icrc() icrc;

    action discard(bit<32> reason) {
        mark_to_drop(std);
        drops.count(reason);
    }

    apply {
        if (meta.direct == 1) {
            exit;
        }
        if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.reason = meta.punt;
            exit;
        }
        if (meta.flooded == 1 && std.egress_port == std.ingress_port) {
            mark_to_drop(std); // not back to where it came from
            exit;
        }

        bit<32> drop = DROP_REASONS;
        if (meta.replicated == 1) {
            rewrite.apply(hdr, meta, std, drop);
        } else if (hdr.bth.isValid()) {
            ack_merge.apply(hdr, meta, std, drop);
        }
        if (drop < DROP_REASONS) {
            discard(drop);
            exit;
        }
        if (meta.next_hop != 0) {
            bool found;
            neighbour.apply(hdr, meta, found);
            if (!found) {
                discard(DROP_NO_NEIGHBOUR);
                exit;
            }
        }
        if (hdr.ipv4.isValid()) {
            ecn.apply(hdr, std);
        }
        if (hdr.bth.isValid()) {
            bool faulty;
            fault_out.apply(hdr, meta, std, std.egress_port, faulty);
            if (faulty) {
                discard(DROP_FAULT);
                exit;
            }
            if (meta.icrc_stale == 1) {
                hdr.udp.checksum = 0;
                if (meta.icrc_mode != IcrcMode.OFF) {
                    icrc.apply(hdr, hdr.icrc.value);
                }
            }
            if (meta.corrupt == 1) {
                hdr.icrc.value = hdr.icrc.value ^ 1;
            }
        }
    }
}

V1Switch(Parse(), VerifyIPv4(), ingress(), egress(), UpdateIPv4(), Deparse()) main;
