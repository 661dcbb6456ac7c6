package udplink

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A maker makes packets with content of their own, reproducibly.
type maker struct {
	rnd *rand.Rand
	dst netip.Addr
	psn int
}

func newMaker(dst netip.Addr) *maker { return &maker{rnd: rand.New(rand.NewPCG(1, 2)), dst: dst} }

// packet makes a packet with size bytes of payload, as the device hands it over:
// headers, payload in the given number of pieces, padding.
func (m *maker) packet(op rocev2.Opcode, size, pieces int) link.Tx {
	m.psn++
	data := packet(op, size, m.psn)
	h := op.HeaderLen()
	tx := link.Tx{Dst: m.dst, Len: len(data), Parts: [][]byte{data[:h]}}
	for i := range pieces {
		tx.Parts = append(tx.Parts, data[h+size*i/pieces:h+size*(i+1)/pieces])
	}
	if pad := data[h+size:]; len(pad) > 0 {
		tx.Parts = append(tx.Parts, pad)
	}
	return tx
}

// full makes n packets of a path MTU.
func (m *maker) full(n, mtu int) (batch []link.Tx) {
	for range n {
		batch = append(batch, m.packet(rocev2.WriteMiddle, mtu, 1))
	}
	return batch
}

// message makes the packets of one message: full ones and one of last bytes.
func (m *maker) message(first, middle, end rocev2.Opcode, mtu, middles, last int) (batch []link.Tx) {
	batch = append(batch, m.packet(first, mtu, 1))
	for range middles {
		batch = append(batch, m.packet(middle, mtu, 1))
	}
	return append(batch, m.packet(end, last, 1))
}

// runs makes batches of packets of every shape. None has more bytes than a
// socket buffer of the system's default size takes.
func (m *maker) runs() (runs [][]link.Tx) {
	onlies := []rocev2.Opcode{rocev2.SendOnly, rocev2.SendOnlyImm, rocev2.WriteOnly, rocev2.WriteOnlyImm}
	for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
		for _, op := range [][3]rocev2.Opcode{
			{rocev2.WriteFirst, rocev2.WriteMiddle, rocev2.WriteLast},
			{rocev2.WriteFirst, rocev2.WriteMiddle, rocev2.WriteLastImm},
			{rocev2.SendFirst, rocev2.SendMiddle, rocev2.SendLast},
			{rocev2.SendFirst, rocev2.SendMiddle, rocev2.SendLastImm},
		} {
			runs = append(runs, m.message(op[0], op[1], op[2], mtu, 11, mtu), m.message(op[0], op[1], op[2], mtu, 7, mtu/2-3))
		}
		runs = append(runs, m.full(min(140, 130<<10/mtu), mtu)) // more than one GSO message
		var pieces, only []link.Tx
		for n := range 24 {
			pieces = append(pieces, m.packet(rocev2.SendMiddle, mtu, 1+n*5))
			only = append(only, m.packet(onlies[n%4], []int{0, 1, mtu - 1, mtu}[n/4%4], 1))
		}
		runs = append(runs, pieces, only)
	}
	var mixed []link.Tx
	for range 60 {
		mtu := 256 << m.rnd.IntN(5)
		size := []int{mtu, mtu, m.rnd.IntN(mtu)}[m.rnd.IntN(3)]
		tx := m.packet([]rocev2.Opcode{rocev2.WriteMiddle, rocev2.WriteOnly, rocev2.SendOnlyImm}[m.rnd.IntN(3)], size, 1+m.rnd.IntN(3))
		tx.TOS = byte(m.rnd.IntN(2) << 1)
		mixed = append(mixed, tx)
	}
	ack, cnp := m.packet(rocev2.Acknowledge, 0, 0), m.packet(rocev2.CNP, 0, 0)
	return append(runs, mixed, []link.Tx{ack}, []link.Tx{cnp, ack, ack, ack, cnp})
}

// receive receives n packets in the calling goroutine, with copies of their
// data. If they do not come in time the link is closed, which fails the test.
func receive(t testing.TB, l *Link, n int) (got []link.Rx) {
	t.Helper()
	late := time.AfterFunc(10*time.Second, func() { l.Close() })
	defer late.Stop()
	batch := make([]link.Rx, 17)
	for len(got) < n {
		k, err := l.Recv(batch[:min(len(batch), n-len(got))])
		if err != nil {
			t.Fatalf("after %d of %d packets: %v; counters %v", len(got), n, err, counts(l))
		}
		for _, rx := range batch[:k] {
			rx.Data = bytes.Clone(rx.Data)
			got = append(got, rx)
		}
	}
	return got
}

// counts returns the counters of l that are not zero.
func counts(l *Link) map[string]uint64 {
	m := map[string]uint64{}
	l.Counters(m)
	maps.DeleteFunc(m, func(_ string, n uint64) bool { return n == 0 })
	return m
}

// drops returns how many packets l dropped, for whatever reason.
func drops(l *Link) (sum uint64) {
	for i := range l.counters.rxDrop {
		sum += l.counters.rxDrop[i].Load()
	}
	return sum
}

// differs says in what rx is not tx, sent from src.
func differs(src netip.Addr, tx link.Tx, rx link.Rx) error {
	want := slices.Concat(tx.Parts...)
	switch {
	case rx.Src != src:
		return fmt.Errorf("source %v, want %v", rx.Src, src)
	case rx.TOS != tx.TOS:
		return fmt.Errorf("ToS %#02x, want %#02x", rx.TOS, tx.TOS)
	case len(rx.Data) != len(want):
		return fmt.Errorf("%d bytes, want %d", len(rx.Data), len(want))
	case !bytes.Equal(rx.Data, want):
		return errors.New("other content")
	}
	return nil
}

// carry sends batch from a to b, which must receive just that.
func carry(t testing.TB, a, b *Link, batch []link.Tx) {
	t.Helper()
	if err := a.Send(batch); err != nil {
		t.Fatal(err)
	}
	for i, rx := range receive(t, b, len(batch)) {
		if err := differs(a.Addr(), batch[i], rx); err != nil {
			t.Fatalf("packet %d of %d: %v", i, len(batch), err)
		}
	}
}

// TestOffloads: packets of every shape arrive in order and unchanged, and the
// counters show that each offload is at work if it is on, and only then.
func TestOffloads(t *testing.T) {
	for _, rx := range []RXMode{RXRaw, RXUDP} {
		for i := range 8 {
			opt := Options{RX: rx, NoGSO: i&1 != 0, NoGRO: i&2 != 0, Batch: i >> 2}
			t.Run(fmt.Sprintf("rx=%v gso=%v gro=%v batch=%d", rx, !opt.NoGSO, !opt.NoGRO, opt.Batch), func(t *testing.T) {
				a, b := open(t, opt), open(t, opt)
				packets := uint64(0)
				for _, run := range newMaker(b.Addr()).runs() {
					packets += uint64(len(run))
					carry(t, a, b, run)
				}
				checkOffloads(t, opt, counts(a), counts(b), packets)
				if drops(b) != 0 {
					t.Errorf("dropped: %v", counts(b))
				}
			})
		}
	}
}

func checkOffloads(t *testing.T, opt Options, tx, rx map[string]uint64, packets uint64) {
	t.Helper()
	gso, batched := !opt.NoGSO, opt.Batch != 1
	// On loopback a raw socket gets a GSO message whole, whatever the options say.
	split := gso && (!opt.NoGRO || opt.RX == RXRaw)
	for _, c := range []struct {
		what string
		ok   bool
	}{
		{"no GSO or GRO is refused", tx["tx_gso_refused"]+rx["rx_gro_refused"] == 0},
		{"there are GSO messages if GSO is on", (tx["tx_gso"] > 0) == gso},
		{"there are fewer messages than packets if GSO is on", (tx["tx_messages"] < packets) == gso},
		{"GSO messages arrive whole if asked for", (rx["rx_split"] > 0) == split},
		{"fewer messages than packets arrive then", (rx["rx_messages"] < packets) == split},
		{"a call sends several messages if it may", (tx["tx_syscalls"] < tx["tx_messages"]) == batched},
		{"a call receives several messages if it may", (rx["rx_syscalls"] < rx["rx_messages"]) == batched},
		{"identifications are mostly guessed right", rx["rx_id_solved"] < packets/4},
	} {
		if !c.ok {
			t.Errorf("not so: %s; %d packets; sender %v, receiver %v", c.what, packets, tx, rx)
		}
	}
}

// TestUnlikeEnds: sender and receiver need not be set up alike.
func TestUnlikeEnds(t *testing.T) {
	opts := []Options{
		{}, {RX: RXUDP}, {RX: RXUDP, NoGRO: true}, {NoGSO: true, Batch: 1},
		{Batch: 3, Poll: -1, RcvBuf: 300000, SndBuf: 300000},
	}
	for i, oa := range opts {
		for j, ob := range opts {
			a, b := open(t, oa), open(t, ob)
			t.Logf("%d and %d", i, j)
			m, back := newMaker(b.Addr()), newMaker(a.Addr())
			carry(t, a, b, m.message(rocev2.WriteFirst, rocev2.WriteMiddle, rocev2.WriteLastImm, 1024, 40, 77))
			carry(t, b, a, back.message(rocev2.SendFirst, rocev2.SendMiddle, rocev2.SendLast, 4096, 20, 4096))
		}
	}
}

// TestEveryTOS: DSCP and ECN bits go over, in GSO messages too.
func TestEveryTOS(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		a, b := open(t, Options{RX: mode}), open(t, Options{RX: mode})
		m := newMaker(b.Addr())
		for tos := range 256 {
			batch := m.full(2, 256)
			for i := range batch {
				batch[i].TOS = byte(tos)
			}
			carry(t, a, b, batch)
		}
		var each []link.Tx // none is like the one before
		for tos := range 256 {
			tx := m.packet(rocev2.SendMiddle, 256, 1)
			tx.TOS = byte(tos)
			each = append(each, tx)
		}
		for run := range slices.Chunk(each, 64) {
			carry(t, a, b, run)
		}
	})
}

// TestRecvRoom: Recv gives no more than there is room for, and loses nothing by
// it.
func TestRecvRoom(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		a, b := open(t, Options{RX: mode}), open(t, Options{RX: mode})
		run := newMaker(b.Addr()).full(50, 256)
		if err := a.Send(run); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Recv(nil); n != 0 || err != nil {
			t.Fatalf("Recv(nil) = %d, %v", n, err)
		}
		for i := 0; len(run) > 0; i++ {
			batch := make([]link.Rx, 1+i%3*3)
			n, err := b.Recv(batch)
			if err != nil || n < 1 || n > len(batch) {
				t.Fatalf("Recv with room for %d = %d, %v", len(batch), n, err)
			}
			for k := range n {
				if err := differs(a.Addr(), run[k], batch[k]); err != nil {
					t.Fatal(err)
				}
			}
			run = run[n:]
		}
	})
}

// TestToSelf: a link may send to itself.
func TestToSelf(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		l := open(t, Options{RX: mode})
		carry(t, l, l, newMaker(l.Addr()).full(20, 1024))
	})
}

// TestNoAllocsLong: 256 packets of the largest path MTU there and back into the
// application's hands, without an allocation.
func TestNoAllocsLong(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		testNoAllocs(t, Options{RX: mode})
		testNoAllocs(t, Options{RX: mode, NoGSO: true, NoGRO: true})
	})
}

func testNoAllocs(t *testing.T, opt Options) {
	t.Helper()
	a, b := open(t, opt), open(t, opt)
	run := newMaker(b.Addr()).full(32, 4096)
	batch := make([]link.Rx, 64)
	if n := testing.AllocsPerRun(5, func() {
		for range 256 / len(run) {
			if err := a.Send(run); err != nil {
				t.Fatal(err)
			}
			for got := 0; got < len(run); {
				n, err := b.Recv(batch)
				if err != nil {
					t.Fatal(err)
				}
				got += n
			}
		}
	}); n != 0 {
		t.Errorf("%+v: %v allocations for 256 packets", opt, n)
	}
}
