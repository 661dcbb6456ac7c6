package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// TestNoDevice: hosts without devices relay over TCP.
func TestNoDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 3)
		w.noDevice, w.bootstrap = true, "127.0.0.1"
		r := &rig{t: t, w: w, c: ds[0].client(), ds: ds[1:]}
		var err error
		if r.mem, err = r.c.Alloc(regionSize); err != nil {
			t.Fatal(err)
		}
		fillRandom(r.mem.Bytes(), 3)
		for _, d := range r.ds {
			r.rs = append(r.rs, d.receiver(regionSize, regionSize))
		}
		to := []string{ds[1].address, ds[2].address}
		_, err = r.c.Create(t.Context(), GroupConfig{Service: "s", Receivers: to, Mode: ModeRequire})
		wants(t, "require", err, ErrNoSwitch, "nothing")
		if r.g, err = r.c.Create(t.Context(), GroupConfig{Service: "s", Receivers: to, Regions: []Region{{"r", regionSize}}}); err != nil {
			t.Fatal(err)
		}
		for _, o := range r.rs {
			o.accept()
		}
		r.everyKind(100, []Piece{r.mem.Slice(0, 100)})
		r.everyKind(100_000, []Piece{r.mem.Slice(0, 100_000)})
		if info := r.g.Info(); info.Path != PathRelay || info.Transport != "tcp" || info.Block == 0 || info.Algorithm == "" {
			t.Errorf("%+v", info)
		}
	})
}

// TestListenCancelled: an offer that was given up does not stay with the daemon.
func TestListenCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 1)
		c := ds[0].client()
		ctx, cancel := context.WithCancel(t.Context())
		w.lost = cancel
		_, err := c.Listen(ctx, ListenConfig{Service: "s", Accept: func(*Request) (*Grant, error) { return &Grant{}, nil }})
		wants(t, "listen", err, context.Canceled, `"s"`)
		ds[0].mu.Lock()
		defer ds[0].mu.Unlock()
		if len(ds[0].services) > 0 {
			t.Errorf("it offers %v", ds[0].services)
		}
	})
}

func TestListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ds := newWorld(t, 2)
		src, c := ds[0].client(), ds[1].client()
		accept := func(*Request) (*Grant, error) { return &Grant{}, nil }
		_, err := c.Listen(t.Context(), ListenConfig{Service: "s"})
		wants(t, "no policy", err, ErrInvalid, "Accept")
		_, err = c.Listen(t.Context(), ListenConfig{Accept: accept})
		wants(t, "no service", err, ErrInvalid, "Service")
		_, err = c.Listen(t.Context(), ListenConfig{Service: "taken", Accept: accept})
		wants(t, "taken", err, ErrLimit, "taken")
		l, err := c.Listen(t.Context(), ListenConfig{Service: "s", Accept: accept})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Listen(t.Context(), ListenConfig{Service: "s", Accept: accept})
		wants(t, "twice", err, ErrInvalid, `"s" already`)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		_, err = l.Accept(ctx)
		wants(t, "no sender comes", err, context.DeadlineExceeded, "")
		groups := map[GroupID]*Group{}
		for range 3 {
			g, err := src.Create(t.Context(), GroupConfig{Service: "s", Receivers: []string{ds[1].address}})
			if err != nil {
				t.Fatal(err)
			}
			groups[g.Info().ID] = g
		}
		first, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := first.Info()
		accepted := groups[i.ID]
		if i.Service != "s" || i.Path != PathSwitch || accepted == nil {
			t.Fatalf("%+v", i)
		}
		delete(groups, i.ID)
		eventually(t, "two more are there", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.ready.len() == 2
		})
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = l.Accept(t.Context())
		wants(t, "closed", err, ErrClosed, `"s"`)
		for _, g := range groups { // the application accepted none of these
			if e := event(t, g.Events(), EventRemoved); e.Address != ds[1].address {
				t.Errorf("%+v", e)
			}
		}
		if err := accepted.Write(t.Context(), At{}); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if err := first.PostRecv(Piece{}); err != nil {
			t.Fatal(err)
		}
		if err := accepted.Send(t.Context()); err != nil {
			t.Fatal(err)
		}
		if l, err = c.Listen(t.Context(), ListenConfig{Service: "s", Accept: accept}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestClosedWhileReformed: a group that ends just when it has been formed anew leaves
// nothing behind; and what all have is complete with the new formation.
func TestClosedWhileReformed(t *testing.T) {
	for name, p := range paths {
		if !p.relay {
			continue
		}
		testenv.Bubble(t, name, func(t *testing.T) {
			r := newRig(t, 1, true, p.cfg)
			r.post(10)
			m := r.rs[0].m
			eventually(t, "the receiver has its path", func() bool {
				m.mu.Lock()
				defer m.mu.Unlock()
				return m.life.last != nil && m.life.last.path != nil
			})
			m.mu.Lock()
			m.life.last.path.(*inRelay).count.mute.Store(true) // it gets the message, and cannot say so
			m.mu.Unlock()
			var path outbound
			done := make(chan error, 1)
			op := &Op{Kind: OpSend, Pieces: []Piece{r.mem.Slice(0, 10)}, Done: func(op *Op) {
				r.g.mu.Lock()
				path = r.g.path
				r.g.mu.Unlock()
				r.g.end(errClosing) // by the runner, before it runs the new path
				done <- op.Err
			}}
			if err := r.g.Submit(t.Context(), op); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			<-r.g.ended
			select {
			case <-path.(*relayed).group.Done():
			default:
				t.Error("the new formation goes on")
			}
			if i := r.g.Info(); i.Formation != 2 || i.Stats.Completed != 1 || i.Stats.Replayed != 0 {
				t.Errorf("%+v", i)
			}
			r.recv(Received{N: 10, Kind: OpSend}, r.mem.Bytes()[:10])
		})
	}
}

// A listCQ is a completion queue with what is in it.
type listCQ struct {
	qp.CQ
	list []qp.WC
}

func (c *listCQ) Poll(wc []qp.WC) (int, error) { return copy(wc, c.list), nil }

// TestCompletions: what comes before a failure is complete, and the failure is the reason,
// not what is flushed after it. The daemon is asked which receiver is to blame.
func TestCompletions(t *testing.T) {
	for name, c := range map[string]struct {
		list           []qp.WC
		good           int
		text           string
		blame, refused bool
	}{
		"all":     {[]qp.WC{{ID: 0}, {ID: 1}, {ID: 2}}, 3, "", false, false},
		"order":   {[]qp.WC{{ID: 0}, {ID: 2}, {ID: 2}}, 1, "out of order", false, false},
		"refused": {[]qp.WC{{ID: 0}, {ID: 1, Status: qp.StatusRemInvReqErr}, {ID: 2, Status: qp.StatusWRFlushErr}}, 1, "a receiver refused", true, true},
		"access":  {[]qp.WC{{ID: 0, Status: qp.StatusRemAccessErr}, {ID: 1, Status: qp.StatusWRFlushErr}}, 0, "a receiver refused", true, true},
		"silent":  {[]qp.WC{{ID: 0, Status: qp.StatusRetryExcErr}, {ID: 1, Status: qp.StatusWRFlushErr}}, 0, "nothing is acknowledged", true, false},
	} {
		done := 0
		g := &Group{poster: poster{room: make(chan struct{}, 3)}, drained: make(chan struct{})}
		for range 3 {
			g.room <- struct{}{}
			g.life.queue.push(&Op{Done: func(*Op) { done++ }})
			g.life.queue.advance()
		}
		s := &switched{g: g, queuePair: queuePair{cq: &listCQ{list: c.list}}, posted: 3}
		err := s.poll()
		if done != c.good || s.completed != uint64(len(c.list)) {
			t.Errorf("%s: %d are done", name, done)
		}
		if c.text == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var f *formationError
		if err == nil || !strings.Contains(err.Error(), c.text) || errors.As(err, &f) != c.blame || f != nil && (f.blame != c.blame || f.refused != c.refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEventQueue: the application need not read, and the newest are kept.
func TestEventQueue(t *testing.T) {
	q := newEventQueue()
	for n := range 3 * kept {
		q.put(Event{Type: EventRoute, Text: fmt.Sprint(n)})
	}
	q.put(lastEvent(errClosing, 1))
	q.put(Event{Type: EventRoute})
	n := 3*kept - (kept - 1)
	for e := range q.c {
		if e.Type == EventClosed {
			break
		}
		if e.Text != fmt.Sprint(n) {
			t.Fatalf("event %s instead of %d", e.Text, n)
		}
		n++
	}
	if _, more := <-q.c; more || n != 3*kept {
		t.Errorf("the last was %d", n)
	}
}

// TestEarlyEvent: what the daemon says of a group before it has answered is not lost.
func TestEarlyEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 2)
		w.early = "before the answer"
		ds[1].receiver(8, 0)
		w.client = ds[0].client()
		g, err := w.client.Create(t.Context(), GroupConfig{Service: "s", Receivers: []string{ds[1].address}, Regions: []Region{{"r", 8}}})
		if err != nil {
			t.Fatal(err)
		}
		if e := event(t, g.Events(), EventRoute); e.Text != w.early {
			t.Errorf("%+v", e)
		}
	})
}

// A stubQP can be ended.
type stubQP struct{ qp.QP }

func (stubQP) Modify(*qp.Attr, qp.AttrMask) error { return nil }
func (stubQP) Close() error                       { return nil }

// A lateCQ gives its completions one by one, and only to callers that wait for them.
type lateCQ struct {
	listCQ
	waits int
}

func (c *lateCQ) Poll(wc []qp.WC) (int, error) {
	if c.waits < 2 || len(c.list) == 0 {
		return 0, nil
	}
	n := copy(wc, c.list[:1])
	c.list = c.list[1:]
	return n, nil
}

func (c *lateCQ) Wait(ctx context.Context) error {
	c.waits++
	return ctx.Err()
}

func (c *lateCQ) Close() error { return nil }

// TestFlush: what was acknowledged before the end of a formation is complete, though its
// completion was not polled by then.
func TestFlush(t *testing.T) {
	done := 0
	g := &Group{poster: poster{room: make(chan struct{}, 3)}, drained: make(chan struct{})}
	for range 3 {
		g.room <- struct{}{}
		g.life.queue.push(&Op{Done: func(*Op) { done++ }})
		g.life.queue.advance()
	}
	s := &switched{g: g, queuePair: queuePair{&lateCQ{listCQ: listCQ{list: []qp.WC{{ID: 0}, {ID: 1}, {ID: 2, Status: qp.StatusWRFlushErr}}}}, stubQP{}}, posted: 3}
	if err := s.run(ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if done != 2 || s.completed != 3 {
		t.Errorf("%d are done of %d", done, s.completed)
	}
}

// TestFlushReceived: what was acknowledged before the end of a formation is delivered,
// though its completion was not polled by then: the sender may know that it is there.
func TestFlushReceived(t *testing.T) {
	m := &Member{inbox: newInbox[Received]()}
	m.recvs.push(Piece{})
	m.recvs.push(Piece{})
	cq := &lateCQ{listCQ: listCQ{list: []qp.WC{{Opcode: qp.WCRecvWriteImm, ByteLen: 9}, {Status: qp.StatusWRFlushErr}}}}
	p := &inSwitch{m: m, queuePair: queuePair{cq, stubQP{}}, out: 2, posted: 2}
	p.run(ended)
	if m.have != 1 || m.inbox.len() != 1 || m.recvs.len() != 1 || p.out != 0 {
		t.Errorf("the member has %d messages, %d to deliver; %d receives are left, %d at the queue pair", m.have, m.inbox.len(), m.recvs.len(), p.out)
	}
}

// TestRegionsOfDaemon: regions other than those that were asked for are not used.
func TestRegionsOfDaemon(t *testing.T) {
	asked := []Region{{"a", 10}, {"b", 20}}
	for name, c := range map[string]struct {
		got []*mcrdmav1.RegionSpec
		ok  bool
	}{
		"right":  {[]*mcrdmav1.RegionSpec{{Length: 10}, {Length: 20}}, true},
		"none":   {nil, false},
		"more":   {[]*mcrdmav1.RegionSpec{{Length: 10}, {Length: 20}, {Length: 30}}, false},
		"longer": {[]*mcrdmav1.RegionSpec{{Length: 10}, {Length: 21}}, false},
	} {
		g := &Group{cfg: GroupConfig{Regions: asked}, places: c.got}
		if err := g.checkRegions(); (err == nil) != c.ok || (err != nil && !errors.Is(err, ErrDaemon)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRegionsAtTheGroupsAddress: members register their regions where the sender's packets address
// them, if the device can; whether it sees the identification goes to the daemon as it says.
func TestRegionsAtTheGroupsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 2)
		src := ds[0].client()
		ds[1].receiver(100, 1)
		g, err := src.Create(t.Context(), GroupConfig{Service: "s", Receivers: []string{ds[1].address}, Regions: []Region{{"r", 100}}})
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		for _, x := range w.groups {
			if a := x.members[0].answer; a.GetRegions()[0].GetVa() != 1<<40 || !a.GetSeesIdentification() {
				t.Errorf("%v", a)
			}
		}
		w.mu.Unlock()
		if err := g.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestMovedWhateverTheClock: how long an operation takes does not depend on the clock, which may be
// set meanwhile.
func TestMovedWhateverTheClock(t *testing.T) {
	before := time.Now()
	var y tally
	y.move()
	if at := y.moved(); at.Before(before) || at.After(time.Now()) || !strings.Contains(at.String(), " m=") { // the monotonic time
		t.Errorf("%v, after %v", at, before)
	}
}
