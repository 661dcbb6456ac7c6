package groups

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// Store is the agent's state file.
type Store interface {
	Load(bucket string) iter.Seq2[[]byte, []byte]
	Commit(ctx context.Context, edits ...store.Edit) error
}

// Options are what a table needs.
type Options struct {
	Config   *config.Config
	Settings switchspec.Settings // of the switch, but for the owner and its numbers
	File     Store
	Sequence *atomic.Uint64 // gives generations
	Log      *slog.Logger
	// Clear makes the switch lose its registers before anything is written that is asked for later.
	// It is called with the table's lock.
	Clear func(why string)
}

// A Table is what a switch takes part in.
type Table struct {
	Options

	mu           sync.Mutex
	steps        map[StepKey]*Step
	groups       map[Key]*Group
	bySource     map[netip.Addr]int // how many groups
	slots        *slots
	groupNumbers *numbers
	preNumbers   *numbers
}

// New returns the table of the state file's steps. Errors wrap ErrRecord, or say why the file could
// not be written.
func New(ctx context.Context, o Options) (*Table, error) {
	t := &Table{Options: o, steps: map[StepKey]*Step{}, groups: map[Key]*Group{}, bySource: map[netip.Addr]int{},
		groupNumbers: newNumbers("groups", 65535), preNumbers: newNumbers("replication groups", 65535)}
	t.preNumbers.keep(unicast.FloodGroup, 1)
	var err error
	if t.slots, err = loadSlots(ctx, o.File, o.Config.Name); err != nil {
		return nil, err
	}
	return t, t.load(time.Now())
}

// Enter gives the caller the turn of a step, and creates the step if necessary.
func (t *Table) Enter(ctx context.Context, k StepKey) (*Step, error) {
	for {
		s, err := t.step(k)
		if err != nil {
			return nil, err
		}
		if err := t.EnterAgain(ctx, s); err != nil {
			return nil, err
		}
		if !s.gone {
			return s, nil
		}
		s.turn.Release(1)
	}
}

func (t *Table) step(k StepKey) (*Step, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.steps[k]
	if s == nil {
		if max := t.Config.Limits.Steps; max > 0 && len(t.steps) >= max {
			return nil, fmt.Errorf("%w: this switch is configured to take part in %d groups", ErrLimit, max)
		}
		s = newStep(k)
		t.steps[k] = s
	}
	return s, nil
}

// EnterAgain gives the caller the turn of a step, which may be no longer needed by then.
func (t *Table) EnterAgain(ctx context.Context, s *Step) error {
	if !s.turn.TryAcquire(1) && s.turn.Acquire(ctx, 1) != nil {
		return fmt.Errorf("%w: group %v is being changed: %w", ErrNotReady, s.Key, context.Cause(ctx))
	}
	return nil
}

// EnterGroup gives the caller a group, and the turn of its step.
func (t *Table) EnterGroup(ctx context.Context, k Key) (*Group, *Step, error) {
	for {
		g := t.find(k)
		if g == nil {
			return nil, nil, fmt.Errorf("%w: %v", ErrNotFound, k)
		}
		s, err := t.Enter(ctx, g.StepKey())
		if err != nil {
			return nil, nil, err
		}
		if s.group == g {
			return g, s, nil
		}
		t.Leave(s)
		if t.find(k) == g {
			return nil, nil, fmt.Errorf("%w: %v is only being installed", ErrNotFound, k)
		}
	}
}

// Leave ends the caller's turn. A step without a group and holders is removed.
func (t *Table) Leave(s *Step) {
	t.mu.Lock()
	if !s.Needed() && !s.gone {
		s.gone = true
		delete(t.steps, s.Key)
	}
	t.mu.Unlock()
	s.turn.Release(1)
}

// State returns what a step has come to.
func (t *Table) State(s *Step) State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.state
}

// Change changes what a step has come to; f changes no map or slice in it.
func (t *Table) Change(s *Step, f func(*State)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&s.state)
}

// Drop takes a step's entries, branches and group from it, and returns the first two.
func (t *Table) Drop(s *Step) (Installation, planner.Branches) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := s.state
	s.state.Installation, s.state.Branches, s.group = Installation{}, nil, nil
	return was.Installation, was.Branches
}

// Number gives a step's rules numbers, or those of its installation if the rules are the same.
func (t *Table) Number(k StepKey, was Installation, rules bifurcation.Rules) (Installation, error) {
	if was.Installed() && reflect.DeepEqual(rules, was.Rules) {
		return was, nil
	}
	if rules.Empty() {
		return Installation{Rules: rules}, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	group, err := t.groupNumbers.take(1)
	if err != nil {
		return Installation{}, err
	}
	pre, err := t.preNumbers.take(len(rules.PREGroups))
	if err != nil {
		t.groupNumbers.give(group, 1)
		return Installation{}, err
	}
	return Installation{Rules: rules, Group: group, FirstPRE: pre, Entities: entities(k, rules, group, pre)}, nil
}

// Forget frees the numbers of an installation, after its entries have been removed from the switch.
func (t *Table) Forget(p Installation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.groupNumbers.give(p.Group, 1)
	t.preNumbers.give(p.FirstPRE, len(p.Rules.PREGroups))
}

// Uncopied returns the steps that make no copies here, or will make none.
func (t *Table) Uncopied() []*Step {
	return t.stepsThat(func(s *Step) bool { return s.state.Coming != nil || !s.state.Installation.Installed() && s.Needed() })
}

// Wanted returns the steps that are needed, and not by a group that was given up.
func (t *Table) Wanted() []*Step {
	return t.stepsThat(func(s *Step) bool { return s.group != nil && !s.group.void || len(s.holders) > 0 })
}

func (t *Table) stepsThat(f func(*Step) bool) (list []*Step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.steps {
		if f(s) {
			list = append(list, s)
		}
	}
	return list
}

// A StepView is what a step is at a time.
type StepView struct {
	Key StepKey
	State
	Root    bool // the group was installed here, with this as its first step
	Holders []bifurcation.Switch
}

// Steps returns the steps that packets come to, in order of their keys.
func (t *Table) Steps() (list []StepView) {
	t.mu.Lock()
	for _, s := range t.steps {
		if s.Needed() {
			list = append(list, StepView{s.Key, s.state, s.group != nil, slices.Sorted(maps.Keys(s.holders))})
		}
	}
	t.mu.Unlock()
	slices.SortFunc(list, func(x, y StepView) int { return x.Key.Compare(y.Key) })
	return list
}

// Usage is how much of the switch's tables is used.
type Usage struct {
	Groups, Steps, GroupsWithProblems int
	GroupNumbers, PRENumbers          int
	Slots, Members, Replicas, Regions int
	Held                              map[bifurcation.Switch]uint64 // steps, by who holds them
}

// Usage returns how much of the switch's tables is used.
func (t *Table) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := Usage{Groups: len(t.groups), Steps: len(t.steps), Slots: len(t.slots.used), Members: len(t.slots.bypasses), GroupNumbers: t.groupNumbers.count, PRENumbers: t.preNumbers.count, Held: map[bifurcation.Switch]uint64{}}
	for _, s := range t.steps {
		u.Replicas += len(s.state.Installation.Rules.Rewrites)
		u.Regions += len(s.state.Installation.Rules.Translations)
		for from := range s.holders {
			u.Held[from]++
		}
		if s.group != nil && len(s.state.Problems) > 0 {
			u.GroupsWithProblems++
		}
	}
	for _, m := range t.slots.used {
		u.Members += len(m.members)
	}
	return u
}
