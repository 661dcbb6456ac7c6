package routing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var equal = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmpopts.EquateEmpty()}

func hop(addr, port string) NextHop {
	h := NextHop{Port: port}
	if addr != "" {
		h.Addr = netip.MustParseAddr(addr)
	}
	return h
}

func route(prefix string, hops ...NextHop) Route {
	return Route{netip.MustParsePrefix(prefix), NewHops(hops...)}
}

func next(t *testing.T, w *Watch, want Delta) {
	t.Helper()
	got, err := w.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

// quiet fails if the watch has a change.
func quiet(t *testing.T, w *Watch) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %+v, %v, want silence", d, err)
	}
}

func TestLookup(t *testing.T) {
	var tbl Table
	a, b := hop("192.0.2.1", "1"), hop("192.0.2.2", "2")
	tbl.Apply(Delta{Routes: []Route{
		route("0.0.0.0/0", a), route("10.0.0.0/8", b, a, b), route("10.1.2.3/16"), route("10.1.2.0/24", b),
		route("::ffff:10.9.0.0/112", a), route("2001:db8::/32", hop("fe80::1", "1")),
	}})
	for dst, want := range map[string]Route{
		"203.0.113.7":     route("0.0.0.0/0", a),
		"10.7.7.7":        route("10.0.0.0/8", a, b),
		"10.1.9.9":        route("10.1.0.0/16"), // unreachable hides the default
		"10.1.2.9":        route("10.1.2.0/24", b),
		"::ffff:10.1.2.9": route("10.1.2.0/24", b),
		"10.9.1.1":        route("10.9.0.0/16", a),
		"2001:db8::5":     route("2001:db8::/32", hop("fe80::1", "1")),
	} {
		got, ok := tbl.Lookup(netip.MustParseAddr(dst))
		if diff := cmp.Diff(want, got, equal); !ok || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", dst, ok, diff)
		}
	}
	for _, dst := range []netip.Addr{{}, netip.MustParseAddr("2001:db9::1")} {
		if r, ok := tbl.Lookup(dst); ok {
			t.Errorf("%v: found %v", dst, r)
		}
	}
	tbl.Apply(Delta{Withdrawn: []netip.Prefix{netip.MustParsePrefix("10.1.2.0/24"), netip.MustParsePrefix("10.1.2.0/24")}})
	if r, _ := tbl.Lookup(netip.MustParseAddr("10.1.2.9")); r.Prefix.Bits() != 16 {
		t.Errorf("after withdrawal: %v", r)
	}
}

func TestWatch(t *testing.T) {
	var tbl Table
	a, b := hop("192.0.2.1", "1"), hop("192.0.2.2", "2")
	key := NeighborKey{a.Addr, "1"}
	w := tbl.Watch()
	next(t, w, Delta{}) // what there is, even if nothing
	quiet(t, w)

	tbl.Apply(Delta{Routes: []Route{route("10.0.0.0/8", b, a)}, Neighbors: []Neighbor{{key, MAC{2}}}})
	all := Delta{Routes: []Route{route("10.0.0.0/8", a, b)}, Neighbors: []Neighbor{{key, MAC{2}}}}
	next(t, w, all)
	late := tbl.Watch()
	next(t, late, all)
	late.Close()
	if _, err := late.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatalf("closed watch: %v", err)
	}

	tbl.Apply(all) // as it was
	quiet(t, w)
	tbl.Apply(Delta{Routes: []Route{route("10.0.0.0/8", a), route("10.2.0.0/16", a)}})
	tbl.Apply(Delta{Routes: []Route{route("10.0.0.0/8", a, b)}, Withdrawn: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}})
	quiet(t, w) // there and back again

	tbl.Replace([]Route{route("10.3.0.0/16")}, nil)
	next(t, w, Delta{Routes: []Route{route("10.3.0.0/16")}, Withdrawn: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Lost: []NeighborKey{key}})

	if err := tbl.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatalf("closed table: %v", err)
	}
}

// A watcher that fetches at any time ends up with the table.
func TestWatchFollows(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var tbl Table
		w := tbl.Watch()
		follow := map[netip.Prefix]Hops{}
		fetch := func() {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			d, err := w.Next(ctx)
			if err != nil {
				return // nothing new
			}
			for _, x := range d.Routes {
				if old, ok := follow[x.Prefix]; ok && old.Equal(x.Hops) {
					r.Fatalf("told again of %v", x)
				}
				follow[x.Prefix] = x.Hops
			}
			for _, p := range d.Withdrawn {
				if _, ok := follow[p]; !ok {
					r.Fatalf("withdrawal of %v, never heard of", p)
				}
				delete(follow, p)
			}
		}
		prefix := rapid.Custom(func(r *rapid.T) netip.Prefix {
			return netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/%d", rapid.IntRange(0, 2).Draw(r, "net"), rapid.IntRange(14, 17).Draw(r, "bits")))
		})
		hops := rapid.SliceOfN(rapid.Map(rapid.IntRange(1, 3), func(i int) NextHop { return hop("192.0.2.1", fmt.Sprint(i)) }), 0, 3)
		r.Repeat(map[string]func(*rapid.T){
			"set":      func(r *rapid.T) { tbl.Apply(Delta{Routes: []Route{{prefix.Draw(r, "p"), hops.Draw(r, "hops")}}}) },
			"withdraw": func(r *rapid.T) { tbl.Apply(Delta{Withdrawn: []netip.Prefix{prefix.Draw(r, "p")}}) },
			"replace":  func(r *rapid.T) { tbl.Replace([]Route{{prefix.Draw(r, "p"), hops.Draw(r, "hops")}}, nil) },
			"fetch":    func(*rapid.T) { fetch() },
			"": func(r *rapid.T) {
				for _, x := range tbl.Routes() {
					if got, ok := tbl.Lookup(x.Prefix.Addr()); !ok || got.Prefix.Bits() < x.Prefix.Bits() {
						r.Fatalf("lookup of %v found %v", x, got)
					}
				}
			},
		})
		fetch()
		if len(follow) != len(tbl.Routes()) {
			r.Fatalf("followed %v, is %v", follow, tbl.Routes())
		}
		for _, x := range tbl.Routes() {
			if got, ok := follow[x.Prefix]; !ok || !got.Equal(x.Hops) {
				r.Fatalf("followed %v, is %v", got, x)
			}
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	var tbl Table
	var wg sync.WaitGroup
	w := tbl.Watch()
	wg.Go(func() {
		for i := range 500 {
			tbl.Apply(Delta{Routes: []Route{route("10.0.0.0/8", hop("192.0.2.1", fmt.Sprint(i)))}})
			tbl.Lookup(netip.MustParseAddr("10.1.1.1"))
		}
	})
	for {
		d, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Routes) == 1 && d.Routes[0].Hops[0].Port == "499" {
			break
		}
	}
	wg.Wait()
}

func TestMAC(t *testing.T) {
	m, err := ParseMAC("02:00:5e:Ab:00:1f")
	if err != nil || m.String() != "02:00:5e:ab:00:1f" || !m.IsStation() {
		t.Fatal(m, err)
	}
	for _, bad := range []string{"", "02:00:5e:ab:00", "02:00:5e:ab:00:1", "02:00:5e:ab:00:1f:", "02-00-5e-ab-00-1f", "02:00:5e:ab:00:xy"} {
		if _, err := ParseMAC(bad); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	var tbl Table
	for i := range 10000 {
		tbl.Apply(Delta{Routes: []Route{{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), NewHops(hop("192.0.2.1", "1"))}}})
	}
	dst := netip.MustParseAddr("10.3.4.5")
	b.ReportAllocs()
	for b.Loop() {
		tbl.Lookup(dst)
	}
}
