package p4rtserver

import (
	"iter"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// A reader collects entities. It is given a way to access the state between
// packets, or else has exclusive access already.
type reader struct {
	c       *config
	now     time.Duration
	between func(*config, func())
	out     []piece
	// brief leaves out what a new pipeline has anyway: zero cells, constant
	// entries, default entries that have not been changed.
	brief bool
}

// A piece is one entity, or several that are made when they are needed: arrays
// have very many cells, which as messages would take much memory at once.
type piece struct {
	one  *p4.Entity
	n    int
	make func(i int) *p4.Entity // may return nil
}

// all are the entities that were read.
func (r *reader) all() iter.Seq[*p4.Entity] {
	return func(yield func(*p4.Entity) bool) {
		for _, p := range r.out {
			if p.one != nil && !yield(p.one) {
				return
			}
			for i := range p.n {
				if e := p.make(i); e != nil && !yield(e) {
					return
				}
			}
		}
	}
}

// access calls f with exclusive access.
func (r *reader) access(f func()) {
	if r.between == nil {
		f()
		return
	}
	r.between(r.c, f)
}

// each calls f for n things, a chunk of them between two packets.
func (r *reader) each(n, chunk int, f func(i int)) {
	for at := 0; at < n; at += chunk {
		r.access(func() {
			for i := at; i < min(at+chunk, n); i++ {
				f(i)
			}
		})
	}
}

func (r *reader) add(e *p4.Entity) { r.out = append(r.out, piece{one: e}) }

func counterData(c pipeline.Counts) *p4.CounterData {
	return &p4.CounterData{PacketCount: int64(c.Packets), ByteCount: int64(c.Bytes)}
}
