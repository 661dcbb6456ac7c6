package softroce

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// Every way of moving packets that a device can be told to use.
var modes = []string{
	"rx=raw", "rx=raw&gso=off", "rx=raw&gro=off", "rx=raw&batch=1", "rx=raw&gso=off&gro=off&batch=1",
	"rx=udp", "rx=udp&gso=off", "rx=udp&gro=off", "rx=udp&batch=1", "rx=udp&gso=off&gro=off&batch=1",
	"cc=off", "window=1",
}

func TestMessages(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			a, b := pair(t, mode, 1<<20)
			testMessages(t, a, b)
			c := b.dev.Counters()
			for k, v := range c {
				if len(k) > 8 && k[:8] == "rx_drop_" && v != 0 {
					t.Errorf("%s is %d", k, v)
				}
			}
		})
	}
}

// testMessages sends one message of each size and operation from a to b.
func testMessages(t *testing.T, a, b *end) {
	t.Helper()
	sizes := []int{0, 1, 3, 64, 255, 1024, 4095, 4096, 4097, 8192, 12289, 65536, 1 << 20}
	id := uint64(0)
	for _, n := range sizes {
		for _, op := range []qp.Opcode{qp.OpSend, qp.OpSendImm, qp.OpWrite, qp.OpWriteImm} {
			id++
			fillPattern(a.buf[:n], int(id))
			clear(b.buf)
			b.recv(id, b.mr.SGE(0, n))
			a.send(qp.SendWR{ID: id, Opcode: op, SGEs: []qp.SGE{a.mr.SGE(0, n)}, Imm: 0xdead0000 + uint32(id),
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
			a.want(id, qp.StatusSuccess)
			want := n
			if op == qp.OpWrite { // raises no completion at the peer: an empty message behind it does
				want = 0
				a.send(qp.SendWR{ID: id, Opcode: qp.OpSend})
				a.want(id, qp.StatusSuccess)
			}
			wc := b.want(id, qp.StatusSuccess)
			if int(wc.ByteLen) != want || wc.HasImm != op.HasImm() || wc.HasImm && wc.Imm != 0xdead0000+uint32(id) {
				t.Fatalf("%v of %d bytes: completion %+v", op, n, wc)
			}
			if !bytes.Equal(a.buf[:n], b.buf[:n]) || n < len(b.buf) && b.buf[n] != 0 {
				t.Fatalf("%v of %d bytes: data differ", op, n)
			}
		}
	}
}

func TestPathMTUs(t *testing.T) {
	for mtu := 256; mtu <= 4096; mtu *= 2 {
		for _, mode := range []string{"rx=raw", "rx=udp", "rx=raw&gso=off"} {
			t.Run(fmt.Sprint(mtu, mode), func(t *testing.T) {
				t.Parallel()
				a := newEnd(t, open(t, mode), 1<<20, qp.Init{})
				b := newEnd(t, open(t, mode), 1<<20, qp.Init{})
				a.attr.PathMTU, b.attr.PathMTU = mtu, mtu
				connect(a, b)
				testMessages(t, a, b)
			})
		}
	}
}
