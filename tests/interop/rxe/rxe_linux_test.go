//go:build interop

package rxe

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/guestexec"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/peerproto"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/vm"
)

// sizes are of messages: none, less than a word, around each path MTU, many
// packets, and lengths that need padding.
var sizes = []int{0, 1, 3, 7, 64, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 1<<20 - 1, 1 << 20}

// smallSizes are for what makes a megabyte take a minute under emulation: a small path MTU, with losses above all.
var smallSizes = append(slices.Clone(sizes[:len(sizes)-2]), 1<<17-1)

var opcodes = []qp.Opcode{qp.OpSend, qp.OpSendImm, qp.OpWrite, qp.OpWriteImm, qp.OpRead}

// A pair is two endpoints. What a sends is for a queue pair and a region that b does not
// have, if a switch is to turn them into those that it has.
type pair struct {
	a, b  *peer
	turns rocev2.HeaderChange
}

// connect makes a queue pair on each end and connects them. The PSNs wrap soon.
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
		if c.Peer = *end.peer; end.p == p.a {
			c.Peer.QPN ^= p.turns.QPN
			c.Peer.RKey ^= p.turns.RKey
		}
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
	for i, m := range sent {
		if m.Status != qp.StatusSuccess {
			t.Fatalf("%v of %d bytes from %s: completes with %q", b.Opcode, b.Sizes[i], from.name, m.Status)
		}
	}
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
	case qp.OpRead:
		sendOp, recvOp = "RDMA_READ", ""
	}
	for i, size := range b.Sizes {
		s, g := sent[i], got[i]
		if s.Status != qp.StatusSuccess || g.Status != qp.StatusSuccess || s.Trouble+g.Trouble != "" ||
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
	t.Helper()
	for _, n := range networks {
		for _, mtu := range mtus {
			if n.imp != (vm.Impairment{}) && mtu != 1024 && mtu != 4096 && os.Getenv("MCRDMA_LONG") == "" {
				continue
			}
			t.Run(fmt.Sprintf("%s/mtu%d", n.name, mtu), func(t *testing.T) {
				began := time.Now()
				p.connect(t, usual(mtu))
				imp := n.imp
				imp.Seed += uint64(mtu)
				l.lab.Impair(imp)
				some := sizes
				if mtu < 2048 && n.imp != (vm.Impairment{}) {
					some = smallSizes
				}
				p.batches(t, some, uint64(mtu))
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
	pair{a: l.guestPeer(t, 0), b: l.guestPeer(t, 1)}.matrix(t, l, []int{1024})
}

func TestSoftroceToKernel(t *testing.T) {
	l := getLab(t, 4200, 1)
	pair{a: l.hostPeer(t), b: l.guestPeer(t, 0)}.matrix(t, l, []int{256, 512, 1024, 2048, 4096})
}

// TestNeutral: the kernel takes packets whose QPN and rkey were rewritten on the way, under the
// ICRC that they were sent with: identification and source port keep it right. Those that
// were damaged, too, it drops.
func TestNeutral(t *testing.T) {
	l := getLab(t, 4200, 1)
	p := pair{a: l.hostPeer(t), b: l.guestPeer(t, 0), turns: rocev2.HeaderChange{QPN: 0xa5c3f1, RKey: 0xdeadbeef}}
	short := []int{0, 1, 2, 3, 4, 5, 7, 31, 64, 255, 256, 257, 1023, 1024, 1025, 2047, 3001, 4093, 4094, 4095, 4096, 4097, 20_001}
	for _, n := range networks {
		for _, mtu := range []int{1024, 4096} {
			t.Run(fmt.Sprintf("%s/mtu%d", n.name, mtu), func(t *testing.T) {
				to := p.b.ask(t, peerproto.Request{Create: &peerproto.Create{}}).Endpoint.Addr
				imp := n.imp
				imp.To, imp.Rewrite, imp.Seed = to.As4(), p.turns, imp.Seed+uint64(mtu)
				l.lab.Impair(imp)
				p.connect(t, usual(mtu))
				p.batches(t, short, uint64(mtu))
				st := l.lab.Impair(vm.Impairment{})
				t.Logf("%+v", st)
				if st.Rewritten < 100 || (st.Corrupted > 0) != (n.imp.Corrupt > 0) {
					t.Errorf("the network did not do as told: %+v", st)
				}
			})
		}
	}
}

// TestVariants tries the other ways in which softroce reaches the network.
func TestVariants(t *testing.T) {
	l := getLab(t, 4200, 1)
	tunnel, err := l.lab.Tunnel()
	if err != nil {
		t.Fatal(err)
	}
	host := "softroce:" + vm.HostAddr.Addr().String()
	for _, device := range []string{
		host + "?rx=raw", host + "?gso=off&gro=off&batch=1", host + "?cc=off&window=512",
		fmt.Sprintf("softroce:10.77.0.9/24,mtu=4200,tunnel=127.0.0.1:0-%v", tunnel),
	} {
		t.Run(device, func(t *testing.T) {
			p := pair{a: l.startHostPeer(t, device), b: l.guestPeer(t, 0)}
			p.connect(t, usual(256))
			p.batches(t, smallSizes, 256)
			p.connect(t, usual(4096))
			p.batches(t, sizes, 4096)
			for _, imp := range []vm.Impairment{{Loss: 0.02, Seed: 6}, {Corrupt: 0.02, Seed: 7}} {
				p.connect(t, usual(4096))
				l.lab.Impair(imp)
				p.batches(t, sizes, 1)
				l.lab.Impair(vm.Impairment{})
			}
		})
	}
}

// TestUnprivilegedReceive: a UDP socket does not show the IP identification,
// which the kernel counts up and the ICRC covers, so softroce drops what it
// cannot check instead of taking it on trust. See package udplink.
func TestUnprivilegedReceive(t *testing.T) {
	l := getLab(t, 4200, 1)
	p := pair{a: l.startHostPeer(t, "softroce:"+vm.HostAddr.Addr().String()+"?rx=udp"), b: l.guestPeer(t, 0)}
	c := usual(1024)
	c.RetryCnt = 1
	p.connect(t, c)
	sent := p.a.ask(t, peerproto.Request{Send: &peerproto.Send{Batch: peerproto.Batch{Opcode: qp.OpWrite, Sizes: []int{8}}}}).Messages
	if sent[0].Status != qp.StatusRetryExcErr {
		t.Errorf("completes with %q", sent[0].Status)
	}
	if n := p.a.ask(t, peerproto.Request{Counters: &peerproto.Counters{}}).Counters["rx_drop_icrc"]; n == 0 {
		t.Error("no packet was dropped for its ICRC")
	}
}

// TestDeviceInGuest runs the tests of package ibverbs where there is a device.
func TestDeviceInGuest(t *testing.T) {
	l := getLab(t, 4200, 1)
	out, err := l.guests[0].Run(t.Context(), guestexec.Request{
		Argv:    []string{"/bin/ibverbs.test", "-test.v", "-test.timeout=100s"},
		Env:     []string{"MCRDMA_IBVERBS_DEVICE=rxe0"},
		Timeout: 2 * time.Minute,
	})
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(out, "--- PASS: TestLoopback") || strings.Contains(out, "--- SKIP") {
		t.Error("not all tests have run")
	}
	t.Log(out)
}

// TestEthernetMTU uses a link of the usual MTU, on which IB's is 1024.
func TestEthernetMTU(t *testing.T) {
	l := getLab(t, 1500, 1)
	p := pair{a: l.hostPeer(t), b: l.guestPeer(t, 0)}
	for _, end := range []*peer{p.a, p.b} {
		if got := end.ask(t, peerproto.Request{Create: &peerproto.Create{}}).Endpoint.ActiveMTU; got != 1024 {
			t.Errorf("%s: path MTU %d on an MTU of 1500, want 1024", end.name, got)
		}
	}
	p.connect(t, usual(1024))
	p.batches(t, sizes, 1)
}

// bothWays runs f with softroce sending to the kernel, and the other way.
func bothWays(t *testing.T, f func(t *testing.T, l *testLab, from, to *peer)) {
	l := getLab(t, 4200, 1)
	host, guest := l.hostPeer(t), l.guestPeer(t, 0)
	t.Run("softroce to rxe", func(t *testing.T) { f(t, l, host, guest) })
	t.Run("rxe to softroce", func(t *testing.T) { f(t, l, guest, host) })
}

// TestReceiverNotReady posts receives only after the receiver has said that
// there are none.
func TestReceiverNotReady(t *testing.T) {
	bothWays(t, func(t *testing.T, l *testLab, from, to *peer) {
		for _, op := range []qp.Opcode{qp.OpSend, qp.OpSendImm, qp.OpWriteImm} {
			for _, size := range []int{0, 5, 5000} {
				pair{a: from, b: to}.connect(t, usual(1024))
				l.lab.Impair(vm.Impairment{})
				b := peerproto.Batch{Opcode: op, Sizes: []int{size, 17}, Seed: uint64(size)}
				to.ask(t, peerproto.Request{Prepare: &peerproto.Prepare{Batch: b, NoPost: true}})
				type result struct {
					resp peerproto.Response
					err  error
				}
				sent := make(chan result, 1)
				go func() {
					resp, err := from.try(peerproto.Request{Send: &peerproto.Send{Batch: b}})
					sent <- result{resp, err}
				}()
				for deadline := time.Now().Add(20 * time.Second); l.lab.Stats().RNRNaks < 2; {
					if time.Now().After(deadline) {
						t.Fatalf("%v of %d bytes without a receive: no RNR NAKs: %+v", op, size, l.lab.Stats())
					}
					time.Sleep(time.Millisecond)
				}
				to.ask(t, peerproto.Request{Prepare: &peerproto.Prepare{Batch: b, NoClear: true}})
				r := <-sent
				if r.err != nil {
					t.Fatal(r.err)
				}
				compare(t, b, r.resp.Messages, to.ask(t, peerproto.Request{Collect: &b}).Messages)
			}
		}
	})
}

// failure is how a batch is to fail.
type failure struct {
	name    string
	send    peerproto.Send
	prepare *peerproto.Prepare
	rnr     uint8 // RNR retries
	sender  qp.Status
	// receiver is the status at the other end, if it has a completion.
	receiver qp.Status
	// toKernel, if set, are the two where the kernel is the receiver and
	// deviates from the specification.
	toKernel *[2]qp.Status
}

func failures() []failure {
	batch := func(op qp.Opcode, n int) peerproto.Batch {
		return peerproto.Batch{Opcode: op, Sizes: []int{n}, Seed: 3}
	}
	prepare := func(b peerproto.Batch, short int) *peerproto.Prepare {
		return &peerproto.Prepare{Batch: b, Short: short}
	}
	send, write, read := batch(qp.OpSend, 3000), batch(qp.OpWrite, 3000), batch(qp.OpRead, 3000)
	return []failure{
		{"wrong rkey", peerproto.Send{Batch: write, RKeyXor: 0x55}, nil, 7, qp.StatusRemAccessErr, qp.StatusSuccess, nil},
		{"behind the region", peerproto.Send{Batch: write, VAOffset: 4 << 20}, nil, 7, qp.StatusRemAccessErr, qp.StatusSuccess, nil},
		{"over the region's end", peerproto.Send{Batch: write, VAOffset: 4<<20 - 1000}, nil, 7, qp.StatusRemAccessErr, qp.StatusSuccess, nil},
		{"READ, wrong rkey", peerproto.Send{Batch: read, RKeyXor: 0x55}, nil, 7, qp.StatusRemAccessErr, qp.StatusSuccess, nil},
		{"READ over the region's end", peerproto.Send{Batch: read, VAOffset: 4<<20 - 1000}, nil, 7, qp.StatusRemAccessErr, qp.StatusSuccess, nil},
		// IBTA 1.2.1 table 58 calls this an invalid request; the kernel, up to
		// 6.1 at least, treats its own receive request as malformed instead.
		{"receive too short", peerproto.Send{Batch: send}, prepare(send, 1), 7, qp.StatusRemInvReqErr, qp.StatusLocLenErr,
			&[2]qp.Status{qp.StatusRemOpErr, qp.StatusLocQPOpErr}},
		{"never ready", peerproto.Send{Batch: send}, nil, 2, qp.StatusRNRRetryExcErr, qp.StatusSuccess, nil},
	}
}

// TestFailures checks that each end understands the other's fatal NAKs.
func TestFailures(t *testing.T) {
	bothWays(t, func(t *testing.T, _ *testLab, from, to *peer) {
		for _, f := range failures() {
			c := usual(1024)
			c.RNRRetry = f.rnr
			pair{a: from, b: to}.connect(t, c)
			if f.prepare != nil {
				to.ask(t, peerproto.Request{Prepare: f.prepare})
			}
			if f.toKernel != nil && to.kernel {
				f.sender, f.receiver = f.toKernel[0], f.toKernel[1]
			}
			sent := from.ask(t, peerproto.Request{Send: &f.send}).Messages
			if sent[0].Status != f.sender {
				t.Errorf("%s: completes with %q, want %q", f.name, sent[0].Status, f.sender)
			}
			if got := from.ask(t, peerproto.Request{State: &peerproto.State{}}).State; got != "ERR" {
				t.Errorf("%s: the sender's queue pair is in state %s afterwards", f.name, got)
			}
			if f.receiver == qp.StatusSuccess {
				continue
			}
			got := to.ask(t, peerproto.Request{Collect: &f.send.Batch}).Messages
			if got[0].Status != f.receiver {
				t.Errorf("%s: the receive completes with %q, want %q", f.name, got[0].Status, f.receiver)
			}
		}
	})
}

// TestDeadPeer: every packet is lost; the retries run out.
func TestDeadPeer(t *testing.T) {
	bothWays(t, func(t *testing.T, l *testLab, from, to *peer) {
		c := usual(1024)
		c.RetryCnt = 3
		pair{a: from, b: to}.connect(t, c)
		l.lab.Impair(vm.Impairment{Loss: 1})
		sent := from.ask(t, peerproto.Request{Send: &peerproto.Send{Batch: peerproto.Batch{
			Opcode: qp.OpWrite, Sizes: []int{10, 20}, Seed: 4,
		}}}).Messages
		st := l.lab.Impair(vm.Impairment{})
		if sent[0].Status != qp.StatusRetryExcErr {
			t.Errorf("completes with %q, want %q", sent[0].Status, qp.StatusRetryExcErr)
		}
		if st.Frames < uint64(c.RetryCnt) {
			t.Errorf("only %d packets were sent", st.Frames)
		}
	})
}

// TestPingpong plays against rdma-core's own example, as its client and as
// its server.
func TestPingpong(t *testing.T) {
	l := getLab(t, 4200, 1)
	g := l.guests[0]
	const port, iters = 18515, 300
	for _, tc := range []struct {
		size, mtu int
		imp       vm.Impairment
	}{
		{4096, 1024, vm.Impairment{}}, {1, 256, vm.Impairment{}}, {65536, 4096, vm.Impairment{}},
		{4096, 1024, vm.Impairment{Loss: 0.01, Seed: 5}},
	} {
		argv := []string{"/bin/ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-i", "1", "-m", fmt.Sprint(tc.mtu),
			"-n", fmt.Sprint(iters), "-s", fmt.Sprint(tc.size), "-p", fmt.Sprint(port), "-c"}
		name := fmt.Sprintf("%dB mtu%d loss%v", tc.size, tc.mtu, tc.imp.Loss)
		game := peerproto.Pingpong{Iters: iters, Size: tc.size, MTU: tc.mtu}
		t.Run(name+" server", func(t *testing.T) {
			host := l.hostPeer(t)
			l.lab.Impair(tc.imp)
			host.ask(t, peerproto.Request{Create: &peerproto.Create{PSN: 0xfffff0}})
			host.ask(t, peerproto.Request{Listen: &peerproto.Listen{Port: port}})
			client := make(chan error, 1)
			go func() { client <- pingpong(t, g, append(argv, vm.HostAddr.Addr().String())) }()
			_, err := host.try(peerproto.Request{Pingpong: &game})
			if err := errors.Join(err, <-client); err != nil {
				t.Error(err)
			}
		})
		t.Run(name+" client", func(t *testing.T) {
			host := l.hostPeer(t)
			l.lab.Impair(tc.imp)
			host.ask(t, peerproto.Request{Create: &peerproto.Create{PSN: 0xfffff0}})
			server := make(chan error, 1)
			go func() { server <- pingpong(t, g, argv) }()
			game := game
			game.Server = netip.AddrPortFrom(g.Addr(), port)
			_, err := host.try(peerproto.Request{Pingpong: &game})
			for deadline := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(deadline) &&
				strings.Contains(err.Error(), "connection refused"); {
				_, err = host.try(peerproto.Request{Pingpong: &game}) // the server is still starting
			}
			if err := errors.Join(err, <-server); err != nil {
				t.Error(err)
			}
		})
	}
}

// pingpong runs rdma-core's program and checks what it says.
func pingpong(t *testing.T, g *vm.Guest, argv []string) error {
	out, err := g.Run(t.Context(), guestexec.Request{Argv: argv, Timeout: time.Minute})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if strings.Contains(out, "invalid data") || !strings.Contains(out, "usec/iter") {
		return fmt.Errorf("%v says:\n%s", argv, out)
	}
	return nil
}
