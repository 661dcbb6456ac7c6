package switchagent

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A branch that a test holds at switch sw2 on behalf of another switch.
type rawBranch struct {
	c    mcrdmav1.SwitchPeerClient
	name string
}

func (b rawBranch) request(generation, sequence uint64, receivers ...netip.Addr) *mcrdmav1.HoldRequest {
	g := aGroup(hostAddr(1, 1), 1, receivers...)
	return &mcrdmav1.HoldRequest{Group: g.Key, Generation: generation, Sequence: sequence, Via: []string{b.name},
		Destination: hostAddr(2, 1).String(), Receivers: g.Receivers}
}

func (b rawBranch) hold(ctx context.Context, generation, sequence uint64, receivers ...netip.Addr) error {
	_, err := b.c.Hold(ctx, b.request(generation, sequence, receivers...))
	return err
}

func (b rawBranch) release(ctx context.Context, sequence uint64) error {
	r := b.request(0, 0)
	_, err := b.c.Release(ctx, &mcrdmav1.ReleaseRequest{Group: r.Group, Destination: r.Destination, Sequence: sequence})
	return err
}

func (b rawBranch) sync(t testing.TB, sequence uint64, held ...uint64) (missing int) {
	t.Helper()
	req := &mcrdmav1.SyncRequest{Sequence: sequence}
	for _, h := range held {
		r := b.request(0, 0)
		req.Branches = append(req.Branches, &mcrdmav1.HeldBranch{Group: r.Group, Destination: r.Destination, Sequence: h})
	}
	res, err := b.c.Sync(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return len(res.GetMissing())
}

// TestLateAndReorderedMessages: requests of a neighbor arrive in another order
// than they were sent, or twice.
func TestLateAndReorderedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		l.fake(1)
		l.fake(3)
		l.start(2)
		one := rawBranch{mcrdmav1.NewSwitchPeerClient(l.as(2, aSwitch("sw1"))), "sw1"}
		three := rawBranch{mcrdmav1.NewSwitchPeerClient(l.as(2, aSwitch("sw3"))), "sw3"}
		ctx := t.Context()
		two, more := []netip.Addr{hostAddr(2, 1), hostAddr(2, 2)}, []netip.Addr{hostAddr(2, 1), hostAddr(2, 2), hostAddr(2, 3)}
		reaches := func(want int) {
			t.Helper()
			n := 0
			for r := range switchspec.Of[switchspec.Replica](l.state(2)) {
				if r.Last {
					n++
				}
			}
			if n != want {
				t.Errorf("%d receivers are reached, want %d", n, want)
			}
		}
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		stale := refused{codes.Aborted, "STALE", "sw2", []string{"number"}}
		missing := func(have, want int) {
			t.Helper()
			if have != want {
				t.Errorf("%d are missing, want %d", have, want)
			}
		}

		// A Release that overtakes its Hold: the next Sync makes up for it.
		ok(one.release(ctx, 11))
		ok(one.hold(ctx, 1, 10, two...))
		reaches(2)
		missing(one.sync(t, 11), 0)
		reaches(0)
		// An old Hold after a newer one.
		ok(one.hold(ctx, 2, 21, more...))
		stale.check(t, "an old hold", one.hold(ctx, 1, 20, two...))
		reaches(3)
		// The same one twice, and an old Release.
		ok(one.hold(ctx, 2, 21, more...))
		ok(one.release(ctx, 20))
		reaches(3)
		// A Sync that is older than a Hold does not know of it.
		missing(one.sync(t, 20), 0)
		reaches(3)
		missing(one.sync(t, 21, 21), 0)
		// One that names an older or a later hold gets it back as missing.
		missing(one.sync(t, 21, 20), 1)
		missing(one.sync(t, 22, 22), 1)
		reaches(3)
		// A lower generation with a later number: the only holder is right.
		ok(one.hold(ctx, 1, 23, two...))
		reaches(2)
		// Another holder has changed already, and then this one does.
		ok(three.hold(ctx, 3, 5, more...))
		reaches(3)
		ok(one.hold(ctx, 1, 24, two...)) // late: it does not turn back the other
		reaches(3)
		ok(one.hold(ctx, 3, 25, more...))
		// They disagree within one generation.
		refused{codes.FailedPrecondition, "AMBIGUOUS", "sw2", []string{"sw1", "sw3", "3 receivers"}}.check(t, "disagreeing", one.hold(ctx, 3, 26, two...))
		reaches(3)
		// One goes, and then the other.
		ok(three.release(ctx, math.MaxUint64))
		reaches(3)
		ok(three.release(ctx, math.MaxUint64))
		ok(one.hold(ctx, 3, 27, two...))
		reaches(2)
		missing(three.sync(t, math.MaxUint64, 5), 1)
		reaches(2)
		// A number of the future: only a Sync that is later than that ends it, or the lease.
		ok(one.hold(ctx, 3, math.MaxUint64, two...))
		stale.check(t, "after the future", one.hold(ctx, 4, 28, more...))
		missing(one.sync(t, 28), 0)
		reaches(2)
		missing(one.sync(t, math.MaxUint64), 0)
		reaches(0)
		l.noLeftovers()
	})
}

// TestHoldersThatDisagree: if the next switch cannot tell a group's branches apart,
// an install makes their copies itself, until it can.
func TestHoldersThatDisagree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		l.fake(3)
		l.start(1)
		l.start(2)
		three := rawBranch{mcrdmav1.NewSwitchPeerClient(l.as(2, aSwitch("sw3"))), "sw3"}
		g := twoHops(1)
		l.install(1, g)
		want := l.canonical()
		l.remove(1, g)
		a := l.nodes[0].agent
		// As an agent that holds the same generation for others would.
		next := a.peers.sequence.Load() + 1
		if err := three.hold(t.Context(), next, 1, hostAddr(2, 1), hostAddr(2, 3)); err != nil {
			t.Fatal(err)
		}
		l.install(1, g)
		if have := canonical(l.state(1)); strings.Count(have, "last=true") != 6 {
			t.Errorf("no copies of its own:\n%s", have)
		}
		a.rerun.wake()
		if err := three.release(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		var have []string
		for deadline := time.Now().Add(10 * time.Second); !slices.Equal(have, want) && time.Now().Before(deadline); have = l.canonical() {
			a.rerun.wake()
		}
		if !slices.Equal(have, want) {
			t.Errorf("not together again: have\n%s\nwant\n%s", strings.Join(have, "\n--\n"), strings.Join(want, "\n--\n"))
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}

// TestSameBranchTwice: packets of a group come on two ways, and those of both would go on
// to one switch with one address. The second step makes copies of its own; that another
// switch does not take its branch does not take the first step's branch away.
func TestSameBranchTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		l.fake(1)
		l.start(2)
		l.start(3)
		one := rawBranch{mcrdmav1.NewSwitchPeerClient(l.as(2, aSwitch("sw1"))), "sw1"}
		first := one.request(1, 1, hostAddr(2, 1), hostAddr(3, 1), hostAddr(3, 2))
		second := one.request(1, 2, hostAddr(3, 1), hostAddr(3, 2), hostAddr(2, 2))
		second.Destination = hostAddr(3, 1).String()
		if _, err := one.c.Hold(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		want := canonical(l.state(3))
		for i, r := range []*mcrdmav1.HoldRequest{second, first} {
			if _, err := one.c.Hold(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if have := canonical(l.state(3)); have != want {
				t.Errorf("hold %d: on sw3\n%s\nwant\n%s", i, have, want)
			}
			if n := strings.Count(canonical(l.state(2)), "last=true"); n != 2*4 { // either link to sw3 has its own
				t.Errorf("hold %d: sw2 makes %d last copies, want 8", i, n)
			}
		}
		for _, r := range []*mcrdmav1.HoldRequest{first, second} {
			if _, err := one.c.Release(t.Context(), &mcrdmav1.ReleaseRequest{Group: r.Group, Destination: r.Destination, Sequence: 3}); err != nil {
				t.Error(err)
			}
		}
		l.noLeftovers()
	})
}

// TestHoldMeetsRelease: one neighbor releases a branch at the moment in which another
// begins to hold it. The other has it then, on the switch and in the store.
func TestHoldMeetsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		l.fake(1)
		l.fake(3)
		l.start(2)
		a := l.nodes[1].agent
		now := rawBranch{mcrdmav1.NewSwitchPeerClient(l.as(2, aSwitch("sw1"))), "sw1"}
		next := rawBranch{mcrdmav1.NewSwitchPeerClient(l.as(2, aSwitch("sw3"))), "sw3"}
		receivers := []netip.Addr{hostAddr(2, 1), hostAddr(2, 2)}
		if err := now.hold(t.Context(), 1, 1, receivers...); err != nil {
			t.Fatal(err)
		}
		want := canonical(l.state(2))
		for i := range uint64(40) {
			var wg sync.WaitGroup
			for _, f := range []func() error{
				func() error { return now.release(t.Context(), math.MaxUint64) },
				func() error { return next.hold(t.Context(), 1, i, receivers...) },
			} {
				wg.Go(func() {
					if err := f(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			records := 0
			for range a.store.Load(bucket) {
				records++
			}
			if have := canonical(l.state(2)); have != want || records != 1 {
				t.Fatalf("round %d: %d records, and on the switch:\n%s", i, records, have)
			}
			now, next = next, now
		}
		if err := now.release(t.Context(), math.MaxUint64); err != nil {
			t.Error(err)
		}
		l.noLeftovers()
	})
}

// TestFloodOfPeerMessages has two neighbors send what they like, much of it
// impossible, and then go. Nothing is left.
func TestFloodOfPeerMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		l.fake(1)
		l.fake(3)
		l.start(2)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		clients := map[string]mcrdmav1.SwitchPeerClient{}
		for _, name := range []string{"sw1", "sw3"} {
			clients[name] = mcrdmav1.NewSwitchPeerClient(l.as(2, aSwitch(name)))
		}
		allowed := map[codes.Code]bool{codes.OK: true, codes.InvalidArgument: true, codes.FailedPrecondition: true, codes.Aborted: true,
			codes.DeadlineExceeded: true, codes.Canceled: true, codes.ResourceExhausted: true, codes.Unavailable: true}
		var counts [20]atomic.Int64
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				r := &flood{rand.New(rand.NewPCG(seed, uint64(w))), []string{"sw1", "sw3"}[w%2]}
				for range 150 {
					ctx := context.Background()
					cancel := func() {}
					if r.IntN(4) == 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(20000))*time.Microsecond)
					}
					err := r.send(ctx, clients[r.from])
					cancel()
					code := status.Code(err)
					counts[code].Add(1)
					if !allowed[code] {
						t.Errorf("%v", err)
					}
				}
			})
		}
		wg.Wait()
		for code := range counts {
			if n := counts[code].Load(); n > 0 {
				t.Logf("%v: %d", codes.Code(code), n)
			}
		}
		if counts[codes.OK].Load() < 200 || counts[codes.InvalidArgument].Load() < 200 {
			t.Error("hardly anything was accepted, or refused")
		}
		for name, c := range clients {
			if _, err := c.Sync(t.Context(), &mcrdmav1.SyncRequest{Sequence: math.MaxUint64}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		eventually(t, "nothing is left", func() bool {
			return l.nodes[1].agent.table.Usage().Steps == 0
		})
		l.empty("nothing is left on the switch")
		l.noLeftovers()
		for k := range l.nodes[1].agent.store.Load(bucket) {
			t.Errorf("a record is left: %x", k)
		}
		// And it works.
		if err := (rawBranch{clients["sw1"], "sw1"}).hold(t.Context(), 1, 1, hostAddr(2, 1), hostAddr(2, 2)); err != nil {
			t.Error(err)
		}
	})
}

// flood makes up requests of a neighbor.
type flood struct {
	*rand.Rand
	from string
}

func (r *flood) addr() string {
	switch r.IntN(40) {
	case 0:
		return "junk"
	case 1:
		return "fe80::1"
	case 2:
		return "192.0.2.1"
	}
	return hostAddr(1+r.IntN(3), 1+r.IntN(4)).String()
}

func (r *flood) number() uint64 {
	switch r.IntN(10) {
	case 0:
		return r.Uint64()
	case 1:
		return math.MaxUint64
	}
	return r.Uint64N(50)
}

func (r *flood) key() *mcrdmav1.GroupKey {
	if r.IntN(30) == 0 {
		return nil
	}
	return &mcrdmav1.GroupKey{Source: r.addr(), McId: 1 + r.Uint32N(3) - r.Uint32N(30)/29}
}

func (r *flood) send(ctx context.Context, c mcrdmav1.SwitchPeerClient) error {
	switch r.IntN(6) {
	case 0:
		_, err := c.Release(ctx, &mcrdmav1.ReleaseRequest{Group: r.key(), Destination: r.addr(), Sequence: r.number()})
		return err
	case 1:
		req := &mcrdmav1.SyncRequest{Sequence: r.number()}
		for range r.IntN(8) {
			req.Branches = append(req.Branches, &mcrdmav1.HeldBranch{Group: r.key(), Destination: r.addr(), Sequence: r.number()})
		}
		_, err := c.Sync(ctx, req)
		return err
	}
	req := &mcrdmav1.HoldRequest{Group: r.key(), Generation: r.number(), Sequence: r.number()}
	for range max(0, r.IntN(6)-3) {
		names := []string{"sw1", "sw2", "sw3", "", strings.Repeat("x", 300)}
		if i := r.IntN(40); i < len(names) {
			req.Via = append(req.Via, names[i])
		} else {
			req.Via = append(req.Via, fmt.Sprintf("sw%d", i))
		}
	}
	req.Via = append(slices.DeleteFunc(req.Via, func(v string) bool { return v == r.from && r.IntN(5) > 0 }), r.from)
	for range r.IntN(5) {
		x := aReceiver(hostAddr(1, 1), r.Uint32N(1<<24+1<<18))
		x.Address = r.addr()
		if r.IntN(20) == 0 {
			x.Regions[0].Length = r.Uint64()
		}
		req.Receivers = append(req.Receivers, x)
	}
	if req.Destination = r.addr(); len(req.Receivers) > 0 && r.IntN(10) > 0 {
		req.Destination = req.Receivers[0].Address
	}
	_, err := c.Hold(ctx, req)
	return err
}
