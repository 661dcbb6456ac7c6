// Package replicate has the ways to copy a write to several hosts, as the simulator compares them: by the
// switches, by the sender, along a chain of hosts, and by RDMC's engine.
package replicate

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// ErrScheme is what errors about schemes wrap.
var ErrScheme = errors.New("unknown scheme")

// A Scheme is a way to copy writes.
type Scheme string

// The schemes.
const (
	Multicast  Scheme = "multicast"  // switches copy, and merge answers
	Fanout     Scheme = "fanout"     // a connection to each receiver
	Chain      Scheme = "chain"      // each host passes whole messages on to the next, the last tells the first
	Blocks     Scheme = "blocks"     // a chain of hosts that passes blocks on: RDMC's chain send
	RDMC       Scheme = "rdmc"       // RDMC's binomial pipeline
	Hybrid     Scheme = "hybrid"     // RDMC's, within racks and between them
	Tree       Scheme = "tree"       // RDMC's binomial tree, of whole messages
	Sequential Scheme = "sequential" // RDMC's sequential send, to one receiver after the other
)

// Schemes are all of them.
var Schemes = []Scheme{Multicast, Fanout, Chain, Blocks, RDMC, Hybrid, Tree, Sequential}

// relays are the algorithms of those that relay by RDMC's engine.
var relays = map[Scheme]schedule.Algorithm{Blocks: schedule.Chain, RDMC: schedule.BinomialPipeline, Hybrid: schedule.Hybrid,
	Tree: schedule.BinomialTree, Sequential: schedule.Sequential}

// A Set replicates writes of one host to others, in the order in which they are posted.
type Set interface {
	// Write posts a write of n bytes; done is called when all receivers have it. Errors are those
	// of posting: the write will not be done.
	Write(n int, done func()) error
	// Failed says why the set does not go on; nil: it does.
	Failed() error
}

// New makes a set. block is the size of blocks where hosts relay in blocks. Errors wrap ErrScheme, or are those of
// simnet.Sim.Group.
func New(s *simnet.Sim, scheme Scheme, block, sender int, receivers ...int) (Set, error) {
	switch {
	case !slices.Contains(Schemes, scheme):
		return nil, fmt.Errorf("%w: %q; there are %v", ErrScheme, scheme, Schemes)
	case len(receivers) == 0:
		return nil, fmt.Errorf("%w: %s without receivers", ErrScheme, scheme)
	}
	switch scheme {
	case Multicast:
		g, err := s.Group(sender, receivers...)
		if err != nil {
			return nil, err
		}
		m := &direct{ends: []*simnet.Endpoint{g.Sender}}
		m.watch()
		return m, nil
	case Fanout:
		m := &direct{}
		for _, r := range receivers {
			e, _ := s.Connect(sender, r)
			m.ends = append(m.ends, e)
		}
		m.watch()
		return m, nil
	case Chain:
		return newChain(s, sender, receivers)
	}
	return newRelay(s, relays[scheme], block, sender, receivers)
}

// A direct set posts each write to one or more queue pairs of the sender.
type direct struct {
	pending
	ends []*simnet.Endpoint
	have []int // writes that are complete, by queue pair
	all  int   // of all of them
}

func (d *direct) watch() {
	d.have = make([]int, len(d.ends))
	for i, e := range d.ends {
		e.Sent = func(wc *qp.WC) {
			if !d.look(wc) {
				return
			}
			d.have[i]++
			if d.have[i] == d.all+1 && slices.Min(d.have) > d.all {
				d.all++
				d.finish()
			}
		}
	}
}

// Write implements Set.
func (d *direct) Write(n int, done func()) error {
	for _, e := range d.ends {
		if err := e.Post(qp.OpWrite, n, 0); err != nil {
			return err
		}
	}
	d.list = append(d.list, done)
	return nil
}

// A chain passes whole messages on. Its last host tells the first by a message of its own.
type chain struct {
	pending
	first *simnet.Endpoint
}

// receives are how many messages a host of a chain takes at a time.
const receives = 64

func newChain(s *simnet.Sim, sender int, receivers []int) (*chain, error) {
	c := &chain{}
	hosts := append([]int{sender}, receivers...)
	var next []*simnet.Endpoint // of each host's connection to the one behind it
	var prev []*simnet.Endpoint
	for i, h := range hosts {
		a, b := s.Connect(h, hosts[(i+1)%len(hosts)])
		next, prev = append(next, a), append(prev, b)
		a.Sent = func(wc *qp.WC) { c.look(wc) }
	}
	c.first = next[0]
	for i, in := range prev { // of host i+1; the last is the sender's
		for range receives {
			if err := in.PostRecv(0); err != nil {
				return nil, err
			}
		}
		in.Received = func(wc *qp.WC) {
			if !c.look(wc) {
				return
			}
			err := in.PostRecv(0)
			size := int(wc.Imm)
			switch {
			case err != nil:
			case i == len(hosts)-1:
				c.finish()
			case i == len(hosts)-2: // the last host answers
				err = next[i+1].Post(qp.OpWriteImm, 0, wc.Imm)
			default:
				err = next[i+1].Post(qp.OpWriteImm, size, wc.Imm)
			}
			c.keep(err)
		}
	}
	return c, nil
}

// Write implements Set.
func (c *chain) Write(n int, done func()) error {
	if err := c.first.Post(qp.OpWriteImm, n, uint32(n)); err != nil { //nolint:gosec // a message's size
		return err
	}
	c.list = append(c.list, done)
	return nil
}
