// Package rdma is the transport of package rdmcfallback over RDMA devices: blocks travel on
// reliable-connection queue pairs of package qp, of any driver ("RDMC: A Reliable RDMA Multicast
// for Large Objects", DSN 2018, §4.2). The control connections of package tcp are its bootstrap,
// and carry control messages, the addresses of queue pairs, and notifications that a member has
// ended.
//
// # Queue pairs
//
// Members that exchange no blocks have no queue pair. The member that first posts a buffer for a
// peer's blocks creates one, for blocks in this one direction, and tells the peer its number and
// first PSN; the peer creates the other end and answers. A block is a SEND with immediate into the
// posted buffer. Readiness flows in the opposite direction: an empty SEND whose immediate value is
// the total number of buffers posted. So the receive queue at the receiver of blocks holds posted
// buffers only, and at the sender only empty receives; readiness never consumes a block's buffer,
// nor waits behind a block of the other direction. If both peers send, there are two queue pairs.
//
// Readiness could also travel on the control connection. Between software devices on one machine
// that takes just as long (BenchmarkReady), but it allocates, and with NICs it would cost kernel
// time for every block.
//
// A member sends only if a receive was posted. A receiver that is not ready (RNR NAK) is therefore
// a peer that violates the protocol, and is considered failed after a few retries. Sent is the
// acknowledgement: the peer's device has the block.
//
// A relay's acknowledgements and readiness use the same outgoing link as its blocks. If the
// device's window allows a whole block to queue for a slow link, they wait behind it, and the next
// block cannot start. For softroce on links of 1 Gb/s, open the device with window=48: 64 MB to
// three receivers then take 1.05 times the time of one transfer instead of 1.4.
//
// # Small messages
//
// For small messages there is a queue pair from the root to each receiver, which the root offers
// when it puts the first one. The receiver answers with the address and key of its ring. Into the
// next slot of the ring the root writes each message by an RDMA WRITE with immediate, so that the
// receiver gets a completion (DSN §4.6). The total number of slots freed flows in the opposite
// direction, like readiness. Both ends post as many receives as there are slots; the receiver posts
// those for further messages before it reports the slots free.
//
// The root keeps a copy of each message until the device has completed it, in as many slots for
// each receiver as the receiver has.
//
// # Memory
//
// Devices only read and write registered memory. Memory is registered when a buffer in it is first
// used, up to the end of the slice's capacity, which for a block of a message is the message's end,
// but at most 64 MiB at once. Some idle regions stay registered, so that blocks of the same
// message, or of the next one in the same buffer, find theirs. The Go runtime neither moves nor
// reuses memory while it is registered. An application that uses other memory, such as a mapped
// file, must call Transport.Forget before it unmaps the memory.
//
// # Failures
//
// A queue pair that fails, for example because the peer's device has not responded for about a
// second, causes Down with the reason, and so does a control connection that ends. The first of
// these ends both queue pairs to the peer.
//
// # Wire format
//
// All numbers are big-endian. The hello of the control connections begins with "RDMC/QP", a zero
// byte, the version (16 bits), the largest path MTU in bytes (16 bits) and the device's IPv4
// address (32 bits); the rest is Options.Hello. Messages on the control connection have a kind (8
// bits): 0, a message of Tell, or the end of one; 1, the beginning of a message of Tell that has
// MaxTell bytes, all except the last; 2, an offer, and 3, the answer to one, each with the number
// of a queue pair and the PSN of the first packet that it will send (32 bits each); 4, an offer of
// a queue pair for small messages, as 2, and 5, the answer, followed by the ring's address (64
// bits), remote key and length (32 bits each).
//
// The ring's slots all have the same length, the smallest sufficient multiple of 64 bytes. A slot
// holds the message's number, its imm, its length (32 bits each), and its bytes. The WRITE's
// immediate value is the number as well. Numbers start at 0 and wrap; the slots are used in turn.
//
// The package imports no device driver: the application opens a device.
package rdma
