package rdmcfallback_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/rdma"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// A Connect makes the transports of n members, that are connected and closed with
// the test.
type Connect func(t testing.TB, n int) []rdmcfallback.Transport

// carriers are the transports: to the application, groups behave the same on all of them.
var carriers = map[string]Connect{
	"pipe": func(_ testing.TB, n int) []rdmcfallback.Transport { return rdmcfallback.Pipe(n) },
	"tcp": func(t testing.TB, n int) []rdmcfallback.Transport {
		return connectAll(t, n, func(ctx context.Context, o tcp.Options) (rdmcfallback.Transport, error) {
			return tcp.Connect(ctx, o)
		})
	},
	"rdma": func(t testing.TB, n int) []rdmcfallback.Transport {
		return connectAll(t, n, func(ctx context.Context, o tcp.Options) (rdmcfallback.Transport, error) {
			host, _, err := net.SplitHostPort(o.Members[o.Self])
			if err != nil {
				return nil, err
			}
			dev, err := qp.Open("softroce:" + host)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = dev.Close() })
			return rdma.Connect(ctx, rdma.Options{Options: o, Device: dev})
		})
	},
}

// connectAll connects n members, each at an address of its own, and closes them with the
// test.
func connectAll(t testing.TB, n int, connect func(context.Context, tcp.Options) (rdmcfallback.Transport, error)) []rdmcfallback.Transport {
	t.Helper()
	ls, addrs := listen(t, n)
	ctx := limited(t)
	ts, errs := make([]rdmcfallback.Transport, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { ts[i], errs[i] = connect(ctx, tcp.Options{Members: addrs, Self: i, Group: 7, Listener: ls[i]}) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, x := range ts {
			wg.Go(func() { // at once, since each waits for its peers
				if err := x.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
		}
		wg.Wait()
	})
	return ts
}

// listen returns listeners at addresses that no other test uses.
func listen(t testing.TB, n int) (ls []net.Listener, addrs []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", testenv.Loopback().String()+":0")
		if err != nil {
			t.Fatal(err)
		}
		ls, addrs = append(ls, l), append(addrs, l.Addr().String())
	}
	return ls, addrs
}

func TestGroups(t *testing.T) {
	for carrier, connect := range carriers {
		for name, test := range map[string]func(t *testing.T, connect Connect){
			"messages": messages, "mismatches": mismatches, "refused": refused, "misused": misused,
			"nonsense": nonsense, "left": left, "killed": killed,
		} {
			t.Run(carrier+"/"+name, func(t *testing.T) { test(t, connect) })
		}
	}
}

func TestGroupMemoryWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "the race detector takes memory itself")
	for carrier, connect := range carriers {
		t.Run(carrier, func(t *testing.T) { memory(t, connect) })
	}
}

// A member is one of a group, with what it received.
type member struct {
	*rdmcfallback.Group
	err      error // of Join, or of Close
	mu       sync.Mutex
	messages [][]byte
}

func (m *member) received() [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.messages)
}

func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func names(n int) []string {
	var s []string
	for i := range n {
		s = append(s, fmt.Sprint("host-", i))
	}
	return s
}

// join makes a group. adapt, if not nil, changes each member's configuration.
func join(t testing.TB, cfg rdmcfallback.Config, ts []rdmcfallback.Transport, adapt func(i int, c *rdmcfallback.Config)) []*member {
	ctx := limited(t)
	members := make([]*member, len(ts))
	var wg sync.WaitGroup
	for i := range ts {
		m := &member{}
		members[i] = m
		c := cfg
		c.Members, c.Self = names(len(ts)), i
		c.Complete = func(msg []byte) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.messages = append(m.messages, msg)
		}
		if adapt != nil {
			adapt(i, &c)
		}
		wg.Go(func() { m.Group, m.err = rdmcfallback.Join(ctx, c, ts[i]) })
	}
	wg.Wait()
	return members
}

// closeAll closes all members that have joined, at once.
func closeAll(t testing.TB, members []*member) {
	ctx := limited(t)
	var wg sync.WaitGroup
	for _, m := range members {
		if m.Group != nil {
			wg.Go(func() { m.err = m.Close(ctx) })
		}
	}
	wg.Wait()
}

// random returns n bytes, others for each seed.
func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1}).Read(b)
	return b
}

// rings are values of Config.SmallMax: with the ring, and without.
var rings = map[string]int{"ring": 0, "blocks": -1}

// messages sends messages of all kinds of sizes: all arrive, in order, and the root
// knows.
func messages(t *testing.T, connect Connect) {
	for _, n := range []int{2, 3, 5} {
		for name, small := range rings {
			t.Run(fmt.Sprint(n, name), func(t *testing.T) {
				const block = 4096
				everywhere := int64(0)
				members := join(t, rdmcfallback.Config{BlockSize: block, SmallMax: small}, connect(t, n), func(i int, c *rdmcfallback.Config) {
					if i == 0 {
						c.Everywhere = func(count int64) { everywhere = count }
					}
				})
				var sent [][]byte
				for i := range 150 {
					size := []int{0, 1, block - 1, block, block + 1, 10 << 10, 10<<10 + 1, 50*block + 7, 100, 0}[i%10]
					sent = append(sent, random(uint64(i), size))
					if err := members[0].Send(limited(t), sent[i]); err != nil {
						t.Fatal(err)
					}
				}
				closeAll(t, members)
				for i, m := range members {
					if m.err != nil {
						t.Errorf("member %d: %v", i, m.err)
					}
					if !slices.EqualFunc(m.received(), sent, bytes.Equal) {
						t.Errorf("member %d has other messages than the root", i)
					}
				}
				if everywhere != int64(len(sent)) {
					t.Errorf("the root knows that every member has %d of %d messages", everywhere, len(sent))
				}
			})
		}
	}
}

// wantFailed checks that all members but those given have failed because of reason,
// suspect one of suspects (any, if there are none), and have a prefix of what was sent.
func wantFailed(t *testing.T, members []*member, sent [][]byte, reason error, suspects []int, but ...int) {
	t.Helper()
	for i, m := range members {
		if slices.Contains(but, i) {
			continue
		}
		var f *rdmcfallback.FailedError
		if !errors.As(m.err, &f) || !errors.Is(m.err, reason) || suspects != nil && !slices.Contains(suspects, f.Suspect) {
			t.Errorf("member %d: %v; want %v by one of %v", i, m.err, reason, suspects)
			continue
		}
		got := m.received()
		if f.Complete != int64(len(got)) || len(got) > len(sent) || !slices.EqualFunc(got, sent[:len(got)], bytes.Equal) {
			t.Errorf("member %d has %d messages, or others than were sent, and says %d", i, len(got), f.Complete)
		}
	}
}
