package groups

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"golang.org/x/sync/semaphore"

	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// Errors that those of this package wrap, besides those of package bifurcation.
var (
	ErrNotReady = errors.New("not ready")
	ErrLimit    = errors.New("limit reached")
	ErrExists   = errors.New("another group has these numbers")
	ErrNotFound = errors.New("there is no such group")
	ErrStale    = errors.New("overtaken by a later request")
	ErrRecord   = errors.New("a record that cannot be read")
	ErrOther    = errors.New("it is the state of switch")
)

// A Key names a group in the fabric.
type Key struct {
	Source netip.Addr
	ID     uint32 // MC_ID
}

func (k Key) String() string { return fmt.Sprintf("%v/%#x", k.Source, k.ID) }

// Compare orders keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(k.Source.Compare(o.Source), cmp.Compare(k.ID, o.ID))
}

// A StepKey names a switch's step for a group's packets to one address.
type StepKey struct {
	Key
	Dst netip.Addr
}

func (k StepKey) String() string { return fmt.Sprintf("%v→%v", k.Key, k.Dst) }

// Compare orders keys.
func (k StepKey) Compare(o StepKey) int { return cmp.Or(k.Key.Compare(o.Key), k.Dst.Compare(o.Dst)) }

// appendTo encodes a key in the order of source, MC_ID, destination.
func (k StepKey) appendTo(b []byte) []byte {
	b = append(b, k.Source.AsSlice()...)
	b = append(b, byte(k.ID>>16), byte(k.ID>>8), byte(k.ID)) //nolint:gosec // 24 bits
	return append(b, k.Dst.AsSlice()...)
}

func parseStepKey(b []byte) (StepKey, error) {
	if len(b) != 11 {
		return StepKey{}, fmt.Errorf("a key of %d bytes", len(b))
	}
	source, _ := netip.AddrFromSlice(b[:4])
	dst, _ := netip.AddrFromSlice(b[7:])
	return StepKey{Key{source, uint32(b[4])<<16 | uint32(b[5])<<8 | uint32(b[6])}, dst}, nil
}

// A Spec is the purpose of a step: its group and receivers. It is stored as it is.
type Spec struct {
	Generation uint64
	Via        []bifurcation.Switch   `json:",omitempty"` // without this switch
	Receivers  []bifurcation.Receiver `json:",omitempty"`
}

func (s Spec) equal(o Spec) bool {
	return s.Generation == o.Generation && slices.Equal(s.Via, o.Via) && planner.Equal(s.Receivers, o.Receivers)
}

// A State is what a step has come to. Its maps and slices are never changed.
type State struct {
	Spec         Spec
	Installation Installation
	Branches     planner.Branches // held at other switches
	Problems     []string
	Recomputes   string // why copies do not keep their ICRC; "": they do, or need not
	Behind       bool   // a branch is not held as planned

	Coming planner.Branches // also held while the step changes to one that makes no copies
	Record []byte           // as it was stored
}

// Same reports that nothing needs to change on this switch or others for the next state. Its rules
// have no numbers yet.
func (s State) Same(next State) bool {
	rules := next.Installation.Rules
	return !s.Behind && next.Spec.equal(s.Spec) && slices.Equal(next.Problems, s.Problems) &&
		rules.Empty() != s.Installation.Installed() && reflect.DeepEqual(rules, s.Installation.Rules) &&
		maps.EqualFunc(next.Branches, s.Branches, planner.Equal)
}

// Lacking returns the switches that do not hold all of a step to dst.
func (s State) Lacking(dst netip.Addr, at []bifurcation.Switch) (keys []planner.Branch) {
	for _, n := range at {
		k := planner.Branch{Next: n, Dst: dst}
		if s.Coming[k] == nil && (s.Coming != nil || !planner.Equal(s.Branches[k], s.Spec.Receivers)) {
			keys = append(keys, k)
		}
	}
	return keys
}

// A Step is this switch's part in a group's tree.
type Step struct {
	Key  StepKey
	turn *semaphore.Weighted // of 1
	gone bool                // no longer in the table

	group   *Group // the group that was installed here with this as its first step; or nil
	holders map[bifurcation.Switch]*Holder
	state   State
}

func newStep(k StepKey) *Step {
	return &Step{Key: k, turn: semaphore.NewWeighted(1), holders: map[bifurcation.Switch]*Holder{}}
}

// Needed reports whether packets of the step come to this switch. It is for who has the turn.
func (s *Step) Needed() bool { return s.group != nil || len(s.holders) > 0 }

// Group returns the group that was installed here with this as its first step, or nil, to who has
// the turn.
func (s *Step) Group() *Group { return s.group }

// An Installation is a step's entries on this switch.
type Installation struct {
	Rules    bifurcation.Rules
	Group    uint16 // index; 0: nothing is installed
	FirstPRE uint16
	Entities []switchspec.Entity // the match is the last
}

// Installed reports whether the switch has entries of the step.
func (p Installation) Installed() bool { return p.Group != 0 }

// Hops returns the next hops of the copies.
func (p Installation) Hops() []uint16 {
	out := make([]uint16, 0, len(p.Rules.Rewrites))
	for _, w := range p.Rules.Rewrites {
		out = append(out, w.NextHop)
	}
	return out
}

// entities are the switch's entries for a step's rules, under these numbers; the match
// is the last.
func entities(key StepKey, rules bifurcation.Rules, group, firstPRE uint16) []switchspec.Entity {
	out := make([]switchspec.Entity, 0, len(rules.PREGroups)+len(rules.Rewrites)+len(rules.Translations)+1)
	for i, replicas := range rules.PREGroups {
		g := switchspec.PREGroup{ID: firstPRE + uint16(i)} //nolint:gosec // 16 bits, as numbers are
		for _, r := range replicas {
			g.Replicas = append(g.Replicas, switchspec.PREReplica{Port: uint16(r.Port), Instance: r.RID}) //nolint:gosec // a port of the switch
		}
		slices.SortFunc(g.Replicas, switchspec.PREReplica.Compare)
		out = append(out, g)
	}
	for _, w := range rules.Rewrites {
		out = append(out, switchspec.Replica{Group: group, Rewrite: w})
	}
	for _, t := range rules.Translations {
		out = append(out, switchspec.Region{Group: group, Translation: t})
	}
	return append(out, switchspec.Match{Src: key.Source, MCID: key.ID, Dst: key.Dst, Group: group,
		FirstPRE: firstPRE, PREGroups: uint16(len(rules.PREGroups))}) //nolint:gosec // 16 or so
}

// CompareTranslations orders translations as they are read back from a switch.
func CompareTranslations(a, b bifurcation.Translation) int {
	return cmp.Or(cmp.Compare(a.RID, b.RID), cmp.Compare(a.RKey, b.RKey), cmp.Compare(a.First, b.First))
}

// readRules is the inverse of entities.
func readRules(p Installation) bifurcation.Rules {
	r := bifurcation.Rules{PREGroups: p.Rules.PREGroups}
	for _, e := range p.Entities {
		switch e := e.(type) {
		case switchspec.PREGroup:
			var list []bifurcation.Replica
			for _, x := range e.Replicas {
				list = append(list, bifurcation.Replica{RID: x.Instance, Port: uint32(x.Port)})
			}
			slices.SortFunc(list, func(a, b bifurcation.Replica) int { return int(a.RID) - int(b.RID) })
			r.PREGroups[e.ID-p.FirstPRE] = list
		case switchspec.Replica:
			r.Rewrites = append(r.Rewrites, e.Rewrite)
		case switchspec.Region:
			r.Translations = append(r.Translations, e.Translation)
		}
	}
	slices.SortFunc(r.Translations, CompareTranslations)
	return r
}
