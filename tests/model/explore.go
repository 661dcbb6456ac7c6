package main

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A bound says which worlds are explored.
type bound struct {
	name     string
	faults   faults
	relearn  bool                   // after a restart the rules lack the initial PSN
	optional bool                   // takes long
	merger   func() (merger, error) // nil: that of pkg/ackmerge
}

// A result is the result of an exploration.
type result struct {
	States, Transitions, Depth, Completed int
	Violation                             *violation
}

// A violation is a state in which S1 or L1 does not hold, and the shortest path to it.
type violation struct {
	What    string
	Actions []action // with members numbered as at the beginning
}

// Trace describes the path, and for L1 the endless continuation.
func (v *violation) Trace(b *bound) string {
	text, w := replay(b, v.Actions)
	if w == nil || !strings.HasPrefix(v.What, "L1") {
		return text
	}
	m := newMachine(b)
	var out strings.Builder
	out.WriteString(text)
	out.WriteString("then, though nothing goes wrong any more:\n")
	for range 20 {
		a, ok := m.fair(w)
		if !ok || m.take(w, a) != nil {
			break
		}
		fmt.Fprintf(&out, "%-24v %s\n", a, m.describe(w))
	}
	return out.String()
}

// An explorer visits every state of a bound, breadth first, so that the first violation has a
// shortest path.
type explorer struct {
	b       *bound
	seed    maphash.Seed
	shards  [64]shard
	count   atomic.Uint32
	nodes   [1 << 16]atomic.Pointer[nodes] // in blocks, so that growing does not move them
	mu      sync.Mutex
	first   *found
	edges   atomic.Int64
	initial []byte
}

// A shard is a hash table from the fingerprints of states to their numbers. Two states with the
// same fingerprint would count as one: among 100 million states, the probability of that is 3 in
// 10,000.
type shard struct {
	mu   sync.Mutex
	keys []uint64 // 0: free
	ids  []uint32
	n    int
}

// find returns the slot of a fingerprint, or the free slot for it.
func (s *shard) find(key uint64) int {
	i := int(key>>8) & (len(s.keys) - 1)
	for s.keys[i] != 0 && s.keys[i] != key {
		i = (i + 1) & (len(s.keys) - 1)
	}
	return i
}

func (s *shard) grow() {
	keys, ids := s.keys, s.ids
	s.keys, s.ids = make([]uint64, max(1<<10, 2*len(keys))), make([]uint32, max(1<<10, 2*len(keys)))
	for i, key := range keys {
		if key != 0 {
			at := s.find(key)
			s.keys[at], s.ids[at] = key, ids[i]
		}
	}
}

const blockSize = 1 << 16

// nodes are the data about each state: how it was reached, and the next state if nothing goes wrong
// any more.
type nodes [blockSize]struct {
	parent uint32
	next   uint32
	by     action
}

const (
	noNode   = ^uint32(0)
	complete = noNode - 1 // as a next: all work has completed
)

type found struct {
	what string
	at   uint32
	by   action
	last bool // by leads to the violation; otherwise at is it
}

type pending struct {
	id   uint32
	data []byte
}

// explore visits all states and reports the first violation.
func explore(b *bound) *result {
	e := &explorer{b: b, seed: maphash.MakeSeed()}
	m := newMachine(b)
	e.initial, _ = m.encode(m.initial(b), nil)
	id, _ := e.visit(e.initial, noNode, action{})
	level := []pending{{id, e.initial}}
	depth := 0
	for ; len(level) > 0 && e.first == nil; depth++ {
		level = e.expand(level)
	}
	r := &result{States: int(e.count.Load()), Transitions: int(e.edges.Load()), Depth: depth}
	if e.first == nil {
		r.Completed = e.checkL1()
	}
	if e.first != nil {
		r.Violation = &violation{e.first.what, e.path(e.first)}
	}
	return r
}

// visit returns the number of a state, and whether it is new.
func (e *explorer) visit(data []byte, parent uint32, by action) (uint32, bool) {
	key := maphash.Bytes(e.seed, data) | 1<<63
	s := &e.shards[key%uint64(len(e.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if 3*s.n >= 2*len(s.keys) {
		s.grow()
	}
	at := s.find(key)
	if s.keys[at] != 0 {
		return s.ids[at], false
	}
	id := e.count.Add(1) - 1
	s.keys[at], s.ids[at] = key, id
	s.n++
	n := &e.block(id)[id%blockSize]
	n.parent, n.by, n.next = parent, by, noNode
	return id, true
}

// block returns the block of nodes that holds one.
func (e *explorer) block(id uint32) *nodes {
	p := &e.nodes[id/blockSize]
	if b := p.Load(); b != nil {
		return b
	}
	p.CompareAndSwap(nil, new(nodes))
	return p.Load()
}

// expand visits the successors of a level.
func (e *explorer) expand(level []pending) []pending {
	var (
		next  []pending
		mu    sync.Mutex
		wg    sync.WaitGroup
		chunk atomic.Int64
	)
	const size = 256
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			m := newMachine(e.b)
			var mine []pending
			for {
				from := int(chunk.Add(1)-1) * size
				if from >= len(level) {
					break
				}
				for _, p := range level[from:min(len(level), from+size)] {
					mine = e.successors(m, p, mine)
				}
			}
			e.edges.Add(m.edges)
			mu.Lock()
			next = append(next, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return next
}

func (e *explorer) successors(m *machine, p pending, to []pending) []pending {
	m.arena = m.arena[:0]
	from := m.decode(p.data)
	if m.done(from) {
		e.block(p.id)[p.id%blockSize].next = complete
		return to // packets in flight no longer matter
	}
	fair, ok := m.fair(from)
	follow := noNode
	var buf [64]action
	for _, a := range m.actions(from, buf[:0]) {
		w := *from
		if err := m.take(&w, a); errors.Is(err, errImpossible) {
			continue
		} else if err != nil {
			e.violated(&found{err.Error(), p.id, a, true})
			return to
		}
		m.edges++
		m.encoded, _ = m.encode(&w, m.encoded[:0])
		id, isNew := e.visit(m.encoded, p.id, a)
		if isNew {
			to = append(to, pending{id, bytes.Clone(m.encoded)})
		}
		if ok && a == fair {
			follow = id
		}
	}
	e.block(p.id)[p.id%blockSize].next = follow
	return to
}

func (e *explorer) violated(f *found) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == nil || f.at < e.first.at {
		e.first = f
	}
}

// checkL1 follows, from every state, what happens if nothing goes wrong any more. All work must
// complete, and no path may stop before or form a cycle. It returns the number of states that have
// completed.
func (e *explorer) checkL1() (completed int) {
	n := e.count.Load()
	good := make([]bool, n)
	at := func(id uint32) uint32 { return e.block(id)[id%blockSize].next }
	for id := range n {
		if at(id) == complete {
			good[id] = true
			completed++
		}
	}
	var way []uint32
	for id := range n {
		way = way[:0]
		x := id
		for x != noNode && !good[x] && len(way) < 10_000 {
			way = append(way, x)
			x = at(x)
		}
		if x == noNode || !good[x] {
			e.violated(&found{what: "L1: without further faults the work does not complete from here", at: id})
			return completed
		}
		for _, x := range way {
			good[x] = true
		}
	}
	return completed
}

// path returns the actions from the initial state to a violation.
func (e *explorer) path(f *found) []action {
	var as []action
	if f.last {
		as = append(as, f.by)
	}
	for id := f.at; ; {
		n := &e.block(id)[id%blockSize]
		if n.parent == noNode {
			break
		}
		as = append(as, n.by)
		id = n.parent
	}
	slices.Reverse(as)
	return e.named(as)
}

// named translates the members of a path's actions, which are numbered in each state's canonical
// order, to those of the initial state.
func (e *explorer) named(as []action) []action {
	m := newMachine(e.b)
	data, who := m.encode(m.initial(e.b), nil) // the member in this position
	w := m.decode(data)
	out := make([]action, 0, len(as))
	for _, a := range as {
		b := a
		if a.kind.ofMember() {
			b.member = who[a.member]
		}
		if a.kind == send {
			b.outcomes = 0
			for i := range w.n {
				b.outcomes |= a.outcome(i).of(int(who[i]))
			}
		}
		out = append(out, b)
		if m.take(w, a) != nil {
			break
		}
		data, order := m.encode(w, nil)
		was := who
		for i := range w.n {
			who[i] = was[order[i]]
		}
		w = m.decode(data)
	}
	return out
}
