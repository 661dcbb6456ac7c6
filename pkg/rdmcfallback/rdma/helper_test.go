package rdma

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// limited returns a context within which everything here must end.
func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// options returns those of n members with a device each, at addresses that no other test
// uses. The devices are closed with the test.
func options(t testing.TB, n int) []Options {
	t.Helper()
	all := make([]Options, n)
	var members []string
	for i := range all {
		addr := testenv.Loopback().String()
		dev, err := qp.Open("softroce:" + addr)
		check(t, err)
		t.Cleanup(func() { _ = dev.Close() }) // some tests have closed it
		l, err := net.Listen("tcp", addr+":0")
		check(t, err)
		members = append(members, l.Addr().String())
		all[i] = Options{Options: tcp.Options{Self: i, Group: 7, Listener: l, DeadAfter: time.Hour}, Device: dev}
	}
	for i := range all {
		all[i].Members = members
	}
	return all
}

// connectAll connects members and returns their transports and errors. The
// transports are closed with the test.
func connectAll(t testing.TB, all []Options) ([]*Transport, []error) {
	t.Helper()
	ctx := limited(t)
	ts, errs := make([]*Transport, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, o := range all {
		wg.Go(func() { ts[i], errs[i] = Connect(ctx, o) })
	}
	wg.Wait()
	t.Cleanup(func() { closeTransports(t, ts) })
	return ts, errs
}

// closeTransports closes transports at once, since each waits for its peers.
func closeTransports(t testing.TB, ts []*Transport) {
	var wg sync.WaitGroup
	for i, x := range ts {
		if x != nil {
			wg.Go(func() {
				if err := x.Close(); err != nil {
					t.Errorf("close member %d: %v", i, err)
				}
			})
		}
	}
	wg.Wait()
}

func connect(t testing.TB, n int) ([]*Transport, []Options) {
	t.Helper()
	all := options(t, n)
	ts, errs := connectAll(t, all)
	for i, err := range errs {
		if err != nil {
			t.Fatalf("member %d: %v", i, err)
		}
	}
	return ts, all
}

// An inbox fetches the events of one transport one by one.
type inbox struct {
	t   testing.TB
	x   *Transport
	buf [1]rdmcfallback.Event
}

func (b *inbox) next() rdmcfallback.Event {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := b.x.Events(ctx, b.buf[:]); err != nil {
		b.t.Fatal(err)
	}
	return b.buf[0]
}

func (b *inbox) want(kind rdmcfallback.EventKind, peer int) rdmcfallback.Event {
	b.t.Helper()
	e := b.next()
	if e.Kind != kind || e.Peer != peer {
		b.t.Fatalf("event %+v, want kind %d of peer %d", e, kind, peer)
	}
	return e
}

// turn lets b do what its peer's transport asks for. Nothing may happen that its
// owner sees.
func (b *inbox) turn(until func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !until(); {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		n, _ := b.x.Events(ctx, b.buf[:])
		cancel()
		if n > 0 {
			b.t.Fatalf("event %+v", b.buf[0])
		}
		if time.Now().After(deadline) {
			b.t.Fatal("timed out")
		}
	}
}

// A member is one of a group, with what it received.
type member struct {
	*rdmcfallback.Group
	err      error // of Join
	mu       sync.Mutex
	messages [][]byte
	got      chan struct{} // a token for each
}

func (m *member) received() [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.messages)
}

// join makes a group over the transports.
func join(t testing.TB, cfg rdmcfallback.Config, ts []*Transport, adapt func(i int, c *rdmcfallback.Config)) []*member {
	t.Helper()
	ctx := limited(t)
	members := make([]*member, len(ts))
	for i := range ts {
		cfg.Members = append(cfg.Members, "host-"+string(rune('a'+i)))
	}
	var wg sync.WaitGroup
	for i, x := range ts {
		m := &member{got: make(chan struct{}, 1000)}
		members[i] = m
		c := cfg
		c.Self = i
		c.Complete = func(msg []byte) {
			m.mu.Lock()
			m.messages = append(m.messages, msg)
			m.mu.Unlock()
			m.got <- struct{}{}
		}
		if adapt != nil {
			adapt(i, &c)
		}
		wg.Go(func() { m.Group, m.err = rdmcfallback.Join(ctx, c, x) })
	}
	wg.Wait()
	for i, m := range members {
		if m.err != nil {
			t.Fatalf("member %d: %v", i, m.err)
		}
	}
	return members
}

// closeAll closes all members at once and returns what each says.
func closeAll(ctx context.Context, members []*member) []error {
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { errs[i] = m.Close(ctx) })
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

func sameMessages(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }
