package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// maxLatency is how long everything may take on its way in the tests of faults;
// a block takes 1 ms on the wire besides.
const maxLatency = 3 * time.Millisecond

// seeds returns how many seeds a random test takes: few with the race detector,
// many in the long mode.
func seeds(n uint64) uint64 {
	switch {
	case testenv.Race:
		return n / 20
	case os.Getenv("MCRDMA_LONG") != "":
		return 20 * n
	}
	return n
}

// stride returns in which strides the exhaustive tests walk: all steps, but with
// the race detector, which has nothing to find here.
func stride(t testing.TB) int {
	if testenv.Race {
		t.Log("with the race detector, a sample only")
		return 17
	}
	return 1
}

// shaky makes everything take a random time.
func (s *simulator) shaky() *simulator {
	s.latency = func() time.Duration { return time.Duration(s.rng.Int64N(int64(maxLatency))) }
	return s
}

// checkKilled checks a group in which the given members were to die: that survivors know it
// soon, and which member it was.
func (s *simulator) checkKilled(victims ...int) {
	s.t.Helper()
	s.check()
	died := false
	for _, m := range s.members {
		died = died || m.dead
	}
	for i, m := range s.members {
		if m.dead {
			continue
		}
		if f := m.Failure(); f != nil {
			if !errors.Is(f, ErrLost) || !slices.Contains(victims, f.Suspect) {
				s.t.Fatalf("member %d: %v, when %v died", i, f, victims)
			}
		}
		// One latency for Down to reach a member, one for its message to reach all.
		if died && m.endedAt > s.killedAt+2*maxLatency {
			s.t.Fatalf("member %d ended %v after the death", i, m.endedAt-s.killedAt)
		}
	}
}

// smallGroups calls f for the configurations of small groups.
func smallGroups(f func(name string, cfg Config, n int)) {
	for n := 2; n <= 6; n++ {
		for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Chain, schedule.BinomialTree, schedule.Sequential} {
			if a != schedule.BinomialPipeline && n != 4 && n != 5 {
				continue
			}
			f(fmt.Sprintf("%v/%d", a, n), Config{Algorithm: a, BlockSize: 4, Everywhere: true}, n)
		}
	}
	f("uncounted", Config{BlockSize: 4}, 5)
	f("small", Config{BlockSize: 4, SmallMax: 9, Everywhere: true}, 4)
	f("hybrid", Config{Algorithm: schedule.Hybrid, BlockSize: 4, Racks: []int{0, 1, 0, 2, 1, 1}, Everywhere: true}, 6)
}

// Any one member dies at any step of itself or of another, from before the
// greetings until after the end.
func TestKilledAtAnyStep(t *testing.T) {
	smallGroups(func(name string, cfg Config, n int) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			by := stride(t)
			for script, sizes := range [][]int64{{}, {11}, {3, 0, 9}} {
				runs, clean := 0, 0
				for victim := range n {
					for step := 1; ; step += by {
						s := newSimulator(t, uint64(script+step), cfg, n).shaky()
						s.script, s.kill = sizes, map[int][]int{step: {victim}}
						s.run()
						if t.Failed() {
							return
						}
						s.checkKilled(victim)
						runs++
						if !s.members[victim].dead {
							break // the group had ended before
						}
						for i, m := range s.members {
							if i != victim && m.closed {
								clean++
								break
							}
						}
					}
				}
				t.Logf("messages of %v bytes: %d deaths, after %d of them a member closed cleanly", sizes, runs, clean)
			}
		})
	})
}

// Several die, in larger groups, at random.
func TestKilledAtRandom(t *testing.T) {
	for seed := range seeds(1500) {
		r := rand.New(rand.NewPCG(seed, 3))
		n := 3 + r.IntN(20)
		s := newSimulator(t, seed, Config{BlockSize: 4, Ahead: r.IntN(4), SmallMax: max(0, r.IntN(40)-20), Everywhere: seed%3 > 0}, n).shaky()
		for range r.IntN(5) {
			s.script = append(s.script, r.Int64N(60))
		}
		s.kill = map[int][]int{}
		var victims []int
		step := 1 + r.IntN(n*n*2+n*100)
		for range 1 + r.IntN(3) {
			v := r.IntN(n)
			victims = append(victims, v)
			s.kill[step] = append(s.kill[step], v)
			if r.IntN(2) == 0 {
				step += r.IntN(20)
			}
		}
		s.run()
		s.checkKilled(victims...)
	}
}

// Whatever the sizes, delays, and times that the application takes: all arrives.
func TestRandomSequences(t *testing.T) {
	for seed := range seeds(600) {
		r := rand.New(rand.NewPCG(seed, 5))
		n := 1 + r.IntN(24)
		cfg := Config{BlockSize: 1 + r.IntN(9)<<r.IntN(4), Ahead: r.IntN(4), Algorithm: schedule.Algorithm(r.IntN(4)), SmallMax: max(0, r.IntN(80)-40), Prompt: r.IntN(40), Everywhere: seed%3 > 0}
		if n > 1 && r.IntN(3) == 0 {
			cfg.Algorithm = schedule.Hybrid
			for range n {
				cfg.Racks = append(cfg.Racks, r.IntN(4))
			}
		}
		s := newSimulator(t, seed, cfg, n).shaky()
		if seed%2 == 0 {
			s.blockTime /= 100 // blocks overtake control messages
		}
		for range r.IntN(12 + r.IntN(9)/8*100) {
			s.script = append(s.script, r.Int64N(1+r.Int64N(100)))
		}
		s.provide = func(int, int64) (time.Duration, bool) {
			return time.Duration(max(0, r.Int64N(int64(4*maxLatency))-int64(maxLatency))), false
		}
		s.run()
		s.checkClean()
		for i, m := range s.members {
			if m.complete != int64(len(s.script)) {
				t.Fatalf("seed %d: member %d has %d messages", seed, i, m.complete)
			}
		}
	}
}

// All that the root sends may overtake its control messages, for as long as possible:
// nothing counts as missing because it wasn't told yet.
func TestSlowWords(t *testing.T) {
	for seed := range seeds(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := newSimulator(t, seed, Config{BlockSize: 16, SmallMax: 10, Ahead: r.IntN(4), Algorithm: schedule.Algorithm(r.IntN(3))}, 2+r.IntN(7)).shaky()
		s.blockTime /= 100
		s.words = 1 + r.IntN(10)
		for range 1 + r.IntN(20) {
			s.script = append(s.script, r.Int64N(1+r.Int64N(60)))
		}
		s.run()
		s.checkClean()
	}
}

// Sizes that don't fit an immediate value are distinguished.
func TestLargeMessages(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 8} {
		for seed := range uint64(50) {
			s := newSimulator(t, seed, Config{BlockSize: 1 << 30}, n).shaky()
			s.blockTime = time.Duration(seed) * 100 * time.Microsecond
			s.script = []int64{1<<31 - 1, 1 << 31, 7, 1<<31 + 1, 5 << 31, 1 << 32, 0, 1<<40 + 12345}
			s.run()
			s.checkClean()
		}
	}
}

// The root never puts more into a ring than there is room for, however slow the
// receiver.
func TestRingFills(t *testing.T) {
	s := newSimulator(t, 1, Config{SmallMax: 9, Everywhere: true}, 3).shaky()
	for i := range int64(300) {
		s.script = append(s.script, i%10)
	}
	most := 0
	s.provide = func(m int, _ int64) (time.Duration, bool) {
		most = max(most, len(s.members[m].slots))
		return time.Duration(m) * maxLatency, false
	}
	s.run()
	s.checkClean()
	if most < SmallSlots/2 {
		t.Errorf("%d of %d slots were used at a time", most, SmallSlots)
	}
}

// checkAllFailed checks that all members failed for one reason.
func (s *simulator) checkAllFailed(reason error, suspects ...int) {
	s.t.Helper()
	s.check()
	for i, m := range s.members {
		f := m.Failure()
		if !errors.Is(f, reason) || len(suspects) > 0 && !slices.Contains(suspects, f.Suspect) {
			s.t.Fatalf("member %d: %v; want %v of %v", i, f, reason, suspects)
		}
	}
}

func TestMismatch(t *testing.T) {
	const n = 5
	for name, adapt := range map[string]func(*Config){
		"block size": func(c *Config) { c.BlockSize = 8 },
		"algorithm":  func(c *Config) { c.Algorithm = schedule.Chain },
		"other name": func(c *Config) { c.Members[4] = "stranger" },
		"other root": func(c *Config) { c.Members[0], c.Members[1] = c.Members[1], c.Members[0] },
		"more":       func(c *Config) { c.Members = append(c.Members, "one more") },
		"small":      func(c *Config) { c.SmallMax = 8 },
		"racks":      func(c *Config) { c.Algorithm, c.Racks = schedule.Hybrid, []int{0, 0, 1, 1, 1} },
	} {
		t.Run(name, func(t *testing.T) {
			for odd := range n {
				for seed := range uint64(20) {
					s := newSimulatorOf(t, seed, Config{BlockSize: 4}, n, func(i int, c *Config) {
						c.Members = memberNames(n)
						if i == odd {
							adapt(c)
						}
					}).shaky()
					s.script = []int64{5}
					s.run()
					s.checkAllFailed(ErrMismatch)
				}
			}
		})
	}
	t.Run("self", func(t *testing.T) {
		s := newSimulatorOf(t, 1, Config{}, n, func(i int, c *Config) {
			if i == 3 {
				c.Self = 2
			}
		})
		s.run()
		s.checkAllFailed(ErrMismatch)
	})
	t.Run("racks of racks", func(t *testing.T) {
		s := newSimulatorOf(t, 1, Config{Algorithm: schedule.Hybrid}, 4, func(i int, c *Config) {
			c.Racks = []int{0, 0, 1, 1}
			if i == 3 {
				c.Racks[1] = 1
			}
		})
		s.run()
		s.checkAllFailed(ErrMismatch)
	})
}

// A member's application stops at any time.
func TestRefusedLeftBroken(t *testing.T) {
	const n = 5
	why := errors.New("cable chewed")
	for i := range n {
		if i > 0 {
			for number := range int64(3) {
				s := newSimulator(t, uint64(i), Config{BlockSize: 4}, n).shaky()
				s.script = []int64{3, 0, 20}
				s.provide = func(m int, at int64) (time.Duration, bool) { return maxLatency, m == i && at == number }
				s.run()
				s.checkAllFailed(ErrRefused, i)
			}
		}
		for step := range 100 {
			for _, stop := range []struct {
				do     func(*simMember)
				reason error
			}{
				{func(m *simMember) { m.Leave("enough") }, ErrLeft},
				{func(m *simMember) { m.Broken(why) }, ErrLost},
			} {
				s := newSimulator(t, uint64(i+step), Config{BlockSize: 4}, n).shaky()
				s.script = []int64{30, 0, 20}
				s.after(time.Duration(step)*100*time.Microsecond, i, i, 'x', stop.do)
				s.run()
				s.checkAllFailed(stop.reason, i)
			}
		}
	}
}

// A lie changes an action of a kind.
type lie struct {
	kind ActionKind
	tell func(*Action)
}

// smaller, added to the number of members, means that small messages use the ring.
const smaller = 100

func block(f func(*Action)) lie { return lie{SendBlock, f} }
func told(f func(*Action)) lie  { return lie{Tell, f} }

// Each block and each control message of one member in turn is nonsense.
func TestNonsense(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 3 + smaller, 4 + smaller} {
		small := n / smaller * 9
		n %= smaller
		for name, tamper := range map[string]lie{
			"imm":       block(func(a *Action) { a.Imm++ }),
			"large imm": block(func(a *Action) { a.Imm |= big }),
			"huge imm":  block(func(a *Action) { a.Imm = 1<<32 - 1 }),
			"longer":    block(func(a *Action) { a.Span.Len++ }),
			"number":    {PutSmall, func(a *Action) { a.Imm++ }},
			"older":     {PutSmall, func(a *Action) { a.Imm-- }},
			"large put": {PutSmall, func(a *Action) { a.Span.Len += 10 }},
			"freed":     {FreeSmall, func(a *Action) { a.Size = 33 }},
			"not freed": {FreeSmall, func(a *Action) { a.Size = 0 }},
			"nothing":   told(func(a *Action) { a.Msg = []byte{0} }),
			"cut":       told(func(a *Action) { a.Msg = a.Msg[:len(a.Msg)-1] }),
			"more":      told(func(a *Action) { a.Msg = append(slices.Clone(a.Msg), 0) }),
			"text":      told(func(a *Action) { a.Msg = []byte("GET / HTTP/1.0\r\n\r\n") }),
			"done":      told(func(a *Action) { a.Msg = (&control{kind: kindDone, number: 6}).append(nil) }),
			"count":     told(func(a *Action) { a.Msg = (&control{kind: kindCount, number: 6}).append(nil) }),
			"have":      told(func(a *Action) { a.Msg = (&control{kind: kindHave, number: 7}).append(nil) }),
			"close":     told(func(a *Action) { a.Msg = (&control{kind: kindClose, number: 0}).append(nil) }),
			"size":      told(func(a *Action) { a.Msg = (&control{kind: kindSize, value: 12}).append(nil) }),
			"blame":     told(func(a *Action) { a.Msg = (&control{kind: kindFailed, code: 3, number: int64(n)}).append(nil) }),
			"code":      told(func(a *Action) { a.Msg = (&control{kind: kindFailed, code: 77}).append(nil) }),
		} {
			t.Run(fmt.Sprintf("%s/%d/%d", name, n, small), func(t *testing.T) {
				runs, lies := 0, min(stride(t), 3)
				for liar := range n {
					for at := 0; ; at += lies {
						s := newSimulator(t, uint64(at), Config{BlockSize: 4, SmallMax: small, Everywhere: true}, n).shaky()
						s.script = []int64{11, 3, 9, 10, 0}
						count, lied := 0, false
						s.tamper = func(from, _ int, a *Action) {
							if from != liar || lied || a.Kind != tamper.kind {
								return
							}
							if lied = count == at; lied {
								tamper.tell(a)
								s.lied = true
							}
							count++
						}
						s.run()
						if !lied {
							break
						}
						runs++
						s.checkNonsense(liar)
					}
				}
				if runs == 0 && tamper.kind != FreeSmall && (tamper.kind != PutSmall || small > 0) {
					t.Error("nothing was tampered with")
				}
			})
		}
	}
}

// checkNonsense checks that one lie fails the group for all, except those, if any, that had
// learned before that it had ended well; and the suspect is the liar, or a member that it
// misled.
func (s *simulator) checkNonsense(liar int) {
	s.t.Helper()
	s.check()
	heard := 0
	for i, m := range s.members {
		f := m.Failure()
		if f == nil {
			continue
		}
		heard++
		if !errors.Is(f, ErrProtocol) && !errors.Is(f, ErrLost) {
			s.t.Fatalf("member %d: %v, when member %d lied", i, f, liar)
		}
	}
	if heard == 0 {
		s.t.Fatalf("no member has failed for what member %d said", liar)
	}
}
