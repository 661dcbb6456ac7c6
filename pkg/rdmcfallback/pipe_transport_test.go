package rdmcfallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// errGone is why a peer of a pipe is down.
var errGone = errors.New("peer closed its transport")

// Pipe returns the transports of n members that are connected in memory. A block
// is copied by its sender, from the sender's memory to the receiver's.
func Pipe(n int) []Transport {
	all := make([]*pipe, n)
	out := make([]Transport, n)
	for i := range all {
		all[i] = &pipe{self: i, all: all, posted: make([][][]byte, n), down: make([]bool, n), notify: make(chan struct{}, 1)}
		out[i] = all[i]
	}
	return out
}

// A pipe is one member's end.
type pipe struct {
	self   int
	all    []*pipe
	notify chan struct{} // has a token if there may be events

	mu     sync.Mutex // never lock two at once
	events []Event
	posted [][][]byte
	down   []bool // Down was told, nothing follows
	closed bool
	// The ring: slots, of which taken ones before nextSlot hold something.
	slots           [][]byte
	nextSlot, taken int
	copying         sync.WaitGroup // blocks on their way to this member's memory
}

// at returns a peer's end.
func (p *pipe) at(peer int) (*pipe, error) {
	if peer < 0 || peer >= len(p.all) || peer == p.self {
		return nil, fmt.Errorf("pipe: member %d has no peer %d", p.self, peer)
	}
	return p.all[peer], nil
}

// push adds an event about the peer to what p's owner will see.
func (p *pipe) push(ev Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pushLocked(ev)
}

func (p *pipe) pushLocked(ev Event) {
	if p.closed || p.down[ev.Peer] {
		return
	}
	p.down[ev.Peer] = ev.Kind == EventDown
	p.events = append(p.events, ev)
	select {
	case p.notify <- struct{}{}:
	default:
	}
}

func (p *pipe) Rank() (self, members int) { return p.self, len(p.all) }

func (p *pipe) PostRecv(peer int, buf []byte) error {
	q, err := p.at(peer)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return fmt.Errorf("pipe: %w", ErrClosed)
	}
	p.posted[peer] = append(p.posted[peer], buf)
	p.mu.Unlock()
	q.push(Event{Kind: EventReady, Peer: p.self})
	return nil
}

func (p *pipe) Send(peer int, imm uint32, block []byte) error {
	q, err := p.at(peer)
	if err != nil {
		return err
	}
	q.mu.Lock()
	if q.closed || q.down[p.self] {
		q.mu.Unlock()
		return nil
	}
	if len(q.posted[p.self]) == 0 {
		q.mu.Unlock()
		return fmt.Errorf("pipe: member %d sends to %d, which isn't ready", p.self, peer)
	}
	buf := q.posted[p.self][0]
	q.posted[p.self] = slices.Delete(q.posted[p.self], 0, 1)
	if len(block) > len(buf) {
		q.pushLocked(Event{Kind: EventDown, Peer: p.self, Err: fmt.Errorf("a block of %d bytes came for %d", len(block), len(buf))})
		q.mu.Unlock()
		return nil
	}
	q.copying.Add(1)
	q.mu.Unlock()
	n := copy(buf, block)
	q.push(Event{Kind: EventReceived, Peer: p.self, Imm: imm, N: n})
	q.copying.Done()
	p.push(Event{Kind: EventSent, Peer: peer})
	return nil
}

func (p *pipe) Tell(peer int, msg []byte) error {
	q, err := p.at(peer)
	if err != nil {
		return err
	}
	if len(msg) == 0 || len(msg) > MaxTell {
		return fmt.Errorf("pipe: a message of %d bytes can't be told; 1 to %d can", len(msg), MaxTell)
	}
	q.push(Event{Kind: EventTold, Peer: p.self, Msg: slices.Clone(msg)})
	return nil
}

func (p *pipe) OpenRing(slots, size int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots = make([][]byte, slots)
	for i := range p.slots {
		p.slots[i] = make([]byte, size)
	}
	return nil
}

func (p *pipe) PutSmall(peer int, imm uint32, msg []byte) error {
	q, err := p.at(peer)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.down[p.self] {
		return nil
	}
	if q.taken == len(q.slots) || len(msg) > len(q.slots[0]) {
		return fmt.Errorf("pipe: member %d has no room for a small message of %d bytes", peer, len(msg))
	}
	slot := q.slots[q.nextSlot]
	q.nextSlot = (q.nextSlot + 1) % len(q.slots)
	q.taken++
	q.pushLocked(Event{Kind: EventSmall, Peer: p.self, Imm: imm, Msg: slot[:copy(slot, msg)]})
	return nil
}

func (p *pipe) FreeSmall(n int) error {
	p.mu.Lock()
	if n < 1 || n > p.taken {
		p.mu.Unlock()
		return fmt.Errorf("pipe: member %d frees %d of %d slots", p.self, n, p.taken)
	}
	p.taken -= n
	p.mu.Unlock()
	p.all[0].push(Event{Kind: EventFreed, Peer: p.self, N: n})
	return nil
}

func (p *pipe) Events(ctx context.Context, events []Event) (int, error) {
	for {
		p.mu.Lock()
		n := copy(events, p.events)
		p.events = slices.Delete(p.events, 0, n)
		closed := p.closed
		p.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case closed:
			return 0, fmt.Errorf("pipe: %w", ErrClosed)
		}
		select {
		case <-p.notify:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (p *pipe) Close() error {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.mu.Unlock()
	if was {
		return nil
	}
	select {
	case p.notify <- struct{}{}:
	default:
	}
	p.copying.Wait()
	for i, q := range p.all {
		if i != p.self {
			q.push(Event{Kind: EventDown, Peer: p.self, Err: errGone})
		}
	}
	return nil
}
