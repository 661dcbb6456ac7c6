package simnet

import "github.com/mcrdma/mcrdma/pkg/rocev2"

// A packet is one on its way.
type packet struct {
	rocev2.Headers
	src, dst int32  // hosts
	payload  int32  // bytes
	wire     int32  // bytes
	next     int32  // in its queue, or among the unused
	in       int32  // the port that it came by
	flow     uint32 // CRC of addresses and ports
	sport    uint16
	control  bool
	ce       bool
}

// A pool holds all packets. An index stays valid when it grows; a pointer does not.
type pool struct {
	list   []packet
	unused int32
	taken  int
}

func (p *pool) take() int32 {
	p.taken++
	if i := p.unused; i != none {
		p.unused = p.list[i].next
		return i
	}
	p.list = append(p.list, packet{})
	return int32(len(p.list) - 1) //nolint:gosec // memory ends before
}

func (p *pool) give(i int32) {
	p.taken--
	p.list[i].next = p.unused
	p.unused = i
}

func (q *queue) push(p *pool, i int32) {
	k := &p.list[i]
	k.next = none
	if q.head == none {
		q.head = i
	} else {
		p.list[q.tail].next = i
	}
	q.tail = i
	q.bytes += int(k.wire)
}

func (q *queue) pop(p *pool) int32 {
	i := q.head
	q.head = p.list[i].next
	q.bytes -= int(p.list[i].wire)
	return i
}
