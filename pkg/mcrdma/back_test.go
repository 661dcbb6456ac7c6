package mcrdma

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestEndedWhileAway: a membership that ended while the daemon was not there ends for the
// reason that the daemon gives.
func TestEndedWhileAway(t *testing.T) {
	for reason, want := range map[string]error{"CLOSED": ErrClosed, "REMOVED": ErrRemoved, "SENDER_LOST": ErrSenderLost, "NOT_FOUND": ErrDaemon} {
		testenv.Bubble(t, reason, func(t *testing.T) {
			r := newRig(t, 1, false, GroupConfig{})
			d := r.ds[0]
			d.stop()
			d.refuse = func(uint64) error { return fail(codes.NotFound, reason, "for the test") }
			d.start()
			_, err := r.rs[0].m.Recv(t.Context())
			wants(t, "receiver", err, want, "for the test")
		})
	}
}

// TestSaidLater: a group that is closed, and a member that leaves, while the daemon is not
// there: it is told when it is back.
func TestSaidLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, true, GroupConfig{})
		r.src.stop()
		r.ds[0].stop()
		left := make(chan error, 1)
		go func() { left <- r.rs[0].m.Close() }()
		if err := errors.Join(r.g.Close(t.Context()), <-left); err != nil {
			t.Fatal(err)
		}
		if r.w.group(r.g.id.wire()) == nil {
			t.Fatal("the daemon was told, though it was not there")
		}
		r.ds[0].start()
		eventually(t, "it is told that the member has left", func() bool {
			r.ds[0].mu.Lock()
			defer r.ds[0].mu.Unlock()
			return len(r.ds[0].left) == 1
		})
		r.src.start()
		eventually(t, "it is told that the group is closed", func() bool { return r.w.group(r.g.id.wire()) == nil })
		_, err := r.rs[1].m.Recv(t.Context())
		wants(t, "the other receiver", err, ErrClosed, "the sender has closed")
	})
}

// TestResumedBetweenFormations: the daemon is restarted when a formation is being made. It
// has lost that one, but knows the one before: that is what the member has.
func TestResumedBetweenFormations(t *testing.T) {
	for name, forgets := range map[string]bool{"known": false, "forgotten": true} {
		testenv.Bubble(t, name, func(t *testing.T) {
			r := newRig(t, 1, false, GroupConfig{})
			m, d := r.rs[0].m, r.ds[0]
			last := m.life.last.req.GetAttach()
			r.w.mu.Lock()
			r.w.hold = make(chan struct{})
			r.w.mu.Unlock()
			r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
			var next uint64
			eventually(t, "it is prepared", func() bool {
				m.mu.Lock()
				defer m.mu.Unlock()
				if m.life.next != nil && !m.working { // it has been answered
					next = m.life.next.req.GetAttach()
				}
				return next != 0
			})
			d.stop()
			d.refuse = func(attach uint64) error {
				if attach == next || forgets {
					return fail(codes.NotFound, "NOT_FOUND", "no such attachment")
				}
				return nil
			}
			d.start()
			if forgets {
				_, err := m.Recv(t.Context())
				wants(t, "receiver", err, ErrDaemon, "no such attachment")
				return
			}
			event(t, m.Events(), EventResumed)
			eventually(t, "the formation is given up", func() bool {
				m.mu.Lock()
				defer m.mu.Unlock()
				return m.life.next == nil
			})
			d.mu.Lock()
			if !slices.Equal(d.resumed, []uint64{next, last}) {
				t.Errorf("resumed %d instead of %d and %d", d.resumed, next, last)
			}
			d.mu.Unlock()
			// It is left out of the next formation.
			d.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_Detached{
				Detached: &mcrdmav1.Detached{Attach: last, Reason: mcrdmav1.Detached_REASON_REMOVED, Text: "left out"}}})
			_, err := m.Recv(t.Context())
			wants(t, "receiver", err, ErrRemoved, "left out")
		})
	}
}

// TestLeavesBetweenFormations: a member that leaves when no formation of it is there, leaves
// the one that its daemon has.
func TestLeavesBetweenFormations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, false, GroupConfig{})
		m, d := r.rs[0].m, r.ds[0]
		next, err := r.w.prepare(t.Context(), r.w.group(r.g.id.wire()), d, nil, 2)
		if err != nil {
			t.Fatal(err)
		}
		next.detach(mcrdmav1.Detached_REASON_ABORTED, "for the test")
		eventually(t, "it has none", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.life.next == nil && m.life.last.path == nil
		})
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.left) != 1 {
			t.Errorf("left %q", d.left)
		}
	})
}

// TestAdoptedLate: a group whose daemon was gone while its members connected is resumed by
// itself, since the others have been already.
func TestAdoptedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, false, GroupConfig{})
		r.g.end(errClosing)
		<-r.g.ended
		r.src.stop()
		g := newGroup(r.c, r.g.cfg)
		g.id = GroupID{r.src.address, 99}
		info := r.g.life.info
		b, err := g.bring(false)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.c.adopt(g, info, b, &connection{}); err != nil {
			t.Fatal(err)
		}
		there := func(f func()) {
			r.c.mu.Lock()
			defer r.c.mu.Unlock()
			f()
		}
		there(func() { delete(r.c.groups, g.id) }) // the others are resumed before it is there
		r.w.mu.Lock()
		r.w.groups[99] = &fakeGroup{id: g.id.wire(), info: info}
		r.w.mu.Unlock()
		<-g.begun // before, no application has it, and none is told
		r.src.start()
		event(t, g.Events(), EventResumed)
		there(func() { r.c.groups[g.id] = g })
	})
}

// TestSlowDaemon: a daemon that takes its time to answer is there all the same.
func TestSlowDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ds := newWorld(t, 1)
		d := ds[0]
		d.socket += "low"
		l, err := d.w.net.Listen(d.address+"/daemon", d.socket)
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer()
		mcrdmav1.RegisterApplicationsServer(srv, d)
		t.Cleanup(srv.Stop)
		begun := time.AfterFunc(1500*time.Millisecond, func() { _ = srv.Serve(l) })
		defer begun.Stop()
		d.client()
	})
}

// TestEndBetweenFormations: the end of a formation while the next one is being made ends
// the member, unless the next one is formed, in whatever order these events come.
func TestEndBetweenFormations(t *testing.T) {
	closed := func(_ *rig, old, _ *fakeMember) { old.detach(mcrdmav1.Detached_REASON_CLOSED, "") }
	lost := func(_ *rig, _, next *fakeMember) { next.detach(mcrdmav1.Detached_REASON_SENDER_LOST, "not heard") }
	aborted := func(_ *rig, _, next *fakeMember) { next.detach(mcrdmav1.Detached_REASON_ABORTED, "for the test") }
	formed := func(_ *rig, _, next *fakeMember) {
		next.d.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_AttachFormed{AttachFormed: &mcrdmav1.AttachFormed{
			Attach: next.attach, Formation: &mcrdmav1.FormationInfo{Formation: 2, Path: mcrdmav1.Path_PATH_RELAY}}}})
	}
	// another is one more formation, which is given up.
	another := func(r *rig, _, _ *fakeMember) {
		third, err := r.w.prepare(r.w.t.Context(), r.w.group(r.g.id.wire()), r.ds[0], nil, 3)
		if err != nil {
			r.w.t.Error(err)
			return
		}
		third.detach(mcrdmav1.Detached_REASON_ABORTED, "for the test")
	}
	for name, tt := range map[string]struct {
		told []func(r *rig, old, next *fakeMember)
		err  error
	}{
		"aborted, closed":               {[]func(_ *rig, _, _ *fakeMember){aborted, closed}, ErrClosed},
		"closed, aborted":               {[]func(_ *rig, _, _ *fakeMember){closed, aborted}, ErrClosed},
		"closed, lost":                  {[]func(_ *rig, _, _ *fakeMember){closed, lost}, ErrSenderLost},
		"closed, formed, another, lost": {[]func(_ *rig, _, _ *fakeMember){closed, formed, another, lost}, ErrSenderLost},
		"closed, formed, lost":          {[]func(_ *rig, _, _ *fakeMember){closed, formed, lost}, ErrSenderLost},
		"formed, closed, lost":          {[]func(_ *rig, _, _ *fakeMember){formed, closed, lost}, ErrSenderLost},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			r := newRig(t, 1, false, GroupConfig{}) // whose sender does not notice
			g := r.w.group(r.g.id.wire())
			next, err := r.w.prepare(t.Context(), g, r.ds[0], nil, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, tell := range tt.told {
				tell(r, g.members[0], next)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err = r.rs[0].m.Recv(ctx)
			wants(t, "member", err, tt.err, "")
		})
	}
}

// TestJoinsAgain: a formation with which a member joins is given up while its application is
// still asked; the sender tries again at once, and a new member joins.
func TestJoinsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 2)
		asked, goOn := make(chan GroupID, 2), make(chan error)
		c := ds[1].client()
		_, err := c.Listen(t.Context(), ListenConfig{Service: "s", Accept: func(r *Request) (*Grant, error) {
			asked <- r.Group
			return &Grant{}, <-goOn
		}})
		if err != nil {
			t.Fatal(err)
		}
		g := &fakeGroup{id: &mcrdmav1.GroupID{Source: ds[0].address, Number: 7}, source: ds[0],
			req: &mcrdmav1.CreateGroupRequest{Service: "s", Mode: mcrdmav1.Mode_MODE_OFF}}
		ctx, giveUp := context.WithCancel(t.Context())
		tries := make(chan error, 2)
		try := func(ctx context.Context) {
			_, err := w.prepare(ctx, g, ds[1], nil, 1)
			tries <- err
		}
		go try(ctx)
		<-asked
		giveUp()
		wants(t, "the first", <-tries, context.Canceled, "")
		synctest.Wait()
		go try(t.Context())
		<-asked
		goOn <- nil
		goOn <- nil
		if err := <-tries; err != nil {
			t.Errorf("the second: %v", err)
		}
	})
}
