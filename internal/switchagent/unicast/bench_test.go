package unicast

import (
	"net/netip"
	"testing"

	"github.com/mcrdma/mcrdma/internal/routing"
)

// large is a table with 10,000 routes of 9 to 24 bits and more, by sets of up to four
// of 16 links; the other switches are programmable, or not.
func large(tb testing.TB, programmable bool) (*Table, routing.Delta) {
	t := must(New(fanOf(16, programmable)))
	var d routing.Delta
	for i := range uint32(10000) {
		var hops []routing.NextHop
		for k := range 1 + i%4 {
			hops = append(hops, routing.NextHop{Addr: addr(30<<24 + (i/4+k*5)%16)})
		}
		d.Routes = append(d.Routes, routing.Route{Prefix: netip.PrefixFrom(addr(20<<24+i<<8), 24), Hops: routing.NewHops(hops...)})
	}
	for bits := range 33 {
		d.Routes = append(d.Routes, routing.Route{Prefix: netip.PrefixFrom(addr(128<<24), bits).Masked(), Hops: d.Routes[0].Hops})
	}
	t.Routes(d)
	if p := t.Problems(); len(p) > 0 {
		tb.Fatal(p)
	}
	return t, d
}

func fanOf(ports int, programmable bool) Config {
	cfg := fan(ports)
	for i := range cfg.Switches {
		cfg.Switches[i].Programmable = programmable
	}
	return cfg
}

func BenchmarkResolve(b *testing.B) {
	var dst []netip.Addr
	for i := range uint32(1 << 14) {
		dst = append(dst, addr(20<<24+i%10000<<8+i/10000))
	}
	for _, c := range []struct {
		name                string
		programmable, fresh bool
	}{{"programmable", true, false}, {"ahead/cached", false, false}, {"ahead/uncached", false, true}} {
		b.Run(c.name, func(b *testing.B) {
			t, _ := large(b, c.programmable)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if c.fresh && i%len(dst) == 0 {
					clear(t.cache)
				}
				if _, err := t.Resolve(dst[i%len(dst)]); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

// BenchmarkChange is a link that goes or comes, up to the first answer.
func BenchmarkChange(b *testing.B) {
	t, _ := large(b, true)
	p := t.ports[3]
	p.Hello, p.peer = true, p.PeerMAC
	b.ReportAllocs()
	up := false
	for b.Loop() {
		t.Link(3, up, p.PeerMAC)
		_, _ = t.Resolve(addr(20<<24 + 1))
		up = !up
	}
}

// BenchmarkRouteChange is one route of 10,000 that changes, up to what the switch lacks.
func BenchmarkRouteChange(b *testing.B) {
	t, d := large(b, true)
	t.Written(t.Changes())
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r := d.Routes[0]
		r.Hops = d.Routes[1+i%2].Hops
		t.Routes(routing.Delta{Routes: []routing.Route{r}})
		list := t.Changes()
		if len(list) == 0 || len(list) > 8 {
			b.Fatal(len(list))
		}
		t.Written(list)
		i++
	}
}

func BenchmarkRoutes(b *testing.B) {
	_, d := large(b, true)
	b.ReportAllocs()
	for b.Loop() {
		must(New(fan(16))).Routes(d)
	}
}

func BenchmarkAdopt(b *testing.B) {
	t, _ := large(b, true)
	s := t.Wanted()
	b.ReportAllocs()
	for b.Loop() {
		next := must(New(fan(16)))
		next.Adopt(s)
		next.compile()
	}
}
