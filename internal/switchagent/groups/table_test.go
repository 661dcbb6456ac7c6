package groups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

func TestStepKeysSortAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() StepKey {
			return StepKey{Key{anAddr(t, "source"), rapid.Uint32Range(1, 0xffffff).Draw(t, "id")}, anAddr(t, "dst")}
		}
		x, y := draw(), draw()
		if x.Source == y.Source && x.ID == y.ID {
			return
		}
		if bytes.Compare(x.appendTo(nil), y.appendTo(nil)) != x.Key.Compare(y.Key) {
			t.Fatalf("%v and %v", x, y)
		}
	})
}

func FuzzParseStepKey(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{10, 0, 0, 1, 0x80, 0, 1, 10, 0, 0, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parseStepKey(b)
		if err == nil && (!bytes.Equal(k.appendTo(nil), b) || !k.Source.Is4() || !k.Dst.Is4()) {
			t.Fatalf("%x is %v", b, k)
		}
	})
}

// A memStore holds records that tests make up.
type memStore struct {
	records [][2][]byte
}

func (m *memStore) Commit(context.Context, ...store.Edit) error { return nil }

func (m *memStore) Load(of string) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		for _, r := range m.records {
			if of == bucket && !yield(r[0], r[1]) {
				return
			}
		}
	}
}

// loaded is a table of such records.
func loaded(records ...[2][]byte) (*Table, error) {
	return New(context.Background(), Options{Config: &config.Config{Name: "sw1", Leases: config.Leases{Group: time.Minute, Branch: time.Minute},
		Limits: config.Limits{GroupsPerSource: 3}}, File: &memStore{records}, Sequence: &atomic.Uint64{}, Log: slog.New(slog.DiscardHandler)})
}

func hostAddr(n, i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n), 0, byte(10 + i)}) }

func anAddr(t *rapid.T, what string) netip.Addr {
	return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, what)))
}

func aReceiver(addr netip.Addr, qpn uint32) bifurcation.Receiver {
	return bifurcation.Receiver{Addr: addr, QPN: qpn, Regions: []bifurcation.Region{
		{RKey: 7, VA: 0x1000, Length: 0x1000, ReceiverRKey: qpn, ReceiverVA: uint64(qpn) << 16}}}
}

var aStepKey = StepKey{Key{hostAddr(1, 1), 0x800001}, hostAddr(1, 2)}

// goodRecords are of a group, and of a step that others hold.
func goodRecords() (root, held []byte) {
	receivers := []bifurcation.Receiver{aReceiver(hostAddr(1, 2), 1), aReceiver(hostAddr(2, 1), 2)}
	sp := Spec{Generation: 3, Receivers: receivers}
	root = store.Encode(stepRecord{Spec: sp, Group: &groupRecord{SenderQPN: 5, InitialPSN: 6, CNPGap: time.Millisecond, Lease: time.Minute}})
	held = store.Encode(stepRecord{Spec: sp, Holders: map[bifurcation.Switch]Holder{"sw2": {Spec: Spec{Generation: 3, Via: []bifurcation.Switch{"sw2"}}, Sequence: 9},
		"sw3": {Spec: Spec{Generation: 2, Receivers: receivers[:1]}, Sequence: 8}}})
	return root, held
}

// sound fails if what was loaded could not be put on a switch, or does not belong
// together.
func sound(t testing.TB, a *Table) {
	t.Helper()
	var want switchspec.State
	for k, s := range a.steps {
		g := bifurcation.Group{Source: k.Source, ID: k.ID, Address: k.Dst, Receivers: s.state.Spec.Receivers}
		if err := g.Validate(); err != nil {
			t.Errorf("step %v: %v", k, err)
		}
		if (s.group == nil) == (len(s.holders) == 0) {
			t.Errorf("step %v is for a group %v and %d holders", k, s.group, len(s.holders))
		}
		if s.group != nil && (a.groups[k.Key] != s.group || s.group.step != s) {
			t.Errorf("step %v: its group is another", k)
		}
		for _, h := range s.holders {
			g.Receivers = h.Receivers
			if err := g.Validate(); err != nil {
				t.Errorf("step %v: holder: %v", k, err)
			}
		}
	}
	for k, g := range a.groups {
		if err := g.Validate(); err != nil {
			t.Errorf("group %v: %v", k, err)
		}
	}
	if _, err := a.adoptMerging(&switchspec.State{}, &want); err != nil {
		t.Error(err)
	}
	if len(a.slots.used) != len(a.groups) {
		t.Errorf("%d slots for %d groups", len(a.slots.used), len(a.groups))
	}
}

func FuzzRecord(f *testing.F) {
	root, held := goodRecords()
	f.Add(aStepKey.appendTo(nil), root)
	f.Add(aStepKey.appendTo(nil), held)
	f.Add([]byte{1}, []byte("{}"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		a, err := loaded([2][]byte{key, value})
		if err == nil {
			sound(t, a)
		} else if !errors.Is(err, ErrRecord) {
			t.Fatal(err)
		}
	})
}

// badRecords are records that no agent can have stored, each changed from a good one.
func badRecords(t testing.TB) map[string][2][]byte {
	root, held := goodRecords()
	key := aStepKey.appendTo(nil)
	edit := func(b []byte, f func(r *stepRecord)) []byte {
		var r stepRecord
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		f(&r)
		return store.Encode(r)
	}
	many := func(r *stepRecord) {
		for i := range 17 {
			r.Spec.Receivers = append(r.Spec.Receivers, bifurcation.Receiver{Addr: hostAddr(3, i)})
		}
	}
	return map[string][2][]byte{
		"short key":           {key[:10], root},
		"long key":            {append(key[:11:11], 0), root},
		"no JSON":             {key, []byte("\x00\x01")},
		"half JSON":           {key, root[:len(root)/2]},
		"other JSON":          {key, []byte(`[1,2]`)},
		"null":                {key, []byte(`null`)},
		"unknown field":       {key, append(slices.Clone(root[:len(root)-1]), `,"Future":1}`...)},
		"two values":          {key, append(slices.Clone(root), root...)},
		"of neither":          {key, edit(root, func(r *stepRecord) { r.Group = nil })},
		"of both":             {key, edit(held, func(r *stepRecord) { r.Group = &groupRecord{Lease: time.Minute} })},
		"no receivers":        {key, edit(root, func(r *stepRecord) { r.Spec.Receivers = nil })},
		"17 receivers":        {key, edit(root, many)},
		"two of one":          {key, edit(root, func(r *stepRecord) { r.Spec.Receivers[1] = r.Spec.Receivers[0] })},
		"IPv6 receiver":       {key, edit(root, func(r *stepRecord) { r.Spec.Receivers[1].Addr = netip.IPv6Loopback() })},
		"no address":          {key, edit(root, func(r *stepRecord) { r.Spec.Receivers[1].Addr = netip.Addr{} })},
		"PSN":                 {key, edit(root, func(r *stepRecord) { r.Group.InitialPSN = 1 << 24 })},
		"negative lease":      {key, edit(root, func(r *stepRecord) { r.Group.Lease = -1 })},
		"CNP gap of a year":   {key, edit(root, func(r *stepRecord) { r.Group.CNPGap = 365 * 24 * time.Hour })},
		"holder's receivers":  {key, edit(held, func(r *stepRecord) { r.Holders["sw3"].Receivers[0].Addr = netip.IPv6Loopback() })},
		"MC_ID 0":             {StepKey{Key{hostAddr(1, 1), 0}, hostAddr(1, 2)}.appendTo(nil), root},
		"sender receives":     {StepKey{Key{hostAddr(2, 1), 1}, hostAddr(1, 2)}.appendTo(nil), root},
		"sender is the group": {StepKey{Key{hostAddr(1, 1), 1}, hostAddr(1, 1)}.appendTo(nil), root},
	}
}

func TestBadRecordsAreRefused(t *testing.T) {
	for name, r := range badRecords(t) {
		if _, err := loaded(r); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v", name, err)
		}
	}
	root, held := goodRecords()
	other := StepKey{aStepKey.Key, hostAddr(2, 1)}.appendTo(nil)
	if _, err := loaded([2][]byte{aStepKey.appendTo(nil), root}, [2][]byte{other, root}); !errors.Is(err, ErrRecord) {
		t.Errorf("one group at two addresses: %v", err)
	}
	a, err := loaded([2][]byte{aStepKey.appendTo(nil), root}, [2][]byte{StepKey{Key{hostAddr(1, 3), 1}, hostAddr(1, 2)}.appendTo(nil), held})
	if err != nil {
		t.Fatal(err)
	}
	sound(t, a)
	s := a.steps[StepKey{Key{hostAddr(1, 3), 1}, hostAddr(1, 2)}]
	if len(s.holders["sw2"].Receivers) != 2 || len(s.holders["sw3"].Receivers) != 1 {
		t.Errorf("%+v", s.holders)
	}
}

// TestAdoptedMergingIsItsOwn: merging that is found on a switch is kept if it was not
// changed, with the members that left; else it begins anew, without anything of
// another group.
func TestAdoptedMergingIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root, _ := goodRecords() // receivers 1.2 and 2.1
		one, two := aStepKey, StepKey{Key{hostAddr(1, 1), 0x800002}, hostAddr(1, 2)}
		member := func(k StepKey, src netip.Addr, slot uint16, index uint8) switchspec.MergeMember {
			return switchspec.MergeMember{Src: src, Dst: k.Source, DestQP: k.ID, Slot: slot, Index: index}
		}
		for name, x := range map[string]struct {
			change []switchspec.Entity
			kept   bool // group one keeps its slot
			late   int  // members that left
		}{
			"as it was":            {nil, true, 0},
			"one has left":         {[]switchspec.Entity{member(one, hostAddr(3, 1), 100, 7)}, true, 1},
			"another group's":      {[]switchspec.Entity{member(two, hostAddr(3, 1), 100, 7)}, true, 0},
			"another sender's":     {[]switchspec.Entity{member(StepKey{Key{hostAddr(1, 4), one.ID}, one.Dst}, hostAddr(3, 1), 100, 7)}, true, 0},
			"in another slot":      {[]switchspec.Entity{member(one, hostAddr(2, 1), 200, 1)}, false, 0},
			"two with one index":   {[]switchspec.Entity{member(one, hostAddr(2, 1), 100, 0)}, false, 0},
			"late in one's place":  {[]switchspec.Entity{member(one, hostAddr(3, 1), 100, 1)}, false, 0},
			"no longer waited for": {[]switchspec.Entity{switchspec.MergeGroup{Slot: 100, Members: 1, Epoch: 9, Source: one.Dst, SenderQPN: 5}}, false, 0},
			"to another QP":        {[]switchspec.Entity{switchspec.MergeGroup{Slot: 100, Members: 3, Epoch: 9, Source: one.Dst, SenderQPN: 6}}, false, 0},
		} {
			a, err := loaded([2][]byte{one.appendTo(nil), root}, [2][]byte{two.appendTo(nil), root})
			if err != nil {
				t.Fatal(err)
			}
			var have, want switchspec.State
			for slot, k := range map[uint16]StepKey{100: one, 200: two} {
				if err := have.Put(switchspec.MergeGroup{Slot: slot, Members: 3, Epoch: 9, Source: k.Dst, SenderQPN: 5},
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
			m := a.groups[one.Key].merging
			if kept := m.Slot() == 100 && epochOf(m.use) == 9 && !m.learn; kept != x.kept || len(m.members) != 2+x.late || m.current != 3 || a.slots.used[m.Slot()] != m {
				t.Errorf("%s: %+v", name, m)
			}
			if other := a.groups[two.Key].merging; other.Slot() != 200 || other.learn || len(other.members) != 2 {
				t.Errorf("%s: the other group: %+v", name, other)
			}
			for e := range switchspec.Of[switchspec.MergeMember](&want) {
				if g := a.groups[Key{e.Dst, e.DestQP}]; g == nil || g.merging.Slot() != e.Slot {
					t.Errorf("%s: %v is wanted", name, e)
				}
			}
		}
	})
}

// TestGroupsOfOneSender: a sender has as many groups as configured, and others have theirs; a group
// that is refused, given up or removed does not count.
func TestGroupsOfOneSender(t *testing.T) {
	table, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	claim := func(sender int, id uint32) (*Group, error) {
		in := Info{Lease: time.Minute, Group: bifurcation.Group{Source: hostAddr(1, sender), ID: id, SenderQPN: id + 0x1000,
			Address: hostAddr(2, 1), Receivers: []bifurcation.Receiver{aReceiver(hostAddr(2, 1), 1)}}}
		s, err := table.Enter(t.Context(), in.StepKey())
		if err != nil {
			t.Fatal(err)
		}
		defer table.Leave(s)
		g, there, err := table.Claim(in, s, time.Now())
		if there {
			t.Fatalf("group %v is there", in.Key())
		}
		if err == nil {
			table.Confirm(g, s)
		}
		return g, err
	}
	var list []*Group
	for id := range uint32(6) {
		for sender := range 2 {
			g, err := claim(sender, id+1)
			if full := id >= 3; full != errors.Is(err, ErrLimit) || !full && err != nil {
				t.Fatalf("group %d of sender %d: %v", id, sender, err)
			}
			if sender == 0 && err == nil {
				list = append(list, g)
			}
		}
	}
	for _, g := range list {
		table.Remove(g)
		if _, err := claim(0, g.ID+10); err != nil {
			t.Errorf("after group %v was removed: %v", g.Key(), err)
		}
		if _, err := claim(0, g.ID+20); !errors.Is(err, ErrLimit) {
			t.Errorf("one more: %v", err)
		}
	}
	if n := table.Usage().Groups; n != 6 {
		t.Errorf("%d groups", n)
	}
}
