package fastpath

import (
	"encoding/binary"
	"fmt"

	"github.com/mcrdma/mcrdma/bpf"
)

// maxSets is the maximum number of port sets in the kernel: at least one for each PRE group.
const maxSets = 1<<16 - 1

// sets are the sets of ports, which PRE groups share.
type sets struct {
	numbers map[portSet]uint32
	next    uint32   // the lowest number that was never used
	free    []uint32 // of sets that are not used any more
	most    uint32
}

func newSets() sets { return sets{numbers: map[portSet]uint32{}, next: 1, most: maxSets} } // 0 means none

// assign gives numbers to the sets that a change needs, and returns those that had none.
func (s *sets) assign(c *change) (added []portSet, err error) {
	for _, v := range c.put {
		is := setIn(v.is)
		if _, there := s.numbers[is]; there || is == "" {
			continue
		}
		n := s.next
		switch {
		case n <= s.most:
			s.next++
		case len(s.free) > 0:
			n, s.free = s.free[0], s.free[1:]
		default:
			return added, fmt.Errorf("there are more than %d sets of ports that groups are copied to", s.most)
		}
		s.numbers[is] = n
		added = append(added, is)
	}
	return added, nil
}

// of returns the numbers of sets.
func (s *sets) of(list []portSet) map[uint32]portSet {
	m := map[uint32]portSet{}
	for _, is := range list {
		m[s.numbers[is]] = is
	}
	return m
}

// collect frees the numbers of sets that no port or PRE group uses, if there are no others. The
// kernel's tables must be as planned: it must not use them either.
func (s *sets) collect(l *plan) {
	if s.next <= s.most || len(s.free) > 0 {
		return
	}
	used := map[portSet]bool{}
	for _, has := range l.have {
		for _, v := range has {
			used[setIn(v)] = true
		}
	}
	for is, n := range s.numbers {
		if !used[is] {
			delete(s.numbers, is)
			s.free = append(s.free, n)
		}
	}
}

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
