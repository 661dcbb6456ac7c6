package rc_test

import (
	"bytes"
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

var (
	seedFlag  = flag.Uint64("rc.seed", 0, "run the adversary with this seed only")
	traceFlag = flag.Bool("rc.trace", false, "print every packet of the run with -rc.seed")
)

// TestAdversary runs two queue pairs that talk both ways at once over a
// network that loses, duplicates, reorders, delays, corrupts and marks
// packets. Every seed is another scenario. It holds every completion against
// what has really happened: see endpoint.checkSend and checkRecv.
func TestAdversary(t *testing.T) {
	if *seedFlag != 0 {
		if err := runAdversary(*seedFlag, *traceFlag, nil); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := uint64(2000)
	if os.Getenv("MCRDMA_LONG") != "" {
		seeds = 120_000
	}
	var (
		next   atomic.Uint64
		wg     sync.WaitGroup
		mu     sync.Mutex
		totals tally
	)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			var mine tally
			for s := next.Add(1); s <= seeds && !t.Failed(); s = next.Add(1) {
				if err := runAdversary(s, false, &mine); err != nil {
					t.Errorf("%v\nreplay: go test ./pkg/qp/rc -run 'TestAdversary$' -rc.seed=%d -rc.trace", err, s)
				}
			}
			mu.Lock()
			totals.add(mine)
			mu.Unlock()
		})
	}
	wg.Wait()
	t.Logf("%d seeds: %+v", seeds, totals)
	if totals.Succeeded < 10*totals.Failed || totals.Retransmits == 0 || totals.Corrupted == 0 || totals.RNR == 0 ||
		totals.Failed == 0 || totals.CNPs == 0 || totals.Wrapped == 0 || totals.Reads == 0 || totals.ReadAgain == 0 {
		t.Errorf("the adversary does not exercise what it should: %+v", totals)
	}
}

// A tally sums what happened over many runs, so that a run that tests nothing
// is noticed.
type tally struct {
	Succeeded, Failed, Retransmits, Corrupted, RNR, CNPs, Wrapped, Duplicates, Reads, ReadAgain uint64
}

func (t *tally) add(o tally) {
	t.Succeeded += o.Succeeded
	t.Failed += o.Failed
	t.Retransmits += o.Retransmits
	t.Corrupted += o.Corrupted
	t.RNR += o.RNR
	t.CNPs += o.CNPs
	t.Wrapped += o.Wrapped
	t.Duplicates += o.Duplicates
	t.Reads += o.Reads
	t.ReadAgain += o.ReadAgain
}

// faults are probabilities per packet.
type faults struct{ lose, dup, reorder, corrupt, mark float64 }

// A world is one run.
type world struct {
	rng    *rand.Rand
	now    time.Duration
	seq    int
	events eventHeap
	ends   [2]*endpoint
	f      faults
	trace  bool
	tally  tally
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{w.now + d, w.seq, do})
}

// An endpoint is one queue pair, its application and its memory.
type endpoint struct {
	w         *world
	name      string
	ip        [4]byte
	qpn       rocev2.QPN
	q         *rc.QP
	mtu       int
	signalAll bool
	peer      *endpoint
	wakeAt    time.Duration

	// What this side sends, and what of it has completed.
	msgs    []*message
	posted  int
	checked int // requests accounted for, in order

	// What this side receives: those of the peer's messages that consume a
	// receive request, in order.
	recvMsgs             []*message
	recvBufs             [][]byte
	recvPosted, recvDone int

	failed error
}

// A message is one work request with the memory it should fill.
type message struct {
	wr     qp.SendWR
	gather [][]byte // READ: to be filled
	data   []byte
	dst    []byte // WRITE: its own region at the receiver; READ: that from which it reads
	placed int    // bytes of dst that the receiver has written
	recv   int    // index in the receiver's recvMsgs, -1 if none
	done   bool   // a READ that has completed, and what it has read was erased
}

const (
	regionBase = 0x7f00_0000_0000
	regionStep = 1 << 20
)

// Remote implements rc.Memory: region i belongs to the peer's message i alone.
// This is where exactly-once is checked: each byte of a WRITE must be asked for
// once, in order. A request for more than a packet is the check of the whole
// range that precedes it. A READ may be asked for again.
func (e *endpoint) Remote(rkey uint32, va uint64, n int, need qp.Access) ([]byte, bool) {
	i := int((va - regionBase) / regionStep)
	off := int((va - regionBase) % regionStep)
	if va < regionBase || i >= len(e.peer.msgs) || rkey != uint32(i)+1000 {
		e.fail("access to va %#x rkey %d, which the peer never sent", va, rkey)
		return nil, false
	}
	m := e.peer.msgs[i]
	switch {
	case off+n > len(m.dst):
		e.fail("access to %d bytes at %d of the %d of message %d", n, off, len(m.dst), i)
		return nil, false
	case (need == qp.AccessRemoteRead) != (m.wr.Opcode == qp.OpRead):
		e.fail("access %d to the region of message %d, %v", need, i, m.wr.Opcode)
		return nil, false
	case n > e.mtu, need == qp.AccessRemoteRead:
	case off != m.placed:
		e.fail("message %d: bytes from %d on written when %d were there: not once and in order", i, off, m.placed)
	default:
		m.placed += n
	}
	return m.dst[off : off+n], true
}

func runAdversary(seed uint64, trace bool, sum *tally) error {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0x6d63726d61)), trace: trace}
	w.f = w.randomFaults()
	cfg := w.randomConfig()
	psn := [2]rocev2.PSN{w.randomPSN(), w.randomPSN()}
	for i := range w.ends {
		w.ends[i] = &endpoint{w: w, name: string(rune('A' + i)), ip: [4]byte{10, 0, 0, byte(i + 1)},
			qpn: rocev2.QPN(0x100 + i), mtu: cfg.PathMTU, signalAll: cfg.SignalAll, wakeAt: rc.Never}
	}
	for i, e := range w.ends {
		e.peer = w.ends[1-i]
		c := cfg
		c.LocalQPN, c.RemoteQPN = e.qpn, e.peer.qpn
		c.SQPSN, c.RQPSN = psn[i], psn[1-i]
		e.q = rc.NewQP(c, e)
		e.q.StartSend(&c)
		e.makeMessages()
	}
	for _, e := range w.ends {
		e.app()
		e.recvApp()
	}
	err := w.run()
	for i, e := range w.ends {
		s := e.q.Stats()
		w.tally.Retransmits += s.Requester.Retransmits
		w.tally.RNR += s.Requester.NakRNR
		w.tally.CNPs += s.Requester.CNPs
		w.tally.Duplicates += s.Responder.Duplicates
		w.tally.ReadAgain += s.Responder.ResponsesSent - min(s.Responder.ResponsesSent, e.peer.q.Stats().Requester.Responses)
		if sq, _ := e.q.PSNs(); sq.Sub(psn[i]) > 0 && sq < psn[i] {
			w.tally.Wrapped++
		}
	}
	if sum != nil {
		sum.add(w.tally)
	}
	if err != nil {
		return fmt.Errorf("seed %d at %v: %w (config %+v, faults %+v)", seed, w.now, err, cfg, w.f)
	}
	return nil
}

func (w *world) randomFaults() faults {
	scale := []float64{0, 0.002, 0.01, 0.05, 0.15, 0.5}[w.rng.IntN(6)]
	p := func() float64 { return scale * w.rng.Float64() * float64(w.rng.IntN(2)) }
	return faults{lose: p(), dup: p(), reorder: p(), corrupt: p(), mark: p()}
}

func (w *world) randomConfig() rc.Config {
	window, reads := 1<<w.rng.IntN(8), uint8(1+w.rng.IntN(4))
	return rc.Config{
		MaxSendWR: 1 + w.rng.IntN(8), MaxRecvWR: 1 + w.rng.IntN(8), MaxSGE: 4,
		SignalAll: w.rng.IntN(2) == 0,
		PathMTU:   256 << w.rng.IntN(3),
		Timeout:   uint8(8 + w.rng.IntN(5)), RetryCnt: uint8(5 + w.rng.IntN(3)),
		RNRRetry: uint8(4 + w.rng.IntN(4)), MinRNRTimer: uint8(1 + w.rng.IntN(14)),
		Access: qp.AccessRemoteWrite | qp.AccessRemoteRead, MaxRdAtomic: reads, MaxDestRdAtomic: reads,
		Window: window, AckEvery: w.rng.IntN(window + 1),
		CC: rc.CCParams{LineRate: 1e9, Disable: w.rng.IntN(4) == 0},
	}
}

func (w *world) randomPSN() rocev2.PSN {
	if w.rng.IntN(4) == 0 {
		return rocev2.PSN(w.rng.Uint32()) & rocev2.Mask24
	}
	return rocev2.PSN(0).Add(-w.rng.IntN(40))
}

func (e *endpoint) makeMessages() {
	rng, mtu := e.w.rng, e.mtu
	for i := range rng.IntN(25) {
		var n int
		switch rng.IntN(5) {
		case 0:
			n = rng.IntN(4)
		case 1:
			n = mtu*(1+rng.IntN(3)) - 1 + rng.IntN(3)
		default:
			n = rng.IntN(10 * mtu)
		}
		m := &message{data: make([]byte, n), recv: -1}
		for j := range m.data {
			m.data[j] = byte(rng.Uint32())
		}
		m.wr = qp.SendWR{ID: uint64(i), Opcode: qp.Opcode(rng.IntN(5)), Imm: rng.Uint32()}
		if rng.IntN(2) == 0 {
			m.wr.Flags = qp.FlagSignaled
		}
		if rng.IntN(4) == 0 {
			m.wr.Flags |= qp.FlagFence
		}
		if rng.IntN(3) == 0 {
			m.wr.Flags |= qp.FlagDeferred
		}
		local := m.data
		if m.wr.Opcode != qp.OpSend && m.wr.Opcode != qp.OpSendImm {
			m.dst = make([]byte, n)
			m.wr.RemoteAddr, m.wr.RKey = regionBase+uint64(i)*regionStep, uint32(i)+1000
		}
		if m.wr.Opcode == qp.OpRead {
			copy(m.dst, m.data)
			local = make([]byte, n)
		} else if i > 0 && m.wr.Opcode.IsWrite() && m.wr.Flags&qp.FlagFence != 0 && e.msgs[i-1].wr.Opcode == qp.OpRead {
			// It writes where the READ before it reads.
			m.dst = e.msgs[i-1].dst[:min(n, len(e.msgs[i-1].dst))]
			m.data = m.data[:len(m.dst)]
			local = m.data
		}
		for rest, k := local, 1+rng.IntN(4); k > 0; k-- {
			cut := len(rest)
			if k > 1 {
				cut = rng.IntN(len(rest) + 1)
			}
			m.gather = append(m.gather, rest[:cut])
			rest = rest[cut:]
		}
		e.msgs = append(e.msgs, m)
		if m.wr.Opcode != qp.OpRead && (!m.wr.Opcode.IsWrite() || m.wr.Opcode.HasImm()) {
			m.recv = len(e.peer.recvMsgs)
			e.peer.recvMsgs = append(e.peer.recvMsgs, m)
		}
	}
}

// app posts send requests as there is room, with pauses.
func (e *endpoint) app() {
	for e.posted < len(e.msgs) {
		m := e.msgs[e.posted]
		if err := e.q.PostSend(&m.wr, m.gather); err != nil {
			break
		}
		e.posted++
		if e.w.rng.IntN(3) == 0 {
			break
		}
	}
	if e.posted < len(e.msgs) {
		e.w.after(time.Duration(1+e.w.rng.IntN(200))*time.Microsecond, e.app)
	}
	e.pump()
}

// recvApp posts receive requests late and a few at a time, so that RNR happens.
func (e *endpoint) recvApp() {
	for e.recvPosted < len(e.recvMsgs) {
		buf := make([]byte, len(e.recvMsgs[e.recvPosted].data)+e.w.rng.IntN(20))
		cut := e.w.rng.IntN(len(buf) + 1)
		if err := e.q.PostRecv(uint64(e.recvPosted), [][]byte{buf[:cut], buf[cut:]}); err != nil {
			break
		}
		e.recvBufs = append(e.recvBufs, buf)
		e.recvPosted++
		if e.w.rng.IntN(4) == 0 {
			break
		}
	}
	_, _, peerDead := e.peer.q.Failed() // then nothing would ever make room
	if e.recvPosted < len(e.recvMsgs) && !peerDead {
		e.w.after(time.Duration(1+e.w.rng.IntN(300))*time.Microsecond, e.recvApp)
	}
	e.pump()
}

// run drives the world until nothing is left to happen, then demands that
// everything has completed.
func (w *world) run() error {
	for steps := 0; len(w.events) > 0; steps++ {
		if steps > 2_000_000 || w.now > 20*time.Minute {
			return fmt.Errorf("no end after %d events", steps)
		}
		ev := heap.Pop(&w.events).(event)
		w.now = ev.at
		ev.do()
		for _, e := range w.ends {
			if e.failed != nil {
				return e.failed
			}
		}
	}
	return w.finish()
}

// finish checks that all work requests have completed: each send request on a
// healthy queue pair with success, and each receive request if both are.
func (w *world) finish() error {
	healthy := true
	for _, e := range w.ends {
		_, _, bad := e.q.Failed()
		healthy = healthy && !bad
	}
	for _, e := range w.ends {
		e.skipUnsignaled(len(e.msgs))
		for i, m := range e.msgs {
			if m.done && len(bytes.Trim(bytes.Join(m.gather, nil), "\x00")) > 0 {
				e.fail("READ %d has changed memory after its completion", i)
			}
		}
		if e.posted != len(e.msgs) || e.checked != len(e.msgs) || healthy && e.recvDone != len(e.recvMsgs) {
			e.fail("hangs: %d requests, %d posted, %d completed; %d of %d received; stats %+v",
				len(e.msgs), e.posted, e.checked, e.recvDone, len(e.recvMsgs), e.q.Stats())
		}
		if e.failed != nil {
			return e.failed
		}
	}
	return nil
}

// pump pulls everything that the queue pair has to say, and sets its alarm.
func (e *endpoint) pump() {
	if e.failed != nil {
		return
	}
	var out rc.Out
	for e.q.Next(e.w.now, &out) {
		e.w.transmit(e, &out)
	}
	e.completions()
	if d := e.q.Deadline(); d != e.wakeAt && d != rc.Never {
		e.wakeAt = d
		e.w.after(max(0, d-e.w.now), func() {
			if e.wakeAt <= e.w.now {
				e.wakeAt = rc.Never
			}
			e.q.Tick(e.w.now)
			e.pump()
		})
	}
}

func (e *endpoint) fail(format string, args ...any) {
	if e.failed == nil {
		e.failed = fmt.Errorf(e.name+": "+format, args...)
	}
}

func (e *endpoint) completions() {
	var wc qp.WC
	for e.q.NextSendWC(&wc) {
		e.checkSend(&wc)
	}
	for e.q.NextRecvWC(&wc) {
		e.checkRecv(&wc)
	}
}

// skipUnsignaled accounts for the requests before index to that complete
// without a completion: they must be unsignaled, and done.
func (e *endpoint) skipUnsignaled(to int) {
	for ; e.checked < to && e.failed == nil; e.checked++ {
		if e.signalAll || e.msgs[e.checked].wr.Flags&qp.FlagSignaled != 0 {
			e.fail("signaled request %d has no completion", e.checked)
		}
		e.checkExecuted(e.checked)
	}
}

// checkExecuted demands that the peer has all of message i: a success that is
// reported without that would be the one thing this transport must never do.
func (e *endpoint) checkExecuted(i int) {
	m := e.msgs[i]
	if m.recv >= e.peer.recvDone {
		e.fail("FALSE SUCCESS: request %d, the peer has completed only %d receives", i, e.peer.recvDone)
	}
	if m.wr.Opcode == qp.OpRead {
		if !bytes.Equal(bytes.Join(m.gather, nil), m.data) {
			e.fail("FALSE SUCCESS: READ %d, the data differ", i)
		}
		for _, b := range m.gather {
			clear(b)
		}
		m.done = true
		e.w.tally.Reads++
	} else if m.dst != nil && !bytes.Equal(m.dst, m.data) {
		e.fail("FALSE SUCCESS: request %d, the peer's memory differs", i)
	}
	e.w.tally.Succeeded++
}

// checkSend holds a send completion against the truth: requests complete in
// order, and success means that the peer has executed the whole message, with
// the right bytes in the right place.
func (e *endpoint) checkSend(wc *qp.WC) {
	if int(wc.ID) < e.checked || int(wc.ID) >= e.posted {
		e.fail("completion of request %d, expected %d or later of %d", wc.ID, e.checked, e.posted)
		return
	}
	e.skipUnsignaled(int(wc.ID))
	e.checked++
	if wc.Status == qp.StatusSuccess {
		e.checkExecuted(int(wc.ID))
		return
	}
	e.w.tally.Failed++
	if _, _, bad := e.q.Failed(); !bad {
		e.fail("request %d failed with %v on a healthy queue pair", wc.ID, wc.Status)
	}
}

// checkRecv holds a receive completion against the messages that the peer
// sent, in order.
func (e *endpoint) checkRecv(wc *qp.WC) {
	if wc.Status != qp.StatusSuccess {
		if _, _, bad := e.q.Failed(); !bad {
			e.fail("receive %d failed with %v on a healthy queue pair", wc.ID, wc.Status)
		}
		return
	}
	if int(wc.ID) != e.recvDone {
		e.fail("receive %d completed, expected %d", wc.ID, e.recvDone)
		return
	}
	m := e.recvMsgs[e.recvDone]
	e.recvDone++
	if int(wc.ByteLen) != len(m.data) || wc.HasImm != m.wr.Opcode.HasImm() || wc.HasImm && wc.Imm != m.wr.Imm {
		e.fail("receive %d: %+v for %+v of %d bytes", wc.ID, *wc, m.wr, len(m.data))
	}
	if m.wr.Opcode.IsWrite() {
		return
	}
	if buf := e.recvBufs[wc.ID]; !bytes.Equal(buf[:len(m.data)], m.data) {
		e.fail("receive %d: wrong bytes", wc.ID)
	}
}

// transmit encodes a packet with its ICRC and passes it to the faulty network.
func (w *world) transmit(from *endpoint, out *rc.Out) {
	frame := encodeFrame(from.ip, from.peer.ip, out, w.rng.Float64() < w.f.mark)
	const delay = 5 * time.Microsecond
	w.log(from, "sends", &out.Headers, out.PayloadLen)
	copies := 1
	if w.rng.Float64() < w.f.dup {
		copies = 2
	}
	for i := range copies {
		d := delay
		if i > 0 || w.rng.Float64() < w.f.reorder {
			d += time.Duration(w.rng.ExpFloat64() * float64(100*time.Microsecond))
		}
		if w.rng.Float64() < w.f.lose {
			continue
		}
		f := frame
		if w.rng.Float64() < w.f.corrupt {
			f = bytes.Clone(frame)
			for range 1 + w.rng.IntN(3) {
				f[w.rng.IntN(len(f))] ^= 1 << w.rng.IntN(8)
			}
		}
		w.after(d, func() { from.peer.receive(f) })
	}
}

func (w *world) log(e *endpoint, verb string, h *rocev2.Headers, n int) {
	if w.trace {
		fmt.Printf("%12v %s %s %v psn %d ackreq %v syndrome %v payload %d\n",
			w.now, e.name, verb, h.Opcode, h.PSN, h.AckReq, h.AETH.Syndrome, n)
	}
}

// encodeFrame builds the IPv4 packet of out.
func encodeFrame(src, dst [4]byte, out *rc.Out, mark bool) []byte {
	n := out.Len() + out.PayloadLen + int(out.Pad) + rocev2.ICRCLen
	ip := rocev2.IPv4{TOS: 2, TotalLen: uint16(rocev2.IPv4Len + rocev2.UDPLen + n), Flags: rocev2.DontFragment,
		TTL: 64, Protocol: rocev2.ProtocolUDP, Src: src, Dst: dst}
	if mark {
		ip.TOS = 3
	}
	udp := rocev2.UDP{SrcPort: 0xc000, DstPort: rocev2.UDPPort, Length: uint16(rocev2.UDPLen + n)}
	b := out.AppendTo(udp.AppendTo(ip.AppendTo(nil)))
	for _, p := range out.Payload {
		b = append(b, p...)
	}
	b = append(b, make([]byte, int(out.Pad)+rocev2.ICRCLen)...)
	rocev2.PutICRC(b)
	return b
}

// receive does what a device does before the queue pair sees a packet.
func (e *endpoint) receive(frame []byte) {
	var ip rocev2.IPv4
	var udp rocev2.UDP
	var in rc.In
	body, err := rocev2.ParseIPv4UDP(frame, &ip, &udp)
	if err == nil && !rocev2.VerifyICRC(frame[:ip.TotalLen]) {
		err = fmt.Errorf("wrong ICRC")
	}
	if err == nil {
		in.Payload, err = in.Headers.Parse(body[:len(body)-rocev2.ICRCLen])
	}
	if err != nil || in.DestQP != e.qpn || in.PKey != rocev2.DefaultPKey || ip.Src != e.peer.ip {
		e.w.tally.Corrupted++
		return
	}
	in.CE = ip.TOS&3 == 3
	e.w.log(e, "gets", &in.Headers, len(in.Payload))
	e.q.Handle(&in, e.w.now)
	if e.w.rng.IntN(3) > 0 { // now and then several packets are handled before anything is answered
		e.pump()
	} else {
		e.w.after(time.Microsecond, e.pump)
	}
}
