package pipeline

import (
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Actions, by their place in stateProgram.
const (
	actNop = iota
	actSend
	actWide
	actOther // of no table
)

// stateProgram declares one of each thing that has state, and no behavior.
func stateProgram() *program.Program {
	key := func(name string, m program.MatchKind, bits int) program.KeyField {
		return program.KeyField{Name: name, Match: m, Bits: bits}
	}
	table := func(t program.Table) program.Table {
		if t.Actions == nil {
			t.Actions = []int{actNop, actSend, actWide}
		}
		if t.Size == 0 {
			t.Size = 1000
		}
		return t
	}
	const none = program.None
	big1 := func(xs ...int64) (out []*big.Int) {
		for _, x := range xs {
			out = append(out, big.NewInt(x))
		}
		return out
	}
	return &program.Program{
		Actions: []program.Action{
			{Name: "nop"},
			{Name: "send", Params: []program.Param{{Name: "port", Bits: 9}, {Name: "mac", Bits: 48}}},
			{Name: "wide", Params: []program.Param{{Name: "a", Bits: 8}, {Name: "v", Bits: 128}, {Name: "b", Bits: 8}}},
			{Name: "other"},
		},
		Tables: []program.Table{
			table(program.Table{
				Name: "exact", Key: []program.KeyField{key("dst", program.Exact, 32)}, Size: 4, Timeout: true, Counter: 1, Meter: 2, Profile: none,
				Default: &program.DefaultEntry{Call: program.Call{Action: actSend, Args: big1(511, 0)}},
			}),
			table(program.Table{Name: "lpm", Key: []program.KeyField{key("vrf", program.Exact, 16), key("dst", program.LPM, 32)}, Counter: none, Meter: none, Profile: none}),
			table(program.Table{Name: "acl", Key: []program.KeyField{key("src", program.Ternary, 32), key("port", program.Range, 16)}, Counter: none, Meter: none, Profile: none}),
			table(program.Table{
				Name: "const", Key: []program.KeyField{key("proto", program.Ternary, 8)}, Counter: none, Meter: none, Profile: none, Size: 2,
				Entries: []program.Entry{
					{Key: []program.EntryKey{{Value: big.NewInt(6), Mask: big.NewInt(255)}}, Priority: 1, Call: program.Call{Action: actSend, Args: big1(1, 2)}},
					{Key: []program.EntryKey{{Value: big.NewInt(4), Mask: big.NewInt(4)}}, Priority: 2, Call: program.Call{Action: actNop}},
					{Key: []program.EntryKey{{Value: big.NewInt(0), Mask: big.NewInt(0)}}, Priority: 3, Call: program.Call{Action: actSend, Args: big1(3, 4)}},
				},
				Default: &program.DefaultEntry{Call: program.Call{Action: actNop}, ConstAction: true, ConstEntry: true},
			}),
			table(program.Table{
				Name: "keyless", Counter: none, Meter: none, Profile: none,
				Default: &program.DefaultEntry{Call: program.Call{Action: actSend, Args: big1(1, 1)}, ConstAction: true},
			}),
			table(program.Table{Name: "members", Key: []program.KeyField{key("dst", program.Exact, 32)}, Counter: none, Meter: none, Profile: 0}),
			table(program.Table{Name: "groups", Key: []program.KeyField{key("dst", program.Exact, 32)}, Counter: none, Meter: none, Profile: 1}),
			table(program.Table{Name: "groups2", Key: []program.KeyField{key("dst", program.Exact, 32)}, Counter: none, Meter: none, Profile: 1, Actions: []int{actNop, actSend}}),
		},
		Profiles: []program.Profile{{Name: "profile", Size: 3}, {Name: "selector", Size: 8, Selector: true}},
		Counters: []program.Counter{{Name: "counter", Size: 3, Table: none}, {Name: "direct_counter", Table: 0}},
		Meters: []program.Meter{
			{Name: "meter", Size: 3, Bytes: true, Table: none},
			{Name: "packets", Size: 1, Table: none},
			{Name: "direct_meter", Bytes: true, Table: 0},
		},
		Registers: []program.Register{{Name: "reg", Size: 4, Bits: 12}, {Name: "word", Size: 2, Bits: 64}, {Name: "wide", Size: 3, Bits: 70}},
		ValueSets: []program.ValueSet{{Name: "vs", Bits: []int{16, 8}, Size: 3}},
		Headers:   []program.Header{{Name: "h", Fields: []program.Field{{Name: "a", Bits: 48}, {Name: "b", Bits: 70}}}},
		Digests: []program.Digest{{Name: "learn", Fields: []program.FieldRef{
			{Header: 0, Field: 0}, {Header: 0, Field: 1}, {Header: 0, Field: program.Valid},
		}}},
	}
}

func testState(tb testing.TB) *state {
	tb.Helper()
	s, err := newState(stateProgram())
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func val(x uint64, bits int) match.Value {
	return match.FromBig(new(big.Int).SetUint64(x), bits)
}

func exact(x uint64) match.Key { return match.Key{{Value: val(x, 32)}} }

func send(port, mac uint64) Call {
	return Call{actSend, []match.Value{val(port, 9), val(mac, 48)}}
}

// wantErr checks for a sentinel and for words of explanation.
func wantErr(t *testing.T, err, sentinel error, words ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("error %v, want %v", err, sentinel)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func noErr(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestNames(t *testing.T) {
	s := testState(t)
	if s.Table("lpm").Info().Name != "lpm" || s.Profile("selector").Info().Name != "selector" ||
		s.Counter("counter").Info().Name != "counter" || s.Meter("meter").Info().Name != "meter" ||
		s.Register("wide").Info().Name != "wide" || s.ValueSet("vs").Info().Name != "vs" {
		t.Error("a name leads to something else")
	}
	if s.Table("x") != nil || s.Profile("x") != nil || s.Counter("x") != nil || s.Meter("x") != nil || s.Register("x") != nil || s.ValueSet("x") != nil {
		t.Error("something has an unknown name")
	}
	if s.Program().Tables[0].Name != "exact" {
		t.Error("another program")
	}
}

// TestArguments: arguments are flattened in order, each at its offset.
func TestArguments(t *testing.T) {
	s := testState(t)
	b, err := s.bind([]int{actWide}, Call{actWide, []match.Value{val(1, 8), {2, 3}, val(4, 8)}})
	noErr(t, err)
	if want := []uint64{1, 2, 3, 4}; !slices.Equal(b.args, want) || b.action != actWide {
		t.Errorf("action %d, arguments %v, want %v", b.action, b.args, want)
	}
	if got, want := s.argOffset[actWide], []int{0, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("offsets %v, want %v", got, want)
	}
}

// TestContradictingEntries: const entries with the same key are an error.
func TestContradictingEntries(t *testing.T) {
	p := stateProgram()
	e := &p.Tables[3].Entries
	*e = append(*e, (*e)[0])
	_, err := newState(p)
	wantErr(t, err, ErrExists, "table const", "proto=0x06&&&0xff", "priority 2147483646")
}

func TestCounter(t *testing.T) {
	s := testState(t)
	c := s.Counter("counter")
	c.add(2, 100)
	c.add(2, 50)
	c.add(3, 7)
	c.add(1<<63, 7)
	if n, err := c.Get(2); n != (Counts{2, 150}) || err != nil {
		t.Errorf("cell 2: %+v, %v", n, err)
	}
	noErr(t, c.Set(2, Counts{10, 20}))
	c.add(2, 1)
	if n, _ := c.Get(2); n != (Counts{11, 21}) {
		t.Errorf("cell 2 after Set: %+v", n)
	}
	if n, _ := c.Get(1); n != (Counts{}) {
		t.Errorf("cell 1: %+v", n)
	}
	if s.badIndex != 2 {
		t.Errorf("%d bad indices counted, want 2", s.badIndex)
	}
	for _, i := range []int{-1, 3} {
		_, err := c.Get(i)
		wantErr(t, err, ErrInvalid, "counter counter", "3 cells")
		wantErr(t, c.Set(i, Counts{1, 1}), ErrInvalid, "counter counter", "3 cells")
	}
	if c.Len() != 3 || s.Counter("direct_counter").Len() != 0 {
		t.Errorf("lengths %d and %d", c.Len(), s.Counter("direct_counter").Len())
	}
}

func TestRegister(t *testing.T) {
	s := testState(t)
	r := s.Register("reg")
	read := func(r *Register, i uint64) uint64 {
		if cell := r.wide(i); cell != nil {
			return cell[0]
		}
		return 0
	}
	r.write(3, 0x1234) // 12 bits
	r.write(4, 5)
	if got := []uint64{read(r, 3), read(r, 0), read(r, 4), read(r, 1<<62)}; !slices.Equal(got, []uint64{0x234, 0, 0, 0}) {
		t.Errorf("read %x", got)
	}
	if s.badIndex != 3 {
		t.Errorf("%d bad indices counted, want 3", s.badIndex)
	}
	noErr(t, r.Set(1, val(0xfff, 12)))
	if v, err := r.Get(1); err != nil || read(r, 1) != 0xfff || v.Uint() != 0xfff {
		t.Errorf("Get: %v, %v; read: %x", v, err, read(r, 1))
	}
	wantErr(t, r.Set(1, match.Value{0x1000}), ErrInvalid, "register reg", "index 1", "12 bits")
	wantErr(t, r.Set(4, val(1, 12)), ErrInvalid, "index 4", "4 cells")
	_, err := r.Get(-1)
	wantErr(t, err, ErrInvalid, "index -1")

	w := s.Register("word")
	w.write(1, ^uint64(0))
	if read(w, 1) != ^uint64(0) || w.Len() != 2 {
		t.Errorf("64 bits: read %x of %d cells", read(w, 1), w.Len())
	}

	wide := s.Register("wide")
	copy(wide.wide(2), []uint64{7, 8})
	copy(wide.wide(3), []uint64{9, 9})
	if v, err := wide.Get(2); err != nil || !v.Equal(match.Value{7, 8}) || !slices.Equal(wide.wide(2), v) {
		t.Errorf("Get: %v, %v; wide: %v", v, err, wide.wide(2))
	}
	if v, _ := wide.Get(1); !v.Equal(match.Value{0, 0}) || wide.wide(3) != nil {
		t.Errorf("cell 1 is %v, cell 3 %v", v, wide.wide(3))
	}
	v, _ := wide.Get(2)
	v[0] = 99
	if wide.wide(2)[0] != 7 {
		t.Error("Get gives the cell itself away")
	}
}

// TestDigests: digests arrive in order, apart from the words they came in, and
// are dropped and counted when too many wait.
func TestDigests(t *testing.T) {
	s := testState(t)
	words := []uint64{1, 2, 3, 1}
	s.digest(0, words)
	words[0] = 9
	s.digest(0, words)
	d := s.TakeDigests()
	if len(d) != 2 || !d[0].Values[0].Equal(match.Value{1}) || !d[1].Values[0].Equal(match.Value{9}) {
		t.Fatalf("digests %v", d)
	}
	if v := d[0].Values; len(v) != 3 || !v[1].Equal(match.Value{2, 3}) || !v[2].Equal(match.Value{1}) {
		t.Errorf("values %v", v)
	}
	for range digestLimit + 5 {
		s.digest(0, words)
	}
	if n := len(s.TakeDigests()); n != digestLimit || s.digests.dropped != 5 {
		t.Errorf("%d digests taken, %d dropped", n, s.digests.dropped)
	}
	if d := s.TakeDigests(); len(d) != 0 {
		t.Errorf("taken again: %v", d)
	}
}

func TestValueSet(t *testing.T) {
	s := testState(t)
	v := s.ValueSet("vs")
	f := func(x uint64, bits int) match.Field { return match.Field{Value: val(x, bits)} }
	if v.contains([]uint64{0, 0}) {
		t.Error("the empty set contains something")
	}
	check := func(in, out [][]uint64) {
		t.Helper()
		for _, w := range in {
			if !v.contains(w) {
				t.Errorf("%x is missing", w)
			}
		}
		for _, w := range out {
			if v.contains(w) {
				t.Errorf("%x is in the set", w)
			}
		}
	}
	noErr(t, v.Set([][]match.Field{{f(1, 16), f(2, 8)}, {f(3, 16), f(4, 8)}}))
	check([][]uint64{{1, 2}, {3, 4}}, [][]uint64{{1, 4}, {3, 2}, {0, 0}})

	masked := match.Field{Value: val(0x10, 16), Mask: val(0xf0, 16)}
	prefix := match.Field{Value: val(0x80, 8), PrefixLen: 1}
	noErr(t, v.Set([][]match.Field{{masked, f(2, 8)}, {f(3, 16), prefix}, {f(5, 16), {}}}))
	check([][]uint64{{0x10, 2}, {0xff1f, 2}, {3, 0x80}, {3, 0xff}, {5, 0}, {5, 77}}, [][]uint64{{0x20, 2}, {0x10, 3}, {3, 0x7f}, {1, 2}, {4, 0}})

	span := match.Field{Value: val(10, 16), High: val(20, 16)}
	noErr(t, v.Set([][]match.Field{{span, f(2, 8)}, {f(30, 16), prefix}, {{}, f(9, 8)}}))
	check([][]uint64{{10, 2}, {20, 2}, {30, 0x90}, {1234, 9}}, [][]uint64{{21, 2}, {9, 2}, {31, 0x90}, {30, 2}})

	before := len(v.Get())
	for _, c := range []struct {
		members [][]match.Field
		want    error
		word    string
	}{
		{[][]match.Field{{f(1, 16)}}, ErrInvalid, "1 fields, not 2"},
		{[][]match.Field{{f(1, 16), f(1, 8)}, {f(1, 16), f(1, 8)}}, ErrExists, "member 1"},
		{[][]match.Field{{f(1, 16), f(1, 8)}, {f(2, 16), f(1, 8)}, {f(3, 16), f(1, 8)}, {f(4, 16), f(1, 8)}}, ErrFull, "4 members, of 3"},
		{[][]match.Field{{f(1, 16), {Value: match.Value{256}}}}, ErrInvalid, "8 bits"},
		{[][]match.Field{{span, f(1, 8)}, {masked, f(1, 8)}}, ErrInvalid, "others a mask"},
		{[][]match.Field{{f(1, 16), {Value: val(1, 8), PrefixLen: 1}}}, ErrInvalid, "outside"},
		{[][]match.Field{{f(1, 16), {PrefixLen: 9}}}, ErrInvalid, "9 of 8"},
		{[][]match.Field{{f(1, 16), {PrefixLen: -1}}}, ErrInvalid, "-1 of 8"},
		{[][]match.Field{{f(1, 16), {Value: val(0, 8), High: val(1, 8), PrefixLen: 1}}}, ErrInvalid, "prefix"},
		{[][]match.Field{{f(1, 16), {Value: val(0, 8), Mask: val(1, 8), High: val(1, 8)}}}, ErrInvalid, "field 1"},
	} {
		wantErr(t, v.Set(c.members), c.want, "value set vs", c.word)
	}
	if len(v.Get()) != before {
		t.Error("a refused Set changed the set")
	}
	check([][]uint64{{10, 2}}, [][]uint64{{1, 1}})
	noErr(t, v.Set(nil))
	check(nil, [][]uint64{{10, 2}})
}
