package pipeline

import (
	"math"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
)

func TestTableEntries(t *testing.T) {
	s := testState(t)
	tb := s.Table("exact")
	e := &Entry{Key: exact(1), Call: send(1, 2), Cookie: "mine", Counts: Counts{5, 500}, LastHit: time.Second}
	noErr(t, tb.Insert(e))
	if got := tb.lookup([]uint64{1}); got != e || tb.Find(exact(1), 0) != e || tb.Len() != 1 {
		t.Fatalf("lookup finds %v", got)
	}
	if tb.lookup([]uint64{2}) != nil || tb.Find(exact(2), 0) != nil {
		t.Error("an entry for another key")
	}
	if b := e.bound(0); b.action != actSend || b.args[0] != 1 || b.args[1] != 2 || e.selects() {
		t.Errorf("bound to %+v", b)
	}
	e.hit(3*time.Second, 64)
	if e.Packets != 6 || e.Bytes != 564 || e.LastHit != 3*time.Second {
		t.Errorf("after a hit: %d packets, %d bytes, last hit %v", e.Packets, e.Bytes, e.LastHit)
	}

	noErr(t, tb.Modify(&Entry{Key: exact(1), Call: send(7, 8), Cookie: "other", IdleTimeout: time.Minute, LastHit: 2 * time.Second}))
	if tb.lookup([]uint64{1}) != e || e.bound(0).args[0] != 7 || e.Call.Args[1].Uint() != 8 || e.Cookie != "other" || e.IdleTimeout != time.Minute {
		t.Errorf("after Modify: %+v", e)
	}
	if e.Packets != 6 || e.Bytes != 564 || e.LastHit != 3*time.Second {
		t.Errorf("Modify changed the counter: %d packets, %d bytes, last hit %v", e.Packets, e.Bytes, e.LastHit)
	}
	noErr(t, tb.Modify(&Entry{Key: exact(1), Call: Call{Action: actNop}, LastHit: 9 * time.Second}))
	if e.LastHit != 9*time.Second {
		t.Errorf("Modify at 9 s leaves the last hit at %v", e.LastHit)
	}

	noErr(t, tb.Delete(exact(1), 0))
	if tb.lookup([]uint64{1}) != nil || tb.Len() != 0 {
		t.Error("deleted, yet there")
	}
	noErr(t, tb.Insert(e)) // as a rollback would
	if e.Packets != 6 || tb.lookup([]uint64{1}) != e {
		t.Errorf("inserted again: %+v", e)
	}
}

func TestTableErrors(t *testing.T) {
	s := testState(t)
	tb := s.Table("exact")
	noErr(t, tb.Insert(&Entry{Key: exact(1), Call: send(1, 2)}))
	wantErr(t, tb.Insert(&Entry{Key: exact(1), Call: send(1, 2)}), ErrExists, "table exact", "dst=0x01")
	wantErr(t, tb.Delete(exact(2), 0), ErrNotFound, "table exact", "dst=0x02")
	wantErr(t, tb.Modify(&Entry{Key: exact(2), Call: send(1, 2)}), ErrNotFound, "dst=0x02")
	wantErr(t, tb.Delete(exact(1), 3), ErrInvalid, "priority 3")
	wantErr(t, tb.Modify(&Entry{Key: exact(1 << 33), Call: send(1, 2)}), ErrNotFound) // exact cuts it to 0
	for _, c := range []struct {
		e    Entry
		word string
	}{
		{Entry{Key: match.Key{}, Call: send(1, 2)}, "0 fields, not 1"},
		{Entry{Key: match.Key{{Value: val(1, 32)}, {}}, Call: send(1, 2)}, "{dst=0x01, …}"},
		{Entry{Key: match.Key{{Value: match.Value{1 << 32}}}, Call: send(1, 2)}, "not 32 bits wide"},
		{Entry{Key: exact(3), Call: Call{Action: actOther}}, "action other is not one of the table's"},
		{Entry{Key: exact(3), Call: Call{Action: -1}}, "action number -1"},
		{Entry{Key: exact(3), Call: Call{Action: 99}}, "action number 99"},
		{Entry{Key: exact(3), Call: Call{Action: actSend}}, "0 arguments for 2 parameters"},
		{Entry{Key: exact(3), Call: Call{actSend, []match.Value{val(1, 9), {1 << 48}}}}, "argument mac = 0x01000000000000 is not 48 bits wide"},
		{Entry{Key: exact(3), Call: Call{actSend, []match.Value{val(1, 9), nil}}}, "argument mac"},
		{Entry{Key: exact(3), Call: send(1, 2), Ref: RefMember}, "there is no profile"},
		{Entry{Key: exact(3), Call: send(1, 2), Ref: RefSet}, "there is no profile"},
		{Entry{Key: exact(3), Call: send(1, 2), IdleTimeout: -1}, "idle time-out -1ns"},
		{Entry{Key: exact(3), Call: send(1, 2), Meter: MeterConfig{Set: true, CIR: -1}}, "negative"},
		{Entry{Key: exact(3), Call: send(1, 2), Meter: MeterConfig{Set: true, CIR: 2, PIR: 1}}, "below the committed rate"},
		{Entry{Key: exact(3), Call: send(1, 2), Meter: MeterConfig{CIR: 2, PIR: 3}}, "not set"},
	} {
		wantErr(t, tb.Insert(&c.e), ErrInvalid, "table exact", c.word)
	}
	noErr(t, tb.Insert(&Entry{Key: exact(4), Call: send(1, 2)}))
	noErr(t, tb.Insert(&Entry{Key: exact(5), Call: send(1, 2)}))
	noErr(t, tb.Insert(&Entry{Key: exact(6), Call: send(1, 2)}))
	wantErr(t, tb.Insert(&Entry{Key: exact(7), Call: send(1, 2)}), ErrFull, "table exact", "4 entries")
	if tb.Len() != 4 {
		t.Errorf("%d entries", tb.Len())
	}
	old := tb.Find(exact(1), 0)
	wantErr(t, tb.Modify(&Entry{Key: exact(1), Call: Call{Action: actOther}}), ErrInvalid, "dst=0x01", "other")
	if old.bound(0).action != actSend || old.Call.Action != actSend {
		t.Error("a refused Modify changed the entry")
	}

	other := s.Table("lpm")
	key := match.Key{{Value: val(1, 16)}, {Value: val(0x0a000000, 32), PrefixLen: 8}}
	wantErr(t, other.Insert(&Entry{Key: key, Call: send(1, 2), IdleTimeout: time.Second}), ErrInvalid, "table lpm", "vrf=0x01, dst=0x0a000000/8", "idle")
	wantErr(t, other.Insert(&Entry{Key: key, Call: send(1, 2), Meter: MeterConfig{Set: true}}), ErrInvalid, "no direct meter")
	wantErr(t, other.SetMeter(&Entry{}, MeterConfig{Set: true}), ErrInvalid, "no direct meter")
	wantErr(t, other.Insert(&Entry{Key: key, Priority: 1, Call: send(1, 2)}), ErrInvalid, "priority 1")
	wantErr(t, s.Table("keyless").Insert(&Entry{Call: send(1, 2)}), ErrInvalid, "no key")
}

func TestPriorities(t *testing.T) {
	s := testState(t)
	tb := s.Table("acl")
	any := match.Key{{}, {Value: val(10, 16), High: val(20, 16)}}
	wantErr(t, tb.Insert(&Entry{Key: any, Call: send(1, 2)}), ErrInvalid, "src=0x00&&&0x00, port=0x0a..0x14", "priority 0", "1 or more")
	wantErr(t, tb.Insert(&Entry{Key: any, Call: send(1, 2), Priority: -4}), ErrInvalid, "priority -4")
	low, high := &Entry{Key: any, Call: send(1, 2), Priority: 1}, &Entry{Key: match.Key{{}, {}}, Call: send(3, 4), Priority: 2}
	noErr(t, tb.Insert(low))
	noErr(t, tb.Insert(high))
	wantErr(t, tb.Insert(&Entry{Key: any, Call: send(1, 2), Priority: 1}), ErrExists, "priority 1")
	if tb.lookup([]uint64{1, 15}) != high || tb.lookup([]uint64{1, 25}) != high {
		t.Error("the lower priority wins")
	}
	noErr(t, tb.Delete(high.Key, 2))
	if tb.lookup([]uint64{1, 15}) != low || tb.lookup([]uint64{1, 25}) != nil {
		t.Error("wrong after the higher one has gone")
	}
	if !tb.engine.Prioritized() || s.Table("lpm").engine.Prioritized() {
		t.Error("Prioritized is wrong")
	}
}

func TestConstEntries(t *testing.T) {
	s := testState(t)
	tb := s.Table("const")
	for _, c := range []struct{ x, port uint64 }{{6, 1}, {7, 0}, {1, 3}} {
		e := tb.lookup([]uint64{c.x})
		if b := e.bound(0); c.port == 0 && b.action != actNop || c.port > 0 && b.args[0] != c.port {
			t.Errorf("%d leads to %+v", c.x, b)
		}
	}
	e := tb.lookup([]uint64{6})
	const first = math.MaxInt32 - 1 // as bmv2 has it
	if e.Priority != first || tb.Find(e.Key, first) != e || tb.Len() != 3 {
		t.Errorf("the first of three entries has priority %d", e.Priority)
	}
	wantErr(t, tb.Insert(&Entry{Key: match.Key{{}}, Priority: 9, Call: Call{Action: actNop}}), ErrConst, "table const")
	wantErr(t, tb.Modify(e), ErrConst, "table const")
	wantErr(t, tb.Delete(e.Key, first), ErrConst, "table const")
	n := 0
	for range tb.All() {
		n++
	}
	if n != 3 {
		t.Errorf("%d entries left", n)
	}
	wantErr(t, tb.SetDefault(Call{Action: actNop}), ErrConst, "default entry")
}

func TestDefaults(t *testing.T) {
	s := testState(t)
	tb := s.Table("exact")
	port := func() uint64 { return tb.DefaultEntry().bound(0).args[0] }
	if e := tb.DefaultEntry(); e == nil || e.Call.Action != actSend || port() != 511 {
		t.Errorf("the program's default is %v", e)
	}
	tb.DefaultEntry().hit(0, 100)
	noErr(t, tb.SetDefault(send(5, 6)))
	if c := tb.DefaultEntry().Call; c.Args[0].Uint() != 5 || port() != 5 {
		t.Errorf("default is %v", c)
	}
	if d := tb.DefaultEntry(); d.Packets != 1 || d.Bytes != 100 {
		t.Errorf("SetDefault changed the counter: %d packets, %d bytes", d.Packets, d.Bytes)
	}
	wantErr(t, tb.SetDefault(Call{Action: actOther}), ErrInvalid, "table exact", "default entry", "other")
	if port() != 5 {
		t.Error("a refused SetDefault changed the default")
	}
	noErr(t, tb.ResetDefault())
	if port() != 511 {
		t.Errorf("reset to port %d", port())
	}

	none := s.Table("lpm")
	if none.DefaultEntry() != nil {
		t.Error("a default that the program does not have")
	}
	noErr(t, none.SetDefault(send(1, 1)))
	noErr(t, none.ResetDefault())
	if none.DefaultEntry() != nil {
		t.Error("reset to a default that the program does not have")
	}

	fixed := s.Table("keyless")
	noErr(t, fixed.SetDefault(send(2, 2)))
	wantErr(t, fixed.SetDefault(Call{Action: actNop}), ErrConst, "action send")
}

// TestDirectMeter: entries and the default entry have meters of their own.
func TestDirectMeter(t *testing.T) {
	s := testState(t)
	tb := s.Table("exact")
	e := &Entry{Key: exact(1), Call: send(1, 2), Meter: MeterConfig{CIR: 0, CBurst: 100, PIR: 0, PBurst: 150, Set: true}}
	noErr(t, tb.Insert(e))
	for i, want := range []int{green, green, yellow, red} {
		if got := e.mark(time.Second, 50); got != want {
			t.Errorf("packet %d is of color %d, want %d", i, got, want)
		}
	}
	noErr(t, tb.Modify(&Entry{Key: exact(1), Call: send(3, 4)}))
	if got := e.mark(time.Second, 50); got != red || !e.Meter.Set {
		t.Errorf("Modify changed the meter: color %d", got)
	}
	noErr(t, tb.SetMeter(e, MeterConfig{}))
	if got := e.mark(time.Second, 5000); got != green {
		t.Errorf("color %d without a configuration", got)
	}
	d := tb.DefaultEntry()
	noErr(t, tb.SetMeter(d, MeterConfig{CBurst: 10, PBurst: 10, Set: true}))
	if got := d.mark(0, 11); got != red {
		t.Errorf("the default entry's meter gives color %d", got)
	}

	p := stateProgram()
	p.Meters[2].Bytes = false
	s, err := newState(p)
	noErr(t, err)
	e.Meter = MeterConfig{CBurst: 1, PBurst: 2, Set: true}
	noErr(t, s.Table("exact").Insert(e))
	for i, want := range []int{green, yellow, red} {
		if got := e.mark(0, 50); got != want {
			t.Errorf("counting packets, number %d is of color %d, want %d", i, got, want)
		}
	}
}

// BenchmarkTable inserts and looks up 100,000 entries.
func BenchmarkTable(b *testing.B) {
	p := stateProgram()
	p.Tables[0].Size = 0
	const n = 100_000
	calls := send(1, 2)
	keys := make([]match.Key, n)
	for i := range keys {
		keys[i] = exact(uint64(i))
	}
	fill := func() *Table {
		s, err := newState(p)
		noErr(b, err)
		t := s.Table("exact")
		for _, k := range keys {
			noErr(b, t.Insert(&Entry{Key: k, Call: calls}))
		}
		return t
	}
	b.Run("insert", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			fill()
		}
		b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "entries/s")
	})
	b.Run("packet", func(b *testing.B) {
		t := fill()
		b.ReportAllocs()
		words := []uint64{0}
		i := uint64(0)
		for b.Loop() {
			i = i*2862933555777941757 + 3037000493
			words[0] = i >> 40 % n
			e := t.lookup(words)
			e.hit(time.Duration(i), 64)
			if e.bound(0).action != actSend {
				b.Fatal("another action")
			}
		}
	})
}
