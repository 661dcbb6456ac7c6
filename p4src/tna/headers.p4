// Headers and constants that the merging needs, for any target. PSN and MSN are in two parts: records
// hold the low 16 bits of each.

const bit<8> OP_ACK = 0x11;
const bit<8> OP_CNP = 0x81;

// What a packet is, for the merging.
const bit<8> KIND_NONE = 0;
const bit<8> KIND_DATA = 1; // of a group's sender
const bit<8> KIND_ACK  = 2;
const bit<8> KIND_NAK  = 3; // RNR NAKs too
const bit<8> KIND_CNP  = 4;

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

// What ingress finds out, for egress.
header bridge_t {
    bit<8>  kind;
    bit<8>  index;    // of the member that answers
    bit<16> slot;     // this switch's index of the group
    bit<16> members;  // a bit for each current member
    bit<16> next_hop;
    bit<32> own;      // what is acknowledged, as a record; of a CNP, the time
    bit<32> low;      // the lowest record so far; of a CNP, the time less the gap
}
