package connmgr

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestEndedWhileAway: a membership ends while the application of a daemon that was
// restarted is on its way back. It learns why, by an event and by the answer to what it
// asks, whichever comes first.
func TestEndedWhileAway(t *testing.T) {
	for _, tt := range []struct {
		reason string
		end    func(a *app, f *mcrdmav1.FormationInfo, other *app)
	}{
		{"CLOSED", func(a *app, f *mcrdmav1.FormationInfo, _ *app) { a.closeGroup(f.GetGroup()) }},
		{"SENDER_LOST", func(a *app, _ *mcrdmav1.FormationInfo, _ *app) { a.end() }},
		{"REMOVED", func(a *app, _ *mcrdmav1.FormationInfo, other *app) { other.end(); a.await(failed) }},
	} {
		testenv.Bubble(t, tt.reason, func(t *testing.T) {
			r := newRig(t, 3, withSwitch)
			apps := r.receivers()
			a := r.host(1).app("")
			req := a.request()
			req.MinSize = 3
			f := a.create(req).GetFormation()
			r.restart(2)
			tt.end(a, f, apps[1])
			x := apps[0]
			r.until("the daemon knows", func() bool { return r.host(2).leftovers() == "" })
			x.reopen()
			for attach := range x.attached {
				ask := &mcrdmav1.ResumeMemberRequest{Token: x.token, Attach: attach, Group: f.GetGroup(), Formation: 1}
				_, err := x.rpc.ResumeMember(t.Context(), ask)
				if reason, _, _ := reasonOf(err); reason != tt.reason {
					t.Errorf("%v", err)
				}
			}
			if d := x.detachment(1); d.GetReason().String() != "REASON_"+tt.reason {
				t.Errorf("%v", d)
			}
		})
	}
}

// TestFailedWhileAway: the same with a group. It learns why even if it was about to have
// it formed anew.
func TestFailedWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		req := a.request()
		req.MinSize = 3
		f := a.create(req).GetFormation()
		r.restart(1)
		apps[0].end()
		r.passUntil("the group has failed", func() bool { return r.host(1).leftovers() == "" })
		a.reopen()
		_, err := a.rpc.ResumeGroup(t.Context(), &mcrdmav1.ResumeGroupRequest{Token: a.token, Group: f.GetGroup(), Formation: 1})
		if reason, _, _ := reasonOf(err); reason != "MIN_SIZE" {
			t.Errorf("%v", err)
		}
		_, err = a.rpc.ReformGroup(t.Context(), a.reformRequest(f, nil))
		if reason, _, _ := reasonOf(err); reason != "MIN_SIZE" {
			t.Errorf("%v", err)
		}
		a.waitChange(failed)
	})
}

// TestManyEnds: only the last ends are remembered.
func TestManyEnds(t *testing.T) {
	s := newSession(machine.Owner{Token: "x"}, time.Time{})
	for i := range uint64(3 * maxEnds) {
		s.noteEnd(end{attach: i + 1, why: failure.New(mcrdmav1.Reason_REMOVED, "%d", i+1)})
	}
	if len(s.ends) != maxEnds || s.whyEnded(groupID{}, 3*maxEnds, nil) == nil || s.whyEnded(groupID{}, 1, nil) != nil {
		t.Errorf("%d are remembered: %v", len(s.ends), s.ends)
	}
}

// TestSwitchNoLongerConfigured: a daemon comes back without a switch in its
// configuration. Its groups are formed anew.
func TestSwitchNoLongerConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		r.restart(1, func(c *config.Config, _ *Options) { c.Switch = config.Switch{} })
		apps[0].end()
		a.reopen()
		a.resumeGroup(f)
		if c := a.waitChange(broken); !strings.Contains(c.GetText(), "no switch agent is configured any longer") {
			t.Errorf("%v", c)
		}
		if _, err := a.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1}); err != nil {
			t.Error(err)
		}
		r.pass(300 * time.Millisecond)
		next := a.reform(f, nil).GetFormation()
		if next.GetPath() != mcrdmav1.Path_PATH_RELAY || len(next.GetMembers()) != 2 {
			t.Errorf("%v", next)
		}
	})
}

// TestTransientAfterRestart: a group that hosts relay only because the agent was not there
// goes by switches when it is, even if this host's daemon was restarted in between.
func TestTransientAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		r.sw.close()
		f := a.create(a.request()).GetFormation()
		if f.GetPath() != mcrdmav1.Path_PATH_RELAY {
			t.Fatalf("%v", f)
		}
		r.restart(1)
		r.sw.serve(r.sw.addr)
		a.reopen()
		a.resumeGroup(f)
		if c := a.await(broken); !strings.Contains(c.GetText(), "torA is ready again") {
			t.Errorf("%v", c)
		}
		if next := a.reform(f, nil).GetFormation(); next.GetPath() != bySwitch {
			t.Errorf("%v", next)
		}
	})
}

// TestSuspectedOnceEachFormation: tries to form a group anew which fail do not count
// against a receiver that was suspected when the formation ended.
func TestSuspectedOnceEachFormation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		req := a.request()
		req.Mode = mcrdmav1.Mode_MODE_REQUIRE
		f := a.create(req).GetFormation()
		suspect := func(req *mcrdmav1.ReformGroupRequest) { req.Suspects = []string{"127.9.0.2"} }
		r.sw.set(func(_ context.Context, method string, _ any) error {
			if method == "Install" {
				return refused(codes.Unavailable, "NOT_READY", "it has just begun")
			}
			return nil
		}, nil)
		for range 2 * machine.MaxSuspected {
			_, err := a.rpc.ReformGroup(t.Context(), a.reformRequest(f, suspect))
			if reason, _, _ := reasonOf(err); reason != "NO_SWITCH" {
				t.Fatalf("%v", err)
			}
		}
		r.sw.set(nil, nil)
		for n := 2; n <= machine.MaxSuspected; n++ {
			f = a.reform(f, suspect).GetFormation()
			if f.GetFormation() == 0 || len(f.GetMembers()) != 3 {
				t.Fatalf("it is out, though it was suspected in %d formations only: %v", n-1, f)
			}
		}
		if f = a.reform(f, suspect).GetFormation(); len(f.GetMembers()) != 2 {
			t.Errorf("%v", f)
		}
	})
}

// TestCommitAgain: a Commit that comes again, because the answer was lost with the daemon,
// is passed to the application again: it may not have learned of it before.
func TestCommitAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		x := r.receivers()[0]
		again := make(chan int, 1)
		r.host(1).setHook(func(ctx context.Context, method string, _ *host, call func(context.Context) error) error {
			err := call(ctx)
			if method == "Commit" {
				x.formation(1)
				x.mu.Lock()
				clear(x.formed)
				x.mu.Unlock()
				err = call(ctx)
				again <- 1
			}
			return err
		})
		a := r.host(1).app("")
		a.create(a.request())
		<-again
		x.formation(1)
	})
}

// TestStoppedMeanwhile: a request of an application while its daemon is being stopped does
// not fail permanently.
func TestStoppedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		x := r.receivers()[0]
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		x.setAccept(nil) // no answer
		done := make(chan error, 1)
		go func() {
			_, err := a.rpc.ReformGroup(context.Background(), a.reformRequest(f, nil))
			done <- err
		}()
		r.until("it is asked", func() bool { x.mu.Lock(); defer x.mu.Unlock(); return len(x.attached) == 2 })
		r.host(1).kill()
		err := <-done
		if reason, _, _ := reasonOf(err); status.Code(err) != codes.Unavailable || reason != "" {
			t.Errorf("%v (%s)", err, reason)
		}
	})
}

// TestLateReceivers: a group does not fail because receivers that are alive take long to
// answer, unless that continues.
func TestLateReceivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withSwitch)
		r.add(3)
		for i := 1; i <= 3; i++ {
			r.start(i, func(c *config.Config, _ *Options) { c.Beat.DeadAfter = time.Second })
		}
		apps := r.receivers()
		a := r.host(1).app("")
		req := a.request()
		req.MinSize = 2
		f := a.create(req).GetFormation()
		answer := func(f func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest) {
			for _, x := range apps {
				x.setAccept(f)
			}
		}
		try := func(want string) {
			t.Helper()
			begun := time.Now()
			_, err := a.rpc.ReformGroup(t.Context(), a.reformRequest(f, nil))
			if reason, _, _ := reasonOf(err); reason != want {
				t.Fatalf("%v", err)
			}
			if took := time.Since(begun); took < 800*time.Millisecond {
				t.Errorf("%v are not as long as the silent may live", took)
			}
		}
		answer(nil)
		try("TIMEOUT")
		answer(willing)
		if f = a.reform(f, nil).GetFormation(); len(f.GetMembers()) != 2 {
			t.Fatalf("%v", f)
		}
		answer(nil) // that it was late before does not count any more
		for range machine.MaxLate {
			try("TIMEOUT")
		}
		try("MIN_SIZE")
		a.waitChange(failed)
		r.wantNothing()
	})
}

// hold keeps a call of host 1 to host 3 until it is given up.
func hold(r *rig, method string, on bool) {
	r.host(1).setHook(func(ctx context.Context, called string, to *host, call func(context.Context) error) error {
		if on && called == method && to == r.host(3) {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
		return call(ctx)
	})
}

// TestLateReceiver: a receiver that is alive is not left out of the next formation because it
// takes long to answer, though enough others have answered, unless that continues.
func TestLateReceiver(t *testing.T) {
	for name, silent := range map[string]func(r *rig, x *app, on bool){
		"application": func(_ *rig, x *app, on bool) {
			if x.setAccept(willing); on {
				x.setAccept(nil)
			}
		},
		"prepare": func(r *rig, _ *app, on bool) { hold(r, "Prepare", on) },
		"commit":  func(r *rig, _ *app, on bool) { hold(r, "Commit", on) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 3, withSwitch)
				apps := r.receivers()
				a := r.host(1).app("")
				f := a.create(a.request()).GetFormation()
				late := func() {
					t.Helper()
					if _, err := a.rpc.ReformGroup(t.Context(), a.reformRequest(f, nil)); err == nil {
						t.Fatal("formed without the receiver that is late")
					} else if reason, _, _ := reasonOf(err); reason != "TIMEOUT" {
						t.Fatal(err)
					}
				}
				silent(r, apps[1], true)
				late()
				silent(r, apps[1], false)
				if f = a.reform(f, nil).GetFormation(); len(f.GetMembers()) != 2 {
					t.Fatalf("%v", f)
				}
				silent(r, apps[1], true)
				for range machine.MaxLate { // what was before does not count any more
					late()
				}
				if f = a.reform(f, nil).GetFormation(); len(f.GetMembers()) != 1 {
					t.Fatalf("%v", f)
				}
				silent(r, apps[1], false)
				a.closeGroup(f.GetGroup())
				r.wantNothing()
			})
		})
	}
}

// TestStopping: the answer to a request that failed because the daemon ends is: try again.
func TestStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		m := r.host(1).m
		r.host(1).kill()
		_, err := m.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "x"}, func(context.Context, any) (any, error) {
			return nil, failure.New(mcrdmav1.Reason_CLOSED, "the group has been closed")
		})
		if reason, _, _ := reasonOf(err); status.Code(err) != codes.Unavailable || reason != "" {
			t.Errorf("%v (%s)", err, reason)
		}
	})
}
