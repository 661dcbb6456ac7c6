package switchagent

import (
	"math/rand/v2"
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
