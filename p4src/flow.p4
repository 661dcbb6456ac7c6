// The hash of a flow, by which it chooses among equal paths. A CRC alone would be
// linear: another seed would only permute the choices, and all flows that came by
// one path would leave by one path. The steps after it are not.

control FlowHash(in headers hdr, inout metadata meta) {
    apply {
        bit<32> h;
        hash(h, HashAlgorithm.crc32, 32w0,
             { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.proto, meta.l4_src, meta.l4_dst }, WHOLE_CRC);
        h = h ^ meta.hash_seed;
        h = h ^ (h >> 16);
        h = h * 0x85ebca6b;
        h = h ^ (h >> 13);
        h = h * 0xc2b2ae35;
        meta.flow = h ^ (h >> 16);
    }
}
