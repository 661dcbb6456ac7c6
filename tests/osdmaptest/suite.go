package osdmaptest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// Host returns a host's record that is valid.
func Host(id core.ID) osdmap.Host {
	return osdmap.Host{ID: id, Name: fmt.Sprintf("h%d", id), Peer: fmt.Sprintf("10.1.0.1%d:9570", id), NBD: fmt.Sprintf("10.1.0.1%d:10809", id), Device: fmt.Sprintf("10.1.0.1%d", id)}
}

// Volume returns a volume on hosts 1 to 3 that is valid.
func Volume(id uint64, name string) osdmap.Volume {
	return osdmap.Volume{ID: id, Name: name, Size: 1 << 30, BlockSize: 4096, Hosts: []core.ID{1, 2, 3}, Created: time.Unix(1e9, 0).UTC()}
}

// Next returns the map that follows another, with a primary and acting members, in incarnation 1.
func Next(m core.Map, primary core.ID, acting ...core.ID) core.Map {
	next := core.Map{Epoch: m.Epoch + 1, Since: m.Epoch + 1, Primary: core.Member{ID: primary, Incarnation: 1}, MinSize: m.MinSize, Up: m.Up}
	for _, id := range acting {
		next.Acting = append(next.Acting, core.Member{ID: id, Incarnation: 1})
	}
	return next
}

// must fails the test when a call fails.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func want(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v; want %v", err, kind)
	}
	for _, w := range words {
		if err != nil && !strings.Contains(err.Error(), w) {
			t.Errorf("error %v does not say %q", err, w)
		}
	}
}

// Run checks what every store has to do; open returns one that is empty.
func Run(t *testing.T, open func(t *testing.T) osdmap.KV) {
	for name, f := range map[string]func(*testing.T, osdmap.KV){
		"hosts": hosts, "volumes": volumes, "allow": allow, "propose": propose, "change": change, "race": race, "lost answer": lostAnswer,
		"watch": watch, "foreign": foreign,
	} {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

func hosts(t *testing.T, kv osdmap.KV) {
	m, ctx := osdmap.New(kv, osdmap.Options{}), t.Context()
	one := Host(1)
	want(t, m.PutHost(ctx, one), nil)
	want(t, m.PutHost(ctx, one), nil)
	one.NBD = "10.1.0.11:10810"
	want(t, m.PutHost(ctx, one), nil)
	want(t, m.PutHost(ctx, Host(2)), nil)
	other := Host(1)
	other.Name = "other"
	want(t, m.PutHost(ctx, other), osdmap.ErrExists, "h1", "number 1")
	other = Host(3)
	other.Name = "h2"
	want(t, m.PutHost(ctx, other), osdmap.ErrExists, "h2", "number 2")
	other.Name = "a/b"
	want(t, m.PutHost(ctx, other), osdmap.ErrInvalid)
	s := must[osdmap.State](t)(m.Read(ctx))
	if got, want := s.Hosts, []osdmap.Host{one, Host(2)}; !reflect.DeepEqual(got, want) || len(s.Faults) > 0 {
		t.Errorf("%+v, want %+v; %v", got, want, s.Faults)
	}
}

func volumes(t *testing.T, kv osdmap.KV) {
	m, ctx := osdmap.New(kv, osdmap.Options{}), t.Context()
	a, b := Volume(7, "a"), Volume(8, "b")
	first := osdmap.FirstMap(a, 2)
	want(t, m.Create(ctx, a, first), nil)
	want(t, m.Create(ctx, a, first), nil)
	want(t, m.Create(ctx, b, first), nil)
	must[core.Map](t)(m.Propose(ctx, 7, Next(first, 1, 1, 2)))
	want(t, m.Create(ctx, a, first), nil) // again, late
	want(t, m.Create(ctx, Volume(9, "a"), first), osdmap.ErrExists, `a`)
	want(t, m.Create(ctx, Volume(7, "c"), first), osdmap.ErrExists)
	want(t, m.Create(ctx, Volume(9, "../x"), first), osdmap.ErrInvalid)
	odd := Volume(9, "odd")
	odd.Size--
	want(t, m.Create(ctx, odd, first), osdmap.ErrInvalid, "4096")
	s := must[osdmap.State](t)(m.Read(ctx))
	if len(s.Volumes) != 2 || !reflect.DeepEqual(s.Volume(8), &osdmap.VolumeState{Volume: b, Map: first}) || s.Volume(7).Map.Epoch != 2 || s.Volume(9) != nil {
		t.Errorf("%+v", s)
	}
	want(t, m.Delete(ctx, 7), nil)
	want(t, m.Delete(ctx, 7), nil)
	_, err := m.Map(ctx, 7)
	want(t, err, osdmap.ErrNotFound)
	_, err = m.Propose(ctx, 7, Next(first, 1, 1, 2))
	want(t, err, osdmap.ErrNotFound)
	want(t, m.Create(ctx, Volume(9, "a"), first), nil)
}

// allow: the list of clients changes beside the map, and each is kept when the other is written. A record with a list has the
// format that older programs refuse, and one without it the format that they read.
func allow(t *testing.T, kv osdmap.KV) {
	m, ctx := osdmap.New(kv, osdmap.Options{}), t.Context()
	first := osdmap.FirstMap(Volume(7, "a"), 2)
	want(t, m.Create(ctx, Volume(7, "a"), first), nil)
	hasFormat(t, kv, "1")
	list := []string{"host:vm1", osdmap.Loopback}
	for range 2 {
		if v := must[osdmap.Volume](t)(m.Allow(ctx, 7, list)); !reflect.DeepEqual(v.Allow, list) {
			t.Errorf("%+v", v)
		}
	}
	second := must[core.Map](t)(m.Propose(ctx, 7, Next(first, 1, 1, 2)))
	hasFormat(t, kv, "2")
	s := must[osdmap.State](t)(m.Read(ctx))
	if v := s.Volume(7); v == nil || !reflect.DeepEqual(v.Volume.Allow, list) || !reflect.DeepEqual(v.Map, second) || len(s.Faults) > 0 {
		t.Errorf("%+v", s)
	}
	for _, bad := range [][]string{{"vm1"}, {"host:"}, {"host:a b"}, {"host:a", "host:a"}, {""}, make([]string, osdmap.MaxAllow+1)} {
		_, err := m.Allow(ctx, 7, bad)
		want(t, err, osdmap.ErrInvalid, "client")
	}
	_, err := m.Allow(ctx, 8, list)
	want(t, err, osdmap.ErrNotFound)
	must[osdmap.Volume](t)(m.Allow(ctx, 7, nil))
	hasFormat(t, kv, "1")
	if got := must[core.Map](t)(m.Map(ctx, 7)); !reflect.DeepEqual(got, second) {
		t.Errorf("%+v, want %+v", got, second)
	}
}

// hasFormat: the one volume that there is has a record of this format.
func hasFormat(t *testing.T, kv osdmap.KV, format string) {
	t.Helper()
	if pairs, _, err := kv.Get(t.Context(), "volumes/"); err != nil || len(pairs) != 1 || !strings.HasPrefix(string(pairs[0].Value), `{"format":`+format+`,`) {
		t.Errorf("%+v, %v; want format %s", pairs, err, format)
	}
}

// change: the operator's maps may have other hosts.
func change(t *testing.T, kv osdmap.KV) {
	m, ctx := osdmap.New(kv, osdmap.Options{}), t.Context()
	v := Volume(7, "a")
	first := osdmap.FirstMap(v, 2)
	want(t, m.Create(ctx, v, first), nil)
	second := Next(first, 1, 1, 2, 3)
	must[core.Map](t)(m.Propose(ctx, 7, second))
	third, err := second.Replaced(3, 4, core.Member{})
	want(t, err, nil)
	for range 2 { // the second time it is done already
		got := must[core.Map](t)(m.Change(ctx, 7, third))
		if s := must[osdmap.State](t)(m.Read(ctx)); !reflect.DeepEqual(got, third) || !reflect.DeepEqual(s.Volumes[0].Map, third) || !reflect.DeepEqual(s.Volumes[0].Volume.Hosts, []core.ID{1, 2, 4}) {
			t.Errorf("%+v, and %+v is there", got, s.Volumes)
		}
	}
	hasFormat(t, kv, "3")
	if got := must[core.Map](t)(m.Change(ctx, 7, second)); !reflect.DeepEqual(got, third) { // it is too late
		t.Errorf("%+v", got)
	}
	late := Next(third, 1, 1, 2, 3)
	_, err = m.Propose(ctx, 7, late)
	want(t, err, osdmap.ErrInvalid, "member 3 is not one of its hosts")
	late.Acting, late.Up = late.Acting[:2], []core.ID{1, 2, 3} // by a host that does not know
	if got := must[core.Map](t)(m.Propose(ctx, 7, late)); !reflect.DeepEqual(got.Up, third.Up) {
		t.Errorf("%+v", got)
	}
	late = Next(late, 1, 1, 2)
	late.Up = []core.ID{1, 1}
	_, err = m.Change(ctx, 7, late)
	want(t, err, osdmap.ErrInvalid, "there twice")
}

func propose(t *testing.T, kv osdmap.KV) {
	m, ctx := osdmap.New(kv, osdmap.Options{}), t.Context()
	first := osdmap.FirstMap(Volume(7, "a"), 2)
	want(t, m.Create(ctx, Volume(7, "a"), first), nil)
	second := Next(first, 1, 1, 2, 3)
	for _, c := range []struct{ propose, get core.Map }{
		{second, second},
		{second, second},
		{Next(first, 2, 2, 3), second},
		{Next(Next(second, 2, 2, 3), 3, 2, 3), second}, // an epoch is missing
		{Next(second, 2, 2, 3), Next(second, 2, 2, 3)},
		{second, Next(second, 2, 2, 3)},
	} {
		if got := must[core.Map](t)(m.Propose(ctx, 7, c.propose)); !reflect.DeepEqual(got, c.get) {
			t.Fatalf("proposing %+v gave %+v, want %+v", c.propose, got, c.get)
		}
		if got := must[core.Map](t)(m.Map(ctx, 7)); !reflect.DeepEqual(got, c.get) {
			t.Fatalf("after proposing %+v it is %+v, want %+v", c.propose, got, c.get)
		}
	}
	stranger := Next(Next(second, 2, 2, 3), 4, 4)
	_, err := m.Propose(ctx, 7, stranger)
	want(t, err, osdmap.ErrInvalid)
}

// race: of many that propose the same epoch one wins, and all learn who.
func race(t *testing.T, kv osdmap.KV) {
	ctx := t.Context()
	m := osdmap.New(kv, osdmap.Options{Timeout: time.Minute})
	at := osdmap.FirstMap(Volume(7, "a"), 1)
	want(t, m.Create(ctx, Volume(7, "a"), at), nil)
	for range 10 {
		got := make([]core.Map, 3)
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				id := core.ID(i + 1)
				var err error
				if got[i], err = m.Propose(ctx, 7, Next(at, id, id)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if t.Failed() || !reflect.DeepEqual(got[0], got[1]) || !reflect.DeepEqual(got[1], got[2]) || got[0].Epoch != at.Epoch+1 {
			t.Fatalf("after %+v: %+v", at, got)
		}
		at = got[0]
	}
}

var errLost = errors.New("the answer is lost")

// lostAnswer: a proposal that was written, and whose answer is lost, is proposed again.
func lostAnswer(t *testing.T, kv osdmap.KV) {
	ctx, lose := t.Context(), true
	lossy := osdmap.New(Faulty{kv, func(_ context.Context, call string, after bool) error {
		if lose && call == "Commit" && after {
			lose = false
			return errLost
		}
		return nil
	}}, osdmap.Options{})
	first := osdmap.FirstMap(Volume(7, "a"), 2)
	want(t, lossy.Create(ctx, Volume(7, "a"), first), osdmap.ErrAway)
	want(t, lossy.Create(ctx, Volume(7, "a"), first), nil)
	mine := Next(first, 1, 1, 2)
	lose = true
	_, err := lossy.Propose(ctx, 7, mine)
	want(t, err, osdmap.ErrAway, "is lost", "volumes go on")
	if got := must[core.Map](t)(lossy.Propose(ctx, 7, mine)); !reflect.DeepEqual(got, mine) {
		t.Fatalf("%+v, want %+v", got, mine)
	}
	// Another went on meanwhile: the lost proposal does not come back.
	yours := Next(mine, 2, 2, 3)
	must[core.Map](t)(osdmap.New(kv, osdmap.Options{}).Propose(ctx, 7, yours))
	if got := must[core.Map](t)(lossy.Propose(ctx, 7, mine)); !reflect.DeepEqual(got, yours) {
		t.Fatalf("%+v, want %+v", got, yours)
	}
	lose = true
	want(t, lossy.Delete(ctx, 7), osdmap.ErrAway)
	want(t, lossy.Delete(ctx, 7), nil)
}

// Until reads states until one is as it should be.
func Until(t *testing.T, states <-chan osdmap.State, what string, is func(osdmap.State) bool) osdmap.State {
	t.Helper()
	var last osdmap.State
	for {
		select {
		case s, ok := <-states:
			if !ok {
				t.Fatalf("the watch has ended; %s was to come after %+v", what, last)
			}
			if last = s; is(s) {
				return s
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s does not come; the last is %+v", what, last)
		}
	}
}

func watch(t *testing.T, kv osdmap.KV) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// No refresh: it has to learn of changes.
	m := osdmap.New(kv, osdmap.Options{Timeout: time.Minute, Refresh: time.Hour})
	states := m.Watch(ctx)
	Until(t, states, "nothing", func(s osdmap.State) bool { return len(s.Hosts)+len(s.Volumes) == 0 })
	want(t, m.PutHost(ctx, Host(1)), nil)
	Until(t, states, "the host", func(s osdmap.State) bool { return s.Host(1) != nil })
	at := osdmap.FirstMap(Volume(7, "a"), 1)
	want(t, m.Create(ctx, Volume(7, "a"), at), nil)
	seen := uint64(0)
	const last = 30
	go func() {
		for at.Epoch < last && ctx.Err() == nil {
			if next, err := m.Propose(ctx, 7, Next(at, 1, 1)); err == nil {
				at = next
			}
		}
	}()
	Until(t, states, "the last map", func(s osdmap.State) bool {
		if v := s.Volume(7); v != nil {
			if v.Map.Epoch < seen {
				t.Errorf("epoch %d after %d", v.Map.Epoch, seen)
			}
			seen = v.Map.Epoch
		}
		return seen == last
	})
	// Who has not read gets the newest.
	for range 3 {
		want(t, m.PutHost(ctx, Host(2)), nil)
		want(t, m.Delete(ctx, 7), nil)
	}
	Until(t, states, "what is left", func(s osdmap.State) bool { return s.Volume(7) == nil && s.Host(2) != nil })
	cancel()
	for range states {
	}
}

// foreign: a record that cannot be read is refused in words, and the others count.
func foreign(t *testing.T, kv osdmap.KV) {
	ctx, m := t.Context(), osdmap.New(kv, osdmap.Options{})
	first := osdmap.FirstMap(Volume(7, "a"), 2)
	want(t, m.Create(ctx, Volume(7, "a"), first), nil)
	for key, value := range map[string]string{
		"hosts/00000001":           `{"format":2,"host":{"id":1,"shoe_size":43}}`,
		"hosts/00000002":           `{"format":1,"host":{"id":3,"name":"h3","peer":"h:1","nbd":"h:2","device":"10.1.0.1"}}`,
		"volumes/0000000000000008": `{"format":4}`,
		"volumes/0000000000000009": "\x00\xff",
	} {
		if ok, err := kv.Commit(ctx, osdmap.Change{Key: key, Value: []byte(value)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	s := must[osdmap.State](t)(m.Read(ctx))
	if len(s.Faults) != 4 || len(s.Volumes) != 1 || len(s.Hosts) != 0 {
		t.Fatalf("%+v", s)
	}
	want(t, s.Faults[0], osdmap.ErrFormat, "hosts/00000001", "format 2", "update")
	want(t, s.Faults[1], osdmap.ErrDamaged, "hosts/00000002", "host 3")
	want(t, s.Faults[2], osdmap.ErrFormat, "volumes/0000000000000008")
	want(t, s.Faults[3], osdmap.ErrDamaged, "volumes/0000000000000009")
	want(t, m.PutHost(ctx, Host(1)), osdmap.ErrFormat)
	_, err := m.Propose(ctx, 8, Next(first, 1, 1))
	want(t, err, osdmap.ErrFormat)
	_, err = m.Map(ctx, 9)
	want(t, err, osdmap.ErrDamaged)
	want(t, m.Create(ctx, Volume(9, "c"), first), osdmap.ErrDamaged)
}
