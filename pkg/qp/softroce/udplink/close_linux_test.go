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
	bothModes(t, func(t *testing.T, mode RXMode) {
		for _, poll := range []time.Duration{-1, 0, maxPoll} {
			l := open(t, Options{RX: mode, Poll: poll})
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
					t.Errorf("the Recv that was waiting: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("Recv still waits")
			}
			again, err := Open(l.Addr(), Options{RX: mode})
			if err != nil {
				t.Fatal(err)
			}
			closeWith(t, again)
		}
	})
}

func TestUseAfterClose(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		a, b := open(t, Options{RX: mode}), open(t, Options{RX: mode})
		carry(t, a, b, newMaker(b.Addr()).full(5, 256))
		if err := b.Send(newMaker(a.Addr()).full(5, 256)); err != nil { // are there when a is closed
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := a.Recv(make([]link.Rx, 4)); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv = %d, %v", n, err)
		}
		for _, flow := range []uint16{0, 5} { // used before or not
			p := tx(b.Addr(), 0, flow, packet(rocev2.SendOnly, 8, 1))
			if err := a.Send([]link.Tx{p}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Send with flow %d: %v", flow, err)
			}
		}
		if err := a.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
		if n := counter(a, "tx_messages"); n == 0 {
			t.Error("the counters are gone")
		}
	})
}

// TestCloseRaces closes both ends while packets fly.
func TestCloseRaces(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		for range 10 {
			testCloseRace(t, Options{RX: mode})
		}
	})
}

func testCloseRace(t *testing.T, opt Options) {
	t.Helper()
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

// TestConcurrentSend: many goroutines send at once, by one flow, by few and by
// many; what each one sends arrives in its order, whole and once.
func TestConcurrentSend(t *testing.T) {
	const senders, rounds, each = 8, 4, 20
	bothModes(t, func(t *testing.T, mode RXMode) {
		a, b := open(t, Options{RX: mode}), open(t, Options{RX: mode})
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
	})
}
