// Headers, metadata and the constants of the wire.

const bit<9>  CPU_PORT        = 510;     // of packet-in and packet-out
const bit<16> ETHERTYPE_IPV4  = 0x0800;
const bit<16> ETHERTYPE_ARP   = 0x0806;
const bit<16> ETHERTYPE_HELLO = 0x88b5;  // IEEE 802 local experimental: the agents' hellos
const bit<8>  PROTO_TCP       = 6;
const bit<8>  PROTO_UDP       = 17;
const bit<16> UDP_ROCE        = 4791;
const bit<3>  URGENT          = 1;       // the class that queues serve first; of two, 0 and 1

// Why a packet went to the agent.
enum bit<7> Punt {
    NONE  = 0,
    ARP   = 1,  // for an address or MAC of the router
    LOCAL = 2,  // IP to an address of the router
    HELLO = 3
}

// First bytes of a packet to the agent.
@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    Punt   reason;
}

// First bytes of a packet from the agent. It leaves as it is.
@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> pad;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header arp_t {
    bit<16> htype;
    bit<16> ptype;
    bit<8>  hlen;
    bit<8>  plen;
    bit<16> oper;
    bit<48> sha;
    bit<32> spa;
    bit<48> tha;
    bit<32> tpa;
}

header ipv4_t {
    bit<8>  version_ihl;
    bit<6>  dscp;
    bit<2>  ecn;
    bit<16> total_len;
    bit<16> id;
    bit<16> frag;       // flags and fragment offset
    bit<8>  ttl;
    bit<8>  proto;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header ipv4_options_t {
    varbit<320> data;
}

// The part of a TCP header that ECMP needs.
header tcp_ports_t {
    bit<16> src;
    bit<16> dst;
}

header udp_t {
    bit<16> src;
    bit<16> dst;
    bit<16> length;
    bit<16> checksum;
}

// Base transport header. Bits that this program never looks at are left
// together by the byte.
header bth_t {
    bit<8>  opcode;
    bit<8>  flags;      // SE, MigReq, PadCnt, TVer
    bit<16> pkey;
    bit<8>  ecn;        // FECN, BECN, reserved; not covered by the ICRC
    bit<24> dest_qp;
    bit<8>  ack_req;    // AckReq, reserved
    bit<24> psn;
}

header reth_t {
    bit<64> va;
    bit<32> rkey;
    bit<32> length;
}

header aeth_t {
    bit<8>  syndrome;
    bit<24> msn;
}

// Everything between the headers above and the ICRC. Immediate values, the 16
// zero bytes of a CNP and the headers of other opcodes count as payload here:
// nothing in them is rewritten.
header payload_t {
    varbit<33024> data; // 4128 B: a path MTU of 4096, with room for what precedes it
}

header icrc_t {
    bit<32> value;      // as on the wire, least significant byte first
}

struct headers {
    packet_in_t    packet_in;
    packet_out_t   packet_out;
    ethernet_t     ethernet;
    arp_t          arp;
    ipv4_t         ipv4;
    ipv4_options_t ipv4_options;
    tcp_ports_t    tcp;
    udp_t          udp;
    bth_t          bth;
    reth_t         reth;
    aeth_t         aeth;
    payload_t      payload;
    icrc_t         icrc;
}

// What becomes of the ICRC.
enum bit<2> IcrcMode {
    RECOMPUTE = 0, // checked on the way in, computed anew where something has changed
    OFF       = 1, // neither: for NICs whose check is off
    NEUTRAL   = 2  // a copy keeps it: identification and source port cancel the change
}

// Arguments of a fault rule that matched.
enum bit<2> FaultKind {
    DROP    = 0,
    CORRUPT = 1, // the ICRC no longer fits
    MARK    = 2  // congestion experienced
}

struct fault_t {
    bit<32>   slot;
    bit<32>   epoch;
    bit<32>   first;
    bit<32>   count;
    FaultKind kind;
}

// What the tables of ackmerge.p4 say of a group, and of the member that answers.
struct merge_t {
    bit<16> slot;       // this switch's index of the group's merging state
    bit<4>  index;      // of the member
    bit<1>  bypass;     // to the sender's queue pair itself
    bit<16> members;    // a bit for each current member
    bit<16> epoch;
    bit<24> before;     // the initial PSN less one
    bit<1>  learn;      // the initial PSN is not known
    bit<32> source;     // the address that the sender's queue pair is connected to
    bit<24> sender_qpn;
    bit<32> cnp_gap;    // µs
    bit<64> lowest;     // state of the member that is farthest behind
}

// What a copy's headers are to be, and the constant that cancels the change:
// IPv4 identification ++ UDP source port, to be XORed.
struct copy_t {
    bit<32> dst;
    bit<24> qpn;
    bit<64> va;
    bit<32> rkey;
    bit<32> neutral;
}

struct metadata {
    bit<16> rest;        // bytes of RoCE payload still to be parsed
    bit<1>  direct;      // from the agent: leaves unchanged
    Punt    punt;
    IcrcMode icrc_mode;
    bit<1>  icrc_stale;  // a field that the ICRC covers has changed, and nothing cancels that
    bit<1>  corrupt;     // a fault rule spoils the ICRC
    bit<32> hash_seed;   // makes the switches' ECMP choices differ
    bit<16> l4_src;
    bit<16> l4_dst;
    bit<32> flow;        // hash of the flow
    bit<16> flood_group; // of the ingress port's bridge
    bit<1>  flooded;
    bit<16> ecmp;
    bit<16> next_hop;    // 0: bridged
    bit<1>  replicated;
    bit<16> pre_groups;  // equal paths of a multicast group
    bit<16> group;       // this switch's index of a multicast group
    bit<1>  last;        // the copy has its receiver's address now
    copy_t  copy;
    fault_t fault;
    merge_t merge;
}

// RC opcodes that the program tells apart.
const bit<8> OP_WRITE_FIRST    = 0x06; // 00-05: SEND, 06-0b: WRITE
const bit<8> OP_WRITE_ONLY     = 0x0a;
const bit<8> OP_WRITE_ONLY_IMM = 0x0b;
const bit<8> OP_ACK            = 0x11;
const bit<8> OP_CNP            = 0x81;
