package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/internal/simnet/replicate"
	"github.com/mcrdma/mcrdma/internal/topology"
)

func newSim(t testing.TB, seed uint64) *simnet.Sim {
	t.Helper()
	topo, err := topology.Load("../../lab/racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := simnet.New(topo, simnet.Defaults(), seed)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func config(s *simnet.Sim, scheme replicate.Scheme) Config {
	return Config{Scheme: scheme, Block: 256 << 10, Replicas: 3, Groups: 2, Sizes: Known()[1], Load: 0.2, ReadShare: 0.5, Requests: 2000,
		Clients: s.Hosts(), Storage: s.Hosts()}
}

// TestRun: all requests are done, by each scheme, the same way with the same seed.
func TestRun(t *testing.T) {
	for _, scheme := range replicate.Schemes {
		var results [2]*Result
		for i := range results {
			s := newSim(t, 1)
			r, err := Run(s, config(s, scheme))
			if err != nil {
				t.Fatalf("%s: %v", scheme, err)
			}
			results[i] = r
		}
		r := results[0]
		if !reflect.DeepEqual(r, results[1]) {
			t.Errorf("%s: two runs of one seed differ", scheme)
		}
		if n := r.Reads.Count + r.Writes.Count; n != 1800 || r.Reads.Count < 800 || r.Writes.Count < 800 {
			t.Errorf("%s: %d reads and %d writes are counted", scheme, r.Reads.Count, r.Writes.Count)
		}
		for _, l := range []Latency{r.Reads, r.Writes} {
			if !(l.P50 <= l.P90 && l.P90 <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max && l.Mean > 0) {
				t.Errorf("%s: percentiles %+v", scheme, l)
			}
		}
		if r.Links[0].Load < r.Links[len(r.Links)-1].Load || r.Links[0].Load <= 0 || r.Links[0].Load > 1 {
			t.Errorf("%s: links' loads are from %g to %g", scheme, r.Links[0].Load, r.Links[len(r.Links)-1].Load)
		}
	}
}

// TestLoad: clients hand over and get what was asked for.
func TestLoad(t *testing.T) {
	s := newSim(t, 1)
	c := config(s, replicate.Multicast)
	c.Clients, c.Storage, c.Replicas, c.Requests = s.Hosts()[:1], s.Hosts()[1:], 2, 20_000
	r, err := Run(s, c)
	if err != nil {
		t.Fatal(err)
	}
	load := 0.0
	for _, l := range r.Links {
		if l.From == "h1" || l.To == "h1" {
			load += l.Load
		}
	}
	if load < 0.17 || load > 0.25 {
		t.Errorf("the client's links have a load of %.3f both ways, want 0.2 and headers", load)
	}
}

// TestCircle: where PFC holds links in a circle, the error says so.
func TestCircle(t *testing.T) {
	var switches, hosts, links []string
	for i := range 4 {
		switches = append(switches, fmt.Sprintf("  - {name: s%d, address: 10.255.0.%d, prefixes: [10.%d.0.0/24]}", i, i+1, i+1))
		for j := range 2 {
			hosts = append(hosts, fmt.Sprintf("  - {name: h%d%d, address: 10.%d.0.1%d}", i, j, i+1, j))
			links = append(links, fmt.Sprintf("  - {a: {node: h%d%d}, b: {node: s%d, port: %d}}", i, j, i, j+1))
		}
		links = append(links, fmt.Sprintf("  - {a: {node: s%d, port: 3}, b: {node: s%d, port: 4}}", i, (i+1)%4))
	}
	text := "switches:\n" + strings.Join(switches, "\n") + "\nhosts:\n" + strings.Join(hosts, "\n") + "\nlinks:\n" + strings.Join(links, "\n") + "\n"
	topo, err := topology.Parse([]byte(text), "ring")
	if err != nil {
		t.Fatal(err)
	}
	p := simnet.Defaults()
	p.Buffer = 400 << 10
	s, err := simnet.New(topo, p, 2)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Scheme: replicate.Fanout, Replicas: 3, Groups: 4, Sizes: Fixed(1 << 20), Load: 0.3, ReadShare: 0.5, Requests: 1000, Clients: s.Hosts(), Storage: s.Hosts()}
	if _, err := Run(s, c); err == nil || !strings.Contains(err.Error(), "PFC holds, in a circle") {
		t.Errorf("%v", err)
	}
}

// TestReadsElsewhere: a client that stores a message itself reads it from another host, by two links at least.
func TestReadsElsewhere(t *testing.T) {
	s := newSim(t, 1)
	c := config(s, replicate.Multicast)
	c.Clients, c.Storage, c.Replicas, c.ReadShare, c.Requests, c.Sizes = s.Hosts()[:1], s.Hosts()[:2], 2, 1, 50, Fixed(100)
	if r, err := Run(s, c); err != nil || r.Reads.Count != 45 || r.Reads.P50 < 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestHostsLinks: copies by switches count on the links of hosts, where a write is once on its way up and twice on that down.
func TestHostsLinks(t *testing.T) {
	for rate, fits := range map[float64]bool{25e9: false, 60e9: true} {
		s := newSim(t, 1)
		c := config(s, replicate.Multicast)
		c.Load, c.Sizes = 0.3, Fixed(64<<10)
		if err := s.SetRate("torA", "h1", rate); err != nil {
			t.Fatal(err)
		}
		if err := c.CheckFabric(s); (err == nil) != fits || err != nil && !errors.Is(err, ErrLoad) {
			t.Errorf("%g b/s: %v", rate, err)
		}
	}
}

func TestImpossible(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"load": func(c *Config) { c.Load = 0.9 }, "no load": func(c *Config) { c.Load = 0 }, "NaN": func(c *Config) { c.Load = math.NaN() },
		"replicas": func(c *Config) { c.Replicas = 5 }, "clients": func(c *Config) { c.Clients = nil }, "requests": func(c *Config) { c.Requests = 0 },
		"reads": func(c *Config) { c.ReadShare = 2 }, "sizes": func(c *Config) { c.Sizes = Sizes{} },
	} {
		s := newSim(t, 1)
		c := config(s, replicate.Fanout)
		change(&c)
		if _, err := Run(s, c); !errors.Is(err, ErrLoad) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	s := newSim(t, 1) // what both hosts of the other rack read comes by one link as fast as theirs
	c := config(s, replicate.Multicast)
	c.Clients, c.Storage, c.Replicas, c.ReadShare, c.Load = s.Hosts()[:2], s.Hosts()[2:], 2, 1, 0.6
	if err := c.CheckFabric(s); !errors.Is(err, ErrLoad) || !strings.Contains(err.Error(), "the link from spine to torA would have to carry 120 %") {
		t.Errorf("what two racks have between them: error %v", err)
	}
	if c.Load = 0.45; c.CheckFabric(s) != nil {
		t.Errorf("with 90 %%: error %v", c.CheckFabric(s))
	}
}

// TestMeans: the known distributions have the means that others have published of them, and drawing keeps them.
func TestMeans(t *testing.T) {
	want := map[string]float64{"websearch": 1.711e6, "alistorage": 40.9e3}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, s := range Known() {
		if m := s.Mean(); math.Abs(m/want[s.Name]-1) > 0.001 {
			t.Errorf("%s has a mean of %g, want %g", s.Name, m, want[s.Name])
		}
		sum := 0.0
		const n = 200_000
		for range n {
			sum += float64(s.draw(rng))
		}
		if math.Abs(sum/n/s.Mean()-1) > 0.03 {
			t.Errorf("%s: drawn messages have a mean of %g, want %g", s.Name, sum/n, s.Mean())
		}
	}
	if s := Fixed(4096); s.draw(rng) != 4096 || s.Mean() != 4096 {
		t.Errorf("fixed messages have %d bytes, with a mean of %g", s.draw(rng), s.Mean())
	}
}

func TestParseSizes(t *testing.T) {
	s, err := ParseSizes(strings.NewReader("# bytes percent\n4096 30\n\n65536 100 # the largest\n"), "own")
	if err != nil || s.Mean() != 0.3*2048+0.7*(4096+65536)/2 {
		t.Errorf("%+v, mean %g: %v", s, s.Mean(), err)
	}
	for text, want := range map[string]string{
		"": "no point", "4096 99\n": "want 100 %", "4096\n": "own:1: 1 fields", "4096 100\n1 100": "ascend", "-1 100": "bytes", "1 101": "percent", "1 NaN": "percent",
	} {
		if _, err := ParseSizes(strings.NewReader(text), "own"); !errors.Is(err, ErrSizes) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

func FuzzParseSizes(f *testing.F) {
	f.Add("4096 30\n65536 100\n")
	f.Add("0 0\n0 100\n")
	f.Add("# nothing\n\n1e3 100")
	rng := rand.New(rand.NewPCG(1, 1))
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSizes(strings.NewReader(text), "fuzz")
		if err != nil {
			if !errors.Is(err, ErrSizes) {
				t.Fatal(err)
			}
			return
		}
		if n := s.draw(rng); n < 1 || float64(n) > max(1, s.points[len(s.points)-1].bytes) || !(s.Mean() >= 0) {
			t.Fatalf("drew %d, mean %g", n, s.Mean())
		}
	})
}
