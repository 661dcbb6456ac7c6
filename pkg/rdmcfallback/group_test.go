package rdmcfallback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// limited returns a context within which everything here must end.
func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func names(n int) []string {
	var s []string
	for i := range n {
		s = append(s, "host-"+strconv.Itoa(i))
	}
	return s
}

// A member is one of a group under test, with what it received.
type member struct {
	*Group
	err      error // of Join
	mu       sync.Mutex
	messages [][]byte
}

func (m *member) received() [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.messages)
}

// join makes a group over the transports. adapt may change each member's
// configuration.
func join(t testing.TB, cfg Config, transports []Transport, adapt func(i int, c *Config)) []*member {
	t.Helper()
	ctx := limited(t)
	members := make([]*member, len(transports))
	var wg sync.WaitGroup
	for i := range members {
		m := &member{}
		members[i] = m
		c := cfg
		if c.Members == nil {
			c.Members = names(len(transports))
		}
		c.Self = i
		c.Complete = func(msg []byte) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.messages = append(m.messages, msg)
		}
		if adapt != nil {
			adapt(i, &c)
		}
		wg.Go(func() { m.Group, m.err = Join(ctx, c, transports[i]) })
	}
	wg.Wait()
	return members
}

// closeAll closes all members at once and returns what each says.
func closeAll(ctx context.Context, members []*member) []error {
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		if m.Group != nil {
			wg.Go(func() { errs[i] = m.Close(ctx) })
		}
	}
	wg.Wait()
	return errs
}

func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestMessagesArrive(t *testing.T) {
	type groupCase struct {
		cfg Config
		n   int
	}
	var cases []groupCase
	for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Sequential, schedule.Chain, schedule.BinomialTree} {
		for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 33} {
			cases = append(cases, groupCase{Config{Algorithm: a, BlockSize: 512}, n})
		}
	}
	for _, racks := range [][]int{{0, 0}, {0, 1}, {0, 1, 0, 1, 0, 1, 2}, {0, 0, 0, 1, 1, 1, 1, 2}, {5, 4, 3, 2, 1}} {
		cases = append(cases, groupCase{Config{Algorithm: schedule.Hybrid, Racks: racks, BlockSize: 512}, len(racks)})
	}
	for _, c := range cases {
		c.cfg.SmallMax = -1
		cases = append(cases, c)
		c.cfg.SmallMax = 300
		cases = append(cases, c)
	}
	for i, c := range cases {
		t.Run(fmt.Sprintf("%v/%d/%d", c.cfg.Algorithm, c.n, i), func(t *testing.T) {
			t.Parallel()
			ctx := limited(t)
			r := rand.New(rand.NewPCG(uint64(i), 1))
			members := join(t, c.cfg, Pipe(c.n), nil)
			var want [][]byte
			for j := range 100 {
				size := r.IntN(8000)
				if i%2 == 0 {
					size = r.IntN(600)
				}
				if j%3 == 0 {
					size = []int{0, 1, 2, 511, 512, 513, 1024, 1025}[r.IntN(8)]
				}
				want = append(want, random(r, size))
				if err := members[0].Send(ctx, want[j]); err != nil {
					t.Fatal(err)
				}
			}
			for j, err := range closeAll(ctx, members) {
				if err != nil {
					t.Errorf("member %d: %v", j, err)
				}
			}
			for j, m := range members {
				if !slices.EqualFunc(m.received(), want, bytes.Equal) {
					t.Errorf("member %d has other messages than the root", j)
				}
			}
			if err := members[0].Send(ctx, nil); !errors.Is(err, ErrClosed) {
				t.Errorf("Send after Close: %v", err)
			}
		})
	}
}

// The root learns when all members have a message, without closing the group.
func TestEverywhere(t *testing.T) {
	for _, n := range []int{1, 2, 3, 6, 8} {
		for _, small := range []int{-1, 300} {
			t.Run(fmt.Sprint(n, small), func(t *testing.T) {
				ctx := limited(t)
				everywhere := make(chan int64, 100)
				complete := make([]atomic.Int64, n)
				members := join(t, Config{BlockSize: 512, SmallMax: small}, Pipe(n), func(i int, c *Config) {
					c.Complete = func([]byte) { complete[i].Add(1) }
					c.Everywhere = func(count int64) {
						for j := range complete {
							if got := complete[j].Load(); i != 0 || got < count {
								t.Errorf("member %d was told that %d messages are everywhere; member %d has %d", i, count, j, got)
							}
						}
						everywhere <- count
					}
				})
				sent, known := int64(0), int64(0)
				for _, batch := range []int{1, 1, 5, 1, 9} {
					for i := range batch {
						sent++
						if err := members[0].Send(ctx, make([]byte, 200+100*i)); err != nil {
							t.Fatal(err)
						}
					}
					for known < sent {
						select {
						case count := <-everywhere:
							if count <= known || count > sent {
								t.Fatalf("%d messages are everywhere, after %d, of %d", count, known, sent)
							}
							known = count
						case <-ctx.Done():
							t.Fatalf("%d of %d messages are everywhere", known, sent)
						}
					}
				}
				for i, err := range closeAll(ctx, members) {
					if err != nil {
						t.Errorf("member %d: %v", i, err)
					}
				}
			})
		}
	}
}

// A small message is complete before the next one comes in, however it goes: what
// comes in can be judged by it.
func TestSmallFirst(t *testing.T) {
	for _, c := range []struct {
		n    int
		ring bool
	}{{2, true}, {5, true}, {17, true}, {5, false}, {18, true}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			transports := Pipe(c.n)
			if !c.ring {
				for i := range transports {
					transports[i] = struct{ Transport }{transports[i]}
				}
			}
			const header = 40
			ctx := limited(t)
			members := join(t, Config{BlockSize: 64, SmallMax: header}, transports, func(i int, cfg *Config) {
				var last []byte
				cfg.Complete = func(msg []byte) { last = msg }
				cfg.Incoming = func(size int64) ([]byte, error) {
					switch {
					case size == header:
					case len(last) != header || int64(last[0])*100 != size:
						return nil, fmt.Errorf("%d bytes come in after %d", size, len(last))
					}
					return make([]byte, size), nil
				}
			})
			for i := range 100 {
				kind := byte(1 + i%7)
				err := errors.Join(members[0].Send(ctx, bytes.Repeat([]byte{kind}, header)), members[0].Send(ctx, make([]byte, 100*int(kind))))
				if err != nil {
					t.Fatal(err)
				}
			}
			for i, err := range closeAll(ctx, members) {
				if err != nil {
					t.Errorf("member %d: %v", i, err)
				}
			}
		})
	}
}

// The ring is for groups of 2 to 17 members whose transport has one.
func TestRingOf(t *testing.T) {
	for n, want := range map[int]int{1: 0, 2: 5, 17: 5, 18: 0} {
		for _, small := range []int{0, 5} {
			p := Pipe(n)
			if _, got := ringOf(&Config{Members: names(n), SmallMax: small}, p[0]); got != min(want, small) {
				t.Errorf("%d members: small messages of up to %d bytes go by the ring, not %d", n, got, want)
			}
			if ring, got := ringOf(&Config{Members: names(n), SmallMax: small}, struct{ Transport }{p[0]}); ring != nil || got != 0 {
				t.Errorf("a transport without a ring has one for up to %d bytes", got)
			}
		}
	}
}

// A suited transport has Defaults.
type suited struct{ Transport }

func (suited) Defaults() (blockSize, ahead int) { return 4096, 3 }

// TestDefaults: a transport's defaults are used where a Config has no value.
func TestDefaults(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		block, ahead         int // of the Config
		suited               bool
		wantBlock, wantAhead int
	}{
		{"none", 0, 0, false, 1 << 20, 0},
		{"the transport's", 0, 0, true, 4096, 3},
		{"the caller's", 64, 1, true, 64, 1},
		{"the caller wants none", 0, -1, true, 4096, 0},
		{"the caller wants none, and there are none", 0, -1, false, 1 << 20, 0},
	} {
		ts := Pipe(2)
		if tt.suited {
			ts[0], ts[1] = suited{ts[0]}, suited{ts[1]}
		}
		members := join(t, Config{BlockSize: tt.block, Ahead: tt.ahead}, ts, nil)
		if err := members[0].err; err != nil {
			t.Fatal(err)
		}
		if g := members[0].Group; g.engine.BlockSize() != tt.wantBlock || g.cfg.Ahead != tt.wantAhead {
			t.Errorf("%s: blocks of %d, %d ahead; want %d and %d", tt.name, g.engine.BlockSize(), g.cfg.Ahead, tt.wantBlock, tt.wantAhead)
		}
		if err := errors.Join(closeAll(limited(t), members)...); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
