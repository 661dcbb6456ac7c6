package dataplane

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// resized is a frame of which IP and UDP say another length, with a right checksum.
func resized(frame []byte, ipLen, udpLen int) []byte {
	f := append([]byte(nil), frame...)
	binary.BigEndian.PutUint16(f[38:], uint16(udpLen))
	return ip(f, func(h []byte) { binary.BigEndian.PutUint16(h[2:], uint16(ipLen)) })
}

// TestCutShort: a RoCE packet whose headers and ICRC do not fit in what its lengths say, or whose lengths say more
// than came, is malformed, whatever it is; a length that has room for them is believed. Answers of members
// that are damaged otherwise are as other packets are.
func TestCutShort(t *testing.T) {
	const udpAt, least = 14 + 20, 8 + 12 + 4
	g := still()
	host := Between(2, 3, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, DestQP: 0x77}}, make([]byte, 20))
	cnp := g.Answer(0, 0, 0, 0)
	cnp.H, cnp.Payload = rocev2.CNPHeaders(g.MCID), make([]byte, 16)
	ack := g.Answer(0, rocev2.AckNoLimit, 5, 1)
	for name, c := range map[string]struct {
		port   uint16
		packet *Packet
		header int // behind the BTH
	}{
		"WRITE":            {1, g.Data(rocev2.WriteOnly, 1, make([]byte, 20)), 16},
		"WRITE with imm.":  {1, g.Data(rocev2.WriteOnlyImm, 1, make([]byte, 20)), 16},
		"first of a WRITE": {1, g.Data(rocev2.WriteFirst, 1, make([]byte, 20)), 16},
		"middle":           {1, g.Data(rocev2.WriteMiddle, 1, make([]byte, 20)), 0},
		"SEND":             {1, g.Data(rocev2.SendOnly, 1, make([]byte, 20)), 0},
		"ACK":              {2, ack, 4},
		"CNP":              {2, cnp, 0},
		"unicast":          {2, host, 0},
	} {
		s := rack(t)
		s.SetICRC(Neutral)
		s.Install(g)
		frame := c.packet.Frame()
		udp := len(frame) - udpAt
		drops := func(what string, f []byte, reason string) {
			t.Helper()
			before := s.Dropped()
			out := s.Send(c.port, f)
			want := s.Dropped()
			before[reason]++
			if d := cmp.Diff(before, want); d != "" || len(out) > 0 {
				t.Errorf("%s, %s: %d frames; drops (+): %s", name, what, len(out), d)
			}
		}
		for n := udpAt + 8; n < len(frame); n++ {
			drops("cut", frame[:n], "malformed")
		}
		for n := range least + c.header {
			drops("lengths that are less than its headers", resized(frame, 20+n, n), "malformed")
			drops("lengths that are less than its headers, cut", resized(frame, 20+n, n)[:max(udpAt+n, udpAt+8)], "malformed")
		}
		for _, n := range []int{1, 4, 1000} {
			drops("lengths that are more than came", resized(frame, 20+udp+n, udp+n), "malformed")
			drops("IP says more than UDP", resized(frame, 20+udp+n, udp), "malformed")
			drops("UDP says more than IP", resized(frame, 20+udp, udp+n), "malformed")
		}
		wrong := append([]byte(nil), frame...)
		wrong[25]++
		drops("a wrong checksum", wrong, "ip_checksum")
		if out := s.Send(c.port, ip(append([]byte(nil), frame...), func(h []byte) { h[6] = 0x20 })); len(out) != 1 {
			t.Errorf("%s, as a fragment: %d frames; drops %v", name, len(out), s.Dropped())
		}
		if out := s.Send(c.port, frame); len(out) == 0 && s.Dropped()["absorbed"] == 0 {
			t.Errorf("%s, whole: drops %v", name, s.Dropped())
		}
	}
}
