// Package peerproto is what the interoperability tests speak with their two
// endpoint programs (command peer): lines of JSON on the program's standard
// input and output, one Response for each Request, in order. It also states
// what data a Batch consists of, so that both ends can make it from a seed.
package peerproto

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Request asks for one operation: exactly one of the pointers is set.
type Request struct {
	Create   *Create   `json:",omitempty"`
	Connect  *Connect  `json:",omitempty"`
	Prepare  *Prepare  `json:",omitempty"`
	Send     *Send     `json:",omitempty"`
	Collect  *Batch    `json:",omitempty"`
	Listen   *Listen   `json:",omitempty"`
	Pingpong *Pingpong `json:",omitempty"`
	State    *State    `json:",omitempty"`
	Counters *Counters `json:",omitempty"`
}

// A Response is the answer. Err is empty for success.
type Response struct {
	Err      string            `json:",omitempty"`
	Endpoint *Endpoint         `json:",omitempty"` // to Create
	Messages []Message         `json:",omitempty"` // to Send and Collect
	State    string            `json:",omitempty"` // to State
	Counters map[string]uint64 `json:",omitempty"` // to Counters
}

// Create makes a queue pair with its memory, in place of the last one, and
// brings it to INIT.
type Create struct {
	PSN rocev2.PSN // to start sending with
}

// An Endpoint is what a peer has to know of the other.
type Endpoint struct {
	Addr      netip.Addr
	QPN       rocev2.QPN
	PSN       rocev2.PSN
	VA        uint64 // of the receive buffer
	RKey      uint32
	ActiveMTU int
}

// Connect brings the queue pair to RTS.
type Connect struct {
	Peer        Endpoint
	MTU         int
	Timeout     uint8
	RetryCnt    uint8
	RNRRetry    uint8
	MinRNRTimer uint8
	DSCP        uint8
}

// A Batch is a sequence of messages of one kind.
type Batch struct {
	Opcode qp.Opcode
	Sizes  []int
	Seed   uint64
}

// Prepare clears the receive buffer for a batch and, unless NoPost is set,
// posts receive requests for it. For READs it fills the buffer with what the
// other side is to read.
type Prepare struct {
	Batch
	// NoClear posts only: the second half of a Prepare with NoPost.
	NoClear, NoPost bool
	// Short is subtracted from the sizes of the receive requests.
	Short int
}

// Send sends a batch, or reads it, and waits for the completions.
type Send struct {
	Batch
	// RKeyXor spoils the rkey, VAOffset moves the target.
	RKeyXor  uint32
	VAOffset uint64
}

// A Message describes one message as an end saw it.
type Message struct {
	Status  qp.Status
	Text    string `json:",omitempty"` // the status in words
	Len     int
	Imm     *uint32 `json:",omitempty"`
	Opcode  string  // of the completion; empty where there is none
	Hash    string
	Trouble string `json:",omitempty"` // what is wrong besides
}

// Listen prepares for Pingpong as a server; it answers when clients can
// connect to TCP port Port.
type Listen struct{ Port uint16 }

// Pingpong plays against rdma-core's ibv_rc_pingpong.
type Pingpong struct {
	// Server is the other's TCP address; if not valid, this side is the
	// server that Listen has made.
	Server      netip.AddrPort
	Iters, Size int
	MTU         int
}

// State asks for the queue pair's state.
type State struct{}

// Counters asks for the device's counters.
type Counters struct{}

// Guard is what the receive buffer is filled with where no message lands.
const Guard = 0xa5

// Layout returns where in the buffers the messages of the batch lie, and the
// size of all. Gaps of one to four bytes keep the guards and make most
// addresses odd.
func (b *Batch) Layout() (offs []int, total int) {
	total = 1
	for i, n := range b.Sizes {
		offs = append(offs, total)
		total += n + 1 + i&3
	}
	return offs, total
}

// Fill writes the batch's messages into buf, which is as long as Layout says.
func (b *Batch) Fill(buf []byte) {
	offs, _ := b.Layout()
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], b.Seed)
	key[8] = byte(b.Opcode)
	rng := rand.NewChaCha8(key)
	for i, n := range b.Sizes {
		_, _ = rng.Read(buf[offs[i]:][:n]) // never fails
	}
}

// Imm returns the immediate data of message i, for the opcodes that have it.
func (b *Batch) Imm(i int) uint32 { return uint32(b.Seed)*2654435761 + uint32(i)<<24 + 1 }

// Receives reports whether the messages consume receive requests.
func (b *Batch) Receives() bool { return b.Opcode != qp.OpWrite && b.Opcode != qp.OpRead }

// Hash returns the hash by which the two ends' data are compared.
func Hash(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:8])
}
