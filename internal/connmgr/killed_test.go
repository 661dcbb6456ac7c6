package connmgr

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// A career is what a group's applications do, and what the sender's application knows of
// its group.
type career struct {
	r    *rig
	k    *killer
	a    *app   // the sender
	apps []*app // the receivers, of hosts 2 to 4
	f    *mcrdmav1.FormationInfo
	left bool // the last receiver has left, and does not come back
	ends bool // it is being closed
}

// run creates a group, forms it anew, loses a receiver, forms it anew and closes it, until a daemon
// is killed. It reports whether it came to the end.
func (c *career) run() bool {
	r, a := c.r, c.a
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	steps := []func() error{
		func() error {
			res, err := a.rpc.CreateGroup(ctx, a.request())
			if err == nil {
				c.f = res.GetFormation()
			}
			return err
		},
		func() error { return c.reform(ctx) },
		func() error {
			last := c.apps[2]
			last.setAccept(func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
				return &mcrdmav1.AnswerAttachRequest{Refused: "it has left", Reason: "CLOSED"}
			})
			c.left = true
			attach := last.latestAsk().GetAttach()
			_, err := last.rpc.Leave(ctx, &mcrdmav1.LeaveRequest{Token: last.token, Attach: attach})
			last.knows(attach)
			r.until("it is noticed", func() bool {
				r.pass(100 * time.Millisecond)
				return c.k.isDead() || a.countChanges(removed)+a.countChanges(broken) > 0
			})
			return err
		},
		func() error { return c.reform(ctx) },
		func() error {
			c.ends = true
			_, err := a.rpc.CloseGroup(ctx, &mcrdmav1.CloseGroupRequest{Token: a.token, Group: c.f.GetGroup()})
			if err == nil && !c.k.isDead() {
				r.wantNothing()
			}
			return err
		},
	}
	for i, step := range steps {
		err := step()
		if c.k.isDead() {
			return false
		}
		if err != nil {
			r.t.Fatalf("step %d: %v", i, err)
		}
	}
	return true
}

func (c *career) reform(ctx context.Context) error {
	res, err := c.a.rpc.ReformGroup(ctx, c.a.reformRequest(c.f, nil))
	if err == nil {
		c.f = res.GetFormation()
	}
	return err
}

// knows says that the application knows of the end of a membership without an event.
func (a *app) knows(attach uint64) {
	a.event(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_Detached{Detached: &mcrdmav1.Detached{Attach: attach}}})
}

// swept checks that in time all receivers learn of the end, and nothing is left.
func (c *career) swept() {
	c.r.passUntil("all know the end, and nothing is left", func() bool {
		for _, x := range c.apps {
			if x.openMemberships() > 0 {
				return false
			}
		}
		for _, h := range c.r.hosts {
			if h.leftovers() != "" {
				return false
			}
		}
		return true
	})
	c.r.wantNothing()
}

// goOn checks that the group goes on from what its sender knows: with all receivers that
// are well, or with those that the daemon has, if one may be missing.
func (c *career) goOn(missing bool) {
	r, a := c.r, c.a
	if c.f == nil { // the application knows of none
		c.swept()
		return
	}
	res, err := a.rpc.ResumeGroup(context.Background(), &mcrdmav1.ResumeGroupRequest{Token: a.token, Group: c.f.GetGroup(), Formation: c.f.GetFormation()})
	if err == nil {
		r.pass(time.Second)
		c.f = res.GetFormation()
		err = c.reform(context.Background())
	}
	if err != nil {
		if !c.ends {
			r.t.Fatalf("a group whose members are well has ended: %v", err)
		}
		c.swept()
		return
	}
	want := 3
	if c.left {
		want = 2
	}
	if n := len(c.f.GetMembers()); n != want && !(missing && n == want-1) {
		r.t.Errorf("%d members, and %d are well: %v", n, want, c.f.GetMembers())
	}
	for _, m := range c.f.GetMembers() {
		for i, x := range c.apps {
			if x.h.addr.String() == m.GetAddress() {
				c.apps[i].formation(c.f.GetFormation())
			}
		}
	}
	a.closeGroup(c.f.GetGroup())
	c.swept()
}

// TestKilledAnywhere: a daemon, the sender's or a receiver's, is killed before and after each of
// its durable writes, while a group is created, formed anew, loses a receiver, is formed anew and
// is closed. It comes back, and so do its applications. The group goes on or all learn of its end,
// nothing is left, and no number of a formation is used twice.
func TestKilledAnywhere(t *testing.T) {
	for _, victim := range []int{1, 2} {
		for _, sw := range []bool{true, false} {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("host %d switch %v after %v", victim, sw, after), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						n := 0
						step := 1
						if testenv.Race {
							step = 3 // a sample; the rest without the race detector
						}
						for killedAt(t, victim, sw, after, n) {
							n += step
						}
						if least := map[int]int{1: 7, 2: 4}[victim]; n < least {
							t.Errorf("there are %d durable writes only", n)
						}
					})
				})
			}
		}
	}
}

// killedAt kills a daemon at its n-th durable write; false: there are not so many.
func killedAt(t *testing.T, victim int, sw, after bool, n int) bool {
	var options []rigOption
	if sw {
		options = append(options, withSwitch)
	}
	r := newRig(t, 0, options...)
	defer r.close()
	r.add(4)
	var k *killer
	for i := 1; i <= 4; i++ {
		if i == victim {
			k = r.startKillable(i)
		} else {
			r.start(i)
		}
	}
	c := &career{r: r, k: k, apps: r.receivers(), a: r.host(1).app("")}
	k.arm(n, after)
	if c.run() {
		return false
	}
	t.Logf("killed at write %d, when the sender knew %v", n, c.f.GetFormation())
	r.host(victim).kill()
	r.startKillable(victim)
	if victim == 1 {
		c.a.reopen()
	} else {
		x := c.apps[victim-2]
		x.reopen()
		x.mu.Lock()
		attached := maps.Clone(x.attached)
		maps.DeleteFunc(attached, func(k uint64, _ *mcrdmav1.AttachRequested) bool { return x.detached[k] != nil })
		x.mu.Unlock()
		for attach, ask := range attached {
			_, err := x.rpc.ResumeMember(t.Context(), &mcrdmav1.ResumeMemberRequest{Token: x.token, Attach: attach, Group: ask.GetGroup(), Formation: ask.GetFormation()})
			if reason, _, _ := reasonOf(err); err != nil && reason != "NOT_FOUND" && reason != "CLOSED" && reason != "REMOVED" {
				t.Error(err)
			} else if err != nil {
				x.knows(attach)
			}
		}
	}
	c.goOn(victim != 1)
	c.a.end()
	return !t.Failed()
}
