//go:build interop

package rxe

import (
	"fmt"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/peerproto"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/vm"
)

// sizes are of messages: none, less than a word, around each path MTU, many
// packets, and lengths that need padding.
var sizes = []int{0, 1, 3, 7, 64, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 1<<20 - 1, 1 << 20}

var opcodes = []qp.Opcode{qp.OpSend, qp.OpSendImm, qp.OpWrite, qp.OpWriteImm}

// A pair is two endpoints.
type pair struct{ a, b *peer }

// connection is what the two ends agree upon. The PSNs wrap soon.
func (p pair) connect(t *testing.T, c peerproto.Connect) {
	t.Helper()
	ea := p.a.ask(t, peerproto.Request{Create: &peerproto.Create{PSN: 0xfffff0}}).Endpoint
	eb := p.b.ask(t, peerproto.Request{Create: &peerproto.Create{PSN: rocev2.Mask24}}).Endpoint
	if c.MTU > min(ea.ActiveMTU, eb.ActiveMTU) {
		t.Fatalf("path MTU %d, but the ports have %d and %d", c.MTU, ea.ActiveMTU, eb.ActiveMTU)
	}
	for _, end := range []struct {
		p    *peer
		peer *peerproto.Endpoint
	}{{p.a, eb}, {p.b, ea}} {
		c := c
		c.Peer = *end.peer
		end.p.ask(t, peerproto.Request{Connect: &c})
	}
}

// usual are connection parameters that suit emulation: 134 ms until the first
// time-out.
func usual(mtu int) peerproto.Connect {
	return peerproto.Connect{MTU: mtu, Timeout: 15, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12, DSCP: 26}
}

// transfer sends a batch and checks what arrives.
func transfer(t *testing.T, from, to *peer, b peerproto.Batch) {
	t.Helper()
	to.ask(t, peerproto.Request{Prepare: &peerproto.Prepare{Batch: b}})
	sent := from.ask(t, peerproto.Request{Send: &peerproto.Send{Batch: b}}).Messages
	got := to.ask(t, peerproto.Request{Collect: &b}).Messages
	compare(t, b, sent, got)
}

func compare(t *testing.T, b peerproto.Batch, sent, got []peerproto.Message) {
	t.Helper()
	if len(sent) != len(b.Sizes) || len(got) != len(b.Sizes) {
		t.Fatalf("%v: %d messages sent, %d arrived, of %d", b.Opcode, len(sent), len(got), len(b.Sizes))
	}
	sendOp, recvOp := "SEND", "RECV"
	switch b.Opcode {
	case qp.OpWrite:
		sendOp, recvOp = "RDMA_WRITE", ""
	case qp.OpWriteImm:
		sendOp, recvOp = "RDMA_WRITE", "RECV_RDMA_WITH_IMM"
	}
	for i, size := range b.Sizes {
		s, g := sent[i], got[i]
		if s.Status != qp.Success || g.Status != qp.Success || s.Trouble+g.Trouble != "" ||
			s.Opcode != "" && s.Opcode != sendOp || g.Opcode != recvOp {
			t.Fatalf("%v of %d bytes:\nsent %+v\ngot  %+v", b.Opcode, size, s, g)
		}
		if s.Hash != g.Hash || g.Len != size {
			t.Fatalf("%v of %d bytes: %d arrived, hash %s sent, %s arrived", b.Opcode, size, g.Len, s.Hash, g.Hash)
		}
		if b.Opcode.HasImm() != (g.Imm != nil) || g.Imm != nil && *g.Imm != b.Imm(i) {
			t.Fatalf("%v of %d bytes: immediate %v arrived, sent was %#x", b.Opcode, size, g.Imm, b.Imm(i))
		}
	}
}

// batches runs all opcodes both ways.
func (p pair) batches(t *testing.T, sizes []int, seed uint64) {
	t.Helper()
	for _, op := range opcodes {
		b := peerproto.Batch{Opcode: op, Sizes: sizes, Seed: seed}
		transfer(t, p.a, p.b, b)
		b.Seed += 1000
		transfer(t, p.b, p.a, b)
	}
}

// networks are what the pairs are tried on.
var networks = []struct {
	name string
	imp  vm.Impairment
}{
	{"clean", vm.Impairment{}},
	{"loss2%", vm.Impairment{Loss: 0.02, Seed: 1}},
	{"corrupt2%", vm.Impairment{Corrupt: 0.02, Seed: 2}},
}

func (p pair) matrix(t *testing.T, l *testLab, mtus []int) {
	for _, n := range networks {
		for _, mtu := range mtus {
			t.Run(fmt.Sprintf("%s/mtu%d", n.name, mtu), func(t *testing.T) {
				began := time.Now()
				p.connect(t, usual(mtu))
				n.imp.Seed += uint64(mtu)
				l.lab.Impair(n.imp)
				p.batches(t, sizes, uint64(mtu))
				st := l.lab.Impair(vm.Impairment{})
				t.Logf("%+v in %v", st, time.Since(began).Round(time.Millisecond))
				if st.Frames == 0 || (st.Lost > 0) != (n.imp.Loss > 0) || (st.Corrupted > 0) != (n.imp.Corrupt > 0) {
					t.Errorf("the network did not do as told: %+v", st)
				}
			})
		}
	}
}

func TestKernelToKernel(t *testing.T) {
	l := getLab(t, 4200, 2)
	pair{l.guestPeer(t, 0), l.guestPeer(t, 1)}.matrix(t, l, []int{1024})
}

func TestSoftroceToKernel(t *testing.T) {
	l := getLab(t, 4200, 1)
	pair{l.hostPeer(t), l.guestPeer(t, 0)}.matrix(t, l, []int{256, 512, 1024, 2048, 4096})
}
