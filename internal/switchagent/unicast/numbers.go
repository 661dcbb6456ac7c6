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
	round uint64 // of assign
}

type hopSlot struct {
	key     hopKey
	uses    int
	round   uint64 // in which it was last wanted
	adopted bool   // and not settled
}

func newHopNumbers() *hopNumbers { return &hopNumbers{byKey: map[hopKey]uint16{}} }

func (n *hopNumbers) at(number uint16) *hopSlot {
	if int(number) >= len(n.slots) {
		return nil
	}
	return n.slots[number]
}

// adopt gives a number to what has none yet, if it is free.
func (n *hopNumbers) adopt(number uint16, k hopKey) {
	if number == 0 || int(number) >= len(n.slots) || n.slots[number] != nil || n.byKey[k] != 0 {
		return
	}
	n.slots[number] = &hopSlot{key: k, adopted: true}
	n.byKey[k] = number
	n.last = max(n.last, number)
}

func (n *hopNumbers) settle() {
	for _, s := range n.slots {
		if s != nil {
			s.adopted = false
		}
	}
}

// assign gives a number to each of the next hops that has none, in order, and takes
// those back that are neither among them nor in use. It reports whether the numbers
// sufficed.
func (n *hopNumbers) assign(want map[hopKey]bool) bool {
	n.round++
	var fresh []hopKey
	for k := range want {
		if number := n.byKey[k]; number != 0 {
			n.slots[number].round = n.round
		} else {
			fresh = append(fresh, k)
		}
	}
	slices.SortFunc(fresh, hopKey.compare)
	if len(n.byKey)+len(fresh) > MaxNextHops {
		n.sweep() // what goes is needed at once
	}
	ok := true
	for _, k := range fresh {
		if len(n.byKey) == MaxNextHops {
			ok = false
			break
		}
		for n.last = n.last%MaxNextHops + 1; n.slots[n.last] != nil; {
			n.last = n.last%MaxNextHops + 1
		}
		n.slots[n.last] = &hopSlot{key: k, round: n.round}
		n.byKey[k] = n.last
	}
	n.sweep()
	return ok
}

func (n *hopNumbers) sweep() {
	for number := range n.slots {
		n.release(uint16(number)) //nolint:gosec // 8191 at most
	}
}

// release frees a number that is neither wanted nor in use, and reports whether it
// did.
func (n *hopNumbers) release(number uint16) bool {
	s := n.slots[number]
	if s == nil || s.uses > 0 || s.adopted || s.round == n.round {
		return false
	}
	n.slots[number] = nil
	delete(n.byKey, s.key)
	return true
}

// ecmpNumbers gives ECMP groups their numbers. As each group has at least two members,
// numbers do not run out before members do.
type ecmpNumbers struct {
	bySet   map[string]uint16 // by its numbers of next hops
	sets    map[uint16]string
	members int
	last    uint16
}

func newECMPNumbers() *ecmpNumbers {
	return &ecmpNumbers{bySet: map[string]uint16{}, sets: map[uint16]string{}}
}

// ecmpKey makes a key of next hops' numbers in ascending order.
func ecmpKey(numbers []uint16) string {
	var b []byte
	for _, n := range numbers {
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

func (n *ecmpNumbers) put(id uint16, key string) {
	n.bySet[key], n.sets[id] = id, key
	n.members += len(key) / 2
	n.last = id
}

// adopt gives a number to a set that has none yet, if it is free.
func (n *ecmpNumbers) adopt(id uint16, key string) {
	if id == 0 || id > MaxECMPGroups || n.sets[id] != "" || n.bySet[key] != 0 || n.members+len(key)/2 > MaxECMPMembers {
		return
	}
	last := max(n.last, id)
	n.put(id, key)
	n.last = last
}

// assign gives a number to each of the sets that has none, in order, as far as there
// is room, and takes back those of other sets. It reports whether there was room.
func (n *ecmpNumbers) assign(want map[string]bool) bool {
	var fresh []string
	more := 0
	for key := range want {
		if n.bySet[key] == 0 {
			fresh = append(fresh, key)
			more += len(key) / 2
		}
	}
	slices.Sort(fresh)
	if n.members+more > MaxECMPMembers {
		n.sweep(want)
	}
	ok := true
	for _, key := range fresh {
		if n.members+len(key)/2 > MaxECMPMembers {
			ok = false
			continue
		}
		id := n.last%MaxECMPGroups + 1
		for n.sets[id] != "" {
			id = id%MaxECMPGroups + 1
		}
		n.put(id, key)
	}
	n.sweep(want)
	return ok
}

func (n *ecmpNumbers) sweep(want map[string]bool) {
	for id, key := range n.sets {
		if !want[key] {
			delete(n.sets, id)
			delete(n.bySet, key)
			n.members -= len(key) / 2
		}
	}
}
