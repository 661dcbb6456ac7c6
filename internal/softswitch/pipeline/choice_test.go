package pipeline

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// picks returns what each hash from 0 on selects: a port, or 999 for nothing.
func picks(e *Entry, n int) (out []uint64) {
	for h := range uint64(n) {
		out = append(out, port(e.bound(h)))
	}
	return out
}

// TestWatchPorts: what watches a port that is down is not selected, by weight
// and by hash as if it were not there.
func TestWatchPorts(t *testing.T) {
	s := testState(t)
	p, tb := s.Profile("selector"), s.Table("groups")
	for i := range uint32(3) {
		noErr(t, p.InsertMember(i, send(uint64(i), 0)))
	}
	ws := []Weighted{{Member: 0, Weight: 1, WatchPort: 7}, {Member: 1, Weight: 2, WatchPort: 65535}, {Member: 2, Weight: 1, WatchPort: -1}}
	noErr(t, p.InsertGroup(1, ws, 4))
	group := &Entry{Key: exact(1), Ref: RefGroup, Group: 1}
	noErr(t, tb.Insert(group))
	check := func(what string, want ...uint64) {
		t.Helper()
		if got := picks(group, len(want)); !slices.Equal(got, want) {
			t.Errorf("%s: selects %v, want %v", what, got, want)
		}
	}
	check("all up", 0, 1, 1, 2, 0)
	s.SetPortUp(7, true)
	s.SetPortUp(8, false)
	check("others", 0, 1, 1, 2, 0)
	s.SetPortUp(7, false)
	s.SetPortUp(7, false) // again
	check("7 down", 1, 1, 2, 1)
	s.SetPortUp(65535, false)
	check("7 and 65535 down", 2, 2, 2)
	s.SetPortUp(7, true)
	check("7 up again", 0, 2, 0)

	// Ports are down before there is a group that watches them.
	wantErr(t, p.ModifyGroup(1, ws, 3), ErrFull, "add up to 4, of 3") // what is down counts
	ws[2].WatchPort = 8
	noErr(t, p.ModifyGroup(1, ws, 4))
	check("8 and 65535 down", 0, 0)
	noErr(t, p.ModifyMember(0, send(5, 0)))
	check("member modified", 5, 5)
	s.SetPortUp(7, false)
	check("all down", 999, 999)
	s.SetPortUp(8, true)
	check("8 up", 2, 2)

	ws[0].WatchPort = math.MaxUint16 + 1
	wantErr(t, p.ModifyGroup(1, ws, 4), ErrInvalid, "port 65536 to watch")
}

// TestWatchPortsOfSets: what TestWatchPorts says of groups, against a plain count.
func TestWatchPortsOfSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := newState(stateProgram())
		if err != nil {
			t.Fatal(err)
		}
		var set []Weighted
		for i := range rapid.IntRange(1, 8).Draw(t, "n") {
			set = append(set, Weighted{Call: send(uint64(i), 0), Weight: rapid.IntRange(1, 4).Draw(t, "weight"), WatchPort: rapid.IntRange(-1, 3).Draw(t, "watch")})
		}
		e := &Entry{Key: exact(1), Ref: RefSet, Set: set}
		if err := s.Table("groups").Insert(e); err != nil {
			t.Fatal(err)
		}
		down := map[int]bool{}
		for range 10 {
			at, up := rapid.IntRange(0, 3).Draw(t, "port"), rapid.Bool().Draw(t, "up")
			s.SetPortUp(uint16(at), up)
			down[at] = !up
			var want []uint64
			for i, w := range set {
				if !down[w.WatchPort] {
					want = append(want, slices.Repeat([]uint64{uint64(i)}, w.Weight)...)
				}
			}
			if len(want) == 0 {
				want = []uint64{999}
			}
			if got := picks(e, len(want)); !slices.Equal(got, want) {
				t.Fatalf("selects %v, want %v", got, want)
			}
		}
	})
}

// TestWatchPortsInPackets: with all ports down, packets meet an empty group; the
// change of a port costs no memory.
func TestWatchPortsInPackets(t *testing.T) {
	p := start(t, "tables", Options{})
	for i, s := range []string{"member I.sel 1 I.pick 7 2", "member I.sel 2 I.pick 7 3", "entry I.selected 3 => group 1"} {
		if i == 2 {
			noErr(t, p.Profile("I.sel").InsertGroup(1, []Weighted{{Member: 1, Weight: 1, WatchPort: 2}, {Member: 2, Weight: 1, WatchPort: 3}}, 0))
		}
		setUp(t, p, s)
	}
	outs := func() (to []int) {
		seen := map[uint16]bool{}
		for b := range byte(32) {
			seen[process(p, tablesPacket(3, b, 0))[0].port] = true
		}
		for port := range 512 {
			if seen[uint16(port)] {
				to = append(to, port)
			}
		}
		return to
	}
	for _, c := range []struct {
		port uint16
		up   bool
		want string
	}{
		{9, false, "[2 3]"}, {3, false, "[2]"}, {2, false, "[1]"}, {3, true, "[3]"}, {2, true, "[2 3]"},
	} {
		p.SetPortUp(c.port, c.up)
		if got := fmt.Sprint(outs()); got != c.want {
			t.Errorf("after port %d up=%t: to %s, want %s", c.port, c.up, got, c.want)
		}
	}
	frame := tablesPacket(3, 1, 0)
	up := false
	if n := testing.AllocsPerRun(100, func() {
		p.SetPortUp(2, up)
		up = !up
		p.Process(0, 1, frame, func(uint16, []byte) {})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
