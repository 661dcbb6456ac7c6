package group_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

func relaying(racks ...uint32) *group.Formation {
	f := &group.Formation{Sender: group.Endpoint{QPN: 5, Bootstrap: "h1:1"}}
	for _, r := range racks {
		f.Receivers = append(f.Receivers, group.Receiver{Host: "h2", Bootstrap: "h2:1", Transport: "rdma", Rack: r})
	}
	return f
}

// TestRelaySizes: with the size of messages, the algorithm and the blocks are those of the
// schedule for receivers and sender.
func TestRelaySizes(t *testing.T) {
	for n := 1; n <= 16; n++ {
		for _, size := range []uint64{1, 4096, 100_000, 1 << 20, 1 << 30} {
			for _, block := range []uint32{1024, 4096, 1 << 20} {
				choice := group.RelayChoice{Block: block, Typical: size, Group: 3}
				r, err := choice.For(relaying(make([]uint32, n)...))
				plan, impossible := schedule.Choose(int64(size), n+1, schedule.Hints{MaxBlock: int64(block)})
				if impossible != nil {
					expect(t, impossible, err, mcrdmav1.Reason_INVALID)
					continue
				}
				want := max(uint32(plan.BlockSize), min(4096, block))
				if err != nil || r.Algorithm != plan.Algorithm.String() || r.Block != want || r.Transport != "rdma" || r.Group != 3 || r.Racks != nil {
					t.Errorf("%d receivers, %d bytes, blocks of %d: %+v, %v; want %v and blocks of %d", n, size, block, r, err, plan.Algorithm, want)
				}
			}
		}
	}
}

// TestRelaySizeTooLarge: a size that no count of blocks can hold is refused as such.
func TestRelaySizeTooLarge(t *testing.T) {
	_, err := group.RelayChoice{Block: 4096, Typical: math.MaxUint64}.For(relaying(0))
	expect(t, "the largest size", err, mcrdmav1.Reason_INVALID)
	if want := "9223372036854775807 bytes are more than"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q in it", err, want)
	}
}

func TestRelays(t *testing.T) {
	const bytes = 1 << 20
	racks := []uint32{1, 1, 2, 2, 2}
	r, err := group.RelayChoice{Block: bytes}.For(relaying(1, 2))
	if err != nil || r.Algorithm != schedule.BinomialPipeline.String() || r.Block != bytes {
		t.Errorf("without a size: %+v, %v", r, err)
	}
	r, err = group.RelayChoice{Algorithm: "chain", Block: bytes, Typical: 1}.For(relaying(1, 2))
	if err != nil || r.Algorithm != "chain" || r.Block != bytes {
		t.Errorf("with an algorithm: %+v, %v", r, err)
	}
	hybrid := group.RelayChoice{Algorithm: "hybrid", Block: bytes, Rack: 1}
	if r, err = hybrid.For(relaying(racks[1:]...)); err != nil || !slices.Equal(r.Racks, racks) {
		t.Errorf("racks %+v, %v", r, err)
	}
	_, err = hybrid.For(relaying(1, 0, 2))
	expect(t, "a rack is not known", err, mcrdmav1.Reason_INVALID)
	hybrid.Rack = 0
	_, err = hybrid.For(relaying(1, 2))
	expect(t, "the sender's rack is not known", err, mcrdmav1.Reason_INVALID)

	known, err := schedule.RacksOf([]int{1, 1, 2, 2, 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []uint64{1, 100_000, 1 << 30} {
		plan, err := schedule.Choose(int64(size), 5, schedule.Hints{MaxBlock: bytes, Racks: known})
		if err != nil {
			t.Fatal(err)
		}
		r, err := group.RelayChoice{Block: bytes, Typical: size, Rack: 1}.For(relaying(racks[1:]...))
		if err != nil || r.Algorithm != plan.Algorithm.String() || (r.Racks != nil) != (plan.Algorithm == schedule.Hybrid) {
			t.Errorf("%d bytes with racks: %+v, %v; want %v", size, r, err, plan.Algorithm)
		}
	}

	_, err = group.RelayChoice{Block: bytes, Typical: 1, Rack: 1}.For(relaying())
	expect(t, "no receivers", err, mcrdmav1.Reason_INVALID)

	f := relaying(1, 1)
	f.Sender.Bootstrap = ""
	_, err = group.RelayChoice{Block: bytes}.For(f)
	expect(t, "the sender does not listen", err, mcrdmav1.Reason_INVALID)
	f = relaying(1, 1)
	f.Receivers[1].Bootstrap = ""
	_, err = group.RelayChoice{Block: bytes}.For(f)
	expect(t, "a receiver does not listen", err, mcrdmav1.Reason_INVALID)
}

// TestRelayTransports: by RDMA if all can, unless TCP is asked for.
func TestRelayTransports(t *testing.T) {
	all, receiver, sender := relaying(1, 1), relaying(1, 1), relaying(1, 1)
	receiver.Receivers[0].Transport = "tcp"
	sender.Sender.QPN = 0
	for _, c := range []struct {
		asked string
		f     *group.Formation
		want  string // "": an error
	}{
		{"", all, "rdma"}, {"rdma", all, "rdma"}, {"tcp", all, "tcp"},
		{"", receiver, "tcp"}, {"rdma", receiver, ""}, {"tcp", receiver, "tcp"},
		{"", sender, "tcp"}, {"rdma", sender, ""}, {"tcp", sender, "tcp"},
	} {
		r, err := group.RelayChoice{Host: "h1", Transport: c.asked}.For(c.f)
		if c.want == "" {
			expect(t, c.asked, err, mcrdmav1.Reason_INVALID)
			host := "h2" // whose device is missing
			if c.f == sender {
				host = "h1"
			}
			if f, ok := errors.AsType[*failure.Error](err); !ok || f.Host != host {
				t.Errorf("%v is not about %s", err, host)
			}
		} else if suits := map[string]uint32{"tcp": 256 << 10, "rdma": 1 << 20}[c.want]; err != nil || r.Transport != c.want || r.Block != suits {
			t.Errorf("%q: %+v, %v; want %s", c.asked, r, err, c.want)
		}
	}
}
