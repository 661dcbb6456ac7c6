package main

import (
	"bytes"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// encode appends w in its canonical form: members are equivalent, so states that differ only in the
// order of members are the same. It returns the members' order in that form.
func (m *machine) encode(w *world, to []byte) ([]byte, [maxMembers]byte) {
	flags := byte(w.n)
	if w.learn {
		flags |= 0x20
	}
	f := &w.left
	to = append(to, flags, f.losses, f.duplicates, f.reorderings, f.earlyTimeouts, f.deaths, f.removals, f.restarts, f.lies)
	to = append(to, byte(len(w.sender)))
	to = append(to, w.sender...)
	to = m.appendRecord(to, w.passed)
	to = appendPackets(to, &w.held)

	var ends [maxMembers + 1]int
	var order [maxMembers]byte
	m.blocks = m.blocks[:0]
	for i := range w.n {
		m.blocks = m.appendMember(m.blocks, &w.members[i])
		ends[i+1] = len(m.blocks)
		order[i] = byte(i)
	}
	block := func(i byte) []byte { return m.blocks[ends[i]:ends[i+1]] }
	slices.SortStableFunc(order[:w.n], func(a, b byte) int { return bytes.Compare(block(a), block(b)) })
	for _, i := range order[:w.n] {
		to = append(to, block(i)...)
	}
	return to, order
}

func (m *machine) appendMember(to []byte, b *member) []byte {
	flags := byte(0)
	for i, on := range []bool{b.current, b.dead, b.unready, b.liar} {
		if on {
			flags |= 1 << i
		}
	}
	to = append(to, flags, byte(len(b.state)))
	to = append(to, b.state...)
	to = m.appendRecord(to, b.record)
	to = append(to, b.said)
	to = appendPackets(to, &b.held)
	return appendPackets(to, &b.answers)
}

// appendRecord appends a record of this epoch; all others are equivalent to none.
func (m *machine) appendRecord(to []byte, r ackmerge.Record) []byte {
	if r.Epoch != m.epoch {
		return append(to, 0)
	}
	return append(to, 1, byte(r.MSN), encodePSN(r.PSN))
}

func appendPackets(to []byte, q *queue) []byte {
	to = append(to, q.n)
	for _, p := range q.all() {
		ack := byte(0)
		if p.ack {
			ack = 1
		}
		to = append(to, p.psn, ack, byte(p.syndrome), p.msn)
	}
	return to
}

// decode is the inverse of encode.
func (m *machine) decode(b []byte) *world {
	d := decoder{b: b, epoch: m.epoch}
	flags := d.byte()
	w := &world{learn: flags&0x20 != 0, n: int(flags & 0xf)}
	f := &w.left
	for _, v := range []*byte{&f.losses, &f.duplicates, &f.reorderings, &f.earlyTimeouts, &f.deaths, &f.removals, &f.restarts, &f.lies} {
		*v = d.byte()
	}
	w.sender = d.bytes()
	w.passed = d.record()
	w.held = d.packets()
	for i := range w.n {
		flags := d.byte()
		w.members[i] = member{current: flags&1 != 0, dead: flags&2 != 0, unready: flags&4 != 0, liar: flags&8 != 0,
			state: d.bytes(), record: d.record(), said: d.byte(), held: d.packets(), answers: d.packets()}
	}
	return w
}

type decoder struct {
	b     []byte
	epoch uint16
}

func (d *decoder) byte() (v byte) {
	v, d.b = d.b[0], d.b[1:]
	return v
}

// bytes returns a part of the decoded data; the caller must not write to it.
func (d *decoder) bytes() (v []byte) {
	n := d.byte()
	v, d.b = d.b[:n:n], d.b[n:]
	return v
}

func (d *decoder) record() ackmerge.Record {
	if d.byte() == 0 {
		return ackmerge.Record{}
	}
	r := ackmerge.Record{Epoch: d.epoch, MSN: uint32(d.byte())}
	r.PSN = packet{psn: d.byte()}.wire()
	return r
}

func (d *decoder) packets() (q queue) {
	for range d.byte() {
		q.push(packet{psn: d.byte(), ack: d.byte() != 0, syndrome: rocev2.Syndrome(d.byte()), msn: d.byte()})
	}
	return q
}
