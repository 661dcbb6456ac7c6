package replicate

import (
	"errors"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// TestSchemes: each way brings each write to all receivers, as often over each link as it should.
func TestSchemes(t *testing.T) {
	const size, writes, receivers = 4 << 20, 6, 3
	topo, err := topology.Load("../../lab/racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range Schemes {
		s, err := simnet.New(topo, simnet.Defaults(), 1)
		if err != nil {
			t.Fatal(err)
		}
		h := s.Hosts()
		set, err := New(s, scheme, 256<<10, h[0], h[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		done := 0
		for i := range writes {
			if err := set.Write(size, func() {
				if done++; done != i+1 {
					t.Errorf("%s: write %d is done as number %d", scheme, i, done)
				}
			}); err != nil {
				t.Fatalf("%s: %v", scheme, err)
			}
		}
		s.Run(time.Second)
		if done != writes || set.Failed() != nil {
			t.Errorf("%s: %d of %d writes are done: %v", scheme, done, writes, set.Failed())
		}
		var in, out float64 // times all writes: into all hosts; out of the first
		for _, l := range s.Links() {
			share := float64(l.Data) / (size * writes)
			if l.To[0] == 'h' {
				in += share
			}
			if l.From == "h1" {
				out = share
			}
		}
		want := map[Scheme]float64{Multicast: 1, Fanout: receivers, Chain: 1, Blocks: 1, RDMC: 1, Hybrid: 2, Tree: 2, Sequential: receivers}[scheme]
		if in < receivers || in > receivers*1.05 {
			t.Errorf("%s: hosts get %.2f times the writes, want %d", scheme, in, receivers)
		}
		if out < want || out > want*1.2 {
			t.Errorf("%s: the sender sends %.2f times the writes, want %.0f", scheme, out, want)
		}
	}
}

func TestNoScheme(t *testing.T) {
	for _, f := range []func() (Set, error){
		func() (Set, error) { return New(nil, "mail", 0, 0, 1) },
		func() (Set, error) { return New(nil, Fanout, 0, 0) },
	} {
		if _, err := f(); !errors.Is(err, ErrScheme) {
			t.Errorf("error %v", err)
		}
	}
}
