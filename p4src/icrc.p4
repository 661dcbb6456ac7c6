// The invariant CRC of RoCEv2 (IBTA annex A17): CRC-32 over eight bytes of ones
// and the packet from IP on, with the fields that change on the way as ones:
// ToS, TTL, both checksums, and byte 4 of the BTH. It is sent with its least
// significant byte first.

#define ICRC_HEADERS                                                               \
    64w0xffffffffffffffff,                                                         \
    hdr.ipv4.version_ihl, 8w0xff, hdr.ipv4.total_len, hdr.ipv4.id, hdr.ipv4.frag,  \
    8w0xff, hdr.ipv4.proto, 16w0xffff, hdr.ipv4.src, hdr.ipv4.dst,                 \
    hdr.udp.src, hdr.udp.dst, hdr.udp.length, 16w0xffff,                           \
    hdr.bth.opcode, hdr.bth.flags, hdr.bth.pkey, 8w0xff, hdr.bth.dest_qp,          \
    hdr.bth.ack_req, hdr.bth.psn

const bit<64> WHOLE_CRC = 0x100000000; // the modulus of hash(): all 32 bits

control Icrc(in headers hdr, out bit<32> value) {
    bit<32> crc;
    apply {
        if (hdr.reth.isValid()) {
            hash(crc, HashAlgorithm.crc32, 32w0,
                 { ICRC_HEADERS, hdr.reth.va, hdr.reth.rkey, hdr.reth.length, hdr.payload.data }, WHOLE_CRC);
        } else if (hdr.aeth.isValid()) {
            hash(crc, HashAlgorithm.crc32, 32w0,
                 { ICRC_HEADERS, hdr.aeth.syndrome, hdr.aeth.msn, hdr.payload.data }, WHOLE_CRC);
        } else {
            hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_HEADERS, hdr.payload.data }, WHOLE_CRC);
        }
        value = crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24];
    }
}
