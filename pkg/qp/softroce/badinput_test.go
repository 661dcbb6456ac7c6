package softroce

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// drops returns those counters of d that count dropped packets and are not 0.
func drops(d *Device) map[string]uint64 {
	m := d.Counters()
	maps.DeleteFunc(m, func(k string, v uint64) bool { return v == 0 || !strings.HasPrefix(k, "rx_drop_") })
	return m
}

func TestBadPackets(t *testing.T) {
	bth := func(change func(*rocev2.Headers)) func(*station) link.Rx {
		return func(s *station) link.Rx { return s.packet(rocev2.WriteOnly, []byte("evil"), change) }
	}
	opcode := func(op rocev2.Opcode, n int) func(*station) link.Rx {
		return func(s *station) link.Rx { return s.packet(op, make([]byte, n), nil) }
	}
	cut := func(op rocev2.Opcode, n int) func(*station) link.Rx {
		return func(s *station) link.Rx {
			p := s.packet(op, nil, nil)
			p.Data = p.Data[:n]
			return p
		}
	}
	from := func(a string) func(*station) link.Rx {
		return func(s *station) link.Rx {
			p := s.packet(rocev2.WriteOnly, []byte("evil"), nil)
			p.Src = netip.MustParseAddr(a)
			return p
		}
	}
	for _, c := range []struct {
		name, counter string
		packet        func(*station) link.Rx
	}{
		{"nothing", "truncated", cut(rocev2.SendOnly, 0)},
		{"half a BTH", "truncated", cut(rocev2.SendOnly, 11)},
		{"no RETH", "truncated", cut(rocev2.WriteOnly, rocev2.BTHLen)},
		{"half a RETH", "truncated", cut(rocev2.WriteOnly, rocev2.BTHLen+8)},
		{"no immediate data", "truncated", cut(rocev2.SendOnlyImm, rocev2.BTHLen)},
		{"no AETH", "truncated", cut(rocev2.Acknowledge, rocev2.BTHLen)},
		{"short CNP", "truncated", cut(rocev2.CNP, rocev2.BTHLen+12)},
		{"padding without payload", "truncated", func(s *station) link.Rx {
			return s.packet(rocev2.SendOnly, nil, func(h *rocev2.Headers) { h.Pad = 3 })
		}},
		{"acknowledgement with payload", "truncated", opcode(rocev2.Acknowledge, 4)},
		{"opcode of no use", "opcode", opcode(0x15, 64)},
		{"opcode 0x1f", "opcode", opcode(0x1f, 64)},
		{"unreliable connection", "opcode", opcode(0x20|rocev2.SendOnly, 64)},
		{"reliable datagram", "opcode", opcode(0x40|rocev2.SendOnly, 64)},
		{"unreliable datagram", "opcode", opcode(rocev2.UDSendOnly, 64)},
		{"unreliable datagram with immediate", "opcode", opcode(rocev2.UDSendOnlyImm, 64)},
		{"opcode 0xff", "opcode", opcode(0xff, 64)},
		{"transport version 1", "tver", bth(func(h *rocev2.Headers) { h.TVer = 1 })},
		{"transport version 15", "tver", bth(func(h *rocev2.Headers) { h.TVer = 15 })},
		{"partition 0", "pkey", bth(func(h *rocev2.Headers) { h.PKey = 0 })},
		{"another partition", "pkey", bth(func(h *rocev2.Headers) { h.PKey = 0x8001 })},
		{"QPN 0", "qpn", bth(func(h *rocev2.Headers) { h.DestQP = 0 })},
		{"QPN 1", "qpn", bth(func(h *rocev2.Headers) { h.DestQP = 1 })},
		{"QPN of no queue pair", "qpn", bth(func(h *rocev2.Headers) { h.DestQP ^= 1 })},
		{"QPN of a multicast group", "qpn", bth(func(h *rocev2.Headers) { h.DestQP |= 0x800000 })},
		{"another host", "peer", from("10.9.0.3")},
		{"the device itself", "peer", from(wireAddr.String())},
		{"four bytes too many", "length", opcode(rocev2.SendOnly, 1028)},
		{"a larger path MTU", "length", opcode(rocev2.WriteFirst, 4096)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStation(t, Options{}, qp.Init{})
			s.works()
			before := s.dev.Counters()
			s.wire.deliver(c.packet(s))
			if got := s.wire.take(); len(got) != 0 {
				t.Errorf("answered by %+v", got)
			}
			if got := drops(s.dev); len(got) != 1 || got["rx_drop_"+c.counter] != 1 {
				t.Errorf("counted as %v, want 1 under rx_drop_%s", got, c.counter)
			}
			after := s.dev.Counters()
			if after["rx_packets"] != before["rx_packets"] || after["rx_bytes"] != before["rx_bytes"] {
				t.Error("counted as taken too")
			}
			if string(s.buf[:4]) == "evil" {
				t.Error("the payload is in memory")
			}
			s.works()
		})
	}
}

// Limited membership of the default partition talks to full members.
func TestLimitedPKey(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{})
	s.wire.deliver(s.packet(rocev2.WriteOnly, []byte("okay"), func(h *rocev2.Headers) { h.PKey = 0x7fff }))
	if got := s.wire.take(); len(got) != 1 || !got[0].AETH.Syndrome.IsAck() {
		t.Errorf("answered by %+v", got)
	}
}

// A queue pair that cannot receive yet, or not any more, is silent.
func TestPacketsInOtherStates(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(*testing.T, *station)
		counter string
	}{
		{"RESET", func(*testing.T, *station) {}, "state"},
		{"INIT", func(t *testing.T, s *station) { modify(t, s.end, qp.StateInit, qp.MaskInit) }, "state"},
		{"ERR", func(t *testing.T, s *station) {
			s.up(peerAddr, peerQPN)
			modify(t, s.end, qp.StateError, qp.MaskState)
		}, "state"},
		{"ERR from RESET", func(t *testing.T, s *station) { modify(t, s.end, qp.StateError, qp.MaskState) }, "state"},
		{"RESET again", func(t *testing.T, s *station) {
			s.up(peerAddr, peerQPN)
			modify(t, s.end, qp.StateReset, qp.MaskState)
		}, "state"},
		{"closed", func(t *testing.T, s *station) {
			s.up(peerAddr, peerQPN)
			if err := s.qp.Close(); err != nil {
				t.Fatal(err)
			}
		}, "qpn"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWire()
			s := newStationOn(t, w, onLink(t, w, Options{}), qp.Init{})
			c.prepare(t, s)
			for _, op := range []rocev2.Opcode{rocev2.WriteOnly, rocev2.SendOnly, rocev2.Acknowledge, rocev2.CNP} {
				s.wire.deliver(s.packet(op, nil, nil))
			}
			if got := s.wire.take(); len(got) != 0 {
				t.Errorf("answered by %+v", got)
			}
			if got := drops(s.dev); len(got) != 1 || got["rx_drop_"+c.counter] != 4 {
				t.Errorf("counted as %v, want 4 under rx_drop_%s", got, c.counter)
			}
			if c.counter == "state" { // it is no worse for it
				if s.qp.State() != qp.StateReset {
					modify(t, s.end, qp.StateReset, qp.MaskState)
				}
				s.up(peerAddr, peerQPN)
				s.works()
			}
		})
	}
}

// The state machines count responses that no request asked for.
func TestUnexpectedResponses(t *testing.T) {
	for op, counter := range map[rocev2.Opcode]string{
		rocev2.ReadRespOnly: "rc_unexpected", rocev2.ReadRespMiddle: "rc_unexpected", rocev2.AtomicAck: "rc_unexpected",
		rocev2.Acknowledge: "rc_stale_acks",
	} {
		t.Run(op.String(), func(t *testing.T) {
			s := newStation(t, Options{}, qp.Init{})
			s.wire.deliver(s.packet(op, make([]byte, op.ExtLen()), func(h *rocev2.Headers) { h.PSN = s.attr.SQPSN.Add(5) }))
			if got := s.wire.take(); len(got) != 0 {
				t.Errorf("answered by %+v", got)
			}
			if got := s.dev.Counters()[counter]; got != 1 {
				t.Errorf("%s is %d, want 1", counter, got)
			}
			s.works()
		})
	}
}

// Atomics and SEND with invalidate are requests of the service, and this
// device refuses them with a NAK.
func TestUnservedRequests(t *testing.T) {
	for _, op := range []rocev2.Opcode{rocev2.CompareSwap, rocev2.FetchAdd, rocev2.SendOnlyInv} {
		t.Run(op.String(), func(t *testing.T) {
			s := newStation(t, Options{}, qp.Init{})
			s.recv(7, s.mr.SGE(0, 100))
			got := s.request(op, make([]byte, op.ExtLen()))
			if len(got) != 1 || got[0].AETH.Syndrome != rocev2.NakInvalidRequest || got[0].PSN != s.attr.RQPSN {
				t.Errorf("answered by %+v", got)
			}
			s.want(7, qp.StatusWRFlushErr)
			if e := s.event(); e.Type != qp.EventQPRequestErr || e.QPN != s.qp.QPN() || e.Err == nil {
				t.Errorf("event %+v", e)
			}
			if st := s.qp.State(); st != qp.StateError {
				t.Errorf("state %v", st)
			}
		})
	}
}
