package schedule

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestChoose: what is chosen in plain cases, and that the reasons say something
// of each algorithm.
func TestChoose(t *testing.T) {
	racks := func(sizes ...int) *Racks { return sized(t, sizes...) }
	mixed, err := RacksOf([]int{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		size  int64
		nodes int
		hints Hints
		want  Algorithm
	}{
		{"small message, small group", 1000, 4, Hints{}, Sequential},
		{"small message, large group", 1000, 500, Hints{}, BinomialTree},
		{"small message, a power of two", 1000, 512, Hints{}, BinomialPipeline},
		{"large message, small group", 64 << 20, 4, Hints{}, BinomialPipeline},
		{"large message, large group", 64 << 20, 512, Hints{}, BinomialPipeline},
		{"two nodes", 64 << 20, 2, Hints{}, BinomialPipeline},
		{"racks as near as nodes", 64 << 20, 32, Hints{Racks: racks(8, 8, 8, 8)}, BinomialPipeline},
		{"racks as near as nodes, small message", 1000, 64, Hints{Racks: racks(8, 8, 8, 8, 8, 8, 8, 8)}, BinomialPipeline},
		{"uplink enough for all", 64 << 20, 32, Hints{Racks: racks(8, 8, 8, 8), Uplink: 8 * DefaultBandwidth}, BinomialPipeline},
		{"slow uplink, short message", 4 << 20, 64, Hints{Racks: racks(16, 16, 16, 16), Uplink: DefaultBandwidth}, Hybrid},
		{"slow uplink, mixed numbers", 256 << 20, 32, Hints{Racks: mixed, Uplink: DefaultBandwidth}, Hybrid},
		{"slow uplink, long message, in order", 4 << 30, 32, Hints{Racks: racks(8, 8, 8, 8), Uplink: DefaultBandwidth}, Chain},
		{"slow uplink, one rack", 64 << 20, 8, Hints{Racks: racks(8), Uplink: 1000}, BinomialPipeline},
		{"nodes each in its rack", 64 << 20, 8, Hints{Racks: racks(1, 1, 1, 1, 1, 1, 1, 1), Uplink: DefaultBandwidth}, BinomialPipeline},
	} {
		p, err := Choose(c.size, c.nodes, c.hints)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		t.Logf("%s:\n%v", c.name, p)
		if p.Algorithm != c.want {
			t.Errorf("%s: %v, want %v", c.name, p.Algorithm, c.want)
		}
		if have := (p.Blocks-1)*p.BlockSize < c.size && c.size <= p.Blocks*p.BlockSize; !have {
			t.Errorf("%s: %d blocks of %d bytes are not %d", c.name, p.Blocks, p.BlockSize, c.size)
		}
		var racks *Racks
		if p.Algorithm == Hybrid {
			racks = c.hints.Racks
		}
		if s, err := New(p.Algorithm, c.nodes, p.Blocks, racks); err != nil || s.Steps() != p.Steps {
			t.Errorf("%s: the plan's schedule: %v, %d steps", c.name, err, s.Steps())
		}
		for _, e := range p.Others {
			if e.Algorithm != Chain && e.Time < p.Time {
				t.Errorf("%s: %v takes less time", c.name, e)
			}
			if !strings.Contains(p.String(), "not "+e.Algorithm.String()) {
				t.Errorf("%s: no reason against %v", c.name, e.Algorithm)
			}
		}
	}
}

// TestChainHasToBeWorthIt: a chain that is only a little faster is not taken,
// and the reasons say so.
func TestChainHasToBeWorthIt(t *testing.T) {
	p, err := Choose(64<<20, 4, Hints{Relay: 40 * time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	if p.Algorithm != BinomialPipeline || p.Others[0].Algorithm != Chain || p.Others[0].Time >= p.Time {
		t.Fatalf("this should be a case in which the chain is faster by less than a quarter:\n%v", p)
	}
	if !strings.Contains(p.String(), "not enough faster") {
		t.Errorf("the reasons don't say why it isn't taken:\n%v", p)
	}
}

// TestEstimates compares what Choose expects with what the simulation takes, in
// random networks, and what it would choose with what would have been best.
func TestEstimates(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 9))
	const block, bandwidth = 1 << 20, 1 << 30
	const unit = float64(time.Second) * block / bandwidth
	for _, far := range []bool{false, true} {
		tooMuch, regret := 1.2, 1.05
		if far { // most blocks are in flight at once only for a part of the time
			tooMuch, regret = 2.2, 1.2
		}
		least, most, worst := math.Inf(1), 0.0, 0.0
		for range 60 {
			n := 3 + random.IntN(70)
			k := int64(1 + random.IntN(100))
			h := Hints{Bandwidth: bandwidth, PerBlock: 1, Relay: 1 + time.Duration(random.Float64()*unit/4)}
			algorithms := []Algorithm{BinomialPipeline, Chain, BinomialTree, Sequential}
			if far {
				algorithms = append(algorithms, Hybrid)
				h.Racks = racksUpTo(t, n, random)
				h.Uplink = int64((0.5 + random.Float64()*float64(n)/float64(h.Racks.Len())) * bandwidth)
			}
			first, promised, best := math.Inf(1), 0.0, math.Inf(1)
			for _, a := range algorithms {
				s := Schedule{algorithm: a, nodes: n, blocks: k}
				if a == Hybrid {
					s.racks = h.Racks
				}
				sim := network{schedule: s, relay: float64(h.Relay) / unit, racks: h.Racks, uplink: float64(h.Uplink) / bandwidth}
				took := sim.run(t)
				expected := float64(h.time(s, block)) / unit
				if expected < first {
					first, promised = expected, took
				}
				best = min(best, took)
				least, most = min(least, expected/took), max(most, expected/took)
			}
			worst = max(worst, promised/best)
		}
		t.Logf("slow uplinks %v: expected is %.2f to %.2f times what the simulation takes; the choice takes up to %.2f times the best", far, least, most, worst)
		if least < 0.9 || most > tooMuch || worst > regret {
			t.Errorf("slow uplinks %v: want 0.9 to %v, and %v", far, tooMuch, regret)
		}
	}
}

// TestEstimateOfOneBlock: leaders relay a block that has just come to them.
func TestEstimateOfOneBlock(t *testing.T) {
	const block = 1 << 20 // takes a second
	h := Hints{Bandwidth: block, PerBlock: 1, Relay: time.Second / 4}
	for _, sizes := range [][]int{{4, 4, 4, 4}, {8, 8, 8, 8, 8, 8, 8, 8}, {2, 2}, {5, 5, 5}, {7}, {1, 1, 1, 1}} {
		h.Racks = sized(t, sizes...)
		s := Schedule{algorithm: Hybrid, nodes: h.Racks.Nodes(), blocks: 1, racks: h.Racks}
		sim := network{schedule: s, relay: h.Relay.Seconds()}
		if took, expected := sim.run(t), h.time(s, block).Seconds(); expected < 0.99*took || expected > 1.1*took {
			t.Errorf("racks %v: %.2f blocks' time is expected, and it takes %.2f", sizes, expected, took)
		}
	}
}

// racksUpTo returns racks of up to 16 nodes, numbered in order or in none.
func racksUpTo(t *testing.T, n int, random *rand.Rand) *Racks {
	t.Helper()
	size := 2 + random.IntN(min(15, n-2))
	rack := make([]int, n)
	for i := range rack {
		rack[i] = i / size
	}
	if random.IntN(2) == 0 {
		random.Shuffle(n, func(i, j int) { rack[i], rack[j] = rack[j], rack[i] })
	}
	r, err := RacksOf(rack)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestChooseErrors(t *testing.T) {
	racks := sized(t, 2, 3)
	for _, c := range []struct {
		size  int64
		nodes int
		hints Hints
		want  error
	}{
		{0, 4, Hints{}, ErrSize},
		{-1, 4, Hints{}, ErrSize},
		{math.MaxInt64, 4, Hints{}, ErrSize},
		{MaxBlocks + 1, 4, Hints{MaxBlock: 1}, ErrSize},
		{MaxBlocks, 4, Hints{MaxBlock: 1}, nil},
		{math.MaxInt64, 4, Hints{MaxBlock: math.MaxInt64}, nil},
		{math.MaxInt64, MaxNodes, Hints{MaxBlock: 1 << 40, Bandwidth: 1, PerBlock: math.MaxInt64, Relay: math.MaxInt64}, nil},
		// Half of the largest block would be faster, but too many.
		{MaxBlocks * 8192, MaxNodes, Hints{MaxBlock: 8192, Bandwidth: 1e6, PerBlock: 1, Relay: 1}, nil},
		{1, 1, Hints{}, ErrNodes},
		{1, MaxNodes + 1, Hints{}, ErrNodes},
		{1, 4, Hints{Racks: racks}, ErrRacks},
		{1, 4, Hints{Bandwidth: -1}, ErrHints},
		{1, 4, Hints{PerBlock: -1}, ErrHints},
		{1, 4, Hints{Relay: -1}, ErrHints},
		{1, 4, Hints{MaxBlock: -1}, ErrHints},
		{1, 4, Hints{Uplink: -1}, ErrHints},
	} {
		p, err := Choose(c.size, c.nodes, c.hints)
		if !errors.Is(err, c.want) {
			t.Errorf("Choose(%d, %d, %+v): %v, want %v", c.size, c.nodes, c.hints, err, c.want)
		}
		if err != nil {
			continue
		}
		for _, e := range append(p.Others, p.Estimate) {
			if e.Blocks < 1 || e.Blocks > MaxBlocks || e.Time < 0 {
				t.Errorf("Choose(%d, %d, %+v): %v", c.size, c.nodes, c.hints, e)
			}
		}
	}
}

// FuzzArguments: no arguments make anything panic or hang, and what New accepts
// gives transfers in range.
func FuzzArguments(f *testing.F) {
	f.Add(uint8(0), 13, int64(5), int64(3), 2, int64(64<<20))
	f.Add(uint8(4), MaxNodes, int64(MaxBlocks), int64(math.MaxInt64), 77, int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, a uint8, nodes int, blocks, step int64, i int, size int64) {
		var racks *Racks
		if Algorithm(a) == Hybrid && nodes > 1 && nodes < 1000 {
			racks = someRacks(t, Hybrid, nodes, uint64(blocks))
		}
		if s, err := New(Algorithm(a), nodes, blocks, racks); err == nil {
			if n, err := s.Node(i); err == nil {
				for _, get := range []func(int64) (Transfer, bool){n.Send, n.Recv, n.NextSend, n.NextRecv} {
					x, ok := get(step)
					if ok && (x.Step < 0 || x.Step >= s.Steps() || x.Block < 0 || x.Block >= blocks || x.Peer < 0 || x.Peer >= nodes || x.Peer == i) {
						t.Errorf("%v, n=%d, k=%d: %+v", s.Algorithm(), nodes, blocks, x)
					}
				}
			}
		}
		if p, err := Choose(size, nodes, Hints{MaxBlock: blocks, Racks: racks, Uplink: step}); err == nil && (p.Blocks < 1 || p.Time < 0) {
			t.Errorf("%v", p)
		}
	})
}
