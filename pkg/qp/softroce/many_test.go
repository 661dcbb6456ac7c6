package softroce

import (
	"bytes"
	"sync"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// Many queue pairs of two devices, all at once, in both directions, with few
// completion queues between them.
func TestManyQueuePairs(t *testing.T) {
	const pairs, rounds, size = 200, 3, 10000
	da, db := open(t, ""), open(t, "")
	var wg sync.WaitGroup
	for i := range pairs {
		a, b := newEnd(t, da, 2*size, qp.Init{}), newEnd(t, db, 2*size, qp.Init{})
		a.attr.Timeout, b.attr.Timeout = 18, 18 // all wait for each other, for seconds on a busy machine
		connect(a, b)
		for _, dir := range [][2]*end{{a, b}, {b, a}} {
			from, to := dir[0], dir[1]
			for r := range rounds {
				to.recv(uint64(100+r), to.mr.SGE(size, size/2))
			}
			fillPattern(from.buf[:size/2], i)
			wg.Go(func() {
				for r := range rounds {
					wr := qp.SendWR{ID: uint64(r), Opcode: qp.OpWrite, SGEs: []qp.SGE{from.mr.SGE(0, size/2)},
						RemoteAddr: to.mr.Addr() + 3*size/2, RKey: to.mr.RKey()}
					err := from.qp.PostSend(&wr)
					wr.Opcode, wr.Flags = qp.OpSend, qp.FlagSignaled
					if err == nil {
						err = from.qp.PostSend(&wr)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		for _, e := range []*end{a, b} {
			wg.Go(func() {
				var wc [4]qp.WC
				for left := 2 * rounds; left > 0; {
					if err := e.cq.Wait(e.ctx); err != nil {
						t.Errorf("pair %d: %v", i, err)
						return
					}
					n, err := e.cq.Poll(wc[:])
					if err != nil {
						t.Error(err)
						return
					}
					for _, c := range wc[:n] {
						if c.Status != qp.StatusSuccess || c.QPN != e.qp.QPN() {
							t.Errorf("pair %d: completion %+v", i, c)
						}
					}
					left -= n
				}
				want := make([]byte, size/2)
				fillPattern(want, i)
				if !bytes.Equal(e.buf[size:3*size/2], want) || !bytes.Equal(e.buf[3*size/2:], want) {
					t.Errorf("pair %d: data differ", i)
				}
			})
		}
	}
	wg.Wait()
}

// Two queue pairs of one device, and one queue pair that is its own peer.
func TestOneDevice(t *testing.T) {
	for _, mode := range []string{"rx=udp", "rx=auto"} {
		t.Run(mode, func(t *testing.T) {
			d := open(t, mode)
			a, b := newEnd(t, d, 1<<20, qp.Init{}), newEnd(t, d, 1<<20, qp.Init{})
			connect(a, b)
			testMessages(t, a, b)
			testMessages(t, b, a)

			own := newEnd(t, d, 8192, qp.Init{})
			own.up(d.Attr().Addr, own.qp.QPN())
			fillPattern(own.buf[:4096], 1)
			own.recv(1, own.mr.SGE(4096, 4096))
			own.send(qp.SendWR{ID: 2, Opcode: qp.OpSend, SGEs: []qp.SGE{own.mr.SGE(0, 4096)}})
			own.wantEach(nil, map[uint64]qp.Status{1: qp.StatusSuccess, 2: qp.StatusSuccess})
			if !bytes.Equal(own.buf[:4096], own.buf[4096:]) {
				t.Error("data differ")
			}
		})
	}
}

// One device talks to several others, and a queue pair hears its own peer only.
func TestStar(t *testing.T) {
	center := open(t, "")
	var wg sync.WaitGroup
	for i := range 4 {
		in, out := newEnd(t, center, 4096, qp.Init{}), newEnd(t, open(t, ""), 4096, qp.Init{})
		connect(in, out)
		wg.Go(func() {
			fillPattern(out.buf, i)
			if err := in.qp.PostRecv(&qp.RecvWR{SGEs: []qp.SGE{in.mr.SGE(0, 4096)}}); err != nil {
				t.Error(err)
			}
			if err := out.qp.PostSend(&qp.SendWR{Opcode: qp.OpSend, SGEs: []qp.SGE{out.mr.SGE(0, 4096)}}); err != nil {
				t.Error(err)
			}
			if err := in.cq.Wait(in.ctx); err != nil {
				t.Error(err)
				return
			}
			var wc [1]qp.WC
			if n, err := in.cq.Poll(wc[:]); n != 1 || err != nil || wc[0].Status != qp.StatusSuccess || !bytes.Equal(in.buf, out.buf) {
				t.Errorf("%d completions %+v, %v", n, wc, err)
			}
		})
	}
	wg.Wait()
}
