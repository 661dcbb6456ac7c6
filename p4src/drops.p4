// Why packets are dropped: the indices of the counters ingress.drops and
// egress.drops. bmv2/reasons.go names them for people; a test compares.

const bit<32> DROP_MALFORMED     = 0;  // does not parse: lengths that disagree, cut short
const bit<32> DROP_IP_CHECKSUM   = 1;
const bit<32> DROP_ICRC          = 2;
const bit<32> DROP_TTL           = 3;
const bit<32> DROP_NO_ROUTE      = 4;
const bit<32> DROP_NO_NEXT_HOP   = 5;
const bit<32> DROP_NO_NEIGHBOUR  = 6;
const bit<32> DROP_UNKNOWN_MAC   = 7;  // no bridge on the port that it came from
const bit<32> DROP_OPCODE        = 8;  // READ, atomic or unknown, to a multicast group
const bit<32> DROP_NO_REPLICA    = 9;  // a copy that no rule describes
const bit<32> DROP_NOT_MEMBER    = 10; // acknowledgement by a removed member, or of a removed group
const bit<32> DROP_SYNDROME      = 11; // an AETH that is none of ACK, RNR NAK, NAK
const bit<32> DROP_ABSORBED      = 12; // an ACK that tells the sender nothing: merged
const bit<32> DROP_STALE_NAK     = 13; // the member has acknowledged the packet since
const bit<32> DROP_UNDECIDED_NAK = 14; // not every member has been heard of yet
const bit<32> DROP_CNP_FILTER    = 15;
const bit<32> DROP_FAULT         = 16; // by a rule of fault injection
const bit<32> DROP_SPOOFED       = 17; // not from a host that is at this guarded port
const bit<32> DROP_UNREADABLE    = 18; // at a guarded port, neither plain IPv4 nor well-formed ARP
const bit<32> DROP_WINDOW        = 19; // an answer behind what the sender was told, or too far ahead
const bit<32> DROP_BYPASS        = 20; // to a sender's queue pair itself, past merging
const bit<32> DROP_REASONS       = 32; // size of the counters
