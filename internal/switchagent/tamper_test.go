package switchagent

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// tamper changes a switch's state at random: it deletes, redirects and adds entities.
func tamper(r *rand.Rand, s *switchspec.State) {
	var matches []switchspec.Match
	for m := range switchspec.Of[switchspec.Match](s) {
		matches = append(matches, m)
	}
	put := func(e switchspec.Entity) {
		if err := s.Put(e); err != nil {
			panic(err)
		}
	}
	for _, e := range slices.Collect(s.All()) {
		if _, settings := e.(switchspec.Settings); settings || r.IntN(4) > 0 {
			continue // without the settings, groups are given up: TestStateOlderThanSwitch
		}
		if r.IntN(3) == 0 {
			s.Delete(e.Key())
			continue
		}
		switch e := e.(type) {
		case switchspec.Match:
			// Its copies are another group's, or no group's.
			o := matches[r.IntN(len(matches))]
			switch r.IntN(4) {
			case 0:
				e.Group = o.Group
			case 1:
				e.FirstPRE, e.PREGroups = o.FirstPRE, o.PREGroups
			case 2:
				e.FirstPRE, e.PREGroups = 65530, 6
			case 3:
				e.FirstPRE = max(1, e.FirstPRE-1)
			}
			put(e)
			e.MCID ^= 0x40
			put(e)
		case switchspec.PREGroup:
			e.Replicas = slices.Clone(e.Replicas)
			if len(e.Replicas) > 0 && r.IntN(2) == 0 {
				e.Replicas = e.Replicas[1:]
			}
			put(e)
			if e.ID += 100; e.ID < 1000 {
				put(e)
			}
		case switchspec.Replica:
			e.NextHop = uint16(r.IntN(5))
			put(e)
			e.Group += uint16(r.IntN(3))
			put(e)
		case switchspec.Region:
			e.Offset++
			put(e)
		case switchspec.MergeGroup:
			e.Epoch, e.Members = max(1, uint16(r.IntN(3))), uint16(r.Uint32())
			put(e)
			e.Slot += uint16(r.IntN(5))
			put(e)
		case switchspec.MergeMember:
			e.Slot, e.Index = uint16(r.IntN(5)), uint8(r.IntN(16))
			put(e)
		}
	}
}

// TestTamperedWhileAway: the agent comes back to a switch that was changed meanwhile,
// and restores it.
func TestTamperedWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		var groups []*mcrdmav1.Group
		for id := range uint32(4) {
			g := aGroup(hostAddr(1, 1), id+1, hostAddr(1, 2+int(id)), hostAddr(2, 1), hostAddr(2, 2))
			groups = append(groups, g)
			l.install(1, g)
		}
		want, routes := l.canonical(), canonicalRoutes(l.state(1))
		seed := rand.Uint64()
		for i := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, i))
			l.nodes[0].kill()
			s, end := l.control(1)
			have, err := s.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			next := have.Clone()
			tamper(r, next)
			if err := s.Apply(t.Context(), switchspec.Diff(have, next)); err != nil {
				t.Fatalf("seed %d, round %d: %v", seed, i, err)
			}
			end()
			l.start(1)
			problem := ""
			for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				have := l.state(1)
				problem = l.consistent()
				if now := canonicalRoutes(have); problem == "" && now != routes {
					problem = now
				}
				if problem == "" && !slices.Equal(l.canonical(), want) {
					problem = strings.Join(l.canonical(), "\n--\n")
				}
				if problem == "" {
					break
				}
			}
			if problem != "" {
				t.Fatalf("seed %d, round %d: %s", seed, i, problem)
			}
			// Nothing that one group has is another's.
			g := groups[i%4]
			l.remove(1, g)
			l.install(1, g)
			if !slices.Equal(l.canonical(), want) {
				t.Fatalf("seed %d, round %d: after one was removed and installed:\n%s", seed, i, strings.Join(l.canonical(), "\n--\n"))
			}
		}
		for _, g := range groups {
			l.remove(1, g)
		}
		l.empty("all groups are gone")
		l.noLeftovers()
	})
}

// TestAdoptedMergingIsItsOwn: merging that is found on a switch is kept if it was not
// changed, with the members that left; else it begins anew, without anything of
// another group.
func TestAdoptedMergingIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root, _ := goodRecords(t) // receivers 1.2 and 2.1
		one, two := aStepKey, stepKey{groupKey{hostAddr(1, 1), 0x800002}, hostAddr(1, 2)}
		member := func(k stepKey, src netip.Addr, slot uint16, index uint8) switchspec.MergeMember {
			return switchspec.MergeMember{Src: src, Dst: k.source, DestQP: k.id, Slot: slot, Index: index}
		}
		for name, x := range map[string]struct {
			change []switchspec.Entity
			kept   bool // group one keeps its slot
			late   int  // members that left
		}{
			"as it was":            {nil, true, 0},
			"one has left":         {[]switchspec.Entity{member(one, hostAddr(3, 1), 100, 7)}, true, 1},
			"another group's":      {[]switchspec.Entity{member(two, hostAddr(3, 1), 100, 7)}, true, 0},
			"another sender's":     {[]switchspec.Entity{member(stepKey{groupKey{hostAddr(1, 4), one.id}, one.dst}, hostAddr(3, 1), 100, 7)}, true, 0},
			"in another slot":      {[]switchspec.Entity{member(one, hostAddr(2, 1), 200, 1)}, false, 0},
			"two with one index":   {[]switchspec.Entity{member(one, hostAddr(2, 1), 100, 0)}, false, 0},
			"late in one's place":  {[]switchspec.Entity{member(one, hostAddr(3, 1), 100, 1)}, false, 0},
			"no longer waited for": {[]switchspec.Entity{switchspec.MergeGroup{Slot: 100, Members: 1, Epoch: 9, Source: one.dst, SenderQPN: 5}}, false, 0},
			"to another QP":        {[]switchspec.Entity{switchspec.MergeGroup{Slot: 100, Members: 3, Epoch: 9, Source: one.dst, SenderQPN: 6}}, false, 0},
		} {
			a := bare(&memStore{records: [][2][]byte{{one.appendTo(nil), root}, {two.appendTo(nil), root}}})
			if err := a.load(); err != nil {
				t.Fatal(err)
			}
			var have, want switchspec.State
			for slot, k := range map[uint16]stepKey{100: one, 200: two} {
				if err := have.Put(switchspec.MergeGroup{Slot: slot, Members: 3, Epoch: 9, Source: k.dst, SenderQPN: 5},
					member(k, hostAddr(1, 2), slot, 0), member(k, hostAddr(2, 1), slot, 1)); err != nil {
					t.Fatal(err)
				}
			}
			if err := have.Put(x.change...); err != nil {
				t.Fatal(err)
			}
			if _, err := a.adoptMerging(&have, &want); err != nil {
				t.Fatal(err)
			}
			m := a.groups[one.groupKey].merging
			if kept := m.slot() == 100 && epochOf(m.use) == 9 && !m.learn; kept != x.kept || len(m.members) != 2+x.late || m.current != 3 || a.slots.used[m.slot()] != m {
				t.Errorf("%s: %+v", name, m)
			}
			if other := a.groups[two.groupKey].merging; other.slot() != 200 || other.learn || len(other.members) != 2 {
				t.Errorf("%s: the other group: %+v", name, other)
			}
			for e := range switchspec.Of[switchspec.MergeMember](&want) {
				if g := a.groups[groupKey{e.Dst, e.DestQP}]; g == nil || g.merging.slot() != e.Slot {
					t.Errorf("%s: %v is wanted", name, e)
				}
			}
		}
	})
}
