package p4rtserver

import (
	"iter"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// A reader collects entities. Its access function gives access to the state between packets;
// without one, the caller has exclusive access.
type reader struct {
	c       *config
	now     time.Duration
	between func(*config, func())
	out     []piece
	// brief omits what a new pipeline has anyway: zero cells, const entries, unchanged default
	// entries.
	brief bool
}

// A piece is one entity, or several that are created on demand: arrays have many cells, whose
// messages would take much memory at once.
type piece struct {
	one  *p4.Entity
	n    int
	make func(i int) *p4.Entity // may return nil
}

// all yields the entities read.
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

// each calls f for n items, at most chunk of them between two packets.
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
