package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/rdma"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// The transports of relaying.
const (
	transportRDMA = "rdma"
	transportTCP  = "tcp"
)

// joinRelay makes one member's end of a formation in which hosts relay. It takes ownership
// of the listener. cfg has the callbacks; joinRelay fills in the rest.
func (c *Client) joinRelay(ctx context.Context, l net.Listener, info *mcrdmav1.FormationInfo, self int, cfg rdmcfallback.Config, count *tally) (*rdmcfallback.Group, error) {
	r := info.GetRelay()
	if l == nil || self < 0 || self >= len(r.GetBootstrap()) || len(r.GetBootstrap()) != len(info.GetMembers())+1 {
		if l != nil {
			_ = l.Close()
		}
		return nil, fmt.Errorf("%w: it gave %d addresses for relaying among %d members and the sender", ErrDaemon,
			len(r.GetBootstrap()), len(info.GetMembers()))
	}
	if err := cfg.Algorithm.UnmarshalText([]byte(r.GetAlgorithm())); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("%w: %w", ErrDaemon, err)
	}
	cfg.Members, cfg.Self, cfg.BlockSize = r.GetBootstrap(), self, int(r.GetBlock())
	if cfg.Algorithm == schedule.Hybrid {
		for _, rack := range r.GetRacks() {
			cfg.Racks = append(cfg.Racks, int(rack))
		}
	}
	opt := tcp.Options{Members: r.GetBootstrap(), Self: self, Group: r.GetGroup(), Epoch: uint64(info.GetFormation()), Listener: l,
		Dial: c.opt.Dial,
		Stranger: func(from net.Addr, why error) {
			count.strangers.Add(1)
			c.opt.Logger.Warn("a stranger called where members listen", "from", from, "why", why)
		}}
	t, err := c.transport(ctx, r.GetTransport(), opt)
	if err != nil {
		return nil, err
	}
	return rdmcfallback.Join(ctx, cfg, &counted{t, count})
}

// closeRelay ends a relay, and returns when it uses no memory any more. Members that do not read why are waited for by Close of
// the Client.
func (c *Client) closeRelay(ctx context.Context, g *rdmcfallback.Group) {
	c.wg.Go(func() { _ = g.Close(ctx) })
	<-g.Done()
}

// A relayTransport is what both transports implement.
type relayTransport interface {
	rdmcfallback.Transport
	rdmcfallback.Ring
	rdmcfallback.Defaults
	rdmcfallback.Leaver
}

// transport connects the members. It takes ownership of the listener in opt.
func (c *Client) transport(ctx context.Context, name string, opt tcp.Options) (relayTransport, error) {
	switch {
	case name == transportTCP:
		return tcp.Connect(ctx, opt)
	case name == transportRDMA && c.dev != nil:
		return rdma.Connect(ctx, rdma.Options{Options: opt, Device: c.dev})
	}
	_ = opt.Listener.Close()
	if name == transportRDMA {
		return nil, fmt.Errorf("relaying over %q: this host has no device: %w", name, c.noDev)
	}
	return nil, fmt.Errorf("%w: relaying over %q", ErrDaemon, name)
}

var errMute = errors.New("a message could not be delivered")

// counted is a transport that counts the blocks and small messages that it is given, and
// those of them that it reports as done. Small messages are copied, so they are done at
// once.
type counted struct {
	relayTransport
	tally *tally
}

func (c *counted) Send(peer int, imm uint32, block []byte) error {
	c.tally.posts.Add(1)
	return c.relayTransport.Send(peer, imm, block)
}

func (c *counted) Events(ctx context.Context, events []rdmcfallback.Event) (int, error) {
	n, err := c.relayTransport.Events(ctx, events)
	for i := range events[:n] {
		if events[i].Kind == rdmcfallback.EventSent {
			c.tally.completions.Add(1)
		}
	}
	return n, err
}

func (c *counted) Tell(peer int, msg []byte) error {
	if c.tally.mute.Load() {
		return errMute
	}
	return c.relayTransport.Tell(peer, msg)
}

func (c *counted) PutSmall(peer int, imm uint32, msg []byte) error {
	c.tally.posts.Add(1)
	c.tally.completions.Add(1)
	return c.relayTransport.PutSmall(peer, imm, msg)
}

// suspectOf translates a failure of package rdmcfallback.
func suspectOf(err error, info *mcrdmav1.FormationInfo) error {
	e := &formationError{err: err}
	f, ok := errors.AsType[*rdmcfallback.FailedError](err)
	if !ok || max(f.Suspect, f.Reporter) > len(info.GetMembers()) {
		return e
	}
	suspect, reporter := f.Suspect, f.Reporter
	if suspect == 0 { // the sender cannot be left out
		suspect, reporter = reporter, 0
	}
	if suspect > 0 {
		e.suspects = []string{info.GetMembers()[suspect-1].GetAddress()}
		if reporter > 0 && reporter != suspect {
			e.reporter = info.GetMembers()[reporter-1].GetAddress()
		}
	}
	return e
}

// relayed is the sender's path where hosts relay.
type relayed struct {
	g      *Group
	info   *mcrdmav1.FormationInfo
	group  *rdmcfallback.Group
	news   chan struct{} // a token: everywhere has grown
	everyw atomic.Int64  // messages that all members have

	mu    sync.Mutex
	out   inbox[[]byte] // messages that are to be sent
	heads [][]byte      // for headers, by operation modulo their number
	posts int           // operations
	ends  ring[int64]   // how many messages there are up to the end of each operation under way
	last  int64         // … of the latest one
}

// relay makes the path. It takes ownership of the listener.
func (g *Group) relay(ctx context.Context, l net.Listener, info *mcrdmav1.FormationInfo) (outbound, error) {
	r := &relayed{g: g, info: info, news: make(chan struct{}, 1), out: newInbox[[]byte](), heads: make([][]byte, g.cfg.Depth)}
	var err error
	r.group, err = g.c.joinRelay(ctx, l, info, 0, rdmcfallback.Config{Everywhere: func(n int64) {
		r.everyw.Store(n)
		poke(r.news)
	}}, &g.tally)
	if err != nil {
		return nil, suspectOf(err, info)
	}
	return r, nil
}

// run implements outbound.
func (r *relayed) run(ctx context.Context) error {
	pumping, stop := context.WithCancel(ctx)
	var pump sync.WaitGroup
	pump.Go(func() { r.pump(pumping) })
	var err error
	for err == nil {
		select {
		case <-r.news:
			r.settle()
		case <-r.group.Done():
			err = r.group.Err()
			if err == nil {
				err = errors.New("the members have ended it")
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	r.g.halt()
	stop()
	pump.Wait()
	r.leave(err)
	r.settle()
	return suspectOf(err, r.info)
}

// leave ends the group, normally if nothing is in flight. It does not wait for members that do not read why.
func (r *relayed) leave(err error) {
	ctx := ended
	r.mu.Lock()
	clean := r.ends.len() == 0
	r.mu.Unlock()
	if clean && errors.Is(err, errClosing) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), goodbye)
		defer cancel()
	}
	r.g.c.closeRelay(ctx, r.group)
}

// settle completes the operations that all members have.
func (r *relayed) settle() {
	have := r.everyw.Load()
	n := 0
	r.mu.Lock()
	for r.ends.len() > 0 && *r.ends.at(0) <= have {
		r.ends.pop()
		n++
	}
	r.mu.Unlock()
	r.g.finish(n)
}

// pump sends what is posted, until ctx ends or the group does.
func (r *relayed) pump(ctx context.Context) {
	for {
		msg, _, err := r.out.wait(ctx, &r.mu, nil)
		if err == nil {
			err = r.group.Send(ctx, msg)
		}
		if err != nil {
			return // run learns of it, too
		}
	}
}

// post implements outbound: it makes messages of an operation.
func (r *relayed) post(o *queued) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	op := o.op
	h := header{kind: op.Kind, length: op.size}
	if op.Kind.hasImm() {
		h.imm = op.Imm
	}
	if op.Kind.message() {
		h.message = uint32(o.message)
	}
	if !op.Kind.send() {
		h.region, h.offset = uint16(op.At.Region), op.At.Offset
	}
	inline := op.size <= inlineMax
	for _, p := range op.Pieces {
		if p.n > 0 && !inline {
			h.pieces++
		}
	}
	// A header's buffer is reused when its operation is complete.
	head := &r.heads[r.posts%len(r.heads)]
	*head = h.appendTo(slices.Grow((*head)[:0], headerLen))
	r.posts++
	r.last += 1 + int64(h.pieces)
	r.ends.push(r.last)
	if inline {
		for _, p := range op.Pieces {
			*head = append(*head, p.Bytes()...)
		}
	}
	r.out.put(*head)
	for _, p := range op.Pieces {
		if p.n > 0 && !inline {
			r.out.put(p.Bytes())
		}
	}
	return nil
}

// nudge implements outbound: hosts acknowledge by themselves.
func (r *relayed) nudge() {}

// heard implements outbound: only completions show progress.
func (r *relayed) heard(_, moved time.Time) (time.Time, time.Duration) { return moved, 0 }
