package pipeline

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
)

// shared is shared.p4 with members 0 to 2 of the selector and 0 to 1 of the
// profile, called by the copies that a table has of the actions.
func shared(t *testing.T, sel, prof string) *Pipeline {
	t.Helper()
	p := start(t, "shared", Options{})
	add := func(profile, table string, id uint32, f ...string) {
		t.Helper()
		noErr(t, p.Profile(profile).InsertMember(id, call(t, p.prog, p.Table(table).Info().Actions, f)))
	}
	add("I.sel", sel, 0, "I.pick", "7")
	add("I.sel", sel, 1, "I.twice", "7")
	add("I.sel", sel, 2, "NoAction")
	add("I.prof", prof, 0, "I.pick", "9")
	add("I.prof", prof, 1, "I.sum", "9")
	noErr(t, p.Profile("I.sel").InsertGroup(1, []Weighted{{Member: 0, Weight: 1}, {Member: 1, Weight: 1}, {Member: 2, Weight: 1}}, 0))
	return p
}

// TestShared: in each table that shares it, a member does what the table's own copy of its action
// does, and continues with that table's next node.
func TestShared(t *testing.T) {
	for _, tables := range [][2]string{{"I.first", "I.third"}, {"I.second", "I.fourth"}} {
		p := shared(t, tables[0], tables[1])
		for i, e := range []string{"member 0", "member 1", "member 2", "group 1"} {
			setUp(t, p, fmt.Sprintf("entry I.first %d => %s", i, e))
			setUp(t, p, fmt.Sprintf("entry I.second %d => %s", i, e))
		}
		for _, table := range []string{"I.third", "I.fourth"} {
			setUp(t, p, "entry "+table+" 0 => member 0")
			setUp(t, p, "entry "+table+" 1 => member 1")
		}
		for _, c := range []struct {
			a, b, d byte
			want    []byte // first, second, third, fourth, path
		}{
			{0, 0, 0, []byte{7, 7, 9, 9, 1 | 8 | 32}},
			{0, 1, 0, []byte{7, 14, 9, 10, 1 | 4 | 32}},
			{1, 0, 0, []byte{14, 7, 10, 9, 2 | 8 | 32}},
			{1, 2, 0, []byte{14, 0, 10, 0, 2 | 16}},
			{2, 1, 0, []byte{0, 14, 0, 10, 4 | 32}},
			{3, 3, 0, []byte{7, 7, 0, 0, 1 | 8}},
			{3, 3, 1, []byte{14, 14, 0, 0, 2 | 4}},
			{3, 3, 2, []byte{0, 0, 0, 0, 16}},
			{3, 9, 1, []byte{14, 0, 0, 0, 2}}, // a miss: no action
		} {
			out := process(p, []byte{c.a, c.b, 0, c.d})
			if got := out[0].frame[:5]; !slices.Equal(got, c.want) {
				t.Errorf("members of %s and %s: packet %d %d %d: %v, want %v", tables[0], tables[1], c.a, c.b, c.d, got, c.want)
			}
		}
	}
}

// TestSharedSets: entries' own sets share the profile as members do.
func TestSharedSets(t *testing.T) {
	p := start(t, "shared", Options{})
	for i, table := range []string{"I.first", "I.second"} {
		tb := p.Table(table)
		set := make([]Weighted, 2)
		for j, f := range [][]string{{"I.pick", "7"}, {"I.twice", "7"}} {
			other := p.Table([]string{"I.second", "I.first"}[i]) // any table's copy will do
			set[j] = Weighted{Call: call(t, p.prog, other.Info().Actions, f), Weight: 1}
		}
		noErr(t, tb.Insert(&Entry{Key: match.Key{{Value: val(0, 8)}}, Ref: RefSet, Set: set}))
	}
	for d, want := range [][]byte{{7, 7, 0, 0, 1 | 8}, {14, 14, 0, 0, 2 | 4}} {
		out := process(p, []byte{0, 0, 0, byte(d)})
		if got := out[0].frame[:5]; !slices.Equal(got, want) {
			t.Errorf("hash %d: %v, want %v", d, got, want)
		}
	}
}

// TestSharedRefused: an action is refused that not all tables have, and one with
// wrong arguments.
func TestSharedRefused(t *testing.T) {
	p := start(t, "shared", Options{})
	third := p.Table("I.third").Info().Actions
	wantErr(t, p.Profile("I.sel").InsertMember(1, call(t, p.prog, third, []string{"I.sum", "1"})), ErrInvalid, "I.sel: member 1", "table I.first", "action I.sum")
	wantErr(t, p.Profile("I.sel").InsertMember(1, Call{Action: -1}), ErrInvalid, "action number -1")
	wantErr(t, p.Profile("I.sel").InsertMember(1, Call{Action: 1 << 20}), ErrInvalid, "action number 1048576")
	bad := call(t, p.prog, p.Table("I.second").Info().Actions, []string{"I.pick", "1"})
	bad.Args = nil
	wantErr(t, p.Profile("I.sel").InsertMember(1, bad), ErrInvalid, "0 arguments")
}
