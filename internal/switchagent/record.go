package switchagent

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// bucket holds a record for each step.
const bucket = "steps"

// A stepRecord is what must be known of a step after a restart. What is on the
// switch is not in it: that is read back.
type stepRecord struct {
	Spec    spec
	Group   *groupRecord                  `json:",omitempty"`
	Holders map[bifurcation.Switch]holder `json:",omitempty"` // without receivers if those are the step's
}

type groupRecord struct {
	SenderQPN, InitialPSN uint32
	CNPGap, Lease         time.Duration
	// What the slot's counters stood at when this use of it began.
	Use  uint64              `json:",omitempty"`
	Base []p4rt.MemberCounts `json:",omitempty"`
}

// storeEdit puts a record, or deletes it if it is nil.
func storeEdit(k stepKey, record []byte) store.Edit {
	return store.Edit{Bucket: bucket, Key: k.appendTo(nil), Value: record}
}

// appendTo encodes a key in the order of source, MC_ID, destination.
func (k stepKey) appendTo(b []byte) []byte {
	b = append(b, k.source.AsSlice()...)
	b = append(b, byte(k.id>>16), byte(k.id>>8), byte(k.id)) //nolint:gosec // 24 bits
	return append(b, k.dst.AsSlice()...)
}

func parseStepKey(b []byte) (stepKey, error) {
	if len(b) != 11 {
		return stepKey{}, fmt.Errorf("a key of %d bytes", len(b))
	}
	source, _ := netip.AddrFromSlice(b[:4])
	dst, _ := netip.AddrFromSlice(b[7:])
	return stepKey{groupKey{source, uint32(b[4])<<16 | uint32(b[5])<<8 | uint32(b[6])}, dst}, nil
}

// groupRecord makes the record of a group's first step.
func (a *Agent) groupRecord(g *group) func() []byte {
	return func() []byte {
		a.mu.Lock()
		defer a.mu.Unlock()
		return store.Encode(stepRecord{Spec: g.spec(), Group: &groupRecord{SenderQPN: g.SenderQPN, InitialPSN: g.InitialPSN,
			CNPGap: g.cnpGap, Lease: g.lease, Use: g.merging.use, Base: g.merging.base}})
	}
}

// record makes the record of a step that others hold, with one holder as it will
// be; nil: it will be none.
func (a *Agent) record(s *step, sp spec, from bifurcation.Switch, h *holder) []byte {
	r := stepRecord{Spec: sp, Holders: map[bifurcation.Switch]holder{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	add := func(name bifurcation.Switch, h holder) {
		if planner.Equal(h.Receivers, sp.Receivers) {
			h.Receivers = nil
		}
		r.Holders[name] = h
	}
	for name, o := range s.holders {
		if name != from {
			add(name, *o)
		}
	}
	if h != nil {
		add(from, *h)
	}
	return store.Encode(r)
}

// decode reads the record of a step with that key. A record that no agent
// can have stored is an error.
func decode(k stepKey, b []byte) (stepRecord, error) {
	var r stepRecord
	if err := store.Decode(b, &r); err != nil {
		return r, err
	}
	if k.id == 0 || (r.Group == nil) == (len(r.Holders) == 0) {
		return r, fmt.Errorf("it has no owner, or more than one")
	}
	g := bifurcation.Group{Source: k.source, ID: k.id, Address: k.dst, Receivers: r.Spec.Receivers}
	if r.Group != nil {
		g.SenderQPN, g.InitialPSN = r.Group.SenderQPN, r.Group.InitialPSN
		if err := checkTimes(r.Group.CNPGap, r.Group.Lease); err != nil {
			return r, err
		}
		if n := len(r.Group.Base); n != 0 && n != switchspec.MaxMembers || r.Group.Use >= useEnd {
			return r, fmt.Errorf("use %d of a slot, with counts of %d members", r.Group.Use, n)
		}
	}
	err := g.Validate()
	for _, h := range r.Holders {
		if g.Receivers = h.Receivers; len(h.Receivers) > 0 {
			err = errors.Join(err, g.Validate())
		}
	}
	return r, err
}

// load makes the steps that the agent's state knows; adopt reads what is on the switch.
func (a *Agent) load() error {
	now := a.now()
	for key, value := range a.store.Load(bucket) {
		k, err := parseStepKey(key)
		var r stepRecord
		if err == nil {
			r, err = decode(k, value)
		}
		if err == nil && r.Group != nil && a.groups[k.groupKey] != nil {
			err = fmt.Errorf("group %v is there twice", k.groupKey)
		}
		if err != nil {
			return fmt.Errorf("%w: the state in %s holds a record that cannot be read (%w); "+
				"move the file away to begin anew, and have the groups installed again", ErrConfig, a.cfg.State, err)
		}
		s := &step{key: k, turn: semaphore.NewWeighted(1), holders: map[bifurcation.Switch]*holder{}, persisted: slices.Clone(value),
			spec: r.Spec, behind: true}
		for name, h := range r.Holders {
			h.expires = now.Add(a.cfg.Leases.Branch)
			if len(h.Receivers) == 0 {
				h.Receivers = s.spec.Receivers
			}
			s.holders[name] = &h
			a.heldFrom(name)[s] = struct{}{}
		}
		if r.Group != nil {
			a.loadGroup(s, *r.Group, now)
		}
		a.steps[k] = s
	}
	return nil
}

func (a *Agent) loadGroup(s *step, r groupRecord, now time.Time) {
	g := &group{Group: bifurcation.Group{Source: s.key.source, ID: s.key.id, SenderQPN: r.SenderQPN, InitialPSN: r.InitialPSN,
		Address: s.key.dst, Receivers: s.spec.Receivers}, cnpGap: r.CNPGap, lease: r.Lease, expires: now.Add(r.Lease),
		generation: s.spec.Generation, step: s}
	g.merging = newMerging(g)
	g.merging.use, g.merging.base = r.Use, r.Base
	s.group = g
	a.groups[g.key()] = g
	a.bySource[g.Source]++
}

// adopt takes over what is on the switch, when the agent first connects to it: steps
// that the agent knows keep their numbers, and unknown entries will be deleted. It
// returns the merging that begins anew. The caller has Agent.mu.
func (a *Agent) adopt(have, want *switchspec.State) ([]*merging, error) {
	base := &switchspec.State{}
	byGroup := map[uint16][]switchspec.Entity{}
	pre := map[uint16]switchspec.PREGroup{}
	for e := range have.All() {
		switch e := e.(type) {
		case switchspec.Replica:
			byGroup[e.Group] = append(byGroup[e.Group], e)
		case switchspec.Region:
			byGroup[e.Group] = append(byGroup[e.Group], e)
		case switchspec.PREGroup:
			pre[e.ID] = e
			if e.ID == unicast.FloodGroup {
				if err := base.Put(e); err != nil {
					return nil, err
				}
			}
		case switchspec.Match, switchspec.MergeGroup, switchspec.MergeMember, switchspec.Bypass, switchspec.Settings:
		default:
			if err := base.Put(e); err != nil {
				return nil, err
			}
		}
	}
	for e := range base.All() {
		if err := want.Put(e); err != nil {
			return nil, err
		}
	}
	a.uni.adopt(base)
	for m := range switchspec.Of[switchspec.Match](have) {
		s := a.steps[stepKey{groupKey{m.Src, m.MCID}, m.Dst}]
		if s == nil || s.group == nil && len(s.holders) == 0 || m.FirstPRE <= unicast.FloodGroup || m.Group == 0 {
			continue
		}
		if !a.groupNumbers.free(m.Group, 1) || !a.preNumbers.free(m.FirstPRE, int(m.PREGroups)) {
			continue // another program has changed the switch: they are another group's too
		}
		list := byGroup[m.Group]
		for i := range m.PREGroups {
			if g, ok := pre[m.FirstPRE+i]; ok {
				list = append(list, g)
			}
		}
		list = append(list, m)
		s.installation = installation{rules: bifurcation.Rules{PREGroups: make([][]bifurcation.Replica, m.PREGroups)},
			group: m.Group, firstPRE: m.FirstPRE, entities: list}
		s.installation.rules = readRules(s.installation)
		a.groupNumbers.keep(m.Group, 1)
		a.preNumbers.keep(m.FirstPRE, int(m.PREGroups))
		a.uni.use(nextHops(s.installation.rules))
		if err := want.Put(list...); err != nil {
			return nil, err
		}
	}
	return a.adoptMerging(have, want)
}

// readRules is the opposite of entities.
func readRules(p installation) bifurcation.Rules {
	r := bifurcation.Rules{PREGroups: p.rules.PREGroups}
	var pre []switchspec.PREGroup
	for _, e := range p.entities {
		switch e := e.(type) {
		case switchspec.PREGroup:
			pre = append(pre, e)
		case switchspec.Replica:
			r.Rewrites = append(r.Rewrites, e.Rewrite)
		case switchspec.Region:
			r.Translations = append(r.Translations, e.Translation)
		}
	}
	for _, g := range pre {
		var list []bifurcation.Replica
		for _, x := range g.Replicas {
			list = append(list, bifurcation.Replica{RID: x.Instance, Port: uint32(x.Port)})
		}
		slices.SortFunc(list, func(a, b bifurcation.Replica) int { return int(a.RID) - int(b.RID) })
		r.PREGroups[g.ID-p.firstPRE] = list
	}
	slices.SortFunc(r.Translations, compareTranslations)
	return r
}

// adoptMerging keeps the merging of groups whose members on the switch are those
// that are wanted. Others begin anew. It returns those whose baseline is not known. The
// caller has Agent.mu.
func (a *Agent) adoptMerging(have, want *switchspec.State) (begun []*merging, err error) {
	there := map[groupKey][]switchspec.MergeMember{}
	for x := range switchspec.Of[switchspec.MergeMember](have) {
		k := groupKey{x.Dst, x.DestQP}
		there[k] = append(there[k], x)
	}
	var older []*group
	var lost []*merging
	for k, g := range a.groups {
		if g.step == nil || g.void {
			continue
		}
		m, recorded := g.merging, g.merging.use
		switch m.use = 0; {
		case m.outgrown(have, there[k]):
			older = append(older, g)
		case m.read(have, there[k]) && a.slots.used[m.slot()] == nil:
			a.slots.keep(m, m.use)
			if m.use != recorded {
				begun = append(begun, m)
			}
			if err := want.Put(m.entities()...); err != nil {
				return nil, err
			}
		default:
			lost = append(lost, m)
		}
	}
	if len(older) > 0 {
		a.log.Warn("the switch has groups with more members than the agent's state knows of; they are given up", "groups", len(older))
		if err := a.giveUp(older, a.slots.ownership); err != nil {
			return nil, err
		}
	}
	for _, m := range lost {
		if err := a.beginAnew(m, want); err != nil {
			return nil, err
		}
	}
	return append(begun, lost...), nil
}

// outgrown says whether merging waits for members on the switch that it does not know
// of. The agent's state knows of members before the switch does, so it is an older copy.
func (m *merging) outgrown(have *switchspec.State, there []switchspec.MergeMember) bool {
	places := map[[2]uint16]bool{} // slot and index
	known := func(x switchspec.MergeMember) bool {
		return slices.ContainsFunc(m.members, func(y bifurcation.MergeMember) bool { return y.Src == x.Src })
	}
	for _, x := range there {
		if known(x) {
			places[[2]uint16{x.Slot, uint16(x.Index)}] = true
		}
	}
	return slices.ContainsFunc(there, func(x switchspec.MergeMember) bool {
		e, ok := have.Find(switchspec.MergeGroup{Slot: x.Slot}.Key())
		return ok && !known(x) && !places[[2]uint16{x.Slot, uint16(x.Index)}] && e.(switchspec.MergeGroup).Members&(1<<x.Index) != 0
	})
}

// read finds merging on the switch by its members there, and takes over its slot and
// their places.
func (m *merging) read(have *switchspec.State, there []switchspec.MergeMember) bool {
	var found switchspec.MergeGroup
	var others []switchspec.MergeMember // that left
	places := map[netip.Addr]uint8{}
	current := uint16(0)
	for _, x := range there {
		if !slices.ContainsFunc(m.members, func(y bifurcation.MergeMember) bool { return y.Src == x.Src }) {
			others = append(others, x)
			continue
		}
		e, ok := have.Find(switchspec.MergeGroup{Slot: x.Slot}.Key())
		if !ok || found.Epoch != 0 && e != switchspec.Entity(found) {
			return false
		}
		found = e.(switchspec.MergeGroup)
		places[x.Src] = x.Index
		current |= 1 << x.Index
	}
	if found.Epoch == 0 || found.Source != m.source || found.SenderQPN != m.senderQPN || current&^found.Members != 0 ||
		bits.OnesCount16(current) != len(m.members) {
		return false
	}
	others = slices.DeleteFunc(others, func(x switchspec.MergeMember) bool { return x.Slot != found.Slot })
	if slices.ContainsFunc(others, func(x switchspec.MergeMember) bool { return current&(1<<x.Index) != 0 }) {
		return false
	}
	for i := range m.members {
		m.members[i].Index = places[m.members[i].Src]
	}
	for _, x := range others {
		m.members = append(m.members, bifurcation.MergeMember{Index: x.Index, Src: x.Src, Dst: x.Dst, QPN: x.DestQP})
	}
	m.use, m.psn, m.learn, m.current, m.cnpGap = useOf(found), found.InitialPSN, found.Learn, current, found.CNPGap
	return true
}
