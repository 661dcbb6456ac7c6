package engine

import (
	"math/bits"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// big marks the immediate values of messages of 2^31 bytes and more.
const big = 1 << 31

// A shape is the division of a message into blocks.
type shape struct {
	size   int64
	blocks int64
	each   int64 // length of all blocks except the last
}

// shapeOf returns the shape of a message, and false if it has more than
// schedule.MaxBlocks blocks.
func (e *Engine) shapeOf(size int64) (shape, bool) {
	each := int64(e.cfg.BlockSize)
	s := shape{size: size, blocks: 1, each: each}
	if size > each && !e.isSmall(size) {
		s.blocks = (size-1)/each + 1
		return s, s.blocks <= schedule.MaxBlocks
	}
	if !e.isSmall(size) {
		s.blocks = e.minBlocks
	}
	s.each = (size + s.blocks - 1) / s.blocks
	return s, true
}

// imm returns the immediate value of the message's blocks.
func (s *shape) imm() uint32 {
	if s.size < big {
		return uint32(s.size)
	}
	return big | uint32(s.blocks-1)
}

// span returns the position of a block.
func (s *shape) span(number, block int64) Span {
	off := min(block*s.each, s.size)
	return Span{Message: number, Off: off, Len: int(min(s.each, s.size-off))}
}

// isSmall reports whether a message goes through the ring.
func (e *Engine) isSmall(size int64) bool { return e.cfg.SmallMax > 0 && size <= int64(e.cfg.SmallMax) }

// isTold reports whether the root announces the size of a message with this immediate value.
func (e *Engine) isTold(imm uint32) bool { return imm >= big || e.cfg.SmallMax > 0 }

// minBlocks returns the minimum number of blocks per message for which the first sender of each
// node does not depend on the number of blocks.
func minBlocks(a schedule.Algorithm, nodes int, racks *schedule.Racks) int64 {
	uneven := false
	switch a {
	case schedule.BinomialPipeline:
		uneven = !powerOfTwo(nodes)
	case schedule.Hybrid:
		uneven = !powerOfTwo(racks.Len())
		for x := range racks.Len() {
			uneven = uneven || !powerOfTwo(racks.Size(x))
		}
	}
	if uneven {
		return 2
	}
	return 1
}

func powerOfTwo(n int) bool { return bits.OnesCount(uint(n)) == 1 }

// A message is a message that the member is working on.
type message struct {
	number int64
	shape
	imm  uint32
	node schedule.Node

	send, recv        schedule.Transfer // the next ones to issue
	sends, recvs      bool              // whether there are such
	sending           int               // sends in flight
	small             bool              // it goes through the ring
	putTo             int               // root: the receiver whose ring gets it next
	missing           int64             // blocks that have not arrived yet
	held              []uint64          // one bit per block that has arrived; unused at the root
	opened, hasMemory bool              // at a receiver: the application was asked for memory, and has provided it
}

// begin begins a message of the given shape.
func (e *Engine) begin(number int64, s shape) *message {
	m := &e.ring[number%Window]
	*m = message{number: number, shape: s, imm: s.imm(), held: m.held}
	if m.small = e.isSmall(s.size); m.small {
		m.putTo, m.sends = 1, e.cfg.Self == 0 && e.nodes > 1
	} else if e.nodes > 1 {
		// New has checked the arguments of the group, and shapeOf the number of blocks.
		sched, _ := schedule.New(e.cfg.Algorithm, e.nodes, s.blocks, e.racks)
		m.node, _ = sched.Node(e.cfg.Self)
		m.send, m.sends = m.node.NextSend(-1)
		m.recv, m.recvs = m.node.NextRecv(-1)
	}
	if e.cfg.Self != 0 {
		m.missing = s.blocks
	}
	return m
}

// newest returns the message begun last.
func (m *messages) newest() *message { return &m.ring[max(m.started-1, 0)%Window] }

// mayBegin reports whether a receiver may begin another message: the window has room, and all
// blocks of the newest message have been requested or, if it is a prompt one, it is complete. Its
// block in the spare block counts as requested when it is copied.
func (e *Engine) mayBegin() bool {
	if e.started == e.complete {
		return true
	}
	m := e.newest()
	return e.started-e.complete < Window && !m.recvs && m.size > int64(e.cfg.Prompt)
}

// prepare prepares for blocks, when there is memory for them. It allocates the bits only now, so
// that an absurd size costs nothing.
func (m *message) prepare() {
	words := int((m.blocks + 63) / 64)
	if len(m.held) < words {
		m.held = make([]uint64, words)
	}
	clear(m.held)
	m.hasMemory = true
}

// holds reports whether a block has arrived.
func (m *message) holds(block int64) bool {
	return m.missing == 0 || m.hasMemory && m.held[block/64]&(1<<(block%64)) != 0
}

// take records the arrival of a block. By the schedule each block arrives once.
func (m *message) take(block int64) {
	m.held[block/64] |= 1 << (block % 64)
	m.missing--
}

// over reports whether the member has nothing left to do for m.
func (m *message) over() bool { return m.missing == 0 && !m.sends && m.sending == 0 }
