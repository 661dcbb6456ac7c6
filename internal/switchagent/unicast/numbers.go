package unicast

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A hopKey is what a next hop's number stands for.
type hopKey struct {
	port     uint16
	src, dst switchspec.MAC
}

func (k hopKey) compare(o hopKey) int {
	return cmp.Or(cmp.Compare(k.port, o.port), bytes.Compare(k.src[:], o.src[:]), bytes.Compare(k.dst[:], o.dst[:]))
}

// hopNumbers gives next hops their numbers.
type hopNumbers struct {
	byKey map[hopKey]uint16
	slots [MaxNextHops + 1]*hopSlot
	last  uint16 // given
}

type hopSlot struct {
	key     hopKey
	uses    int  // by groups
	ways    int  // that need it
	adopted bool // and not settled
}

func newHopNumbers() *hopNumbers { return &hopNumbers{byKey: map[hopKey]uint16{}} }

func (n *hopNumbers) at(number uint16) *hopSlot {
	if int(number) >= len(n.slots) {
		return nil
	}
	return n.slots[number]
}

// adopt gives a number to what has none yet, if it is free.
func (n *hopNumbers) adopt(number uint16, k hopKey) bool {
	if number == 0 || int(number) >= len(n.slots) || n.slots[number] != nil || n.byKey[k] != 0 {
		return false
	}
	n.slots[number] = &hopSlot{key: k, adopted: true}
	n.byKey[k] = number
	n.last = max(n.last, number)
	return true
}

func (n *hopNumbers) settle() {
	for _, s := range n.slots {
		if s != nil {
			s.adopted = false
		}
	}
}

// of are the numbers of next hops, up to the first that has none.
func (n *hopNumbers) of(keys []hopKey) []uint16 {
	out := make([]uint16, 0, len(keys))
	for _, k := range keys {
		if n.byKey[k] == 0 {
			break
		}
		out = append(out, n.byKey[k])
	}
	return out
}

// give gives a next hop a number, in turn; one must be free.
func (n *hopNumbers) give(k hopKey) uint16 {
	for n.last = n.last%MaxNextHops + 1; n.slots[n.last] != nil; {
		n.last = n.last%MaxNextHops + 1
	}
	n.slots[n.last] = &hopSlot{key: k}
	n.byKey[k] = n.last
	return n.last
}

// take takes a number back that nothing needs, and reports whether it did.
func (n *hopNumbers) take(number uint16) bool {
	s := n.slots[number]
	if s == nil || s.uses > 0 || s.adopted || s.ways > 0 {
		return false
	}
	n.slots[number] = nil
	delete(n.byKey, s.key)
	return true
}

// ecmpNumbers gives ECMP groups their numbers. As each group has at least two members,
// numbers do not run out before members do.
type ecmpNumbers struct {
	used    [MaxECMPGroups + 1]bool
	members int
	last    uint16
}

// free is the next number that is free, if there is room for a group of so many; else 0.
func (n *ecmpNumbers) free(members int) uint16 {
	if n.members+members > MaxECMPMembers {
		return 0
	}
	id := n.last%MaxECMPGroups + 1
	for n.used[id] {
		id = id%MaxECMPGroups + 1
	}
	return id
}

func (n *ecmpNumbers) put(id uint16, members int) {
	n.used[id] = true
	n.members += members
	n.last = id
}

func (n *ecmpNumbers) drop(id uint16, members int) {
	n.used[id] = false
	n.members -= members
}

// ecmpKey makes a key of next hops' numbers.
func ecmpKey(numbers []uint16) string {
	var b []byte
	for _, n := range slices.Sorted(slices.Values(numbers)) {
		b = binary.BigEndian.AppendUint16(b, n)
	}
	return string(b)
}

func ecmpHops(key string) []switchspec.ECMPHop {
	list := make([]switchspec.ECMPHop, 0, len(key)/2)
	for b := []byte(key); len(b) > 0; b = b[2:] {
		list = append(list, switchspec.ECMPHop{NextHop: binary.BigEndian.Uint16(b), Weight: 1})
	}
	return list
}
