package softroce

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/pipe"
)

// piped returns two connected queue pairs on devices at the ends of a cable in
// memory.
func piped(t testing.TB, cable pipe.Config, opt Options, size int, init qp.Init, change func(*qp.Attr)) (a, b *end) {
	t.Helper()
	ca, cb := pipe.New(cable)
	var ends [2]*end
	for i, c := range []framelink.Conn{ca, cb} {
		addr := []string{"10.9.1.1/24", "10.9.1.2/24"}[i]
		h := must(framelink.New(c, framelink.Config{Prefix: netip.MustParsePrefix(addr)}))(t)
		ends[i] = newEnd(t, onLink(t, h, opt), size, init)
		if change != nil {
			change(&ends[i].attr)
		}
	}
	connect(ends[0], ends[1])
	return ends[0], ends[1]
}

// Messages of every size from pieces of every size into others: what one side
// gathers is what the other scatters.
func TestGatherScatter(t *testing.T) {
	a, b := piped(t, pipe.Config{}, Options{}, 128<<10, qp.Init{MaxSGE: MaxSGE}, nil)
	// pieces cuts n bytes into pieces at spread offsets, backward in memory.
	pieces := func(e *end, n, piece int) (sges []qp.SGE, pick func() []byte) {
		at := len(e.buf)
		var order [][2]int
		for n > 0 {
			k := min(n, piece)
			at -= k + 3
			order = append(order, [2]int{at, k})
			sges = append(sges, e.mr.SGE(at, k))
			n -= k
		}
		return sges, func() (all []byte) {
			for _, o := range order {
				all = append(all, e.buf[o[0]:o[0]+o[1]]...)
			}
			return all
		}
	}
	id := uint64(0)
	for _, n := range []int{0, 1, 5, 31, 4096, 4097, 9000, 60000} {
		for _, cut := range [][2]int{{1, 1}, {3, 1 << 20}, {1 << 20, 7}, {4096, 4095}, {1000, 4097}, {2000, 1950}} {
			if n > cut[0]*MaxSGE || n > cut[1]*(MaxSGE-1) {
				continue
			}
			id++
			fillPattern(a.buf, int(id))
			clear(b.buf)
			send, sent := pieces(a, n, cut[0])
			recv, got := pieces(b, n, cut[1])
			b.recv(id, append(recv, qp.SGE{})...) // an empty entry takes nothing
			a.send(qp.SendWR{ID: id, Opcode: qp.OpSend, SGEs: send})
			a.want(id, qp.StatusSuccess)
			if wc := b.want(id, qp.StatusSuccess); int(wc.ByteLen) != n || wc.HasImm || wc.Opcode != qp.WCRecv {
				t.Fatalf("completion %+v", wc)
			}
			if !bytes.Equal(sent(), got()) {
				t.Fatalf("%d bytes in pieces of %d and %d differ", n, cut[0], cut[1])
			}
			// and as a WRITE, which knows nothing of the receive's pieces
			a.send(qp.SendWR{ID: id, Opcode: qp.OpWrite, SGEs: send, RemoteAddr: b.mr.Addr() + 1, RKey: b.mr.RKey()})
			a.want(id, qp.StatusSuccess)
			a.send(qp.SendWR{ID: id, Opcode: qp.OpSend})
			b.recv(id)
			a.want(id, qp.StatusSuccess)
			b.want(id, qp.StatusSuccess)
			if !bytes.Equal(sent(), b.buf[1:1+n]) {
				t.Fatalf("WRITE of %d bytes in pieces of %d differs", n, cut[0])
			}
		}
	}
}

// A message shorter than its receive fills the first pieces only.
func TestShortMessage(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{})
	s.recv(1, s.mr.SGE(100, 4), s.mr.SGE(0, 4), s.mr.SGE(200, 4))
	s.request(rocev2.SendOnlyImm, []byte("sixsix"))
	if wc := s.want(1, qp.StatusSuccess); wc.ByteLen != 6 || !wc.HasImm || wc.Imm != 0 {
		t.Errorf("completion %+v", wc)
	}
	if string(s.buf[100:105]) != "sixs\x00" || string(s.buf[:5]) != "ix\x00\x00\x00" || s.buf[200] != 0 {
		t.Errorf("memory holds %q, %q, %q", s.buf[100:105], s.buf[:5], s.buf[200:204])
	}
}

// What completes and what each completion says.
func TestCompletions(t *testing.T) {
	for _, all := range []bool{false, true} {
		a, b := piped(t, pipe.Config{}, Options{}, 4096, qp.Init{SignalAll: all}, nil)
		for i, c := range []struct {
			op   qp.Opcode
			send qp.WCOpcode
			recv qp.WCOpcode // of the receive that it takes
			none bool        // takes none
		}{
			{qp.OpSend, qp.WCSend, qp.WCRecv, false},
			{qp.OpSendImm, qp.WCSend, qp.WCRecv, false},
			{qp.OpWrite, qp.WCWrite, 0, true},
			{qp.OpWriteImm, qp.WCWrite, qp.WCRecvWriteImm, false},
		} {
			id := uint64(10 * i)
			wr := qp.SendWR{ID: id, Opcode: c.op, SGEs: []qp.SGE{a.mr.SGE(0, 40)}, Imm: 0x80000001,
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			if !c.none {
				b.recv(id, b.mr.SGE(0, 40))
				b.recv(id+1, b.mr.SGE(0, 40))
			}
			for _, flags := range []qp.SendFlags{0, qp.FlagSignaled} { // the first completes visibly only if all do
				wr.Flags = flags
				if err := a.qp.PostSend(&wr); err != nil {
					t.Fatal(err)
				}
				wr.ID++
			}
			if all {
				a.want(id, qp.StatusSuccess)
			}
			if wc := a.want(id+1, qp.StatusSuccess); wc.Opcode != c.send || wc.QPN != a.qp.QPN() || wc.HasImm {
				t.Errorf("%v: completion %+v", c.op, wc)
			}
			if c.none {
				continue
			}
			for k := range uint64(2) {
				wc := b.want(id+k, qp.StatusSuccess)
				if wc.Opcode != c.recv || wc.ByteLen != 40 || wc.QPN != b.qp.QPN() ||
					wc.HasImm != c.op.HasImm() || wc.HasImm && wc.Imm != 0x80000001 {
					t.Errorf("%v: completion %+v", c.op, wc)
				}
			}
		}
		for _, e := range []*end{a, b} {
			if n, err := e.cq.Poll(make([]qp.WC, 1)); n != 0 || err != nil {
				t.Errorf("%d completions are left, %v", n, err)
			}
		}
	}
}

// The solicited-event bit goes out where verbs says.
func TestSolicited(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{})
	for op, want := range map[qp.Opcode]bool{qp.OpSend: true, qp.OpSendImm: true, qp.OpWriteImm: true, qp.OpWrite: false} {
		s.send(qp.SendWR{Opcode: op, Flags: qp.FlagSolicited, SGEs: []qp.SGE{s.mr.SGE(0, 1500)}})
		got := s.wire.take()
		if len(got) != 2 || got[0].Solicited || got[1].Solicited != want {
			t.Errorf("%v: %+v", op, got)
		}
	}
}

// A queue takes as many requests as it was made for, and one more when a
// completion was taken out.
func TestQueueFull(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{MaxSendWR: 4, MaxRecvWR: 4})
	post := func(id uint64) error {
		return s.qp.PostSend(&qp.SendWR{ID: id, Opcode: qp.OpSend, Flags: qp.FlagSignaled})
	}
	for id := range uint64(4) {
		if err := post(id); err != nil {
			t.Fatal(err)
		}
		s.recv(100+id, s.mr.SGE(0, 10))
	}
	if err := post(4); !errors.Is(err, qp.ErrQueueFull) {
		t.Errorf("PostSend: %v", err)
	}
	if err := s.qp.PostRecv(&qp.RecvWR{}); !errors.Is(err, qp.ErrQueueFull) {
		t.Errorf("PostRecv: %v", err)
	}
	s.respond(s.attr.SQPSN, rocev2.AckNoLimit)
	s.want(0, qp.StatusSuccess)
	if err := post(4); err != nil {
		t.Errorf("PostSend after a completion: %v", err)
	}
	s.request(rocev2.SendOnly, []byte("data"))
	s.want(100, qp.StatusSuccess)
	s.recv(104)
}

// So does the receive queue in INIT.
func TestQueueFullEarly(t *testing.T) {
	s := newFresh(t, qp.Init{MaxRecvWR: 4})
	s.in(qp.StateInit)
	for id := range uint64(4) {
		s.recv(id, s.mr.SGE(int(id), 1))
	}
	if err := s.qp.PostRecv(&qp.RecvWR{}); !errors.Is(err, qp.ErrQueueFull) {
		t.Errorf("PostRecv: %v", err)
	}
	if err := s.qp.PostRecv(&qp.RecvWR{SGEs: make([]qp.SGE, qp.DefaultSGE+1)}); !errors.Is(err, qp.ErrSGE) {
		t.Errorf("PostRecv with too many entries: %v", err)
	}
	s.in(qp.StateRTS)
	for id := range uint64(4) {
		s.request(rocev2.SendOnly, []byte{byte('a' + id)})
		s.want(id, qp.StatusSuccess)
	}
	if string(s.buf[:4]) != "abcd" {
		t.Errorf("memory holds %q", s.buf[:4])
	}
}

// A request does not complete while the link still reads its memory, though the
// acknowledgement has arrived already.
func TestNoCompletionDuringSend(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{})
	inSend, release, posted := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.wire.setOnSend(func([]link.Tx) error {
		close(inSend)
		<-release
		return nil
	})
	go func() {
		defer close(posted)
		s.send(qp.SendWR{ID: 1, Opcode: qp.OpSend, SGEs: []qp.SGE{s.mr.SGE(0, 10)}})
	}()
	<-inSend
	s.respond(s.attr.SQPSN, rocev2.AckNoLimit)
	if n, err := s.cq.Poll(make([]qp.WC, 1)); n != 0 || err != nil {
		t.Errorf("%d completions while the link was sending, %v", n, err)
	}
	close(release)
	s.want(1, qp.StatusSuccess)
	<-posted
}

// What this device does not do is refused when it is posted, with the reason.
func TestRefusedOpcodes(t *testing.T) {
	for _, multicast := range []bool{false, true} {
		s := newStation(t, Options{}, qp.Init{Multicast: multicast})
		says, first := "SEND, WRITE and READ only", qp.OpCmpSwap
		if multicast {
			says, first = "read from one replica", qp.OpRead
		}
		for op := first; op <= qp.OpFetchAdd; op++ {
			err := s.qp.PostSend(&qp.SendWR{Opcode: op, SGEs: []qp.SGE{s.mr.SGE(0, 8)}})
			if !errors.Is(err, qp.ErrOpcode) || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, multicast %v: %v", op, multicast, err)
			}
		}
		if err := s.qp.PostSend(&qp.SendWR{Opcode: 77}); !errors.Is(err, qp.ErrOpcode) {
			t.Errorf("opcode 77: %v", err)
		}
		if got := s.wire.take(); len(got) != 0 {
			t.Errorf("sent %+v", got)
		}
		s.works()
	}
}
