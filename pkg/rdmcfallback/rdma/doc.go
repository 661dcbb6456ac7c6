// Package rdma is the transport of package rdmcfallback over RDMA devices: blocks travel on
// reliable-connection queue pairs of package qp, whatever drives them ("RDMC: A Reliable
// RDMA Multicast for Large Objects", DSN 2018, §4.2). Package tcp's control connections are
// its bootstrap, and carry control messages, the queue pairs' numbers, and the news that a
// member has ended.
//
// # Queue pairs
//
// Members that exchange no blocks have no queue pair. The member that first posts a buffer
// for a peer's blocks makes one, for blocks in this one direction, and tells the peer its
// number and first PSN; the peer makes the other end and answers. A block is a SEND with
// immediate into the posted buffer. Readiness flows in the opposite direction: an empty
// SEND whose immediate value is the number of buffers posted so far. So a queue pair's
// receive queue at the receiver of blocks holds posted buffers only, and at the sender only
// empty receives; readiness never takes a block's buffer, nor waits behind a block of the
// other direction. Where both peers send there are two queue pairs.
//
// Readiness could travel on the control connection, too. Between software devices
// on one machine that takes just as long (BenchmarkReady), but it allocates, and
// where there are NICs it would cost the kernel's time for every block.
//
// A member sends only what a receive was posted for. A receiver that isn't ready (RNR NAK)
// is therefore a peer that breaks the rules, and is given up after a few tries. Sent is the
// acknowledgement: the peer's device has the block.
//
// A relay's acknowledgements and readiness leave by the same link as its blocks. If the
// device's window lets a whole block wait in front of a slow link, they wait behind it, and
// the next block can't begin. For softroce on links of 1 Gb/s, open the device with
// window=48: 64 MB to three receivers then take 1.05 times the time of one transfer instead
// of 1.4.
//
// # Small messages
//
// For small messages there is a queue pair from the root to each receiver, which the root
// offers when it puts the first one. The receiver answers with the address and key of its
// ring, into which the root writes from then on: an RDMA WRITE with immediate into the next
// slot, so that the receiver has a completion (DSN §4.6). In the opposite direction, as
// readiness does, flows the number of slots freed so far. Both ends post as many receives
// as there are slots; the receiver posts those for further messages before it reports the
// slots free.
//
// The root keeps a copy of each message until the device has done with it, in as
// many slots for each receiver as that has.
//
// # Memory
//
// Devices read and write registered memory only. Memory is registered when a buffer in it
// is first used, up to the end of the slice's capacity, which for a block of a message is
// the message's end, but at most 64 MiB at once. Some regions stay registered when they are
// idle, so blocks of the same message, or of the next one in the same buffer, find theirs.
// The Go runtime neither moves memory nor uses it again for as long as it is registered. An
// application that uses other memory, such as a mapped file, calls Transport.Forget before
// it unmaps the memory.
//
// # Failures
//
// A queue pair that fails, for example because the peer's device has gone and takes nothing
// for about a second, is Down with the reason, and so is a control connection that ends.
// The first of these ends both queue pairs to the peer.
//
// # Wire format
//
// All numbers are big-endian. The hello of the control connections begins with
// "RDMC/QP", a zero, the version (16 bits), the largest path MTU in bytes (16
// bits) and the device's IPv4 address (32 bits); the rest is Options.Hello.
// Messages on the control connection have a kind (8 bits): 0, a message that was
// told, or its end; 1, the beginning of one that was told and has MaxTell bytes,
// all but its last; 2, an offer, and 3, the answer to one, each with the number
// of a queue pair and the PSN of the first packet that it will send (32 bits
// each); 4, an offer of a queue pair for small messages, as 2, and 5, the answer,
// where the ring's address (64 bits), remote key and length (32 bits each) follow.
//
// The ring's slots have the same length, a multiple of 64 bytes, as short as
// possible. In a slot are the message's number, its imm, its length (32 bits each),
// and its bytes. The WRITE's immediate value is the number as well. Numbers begin
// at 0 and wrap; the slots take turns.
//
// The package imports no device driver: the application opens a device.
package rdma
