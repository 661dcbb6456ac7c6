package udplink

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// drawPacket draws a packet without content: what segments looks at.
func drawPacket(t *rapid.T) link.Tx {
	op := rapid.SampledFrom([]rocev2.Opcode{rocev2.WriteFirst, rocev2.WriteMiddle, rocev2.WriteLastImm, rocev2.SendMiddle, 0xff}).Draw(t, "op")
	mtu := rapid.SampledFrom([]int{256, 256, 1024, 4096, 100}).Draw(t, "mtu")
	p := link.Tx{Dst: testenv.Loopback(), Len: op.HeaderLen() + mtu, Parts: [][]byte{{byte(op)}}}
	for range rapid.SampledFrom([]int{0, 1, 29}).Draw(t, "pieces") {
		p.Parts = append(p.Parts, nil)
	}
	return p
}

// TestSegments: what goes into one GSO message is what the kernel takes and a
// raw socket's receiver can cut, and no more could.
func TestSegments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// A run of one kind that something interrupts somewhere.
		first := drawPacket(t)
		batch := make([]link.Tx, rapid.IntRange(1, 150).Draw(t, "packets"))
		for i := range batch {
			batch[i] = first
		}
		other := drawPacket(t)
		other.Dst = first.Dst
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			other.Dst = testenv.Loopback()
		case 1:
			other.TOS = 1
		}
		batch[rapid.IntRange(0, len(batch)-1).Draw(t, "at")] = other

		n := segments(batch)
		if n < 1 || n > len(batch) {
			t.Fatalf("%d of %d packets", n, len(batch))
		}
		if n > 1 && !fits(batch[:n]) {
			t.Fatalf("%d packets are too many", n)
		}
		if n < len(batch) && fits(batch[:n+1]) {
			t.Fatalf("%d packets, one more would do", n)
		}
	})
}

// fits says whether packets can be one GSO message, by the rules as the kernel
// and the receiver have them; each ICRC counts as a piece.
func fits(packets []link.Tx) bool {
	first := packets[0]
	full := map[int]bool{256: true, 512: true, 1024: true, 2048: true, 4096: true}
	ok := full[first.Len-rocev2.Opcode(first.Parts[0][0]).HeaderLen()] && len(packets) <= 64
	bytes, pieces := 0, 1
	for i, p := range packets {
		bytes += p.Len + rocev2.ICRCLen
		pieces += len(p.Parts) + 1
		last := i == len(packets)-1
		ok = ok && p.Dst == first.Dst && p.TOS == first.TOS && (p.Len == first.Len || last && p.Len < first.Len)
	}
	// Whether the longest message would hold packets as long as the first
	// decides, also if the last one is shorter.
	return ok && len(packets)*(first.Len+rocev2.ICRCLen) <= 65507 && bytes <= 65507 && pieces <= 1024
}

// TestManyPieces: a payload may be gathered from as many pieces as the kernel
// takes; a packet of more is counted, and those around it go.
func TestManyPieces(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	m := newMaker(b.Addr())
	var run []link.Tx
	for range 40 { // more pieces than one GSO message takes
		run = append(run, m.packet(rocev2.WriteMiddle, 1024, 100))
	}
	carry(t, a, b, append(run, m.packet(rocev2.SendMiddle, 4096, 1022)))
	if n := counter(a, "tx_gso"); n < 4 {
		t.Errorf("%d GSO messages of 40 packets with 100 pieces each, want 4 at least", n)
	}

	around := m.full(2, 256)
	if err := a.Send([]link.Tx{around[0], m.packet(rocev2.SendMiddle, 4096, 1100), around[1]}); err != nil {
		t.Fatal(err)
	}
	for i, rx := range receive(t, b, 2) {
		if err := differs(a.Addr(), around[i], rx); err != nil {
			t.Errorf("packet %d: %v", i, err)
		}
	}
	if n := counter(a, "tx_err_too_big"); n != 1 {
		t.Errorf("tx_err_too_big is %d, want 1", n)
	}
}

// TestNoRoomInUDP: what no UDP datagram can hold is counted, and nothing else is
// lost by it, with GSO messages before and behind.
func TestNoRoomInUDP(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	m := newMaker(b.Addr())
	batch := append(m.full(20, 1024), m.packet(rocev2.SendOnly, 65536, 1), m.packet(rocev2.SendOnly, 200000, 3))
	batch = append(batch, m.full(20, 1024)...)
	if err := a.Send(batch); err != nil {
		t.Fatal(err)
	}
	good := append(batch[:20:20], batch[22:]...)
	for i, rx := range receive(t, b, len(good)) {
		if err := differs(a.Addr(), good[i], rx); err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
	}
	if n := counter(a, "tx_err_too_big"); n != 2 {
		t.Errorf("tx_err_too_big is %d, want 2", n)
	}
}

// TestBroadcastRefused: the kernel's own policy is counted as such.
func TestBroadcastRefused(t *testing.T) {
	a := open(t, Options{})
	p := packet(rocev2.SendOnly, 8, 1)
	to := a.Addr().As4()
	to[1], to[2], to[3] = 255, 255, 255
	m := newMaker(a.Addr())
	batch := append(m.full(3, 256), tx(a.Addr(), 0, 0, p))
	batch[1].Dst = batch[1].Dst.Prev() // no host there: lost, but not refused
	batch[3].Dst = netip.AddrFrom4(to)
	run := m.full(5, 256)
	for i := range run {
		run[i].Dst = netip.AddrFrom4(to)
	}
	batch = append(batch, run...)
	if err := a.Send(batch); err != nil {
		t.Fatal(err)
	}
	for i, rx := range receive(t, a, 2) {
		if err := differs(a.Addr(), batch[i*2], rx); err != nil {
			t.Error(err)
		}
	}
	if n := counter(a, "tx_err_refused"); n != 6 {
		t.Errorf("tx_err_refused is %d, want 6", n)
	}
}

func TestClassify(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.EMSGSIZE: "tx_err_too_big", unix.ENETUNREACH: "tx_err_unreachable", unix.EHOSTUNREACH: "tx_err_unreachable",
		unix.ENETDOWN: "tx_err_unreachable", unix.EADDRNOTAVAIL: "tx_err_unreachable", unix.EPERM: "tx_err_refused",
		unix.EACCES: "tx_err_refused", unix.ENOBUFS: "tx_err_no_buffers", unix.ENOMEM: "tx_err_no_buffers",
		unix.EINVAL: "tx_err_other", unix.EBADF: "tx_err_other",
	} {
		if got := txErrorNames[classify(errno)]; got != want {
			t.Errorf("%v counts as %s, want %s", errno, got, want)
		}
	}
}
