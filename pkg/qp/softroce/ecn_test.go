package softroce

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Requests are ECN-capable if congestion control is on; acknowledgements and
// CNPs never are.
func TestECNCapable(t *testing.T) {
	for _, off := range []bool{false, true} {
		s := newStation(t, Options{CC: rc.CCParams{Disable: off}}, qp.Init{})
		want := uint8(ecnECT0)
		if off {
			want = 0
		}
		for op := qp.OpWrite; op <= qp.OpSendImm; op++ {
			s.send(qp.SendWR{Opcode: op, SGEs: []qp.SGE{s.mr.SGE(0, 3000)}})
		}
		for _, p := range s.wire.take() {
			if p.tos != want {
				t.Errorf("congestion control off %v: %v with ToS %#x", off, p.Opcode, p.tos)
			}
		}
		p := s.packet(rocev2.WriteOnly, []byte("data"), nil)
		p.TOS = 0xb8 | ecnCE
		s.wire.deliver(p)
		got := s.wire.take()
		if n := map[bool]int{false: 2, true: 1}[off]; len(got) != n {
			t.Fatalf("congestion control off %v: a marked packet is answered by %+v", off, got)
		}
		for _, p := range got {
			if p.tos != 0 {
				t.Errorf("%v with ToS %#x", p.Opcode, p.tos)
			}
		}
	}
}

// A mark causes a CNP to the peer, at most one in CNPInterval.
func TestCNP(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newStation(t, Options{CC: rc.CCParams{CNPInterval: time.Millisecond}}, qp.Init{})
		for i, wait := range []time.Duration{0, 0, time.Millisecond / 2, time.Millisecond / 2, 0} {
			time.Sleep(wait)
			for _, tos := range []uint8{0, 1, ecnECT0, ecnCE} {
				p := s.packet(rocev2.WriteOnly, []byte("data"), nil)
				p.TOS = tos
				s.psn = s.psn.Add(1)
				s.wire.deliver(p)
				cnps := 0
				for _, a := range s.wire.take() {
					if a.Opcode == rocev2.CNP {
						cnps++
						if !a.BECN || a.DestQP != peerQPN || a.dst != peerAddr {
							t.Errorf("CNP %+v", a)
						}
					}
				}
				if due := tos == ecnCE && (i == 0 || i == 3); due != (cnps == 1) {
					t.Errorf("round %d: ToS %d caused %d CNPs", i, tos, cnps)
				}
			}
		}
		c := s.dev.Counters()
		if c["rc_ecn_marked"] != 5 || c["rc_cnps_sent"] != 2 {
			t.Errorf("counters %s", nonZero(s.dev))
		}
	})
}

// A CNP makes the sender space its packets, unless congestion control is off.
func TestRateLimit(t *testing.T) {
	for _, off := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			// 1 Mbit/s: half of that after a CNP, for a long time.
			s := newStation(t, Options{CC: rc.CCParams{Disable: off, LineRate: 1e6, MinRate: 1e3, TimeReset: time.Hour, AlphaPeriod: time.Hour}}, qp.Init{})
			const packets = 60
			burst := func() int {
				s.send(qp.SendWR{Opcode: qp.OpWrite, SGEs: []qp.SGE{s.mr.SGE(0, packets*1024)}})
				return len(s.wire.take())
			}
			if n := burst(); n != packets {
				t.Fatalf("%d packets at once before the CNP", n)
			}
			s.respond(s.attr.SQPSN.Add(packets-1), rocev2.AckNoLimit)
			s.wire.deliver(s.packet(rocev2.CNP, nil, func(h *rocev2.Headers) { h.BECN = true }))
			if n := s.dev.Counters()["rc_cnps_received"]; n != 1 {
				t.Errorf("rc_cnps_received is %d", n)
			}
			n := burst()
			if off {
				if n != packets {
					t.Errorf("%d packets at once with congestion control off", n)
				}
				return
			}
			if n > 2 {
				t.Errorf("%d packets at once behind a CNP", n)
			}
			start := time.Now()
			for n < packets {
				time.Sleep(time.Millisecond)
				synctest.Wait()
				n += len(s.wire.take())
				if time.Since(start) > time.Minute {
					t.Fatalf("%d packets in a minute", n)
				}
			}
			// 60 packets of 1024 bytes and some 100 bytes of headers at 500 kbit/s.
			if d := time.Since(start); d < 950*time.Millisecond || d > 1200*time.Millisecond {
				t.Errorf("%d packets took %v", packets, d)
			}
		})
	}
}
