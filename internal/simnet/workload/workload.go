package workload

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/internal/simnet/replicate"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// ErrLoad is what errors about a workload that cannot be wrap.
var ErrLoad = errors.New("impossible workload")

// A Config is what clients do. To write, a client writes a message to the primary of a group, which replicates it, and answers with
// an empty message. To read, it reads the message from a member on another host. Requests come as a Poisson process, at a client, a group and, of reads, a
// member that are drawn evenly.
type Config struct {
	Scheme    replicate.Scheme
	Block     int // bytes of a block where hosts relay in blocks
	Replicas  int // copies of a message, the primary's among them
	Groups    int // that each storage host is the primary of; their other members are drawn
	Sizes     Sizes
	Load      float64 // what clients ask for and hand over, as a share of all their links' rate
	ReadShare float64 // of the requests
	Requests  int
	Clients   []int // hosts
	Storage   []int // hosts; may be the same
}

const (
	maxGroups   = 1 << 18     // some GiB
	maxRequests = 100_000_000 // a day
	leastLoad   = 1e-6
)

// failure is the error of a request that failed.
func (r *run) failure(status qp.Status) error {
	err := fmt.Errorf("a request failed: %v", status)
	if status == qp.StatusRetryExcErr {
		p := r.s.Params()
		err = fmt.Errorf("%w: its packets are lost or under way for longer than the ACK timer of %v and %d retries allow; want a lower load, or faster links", err,
			qp.AckTimeout(p.Timeout), p.Retries)
	}
	return err
}

// Check says what cannot be, in whatever fabric. Errors wrap ErrLoad or replicate.ErrScheme.
func (c *Config) Check() error {
	switch {
	case !slices.Contains(replicate.Schemes, c.Scheme):
		return fmt.Errorf("%w: %q; there are %v", replicate.ErrScheme, c.Scheme, replicate.Schemes)
	case c.Replicas < 2 || c.Replicas > len(c.Storage):
		return fmt.Errorf("%w: %d replicas on %d storage hosts; want 2 or more, on as many hosts", ErrLoad, c.Replicas, len(c.Storage))
	case len(c.Clients) == 0:
		return fmt.Errorf("%w: no clients", ErrLoad)
	case c.Groups < 1 || c.Groups > maxGroups/len(c.Storage) || c.Requests < 1 || c.Requests > maxRequests:
		return fmt.Errorf("%w: %d groups a host, %d requests; want 1 to %d, and 1 to %d", ErrLoad, c.Groups, c.Requests, maxGroups/len(c.Storage), maxRequests)
	case !(c.Load >= leastLoad) || !(c.ReadShare >= 0 && c.ReadShare <= 1):
		return fmt.Errorf("%w: load %g, share of reads %g; want %g or more, and 0 to 1", ErrLoad, c.Load, c.ReadShare, leastLoad)
	case len(c.Sizes.points) == 0 || c.Sizes.Mean() <= 0:
		return fmt.Errorf("%w: messages without bytes", ErrLoad)
	}
	copies := float64(c.Replicas - 1) // that storage hosts send of a write, all together
	if c.Scheme == replicate.Multicast {
		copies = 1
	}
	read, write := c.ReadShare, 1-c.ReadShare
	perHost := c.Load * float64(len(c.Clients)) / float64(len(c.Storage))
	for _, l := range []struct {
		what string
		load float64
	}{
		{"what clients read", c.Load * read}, {"what clients write", c.Load * write},
		{"what storage hosts send", perHost * (read + write*copies)}, {"what storage hosts receive", perHost * write * float64(c.Replicas)},
	} {
		if l.load >= 1 {
			return fmt.Errorf("%w: with load %g, %s would be %.0f %% of their links' rate by %s; want a lower load", ErrLoad, c.Load, l.what, 100*l.load, c.Scheme)
		}
	}
	return nil
}

// CheckFabric says which link would have to carry more than it can for longer, with what clients read and write, and what storage hosts pass on,
// where that is to each of the others as much; copies by switches count on the links of hosts, and on others they take less. Run does not ask it: what ends soon may be more. The
// error wraps ErrLoad.
func (c *Config) CheckFabric(s *simnet.Sim) error {
	rate := s.Params().HostRate
	writes := c.Load * (1 - c.ReadShare) * float64(len(c.Clients)) / float64(len(c.Storage)) // of a primary's link
	pass := 0.0
	if c.Scheme != replicate.Multicast {
		pass = writes * float64(c.Replicas-1) / float64(len(c.Storage)-1) * rate
	}
	each := c.Load * rate / float64(len(c.Storage))
	offered, err := s.Offered(func(add func(from, to int, bits float64)) {
		for _, a := range c.Storage {
			for _, b := range c.Storage {
				add(a, b, pass)
			}
			for _, client := range c.Clients {
				add(a, client, each*c.ReadShare)
				add(client, a, each*(1-c.ReadShare))
			}
		}
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLoad, err)
	}
	for i, l := range s.Links() {
		if c.Scheme == replicate.Multicast { // the host's own link carries what its groups' members do
			if c.stores(s, l.From) {
				offered[i] += writes * rate
			}
			if c.stores(s, l.To) {
				offered[i] += writes * rate * float64(c.Replicas-1)
			}
		}
		if offered[i] >= l.Rate {
			return fmt.Errorf("%w: with load %g, the link from %s to %s would have to carry %.0f %% of its rate by %s; want a lower load",
				ErrLoad, c.Load, l.From, l.To, 100*offered[i]/l.Rate, c.Scheme)
		}
	}
	return nil
}

func (c *Config) stores(s *simnet.Sim, host string) bool {
	return slices.ContainsFunc(c.Storage, func(h int) bool { return s.Name(h) == host })
}

// A Result is how long requests took, in microseconds, from the first tenth of them on, and what the links carried.
type Result struct {
	Reads    Latency       `json:"reads"`
	Writes   Latency       `json:"writes"`
	Duration time.Duration `json:"-"`
	Seconds  float64       `json:"seconds"` // of virtual time, from when requests may come
	Links    []LinkLoad    `json:"links"`   // the busiest first
	Counts   simnet.Counts `json:"counts"`
}

// Latency has microseconds.
type Latency struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean_usec"`
	P50   float64 `json:"p50_usec"`
	P90   float64 `json:"p90_usec"`
	P99   float64 `json:"p99_usec"`
	P999  float64 `json:"p999_usec"`
	Max   float64 `json:"max_usec"`
}

// A LinkLoad is what a link carried in one direction.
type LinkLoad struct {
	From  string  `json:"from"`
	Port  uint32  `json:"port,omitempty"` // of From, if that is a switch
	To    string  `json:"to"`
	Bytes uint64  `json:"bytes"`
	Load  float64 `json:"load"`           // of its rate
	Wait  float64 `json:"mean_wait_usec"` // of a byte of data, in the switch before it
}

func latencyOf(list []float64) Latency {
	if len(list) == 0 {
		return Latency{}
	}
	slices.Sort(list)
	sum := 0.0
	for _, v := range list {
		sum += v
	}
	at := func(p float64) float64 { return list[min(len(list)-1, int(p*float64(len(list))))] }
	return Latency{Count: len(list), Mean: sum / float64(len(list)), P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), Max: list[len(list)-1]}
}

// A run is a workload that is being simulated.
type run struct {
	c      Config
	s      *simnet.Sim
	groups []*group
	links  map[[2]int]*link
	made   int // requests that have begun
	done   int
	reads  []float64
	writes []float64
	failed error
}

type group struct {
	members []int // the primary first
	set     replicate.Set
}

// A link is the connections of a client to a storage host: one for writes and answers, and one for reads. In one, an ACK, which
// switches send first, overtakes what is read, and the client asks for that again.
type link struct {
	reads     lane
	toHost    lane
	toClient  lane
	arriving  []func() // what is done when writes have arrived, and answers
	answering []func()
}

// A lane is one direction of a connection.
type lane struct {
	end  *simnet.Endpoint
	sent []func() // what is done when a send is complete, by send
}

// Run simulates a workload in a fabric in which nothing has happened yet. Errors wrap
// ErrLoad, or are those of replicate.New, or say what failed.
func Run(s *simnet.Sim, c Config) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	r := &run{c: c, s: s, links: map[[2]int]*link{}}
	rng := s.Rand()
	for i, primary := range c.Storage {
		others := slices.Delete(slices.Clone(c.Storage), i, i+1)
		for range c.Groups {
			for k := range c.Replicas - 1 { // a random choice, in random order
				j := k + rng.IntN(len(others)-k)
				others[k], others[j] = others[j], others[k]
			}
			g := &group{members: append([]int{primary}, others[:c.Replicas-1]...)}
			var err error
			if g.set, err = replicate.New(s, c.Scheme, c.Block, primary, g.members[1:]...); err != nil {
				return nil, err
			}
			r.groups = append(r.groups, g)
		}
	}
	const forming = time.Millisecond // relays greet each other before
	p := s.Params()
	perSecond := c.Load * p.HostRate * float64(len(c.Clients)) / 8 / c.Sizes.Mean()
	var next func()
	next = func() {
		r.request()
		if r.made < c.Requests {
			s.At(s.Now()+time.Duration(rng.ExpFloat64()/perSecond*1e9), next)
		}
	}
	s.At(forming, next)
	s.Run(math.MaxInt64 / 2000)
	if r.failed == nil && r.done < c.Requests {
		r.failed = fmt.Errorf("%d of %d requests are not done", c.Requests-r.done, c.Requests)
		if s.Counts().InFlight > 0 { // nothing happens any more
			r.failed = fmt.Errorf("%w: their packets wait for links that PFC holds, in a circle: want no PFC, larger buffers, or a lower load", r.failed)
		}
		for _, g := range r.groups {
			if err := g.set.Failed(); err != nil {
				r.failed = fmt.Errorf("%w: %w", r.failed, err)
				break
			}
		}
	}
	if r.failed != nil {
		return nil, r.failed
	}
	out := &Result{Reads: latencyOf(r.reads), Writes: latencyOf(r.writes), Duration: s.Now() - forming, Seconds: (s.Now() - forming).Seconds(), Counts: s.Counts()}
	for _, l := range s.Links() {
		out.Links = append(out.Links, LinkLoad{From: l.From, Port: l.Port, To: l.To, Bytes: l.Bytes, Load: float64(l.Bytes) * 8 / l.Rate / out.Seconds,
			Wait: float64(l.Wait().Nanoseconds()) / 1000})
	}
	slices.SortStableFunc(out.Links, func(a, b LinkLoad) int { return cmp.Compare(b.Load, a.Load) })
	return out, nil
}

func (r *run) keep(err error) {
	if err != nil && r.failed == nil {
		r.failed = err
		r.s.Stop()
	}
}

// request begins one.
func (r *run) request() {
	rng := r.s.Rand()
	client, g := r.c.Clients[rng.IntN(len(r.c.Clients))], r.groups[rng.IntN(len(r.groups))]
	n, begin, counts := r.c.Sizes.draw(rng), r.s.Now(), r.made >= r.c.Requests/10
	r.made++
	finish := func(list *[]float64) {
		if counts {
			*list = append(*list, float64((r.s.Now()-begin).Nanoseconds())/1000)
		}
		if r.done++; r.done == r.c.Requests {
			r.s.Stop()
		}
	}
	if rng.Float64() < r.c.ReadShare {
		k := rng.IntN(len(g.members))
		host := g.members[k]
		if host == client {
			host = g.members[(k+1)%len(g.members)]
		}
		r.post(&r.link(client, host).reads, qp.OpRead, n, func() { finish(&r.reads) })
		return
	}
	replicated := func(answer func()) { r.keep(g.set.Write(n, answer)) }
	if g.members[0] == client {
		replicated(func() { finish(&r.writes) })
		return
	}
	l := r.link(client, g.members[0])
	l.arriving = append(l.arriving, func() {
		replicated(func() {
			l.answering = append(l.answering, func() { finish(&r.writes) })
			r.post(&l.toClient, qp.OpWriteImm, 0, nil)
		})
	})
	r.post(&l.toHost, qp.OpWriteImm, n, nil)
}

// link is a client's connection to a host, which is made when it is first needed.
func (r *run) link(client, host int) *link {
	if l := r.links[[2]int{client, host}]; l != nil {
		return l
	}
	l := &link{}
	l.toHost.end, l.toClient.end = r.s.Connect(client, host)
	l.reads.end, _ = r.s.Connect(client, host)
	for _, d := range []struct {
		lane *lane
		to   *simnet.Endpoint // nil: it receives nothing
		list *[]func()
	}{{&l.reads, nil, nil}, {&l.toHost, l.toClient.end, &l.arriving}, {&l.toClient, l.toHost.end, &l.answering}} {
		d.lane.end.Sent = func(wc *qp.WC) {
			if wc.Status != qp.StatusSuccess {
				r.keep(r.failure(wc.Status))
				return
			}
			done := d.lane.sent[0]
			d.lane.sent = d.lane.sent[1:]
			if done != nil {
				done()
			}
		}
		if d.to == nil {
			continue
		}
		for range simnet.WorkRequests {
			r.keep(d.to.PostRecv(0))
		}
		d.to.Received = func(wc *qp.WC) {
			if wc.Status != qp.StatusSuccess {
				r.keep(r.failure(wc.Status))
				return
			}
			r.keep(d.to.PostRecv(0))
			do := (*d.list)[0]
			*d.list = (*d.list)[1:]
			do()
		}
	}
	r.links[[2]int{client, host}] = l
	return l
}

// post sends on a lane.
func (r *run) post(l *lane, op qp.Opcode, n int, done func()) {
	l.sent = append(l.sent, done)
	r.keep(l.end.Post(op, n, 0))
}
