package tcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// listen makes listeners on loopback for n members, and their addresses.
func listen(t testing.TB, n int) ([]net.Listener, []string) {
	t.Helper()
	ls, addrs := make([]net.Listener, n), make([]string, n)
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ls[i], addrs[i] = l, l.Addr().String()
	}
	return ls, addrs
}

// connect creates the transports of all members. A member is never silent, except for lack of a
// processor.
func connect(t testing.TB, n int) []*tcp.Transport {
	t.Helper()
	ls, addrs := listen(t, n)
	ts, errs := connectAll(t, n, func(i int) tcp.Options {
		return tcp.Options{Members: addrs, Self: i, Group: 7, Listener: ls[i], Hello: fmt.Append(nil, "hello of ", i), DeadAfter: time.Hour}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return ts
}

func connectAll(t testing.TB, n int, options func(i int) tcp.Options) ([]*tcp.Transport, []error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	ts, errs := make([]*tcp.Transport, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { ts[i], errs[i] = tcp.Connect(ctx, options(i)) })
	}
	wg.Wait()
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, x := range ts {
			if x != nil {
				wg.Go(func() { _ = x.Close() })
			}
		}
		wg.Wait()
	})
	return ts, errs
}

// relay performs one member's part of a schedule on a message of equal blocks: it has one send and
// up to ahead receives in flight.
func relay(ctx context.Context, x rdmcfallback.Transport, s schedule.Schedule, self, block int, msg []byte, ahead int) error {
	node, err := s.Node(self)
	if err != nil {
		return err
	}
	have := make([]bool, s.Blocks())
	for i := range have {
		have[i] = self == 0
	}
	cut := func(b int64) []byte { return msg[int(b)*block : min(int(b+1)*block, len(msg))] }
	type queue []int64
	expect, ready := map[int]queue{}, map[int]int{}
	recv, moreRecv := node.NextRecv(-1)
	send, moreSend := node.NextSend(-1)
	posted, sending := 0, 0
	events := make([]rdmcfallback.Event, 16)
	for {
		for moreRecv && posted < ahead {
			if err := x.PostRecv(recv.Peer, cut(recv.Block)); err != nil {
				return err
			}
			expect[recv.Peer] = append(expect[recv.Peer], recv.Block)
			posted++
			recv, moreRecv = node.NextRecv(recv.Step)
		}
		for moreSend && sending < 1 && ready[send.Peer] > 0 && have[send.Block] {
			if err := x.Send(send.Peer, uint32(send.Block), cut(send.Block)); err != nil {
				return err
			}
			ready[send.Peer]--
			sending++
			send, moreSend = node.NextSend(send.Step)
		}
		if !moreRecv && !moreSend && posted == 0 && sending == 0 {
			return nil
		}
		n, err := x.Events(ctx, events)
		if err != nil {
			return err
		}
		for _, e := range events[:n] {
			switch e.Kind {
			case rdmcfallback.EventReady:
				ready[e.Peer]++
			case rdmcfallback.EventSent:
				sending--
			case rdmcfallback.EventReceived:
				b := expect[e.Peer][0]
				expect[e.Peer] = expect[e.Peer][1:]
				if int64(e.Imm) != b || e.N != len(cut(b)) {
					return fmt.Errorf("block %d of %d bytes came, expected %d of %d", e.Imm, e.N, b, len(cut(b)))
				}
				have[b] = true
				posted--
			case rdmcfallback.EventDown:
				return fmt.Errorf("%d is down: %w", e.Peer, e.Err)
			}
		}
	}
}

func TestRelay(t *testing.T) {
	const block = 1000
	for _, n := range []int{2, 3, 4, 7, 8} {
		for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Chain, schedule.Sequential, schedule.BinomialTree} {
			t.Run(fmt.Sprintf("%v-%d", a, n), func(t *testing.T) {
				ts := connect(t, n)
				msg := make([]byte, 64*block-7)
				_, _ = rand.NewChaCha8([32]byte{1}).Read(msg)
				s, err := schedule.New(a, n, 64, nil)
				if err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				for i, x := range ts {
					wg.Go(func() {
						got := msg
						if i > 0 {
							got = make([]byte, len(msg))
						}
						if err := relay(t.Context(), x, s, i, block, got, 2); err != nil {
							t.Errorf("member %d: %v", i, err)
						} else if !bytes.Equal(got, msg) {
							t.Errorf("member %d got other bytes", i)
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
