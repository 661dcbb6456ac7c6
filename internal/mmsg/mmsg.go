// Package mmsg sends and receives UDP datagrams in batches: one system call
// moves many (sendmmsg and recvmmsg), waiting is the Go runtime's poller, and in
// steady state nothing is allocated.
//
//	sock, err := mmsg.New(udpConn)
//	n, err := sock.Recv(msgs) // waits for at least one datagram
//	n, err = sock.Send(msgs)  // waits while the socket's buffer is full
//
// Deadlines, buffer sizes and Close stay with the *net.UDPConn.
package mmsg

import (
	"errors"
	"net/netip"
)

// MaxBatch is the largest number of datagrams that one system call moves.
// Send goes through longer slices in pieces; Recv fills at most this many.
const MaxBatch = 64

// ErrAddr is wrapped if a message's address cannot be reached from the socket.
var ErrAddr = errors.New("mmsg: bad address")

// A Message is one datagram.
type Message struct {
	// Buf is the datagram to send, or the room for one to receive.
	Buf []byte
	// N is the length of a received datagram in Buf.
	N int
	// Truncated tells that a received datagram was longer than Buf: only its
	// first N bytes are there.
	Truncated bool
	// Addr is where the datagram goes, or the zero value on a connected
	// socket; of a received one, where it came from. Zones are not supported.
	Addr netip.AddrPort
}
