package switchagent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A groupKey names a group in the fabric.
type groupKey struct {
	source netip.Addr
	id     uint32 // MC_ID
}

func (k groupKey) String() string { return fmt.Sprintf("%v/%#x", k.source, k.id) }

// A stepKey names a switch's step for a group's packets to one address.
type stepKey struct {
	groupKey
	dst netip.Addr
}

func (k stepKey) String() string { return fmt.Sprintf("%v→%v", k.groupKey, k.dst) }

// A spec is the purpose of a step: its group and receivers. It is stored as it is.
type spec struct {
	Generation uint64
	Via        []bifurcation.Switch   `json:",omitempty"` // without this switch
	Receivers  []bifurcation.Receiver `json:",omitempty"`
}

func (s spec) equal(o spec) bool {
	return s.Generation == o.Generation && slices.Equal(s.Via, o.Via) && planner.Equal(s.Receivers, o.Receivers)
}

// A holder is a switch that sends packets of a step to this one. expires is under Agent.mu, also
// without the step's turn; the rest does not change.
type holder struct {
	spec
	Sequence uint64
	expires  time.Time
}

// A step is this switch's part in a group's tree. A goroutine that changes it has its
// turn and Agent.mu; Agent.mu alone is enough to read it.
type step struct {
	key  stepKey
	turn *semaphore.Weighted // of 1
	gone bool                // no longer among the agent's steps

	group   *group // the group that was installed here with this as its first step; or nil
	holders map[bifurcation.Switch]*holder

	spec         spec
	installation installation
	branches     planner.Branches // held at other switches
	coming       planner.Branches // also held while the step changes to one that makes no copies
	behind       bool             // a branch is not held as planned
	problems     []string
	recomputes   string // why copies do not keep their ICRC; "": they do, or need not
	persisted    []byte // the record as it was stored
}

// needed reports whether packets of the step come to this switch.
func (s *step) needed() bool { return s.group != nil || len(s.holders) > 0 }

type branchKey = planner.Branch

// An installation is a step's entries on this switch.
type installation struct {
	rules    bifurcation.Rules
	group    uint16 // index; 0: nothing is installed
	firstPRE uint16
	entities []switchspec.Entity // the match is the last
}

func (p installation) installed() bool { return p.group != 0 }

// nextHops returns the next hops of the copies.
func nextHops(r bifurcation.Rules) []uint16 {
	out := make([]uint16, 0, len(r.Rewrites))
	for _, w := range r.Rewrites {
		out = append(out, w.NextHop)
	}
	return out
}

// lock waits for the caller's turn.
func (s *step) lock(ctx context.Context) error {
	if !s.turn.TryAcquire(1) && s.turn.Acquire(ctx, 1) != nil {
		return fmt.Errorf("%w: group %v is being changed: %w", ErrNotReady, s.key, context.Cause(ctx))
	}
	return nil
}

func (s *step) unlock() { s.turn.Release(1) }

// entities are the switch's entries for a step's rules, under these numbers; the match
// is the last.
func entities(key stepKey, rules bifurcation.Rules, group, firstPRE uint16) []switchspec.Entity {
	out := make([]switchspec.Entity, 0, len(rules.PREGroups)+len(rules.Rewrites)+len(rules.Translations)+1)
	for i, replicas := range rules.PREGroups {
		g := switchspec.PREGroup{ID: firstPRE + uint16(i)} //nolint:gosec // 16 bits, as numbers are
		for _, r := range replicas {
			g.Replicas = append(g.Replicas, switchspec.PREReplica{Port: uint16(r.Port), Instance: r.RID}) //nolint:gosec // a port of the switch
		}
		slices.SortFunc(g.Replicas, comparePRE)
		out = append(out, g)
	}
	for _, w := range rules.Rewrites {
		out = append(out, switchspec.Replica{Group: group, Rewrite: w})
	}
	for _, t := range rules.Translations {
		out = append(out, switchspec.Region{Group: group, Translation: t})
	}
	return append(out, switchspec.Match{Src: key.source, MCID: key.id, Dst: key.dst, Group: group,
		FirstPRE: firstPRE, PREGroups: uint16(len(rules.PREGroups))}) //nolint:gosec // 16 or so
}

func comparePRE(a, b switchspec.PREReplica) int {
	if a.Port != b.Port {
		return int(a.Port) - int(b.Port)
	}
	return int(a.Instance) - int(b.Instance)
}

// compareTranslations orders translations as they are read back from a switch.
func compareTranslations(a, b bifurcation.Translation) int {
	return cmp.Or(cmp.Compare(a.RID, b.RID), cmp.Compare(a.RKey, b.RKey), cmp.Compare(a.First, b.First))
}

func keysOf(list []switchspec.Entity) []switchspec.Key {
	out := make([]switchspec.Key, 0, len(list))
	for _, e := range list {
		out = append(out, e.Key())
	}
	return out
}

// A plan is the new version of a step.
type plan struct {
	spec       spec
	ways       uint64 // version of the routes
	rules      bifurcation.Rules
	branches   planner.Branches
	problems   []string
	recomputes string // see describeStep
}

// same reports that nothing needs to change on this switch or others.
func (p plan) same(s *step) bool {
	if s.behind || len(p.branches) != len(s.branches) || !p.spec.equal(s.spec) || !slices.Equal(p.problems, s.problems) ||
		p.rules.Empty() == s.installation.installed() || !reflect.DeepEqual(p.rules, s.installation.rules) {
		return false
	}
	for k, r := range p.branches {
		if !planner.Equal(r, s.branches[k]) {
			return false
		}
	}
	return true
}

// plan computes the new version of a step from the current routes. The next hops of its rules count
// as used: the caller must unuse them. With leaveOut, receivers that cannot be reached are left
// out, and named among the problems; an error then means that none can be reached.
func (a *Agent) plan(key stepKey, s spec, early []netip.Addr, leaveOut bool) (p plan, err error) {
	a.uni.read(func(t *unicast.Table) { p, err = a.planBy(t, key, s, early, leaveOut) })
	return p, at(a.name, err)
}

func (a *Agent) planBy(t *unicast.Table, key stepKey, s spec, early []netip.Addr, leaveOut bool) (plan, error) {
	p := plan{spec: s, branches: planner.Branches{}}
	receivers := s.Receivers
	if leaveOut {
		receivers = nil
		for _, r := range s.Receivers {
			if _, err := t.Resolve(r.Addr); err != nil {
				p.problems = append(p.problems, fmt.Sprintf("%v: %v", r.Addr, err))
				continue
			}
			receivers = append(receivers, r)
		}
	}
	req := bifurcation.Request{Source: key.source, ID: key.id, Dst: key.dst, Receivers: receivers, Early: early,
		Via: append(slices.Clone(s.Via), a.name), MaxPREGroups: a.cfg.Limits.PREGroups}
	keeps, whyNot := a.keepsICRC(receivers)
	if a.cfg.ICRC == config.ICRCNeutral && whyNot != "" {
		return plan{}, invalid("the switch cannot compute ICRCs (icrc: neutral), and %s", whyNot)
	}
	p.recomputes = whyNot
	req.Late = keeps && takesWrites(receivers)
	res, err := bifurcation.Step(req, t.Resolve)
	if err != nil {
		return plan{}, err
	}
	if keeps {
		res.Rules.Neutralize(key.dst, key.id, neutral)
	}
	p.rules, p.ways = res.Rules, t.WaysVersion()
	slices.SortFunc(p.rules.Translations, compareTranslations)
	for _, n := range nextHops(p.rules) {
		t.Use(n)
	}
	for _, b := range res.Branches {
		for _, next := range b.Next {
			p.branches[branchKey{Next: next, Dst: b.Receivers[0].Addr}] = b.Receivers
		}
	}
	return p, nil
}

// A group is installed at this switch, which merges its answers. All under Agent.mu; a goroutine
// that changes it also has the turn of its step.
type group struct {
	bifurcation.Group // with Address
	cnpGap            time.Duration
	lease             time.Duration
	number            uint64 // at the sender's daemon, which repeats it after a restart of this agent; 0: unknown
	expires           time.Time
	generation        uint64
	merging           *merging
	step              *step
	void              bool // given up: it counts as absent, and will be removed
}

// installed reports whether the group is in use: its installation is complete, and it was not given
// up.
func (g *group) installed() bool { return g != nil && g.step != nil && !g.void }

func (g *group) key() groupKey { return groupKey{g.Source, g.ID} }

func (g *group) spec() spec { return spec{Generation: g.generation, Receivers: g.Receivers} }

func (g *group) stepKey() stepKey { return stepKey{g.key(), g.Address} }

func (g *group) sameAs(o *group) bool {
	return g.Source == o.Source && g.ID == o.ID && g.SenderQPN == o.SenderQPN && g.InitialPSN == o.InitialPSN &&
		g.Address == o.Address && g.cnpGap == o.cnpGap && planner.Equal(g.Receivers, o.Receivers)
}

// enter gives the caller the turn of a step, and creates the step if necessary.
func (a *Agent) enter(ctx context.Context, k stepKey) (*step, error) {
	for {
		a.mu.Lock()
		s := a.steps[k]
		if s == nil {
			if max := a.cfg.Limits.Steps; max > 0 && len(a.steps) >= max {
				a.mu.Unlock()
				return nil, fmt.Errorf("%w: this switch is configured to take part in %d groups", ErrLimit, max)
			}
			s = &step{key: k, turn: semaphore.NewWeighted(1), holders: map[bifurcation.Switch]*holder{}}
			a.steps[k] = s
		}
		a.mu.Unlock()
		if err := s.lock(ctx); err != nil {
			return nil, err
		}
		if !s.gone {
			return s, nil
		}
		s.unlock()
	}
}

// leave ends the caller's turn. A step without a group and holders is removed.
func (a *Agent) leave(s *step) {
	a.mu.Lock()
	if !s.needed() && !s.gone {
		s.gone = true
		delete(a.steps, s.key)
	}
	a.mu.Unlock()
	s.unlock()
}
