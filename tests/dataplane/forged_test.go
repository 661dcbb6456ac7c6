package dataplane

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// guarded returns a rack with a group, in which every port is guarded and bridges.
func guarded(t testing.TB) *Switch {
	s := rack(t)
	s.Install(trio)
	for n := 1; n <= RackHosts; n++ {
		s.Add("ingress.guard.guarded_ports", []any{n}, "NoAction")
		s.Add("ingress.guard.port_hosts", []any{n, Addr(HostIP(n))}, "ingress.guard.host", MAC(HostMAC(n)))
		s.Add("ingress.unicast.bridge", []any{MAC(HostMAC(n))}, "ingress.unicast.to_port", uint64(n))
	}
	return s
}

// forgery is an ACK that host 9 sends to the group's sender in the first receiver's
// name.
func forgery() []byte {
	p := trio.Answer(0, rocev2.AckNoLimit, 3, 1)
	p.H.DestQP = trio.SenderQPN
	p.Eth.Src, p.Eth.Dst = HostMAC(9), HostMAC(trio.Sender)
	return p.Frame()
}

// own is an ordinary IPv4 packet of host 9.
func own(protocol uint8, payload []byte) []byte {
	eth := rocev2.Ethernet{Dst: HostMAC(1), Src: HostMAC(9), EtherType: 0x0800}
	ip := rocev2.IPv4{Src: HostIP(9), Dst: HostIP(1), TTL: 64, Protocol: protocol, TotalLen: uint16(rocev2.IPv4Len + len(payload))}
	return append(ip.AppendTo(eth.AppendTo(nil)), payload...)
}

// behind puts bytes between the MACs of a frame and the rest.
func behind(frame []byte, b ...byte) []byte {
	return append(append(append([]byte(nil), frame[:12]...), b...), frame[12:]...)
}

// ip changes a frame's IPv4 header.
func ip(frame []byte, change func(h []byte)) []byte {
	change(frame[14:34])
	frame[24], frame[25] = 0, 0
	n := 4 * int(frame[14]&15)
	binary.BigEndian.PutUint16(frame[24:], rocev2.Checksum(frame[14:14+n]))
	return frame
}

func arp(change func(a []byte)) []byte {
	eth := rocev2.Ethernet{Dst: HostMAC(1), Src: HostMAC(9), EtherType: 0x0806}
	a := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	for _, n := range []int{9, 1} {
		m, i := HostMAC(n), HostIP(n)
		a = append(append(a, m[:]...), i[:]...)
	}
	change(a)
	return append(eth.AppendTo(nil), a...)
}

// TestGuardReads: at a guarded port only what the guard can read passes, whatever
// name it is in.
func TestGuardReads(t *testing.T) {
	f := forgery()
	set := func(at int, v byte) func([]byte) { return func(b []byte) { b[at] = v } }
	payload := own(rocev2.ProtocolUDP, make([]byte, 40))
	llc := append([]byte(nil), f...)
	binary.BigEndian.PutUint16(llc[12:], uint16(len(f)-14+8))
	for name, c := range map[string]struct {
		frame  []byte
		reason string // "": passes
	}{
		"plain":               {payload, ""},
		"TCP":                 {own(6, make([]byte, 20)), ""},
		"DF":                  {ip(own(6, make([]byte, 20)), set(6, 0x40)), ""},
		"ICMP":                {own(1, make([]byte, 8)), ""},
		"ARP":                 {arp(func([]byte) {}), ""},
		"forged":              {f, "spoofed"},
		"tag, VID 0":          {behind(f, 0x81, 0, 0, 0), "unreadable"},
		"tag, VID 7":          {behind(f, 0x81, 0, 0xe0, 7), "unreadable"},
		"two tags":            {behind(f, 0x81, 0, 0, 0, 0x81, 0, 0, 0), "unreadable"},
		"802.1ad":             {behind(f, 0x88, 0xa8, 0, 0), "unreadable"},
		"QinQ of old":         {behind(f, 0x91, 0, 0, 0), "unreadable"},
		"LLC and SNAP":        {append(append(llc[:14:14], 0xaa, 0xaa, 3, 0, 0, 0, 8, 0), llc[14:]...), "unreadable"},
		"MPLS":                {behind(f, 0x88, 0x47, 0, 0, 1, 64), "unreadable"},
		"IPv6":                {append(behind(f[:12], 0x86, 0xdd, 0x60), make([]byte, 60)...), "unreadable"},
		"any other":           {append(behind(f[:12], 0x88, 0xcc), make([]byte, 60)...), "unreadable"},
		"hello":               {append(behind(f[:12], 0x88, 0xb5), make([]byte, 60)...), "spoofed"},
		"options":             {ip(append([]byte(nil), payload...), set(0, 0x46)), "unreadable"},
		"first fragment":      {ip(append([]byte(nil), payload...), set(6, 0x20)), "unreadable"},
		"later fragment":      {ip(append([]byte(nil), payload...), set(7, 0x05)), "unreadable"},
		"short header":        {ip(append([]byte(nil), payload...), set(0, 0x44)), "malformed"},
		"version 5":           {ip(append([]byte(nil), payload...), set(0, 0x55)), "malformed"},
		"cut short":           {payload[:30], "malformed"},
		"ARP, hardware type":  {arp(set(1, 6)), "unreadable"},
		"ARP, protocol":       {arp(set(2, 0x86)), "unreadable"},
		"ARP, length of MACs": {arp(set(4, 8)), "unreadable"},
		"ARP, length of IPs":  {arp(set(5, 16)), "unreadable"},
		"ARP, reverse":        {arp(set(7, 3)), "unreadable"},
		"ARP in other's name": {arp(set(17, 2)), "spoofed"},
		"ARP, cut short":      {arp(func([]byte) {})[:30], "malformed"},
	} {
		s := guarded(t)
		out := s.Send(9, c.frame)
		if c.reason == "" {
			if len(out) != 1 || out[0].Port != 1 || len(s.Dropped()) != 0 {
				t.Errorf("%s: %v; drops %v", name, out, s.Dropped())
			}
			continue
		}
		if d := cmp.Diff(map[string]uint64{c.reason: 1}, s.Dropped()); d != "" || len(out) != 0 {
			t.Errorf("%s: %v; drops (+): %s", name, out, d)
		}
	}
}

// TestBypass: nothing of RoCE goes from the address that a sender's queue pair is
// connected to straight to that queue pair, by whatever way; the merged answer does,
// and so does what is for other queue pairs.
func TestBypass(t *testing.T) {
	s := guarded(t)
	first := uint16(trio.Receivers[0])
	for op := range 256 {
		p := trio.Answer(0, rocev2.AckNoLimit, 3, 1)
		p.H.DestQP, p.Payload = trio.SenderQPN, make([]byte, 16) // room for any header
		f := p.Frame()
		f[42] = byte(op)
		rocev2.PutICRC(f[14:])
		other := append([]byte(nil), f...)
		other[49]++ // the QPN
		rocev2.PutICRC(other[14:])
		for _, mac := range [][6]byte{RouterMAC, HostMAC(trio.Sender)} { // routed, bridged
			copy(f, mac[:])
			before := s.Dropped()["bypass"]
			if out := s.Send(first, f); len(out) != 0 || s.Dropped()["bypass"] != before+1 {
				t.Errorf("opcode %#02x to the sender's queue pair comes out: %v; drops %v", op, out, s.Dropped())
			}
			copy(other, mac[:])
			if out := s.Send(first, other); len(out) != 1 {
				t.Errorf("opcode %#02x to another queue pair: drops %v", op, s.Dropped())
			}
		}
	}
}

// TestRequestsOfMembers: what a member sends to the group's MC_ID other than answers
// does not come out.
func TestRequestsOfMembers(t *testing.T) {
	s := guarded(t)
	p := trio.Answer(1, rocev2.AckNoLimit, 3, 1)
	p.H.Opcode = rocev2.SendOnly
	if out := s.Send(uint16(trio.Receivers[1]), p.Frame()); len(out) != 0 {
		t.Error(out)
	}
	if d := cmp.Diff(map[string]uint64{"opcode": 1}, s.Dropped()); d != "" {
		t.Error(d)
	}
}

// TestLiar: false claims of a member do not make the sender take for acknowledged
// what an honest member lacks.
func TestLiar(t *testing.T) {
	s := guarded(t)
	for _, x := range []struct {
		member int
		psn    rocev2.PSN
	}{{0, 0}, {1, 0}, {2, 0}, {2, 100}, {0, 1 << 22}, {0, 1<<22 + 1}, {0, 1<<23 + 50}, {0, rocev2.Mask24}} {
		for _, f := range s.Send(uint16(trio.Receivers[x.member]), trio.Answer(x.member, rocev2.AckNoLimit, x.psn, 0).Frame()) {
			if p := parsed(t, f); p.H.PSN > 0 {
				t.Errorf("after member %d said %d the sender is told %d; member 1 has only 0", x.member, x.psn, p.H.PSN)
			}
		}
	}
	if d := cmp.Diff(map[string]uint64{"absorbed": 4, "window": 3}, s.Dropped()); d != "" {
		t.Error(d)
	}
	if ackmerge.Window != 1<<22 {
		t.Error("the program's window is not the model's")
	}
}

// TestUrgentClass: which packets ask for the class that queues serve first.
func TestUrgentClass(t *testing.T) {
	s := rack(t)
	s.Install(trio)
	cnp := trio.Answer(0, 0, 0, 0)
	cnp.H = rocev2.CNPHeaders(trio.MCID)
	hello := append(behind(forgery()[:12], 0x88, 0xb5), make([]byte, 50)...)
	out := append([]byte{0, 4 << 5}, hello...)
	for name, c := range map[string]struct {
		port  int
		frame []byte
		class int
	}{
		"ACK":             {2, trio.Answer(0, rocev2.AckNoLimit, 1, 0).Frame(), 1},
		"NAK":             {2, trio.Answer(0, rocev2.NakSequence, 1, 0).Frame(), 1},
		"CNP":             {2, cnp.Frame(), 1},
		"ACK of unicast":  {2, Between(2, 5, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.Acknowledge, DestQP: 9}}, nil).Frame(), 1},
		"hello":           {3, hello, 1},
		"packet-out":      {510, out, 1},
		"data of a group": {1, trio.Data(rocev2.SendOnly, 1, nil).Frame(), 0},
		"data":            {2, Between(2, 5, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, DestQP: 9}}, nil).Frame(), 0},
		"TCP":             {9, append(append([]byte(nil), RouterMAC[:]...), own(6, make([]byte, 20))[6:]...), 0},
	} {
		packets := s.Ingress(s.Now, uint16(c.port), c.frame)
		if len(packets) == 0 {
			t.Errorf("%s: nothing is queued; drops %v", name, s.Dropped())
		}
		for _, p := range packets {
			if p.Priority() != c.class {
				t.Errorf("%s is in class %d, expected %d", name, p.Priority(), c.class)
			}
			s.Release(p)
		}
	}
}
