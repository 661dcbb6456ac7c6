// Package udplink attaches a softroce device to the host's own IP stack: a
// link.Link for one local IPv4 address and UDP port 4791.
//
// # The ICRC and the IP identification
//
// The ICRC covers the IPv4 header with its identification, which a UDP socket can neither set nor
// see. Sending is simple: an unconnected Linux socket that sets Don't Fragment sends identification
// 0, and segments of one UDP GSO message get 0, 1, 2, … in order, whether the kernel or the NIC
// cuts them. Receiving has two modes:
//
//   - RXRaw reads whole IP packets from a raw socket and so sees the identification. It accepts
//     packets of any sender: real NICs, the kernel's rdma_rxe, this package. It needs CAP_NET_RAW.
//     A UDP socket reserves the port and drops its packets, so /proc/net/snmp counts each packet as
//     a UDP InErrors.
//   - RXUDP reads from a UDP socket, without privilege. It accepts packets whose ICRC is right for
//     an identification of 0 to 63, which are the only ones that this package sends. Trying 64
//     values leaves 26 of the 32 bits of the check, and the UDP checksum. Packets of other senders,
//     with other identifications, are dropped as rx_drop_icrc, and so are copies whose
//     identification a switch has changed: see SeesIdentification.
//
// RXAuto, the default, chooses RXRaw if the process may open raw sockets.
//
// # Offloads
//
// Packets move in batches (sendmmsg, recvmmsg). Consecutive packets of the same length to one peer
// leave as one GSO message. On loopback and on virtual links such a message arrives in one piece,
// and the kernel may merge packets of any length that arrive together (GRO). RXUDP learns the
// segment size from the kernel (UDP_GRO). RXRaw finds the length that makes the ICRC of the first
// segment right. The identifications of the other segments count up from the first's, are all equal
// to it, or have had the same bits flipped by a switch. Every offload can be switched off, see
// Options.
package udplink
