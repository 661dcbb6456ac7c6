// Package udplink attaches a softroce device to the host's own IP stack: a
// link.Link for one local IPv4 address and UDP port 4791.
//
// # The ICRC and the IP identification
//
// The ICRC covers the IPv4 header with its identification, which a UDP socket
// neither chooses nor shows. Sending is simple: an unconnected Linux socket
// that sets Don't Fragment sends identification 0, and segments of one UDP GSO
// message get 0, 1, 2, … in order, whether the kernel or the NIC cuts them.
// Receiving has two modes:
//
//   - RXRaw reads whole IP packets from a raw socket and so knows the
//     identification. It takes packets of any sender: real NICs, the kernel's
//     rdma_rxe, this package. It needs CAP_NET_RAW. A UDP socket holds the
//     port and drops what it gets, so /proc/net/snmp counts each packet as a
//     UDP InErrors.
//   - RXUDP reads from a UDP socket, without privilege. It takes packets whose
//     ICRC is right for an identification of 0 to 63, which are all that this
//     package sends. Packets of other senders, which number them in their own
//     ways, are dropped as rx_drop_icrc. 26 of the 32 bits of the check are
//     left, and the UDP checksum. So are copies whose identification a switch has
//     changed: see SeesIdentification.
//
// RXAuto, the default, takes RXRaw if the process may.
//
// # Offloads
//
// Packets move in batches (sendmmsg, recvmmsg). Consecutive packets of one
// length to one place leave as one GSO message. On loopback and on virtual
// links such a message arrives in one piece, and packets of any length that come together may be put together (GRO); RXUDP learns the segment size from
// the kernel (UDP_GRO), RXRaw finds the length that makes the ICRC of the
// first segment right, and the identifications of the others, which count up from the
// first's, are all like it, or had the same bits turned round by a switch. Every offload can be switched off, see Options.
package udplink
