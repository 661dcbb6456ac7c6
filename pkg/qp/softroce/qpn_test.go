package softroce

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Numbers are below the multicast half, above the reserved ones, and do not
// come back soon, wherever the device starts.
func TestQPNs(t *testing.T) {
	at := [4]byte{10, 1, 0, 7}
	for _, seed := range []uint32{0, 1, endQPN - 1, 1<<32 - 1, rand.Uint32()} {
		var table qpTable
		table.init(at, seed)
		const n = 1 << 16
		seen := make(map[rocev2.QPN]bool, n)
		for range n {
			q := new(QP)
			if err := table.add(q); err != nil {
				t.Fatal(err)
			}
			switch {
			case q.qpn < firstQPN || q.qpn >= 0x800000:
				t.Fatalf("seed %#x: QPN %#x", seed, uint32(q.qpn))
			case !rocev2.KeepsIDOrder(at, q.qpn):
				t.Fatalf("seed %#x: copies to QPN %#x lose the order of their identifications", seed, uint32(q.qpn))
			case seen[q.qpn]:
				t.Fatalf("seed %#x: QPN %#x twice", seed, uint32(q.qpn))
			}
			seen[q.qpn] = true
			if table.find(q.qpn) != q || !table.remove(q) || table.remove(q) || table.find(q.qpn) != nil {
				t.Fatalf("seed %#x: QPN %#x is lost or stays", seed, uint32(q.qpn))
			}
		}
	}
}

// A number in use is skipped when its turn comes.
func TestQPNInUse(t *testing.T) {
	var table qpTable
	table.init([4]byte{}, 0x1234)
	kept, next := new(QP), new(QP)
	if err := table.add(kept); err != nil {
		t.Fatal(err)
	}
	table.count = 0
	if err := table.add(next); err != nil {
		t.Fatal(err)
	}
	if kept.qpn == next.qpn || table.find(kept.qpn) != kept {
		t.Errorf("%#x was given out twice", uint32(next.qpn))
	}
}

func TestLimits(t *testing.T) {
	w := newWire()
	d := onLink(t, w, Options{})
	pd := must(d.AllocPD())(t)
	cq := must(d.CreateCQ(1))(t)
	at := d.Attr()
	if at.Driver != "softroce" || at.Addr != wireAddr || at.ActiveMTU != 4096 {
		t.Errorf("attributes %+v", at)
	}
	for _, n := range []int{-1, 0, at.MaxCQE + 1} {
		if _, err := d.CreateCQ(n); !errors.Is(err, qp.ErrAttr) {
			t.Errorf("CreateCQ(%d): %v", n, err)
		}
	}
	for _, init := range []qp.Init{
		{}, {SendCQ: cq}, {RecvCQ: cq}, {SendCQ: (*CQ)(nil), RecvCQ: cq},
		{SendCQ: cq, RecvCQ: cq, MaxSendWR: at.MaxQPWR + 1},
		{SendCQ: cq, RecvCQ: cq, MaxRecvWR: at.MaxQPWR + 1},
		{SendCQ: cq, RecvCQ: cq, MaxSGE: at.MaxSGE + 1},
		{SendCQ: cq, RecvCQ: cq, MaxSendWR: -1},
		{SendCQ: cq, RecvCQ: must(onLink(t, newWire(), Options{}).CreateCQ(1))(t)}, // of another device
	} {
		if _, err := pd.CreateQP(init); !errors.Is(err, qp.ErrAttr) {
			t.Errorf("CreateQP(%+v): %v", init, err)
		}
	}
	q := must(pd.CreateQP(qp.Init{SendCQ: cq, RecvCQ: cq, MaxSendWR: at.MaxQPWR, MaxRecvWR: at.MaxQPWR, MaxSGE: at.MaxSGE}))(t)
	if q.State() != qp.StateReset {
		t.Errorf("a new queue pair is in %v", q.State())
	}
}

// The link's MTU bounds the path MTU; a link too narrow for any is refused, and
// closed.
func TestLinkMTU(t *testing.T) {
	for mtu, want := range map[int]int{320: 256, 1500: 1024, 4159: 2048, 4160: 4096, 65536: 4096} {
		w := newWire()
		w.mtu = mtu
		if got := onLink(t, w, Options{}).Attr().ActiveMTU; got != want {
			t.Errorf("path MTU %d on a link of %d, want %d", got, mtu, want)
		}
	}
	w := newWire()
	w.mtu = 319
	if _, err := New(w, Options{}); !errors.Is(err, qp.ErrDevice) || !w.closed {
		t.Errorf("error %v; link closed: %v", err, w.closed)
	}
}
