package connmgr

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// A killer is a store that stops at one of its commits, before or after it is done, and
// stops its daemon too: as if the daemon had been killed there.
type killer struct {
	Store
	h *host

	mu     sync.Mutex
	points int
	at     int // negative: never
	after  bool
	dead   bool
}

func (k *killer) Commit(ctx context.Context, edits ...store.Edit) error {
	k.mu.Lock()
	now := k.points == k.at
	k.points++
	if k.dead || now && !k.after {
		k.die()
		k.mu.Unlock()
		return errDead
	}
	k.mu.Unlock()
	err := k.Store.Commit(ctx, edits...)
	if now {
		k.mu.Lock()
		k.die()
		k.mu.Unlock()
		return errDead
	}
	return err
}

func (k *killer) die() {
	k.dead = true
	k.h.setDead(true)
}

// arm makes it stop at the n-th commit from now on.
func (k *killer) arm(n int, after bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.points, k.at, k.after = 0, n, after
}

func (k *killer) isDead() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dead
}

// startKillable starts a daemon with a killer.
func (r *rig) startKillable(i int) *killer {
	k := &killer{at: -1, h: r.host(i)}
	k.h.setDead(false)
	r.start(i, func(_ *config.Config, o *Options) {
		open := o.OpenStore
		o.OpenStore = func(ctx context.Context, path string) (Store, error) {
			s, err := open(ctx, path)
			k.Store = s
			return k, err
		}
	})
	return k
}

// TestKilled: the sender's daemon is killed at each of its commits, while a group is
// created, loses a receiver, is formed anew, and is closed. Back again, without the
// application, it leaves nothing.
func TestKilled(t *testing.T) {
	for _, sw := range []bool{true, false} {
		var options []rigOption
		if sw {
			options = append(options, withSwitch)
		}
		for _, after := range []bool{false, true} {
			testenv.Bubble(t, fmt.Sprintf("switch %v after %v", sw, after), func(t *testing.T) {
				for n := 0; ; n++ {
					r := newRig(t, 0, options...)
					r.add(4)
					for i := 2; i <= 4; i++ {
						r.start(i)
					}
					apps := r.receivers()
					k := r.startKillable(1)
					k.arm(n, after)
					if done := life(r, k, apps); done {
						if n < 4 {
							t.Errorf("there are %d commits only", n)
						}
						r.close()
						return
					}
					r.host(1).kill()
					r.startKillable(1)
					r.pass(31 * time.Second) // grace, and leases
					r.passUntil("all is swept", func() bool { return r.host(1).leftovers() == "" })
					r.wantNothing()
					r.close()
				}
			})
		}
	}
}

// life is a group's; it reports whether the daemon came to its end.
func life(r *rig, k *killer, apps []*app) bool {
	a := r.host(1).app("")
	defer a.end()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	res, err := a.rpc.CreateGroup(ctx, a.request())
	if err != nil {
		if !k.isDead() {
			r.t.Fatal(err)
		}
		return false
	}
	f := res.GetFormation()
	// One leaves.
	apps[2].mu.Lock()
	for attach := range apps[2].attached {
		go func() {
			_, _ = apps[2].rpc.Leave(ctx, &mcrdmav1.LeaveRequest{Token: apps[2].token, Attach: attach})
		}()
	}
	apps[2].mu.Unlock()
	r.until("it is noticed", func() bool {
		r.pass(100 * time.Millisecond)
		return k.isDead() || a.countChanges(mcrdmav1.GroupChanged_TYPE_REMOVED)+a.countChanges(mcrdmav1.GroupChanged_TYPE_REFORM) > 0
	})
	if k.isDead() {
		return false
	}
	next, err := a.rpc.ReformGroup(ctx, &mcrdmav1.ReformGroupRequest{Token: a.token, Group: f.GetGroup(), Formation: 1,
		Forming: &mcrdmav1.Forming{Qpn: 0x43, Bootstrap: "127.0.0.1:7001"}})
	if err != nil {
		if !k.isDead() {
			r.t.Fatal(err)
		}
		return false
	}
	if n := next.GetFormation().GetFormation(); n != 2 || len(next.GetFormation().GetMembers()) != 2 {
		r.t.Errorf("%v", next)
	}
	if _, err := a.rpc.CloseGroup(ctx, &mcrdmav1.CloseGroupRequest{Token: a.token, Group: f.GetGroup()}); err != nil && !k.isDead() {
		r.t.Fatal(err)
	}
	r.until("the group is gone, or the daemon is", func() bool { return k.isDead() || r.host(1).leftovers() == "" })
	if !k.isDead() {
		r.wantNothing()
	}
	return !k.isDead()
}

// TestReceiverKilled: a receiver's daemon is killed at its commits.
func TestReceiverKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []bool{false, true} {
			for n := range 2 {
				r := newRig(t, 0)
				r.add(3)
				r.start(1)
				r.start(3)
				k := r.startKillable(2)
				k.arm(n, after)
				r.receivers()
				a := r.host(1).app("")
				res, err := a.rpc.CreateGroup(t.Context(), a.request())
				if n == 0 && err == nil {
					t.Fatal("created, though a receiver's daemon was killed")
				}
				if n == 1 {
					a.closeGroup(res.GetFormation().GetGroup())
					r.until("it was killed", k.isDead)
				}
				r.host(2).kill()
				r.startKillable(2)
				r.pass(11 * time.Second) // grace
				r.passUntil("all is swept", func() bool { return r.host(2).leftovers() == "" })
				r.wantNothing()
				r.close()
			}
		}
	})
}

// TestStoreFails: without its state a daemon makes no groups.
func TestStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withSwitch)
		r.add(3)
		r.start(2)
		r.start(3)
		r.receivers()
		k := r.startKillable(1)
		a := r.host(1).app("")
		a.closeGroup(a.create(a.request()).GetFormation().GetGroup()) // connections are there
		for n := range 2 {
			k.arm(n, false)
			_, err := a.rpc.CreateGroup(t.Context(), a.request())
			if err == nil {
				t.Fatal("created without a state")
			}
			k.mu.Lock()
			k.dead = false
			k.mu.Unlock()
			r.host(1).setDead(false)
			r.until("no group is left", func() bool { return len(r.sw.list()) == 0 })
		}
	})
}
