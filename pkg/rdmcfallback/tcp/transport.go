package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// A Transport is an rdmcfallback.Transport over TCP. Use Connect.
type Transport struct {
	local
	boot   *bootstrap
	listen net.Listener
	peers  []*peer // [opt.Self] is nil

	lent []lent // messages returned by the last Events

	cancel    context.CancelFunc
	leaving   sync.Once
	closing   sync.Once
	unlisten  error         // of closing the listener
	greetings chan struct{} // a token for each greeting being read
	callers   callers
}

var (
	_ rdmcfallback.Transport = (*Transport)(nil)
	_ rdmcfallback.Defaults  = (*Transport)(nil)
	_ rdmcfallback.Leaver    = (*Transport)(nil)
)

// A lent buffer will be returned to its peer.
type lent struct {
	p   *peer
	buf []byte
}

func newTransport(o Options) *Transport {
	t := &Transport{local: local{opt: o, run: newRun(), events: newQueue()}, listen: o.Listener, peers: make([]*peer, len(o.Members)),
		greetings: make(chan struct{}, maxGreetings)}
	t.wg.Add(1) // until Close waits
	t.ctx, t.cancel = context.WithCancel(context.Background())
	for i := range t.peers {
		if i != o.Self {
			t.peers[i] = newPeer(&t.local, i)
		}
	}
	t.boot = newBootstrap(&t.opt, t.peers)
	t.meeting = t.boot
	return t
}

// Hello returns the peer's Options.Hello; nil for this member itself. The caller must not change
// it.
func (t *Transport) Hello(peer int) []byte {
	if p, err := t.peer(peer); err == nil {
		return p.hello
	}
	return nil
}

func (t *Transport) peer(i int) (*peer, error) {
	if t.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if i < 0 || i >= len(t.peers) || i == t.opt.Self {
		return nil, fmt.Errorf("tcp: member %d of %d has no peer %d", t.opt.Self, len(t.peers), i)
	}
	return t.peers[i], nil
}

// Rank implements rdmcfallback.Transport.
func (t *Transport) Rank() (self, members int) { return t.opt.Self, len(t.peers) }

// Defaults implements rdmcfallback.Defaults. If all members are on this machine, processors are the
// bottleneck, and several blocks may be in flight, so that members wait less for each other.
// Otherwise links may be the bottleneck, for which blocks would compete.
func (t *Transport) Defaults() (blockSize, ahead int) {
	for _, p := range t.peers {
		if p != nil && !p.isHere() {
			return BlockSize, 0
		}
	}
	return BlockSize, aheadHere
}

// use calls f with a peer and the peer's lock held, unless the peer is failing. If f returns lost,
// the peer fails.
func (t *Transport) use(peer int, f func(p *peer) (lost, err error)) error {
	p, err := t.peer(peer)
	if err != nil {
		return err
	}
	return p.use(func() (error, error) { return f(p) })
}

// PostRecv implements rdmcfallback.Transport. At most MaxPosted buffers may be
// posted for one peer.
func (t *Transport) PostRecv(from int, buf []byte) error {
	return t.use(from, func(p *peer) (lost, err error) { return p.postRecv(buf) })
}

// Send implements rdmcfallback.Transport.
func (t *Transport) Send(peer int, imm uint32, block []byte) error {
	p, err := t.peer(peer)
	if err != nil {
		return err
	}
	if uint64(len(block)) > 1<<32-1 {
		return fmt.Errorf("tcp: a block of %d bytes, at most %d", len(block), uint32(1<<32-1))
	}
	return p.sendBlock(imm, block)
}

// Tell implements rdmcfallback.Transport. A peer that does not read several megabytes of messages
// is disconnected, with ErrOverflow.
func (t *Transport) Tell(peer int, msg []byte) error {
	p, err := t.peer(peer)
	if err != nil {
		return err
	}
	if len(msg) < 1 || len(msg) > rdmcfallback.MaxTell {
		return fmt.Errorf("tcp: a message of %d bytes, must be 1 to %d", len(msg), rdmcfallback.MaxTell)
	}
	p.tell(frameTold, msg)
	return nil
}

// Events implements rdmcfallback.Transport.
func (t *Transport) Events(ctx context.Context, events []rdmcfallback.Event) (int, error) {
	if len(events) == 0 {
		return 0, errors.New("tcp: no room for events")
	}
	for i, l := range t.lent {
		l.p.giveBack(l.buf)
		t.lent[i] = lent{}
	}
	t.lent = t.lent[:0]
	n, err := t.events.wait(ctx, events)
	for _, e := range events[:n] {
		if e.Kind == rdmcfallback.EventTold {
			t.lent = append(t.lent, lent{t.peers[e.Peer], e.Msg})
		}
	}
	return n, err
}

// beat runs in a goroutine and regularly tells all peers that this member is alive.
func (t *Transport) beat() {
	tick := time.NewTicker(t.opt.DeadAfter / beats)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			return
		}
		for _, p := range t.peers {
			if p != nil {
				p.beat()
			}
		}
	}
}

// Close implements rdmcfallback.Transport. It waits up to 2 s for peers that do not read their
// messages.
func (t *Transport) Close() (err error) {
	t.closing.Do(func() {
		t.Leave()
		t.wg.Done()
		t.wg.Wait()
		t.events.close()
		err = t.unlisten
	})
	return err
}

// Leave implements rdmcfallback.Leaver.
func (t *Transport) Leave() {
	t.leaving.Do(func() {
		t.cancel()
		if err := t.listen.Close(); !errors.Is(err, net.ErrClosed) {
			t.unlisten = err
		}
		for _, p := range t.peers {
			if p != nil && p.end(ErrClosed) {
				go p.part()
			}
		}
		for _, p := range t.peers {
			if p != nil {
				p.users.Wait()
			}
		}
	})
}

// newRun returns a random number that identifies this process.
func newRun() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}
