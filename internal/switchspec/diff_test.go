package switchspec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

func addr(n uint16) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// small draws one of few numbers, so that states share keys and references.
func small(t *rapid.T, name string, least, most int) uint16 {
	return uint16(rapid.IntRange(least, most).Draw(t, name)) //nolint:gosec // small
}

// drawState draws a state without dangling references.
func drawState(t *rapid.T) *State {
	s := &State{}
	put := func(e Entity) {
		if err := s.Put(e); err != nil {
			t.Fatalf("%v: %v", e, err)
		}
	}
	maybe := func(odds int) bool { return rapid.IntRange(0, 9).Draw(t, "maybe") < odds }
	if maybe(5) {
		put(Settings{HashSeed: uint32(small(t, "seed", 0, 1)), Owner: uint64(small(t, "owner", 0, 1)), Numbers: uint64(small(t, "numbers", 0, 1))})
	}
	for i := range uint16(3) {
		if maybe(9) {
			put(Neighbor{NextHop: i + 1, Dst: MAC{5: byte(small(t, "mac", 0, 3) / 3)}})
		}
		if maybe(8) {
			put(NextHop{ID: i + 1, Port: small(t, "port", 1, 2)})
		}
	}
	for i := range uint16(4) {
		if !maybe(8) {
			continue
		}
		g := PREGroup{ID: i + 1}
		for port := range uint16(2) {
			for rid := range uint16(3) {
				if maybe(4) {
					g.Replicas = append(g.Replicas, PREReplica{port + 1, rid + 1})
				}
			}
		}
		put(g)
	}
	for g := range uint16(2) {
		for rid := range uint16(3) {
			if !maybe(9) {
				continue
			}
			r := Replica{Group: g, Rewrite: bifurcation.Rewrite{RID: rid + 1, Last: maybe(5), Dst: addr(small(t, "dst", 1, 2)), NextHop: small(t, "hop", 0, 3)}}
			put(r)
			for first := range uint64(2) {
				if r.Last && maybe(5) {
					put(Region{Group: g, Translation: bifurcation.Translation{RID: rid + 1, First: first, Last: first + uint64(small(t, "len", 0, 1)), Offset: uint64(small(t, "offset", 0, 1))}})
				}
			}
		}
	}
	for slot := range uint16(2) {
		if maybe(7) {
			put(MergeGroup{Slot: slot, Epoch: small(t, "epoch", 1, 2), Members: small(t, "members", 0, 3), Source: addr(9)})
		}
	}
	if maybe(5) {
		put(Bypass{Src: addr(9), Dst: addr(8), QPN: uint32(small(t, "qpn", 0, 1))})
	}
	for m := range uint16(3) {
		put(MergeMember{Src: addr(m), Dst: addr(9), Slot: small(t, "slot", 0, 1), Index: uint8(small(t, "index", 0, 1))}) //nolint:gosec // small
	}
	for m := range uint16(3) {
		if maybe(6) {
			first := small(t, "first", 1, 4)
			put(Match{Src: addr(m), Dst: addr(9), Group: small(t, "group", 0, 1), FirstPRE: first, PREGroups: small(t, "groups", 1, 5-int(first))})
		}
		if maybe(5) {
			put(ECMPGroup{ID: m + 1, Hops: []ECMPHop{{small(t, "hop", 1, 3), 1}}})
		}
		put(Route{Dst: netip.PrefixFrom(addr(m), 32), To: RouteTo(small(t, "to", 1, 2)), Number: small(t, "number", 1, 3)}) //nolint:gosec // small
		put(BridgePort{Port: m, FloodGroup: small(t, "flood", 0, 4)})
		put(GuardedPort{Port: m})
	}
	prune(s)
	return s
}

// prune removes entities with dangling references.
func prune(s *State) {
	for again := true; again; {
		again = false
		for e := range s.All() {
			refs(s, e, func(k Key, _ string) {
				if _, ok := s.Find(k); !ok {
					s.Delete(e.Key())
					again = true
				}
			})
		}
	}
}

// copies says what the copies of a PRE group become.
func copies(s *State, m Match, k Key) string {
	var b strings.Builder
	e, _ := s.Find(k)
	g, _ := e.(PREGroup)
	for _, r := range g.Replicas {
		e, _ := s.Find(replicaKey(m.Group, r.Instance))
		replica, _ := e.(Replica)
		n, _ := s.Find(Neighbor{NextHop: replica.NextHop}.Key())
		replica.Group, replica.RID = 0, 0
		fmt.Fprint(&b, r.Port, " ", replica, n, "; ")
	}
	return b.String()
}

// writes says what the WRITEs of a last copy may become.
func writes(s *State, group, rid uint16) (out []string) {
	e, _ := s.Find(replicaKey(group, rid))
	replica, _ := e.(Replica)
	for va := uint64(0); replica.Last && va < 3; va++ {
		n := len(out)
		for r := range Of[Region](s) {
			if r.Group == group && r.RID == rid && r.First <= va && va <= r.Last {
				out = append(out, fmt.Sprint(replica.Dst, " ", va, "+", r.Offset))
			}
		}
		if len(out) == n {
			out = append(out, fmt.Sprint(replica.Dst, " ", va, " nowhere"))
		}
	}
	return out
}

// uses says whether a match's packets meet a replica.
func uses(s *State, m Match, group, rid uint16) (found bool) {
	m.pre(func(k Key) {
		e, _ := s.Find(k)
		g, _ := e.(PREGroup)
		found = found || m.Group == group && slices.ContainsFunc(g.Replicas, func(r PREReplica) bool { return r.Instance == rid })
	})
	return found
}

// steady says what is wrong with now for the packets of groups.
func steady(have, want, now *State) error {
	for m := range Of[Match](now) {
		a, wasThere := have.Find(m.Key())
		b, stays := want.Find(m.Key())
		var err error
		index := 0
		m.pre(func(k Key) {
			var allowed, outcomes []string
			e, _ := now.Find(k)
			permit := func(s *State, e Entity, there bool) {
				if !there {
					return
				}
				i := 0
				e.(Match).pre(func(k Key) {
					if a != b || i == index {
						allowed = append(allowed, copies(s, e.(Match), k))
					}
					i++
				})
			}
			permit(have, a, wasThere)
			permit(want, b, stays)
			index++
			if c := copies(now, m, k); !slices.Contains(allowed, c) {
				err = fmt.Errorf("%v, %d: copies become %q, not one of %q", m, k.a, c, allowed)
			}
			for _, r := range e.(PREGroup).Replicas {
				outcomes = writes(want, m.Group, r.Instance)
				if wasThere && uses(have, a.(Match), m.Group, r.Instance) {
					outcomes = append(outcomes, writes(have, m.Group, r.Instance)...)
				}
				for _, w := range writes(now, m.Group, r.Instance) {
					if !slices.Contains(outcomes, w) {
						err = fmt.Errorf("%v, %d: a WRITE becomes %q, not one of %q", m, k.a, w, outcomes)
					}
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// apart says which member's entry, of neither the old nor the new group of its
// slot's epoch, is there.
func apart(have, want, now *State) error {
	for m := range Of[MergeMember](now) {
		e, ok := now.Find(mergeKey(m.Slot))
		if !ok {
			continue
		}
		matches := false
		for _, s := range []*State{have, want} {
			g, there := s.Find(mergeKey(m.Slot))
			o, member := s.Find(m.Key())
			if there && member && g.(MergeGroup).Epoch == e.(MergeGroup).Epoch && equal(o, m) {
				matches = true
			}
		}
		if !matches {
			return fmt.Errorf("%v meets %v", m, e)
		}
	}
	return nil
}

func TestDiffLeadsThereByValidStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have := drawState(t)
		want := drawState(t)
		if rapid.Bool().Draw(t, "near") { // a few changes
			other := want
			want = have.Clone()
			for range rapid.IntRange(0, 6).Draw(t, "changes") {
				from := slices.Collect(other.All())
				if len(from) > 0 {
					if err := want.Put(rapid.SampledFrom(from).Draw(t, "put")); err != nil {
						t.Fatal(err)
					}
				}
			}
			prune(want)
		}
		now := have.Clone()
		changes := Diff(have, want)
		for i := range changes { // any order within a stage
			last := i
			for last < len(changes) && changes[last].Stage == changes[i].Stage {
				last++
			}
			j := rapid.IntRange(i, last-1).Draw(t, "next")
			changes[i], changes[j] = changes[j], changes[i]
			if err := now.Apply(changes[i]); err != nil {
				t.Fatal(err)
			}
			for _, err := range []error{now.Check(), steady(have, want, now), apart(have, want, now)} {
				if err != nil {
					t.Fatalf("after %d of\n%v\nfrom\n%v\nto\n%v\n%v", i+1, lines(slices.Values(changes)), lines(have.All()), lines(want.All()), err)
				}
			}
		}
		if !now.Equal(want) {
			t.Fatalf("now\n%v\nwant\n%v", lines(now.All()), lines(want.All()))
		}
		if again := Diff(now, want); len(again) != 0 {
			t.Fatalf("still %v", again)
		}
	})
}

func lines[T any](list func(func(T) bool)) string {
	var b strings.Builder
	for e := range list {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}
