package rdmcfallback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

func TestMismatchEverywhere(t *testing.T) {
	for name, adapt := range map[string]func(c *Config){
		"block size": func(c *Config) { c.BlockSize = 77 },
		"algorithm":  func(c *Config) { c.Algorithm = schedule.Chain },
		"members":    func(c *Config) { c.Members = slices.Clone(c.Members); c.Members[1] = "stranger" },
		"root": func(c *Config) {
			c.Members = slices.Clone(c.Members)
			c.Members[0], c.Members[1] = c.Members[1], c.Members[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			members := join(t, Config{}, Pipe(5), func(i int, c *Config) {
				if i == 2 {
					adapt(c)
				}
			})
			for i, m := range members {
				var f *FailedError
				if !errors.Is(m.err, ErrMismatch) || !errors.As(m.err, &f) {
					t.Errorf("member %d: %v", i, m.err)
				}
			}
		})
	}
}

func TestImpossibleConfig(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{Members: names(2), BlockSize: -1}, "blocks of -1 bytes"},
		{Config{Members: names(2), Self: 1}, "member 1 of 2, and the transport is that of member 0 of 2"},
		{Config{Members: names(3)}, "member 0 of 3, and the transport is that of member 0 of 2"},
	} {
		p := Pipe(2)
		if _, err := Join(limited(t), tt.cfg, p[0]); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), tt.want) {
			t.Error(err)
		}
		// The transport was closed all the same.
		if _, err := p[0].Events(limited(t), make([]Event, 1)); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := p[1].Close(); err != nil {
			t.Error(err)
		}
	}
}

// A member that comes alone waits, and leaves when told to; one that comes later learns
// that.
func TestJoinEnds(t *testing.T) {
	p := Pipe(3)
	why := errors.New("no time")
	ctx, cancel := context.WithCancelCause(limited(t))
	cancel(why)
	if _, err := Join(ctx, Config{Members: names(3)}, p[0]); !errors.Is(err, ErrLeft) || !strings.Contains(err.Error(), why.Error()) {
		t.Error(err)
	}
	if _, err := Join(limited(t), Config{Members: names(3), Self: 1}, p[1]); !errors.Is(err, ErrLeft) {
		t.Error(err)
	}
	if err := p[2].Close(); err != nil {
		t.Error(err)
	}
}

// failed checks that all live members have the same failure and a prefix of the
// messages.
func failed(t *testing.T, members []*member, errs []error, sent [][]byte, reason error, suspect int, dead ...int) {
	t.Helper()
	for i, m := range members {
		if slices.Contains(dead, i) {
			continue
		}
		var f *FailedError
		if !errors.As(errs[i], &f) || !errors.Is(f, reason) || f.Suspect != suspect || f.Name != fmt.Sprintf("host-%d", suspect) {
			t.Errorf("member %d: %v", i, errs[i])
			continue
		}
		if !errors.Is(m.Err(), errs[i]) || !errors.Is(m.Close(limited(t)), errs[i]) {
			t.Errorf("member %d says first %v, then %v", i, errs[i], m.Err())
		}
		got := m.received()
		if f.Complete != int64(len(got)) || len(got) > len(sent) || !slices.EqualFunc(got, sent[:len(got)], bytes.Equal) {
			t.Errorf("member %d has %d messages and says %d, or not those that were sent", i, len(got), f.Complete)
		}
	}
}

func TestRefused(t *testing.T) {
	for name, incoming := range map[string]func(int64) ([]byte, error){
		"error": func(int64) ([]byte, error) { return nil, errors.New("the disk is full") },
		"short": func(size int64) ([]byte, error) { return make([]byte, size-1), nil },
	} {
		for odd := range 10 {
			small := odd%2 - 1 // by the ring, or not
			odd = odd/2 + 1
			t.Run(fmt.Sprint(name, odd, small), func(t *testing.T) {
				ctx := limited(t)
				var sent [][]byte
				count := 0
				members := join(t, Config{BlockSize: 64, SmallMax: small}, Pipe(6), func(i int, c *Config) {
					if i == odd {
						c.Incoming = func(size int64) ([]byte, error) {
							if count++; count == 5 {
								return incoming(size)
							}
							return make([]byte, size), nil
						}
					}
				})
				for i := range 10 {
					sent = append(sent, bytes.Repeat([]byte{byte(i)}, 300))
					if err := members[0].Send(ctx, sent[i]); err != nil && !errors.Is(err, ErrRefused) {
						t.Fatal(err)
					}
				}
				failed(t, members, closeAll(ctx, members), sent, ErrRefused, odd)
				if err := members[0].Send(ctx, nil); !errors.Is(err, ErrRefused) {
					t.Errorf("Send to a failed group: %v", err)
				}
			})
		}
	}
}

// Without Incoming, a message isn't received into memory without bound.
func TestFresh(t *testing.T) {
	if b, err := fresh(100); err != nil || len(b) != 100 {
		t.Error(len(b), err)
	}
	if _, err := fresh(incomingMax + 1); err == nil {
		t.Error("any size is taken")
	}
}

// A process dies at some moment: its transport ends without a word.
func TestDeath(t *testing.T) {
	deaths := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		n := 2 + r.IntN(10)
		victim := r.IntN(n)
		transports := Pipe(n)
		var budget atomic.Int64
		budget.Store(int64(1 + r.IntN(400)))
		transports[victim] = &mortal{pipe: transports[victim].(*pipe), budget: &budget}
		ctx := limited(t)
		members := join(t, Config{BlockSize: 64, SmallMax: 500 * (r.IntN(3) - 1)}, transports, nil)
		var sent [][]byte
		if members[0].Group != nil {
			for range 20 {
				msg := random(r, r.IntN(2000))
				if members[0].Send(ctx, msg) != nil {
					break
				}
				sent = append(sent, msg)
			}
		}
		errs := closeAll(ctx, members)
		died := budget.Load() <= 0
		deaths += map[bool]int{true: 1}[died]
		for i, m := range members {
			err := errors.Join(m.err, errs[i])
			var f *FailedError
			switch {
			case i == victim && died:
			case err == nil:
				// It learned in time that all have everything, as its peer then must.
				if len(m.received()) != len(sent) || len(members[victim].received()) != len(sent) {
					t.Errorf("seed %d: member %d closed cleanly", seed, i)
				}
			case !errors.As(err, &f) || !errors.Is(f, ErrLost) || f.Suspect != victim:
				t.Errorf("seed %d: member %d: %v; want %d lost", seed, i, err, victim)
			}
			got := m.received()
			if len(got) > len(sent) || !slices.EqualFunc(got, sent[:len(got)], bytes.Equal) {
				t.Errorf("seed %d: member %d has other messages", seed, i)
			}
		}
	}
	if deaths < 20 {
		t.Errorf("only %d died", deaths)
	}
}

// A mortal transport ends after a number of calls.
type mortal struct {
	*pipe
	budget *atomic.Int64
}

var errDead = errors.New("dead")

func (m *mortal) live() error {
	if m.budget.Add(-1) <= 0 {
		return errors.Join(errDead, m.Close())
	}
	return nil
}

func (m *mortal) PostRecv(peer int, buf []byte) error {
	if err := m.live(); err != nil {
		return err
	}
	return m.pipe.PostRecv(peer, buf)
}

func (m *mortal) Send(peer int, imm uint32, block []byte) error {
	if err := m.live(); err != nil {
		return err
	}
	return m.pipe.Send(peer, imm, block)
}

func (m *mortal) PutSmall(peer int, imm uint32, msg []byte) error {
	if err := m.live(); err != nil {
		return err
	}
	return m.pipe.PutSmall(peer, imm, msg)
}

func (m *mortal) FreeSmall(n int) error {
	if err := m.live(); err != nil {
		return err
	}
	return m.pipe.FreeSmall(n)
}

func (m *mortal) Tell(peer int, msg []byte) error {
	if err := m.live(); err != nil {
		return err
	}
	return m.pipe.Tell(peer, msg)
}

// Close with a context that ends fails the group.
func TestCloseEnds(t *testing.T) {
	for i := range 6 {
		impatient, small := i/2, i%2-1
		ctx := limited(t)
		block := make(chan struct{})
		members := join(t, Config{SmallMax: small}, Pipe(3), func(i int, c *Config) {
			if i == 2 {
				c.Incoming = func(size int64) ([]byte, error) { <-block; return make([]byte, size), nil }
			}
		})
		msg := []byte("hello")
		if err := members[0].Send(ctx, msg); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if impatient == 2 {
			close(block) // its own loop has to go on
		}
		errs := make([]error, 3)
		errs[impatient] = members[impatient].Close(ended)
		if impatient != 2 {
			close(block)
		}
		for i, m := range members {
			if i != impatient {
				errs[i] = m.Close(ctx)
			}
		}
		if impatient == 2 && errs[2] == nil {
			t.Error("member 2 can't have all before the root closes")
		}
		failed(t, members, errs, [][]byte{msg}, ErrLeft, impatient)
	}
}

// Send waits when many messages are incomplete, and gives up when ctx ends.
func TestSendWaits(t *testing.T) {
	ctx := limited(t)
	block := make(chan struct{})
	members := join(t, Config{SmallMax: -1}, Pipe(2), func(i int, c *Config) {
		if i == 1 {
			c.Incoming = func(size int64) ([]byte, error) { <-block; return make([]byte, size), nil }
		}
	})
	full, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := 0
	var err error
	for ; err == nil && sent < 2*accepted; sent++ {
		if sent == accepted {
			cancel()
		}
		err = members[0].Send(full, []byte{byte(sent)})
	}
	if !errors.Is(err, context.Canceled) || sent > accepted+2 {
		t.Errorf("after %d messages: %v", sent, err)
	}
	if err := members[1].Send(ctx, nil); !errors.Is(err, ErrNotRoot) {
		t.Errorf("a receiver sends: %v", err)
	}
	close(block)
	for i, err := range closeAll(ctx, members) {
		if err != nil {
			t.Errorf("member %d: %v", i, err)
		}
		if got := len(members[i].received()); got != sent-1 {
			t.Errorf("member %d has %d of %d messages", i, got, sent-1)
		}
	}
}

// After a failure, the survivors make a new group and learn what to send again.
func TestSentAgain(t *testing.T) {
	ctx := limited(t)
	var sent [][]byte
	first := join(t, Config{BlockSize: 64, SmallMax: -1}, Pipe(4), func(i int, c *Config) {
		if i == 3 {
			n := 0
			c.Incoming = func(size int64) ([]byte, error) {
				if n++; n == 6 {
					return nil, errors.New("enough")
				}
				return make([]byte, size), nil
			}
		}
	})
	for i := range 20 {
		sent = append(sent, bytes.Repeat([]byte{byte(i)}, 200))
		if first[0].Send(ctx, sent[i]) != nil {
			break
		}
	}
	got := map[string][][]byte{}
	for i, err := range closeAll(ctx, first) {
		var f *FailedError
		if !errors.As(err, &f) {
			t.Fatalf("member %d: %v", i, err)
		}
		got[names(4)[i]] = first[i].received()
	}
	survivors := names(4)[:3]
	second := join(t, Config{BlockSize: 64, Members: survivors}, Pipe(3), func(i int, c *Config) {
		c.Have = int64(len(got[survivors[i]]))
	})
	least := second[0].Have(1)
	least = min(least, second[0].Have(2))
	for _, msg := range sent[least:] {
		if err := second[0].Send(ctx, msg); err != nil {
			t.Fatal(err)
		}
	}
	for i, err := range closeAll(ctx, second) {
		if err != nil {
			t.Fatalf("member %d: %v", i, err)
		}
		all := got[survivors[i]]
		if i > 0 {
			all = append(all, second[i].received()[int64(len(all))-least:]...)
			if !slices.EqualFunc(all, sent, bytes.Equal) {
				t.Errorf("member %d has %d of %d messages", i, len(all), len(sent))
			}
		}
	}
}

// A transport that breaks as a whole is a failure like others.
func TestBrokenTransport(t *testing.T) {
	p := Pipe(3)
	members := join(t, Config{}, p, nil)
	if err := p[1].Close(); err != nil {
		t.Fatal(err)
	}
	failed(t, members, closeAll(limited(t), members), nil, ErrLost, 1)
}

// A transport that doesn't take an order is broken, even if it lives on.
func TestBrokenOrders(t *testing.T) {
	for name, wrap := range map[string]func(p *pipe) Transport{
		"send": func(p *pipe) Transport { return &sendless{p} },
		"put":  func(p *pipe) Transport { return &putless{p} },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := limited(t)
			p := Pipe(3)
			p[0] = wrap(p[0].(*pipe))
			members := join(t, Config{}, p, nil)
			for _, size := range []int{3, smallMax + 1} {
				if err := members[0].Send(ctx, make([]byte, size)); err != nil && !errors.Is(err, ErrLost) {
					t.Fatal(err)
				}
			}
			for i, m := range members {
				if err := m.Close(ctx); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), errDead.Error()) {
					t.Errorf("member %d: %v", i, err)
				}
			}
		})
	}
}

type sendless struct{ *pipe }

func (*sendless) Send(int, uint32, []byte) error { return errDead }

type putless struct{ *pipe }

func (*putless) PutSmall(int, uint32, []byte) error { return errDead }

// A caller that still sends when the group is being closed gets an error at once, each
// time.
func TestSendAfterClose(t *testing.T) {
	ctx := limited(t)
	block := make(chan struct{})
	members := join(t, Config{}, Pipe(2), func(i int, c *Config) {
		if i == 1 {
			c.Incoming = func(size int64) ([]byte, error) { <-block; return make([]byte, size), nil }
		}
	})
	if err := members[0].Send(ctx, []byte("x")); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- members[0].Close(ctx) }()
	for closing := false; !closing; runtime.Gosched() {
		members[0].Group.mu.Lock()
		closing = members[0].closing
		members[0].Group.mu.Unlock()
	}
	for range 2 * accepted {
		if err := members[0].Send(ctx, nil); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
	close(block)
	if err := errors.Join(<-closed, members[1].Close(ctx)); err != nil {
		t.Error(err)
	}
}
