// The rewriting of each copy, at egress. A copy that will be copied again goes to
// the representative of its branch. A copy on its last way gets its receiver's
// address, QPN, and for a WRITE the receiver's virtual address and rkey, so that
// the receiver takes it for unicast.
//
// In mode neutral no CRC over the payload is computed. CRCs are linear, so what
// the rewriting does to the ICRC depends on what changes alone, and constants from
// the control plane, XORed into IPv4 identification and UDP source port, cancel it: one of
// a copy's address and QPN, one of a region's rkey. What has the constant 0, since its change
// is not constant (the VA moves, or no region is there) or it is not wanted, is computed
// anew, and checked before.

// The sum of words in the UDP checksum.
#define UDP_WORDS(dst, qpn)                                                        \
    (bit<32>)dst[31:16] + (bit<32>)dst[15:0] + (bit<32>)qpn[23:16] + (bit<32>)qpn[15:0] + (bit<32>)hdr.udp.src
#define RKEY_WORDS(rkey) (bit<32>)rkey[31:16] + (bit<32>)rkey[15:0]

control Rewrite(inout headers hdr, inout metadata meta, inout standard_metadata_t std, out bit<32> drop) {
    const bit<32> PASS = 0xffffffff;
    Icrc() icrc;
    direct_counter(CounterType.packets_and_bytes) copies;         // of each branch or member
    direct_counter(CounterType.packets_and_bytes) region_packets; // of each memory region

    action to_branch(bit<32> dst, bit<16> next_hop, bit<32> neutral) {
        meta.copy.dst = dst;
        meta.copy.neutral = neutral;
        meta.next_hop = next_hop;
    }

    action to_receiver(bit<32> dst, bit<24> qpn, bit<16> next_hop, bit<32> neutral) {
        meta.copy.dst = dst;
        meta.copy.qpn = qpn;
        meta.copy.neutral = neutral;
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

    // offset is 0 where neutral is not.
    action translate(bit<64> offset, bit<32> rkey, bit<32> neutral) {
        meta.copy.va = hdr.reth.va + offset;
        meta.copy.rkey = rkey;
        meta.copy.neutral = neutral == 0 || meta.copy.neutral == 0 ? 0 : meta.copy.neutral ^ neutral;
    }

    // No region of the receiver's is there. Its answer will say so to the
    // sender, as in unicast: key 0 opens nothing.
    action no_region() {
        meta.copy.va = hdr.reth.va;
        meta.copy.rkey = 0;
        meta.copy.neutral = 0;
    }

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
        drop = PASS;
        meta.copy.qpn = hdr.bth.dest_qp;
        if (!replicas.apply().hit) {
            drop = DROP_NO_REPLICA;
        } else {
            bool write = meta.last == 1 && hdr.reth.isValid();
            if (write) {
                regions.apply();
            }
            if (meta.icrc_mode == IcrcMode.NEUTRAL && meta.copy.neutral != 0) {
                bit<16> port = hdr.udp.src ^ meta.copy.neutral[15:0];
                if (hdr.udp.checksum != 0) { // RFC 1624, with 0xffff for each word that goes
                    bit<32> sum = (bit<32>)(~hdr.udp.checksum) + 7 * 0xffff - (UDP_WORDS(hdr.ipv4.dst, hdr.bth.dest_qp));
                    hdr.udp.src = port;
                    sum = sum + UDP_WORDS(meta.copy.dst, meta.copy.qpn);
                    if (write) {
                        sum = sum - (RKEY_WORDS(hdr.reth.rkey)) + RKEY_WORDS(meta.copy.rkey);
                    }
                    sum = (sum & 0xffff) + (sum >> 16);
                    sum = sum + (sum >> 16);
                    hdr.udp.checksum = ~sum[15:0];
                    if (hdr.udp.checksum == 0) { // that would mean none
                        hdr.udp.checksum = 0xffff;
                    }
                }
                hdr.udp.src = port;
                hdr.ipv4.dst = meta.copy.dst;
                hdr.bth.dest_qp = meta.copy.qpn;
                hdr.ipv4.id = hdr.ipv4.id ^ meta.copy.neutral[31:16];
                if (write) {
                    hdr.reth.rkey = meta.copy.rkey;
                }
            } else if (meta.last == 1 || meta.copy.dst != hdr.ipv4.dst) {
                if (meta.icrc_mode == IcrcMode.NEUTRAL) {
                    bit<32> crc;
                    icrc.apply(hdr, crc);
                    if (crc != hdr.icrc.value || meta.corrupt == 1) {
                        drop = DROP_ICRC;
                    }
                }
                hdr.ipv4.dst = meta.copy.dst;
                hdr.bth.dest_qp = meta.copy.qpn;
                if (write) {
                    hdr.reth.va = meta.copy.va;
                    hdr.reth.rkey = meta.copy.rkey;
                }
                meta.icrc_stale = 1;
            }
        }
    }
}
