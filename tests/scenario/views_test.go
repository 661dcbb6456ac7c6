package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// The application, and the daemons of the remaining members, get a view before an operation
// completes in it.
func TestViews(t *testing.T) {
	everywhere(t, []story{
		{"nothing completes until the hook returns", hookWaits},
		{"the hook hangs", hookHangs},
		{"the hook fails", hookFails},
		{"the sender's host is lost after a removal", lostAfterRemoval},
	})
	bySwitches(t, []story{
		{"a member's daemon is away during a removal", daemonAwayAtRemoval},
		{"a member's daemon does not come back during a removal", daemonGoneAtRemoval},
	})
}

// hooked creates a group whose hook for views with that few receivers is f.
func (l *lab) hooked(cfg mcrdma.GroupConfig, few int, f func(context.Context, mcrdma.View) error) *team {
	l.t.Helper()
	cfg.OnView = func(ctx context.Context, v mcrdma.View) error {
		if len(v.Members) > few {
			return nil
		}
		return f(ctx, v)
	}
	tm := l.group(cfg, l.others()...)
	tm.write()
	return tm
}

// underWay starts a write.
func (tm *team) underWay() <-chan error {
	done := make(chan error, 1)
	tm.l.wg.Go(func() { done <- tm.tryWrite(context.Background()) })
	return done
}

func hookWaits(l *lab, cfg mcrdma.GroupConfig) {
	told, goOn := make(chan mcrdma.View, 1), make(chan bool)
	tm := l.hooked(cfg, 2, func(_ context.Context, v mcrdma.View) error {
		told <- v
		<-goOn
		return nil
	})
	was := tm.g.View()
	lost := tm.apps[1]
	lost.kill()
	done := tm.underWay()
	v := <-told
	if v.Number <= was.Number || slices.ContainsFunc(v.Members, func(p mcrdma.Peer) bool { return p.Host == lost.h.name }) {
		l.t.Errorf("view %+v after %+v, without %s", v, was, lost.h.name)
	}
	time.Sleep(300 * time.Millisecond)
	select {
	case err := <-done:
		l.t.Errorf("it is complete before the hook has returned: %v", err)
	default:
	}
	goOn <- true
	l.must(<-done)
	if now := tm.g.View(); now.Number != v.Number {
		l.t.Errorf("view %+v, and the hook was told %+v", now, v)
	}
	tm.removed(lost)
	tm.same()
	tm.close()
}

func hookHangs(l *lab, cfg mcrdma.GroupConfig) {
	cfg.ViewTime = time.Second
	returned := make(chan bool)
	tm := l.hooked(cfg, 2, func(ctx context.Context, _ mcrdma.View) error {
		<-ctx.Done()
		time.Sleep(10 * time.Second)
		close(returned)
		return nil
	})
	tm.endsByHook()
	<-returned
}

var errHook = errors.New("the disk is full")

func hookFails(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.hooked(cfg, 2, func(context.Context, mcrdma.View) error { return errHook })
	tm.endsByHook()
	l.fails(tm.g.Err(), errHook, "")
}

// endsByHook kills a receiver: the group ends, and operations in flight do not complete. For the other receivers
// it has failed: if it were closed, they could take that for the end of its data.
func (tm *team) endsByHook() {
	tm.l.t.Helper()
	lost := tm.apps[1]
	lost.kill()
	if err := <-tm.underWay(); err == nil {
		tm.l.t.Error("a write is complete in a view that the application does not have")
	}
	tm.event(mcrdma.EventFailed)
	for _, a := range []*app{tm.apps[0], tm.apps[2]} {
		a.ends(mcrdma.ErrSenderLost)
	}
	tm.l.noGroups("after the hook's failure")
}

// recorded returns the view that a member's daemon has recorded.
func (h *host) recorded() (view uint32, members []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := mcrdmav1.NewApplicationsClient(h.conn).ListGroups(ctx, &mcrdmav1.ListGroupsRequest{})
	if err != nil {
		return 0, nil, err
	}
	if len(list.GetMemberships()) == 0 {
		return 0, nil, fmt.Errorf("%s has no membership", h.name)
	}
	x := slices.MaxFunc(list.GetMemberships(), func(a, b *mcrdmav1.MembershipInfo) int { return cmp.Compare(a.GetView(), b.GetView()) })
	for _, m := range x.GetMembers() {
		members = append(members, m.GetHost())
	}
	return x.GetView(), members, nil
}

func lostAfterRemoval(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases
	tm := l.hooked(cfg, 0, nil)
	lost := tm.apps[1]
	lost.kill()
	op := &mcrdma.Op{Kind: mcrdma.OpWrite, Pieces: []mcrdma.Piece{tm.sender.mem.Slice(0, size)}}
	for first := tm.g.View().Number; op.View <= first; {
		done := make(chan bool)
		op.Done = func(*mcrdma.Op) { close(done) }
		l.must(tm.g.Submit(l.t.Context(), op))
		<-done
		l.must(op.Err)
	}
	tm.sender.h.silence(true)
	for _, a := range tm.apps {
		if a == lost {
			continue
		}
		view, members, err := a.h.recorded()
		if err != nil || view != op.View || !slices.Equal(members, []string{tm.apps[0].h.name, tm.apps[2].h.name}) {
			l.t.Errorf("%s knows view %d of %v (%v), and an operation is complete in view %d", a.h.name, view, members, err, op.View)
		}
	}
	tm.without(lost)
	tm.same()
	for _, a := range tm.apps {
		a.ends(mcrdma.ErrSenderLost)
	}
	tm.sender.h.silence(false)
	tm.event(mcrdma.EventFailed)
}

// daemonAwayAtRemoval: while the view cannot be recorded at a member, nothing completes without the
// lost one; the member is not removed for that.
func daemonAwayAtRemoval(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.hooked(cfg, 0, nil)
	lost, away := tm.apps[1], tm.apps[2].h
	away.crash()
	lost.kill()
	done := tm.underWay()
	time.Sleep(400 * time.Millisecond)
	away.start()
	l.must(<-done)
	tm.removed(lost)
	tm.same()
	tm.members(2)
	tm.close()
}

// daemonGoneAtRemoval: a member whose daemon cannot record the view counts as dead eventually, and
// the group continues without both.
func daemonGoneAtRemoval(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases
	tm := l.hooked(cfg, 0, nil)
	lost, gone := tm.apps[1], tm.apps[2]
	gone.h.crash()
	lost.kill()
	l.must(<-tm.underWay())
	tm.without(lost)
	tm.without(gone)
	tm.same()
	if v := tm.g.View(); len(v.Members) != 1 || v.Members[0].Host != tm.apps[0].h.name {
		l.t.Errorf("%+v", v)
	}
	gone.h.start()
	tm.close()
}
