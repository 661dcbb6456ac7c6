package connmgr

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

var errInjected = status.Error(codes.Unavailable, "injected")

// A way is how a request goes wrong.
type way struct {
	name string
	// do wraps a request.
	do func(ctx context.Context, call func(context.Context) error) error
}

var ways = []way{
	{"fails", func(context.Context, func(context.Context) error) error { return errInjected }},
	{"hangs", func(ctx context.Context, _ func(context.Context) error) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}},
	{"answer lost", func(ctx context.Context, call func(context.Context) error) error {
		if err := call(ctx); err != nil {
			return err
		}
		return errInjected
	}},
	{"answer late", func(ctx context.Context, call func(context.Context) error) error {
		err := call(context.WithoutCancel(ctx))
		<-ctx.Done()
		if err == nil {
			err = status.FromContextError(ctx.Err()).Err()
		}
		return err
	}},
}

// TestCreateUndone: whatever request goes wrong in whatever way, creating a group
// fails and nothing is left anywhere; and afterwards it works.
func TestCreateUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withSwitch)
		r.add(4)
		for i := 1; i <= 4; i++ {
			// One group is all that a user may have: quotas are given back.
			r.start(i, func(c *config.Config, _ *Options) { c.Limits.GroupsPerUser, c.Limits.Memberships = 1, 1 })
		}
		apps := r.receivers()
		a := r.host(1).app("")
		for _, method := range []string{"Prepare", "Commit", "Install"} {
			for _, target := range []int{2, 4} {
				for _, w := range ways {
					if method == "Install" && target > 2 {
						continue
					}
					part(t, fmt.Sprintf("%s %d %s", method, target, w.name), func(t *testing.T) {
						req := a.request()
						req.Mode = mcrdmav1.Mode_MODE_REQUIRE
						r.host(1).setHook(func(ctx context.Context, m string, to *host, call func(context.Context) error) error {
							if m == method && to == r.host(target) {
								return w.do(ctx, call)
							}
							return call(ctx)
						})
						if method == "Install" {
							r.sw.around(func(ctx context.Context, m string, call func(context.Context) error) error {
								if m == "Install" {
									return w.do(ctx, call)
								}
								return call(ctx)
							})
						}
						ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
						defer cancel()
						_, err := a.rpc.CreateGroup(ctx, req)
						if err == nil {
							t.Fatal("the group was created")
						}
						r.host(1).setHook(nil)
						r.sw.around(nil)
						r.wantNothing()
						for i, x := range apps {
							r.until(fmt.Sprintf("the application of h%d has no attachments", i+2), func() bool { return x.openMemberships() == 0 })
						}
						f := a.create(req).GetFormation()
						a.closeGroup(f.GetGroup())
						r.wantNothing()
					})
				}
			}
		}
	})
}

// openMemberships is how many memberships the application believes to have.
func (a *app) openMemberships() int {
	n := 0
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range a.attached {
		if a.detached[k] == nil {
			n++
		}
	}
	return n
}

// TestCreateCancelled: the caller goes at some moment, sooner or later.
func TestCreateCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		a.create(a.request()) // connections are there
		a.end()
		r.wantNothing()
		a = r.host(1).app("")
		begun := time.Now()
		a.closeGroup(a.create(a.request()).GetFormation().GetGroup())
		whole := time.Since(begun)
		made := 0
		for i := range 60 {
			ctx, cancel := context.WithCancel(t.Context())
			timer := time.AfterFunc(time.Duration(i)*whole/40, cancel)
			res, err := a.rpc.CreateGroup(ctx, a.request())
			timer.Stop()
			cancel()
			switch {
			case err == nil:
				made++
				a.closeGroup(res.GetFormation().GetGroup())
			case status.Code(err) != codes.Canceled:
				t.Fatal(err)
			default:
				// The answer may have crossed the cancellation: then the daemon has a group
				// that this application does not know.
				synctest.Wait()
				list, err := a.rpc.ListGroups(t.Context(), &mcrdmav1.ListGroupsRequest{})
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range list.GetGroups() {
					a.closeGroup(g.GetFormation().GetGroup())
				}
			}
		}
		t.Logf("%d of 60 were created before", made)
		if made == 0 || made == 60 {
			t.Errorf("%d of 60 were created: they were not cancelled in the middle", made)
		}
		r.wantNothing()
		for i, x := range apps {
			r.until(fmt.Sprintf("the application of h%d has no attachments", i+2), func() bool { return x.openMemberships() == 0 })
		}
	})
}

// TestApplicationDies: at some moment of creating a group, or later, its process ends.
func TestApplicationDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		apps := r.receivers()
		for i := range 30 {
			a := r.host(1).app("")
			done := make(chan error, 1)
			go func() {
				_, err := a.rpc.CreateGroup(context.Background(), a.request())
				done <- err
			}()
			time.Sleep(time.Duration(i) * 200 * time.Microsecond)
			a.end()
			err := <-done
			if reason, _, _ := reasonOf(err); err != nil && reason != "CLOSED" && reason != "NOT_FOUND" {
				t.Errorf("%v", err)
			}
			r.wantNothing()
		}
		for i, x := range apps {
			r.until(fmt.Sprintf("the application of h%d has no attachments", i+2), func() bool { return x.openMemberships() == 0 })
			for _, d := range x.detached {
				if d.GetReason() != mcrdmav1.Detached_REASON_SENDER_LOST && d.GetReason() != mcrdmav1.Detached_REASON_ABORTED {
					t.Errorf("%v", d)
				}
			}
		}
	})
}

// TestReceiverDies: an application that is asked ends, or leaves.
func TestReceiverDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		apps := r.receivers()
		apps[0].setAccept(func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
			go apps[0].end()
			return nil
		})
		a := r.host(1).app("")
		_, err := a.rpc.CreateGroup(t.Context(), a.request())
		if reason, host, _ := reasonOf(err); reason != "NO_SERVICE" || host != "h2" || !strings.Contains(err.Error(), "the application has ended") {
			t.Errorf("%v", err)
		}
		r.wantNothing()
		apps[0] = r.host(2).receiver()
		apps[0].setAccept(func(x *mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
			go func() {
				_, _ = apps[0].rpc.Leave(context.Background(), &mcrdmav1.LeaveRequest{Token: apps[0].token, Attach: x.GetAttach(), Reason: "bored"})
			}()
			return nil
		})
		_, err = a.rpc.CreateGroup(t.Context(), a.request())
		if reason, host, _ := reasonOf(err); reason != "NO_SERVICE" || host != "h2" || !strings.Contains(err.Error(), "bored") {
			t.Errorf("%v", err)
		}
		r.wantNothing()
	})
}

// TestUndoneLater: what cannot be undone at once is undone when it can be.
func TestUndoneLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		var once sync.Once
		r.host(1).setHook(func(ctx context.Context, m string, to *host, call func(context.Context) error) error {
			if m == "Commit" && to == r.host(3) {
				once.Do(func() { r.host(1).hang(r.host(2), true) })
				return errInjected
			}
			return call(ctx)
		})
		r.sw.around(func(ctx context.Context, m string, call func(context.Context) error) error {
			if m == "Remove" {
				return errInjected
			}
			return call(ctx)
		})
		begun := time.Now()
		if _, err := a.rpc.CreateGroup(t.Context(), a.request()); err == nil {
			t.Fatal("the group was created")
		}
		if took := time.Since(begun); took > undoTime+commitTime {
			t.Errorf("the caller was kept for %v", took)
		}
		if len(r.sw.list()) == 0 {
			t.Error("the switch has nothing, though it could not be asked")
		}
		r.host(1).setHook(nil)
		r.host(1).hang(r.host(2), false)
		r.sw.around(nil)
		r.wantNothing()
	})
}

// TestMCIDs: when the numbers wrap, those that are in use are skipped.
func TestMCIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		m := r.host(1).m
		at := []netip.Addr{netip.MustParseAddr("10.1.0.7")}
		first, err := m.mcIDs.take(m.store, at)
		if err != nil {
			t.Fatal(err)
		}
		n := &m.mcIDs
		n.mu.Lock()
		n.next += mcIDsRows - 1 // all others have had their turn
		n.end = n.next + mcIDsBlock
		n.mu.Unlock()
		second, err := m.mcIDs.take(m.store, at)
		if err != nil || second/mcIDsRow != first/mcIDsRow+1 {
			t.Errorf("%#x after %#x, %v", second, first, err)
		}
		for _, id := range []uint32{first, second} {
			if !rocev2.KeepsIDOrder(at[0].As4(), rocev2.QPN(id)) {
				t.Errorf("copies of what is sent to %#x lose the order of their identifications", id)
			}
		}
		m.mcIDs.inUse.Clear()
	})
}
