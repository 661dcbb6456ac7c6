package mcrdma

import (
	"cmp"
	"context"
	"fmt"
	"sync"
)

// A poster begins operations of a Group, or of a Unicast, and waits for them.
type poster struct {
	c  *Client
	to interface {
		Submit(ctx context.Context, op *Op) error
		Err() error
		groupID() GroupID
	}
	regions []Region        // that operations may name
	room    chan struct{}   // has a token for each operation in flight
	over    <-chan struct{} // closed when there will be no room any more; Err says why
	waiters sync.Pool       // of *Pending
}

// admit checks an operation, whose kind is at most last, and waits for room. After that its memory
// is held until letGo.
func (s *poster) admit(ctx context.Context, op *Op, last Kind) error {
	if err := cmp.Or(op.check(s.regions, s.c.maxPieces, last), ctx.Err()); err != nil {
		return err
	}
	err := holdAll(s.c, op.Pieces)
	if err != nil {
		return err
	}
	select {
	case s.room <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.room <- struct{}{}:
		return nil
	case <-s.over:
		err = s.to.Err()
	case <-ctx.Done():
		err = ctx.Err()
	}
	releaseAll(op.Pieces)
	return err
}

// letGo gives back the memory and the room of an operation.
func (s *poster) letGo(op *Op) {
	releaseAll(op.Pieces)
	<-s.room
}

// A Pending is an operation begun by Post. All methods may be called by any goroutine.
type Pending struct {
	by     *poster
	op     Op
	pieces [MaxPieces]Piece
	done   chan struct{} // has a token when it is done
	tell   func(*Op)     // puts it there
}

func (s *poster) begin(ctx context.Context, op Op, pieces []Piece) (*Pending, error) {
	p, ok := s.waiters.Get().(*Pending)
	if !ok {
		p = &Pending{by: s, done: make(chan struct{}, 1)}
		p.tell = func(*Op) { p.done <- struct{}{} }
	}
	if len(pieces) > MaxPieces {
		return nil, errPieces(len(pieces), MaxPieces)
	}
	p.op, p.op.Done = op, p.tell
	p.op.Pieces = p.pieces[:copy(p.pieces[:], pieces)]
	if err := s.to.Submit(ctx, &p.op); err != nil {
		return nil, err
	}
	return p, nil
}

// Wait waits until the operation has completed (for a group's, at every member) or failed, and
// returns its error. If ctx ends first, the operation goes on; the error is then an Error with
// Pending, and wraps ctx's. Wait may be called again.
func (p *Pending) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		p.done <- struct{}{}
		return p.op.Err
	case <-ctx.Done():
		return &Error{Group: p.by.to.groupID(), Pending: p, Text: fmt.Sprintf("%v: %v; it goes on", p.op.Kind, ctx.Err()), under: ctx.Err()}
	}
}

// Number returns the operation's number in the group, or in the Unicast, counted from 0.
func (p *Pending) Number() uint64 { return p.op.Number }

// View returns the number of the view whose members have the operation, after Wait has returned
// nil; 0 for an operation of a Unicast.
func (p *Pending) View() uint32 { return p.op.View }

// do posts an operation and waits for its end.
func (s *poster) do(ctx context.Context, op Op, pieces []Piece) error {
	p, err := s.begin(ctx, op, pieces)
	if err != nil {
		return err
	}
	err = p.Wait(ctx)
	if e, ok := err.(*Error); !ok || e.Pending == nil { //nolint:errorlint // Wait's own
		<-p.done
		clear(p.op.Pieces)
		s.waiters.Put(p)
	}
	return err
}
