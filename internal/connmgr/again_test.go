package connmgr

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
)

// latestAsk is what the application was asked last.
func (a *app) latestAsk() *mcrdmav1.AttachRequested {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attached[slices.Max(slices.Collect(maps.Keys(a.attached)))]
}

// TestPreparedAgainAfterRestart: a receiver's daemon that was restarted is asked once more for
// a formation that is in its state. It says what it knows, and goes on serving other hosts.
func TestPreparedAgainAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withTLS)
		x := r.host(2).receiver()
		a := r.host(1).app("")
		req := a.request()
		req.Receivers = []string{"h2"}
		f := a.create(req).GetFormation()
		x.formation(1)
		r.restart(2)
		x.reopen()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for _, joins := range []bool{false, true} {
			ask := prepareOf(f.GetGroup(), 1, r.host(2).addr)
			ask.Joins = joins
			_, err := r.host(2).caller(r.host(1).files).Prepare(ctx, ask)
			if reason, host, _ := reasonOf(err); reason != "STALE" || host != "h2" || !strings.Contains(err.Error(), "formation 1 of the group is there already") {
				t.Errorf("joins %v: %v", joins, err)
			}
		}
		if _, err := r.host(2).caller(r.host(3).files).Beat(ctx, &mcrdmav1.BeatRequest{Groups: []*mcrdmav1.Heartbeat{
			{Group: &mcrdmav1.GroupID{Source: "127.9.0.3", Number: 5}, Formation: 1, Address: "127.9.0.2"}}}); err != nil {
			t.Errorf("another host's beat: %v", err)
		}
		for attach := range x.attached {
			if _, err := x.rpc.ResumeMember(ctx, &mcrdmav1.ResumeMemberRequest{Token: x.token, Attach: attach, Group: f.GetGroup(), Formation: 1}); err != nil {
				t.Errorf("the membership is gone: %v", err)
			}
		}
	})
}

// TestStateLost: the sender's host loses its state file while receivers still have its groups.
// New groups are other groups, also for receivers that were restarted meanwhile.
func TestStateLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		x := r.host(2).receiver()
		a := r.host(1).app("")
		first := a.create(a.request()).GetFormation()
		x.formation(1)
		r.host(1).kill()
		if err := os.Remove(r.config(1).State); err != nil {
			t.Fatal(err)
		}
		r.restart(2)
		x.reopen()
		if _, err := x.rpc.Listen(t.Context(), &mcrdmav1.ListenRequest{Token: x.token, Service: "store"}); err != nil {
			t.Fatal(err)
		}
		for attach := range x.attached {
			if _, err := x.rpc.ResumeMember(t.Context(), &mcrdmav1.ResumeMemberRequest{Token: x.token, Attach: attach, Group: first.GetGroup(), Formation: 1}); err != nil {
				t.Fatal(err)
			}
		}
		r.start(1)
		b := r.host(1).app("")
		second := b.create(b.request()).GetFormation()
		if second.GetGroup().GetNumber() == first.GetGroup().GetNumber() {
			t.Errorf("its number is used again: %v after %v", second, first)
		}
		r.until("it is formed", func() bool { return x.openMemberships() == 2 })
		r.pass(20 * time.Second)
		r.pass(time.Second)
		r.pass(11 * time.Second)
		r.passUntil("the lost group's lease ends", func() bool { return x.openMemberships() == 1 })
		if got := r.host(1).members(second.GetGroup()); got != "2" {
			t.Errorf("the second group has members %q", got)
		}
	})
}

// TestOlderCopy: the sender's state file is replaced by an older copy while a group is at a later
// formation, or one was begun. Its receivers say which numbers they know; the next one is higher,
// and all take part.
func TestOlderCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		state := r.config(1).State
		r.host(1).kill()
		older, err := os.ReadFile(state)
		if err != nil {
			t.Fatal(err)
		}
		r.start(1)
		a.reopen()
		a.resumeGroup(f)
		for n := uint32(1); n < 4; n++ { // to formation 4
			f = a.reform(f, nil).GetFormation()
		}
		for _, x := range apps {
			x.formation(4)
		}
		r.host(1).kill()
		if err := os.WriteFile(state, older, 0o600); err != nil {
			t.Fatal(err)
		}
		clear(r.host(1).asked) // it has to use its numbers again; they are refused
		r.start(1)
		a.reopen()
		f.Formation = 1
		next := a.reform(a.resumeGroup(f), nil).GetFormation()
		if next.GetFormation() != 5 || len(next.GetMembers()) != 2 {
			t.Errorf("%v", next)
		}
		for _, x := range apps {
			x.formation(5)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestOlderCopyLiar: a receiver that always knows a later formation is left out, and holds
// no other up.
func TestOlderCopyLiar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		asked := 0
		r.host(1).setHook(func(ctx context.Context, method string, to *host, call func(context.Context) error) error {
			if method == "Prepare" && to == r.host(3) {
				asked++
				lie := failure.New(mcrdmav1.Reason_STALE, "formation %d is there already", 100*asked)
				lie.Formation = uint32(100 * asked)
				return r.host(3).m.explain(lie)
			}
			return call(ctx)
		})
		next := a.reform(f, nil).GetFormation()
		if next.GetFormation() != 101 || len(next.GetMembers()) != 2 {
			t.Errorf("%v", next)
		}
	})
}

// TestPanic: a handler that panics ends the process. It may hold locks, and all others would wait
// for these.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer func() {
			if recover() == nil {
				t.Error("the daemon goes on")
			}
		}()
		_, _ = r.host(1).m.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x/Y"}, func(context.Context, any) (any, error) { panic("a bug") })
	})
}

// TestGivenUpNumber: a formation is given up before it is complete, and the sender's daemon is
// restarted. The next one has another number: receivers may not have heard the end of the first.
func TestGivenUpNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		ctx, cancel := context.WithCancel(t.Context())
		r.host(1).setHook(func(ctx context.Context, method string, _ *host, call func(context.Context) error) error {
			switch method {
			case "Commit":
				cancel()
				<-ctx.Done()
				return ctx.Err()
			case "Drop":
				return errInjected
			}
			return call(ctx)
		})
		if _, err := a.rpc.ReformGroup(ctx, a.reformRequest(f, nil)); err == nil {
			t.Fatal("formed though the caller has gone")
		}
		r.host(1).m.mu.Lock()
		g := r.host(1).m.groups[groupID{hostAddr(1), f.GetGroup().GetNumber()}]
		r.host(1).m.mu.Unlock()
		r.until("it is undone", func() bool { return g.status.Load().State != machine.Reforming })
		r.restart(1)
		r.host(1).setHook(nil)
		a.reopen()
		a.resumeGroup(f)
		if next := a.reform(f, nil).GetFormation(); next.GetFormation() != 3 || len(next.GetMembers()) != 2 {
			t.Errorf("%v", next)
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestMCIDExists: the switch has another group with the MC_ID, of a state that was lost. Hosts relay
// until the next try, which has another MC_ID.
func TestMCIDExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		r.sw.set(func(_ context.Context, method string, _ any) error {
			if method == "Install" {
				return refused(codes.AlreadyExists, "EXISTS", "another group has these numbers")
			}
			return nil
		}, nil)
		f := a.create(a.request()).GetFormation()
		if f.GetPath() != byHosts {
			t.Fatalf("%v", f)
		}
		r.sw.set(nil, nil)
		a.await(broken)
		if next := a.reform(f, nil).GetFormation(); next.GetPath() != bySwitch || next.GetMcId() == f.GetMcId() {
			t.Errorf("%v", next)
		}
	})
}

// TestOlderCopyAtReceiver: the state file of a receiver's host is replaced by one of before the present
// formation. An earlier membership is no part of it: the receiver is taken out.
func TestOlderCopyAtReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		b := r.receivers()[0]
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		b.formation(1)
		r.host(2).kill()
		older, err := os.ReadFile(r.config(2).State)
		if err != nil {
			t.Fatal(err)
		}
		r.start(2)
		b.reopen()
		a.reform(f, nil)
		b.formation(2)
		r.host(2).kill()
		if err := os.WriteFile(r.config(2).State, older, 0o600); err != nil {
			t.Fatal(err)
		}
		r.start(2)
		r.pass(2 * time.Second) // long before the application would have to be back
		if a.countChanges(removed) != 1 {
			t.Fatal("it counts as present")
		}
		c := a.waitChange(removed)
		if c.GetHost() != "h2" || !strings.Contains(c.GetText(), "does not know the membership") || r.host(1).members(f.GetGroup()) != "3" {
			t.Errorf("%v, and the group has %q", c, r.host(1).members(f.GetGroup()))
		}
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}
