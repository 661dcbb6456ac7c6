package udplink

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// TestCloseWakesRecv: Recv returns, blocked or polling, and then the address is
// free.
func TestCloseWakesRecv(t *testing.T) {
	for _, rx := range []RXMode{RXRaw, RXUDP} {
		for _, poll := range []time.Duration{-1, 0, maxPoll} {
			l := open(t, Options{RX: rx, Poll: poll})
			done := make(chan error, 1)
			go func() {
				_, err := l.Recv(make([]link.Rx, 1))
				done <- err
			}()
			until(t, "Recv blocks", func() bool { return counter(l, "rx_blocks") > 0 })
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("rx=%v: the Recv that was waiting: %v", rx, err)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("rx=%v: Recv still waits", rx)
			}
			again, err := Open(l.Addr(), Options{RX: rx})
			if err != nil {
				t.Fatal(err)
			}
			closeWith(t, again)
		}
	}
}

func TestUseAfterClose(t *testing.T) {
	for _, rx := range []RXMode{RXRaw, RXUDP} {
		a, b := open(t, Options{RX: rx}), open(t, Options{RX: rx})
		carry(t, a, b, newMaker(b.Addr()).full(5, 256))
		if err := b.Send(newMaker(a.Addr()).full(5, 256)); err != nil { // are there when a is closed
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := a.Recv(make([]link.Rx, 4)); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("rx=%v: Recv = %d, %v", rx, n, err)
		}
		for _, flow := range []uint16{0, 5} { // used before or not
			p := tx(b.Addr(), 0, flow, packet(rocev2.SendOnly, 8, 1))
			if err := a.Send([]link.Tx{p}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("rx=%v: Send with flow %d: %v", rx, flow, err)
			}
		}
		if err := a.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("rx=%v: second Close: %v", rx, err)
		}
		if n := counter(a, "tx_messages"); n == 0 {
			t.Errorf("rx=%v: the counters are gone", rx)
		}
	}
}

// TestCloseRaces closes both ends while packets fly.
func TestCloseRaces(t *testing.T) {
	for i := range 20 {
		opt := Options{RX: RXRaw + RXMode(i%2)}
		a, b := open(t, opt), open(t, opt)
		ends := func(what string, f func() error) func() {
			return func() {
				for {
					if err := f(); err != nil {
						if !errors.Is(err, net.ErrClosed) {
							t.Errorf("%s: %v", what, err)
						}
						return
					}
				}
			}
		}
		var wg sync.WaitGroup
		for flow := range uint16(3) {
			run := newMaker(b.Addr()).full(20, 1024)
			for i := range run {
				run[i].Flow = flow
			}
			wg.Go(ends("Send", func() error { return a.Send(run) }))
		}
		batch := make([]link.Rx, 8)
		wg.Go(ends("Recv", func() error { _, err := b.Recv(batch); return err }))
		until(t, "packets arrive", func() bool { return counter(b, "rx_messages") > 3 })
		wg.Go(func() { a.Close() })
		wg.Go(func() { b.Close() })
		wg.Wait()
	}
}

// TestConcurrentSend: many goroutines send at once, by one flow, by few and by
// many; what each one sends arrives in its order, whole and once.
func TestConcurrentSend(t *testing.T) {
	const senders, rounds, each = 8, 4, 20
	for _, rx := range []RXMode{RXRaw, RXUDP} {
		a, b := open(t, Options{RX: rx}), open(t, Options{RX: rx})
		for _, flows := range []int{1, 3, 40} {
			for range rounds {
				var wg sync.WaitGroup
				var sent [senders][]link.Tx
				for s := range sent {
					run := newMaker(b.Addr()).full(each, 256)
					for i := range run {
						run[i].Flow = uint16(s * flows / senders)
						run[i].TOS = byte(s) << 2 // tells the senders apart
					}
					sent[s] = run
					wg.Go(func() {
						for i := 0; i < each; i += 5 {
							if err := a.Send(run[i : i+5]); err != nil {
								t.Error(err)
							}
						}
					})
				}
				got := receive(t, b, senders*each)
				wg.Wait()
				for _, rx := range got {
					s := rx.TOS >> 2 % senders
					if len(sent[s]) == 0 {
						t.Fatalf("sender %d: more than it sent", s)
					}
					if err := differs(a.Addr(), sent[s][0], rx); err != nil {
						t.Fatalf("sender %d, packet %d: %v", s, each-len(sent[s]), err)
					}
					sent[s] = sent[s][1:]
				}
			}
		}
		if drops(b) != 0 {
			t.Errorf("dropped: %v", counts(b))
		}
	}
}
