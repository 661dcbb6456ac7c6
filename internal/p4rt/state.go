package p4rt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// Read reads back the whole state. Errors wrap ErrForeign if there is something
// in it that this client would not have written.
func (s *Session) Read(ctx context.Context) (*switchspec.State, error) {
	ctx, cancel := s.during(ctx)
	defer cancel()
	return s.c.Read(ctx)
}

// Read reads back the whole state as Session.Read does.
func (c *Client) Read(ctx context.Context) (*switchspec.State, error) {
	var ask []*p4.Entity
	for _, l := range layouts {
		ask = append(ask, c.schema.entries(l))
	}
	return c.state(ctx, append(ask, multicastGroups()))
}

// Settings reads the switch's settings alone. They are zero once its program has been loaded again, which
// clears all else, too.
func (s *Session) Settings(ctx context.Context) (switchspec.Settings, error) {
	ctx, cancel := s.during(ctx)
	defer cancel()
	state, err := s.c.state(ctx, []*p4.Entity{s.c.schema.entries(layouts[0])})
	if err != nil {
		return switchspec.Settings{}, cmp.Or(s.Err(), err)
	}
	e, _ := state.Find(switchspec.Settings{}.Key())
	return e.(switchspec.Settings), nil
}

// entries asks for all entries of a table.
func (s *schema) entries(l layout) *p4.Entity {
	t := s.tables[l.table]
	return &p4.Entity{Entity: &p4.Entity_TableEntry{TableEntry: &p4.TableEntry{TableId: t.id, IsDefaultAction: len(t.fields) == 0}}}
}

// state reads what the entities that are asked for make up.
func (c *Client) state(ctx context.Context, ask []*p4.Entity) (*switchspec.State, error) {
	out := &switchspec.State{}
	err := c.read(ctx, ask, func(e *p4.Entity) error {
		x, err := c.schema.decode(e)
		if err != nil {
			return err
		}
		return out.Put(x)
	})
	if err != nil {
		return nil, fmt.Errorf("p4rt: reading back: %w", err)
	}
	return out, nil
}

// multicastGroups asks for all of them.
func multicastGroups() *p4.Entity {
	return &p4.Entity{Entity: &p4.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4.PacketReplicationEngineEntry{
		Type: &p4.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: &p4.MulticastGroupEntry{}}}}}
}

// read reads as Client.read does.
func (s *Session) read(ctx context.Context, ask []*p4.Entity, f func(*p4.Entity) error) error {
	ctx, cancel := s.during(ctx)
	defer cancel()
	if err := s.c.read(ctx, ask, f); err != nil {
		return cmp.Or(s.Err(), err)
	}
	return nil
}

// read calls f for each entity that the switch has of those asked for.
func (c *Client) read(ctx context.Context, ask []*p4.Entity, f func(*p4.Entity) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(allTime, func() { cancel(ErrSilent) })
	defer silent.Stop()
	endless := time.AfterFunc(readTime, func() { cancel(errEndless) })
	defer endless.Stop()
	stream, err := c.rpc.Read(ctx, &p4.ReadRequest{DeviceId: c.cfg.DeviceID, Entities: ask})
	if err != nil {
		return silence(ctx, err)
	}
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return silence(ctx, err)
		}
		silent.Reset(allTime)
		for _, e := range r.GetEntities() {
			if err := f(e); err != nil {
				return err
			}
		}
	}
}

// Apply does the changes, which are in order of their stages (switchspec.Diff),
// and each stage in batches. What may help is tried again. It stops after the
// batch in which a change was refused; the error then is a *WriteError, and wraps
// ErrNotPrimary or ErrStreamLost if that is why.
func (s *Session) Apply(ctx context.Context, changes []switchspec.Change) error {
	done := make([]switchspec.Change, 0, len(changes))
	for i := 0; i < len(changes); {
		n := i
		for n < len(changes) && n-i < s.c.batch && changes[n].Stage == changes[i].Stage {
			n++
		}
		b := batch{s: s, todo: make([]item, 0, n-i)}
		for _, c := range changes[i:n] {
			b.add(c)
		}
		err := b.run(ctx)
		done = append(done, b.done...)
		if err != nil || len(b.failed) > 0 {
			w := &WriteError{Failed: b.failed, Done: done, Left: changes[n:], Err: err}
			for _, x := range b.todo {
				if x.unsure {
					w.Unknown = append(w.Unknown, x.change)
				} else {
					w.Left = append([]switchspec.Change{x.change}, w.Left...)
				}
			}
			return w
		}
		i = n
	}
	return nil
}

// An item is a change on its way.
type item struct {
	change switchspec.Change
	update *p4.Update
	// unsure: an attempt had no answer. An insertion is then tried as a
	// modification, for bmv2 adds up the replicas of a PRE group that is inserted
	// twice; and a deletion that finds nothing has been done.
	unsure bool
}

type batch struct {
	s      *Session
	todo   []item
	done   []switchspec.Change
	failed []*UpdateError
}

var updateTypes = [...]p4.Update_Type{
	switchspec.Insert: p4.Update_INSERT, switchspec.Modify: p4.Update_MODIFY, switchspec.Delete: p4.Update_DELETE,
}

func (b *batch) add(c switchspec.Change) {
	e, err := b.s.c.schema.encode(c.Entity)
	if err != nil {
		b.failed = append(b.failed, &UpdateError{c, codes.InvalidArgument, "", err.Error()})
		return
	}
	if c.Op == switchspec.Delete && e.GetTableEntry() != nil {
		e.GetTableEntry().Action = nil // the key is enough
	}
	b.todo = append(b.todo, item{change: c, update: &p4.Update{Type: updateTypes[c.Op], Entity: e}})
}

// run writes until only changes are left that are not worth retrying.
func (b *batch) run(ctx context.Context) error {
	wait := b.s.c.wait
	for attempt := 1; len(b.todo) > 0; {
		updates := make([]*p4.Update, 0, len(b.todo))
		for _, x := range b.todo {
			updates = append(updates, x.update)
		}
		err := b.s.call(ctx, updates)
		again, err := b.settle(err)
		if err == nil && again == nil {
			continue // nothing failed, or insertions follow
		}
		if err == nil {
			err = again
		} else if !transient(status.Code(err)) {
			return cmp.Or(b.s.Err(), err) // the end of the session cancels calls
		}
		if attempt++; attempt > b.s.c.attempts {
			return fmt.Errorf("after %d attempts: %w", attempt-1, err)
		}
		timer := time.NewTimer(wait)
		wait = min(2*wait, time.Second)
		select {
		case <-timer.C:
		case <-b.s.done:
			timer.Stop()
			return b.s.Err()
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		}
	}
	return nil
}

// settle records what a Write has done. again is why what is left has to wait;
// whole is an error of the call as a whole.
func (b *batch) settle(err error) (again, whole error) {
	if err == nil {
		for _, x := range b.todo {
			b.done = append(b.done, x.change)
		}
		b.todo = nil
		return nil, nil
	}
	each := perUpdate(err, len(b.todo))
	if each == nil {
		if c := status.Code(err); errors.Is(err, ErrNotPrimary) || !transient(c) && c != codes.Unknown && c != codes.Canceled {
			return nil, err // refused as a whole
		}
		for i := range b.todo {
			x := &b.todo[i]
			x.unsure = true
			if x.update.Type == p4.Update_INSERT {
				x.update.Type = p4.Update_MODIFY
			}
		}
		return nil, err
	}
	var left []item
	for i, x := range b.todo {
		code := codes.Code(each[i].GetCanonicalCode()) //nolint:gosec // a code
		switch {
		case code == codes.OK,
			code == codes.NotFound && x.unsure && x.change.Op == switchspec.Delete:
			b.done = append(b.done, x.change)
		case code == codes.NotFound && x.unsure && x.change.Op == switchspec.Insert && x.update.Type == p4.Update_MODIFY:
			x.update.Type, x.unsure = p4.Update_INSERT, false
			left = append(left, x)
		case transient(code):
			again = fmt.Errorf("%v: %v: %s", x.change, code, each[i].GetMessage())
			left = append(left, x)
		default:
			object := "PRE"
			if t := b.s.c.schema.byTable[x.update.GetEntity().GetTableEntry().GetTableId()]; t != nil {
				object = t.name
			}
			b.failed = append(b.failed, &UpdateError{x.change, code, object, each[i].GetMessage()})
		}
	}
	b.todo = left
	return again, nil
}
