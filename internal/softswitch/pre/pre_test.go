package pre

import (
	"errors"
	"iter"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// all goes through a table in ascending order.
func (t *table) all() iter.Seq2[uint32, *Session] {
	return func(yield func(uint32, *Session) bool) {
		for id, s := range t.list {
			if s != nil && !yield(uint32(id), s) {
				return
			}
		}
	}
}

func r(port, instance uint16) Replica { return Replica{port, instance} }

// TestRefusals: each fault has its own error, and changes nothing.
func TestRefusals(t *testing.T) {
	e := New(Limits{Groups: 2, Replicas: 5, Sessions: 1})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(e.InsertGroup(1, []Replica{r(1, 1), r(2, 1), r(1, 2)}))
	must(e.InsertSession(1, Session{Replicas: []Replica{r(3, 0)}}))
	groups, sessions := maps.Collect(e.groups.all()), maps.Collect(e.sessions.all())
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"group 0":             {e.InsertGroup(0, nil), ErrInvalid},
		"modify group 0":      {e.ModifyGroup(0, nil), ErrInvalid},
		"delete group 0":      {e.DeleteGroup(0), ErrInvalid},
		"group 65536":         {e.InsertGroup(65536, nil), ErrInvalid},
		"port 512":            {e.InsertGroup(2, []Replica{r(512, 0)}), ErrInvalid},
		"duplicate":           {e.InsertGroup(2, []Replica{r(5, 1), r(6, 1), r(5, 1)}), ErrInvalid},
		"modify to duplicate": {e.ModifyGroup(1, []Replica{r(5, 1), r(5, 1)}), ErrInvalid},
		"exists":              {e.InsertGroup(1, nil), ErrExists},
		"modify none":         {e.ModifyGroup(2, nil), ErrNotFound},
		"delete none":         {e.DeleteGroup(2), ErrNotFound},
		"replicas full":       {e.InsertGroup(2, []Replica{r(1, 1), r(2, 1), r(3, 1)}), ErrFull},
		"modify past full":    {e.ModifyGroup(1, []Replica{r(1, 1), r(2, 1), r(3, 1), r(4, 1), r(5, 1), r(6, 1)}), ErrFull},
		"session 0":           {e.InsertSession(0, Session{}), ErrInvalid},
		"session 32768":       {e.InsertSession(32768, Session{}), ErrInvalid},
		"session port":        {e.InsertSession(2, Session{Replicas: []Replica{r(512, 0)}}), ErrInvalid},
		"session duplicate":   {e.ModifySession(1, Session{Replicas: []Replica{r(1, 0), r(1, 0)}}), ErrInvalid},
		"session length":      {e.ModifySession(1, Session{PacketLength: -1}), ErrInvalid},
		"session exists":      {e.InsertSession(1, Session{}), ErrExists},
		"session modify none": {e.ModifySession(2, Session{}), ErrNotFound},
		"session delete none": {e.DeleteSession(2), ErrNotFound},
		"sessions full":       {e.InsertSession(2, Session{}), ErrFull},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	if d := cmp.Diff(groups, maps.Collect(e.groups.all())); d != "" {
		t.Error("a refusal changed groups:", d)
	}
	if d := cmp.Diff(sessions, maps.Collect(e.sessions.all())); d != "" {
		t.Error("a refusal changed sessions:", d)
	}
	must(e.InsertGroup(2, nil))
	if err := e.InsertGroup(3, nil); !errors.Is(err, ErrFull) {
		t.Errorf("third group: %v, want ErrFull", err)
	}
	if g := e.Group(2); g == nil || len(g) != 0 {
		t.Errorf("an empty group is %#v", g)
	}
	if e.Group(3) != nil || e.Group(0) != nil || e.Session(2) != nil || e.Session(65535) != nil {
		t.Error("there is something that was never inserted")
	}
}

// TestNothingShared: the engine does not keep its caller's slices, and what it
// handed out stays as it was.
func TestNothingShared(t *testing.T) {
	e := New(Limits{})
	in := []Replica{r(1, 1), r(2, 2)}
	if err := errors.Join(e.InsertGroup(9, in), e.InsertSession(9, Session{Replicas: in, PacketLength: 64})); err != nil {
		t.Fatal(err)
	}
	in[0] = r(7, 7)
	g, s := e.Group(9), e.Session(9)
	if err := errors.Join(e.ModifyGroup(9, []Replica{r(3, 3)}), e.DeleteSession(9)); err != nil {
		t.Fatal(err)
	}
	want := []Replica{r(1, 1), r(2, 2)}
	if !slices.Equal(g, want) || !slices.Equal(s.Replicas, want) || s.PacketLength != 64 {
		t.Errorf("group %v, session %v", g, s)
	}
	if !slices.Equal(e.Group(9), []Replica{r(3, 3)}) || e.Session(9) != nil {
		t.Error("the changes were not made")
	}
}

// TestModel compares an engine with maps under random operations.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 12
		e := New(Limits{Groups: 3, Replicas: limit})
		model := map[uint32][]Replica{}
		total := func() (n int) {
			for _, g := range model {
				n += len(g)
			}
			return n
		}
		id := rapid.Uint32Range(1, 5)
		replicas := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Replica {
			return r(rapid.Uint16Range(0, 3).Draw(t, "port"), rapid.Uint16Range(0, 3).Draw(t, "instance"))
		}), 0, 8, rapid.ID)
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				id, rs := id.Draw(t, "id"), replicas.Draw(t, "replicas")
				err := e.InsertGroup(id, rs)
				switch _, ok := model[id]; {
				case ok:
					wantErr(t, err, ErrExists)
				case len(model) == 3 || total()+len(rs) > limit:
					wantErr(t, err, ErrFull)
				default:
					wantErr(t, err, nil)
					model[id] = rs
				}
			},
			"modify": func(t *rapid.T) {
				id, rs := id.Draw(t, "id"), replicas.Draw(t, "replicas")
				err := e.ModifyGroup(id, rs)
				switch old, ok := model[id]; {
				case !ok:
					wantErr(t, err, ErrNotFound)
				case total()-len(old)+len(rs) > limit:
					wantErr(t, err, ErrFull)
				default:
					wantErr(t, err, nil)
					model[id] = rs
				}
			},
			"delete": func(t *rapid.T) {
				id := id.Draw(t, "id")
				err := e.DeleteGroup(id)
				if _, ok := model[id]; !ok {
					wantErr(t, err, ErrNotFound)
					return
				}
				wantErr(t, err, nil)
				delete(model, id)
			},
			"": func(t *rapid.T) {
				var last uint32
				n := 0
				for id, g := range e.groups.all() {
					rs := g.Replicas
					if id <= last || !slices.Equal(rs, model[id]) || !slices.Equal(e.Group(uint16(id)), rs) {
						t.Fatalf("group %d: %v, want %v", id, rs, model[id])
					}
					last = id
					n++
				}
				if n != len(model) {
					t.Fatalf("%d groups, want %d", n, len(model))
				}
			},
		})
	})
}

func wantErr(t *rapid.T, got, want error) {
	if !errors.Is(got, want) || (want == nil) != (got == nil) {
		t.Fatalf("error %v, want %v", got, want)
	}
}

func TestDefaults(t *testing.T) {
	want := Limits{DefaultGroups, DefaultReplicas, DefaultSessions}
	if got := New(Limits{}).Limits(); got != want {
		t.Errorf("limits %v, want %v", got, want)
	}
	if got := New(Limits{1 << 20, 1 << 20, 1 << 20}).Limits(); got != (Limits{MaxGroup, 1 << 20, MaxSession}) {
		t.Errorf("limits %v", got)
	}
}
