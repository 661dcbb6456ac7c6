// Headers and constants of an answer and its merging, for any target. PSN and MSN are in two parts: records
// hold the low 16 bits of each.

const bit<8> OP_ACK = 0x11;
const bit<8> OP_CNP = 0x81;

// What a packet is, for the merging.
const bit<8> KIND_NONE = 0;
const bit<8> KIND_DATA = 1; // of a group's sender
const bit<8> KIND_ACK  = 2;
const bit<8> KIND_NAK  = 3; // RNR NAKs too
const bit<8> KIND_CNP  = 4;
const bit<8> KIND_REFUSED = 5; // no answer

header ipv4_t {
    bit<8>  version_ihl;
    bit<8>  tos;
    bit<16> total_len;
    bit<16> id;
    bit<16> frag;
    bit<8>  ttl;
    bit<8>  proto;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

// Of UDP or TCP.
header ports_t {
    bit<16> src;
    bit<16> dst;
}

header udp_rest_t {
    bit<16> length;
    bit<16> checksum;
}

header bth_t {
    bit<8>  opcode;
    bit<8>  flags;
    bit<16> pkey;
    bit<8>  ecn;
    bit<24> dest_qp;
    bit<8>  ack_req;
    bit<8>  psn_hi;
    bit<16> psn_lo;
}

header aeth_t {
    bit<8>  syndrome;
    bit<8>  msn_hi;
    bit<16> msn_lo;
}

// As on the wire, least significant byte first.
header icrc_t {
    bit<8> b0;
    bit<8> b1;
    bit<8> b2;
    bit<8> b3;
}

// What ingress finds out, for egress.
header bridge_t {
    bit<8>  kind;
    bit<8>  index;    // of the member that answers
    bit<16> slot;     // this switch's index of the group
    bit<16> members;  // a bit for each current member
    bit<16> next_hop;
    bit<32> now;      // of a CNP: the time, in ns
    bit<32> since;    // and the time less the gap
}

// What an answer acknowledges, for egress: the low halves of PSN and MSN.
header record_t {
    bit<16> psn;
    bit<16> msn;
}

// What is kept for a member of a group.
struct pair_t {
    bit<32> acked; // the last record
    bit<32> lower; // what went on last: a stateful ALU gives the lower of two only if it stores that
}

// What the ICRC of an answer covers (IBTA annex A17), as p4src/icrc.p4 has it. The CRC-32 over that and the ICRC
// itself, as it is on the wire, is always the same.
#define ICRC_OF_ANSWER                                                             \
    64w0xffffffffffffffff,                                                         \
    hdr.ipv4.version_ihl, 8w0xff, hdr.ipv4.total_len, hdr.ipv4.id, hdr.ipv4.frag,  \
    8w0xff, hdr.ipv4.proto, 16w0xffff, hdr.ipv4.src, hdr.ipv4.dst,                 \
    hdr.ports.src, hdr.ports.dst, hdr.udp.length, 16w0xffff,                       \
    hdr.bth.opcode, hdr.bth.flags, hdr.bth.pkey, 8w0xff, hdr.bth.dest_qp,          \
    hdr.bth.ack_req, hdr.bth.psn_hi, hdr.bth.psn_lo,                               \
    hdr.aeth.syndrome, hdr.aeth.msn_hi, hdr.aeth.msn_lo

const bit<32> ICRC_RESIDUE = 0x2144df1c;
