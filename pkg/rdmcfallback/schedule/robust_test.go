package schedule

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestEqualLinks: 64 MB in blocks of 1 MB reach all receivers within 1.02 times the least
// possible number of steps.
func TestEqualLinks(t *testing.T) {
	const k = 64
	for _, n := range []int{2, 3, 6, 8, 13, 32, 100, 128, 512} {
		bound := float64(log2Up(n) + k - 1)
		w := network{schedule: mustNew(t, BinomialPipeline, n, k, nil)}
		took := w.run(t)
		t.Logf("%d receivers: %.2f block times, %.4f of the bound", n-1, took, took/bound)
		if took > 1.02*bound {
			t.Errorf("%d receivers: %.2f block times, more than 1.02 times the bound of %v", n-1, took, bound)
		}
	}
}

// TestOneAtATime: with more sends in flight, or more receives announced, blocks share wires, arrive
// later, and take up to twice the time. That is why the package's comment advises against it.
func TestOneAtATime(t *testing.T) {
	const k = 64
	for _, c := range []struct{ sends, recvs int }{{2, 1}, {1, 2}, {2, 2}, {4, 4}} {
		worst := 0.0
		for _, n := range []int{3, 6, 8, 13, 32, 100} {
			s := mustNew(t, BinomialPipeline, n, k, nil)
			w := network{schedule: s, sends: c.sends, recvs: c.recvs}
			took := w.run(t) / float64(s.Steps())
			if worst = max(worst, took); took < 1-soon {
				t.Errorf("n=%d, %d sends and %d receives at a time: faster than the least possible", n, c.sends, c.recvs)
			}
		}
		t.Logf("%d sends and %d receives at a time: up to %.2f times as long", c.sends, c.recvs, worst)
		if worst < 1.3 {
			t.Errorf("%d sends and %d receives at a time: only %.2f times as long, so the advice is wrong", c.sends, c.recvs, worst)
		}
	}
}

// TestAsynchronous: without steps no algorithm takes longer than with them.
func TestAsynchronous(t *testing.T) {
	for _, a := range []Algorithm{Sequential, Chain, BinomialTree, BinomialPipeline, Hybrid} {
		for n := 2; n < 40; n++ {
			for _, k := range []int64{1, 2, 7, 20} {
				s := mustNew(t, a, n, k, someRacks(t, a, n, uint64(n)))
				w := network{schedule: s}
				if took := w.run(t); took > float64(s.Steps())+soon {
					t.Errorf("%v, n=%d, k=%d: %v block times in %d steps", a, n, k, took, s.Steps())
				}
			}
		}
	}
}

// TestSlowLink: with one link of 64 nodes at half its speed, whichever it is,
// the pipeline keeps lT'/(T+(l-1)T') of its bandwidth, "85.6 %" (DSN §4.5, item
// 2; it is 6/7), while a chain keeps half. A whole message can't do better than
// its number of steps allows, in which a link is used once in l, rounded up.
func TestSlowLink(t *testing.T) {
	const n, l, paper = 64, 6, 0.856
	slow := func(a, b int) func(from, to int) float64 {
		return func(from, to int) float64 {
			if from == a && to == b || from == b && to == a {
				return 0.5
			}
			return 1
		}
	}
	for _, k := range []int64{61, 64, 67, 600} {
		s := mustNew(t, BinomialPipeline, n, k, nil)
		uses := (s.Steps() + l - 1) / l
		want := min(paper, float64(s.Steps())/float64(s.Steps()+uses)) - soon
		worst, sum, links := 1.0, 0.0, 0.0
		for a := range n {
			for d := range l {
				if b := a ^ 1<<d; a < b && (k < 100 || a%7 == 0) {
					w := network{schedule: s, speed: slow(a, b)}
					kept := float64(s.Steps()) / w.run(t)
					worst, sum, links = min(worst, kept), sum+kept, links+1
				}
			}
		}
		t.Logf("%d blocks: %.2f %% of the bandwidth with the worst link at half speed, %.2f %% on average", k, 100*worst, 100*sum/links)
		if worst < want {
			t.Errorf("%d blocks: %.2f %% of the bandwidth with the worst link at half speed, less than %.2f %%", k, 100*worst, 100*want)
		}
	}
	// In steady state: 60 blocks more.
	for a := range n {
		for d := range l {
			b := a ^ 1<<d
			if a > b || a%5 != 0 {
				continue
			}
			long := network{schedule: mustNew(t, BinomialPipeline, n, 180, nil), speed: slow(a, b)}
			short := network{schedule: mustNew(t, BinomialPipeline, n, 120, nil), speed: slow(a, b)}
			if kept := 60 / (long.run(t) - short.run(t)); kept < paper {
				t.Errorf("with link %d-%d at half speed %.2f %% of the bandwidth remain, less than %v %%", a, b, 100*kept, 100*paper)
			}
		}
	}
	c := mustNew(t, Chain, n, 600, nil)
	w := network{schedule: c, speed: slow(20, 21)}
	if kept := float64(c.Steps()) / w.run(t); kept > 0.6 {
		t.Errorf("the chain keeps %.2f %%: the simulation doesn't slow links down", 100*kept)
	}
}

// TestDelayedNode: a node that does nothing for some time delays the end by no
// more than that (DSN §4.5, item 1).
func TestDelayedNode(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	most, sum := 0.0, 0.0
	for _, n := range []int{2, 3, 8, 13, 31, 64} {
		s := mustNew(t, BinomialPipeline, n, 32, nil)
		base := (&network{schedule: s}).run(t)
		for i := range 100 {
			pause := network{
				schedule:  s,
				pauseNode: random.IntN(n),
				pauseAt:   random.Float64() * base,
				pauseFor:  math.Exp(random.Float64()*6 - 3),
			}
			if i%2 == 0 { // just when a block has come
				pause.pauseAt = math.Floor(pause.pauseAt)
			}
			late := pause.run(t) - base
			if late > pause.pauseFor+soon {
				t.Errorf("n=%d: node %d pauses for %.3f block times at %.3f, and the end is %.3f late", n, pause.pauseNode, pause.pauseFor, pause.pauseAt, late)
			}
			most, sum = max(most, late/pause.pauseFor), sum+late/pause.pauseFor/600
		}
	}
	t.Logf("the end is late by %.2f of the pause on average, and by %.2f at most", sum, most)
	if most < 0.99 {
		t.Error("no pause delayed the end by all its length: the simulation doesn't pause")
	}
}

// TestOversubscribed: where racks share a slow wire, the hybrid algorithm is
// faster than the pipeline, the more so if nodes are numbered without regard to
// racks, and what leaves a rack is one block at a time.
func TestOversubscribed(t *testing.T) {
	const k = 64
	random := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		racks, size int
		uplink      float64 // in links
		gain        float64 // at least, over the pipeline
	}{
		{8, 8, 8, 0.5}, // nothing is gained where uplinks carry all: leaders send twice
		{8, 8, 4, 0.75},
		{8, 8, 2, 1.25},
		{8, 8, 1, 2.2},
		{8, 8, 0.5, 2.8},
		{4, 16, 1, 3},
		{3, 10, 1, 3},
	} {
		order := make([]int, c.racks*c.size)
		for i := range order {
			order[i] = i / c.size
		}
		var took [2][2]float64 // by order and algorithm
		for i, shuffled := range []bool{false, true} {
			if shuffled {
				random.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
			}
			r, err := RacksOf(order)
			if err != nil {
				t.Fatal(err)
			}
			hybrid := network{schedule: mustNew(t, Hybrid, r.Nodes(), k, r), racks: r, uplink: c.uplink}
			pipeline := network{schedule: mustNew(t, BinomialPipeline, r.Nodes(), k, nil), racks: r, uplink: c.uplink}
			took[i] = [2]float64{hybrid.run(t), pipeline.run(t)}
		}
		t.Logf("%d racks of %d, uplinks of %.1f links: hybrid %.0f block times, pipeline %.0f, gain %.2f; numbered in any order %.0f and %.0f, gain %.2f",
			c.racks, c.size, c.uplink, took[0][0], took[0][1], took[0][1]/took[0][0], took[1][0], took[1][1], took[1][1]/took[1][0])
		if took[0][1] < c.gain*took[0][0] || took[1][1] < c.gain*took[1][0] {
			t.Errorf("%d racks of %d, uplinks of %.1f links: the gain is less than %.2f", c.racks, c.size, c.uplink, c.gain)
		}
		if took[0][0] != took[1][0] {
			t.Errorf("%d racks of %d: the hybrid algorithm depends on the order of nodes", c.racks, c.size)
		}
	}
}
