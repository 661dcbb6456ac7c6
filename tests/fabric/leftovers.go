package fabric

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// CheckLeftovers checks that no switch holds anything of any group, and that no
// agent believes so, at the latest after some time.
func (f *Fabric) CheckLeftovers(after time.Duration) {
	f.t.Helper()
	err := f.until("taking everything off", after, func() error {
		for _, n := range f.order {
			if n.embedded == nil {
				continue
			}
			s, err := n.state()
			if err != nil {
				return err
			}
			if left := ofGroups(s); len(left) > 0 {
				return fmt.Errorf("switch %s still has %d entities of groups:\n%s", n.Name, len(left), strings.Join(left, "\n"))
			}
			if err := f.idle(n); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		f.t.Error(err)
	}
}

// ofGroups lists what belongs to groups.
func ofGroups(s *switchspec.State) (list []string) {
	for e := range s.All() {
		switch e := e.(type) {
		case switchspec.PREGroup:
			if e.ID == unicast.FloodGroup {
				continue
			}
		case switchspec.Replica, switchspec.Region, switchspec.Match, switchspec.MergeGroup, switchspec.MergeMember:
		default:
			continue
		}
		list = append(list, fmt.Sprintf("%T %v", e, e))
	}
	return list
}

// idle says what an agent believes to do for groups.
func (f *Fabric) idle(n *node) error {
	if n.agent == nil {
		return nil
	}
	return within(func(ctx context.Context) error {
		res, err := f.Status(n.Name).GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
		if err != nil {
			return err
		}
		if res.Groups != 0 || res.Steps != 0 {
			return fmt.Errorf("agent of %s: %d groups, %d steps", n.Name, res.Groups, res.Steps)
		}
		for _, p := range res.Peers {
			if p.Branches != 0 || p.Held != 0 {
				return fmt.Errorf("agent of %s: %d branches are held at %s, and %d for it", n.Name, p.Branches, p.Name, p.Held)
			}
		}
		for _, u := range res.Usage {
			used := u.Used
			if u.Resource == "pre.groups" {
				used-- // for flooding
			}
			if !strings.HasPrefix(u.Resource, "ingress.unicast.") && used != 0 {
				return fmt.Errorf("agent of %s: %d of %s are in use", n.Name, used, u.Resource)
			}
		}
		return nil
	})
}

// CheckTrees checks that whatever is on the switches for groups belongs together:
// each part to a match, each match to a step, and each step to a tree that begins
// where its group was installed. What a change leaves behind would not.
func (f *Fabric) CheckTrees(after time.Duration) {
	f.t.Helper()
	if err := f.until("trees", after, f.trees); err != nil {
		f.t.Error(err)
	}
}

type at struct {
	sw       string
	src      string
	mcid     uint32
	dst      string
	children []string
}

func (a at) String() string { return fmt.Sprintf("%s/%#x→%s at %s", a.src, a.mcid, a.dst, a.sw) }

func (f *Fabric) trees() error {
	held := map[string][]string{} // step: who hands packets to it
	var steps []at
	for _, n := range f.order {
		if n.embedded == nil || n.agent == nil {
			continue
		}
		s, err := n.state()
		if err != nil {
			return err
		}
		if err := orphans(s); err != nil {
			return fmt.Errorf("switch %s: %w", n.Name, err)
		}
		var res *mcrdmav1.ListStepsResponse
		if err := within(func(ctx context.Context) (err error) {
			res, err = f.Status(n.Name).ListSteps(ctx, &mcrdmav1.ListStepsRequest{})
			return err
		}); err != nil {
			return err
		}
		copying := 0
		for _, st := range res.GetSteps() {
			a := at{sw: n.Name, src: st.Group.Source, mcid: st.Group.McId, dst: st.Destination}
			if len(st.Copies) > 0 {
				copying++
			}
			if st.Root {
				held[a.String()] = append(held[a.String()], "")
			}
			for _, h := range st.Holders {
				held[a.String()] = append(held[a.String()], h)
			}
			for _, c := range st.Copies {
				for _, next := range c.Next {
					a.children = append(a.children, at{sw: next, src: a.src, mcid: a.mcid, dst: c.Destination}.String()+" from "+n.Name)
				}
			}
			steps = append(steps, a)
		}
		matches := 0
		for range switchspec.Of[switchspec.Match](s) {
			matches++
		}
		if matches != copying {
			return fmt.Errorf("switch %s has %d matches, and its agent %d steps that make copies", n.Name, matches, copying)
		}
	}
	handed := map[string]bool{}
	for _, a := range steps {
		for _, c := range a.children {
			handed[c] = true
		}
	}
	for step, holders := range held {
		for _, h := range holders {
			if h != "" && !handed[step+" from "+h] && !f.passes(step, h, steps) {
				return fmt.Errorf("%s is held by %s, which has nothing that leads there", step, h)
			}
		}
	}
	return nil
}

// passes says that a switch has a step for the same packets that makes no copies:
// what it holds elsewhere does not show then.
func (f *Fabric) passes(step, holder string, steps []at) bool {
	return slices.ContainsFunc(steps, func(a at) bool {
		return a.sw == holder && len(a.children) == 0 && strings.HasPrefix(step, strings.TrimSuffix(a.String(), holder))
	})
}

// orphans says what nothing on the switch refers to.
func orphans(s *switchspec.State) error {
	if err := s.Check(); err != nil {
		return err
	}
	pre, groups, slots := map[uint16]bool{unicast.FloodGroup: true}, map[uint16]bool{}, map[uint16]bool{}
	for m := range switchspec.Of[switchspec.Match](s) {
		groups[m.Group] = true
		for i := range m.PREGroups {
			pre[m.FirstPRE+i] = true
		}
	}
	for m := range switchspec.Of[switchspec.MergeGroup](s) {
		slots[m.Slot] = true
	}
	for e := range s.All() {
		ok := true
		switch e := e.(type) {
		case switchspec.PREGroup:
			ok = pre[e.ID]
		case switchspec.Replica:
			ok = groups[e.Group]
		case switchspec.Region:
			ok = groups[e.Group]
		case switchspec.MergeMember:
			ok = slots[e.Slot]
		}
		if !ok {
			return fmt.Errorf("nothing leads to %T %v", e, e)
		}
	}
	return nil
}
