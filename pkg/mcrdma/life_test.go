package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// event returns the next event of a type.
func event(t *testing.T, c <-chan Event, typ EventType) Event {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case e, ok := <-c:
			if !ok {
				t.Fatalf("no more events, and no %v", typ)
			}
			if e.Type == typ {
				return e
			}
		case <-timeout:
			t.Fatalf("no event %v", typ)
		}
	}
}

// kill ends an application as a crash does: it notifies no daemon.
func (c *Client) kill() {
	c.mu.Lock()
	close(c.closed)
	c.mu.Unlock()
	_ = c.dev.Close()
	c.cancel()
}

// TestWriteCancelled: a WRITE whose caller gives up goes on.
func TestWriteCancelled(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.g.WriteImm(ctx, At{}, 1, r.mem.Slice(0, 1000)) }()
		eventually(t, "posted", func() bool { return r.g.Info().Stats.Posts > 0 })
		cancel()
		err := <-done
		wants(t, "cancelled", err, context.Canceled, "it goes on")
		wants(t, "the memory is still used", r.mem.Close(), ErrBusy, "1 operations")
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Pending == nil || e.Group != r.g.id {
			t.Fatalf("%+v does not say how to learn of the operation's end", err)
		}
		wants(t, "waiting again", e.Pending.Wait(ctx), context.Canceled, "it goes on")
		r.post(0)
		for range 2 { // it may be asked again
			if err := e.Pending.Wait(t.Context()); err != nil || e.Pending.Number() != 0 {
				t.Fatal(e.Pending.Number(), err)
			}
		}
		if r.mem.users != 0 {
			t.Errorf("the operation is done, and %d operations use its memory", r.mem.users)
		}
		if err := r.g.Write(t.Context(), At{0, 5000}, r.mem.Slice(5000, 1000)); err != nil {
			t.Fatal(err)
		}
		r.recv(Received{N: 1000, Imm: 1, HasImm: true, Kind: OpWriteImm}, nil)
		r.same(0, 1000)
		if err := errors.Join(r.g.Close(t.Context()), r.mem.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestPost: operations are posted one behind the other and waited for in any order, by any number of
// callers; when the group ends, each of them learns of it.
func TestPost(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		var under []*Pending
		post := func(op Op) {
			op.Pieces = []Piece{r.mem.Slice(0, 9000)}
			p, err := r.g.Post(t.Context(), op)
			if err != nil {
				t.Fatal(err)
			}
			under = append(under, p)
		}
		for n := range 5 {
			post(Op{Kind: OpWrite, At: At{0, uint64(n)}})
		}
		for n := range 5 {
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if p := under[4-n]; p.Wait(t.Context()) != nil || p.Number() != uint64(4-n) || p.View() != r.g.View().Number {
						t.Errorf("operation %d, with view %d: %v", p.Number(), p.View(), p.op.Err)
					}
				})
			}
			wg.Wait()
		}
		post(Op{Kind: OpSend}) // no receive is posted for it
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wants(t, "given up", under[5].Wait(ctx), context.Canceled, "it goes on")
		_ = r.g.Close(ctx)
		wants(t, "the group's end", under[5].Wait(t.Context()), ErrClosed, "")
		_, err := r.g.Post(t.Context(), Op{})
		wants(t, "after the end", err, ErrClosed, "")
		if err := r.mem.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestSubmitWaits: more than Depth operations wait, for room or until their context
// ends; and Done may submit.
func TestSubmitWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, false, GroupConfig{Depth: 2})
		done := make(chan int, 10)
		op := func(n int) *Op {
			return &Op{Kind: OpSend, Pieces: []Piece{r.mem.Slice(0, 8)}, Done: func(*Op) { done <- n }}
		}
		for n := range 2 {
			if err := r.g.Submit(t.Context(), op(n)); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		wants(t, "no room", r.g.Submit(ctx, op(2)), context.DeadlineExceeded, "")
		waiting := make(chan error, 1)
		go func() { waiting <- r.g.Submit(t.Context(), op(3)) }()
		for range 3 {
			r.post(8)
		}
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1, 3} {
			if got := <-done; got != n {
				t.Fatalf("operation %d is done instead of %d", got, n)
			}
		}
		// A chain of operations, each of which is submitted by the one before.
		const chain = 100
		end := make(chan error, 1)
		n := 0
		next := &Op{Kind: OpWrite, Pieces: []Piece{r.mem.Slice(0, 8)}}
		next.Done = func(op *Op) {
			if n++; n == chain || op.Err != nil {
				end <- op.Err
			} else if err := r.g.Submit(context.Background(), op); err != nil {
				end <- err
			}
		}
		if err := r.g.Submit(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		if err := <-end; err != nil {
			t.Fatal(err)
		}
	})
}

// TestClose: Close waits for the operations under way, and receivers get all of them
// before they learn of the end.
func TestClose(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		for n := range 20 {
			op := &Op{Kind: OpSendImm, Imm: uint32(n), Pieces: []Piece{r.mem.Slice(0, n*1000)}, Done: func(*Op) {}}
			if err := r.g.Submit(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan error, 1)
		go func() { closed <- r.g.Close(t.Context()) }()
		eventually(t, "closing", func() bool { return r.g.Submit(t.Context(), &Op{Done: func(*Op) {}}) != nil })
		wants(t, "submit while closing", r.g.Submit(t.Context(), &Op{Done: func(*Op) {}}), ErrClosed, "being closed")
		for _, o := range r.rs {
			for range 20 {
				if err := o.m.PostRecv(o.mem.Slice(regionSize, 20000)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		for _, o := range r.rs {
			for n := range 20 {
				got, err := o.m.Recv(t.Context())
				if err != nil || got.Imm != uint32(n) {
					t.Fatalf("message %d: %+v, %v", n, got, err)
				}
			}
			_, err := o.m.Recv(t.Context())
			wants(t, "the end", err, ErrClosed, "the sender has closed")
			event(t, o.m.Events(), EventClosed)
			wants(t, "a receive after the end", o.m.PostRecv(Piece{}), ErrClosed, "")
			if err := errors.Join(o.m.Close(), o.mem.Close()); err != nil {
				t.Error(err)
			}
		}
		event(t, r.g.Events(), EventClosed)
		if _, more := <-r.g.Events(); more {
			t.Error("an event after the last")
		}
		wants(t, "a write after the end", r.g.Write(t.Context(), At{}), ErrClosed, "")
		if err := errors.Join(r.g.Close(t.Context()), r.mem.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseCancelled: when Close may not wait, what is under way fails.
func TestCloseCancelled(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		var failed []error
		for range 5 {
			op := &Op{Kind: OpSend, Pieces: []Piece{r.mem.Slice(0, 9000)}, Done: func(op *Op) { failed = append(failed, op.Err) }}
			if err := r.g.Submit(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		wants(t, "close", r.g.Close(ctx), context.DeadlineExceeded, "under way")
		wants(t, "close again", r.g.Close(t.Context()), context.DeadlineExceeded, "under way")
		if len(failed) != 5 {
			t.Fatalf("%d operations have failed", len(failed))
		}
		for _, err := range failed {
			wants(t, "operation", err, ErrClosed, "")
		}
		for _, o := range r.rs {
			_, err := o.m.Recv(t.Context())
			wants(t, "receiver", err, ErrClosed, "")
		}
		if err := r.mem.Close(); err != nil {
			t.Error(err)
		}
		if r.w.group(r.g.id.wire()) != nil {
			t.Error("the daemon has the group")
		}
	})
}

// TestClientClose: closing a client ends all that it has.
func TestClientClose(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		var end error
		op := &Op{Kind: OpSend, Pieces: []Piece{r.mem.Slice(0, 9000)}, Done: func(op *Op) { end = op.Err }}
		if err := r.g.Submit(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		if err := r.c.Close(); err != nil {
			t.Error(err)
		}
		wants(t, "operation", end, ErrClosed, "")
		wants(t, "group", r.g.Err(), ErrClosed, "")
		for i, o := range r.rs {
			if err := o.m.PostRecv(o.mem.Slice(regionSize, 10)); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if err := o.c.Close(); err != nil {
				t.Error(err)
			}
			_, err := o.m.Recv(t.Context())
			wants(t, fmt.Sprint("receiver ", i), err, ErrClosed, "")
			_, err = o.l.Accept(t.Context())
			wants(t, "listener", err, ErrClosed, "")
		}
		r.w.mu.Lock()
		defer r.w.mu.Unlock()
		if len(r.w.groups) > 0 {
			t.Error("the daemon has groups")
		}
	})
}

// TestClientCloseWhileCreating: Close ends a Create that is under way, and waits until nothing of it is left on the device.
func TestClientCloseWhileCreating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 3)
		src := ds[0].client()
		ds[1].receiver(100, 0)
		w.hold = make(chan struct{})
		done := make(chan error, 1)
		go func() {
			_, err := src.Create(t.Context(), GroupConfig{Service: "s", Receivers: []string{ds[1].address}, Regions: []Region{{"r", 100}}})
			done <- err
		}()
		synctest.Wait()
		time.AfterFunc(time.Second, func() { close(w.hold) })
		if err := src.Close(); err != nil {
			t.Error(err)
		}
		wants(t, "Create", <-done, ErrClosed, "the Client was closed")
	})
}

// TestCreateCancelled: nothing is left of a group whose creation was given up.
func TestCreateCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 3)
		src := ds[0].client()
		r1, r2 := ds[1].receiver(100, 0), ds[2].receiver(100, 0)
		w.hold = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := src.Create(ctx, GroupConfig{Service: "s", Receivers: []string{ds[1].address, ds[2].address}, Regions: []Region{{"r", 100}}})
			done <- err
		}()
		eventually(t, "prepared", func() bool {
			r2.c.mu.Lock()
			defer r2.c.mu.Unlock()
			return len(r2.c.members) > 0
		})
		cancel()
		wants(t, "create", <-done, context.Canceled, `"s"`)
		for _, r := range []*receiver{r1, r2} {
			eventually(t, "nothing is left", func() bool {
				r.c.mu.Lock()
				defer r.c.mu.Unlock()
				return len(r.c.members) == 0
			})
			if err := r.mem.Close(); err != nil {
				t.Error(err)
			}
		}
		if len(src.groups) > 0 || src.creating > 0 {
			t.Error(src.groups, src.creating)
		}
	})
}

// TestCreateTooLate: a deadline that has passed is no failure of the daemon.
func TestCreateTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ds := newWorld(t, 2)
		src := ds[0].client()
		ctx, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		for range 20 { // of which, by chance, half would see first that the daemon is there
			_, err := src.Create(ctx, GroupConfig{Service: "s", Receivers: []string{ds[1].address}})
			if wants(t, "create", err, context.DeadlineExceeded, `"s"`); errors.Is(err, ErrDaemon) {
				t.Fatal(err)
			}
		}
	})
}

// A group whose creation is canceled when the daemon has made it already is closed.
func TestCreateAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 2)
		src, r := ds[0].client(), ds[1].receiver(100, 0)
		ctx, cancel := context.WithCancel(t.Context())
		w.lost = cancel
		_, err := src.Create(ctx, GroupConfig{Service: "s", Receivers: []string{ds[1].address}, Regions: []Region{{"r", 100}}})
		wants(t, "create", err, context.Canceled, `"s"`)
		eventually(t, "it is closed", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.groups) == 0
		})
		eventually(t, "nothing is left", func() bool {
			r.c.mu.Lock()
			defer r.c.mu.Unlock()
			return len(r.c.members) == 0
		})
	})
}

// TestStrangeGroup: a group of which the client knows nothing is closed, when the daemon
// says that there is one.
func TestStrangeGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, false, GroupConfig{})
		g := r.w.group(r.g.id.wire())
		r.c.mu.Lock()
		delete(r.c.groups, r.g.id)
		r.c.mu.Unlock()
		r.w.changed(g, mcrdmav1.GroupChanged_TYPE_SUSPECTED, "x", "")
		eventually(t, "it is closed", func() bool { return r.w.group(r.g.id.wire()) == nil })
		r.c.mu.Lock()
		r.c.groups[r.g.id] = r.g
		r.c.mu.Unlock()
	})
}

// TestEndedFormation: the daemon is told whom a formation's end makes suspect, and asked what it refused; the cause stays what it was.
func TestEndedFormation(t *testing.T) {
	l := &life{state: active, formation: formation{info: &mcrdmav1.FormationInfo{Formation: 3}}}
	l.ended(&formationError{suspects: []string{"10.0.0.2"}, refused: true, err: qp.StatusRemAccessErr.Err()})
	if r := l.re.request(); l.job != asking || r.GetFormation() != 3 || !slices.Equal(r.GetSuspects(), []string{"10.0.0.2"}) || !l.re.refused {
		t.Errorf("job %v, refused %v: %v", l.job, l.re.refused, r)
	}
	if want := qp.StatusRemAccessErr.Err(); !errors.Is(l.re.cause, want) {
		t.Errorf("%v is not %v", l.re.cause, want)
	}
}

// TestSuspectOf: the daemon is told whom the relay suspects and which receiver has said so; a receiver that suspects the sender is
// the suspect.
func TestSuspectOf(t *testing.T) {
	info := &mcrdmav1.FormationInfo{Members: []*mcrdmav1.Member{{Address: "10.0.0.1"}, {Address: "10.0.0.2"}}}
	for _, c := range []struct {
		suspect, reporter int
		suspects          []string
		by                string
	}{
		{2, 0, []string{"10.0.0.2"}, ""}, {2, 1, []string{"10.0.0.2"}, "10.0.0.1"}, {1, 2, []string{"10.0.0.1"}, "10.0.0.2"},
		{2, 2, []string{"10.0.0.2"}, ""}, {0, 2, []string{"10.0.0.2"}, ""}, {0, 0, nil, ""}, {3, 0, nil, ""}, {1, 3, nil, ""},
	} {
		l := &life{state: active, formation: formation{info: info}}
		l.ended(suspectOf(&rdmcfallback.FailedError{Suspect: c.suspect, Reporter: c.reporter, Reason: rdmcfallback.ErrLost}, info))
		if r := l.re.request(); !slices.Equal(r.GetSuspects(), c.suspects) || r.GetReporter() != c.by {
			t.Errorf("%d suspects %d: %v", c.reporter, c.suspect, r)
		}
	}
}

// TestSuspectsOfUnused: of a formation that could not be connected, those are suspected that its failure names, not those of the
// formation before.
func TestSuspectsOfUnused(t *testing.T) {
	info := &mcrdmav1.FormationInfo{Formation: 1, Members: []*mcrdmav1.Member{{Address: "10.0.0.1"}, {Address: "10.0.0.2"}}}
	l := &life{state: active, formation: formation{info: info}, views: views{departed: map[string]*departure{}, from: map[string]uint64{}}}
	l.stats.Completed = 1
	l.ended(&formationError{suspects: []string{"10.0.0.1"}, err: errPlay})
	if r := l.re.request(); r.GetFormation() != 1 || !slices.Equal(r.GetSuspects(), []string{"10.0.0.1"}) || r.GetFruitless() {
		t.Errorf("%v", r)
	}
	l.answered(nil, ErrTimeout, true, time.Now()) // the first one's suspects are named until there is another formation
	l.ask()
	if r := l.re.request(); r.GetFormation() != 1 || len(r.GetSuspects()) != 1 || r.GetFruitless() {
		t.Errorf("%v", r)
	}
	next := &mcrdmav1.FormationInfo{Formation: 2, View: 2, Members: info.GetMembers(), Path: mcrdmav1.Path_PATH_RELAY}
	for _, c := range []struct {
		err      error
		suspects []string
	}{{&formationError{suspects: []string{"10.0.0.2"}, err: errPlay}, []string{"10.0.0.2"}}, {errPlay, nil}} {
		l.connect(next)
		l.connected(fmt.Errorf("connect: %w", c.err), time.Now())
		l.ask()
		if r := l.re.request(); r.GetFormation() != next.GetFormation() || !slices.Equal(r.GetSuspects(), c.suspects) || !r.GetFruitless() {
			t.Errorf("%v: %v", c.err, r)
		}
		next = &mcrdmav1.FormationInfo{Formation: next.GetFormation() + 1, View: next.GetView() + 1, Members: info.GetMembers(), Path: next.GetPath()}
	}
}
