package rdmcfallback_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// mismatches gives one member another configuration: all members learn it.
func mismatches(t *testing.T, connect Connect) {
	const n = 3
	for name, change := range map[string]func(c *rdmcfallback.Config){
		"block size": func(c *rdmcfallback.Config) { c.BlockSize = 8192 },
		"algorithm":  func(c *rdmcfallback.Config) { c.Algorithm = schedule.Chain },
		"racks":      func(c *rdmcfallback.Config) { c.Algorithm, c.Racks = schedule.Hybrid, []int{0, 0, 1} },
		"root":       func(c *rdmcfallback.Config) { c.Members[0], c.Members[1] = c.Members[1], c.Members[0] },
		"members":    func(c *rdmcfallback.Config) { c.Members[2] = "stranger" },
		"small":      func(c *rdmcfallback.Config) { c.SmallMax = 77 },
		"no ring":    func(c *rdmcfallback.Config) { c.SmallMax = -1 },
	} {
		for odd := range n {
			t.Run(fmt.Sprint(name, odd), func(t *testing.T) {
				members := join(t, rdmcfallback.Config{}, connect(t, n), func(i int, c *rdmcfallback.Config) {
					if i == odd {
						change(c)
					}
				})
				wantFailed(t, members, nil, rdmcfallback.ErrMismatch, nil)
			})
		}
	}
}

// refused makes one receiver offer no buffer for a message, or a short one.
func refused(t *testing.T, connect Connect) {
	full := errors.New("the disk is full")
	for name, size := range map[string]int{"small": 100, "large": 100_000} {
		for _, short := range []bool{false, true} {
			for odd := 1; odd <= 2; odd++ {
				t.Run(fmt.Sprint(name, short, odd), func(t *testing.T) {
					members := join(t, rdmcfallback.Config{BlockSize: 4096}, connect(t, 3), func(i int, c *rdmcfallback.Config) {
						count := 0
						c.Incoming = func(size int64) ([]byte, error) {
							if count++; i != odd || count < 4 {
								return make([]byte, size), nil
							}
							if short {
								return make([]byte, size-1), nil
							}
							return nil, full
						}
					})
					var sent [][]byte
					for i := range 6 {
						sent = append(sent, random(uint64(i), size))
						if err := members[0].Send(limited(t), sent[i]); err != nil && !errors.Is(err, rdmcfallback.ErrRefused) {
							t.Fatal(err)
						}
					}
					closeAll(t, members)
					wantFailed(t, members, sent, rdmcfallback.ErrRefused, []int{odd})
				})
			}
		}
	}
}

// misused makes calls that a member must not make; the group continues.
func misused(t *testing.T, connect Connect) {
	members := join(t, rdmcfallback.Config{BlockSize: 1}, connect(t, 2), nil)
	ctx := limited(t)
	if err := members[1].Send(ctx, nil); !errors.Is(err, rdmcfallback.ErrNotRoot) {
		t.Errorf("a receiver sends: %v", err)
	}
	closeAll(t, members)
	for i, m := range members {
		if m.err != nil {
			t.Errorf("member %d: %v", i, m.err)
		}
	}
	if err := members[0].Send(ctx, nil); !errors.Is(err, rdmcfallback.ErrClosed) {
		t.Errorf("the root sends after Close: %v", err)
	}
}

// A liar is the transport of a member that sends one message that differs from what its
// group wanted.
type liar struct {
	rdmcfallback.Transport
	ring rdmcfallback.Ring
	left int // calls of the kind until the lie
	kind string
	told bool
}

func (l *liar) lie(kind string) bool {
	if l.kind == kind {
		l.left--
		if l.left == 0 {
			l.told = true
			return true
		}
	}
	return false
}

func (l *liar) Send(peer int, imm uint32, block []byte) error {
	if l.lie("imm") {
		imm++
	}
	if l.lie("length") {
		block = block[:len(block)-1]
	}
	return l.Transport.Send(peer, imm, block)
}

func (l *liar) Tell(peer int, msg []byte) error {
	if l.lie("tell") {
		msg = slices.Clone(msg)
		msg[0] ^= 0x55
	}
	if l.lie("more") {
		msg = append(slices.Clone(msg), 0)
	}
	return l.Transport.Tell(peer, msg)
}

func (l *liar) OpenRing(slots, size int) error { return l.ring.OpenRing(slots, size) }

func (l *liar) PutSmall(peer int, imm uint32, msg []byte) error {
	if l.lie("number") {
		imm -= 2
	}
	return l.ring.PutSmall(peer, imm, msg)
}

func (l *liar) FreeSmall(n int) error {
	if l.lie("free") {
		return l.Transport.Tell(0, binary.BigEndian.AppendUint32(nil, 0xdeadbeef))
	}
	return l.ring.FreeSmall(n)
}

// nonsense makes one member send what it must not: all others learn it.
func nonsense(t *testing.T, connect Connect) {
	const n = 4
	for _, kind := range []string{"imm", "length", "tell", "more", "number", "free"} {
		for odd := range n {
			if kind == "number" && odd > 0 || kind == "free" && odd == 0 {
				continue // no member does that
			}
			t.Run(fmt.Sprint(kind, odd), func(t *testing.T) {
				ts := connect(t, n)
				l := &liar{Transport: ts[odd], kind: kind, left: 3}
				l.ring, _ = ts[odd].(rdmcfallback.Ring)
				ts[odd] = l
				members := join(t, rdmcfallback.Config{BlockSize: 4096}, ts, nil)
				for i := range 60 {
					if members[0].Group == nil || members[0].Send(limited(t), make([]byte, 100+i%2*50_000)) != nil {
						break
					}
				}
				closeAll(t, members)
				if !l.told {
					t.Fatal("no lie was told")
				}
				wantFailed(t, withoutMessages(members), nil, rdmcfallback.ErrProtocol, nil)
			})
		}
	}
}

// withoutMessages returns members whose messages don't matter.
func withoutMessages(members []*member) []*member {
	out := make([]*member, len(members))
	for i, m := range members {
		out[i] = &member{err: m.err}
		var f *rdmcfallback.FailedError
		if errors.As(m.err, &f) {
			g := *f
			g.Complete = 0
			out[i].err = &g
		}
	}
	return out
}

// left makes one member give up waiting.
func left(t *testing.T, connect Connect) {
	for odd := range 3 {
		members := join(t, rdmcfallback.Config{BlockSize: 4096}, connect(t, 3), func(i int, c *rdmcfallback.Config) {})
		sent := [][]byte{random(1, 100), random(2, 100_000)}
		for _, msg := range sent {
			if err := members[0].Send(limited(t), msg); err != nil {
				t.Fatal(err)
			}
		}
		if odd > 0 { // it can't have ended, because the root hasn't
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			members[odd].err = members[odd].Close(ctx)
			closeAll(t, members)
			wantFailed(t, members, sent, rdmcfallback.ErrLeft, []int{odd})
			continue
		}
		closeAll(t, members)
	}
}

// killed ends one member's transport at some moment: the others learn it soon, each has a
// prefix, and a member that ends cleanly knows that all have everything.
func killed(t *testing.T, connect Connect) {
	const n, count = 4, 40
	for victim := range n {
		for at := range 4 {
			t.Run(fmt.Sprint(victim, at), func(t *testing.T) {
				ts := connect(t, n)
				everywhere := int64(0)
				reached := make(chan struct{})
				members := join(t, rdmcfallback.Config{BlockSize: 4096}, ts, func(i int, c *rdmcfallback.Config) {
					complete, seen := c.Complete, 0
					c.Complete = func(msg []byte) {
						complete(msg)
						if seen++; i == victim && seen == 1+at*count/4 {
							close(reached)
						}
					}
					if i == 0 {
						c.Everywhere = func(k int64) { everywhere = k }
					}
				})
				var sent [][]byte
				for i := range count {
					sent = append(sent, random(uint64(i), 50+i%2*100_000))
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					select {
					case <-reached:
					case <-members[victim].Done():
						t.Errorf("the victim ended by itself: %v", members[victim].Err())
					}
					_ = ts[victim].Close()
				})
				for _, msg := range sent {
					if members[0].Send(limited(t), msg) != nil {
						break
					}
				}
				closeAll(t, members)
				wg.Wait()
				clean := false
				for i, m := range members {
					clean = clean || m.err == nil && i != victim
				}
				for i, m := range members {
					if clean && len(m.received()) != count {
						t.Errorf("a member ended cleanly, but member %d has %d of %d messages", i, len(m.received()), count)
					}
					if got := len(m.received()); int64(got) < everywhere {
						t.Errorf("every member should have %d messages, but member %d has %d", everywhere, i, got)
					}
				}
				if !clean {
					wantFailed(t, members, sent, rdmcfallback.ErrLost, []int{victim}, victim)
				}
			})
		}
	}
}

// memory measures that a group takes no more memory for a large message than a few
// blocks.
func memory(t *testing.T, connect Connect) {
	const n, block, small, large = 3, 64 << 10, 1 << 20, 64 << 20
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, large)
	}
	done := make(chan int64, 2)
	members := join(t, rdmcfallback.Config{BlockSize: block}, connect(t, n), func(i int, c *rdmcfallback.Config) {
		c.Incoming = func(size int64) ([]byte, error) { return bufs[i][:size], nil }
		c.Complete = nil
		c.Everywhere = func(k int64) { done <- k }
	})
	allocated := func(size int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := members[0].Send(limited(t), bufs[0][:size]); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
		case <-members[0].Done():
			t.Fatal(members[0].Err())
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	first := allocated(small) // makes the connections, and what is used again
	second := allocated(large)
	third := allocated(large)
	t.Logf("%d bytes allocated for a first message of %d, then %d and %d for messages of %d", first, small, second, third, large)
	if second > n*4*block || third > n*block {
		t.Errorf("for messages of %d blocks, %d and %d bytes were allocated by %d members", large/block, second, third, n)
	}
	closeAll(t, members)
	for i, m := range members {
		if m.err != nil {
			t.Errorf("member %d: %v", i, m.err)
		}
	}
}
