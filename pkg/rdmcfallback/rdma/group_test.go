package rdma

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

func TestGroups(t *testing.T) {
	const block = 16 << 10
	for n := 2; n <= 8; n++ {
		for ahead, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Chain, schedule.Sequential} {
			t.Run(fmt.Sprintf("%d/%v", n, a), func(t *testing.T) {
				ctx := limited(t)
				ts, _ := connect(t, n)
				members := join(t, rdmcfallback.Config{Algorithm: a, BlockSize: block, Ahead: ahead}, ts, nil)
				r := rand.New(rand.NewPCG(uint64(n), uint64(a)))
				var want [][]byte
				for i, size := range []int{0, 1, block - 1, block, block + 1, 2*block + 7, 40*block + 3, 0, 0, 5, 3 * block, block, 1} {
					want = append(want, random(r, size))
					if err := members[0].Send(ctx, want[i]); err != nil {
						t.Fatal(err)
					}
				}
				for i, err := range closeAll(ctx, members) {
					if err != nil {
						t.Errorf("member %d: %v", i, err)
					}
				}
				for i, m := range members {
					if !sameMessages(m.received(), want) {
						t.Errorf("member %d has other messages than the root", i)
					}
				}
			})
		}
	}
}

// Whichever member is killed, the others learn it, and have no torn messages.
func TestKilled(t *testing.T) {
	for _, n := range []int{2, 3, 5, 8} {
		for _, victim := range []int{0, 1, n - 1} {
			t.Run(fmt.Sprintf("%d of %d", victim, n), func(t *testing.T) {
				ctx := limited(t)
				ts, all := connect(t, n)
				members := join(t, rdmcfallback.Config{BlockSize: 64 << 10}, ts, nil)
				msg := random(rand.New(rand.NewPCG(1, 2)), 3<<20)
				go func() {
					for members[0].Send(ctx, msg) == nil {
					}
				}()
				for range 2 { // messages are in flight
					select {
					case <-members[victim].got:
					case <-ctx.Done():
						t.Fatal("no message came")
					}
				}
				check(t, all[victim].Device.Close())
				for i, m := range members {
					select {
					case <-m.Done():
					case <-ctx.Done():
						t.Fatalf("member %d has not learnt it", i)
					}
					var failed *rdmcfallback.FailedError
					err := m.Err()
					if !errors.As(err, &failed) || !errors.Is(err, rdmcfallback.ErrLost) || failed.Suspect != victim {
						t.Errorf("member %d: %v", i, err)
						continue
					}
					got := m.received()
					if int64(len(got)) != failed.Complete {
						t.Errorf("member %d has %d messages, but says %d", i, len(got), failed.Complete)
					}
					for _, g := range got {
						if !sameMessages([][]byte{g}, [][]byte{msg}) {
							t.Errorf("member %d has a torn message", i)
						}
					}
				}
				t.Log(members[(victim+1)%n].Err())
			})
		}
	}
}

// A device that goes without a word, while its member's control connections live
// on, is noticed by the queue pairs.
func TestSilentDevice(t *testing.T) {
	ts, all := connect(t, 2)
	a := &inbox{t: t, x: ts[0]}
	b := &inbox{t: t, x: ts[1]}
	check(t, b.x.PostRecv(0, make([]byte, 100)))
	b0 := func() bool { b.x.mu.Lock(); defer b.x.mu.Unlock(); return b.x.peers[0].in.up }
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.want(rdmcfallback.EventReady, 1)
	}()
	b.turn(b0)
	<-done
	check(t, all[1].Device.Close())
	check(t, a.x.Send(1, 0, make([]byte, 100)))
	if e := a.want(rdmcfallback.EventDown, 1); !errors.Is(e.Err, ErrQueuePair) {
		t.Error(e.Err)
	}
	// What is sent to it vanishes.
	check(t, a.x.Send(1, 0, nil))
	check(t, a.x.PostRecv(1, nil))
	check(t, a.x.Tell(1, []byte("hello?")))
}
