package rc_test

import (
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// guarded is 64 bytes of registered memory in the middle of bytes that no
// packet may change.
type guarded struct {
	t     *testing.T
	bytes [192]byte
}

func newGuarded(t *testing.T) *guarded {
	g := &guarded{t: t}
	for i := range g.bytes {
		g.bytes[i] = 0xa5
	}
	return g
}

func (g *guarded) Remote(rkey uint32, va uint64, n int, _ qp.Access) ([]byte, bool) {
	if n < 0 {
		g.t.Fatalf("asked for %d bytes", n)
	}
	if rkey&3 != 1 || va > 64 || n > 64-int(va) {
		return nil, false
	}
	return g.bytes[64+va:][:n:n], true
}

func (g *guarded) check() {
	for i, b := range g.bytes {
		if (i < 64 || i >= 128) && b != 0xa5 {
			g.t.Fatalf("byte %d outside of the region was written", i-64)
		}
	}
}

// FuzzPackets feeds a queue pair arbitrary packets, near the expected PSN and
// far from it, between posted work requests and passing time. Nothing may
// panic, write outside of the region, move the expected PSN back, acknowledge
// a PSN at or beyond it, report success of a send that was not acknowledged, or
// complete more requests than were posted.
func FuzzPackets(f *testing.F) {
	f.Add([]byte{0, 0, 0, 4, 1, 2, 0x0a, 0, 0, 8, 1, 0, 8, 0x11, 0, 0x1f, 1})
	f.Add([]byte{1, 9, 4, 0, 200, 4, 0, 1, 0x20, 0x11, 0, 0x60, 3})
	f.Add([]byte{0, 4, 40, 3, 0x0d, 0, 0, 0, 0x1f, 0, 0, 0, 0, 128, 1, 3, 0x0f, 0, 0, 0, 0x1f, 0, 0, 0, 0, 32, 1})
	f.Add([]byte{3, 0x0c, 0, 0, 0, 0x1f, 0, 1, 0, 64, 0, 1, 3, 0x0c, 127, 1, 0, 0x1f, 0, 1, 0, 64, 0, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		mem := newGuarded(t)
		cfg := rc.Config{MaxSendWR: 4, MaxRecvWR: 4, MaxSGE: 2, PathMTU: 256, Window: 4, LocalQPN: 0x11, RemoteQPN: 0x22,
			SQPSN: 0xfffffe, RQPSN: 0xfffffe, Timeout: 8, RetryCnt: 3, RNRRetry: 3, Access: qp.AccessRemoteWrite | qp.AccessRemoteRead, MaxRdAtomic: 2, MaxDestRdAtomic: 2}
		q := rc.NewQP(cfg, mem)
		q.StartSend(&cfg)
		d := &feed{t: t, q: q, mem: mem, script: script}
		for d.step() {
			d.pull()
		}
	})
}

type feed struct {
	t            *testing.T
	q            *rc.QP
	mem          *guarded
	script       []byte
	now          time.Duration
	posted, recv int
	acked        bool // something that acknowledges has arrived
	answered     bool // a READ response has
}

func (d *feed) byte() int {
	if len(d.script) == 0 {
		return 0
	}
	b := d.script[0]
	d.script = d.script[1:]
	return int(b)
}

func (d *feed) step() bool {
	if len(d.script) == 0 {
		return false
	}
	switch d.byte() % 8 {
	case 0:
		wr := qp.SendWR{ID: uint64(d.posted), Opcode: qp.Opcode(d.byte() % 8), Flags: qp.FlagSignaled}
		if d.q.PostSend(&wr, [][]byte{make([]byte, d.byte()*8)}) == nil {
			d.posted++
		}
	case 1:
		if d.q.PostRecv(0, [][]byte{d.mem.bytes[64:96], d.mem.bytes[96:128]}) == nil {
			d.recv++
		}
	case 2:
		d.now += time.Duration(d.byte()) * 10 * time.Microsecond
		d.q.Tick(d.now)
	default:
		d.packet()
	}
	return true
}

func (d *feed) packet() {
	var in rc.In
	in.Opcode = rocev2.Opcode(d.byte())
	sq, rq := d.q.PSNs()
	base := rq
	switch op := in.Opcode; {
	case op == rocev2.Acknowledge:
		base = sq
		d.acked = true
	case op >= rocev2.ReadRespFirst && op <= rocev2.ReadRespOnly:
		sent, _ := d.q.Unacknowledged()
		base = sq.Add(-sent)
		d.acked, d.answered = true, true
	}
	in.PSN = base.Add(d.byte() - 128)
	if d.byte()%4 > 0 {
		in.PSN = base
	}
	in.AckReq = d.byte()%2 == 0
	in.AETH = rocev2.AETH{Syndrome: rocev2.Syndrome(d.byte())}
	in.RETH = rocev2.RETH{VA: uint64(d.byte()), RKey: uint32(d.byte()), Length: uint32(d.byte())<<24 | uint32(d.byte())}
	in.Payload = make([]byte, d.byte()*2)
	in.CE = d.byte()%4 == 0
	d.q.Handle(&in, d.now)
	d.mem.check()
	if _, now := d.q.PSNs(); now != rq {
		if now != rq.Add(1) || !in.Opcode.IsRequest() {
			d.t.Fatalf("%v with PSN %d moved the expected PSN from %d to %d", in.Opcode, in.PSN, rq, now)
		}
	}
}

func (d *feed) pull() {
	_, epsn := d.q.PSNs()
	var out rc.Out
	for n := 0; d.q.Next(d.now, &out); n++ {
		if n > 16 {
			d.t.Fatal("more packets than the window allows")
		}
		if out.Opcode == rocev2.Acknowledge && out.AETH.Syndrome.IsAck() && out.PSN != epsn.Add(-1) {
			d.t.Fatalf("acknowledges %d, expected is %d", out.PSN, epsn)
		}
	}
	var wc qp.WC
	for d.q.NextSendWC(&wc) {
		if d.posted--; d.posted < 0 || wc.Status == qp.StatusSuccess && (!d.acked || wc.Opcode == qp.WCRead && !d.answered) {
			d.t.Fatalf("unfounded completion %+v", wc)
		}
	}
	for d.q.NextRecvWC(&wc) {
		if d.recv--; d.recv < 0 {
			d.t.Fatalf("receive completion %+v without a receive", wc)
		}
	}
	if dl := d.q.Deadline(); dl < 0 {
		d.t.Fatalf("deadline %v", dl)
	}
}
