package simnet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

func racks(t testing.TB, p Params, seed uint64) *Sim {
	t.Helper()
	topo, err := topology.Load("../lab/racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(topo, p, seed)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func hosts(t testing.TB, s *Sim, names ...string) (list []int) {
	t.Helper()
	for _, n := range names {
		h, err := s.Host(n)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, h)
	}
	return list
}

// repeat posts writes of n bytes, a few at a time, until count are complete.
func repeat(t testing.TB, e *Endpoint, n, count int) *int {
	t.Helper()
	done, posted := new(int), 0
	post := func() {
		if posted < count {
			posted++
			if err := e.Post(qp.OpWrite, n, 0); err != nil {
				t.Error(err)
			}
		}
	}
	e.Sent = func(wc *qp.WC) {
		if wc.Status != qp.StatusSuccess {
			t.Errorf("completion: %v", wc.Status)
		}
		*done++
		post()
	}
	for range 4 {
		post()
	}
	return done
}

// TestWriteTime: an idle path takes as long as its links do: each sends the whole packet before the
// next begins, and the answer comes back the same way.
func TestWriteTime(t *testing.T) {
	s := racks(t, Defaults(), 1)
	h := hosts(t, s, "h1", "h3")
	e, _ := s.Connect(h[0], h[1])
	var at time.Duration
	e.Sent = func(*qp.WC) { at = s.Now() }
	if err := e.Post(qp.OpWrite, 4096, 0); err != nil {
		t.Fatal(err)
	}
	s.Run(time.Second)
	over := s.p.Overhead()
	data, ack := 4096+28+over, 16+over // BTH and RETH; BTH and AETH
	want := 4*(500*time.Nanosecond+time.Duration(float64(data)*0.08)) + 4*(500*time.Nanosecond+time.Duration(float64(ack)*0.08))
	if at < want-10 || at > want+10 {
		t.Errorf("complete after %v, want %v", at, want)
	}
}

// TestWait: of two packets that come to a link at the same time, the second waits for the first.
func TestWait(t *testing.T) {
	s := racks(t, Defaults(), 1)
	h := hosts(t, s, "h1", "h2", "h3")
	for _, from := range h[:2] {
		e, _ := s.Connect(from, h[2])
		e.Sent = func(*qp.WC) {}
		if err := e.Post(qp.OpWrite, 4096, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.Run(time.Second)
	for _, l := range s.Links() {
		want := time.Duration(0)
		if l.From == "torA" && l.To == "spine" {
			want = time.Duration(float64(4096+28+s.p.Overhead()) * 0.08 / 2) // none for half of the bytes
		}
		if d := l.Wait() - want; d < -1 || d > 1 {
			t.Errorf("%s to %s: %v, want %v", l.From, l.To, l.Wait(), want)
		}
	}
}

// TestGroupCopies: a group's write leaves the sender once and goes over each link once, and
// completes when all have it. Loss is repaired.
func TestGroupCopies(t *testing.T) {
	for _, late := range []bool{false, true} {
		for _, loss := range []float64{0, 0.01} {
			p := Defaults()
			p.Late = late
			s := racks(t, p, 3)
			h := hosts(t, s, "h1", "h2", "h3", "h4")
			g, err := s.Group(h[0], h[1:]...)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.SetLoss("torB", "h4", loss); err != nil {
				t.Fatal(err)
			}
			done := repeat(t, g.Sender, 1<<20, 20)
			s.Run(10 * time.Second)
			if *done != 20 {
				t.Fatalf("late %v, loss %v: %d of 20 writes are complete", late, loss, *done)
			}
			for _, r := range g.Receivers {
				if st := r.Stats().Responder; st.Bytes != 20<<20 || st.Messages != 20 {
					t.Errorf("late %v, loss %v: a receiver has %+v", late, loss, st)
				}
			}
			c := s.Counts()
			if c.InFlight != 0 || c.Stray != 0 || c.Dropped != 0 {
				t.Errorf("late %v, loss %v: left over or dropped: %+v", late, loss, c)
			}
			if loss > 0 {
				if c.Lost == 0 {
					t.Error("nothing was lost")
				}
				continue
			}
			wire := uint64(20 * (1<<20 + 256*(12+p.Overhead()) + 16))
			for _, l := range s.Links() {
				want := wire
				switch [2]string{l.From, l.To} {
				case [2]string{"h1", "torA"}, [2]string{"torA", "h2"}, [2]string{"torA", "spine"}, [2]string{"spine", "torB"},
					[2]string{"torB", "h3"}, [2]string{"torB", "h4"}:
				default:
					want = 0
				}
				if l.Data != want {
					t.Errorf("%s to %s carries %d bytes of data, want %d", l.From, l.To, l.Data, want)
				}
			}
		}
	}
}

// TestSeed: the same seed gives the same run, another one another.
func TestSeed(t *testing.T) {
	run := func(seed uint64) (Counts, []Link) {
		p := Defaults()
		p.KMin, p.KMax, p.PMax = 10_000, 40_000, 0.5
		s := racks(t, p, seed)
		h := hosts(t, s, "h1", "h2", "h3", "h4")
		g, err := s.Group(h[0], h[2], h[3])
		if err != nil {
			t.Fatal(err)
		}
		e, _ := s.Connect(h[1], h[2])
		repeat(t, g.Sender, 1<<20, 10)
		repeat(t, e, 1<<20, 10)
		if err := s.SetLoss("spine", "torB", 0.002); err != nil {
			t.Fatal(err)
		}
		s.Run(time.Second)
		return s.Counts(), s.Links()
	}
	a, la := run(1)
	b, lb := run(1)
	c, _ := run(2)
	if a != b || !slices.Equal(la, lb) {
		t.Errorf("two runs of one seed differ:\n%+v\n%+v", a, b)
	}
	if a == c {
		t.Errorf("another seed changes nothing: %+v", a)
	}
	if a.Marked == 0 || a.Lost == 0 {
		t.Errorf("no marks or losses: %+v", a)
	}
}

// TestPFC: with PFC nothing is dropped where three hosts send to one; without, the buffer overflows.
func TestPFC(t *testing.T) {
	for _, on := range []bool{true, false} {
		p := Defaults()
		p.PFC, p.KMax, p.Buffer, p.Window = on, 0, 1<<20, 4096
		s := racks(t, p, 1)
		h := hosts(t, s, "h1", "h2", "h3", "h4")
		var done []*int
		for _, from := range h[1:] {
			e, _ := s.Connect(from, h[0])
			done = append(done, repeat(t, e, 4<<20, 8))
		}
		s.Run(10 * time.Second)
		for i, d := range done {
			if *d != 8 {
				t.Errorf("PFC %v: sender %d: %d of 8 writes are complete", on, i, *d)
			}
		}
		c := s.Counts()
		if on && (c.Dropped > 0 || c.Pauses == 0) || !on && c.Dropped == 0 {
			t.Errorf("PFC %v: %+v", on, c)
		}
		if c.InFlight != 0 {
			t.Errorf("PFC %v: %d packets are left", on, c.InFlight)
		}
		for i := range s.nodes {
			if s.nodes[i].used != 0 {
				t.Errorf("PFC %v: %d bytes of the buffer of %s are lost", on, s.nodes[i].used, s.nodes[i].Name)
			}
		}
	}
}

// TestOffered: equal paths share what hosts send each other, and where there is none, this is said.
func TestOffered(t *testing.T) {
	parse := func(links string) *Sim {
		topo, err := topology.Parse([]byte(`{"switches": [{"name": "a", "address": "10.255.0.1", "prefixes": ["10.1.0.0/24"]},
			{"name": "b", "address": "10.255.0.2", "prefixes": ["10.2.0.0/24"]}, {"name": "s", "address": "10.255.0.3"}, {"name": "t", "address": "10.255.0.4"}],
			"hosts": [{"name": "h", "address": "10.1.0.1"}, {"name": "i", "address": "10.2.0.1"}],
			"links": [{"a": {"node": "h"}, "b": {"node": "a", "port": 1}}, {"a": {"node": "i"}, "b": {"node": "b", "port": 1}}`+links+`]}`), "test")
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(topo, Defaults(), 1)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	demand := func(add func(from, to int, bits float64)) { add(0, 1, 8); add(1, 0, 2); add(0, 0, 99) }
	link := func(a string, p int, b string, q int) string {
		return fmt.Sprintf(`, {"a": {"node": %q, "port": %d}, "b": {"node": %q, "port": %d}}`, a, p, b, q)
	}
	s := parse(link("a", 2, "s", 1) + link("a", 3, "t", 1) + link("b", 2, "s", 2) + link("b", 3, "t", 2))
	h := hosts(t, s, "h", "i")
	got, err := s.Offered(func(add func(from, to int, bits float64)) {
		demand(func(from, to int, bits float64) { add(h[from], h[to], bits) })
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"h a": 8, "a h": 2, "i b": 2, "b i": 8, "a s": 4, "a t": 4, "s b": 4, "t b": 4, "b s": 1, "b t": 1, "s a": 1, "t a": 1}
	for i, l := range s.Links() {
		if got[i] != want[l.From+" "+l.To] {
			t.Errorf("%s to %s: %g, want %g", l.From, l.To, got[i], want[l.From+" "+l.To])
		}
	}
	if _, err := parse("").Offered(func(add func(from, to int, bits float64)) { add(h[0], h[1], 1) }); !errors.Is(err, topology.ErrUnknown) {
		t.Errorf("without a path: error %v", err)
	}
}

// TestHeap: events come in the order of time, and of their ranks, whatever else is in the heap: many that are soon, and
// many that are far away.
func TestHeap(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var q events
		var last event
		left, span := 0, int64(1)<<rng.IntN(30)
		for i := 0; i < 3000 || left > 0; i++ {
			if i < 3000 && (left == 0 || rng.IntN(5) < 3) {
				at := last.at + rng.Int64N(50)
				if rng.IntN(3) == 0 {
					at += rng.Int64N(span)
				}
				q.push(at, kind(rng.IntN(6)), rng.Int32N(1000), 0)
				left++
				continue
			}
			e := q.pop()
			left--
			if e.at < last.at {
				t.Fatalf("seed %d: %+v after %+v", seed, e, last)
			}
			if slices.ContainsFunc(q.list, func(o event) bool { return o.before(&e) }) {
				t.Fatalf("seed %d: %+v is not the first", seed, e)
			}
			last = e
		}
	}
}

func TestParams(t *testing.T) {
	topo, err := topology.Load("../lab/racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Params){
		"rate": func(p *Params) { p.HostRate = 0 }, "delay": func(p *Params) { p.FabricDelay = -1 }, "MTU": func(p *Params) { p.MTU = 1500 },
		"window": func(p *Params) { p.Window = 1 }, "timeout": func(p *Params) { p.Timeout = 32 }, "buffer": func(p *Params) { p.Buffer = 1 },
		"headroom": func(p *Params) { p.Buffer = 64 << 10 }, "ECN": func(p *Params) { p.KMin = p.KMax }, "gap": func(p *Params) { p.CNPGap = -1 },
	} {
		p := Defaults()
		change(&p)
		if _, err := New(topo, p, 1); !errors.Is(err, ErrParams) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// busy is a fabric in which a group and two connections send without end.
func busy(t testing.TB) *Sim {
	s := racks(t, Defaults(), 1)
	h := hosts(t, s, "h1", "h2", "h3", "h4")
	g, err := s.Group(h[0], h[1], h[2], h[3])
	if err != nil {
		t.Fatal(err)
	}
	a, _ := s.Connect(h[1], h[2])
	b, _ := s.Connect(h[3], h[2])
	for _, e := range []*Endpoint{g.Sender, a, b} {
		repeat(t, e, 1<<20, 1<<40)
	}
	s.Run(5 * time.Millisecond)
	return s
}

// TestNoAllocations: packets cost no allocation.
func TestNoAllocations(t *testing.T) {
	s := busy(t)
	before := s.Counts().Events
	if n := testing.AllocsPerRun(10, func() { s.Run(s.Now() + 500*time.Microsecond) }); n != 0 {
		t.Errorf("%v allocations in %d events", n, (s.Counts().Events-before)/11)
	}
}

// BenchmarkEvents is how many events, of all kinds, one processor handles.
func BenchmarkEvents(b *testing.B) {
	s := busy(b)
	before := s.Counts().Events
	b.ReportAllocs()
	start := processor()
	for b.Loop() {
		s.Run(s.Now() + 100*time.Microsecond)
	}
	b.ReportMetric(float64(s.Counts().Events-before)/(processor()-start).Seconds()/1e6, "Mevents/cpu-s")
}
