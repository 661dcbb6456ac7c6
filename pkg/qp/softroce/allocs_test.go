//go:build !race

// The race detector makes a sync.Pool forget at random. "make test" runs these
// without it.

package softroce

import (
	"runtime"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/tests/pipe"
)

// In the steady state moving packets allocates nothing, on either side, over
// any link. What the runtime allocates on its own account is far below one
// allocation per hundred packets.
func TestNoAllocations(t *testing.T) {
	const size = 1 << 20
	for name, connected := range map[string]func(*testing.T) (a, b *end){
		"rx=raw": func(t *testing.T) (a, b *end) { return pair(t, "rx=raw", size) },
		"rx=udp": func(t *testing.T) (a, b *end) { return pair(t, "rx=udp", size) },
		"rx=udp&gso=off&gro=off": func(t *testing.T) (a, b *end) {
			return pair(t, "rx=udp&gso=off&gro=off", size)
		},
		"pipe": func(t *testing.T) (a, b *end) {
			return piped(t, pipe.Config{Queue: 160}, Options{}, size, qp.Init{}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t)
			wr := qp.SendWR{Flags: qp.FlagSignaled, SGEs: []qp.SGE{a.mr.SGE(0, size)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			wcs := make([]qp.WC, 1)
			both := func() {
				for _, wr.Opcode = range []qp.Opcode{qp.OpWrite, qp.OpRead} {
					if err := a.qp.PostSend(&wr); err != nil {
						t.Fatal(err)
					}
					for n, err := 0, error(nil); n == 0; n, err = a.cq.Poll(wcs) {
						if err == nil {
							err = a.cq.Wait(a.ctx)
						}
						if err != nil {
							t.Fatalf("%v; %s", err, a.counters())
						}
					}
					if wcs[0].Status != qp.StatusSuccess {
						t.Fatalf("completion %+v; %s", wcs[0], a.counters())
					}
				}
			}
			for range 50 { // until every buffer has its size
				both()
			}
			var before, after runtime.MemStats
			packets := a.dev.Counters()["tx_packets"] + b.dev.Counters()["tx_packets"]
			runtime.ReadMemStats(&before)
			for range 100 {
				both()
			}
			runtime.ReadMemStats(&after)
			packets = a.dev.Counters()["tx_packets"] + b.dev.Counters()["tx_packets"] - packets
			n := after.Mallocs - before.Mallocs
			t.Logf("%d allocations for %d packets", n, packets)
			if packets < 2*100*size/4096 || n > packets/100 {
				t.Errorf("%d allocations for %d packets; %s", n, packets, a.counters())
			}
		})
	}
}
