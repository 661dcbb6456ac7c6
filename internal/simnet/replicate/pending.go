package replicate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A pending is writes under way, in their order.
type pending struct {
	list []func()
	err  error
}

func (p *pending) finish() {
	done := p.list[0]
	p.list = slices.Delete(p.list, 0, 1)
	done()
}

// Failed implements Set.
func (p *pending) Failed() error { return p.err }

func (p *pending) keep(err error) { p.err = cmp.Or(p.err, err) }

// look keeps the failure that a completion reports, and reports whether there is none.
func (p *pending) look(wc *qp.WC) bool {
	if wc.Status != qp.StatusSuccess {
		p.keep(fmt.Errorf("a write failed: %v", wc.Status))
	}
	return wc.Status == qp.StatusSuccess
}
