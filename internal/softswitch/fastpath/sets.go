package fastpath

import (
	"encoding/binary"

	"github.com/mcrdma/mcrdma/bpf"
)

// maxSets is the maximum number of port sets in the kernel.
const maxSets = 4096

// sets are the sets of ports, which PRE groups share.
type sets struct {
	numbers map[portSet]uint32
	next    uint32
}

func newSets() sets { return sets{numbers: map[portSet]uint32{}, next: 1} } // 0 means none

// unused forgets all sets and restarts their numbering.
func (s *sets) unused() { *s = newSets() }

// A preGroup is the wanted content of pre_groups for one group, without the number of its set.
type preGroup struct {
	set   portSet
	first uint32
}

// A portIn is the wanted content of ports_in for one port, without the number of its set.
type portIn struct {
	bpf.Port
	flood portSet
}

// setIn returns the set in a wanted map value, or "" if it has none.
func setIn(v any) portSet {
	switch v := v.(type) {
	case preGroup:
		return v.set
	case portIn:
		return v.flood
	}
	return ""
}

// A setOf is a set of interfaces in ascending order, as text. The map holds its number.
func setOf(interfaces []uint32) portSet {
	var s []byte
	for _, i := range interfaces {
		s = binary.NativeEndian.AppendUint32(s, i)
	}
	return portSet(s)
}

type portSet string

func (s portSet) interfaces() (list []uint32) {
	for b := []byte(s); len(b) > 0; b = b[4:] {
		list = append(list, binary.NativeEndian.Uint32(b))
	}
	return list
}

// takeUnused removes a set that no PRE group uses any more.
func (s *sets) takeUnused(l *plan) (uint32, bool) {
	used := map[portSet]bool{}
	for _, has := range l.have {
		for _, v := range has {
			used[setIn(v)] = true
		}
	}
	found, n := false, uint32(0)
	for x, number := range s.numbers {
		if !used[x] {
			found, n = true, number
			delete(s.numbers, x)
			break
		}
	}
	return n, found
}
