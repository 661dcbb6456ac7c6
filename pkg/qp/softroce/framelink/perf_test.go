package framelink

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/tests/pipe"
)

// resolve lets both ends of a pair learn each other without leaving a
// goroutine behind.
func resolve(t testing.TB, a, b *Host) {
	t.Helper()
	var wg sync.WaitGroup
	recv := func(h *Host) func() {
		return func() {
			if _, err := h.Recv(make([]link.Rx, 1)); err != nil {
				t.Error(err)
			}
		}
	}
	wg.Go(recv(a))
	if err := a.Send([]link.Tx{packet(b.Addr(), 0, "here")}); err != nil {
		t.Fatal(err)
	}
	recv(b)()
	if err := b.Send([]link.Tx{packet(a.Addr(), 0, "here")}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

func TestNoAllocs(t *testing.T) {
	for name, conns := range map[string]func(testing.TB) (Conn, Conn){"pipe": testPipe, "tunnel": testTunnel} {
		t.Run(name, func(t *testing.T) {
			ca, cb := conns(t)
			a := newHost(t, ca, Config{Prefix: prefix("10.0.0.1/24")})
			b := newHost(t, cb, Config{Prefix: prefix("10.0.0.2/24")})
			resolve(t, a, b)
			tx, rx := make([]link.Tx, 16), make([]link.Rx, 16)
			for i := range tx {
				tx[i] = packet(b.Addr(), uint16(i), string(bytes.Repeat([]byte{byte(i)}, 1024)))
			}
			run := func() { sendRecv(t, a, b, tx, rx) }
			for range pipe.DefaultQueue/len(tx) + batch {
				run() // until every buffer has been used
			}
			if n := testing.AllocsPerRun(200, run); n != 0 {
				t.Errorf("%v allocations per %d packets sent and received, want 0", n, len(tx))
			}
		})
	}
}

func testPipe(testing.TB) (Conn, Conn) { return pipe.New(pipe.Config{}) }

func sendRecv(t testing.TB, a, b *Host, tx []link.Tx, rx []link.Rx) {
	if err := a.Send(tx); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(tx); {
		k, err := b.Recv(rx)
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
}

func BenchmarkSendRecv(b *testing.B) {
	for _, c := range []struct {
		name  string
		conns func(testing.TB) (Conn, Conn)
	}{{"pipe", testPipe}, {"tunnel", testTunnel}} {
		for _, size := range []int{1024, 4096} {
			b.Run(fmt.Sprintf("%s/%d", c.name, size), func(b *testing.B) {
				ca, cb := c.conns(b)
				from := newHost(b, ca, Config{Prefix: prefix("10.0.0.1/24")})
				to := newHost(b, cb, Config{Prefix: prefix("10.0.0.2/24")})
				resolve(b, from, to)
				tx, rx := make([]link.Tx, 32), make([]link.Rx, 32)
				for i := range tx {
					tx[i] = packet(to.Addr(), uint16(i), string(make([]byte, size)))
				}
				b.ReportAllocs()
				b.SetBytes(int64(size))
				n := 0
				for b.Loop() {
					if n++; n%len(tx) == 0 { // an iteration is a packet
						sendRecv(b, from, to, tx, rx)
					}
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
			})
		}
	}
}
