package softroce

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// The two ends of a wire.
var (
	wireAddr = netip.MustParseAddr("10.9.0.1")
	peerAddr = netip.MustParseAddr("10.9.0.2")
)

const peerQPN rocev2.QPN = 0x5a5a5a

// A wire is a link.Link whose network is the test: it hands packets to the
// device and keeps those that the device sends.
type wire struct {
	mtu int

	mu      sync.Mutex
	changed sync.Cond
	queue   []link.Rx
	waiting bool // the device is through with all that it got
	closed  bool
	sent    []sentPacket
	onSend  func([]link.Tx) error // called first by Send, without the lock
}

// A sentPacket is a packet that the device has sent.
type sentPacket struct {
	dst netip.Addr
	tos uint8
	rocev2.Headers
	payload []byte
}

func newWire() *wire {
	w := &wire{mtu: 4200}
	w.changed.L = &w.mu
	return w
}

func (w *wire) Addr() netip.Addr           { return wireAddr }
func (w *wire) MTU() int                   { return w.mtu }
func (w *wire) Counters(map[string]uint64) {}

func (w *wire) Recv(batch []link.Rx) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) == 0 && !w.closed {
		w.waiting = true
		w.changed.Broadcast()
		w.changed.Wait()
	}
	w.waiting = false
	if w.closed {
		return 0, net.ErrClosed
	}
	n := copy(batch, w.queue)
	w.queue = w.queue[n:]
	return n, nil
}

func (w *wire) Send(batch []link.Tx) error {
	w.mu.Lock()
	f := w.onSend
	w.mu.Unlock()
	if f != nil {
		if err := f(batch); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range batch {
		tx := &batch[i]
		var b []byte
		for _, p := range tx.Parts {
			b = append(b, p...)
		}
		s := sentPacket{dst: tx.Dst, tos: tx.TOS}
		var err error
		if s.payload, err = s.Parse(b); err != nil || len(b) != tx.Len || len(b)%4 != 0 {
			panic("the device sends malformed packets")
		}
		w.sent = append(w.sent, s)
	}
	return nil
}

func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Broadcast()
	return nil
}

// deliver gives the device packets, in one batch if there are not too many, and
// returns when it has handled them and sent what they led to.
func (w *wire) deliver(packets ...link.Rx) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, packets...)
	w.changed.Broadcast()
	for !w.closed && (!w.waiting || len(w.queue) > 0) {
		w.changed.Wait()
	}
}

// take returns what the device has sent since the last call.
func (w *wire) take() []sentPacket {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sent
	w.sent = nil
	return s
}

func (w *wire) setOnSend(f func([]link.Tx) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onSend = f
}

// A station is a device on a wire with a queue pair in RTS, whose peer is the
// test. Nothing times out, and the path MTU is 1024.
type station struct {
	*end
	wire *wire
	psn  rocev2.PSN // of the peer's next request
}

func newStation(t testing.TB, opt Options, init qp.Init) *station {
	t.Helper()
	w := newWire()
	s := newStationOn(t, w, onLink(t, w, opt), init)
	s.up(peerAddr, peerQPN)
	return s
}

// newStationOn makes a station on an existing device, its queue pair in RESET.
func newStationOn(t testing.TB, w *wire, d *Device, init qp.Init) *station {
	t.Helper()
	s := &station{end: newEnd(t, d, 64<<10, init), wire: w}
	s.attr.PathMTU, s.attr.Timeout = 1024, 0
	s.psn = s.attr.RQPSN
	return s
}

// packet builds a packet of the peer, which change may alter. A WRITE goes to
// the start of the region.
func (s *station) packet(op rocev2.Opcode, payload []byte, change func(*rocev2.Headers)) link.Rx {
	h := rocev2.Headers{
		BTH: rocev2.BTH{Opcode: op, MigReq: true, PKey: rocev2.DefaultPKey, DestQP: s.qp.QPN(), AckReq: true,
			PSN: s.psn, Pad: uint8(-len(payload) & 3)},
		RETH: rocev2.RETH{VA: s.mr.Addr(), RKey: s.mr.RKey(), Length: uint32(len(payload))},
	}
	if change != nil {
		change(&h)
	}
	b := append(h.AppendTo(nil), payload...)
	return link.Rx{Src: peerAddr, Data: append(b, zeros[:-len(payload)&3]...)}
}

// request delivers a request of the peer and returns the answers.
func (s *station) request(op rocev2.Opcode, payload []byte) []sentPacket {
	s.wire.deliver(s.packet(op, payload, nil))
	s.psn = s.psn.Add(1)
	return s.wire.take()
}

// respond delivers an acknowledgement of the peer.
func (s *station) respond(psn rocev2.PSN, syn rocev2.Syndrome) {
	s.wire.deliver(s.packet(rocev2.Acknowledge, nil, func(h *rocev2.Headers) {
		h.PSN, h.AckReq, h.AETH = psn, false, rocev2.AETH{Syndrome: syn}
	}))
}

// works checks that the queue pair works in both directions.
func (s *station) works() {
	s.t.Helper()
	s.wire.take()
	payload := []byte("forty-two bytes that no bad input contains")
	clear(s.buf)
	psn := s.psn
	got := s.request(rocev2.WriteOnly, payload)
	if len(got) != 1 || got[0].Opcode != rocev2.Acknowledge || got[0].PSN != psn || !got[0].AETH.Syndrome.IsAck() ||
		got[0].DestQP != peerQPN || got[0].dst != peerAddr {
		s.t.Fatalf("a WRITE is answered by %+v", got)
	}
	if string(s.buf[:len(payload)]) != string(payload) {
		s.t.Fatalf("a WRITE left %q", s.buf[:len(payload)])
	}
	const id = 0x600d
	s.send(qp.SendWR{ID: id, Opcode: qp.OpSend, SGEs: []qp.SGE{s.mr.SGE(0, len(payload))}})
	got = s.wire.take()
	if len(got) != 1 || got[0].Opcode != rocev2.SendOnly || string(got[0].payload) != string(payload) {
		s.t.Fatalf("a SEND sends %+v", got)
	}
	s.respond(got[0].PSN, rocev2.AckNoLimit)
	s.want(id, qp.StatusSuccess)
}
