package match

import (
	"math/bits"
	"slices"
)

// index is a set of numbered keys of n words each: an open-addressing hash table with linear
// probing over a flat array of keys. Numbers start at 1 and are reused after removal.
type index struct {
	n     int
	slots []slot   // a power of two; at most 3/4 in use
	keys  []uint64 // of number id: keys[id*n : id*n+n]
	used  []bool   // by number
	free  []uint32 // numbers to reuse
	live  int
}

// slot is one slot of the hash table; id 0 means free. It has the whole hash, which avoids most
// comparisons of keys and all rehashing.
type slot struct{ hash, id uint32 }

const firstSlots = 8

func newIndex(n int) *index {
	return &index{n: n, slots: make([]slot, firstSlots), keys: make([]uint64, n), used: make([]bool, 1)}
}

// key returns the key with that number; it is valid until the next add.
func (x *index) key(id uint32) []uint64 {
	at := int(id) * x.n
	return x.keys[at : at+x.n : at+x.n]
}

// find returns the number of a key, or 0.
func (x *index) find(w []uint64) uint32 {
	h := hashWords(w)
	mask := uint32(len(x.slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		s := x.slots[i]
		if s.id == 0 {
			return 0
		}
		if s.hash == h && slices.Equal(x.key(s.id), w) {
			return s.id
		}
	}
}

// add adds a key, which must not be present, and returns its number.
func (x *index) add(w []uint64) uint32 {
	if 4*(x.live+1) > 3*len(x.slots) {
		x.grow()
	}
	var id uint32
	if n := len(x.free); n > 0 {
		id = x.free[n-1]
		x.free = x.free[:n-1]
		copy(x.key(id), w)
		x.used[id] = true
	} else {
		id = uint32(len(x.used))
		x.keys = append(x.keys, w...)
		x.used = append(x.used, true)
	}
	x.live++
	x.insert(slot{hashWords(w), id})
	return id
}

// remove removes the key with that number.
func (x *index) remove(id uint32) {
	mask := uint32(len(x.slots) - 1)
	hole := hashWords(x.key(id)) & mask
	for x.slots[hole].id != id {
		hole = (hole + 1) & mask
	}
	// Move later keys of the probe sequence into the hole, so that no tombstones are needed.
	for i := (hole + 1) & mask; x.slots[i].id != 0; i = (i + 1) & mask {
		if home := x.slots[i].hash & mask; (i-home)&mask >= (i-hole)&mask {
			x.slots[hole] = x.slots[i]
			hole = i
		}
	}
	x.slots[hole] = slot{}
	x.used[id] = false
	x.free = append(x.free, id)
	x.live--
}

func (x *index) grow() {
	old := x.slots
	x.slots = make([]slot, 2*len(old))
	for _, s := range old {
		if s.id != 0 {
			x.insert(s)
		}
	}
}

func (x *index) insert(s slot) {
	mask := uint32(len(x.slots) - 1)
	i := s.hash & mask
	for x.slots[i].id != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = s
}

// seed and factor are arbitrary odd numbers. Keys come from the control plane, so the hash need not
// resist attacks.
const (
	seed   = 0x9fb21c651e98df25
	factor = 0xd6e8feb86659fd93
)

func hashWords(w []uint64) uint32 {
	h := uint64(seed)
	for _, a := range w {
		h = mix(h, a)
	}
	return fold(h)
}

func mix(h, a uint64) uint64 {
	hi, lo := bits.Mul64(h^a, factor)
	return hi ^ lo
}

func fold(h uint64) uint32 { return uint32(h ^ h>>32) }
