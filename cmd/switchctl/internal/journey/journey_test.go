package journey

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	mcID   = 0x800001
	sender = 77
	first  = rocev2.PSN(100)
)

var start = time.Unix(1_800_000_000, 0)

// testTree is a rack: one switch, the sender at port 1, receivers at ports 2 and 3.
func testTree() *grouptree.Tree {
	key := grouptree.Key{Source: netip.MustParseAddr("10.0.0.1"), ID: mcID}
	n := &grouptree.Node{Switch: "s", Destination: "10.0.0.2", Step: &mcrdmav1.Step{Root: true}, Edges: []grouptree.Edge{
		{Ports: []uint32{2}, Destination: "10.0.0.2", Receiver: "10.0.0.2", QPN: 12},
		{Ports: []uint32{3}, Destination: "10.0.0.3", Receiver: "10.0.0.3", QPN: 13},
	}}
	return &grouptree.Tree{Key: key, Nodes: []*grouptree.Node{n}, Roots: []*grouptree.Node{n}, Group: &mcrdmav1.GroupStatus{Switch: "s",
		Group: &mcrdmav1.Group{Key: key.Proto(), SenderQpn: sender, InitialPsn: uint32(first), Receivers: []*mcrdmav1.Receiver{
			{Address: "10.0.0.2", Qpn: 12}, {Address: "10.0.0.3", Qpn: 13}}}}}
}

// A scene is a capture under construction, with a microsecond per packet.
type scene []Packet

func (s *scene) see(port uint32, out bool, src, dst byte, h rocev2.Headers, change func(frame []byte)) {
	payload := make([]byte, 8)
	if h.Opcode == rocev2.Acknowledge {
		payload = nil
	}
	n := rocev2.UDPLen + h.Len() + len(payload) + rocev2.ICRCLen
	eth := rocev2.Ethernet{EtherType: rocev2.EtherTypeIPv4}
	ip := rocev2.IPv4{TotalLen: uint16(rocev2.IPv4Len + n), TTL: 64, Protocol: rocev2.ProtocolUDP, Src: [4]byte{10, 0, 0, src}, Dst: [4]byte{10, 0, 0, dst}}
	udp := rocev2.UDP{SrcPort: 50000, DstPort: rocev2.UDPPort, Length: uint16(n)}
	b := udp.AppendTo(ip.AppendTo(eth.AppendTo(nil)))
	b = append(append(h.AppendTo(b), payload...), 0, 0, 0, 0)
	rocev2.PutICRC(b[rocev2.EthernetLen:])
	if change != nil {
		change(b)
	}
	*s = append(*s, Packet{Switch: "s", Port: port, Out: out, Time: start.Add(time.Duration(len(*s)) * time.Microsecond), Data: b})
}

func writeOnly(qp rocev2.QPN, psn rocev2.PSN) rocev2.Headers {
	return rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.WriteOnly, PKey: rocev2.DefaultPKey, DestQP: qp, PSN: psn}, RETH: rocev2.RETH{VA: 1, RKey: 2, Length: 8}}
}

func ack(qp rocev2.QPN, psn rocev2.PSN, s rocev2.Syndrome) rocev2.Headers {
	return rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.Acknowledge, PKey: rocev2.DefaultPKey, DestQP: qp, PSN: psn}, AETH: rocev2.AETH{Syndrome: s, MSN: 1}}
}

// whole is a write without faults.
func whole(psn rocev2.PSN) (s scene) {
	s.see(1, false, 1, 2, writeOnly(mcID, psn), nil)
	s.see(2, true, 1, 2, writeOnly(12, psn), nil)
	s.see(3, true, 1, 3, writeOnly(13, psn), nil)
	s.see(2, false, 2, 1, ack(mcID, psn, rocev2.AckNoLimit), nil)
	s.see(3, false, 3, 1, ack(mcID, psn, rocev2.AckNoLimit), nil)
	s.see(1, true, 2, 1, ack(sender, psn, rocev2.AckNoLimit), nil)
	return s
}

func explain(t *testing.T, s scene, o Options, ports ...uint32) *Journey {
	t.Helper()
	e, err := New(testTree())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		e.Watch("s", p)
	}
	j, err := e.Explain(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestExplain: the comment on each packet, with and without faults.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name    string
		scene   func() scene
		ports   []uint32
		at      int // the packet to check
		want    []string
		dropped int
	}{
		{"replicated", func() scene { return whole(first) }, []uint32{1, 2, 3}, 0, []string{"replicated: 2 copies, by port 2 to receiver 10.0.0.2 and by port 3 to receiver 10.0.0.3"}, 0},
		{"rewritten", func() scene { return whole(first) }, []uint32{1, 2, 3}, 2, []string{"rewritten for receiver 10.0.0.3: destination 10.0.0.2 → 10.0.0.3, QPN 0x800001 → 0x00000d, ICRC"}, 0},
		{"absorbed", func() scene { return whole(first) }, []uint32{1, 2, 3}, 3, []string{"acknowledges all up to PSN 100", "merged away (absorbed)", "10.0.0.3 nothing yet"}, 0},
		{"passed on", func() scene { return whole(first) }, []uint32{1, 2, 3}, 4, []string{"passed on to the sender, as the answer of all: 10.0.0.2 has up to 100, 10.0.0.3 has up to 100"}, 0},
		{"merged", func() scene { return whole(first) }, []uint32{1, 2, 3}, 5, []string{"merged: the sender takes it for the answer of all 2", "source 10.0.0.3 → 10.0.0.2, ", "QPN 0x800001 → 0x00004d"}, 0},
		{"not from the beginning", func() scene { return whole(first + 5) }, []uint32{1, 2, 3}, 3, []string{"is not known, as nothing was seen of 10.0.0.3 before"}, 0},
		{"a copy that is lost", func() scene { s := whole(first); return append(s[:2], s[3:]...) }, []uint32{1, 2, 3}, 0, []string{"dropped: the copy by port 3 to receiver 10.0.0.3 did not leave"}, 1},
		{"a port that is not watched", func() scene { s := whole(first); return append(s[:2], s[3:]...) }, []uint32{1, 2}, 0, []string{"the copy by port 3 to receiver 10.0.0.3 was not watched"}, 0},
		{"damaged", func() scene {
			var s scene
			s.see(1, false, 1, 2, writeOnly(mcID, first), func(b []byte) { b[len(b)-6] ^= 1 })
			return append(s, whole(first)[1:]...)
		}, []uint32{1, 2, 3}, 0, []string{"dropped: its ICRC is wrong (icrc)"}, 1},
		{"damaged, and passed on", func() scene {
			s := whole(first)
			for i := range 3 {
				s[i].Data[len(s[i].Data)-6] ^= 1
			}
			return s
		}, []uint32{1, 2, 3}, 0, []string{"its ICRC is wrong: passed on so, for who receives it to drop it"}, 0},
		{"TTL", func() scene {
			var s scene
			s.see(1, false, 1, 2, writeOnly(mcID, first), func(b []byte) {
				b[22] = 1
				b[24], b[25] = 0, 0
				sum := rocev2.Checksum(b[14:34])
				b[24], b[25] = byte(sum>>8), byte(sum)
			})
			return append(s, whole(first)[1:]...)
		}, []uint32{1, 2, 3}, 0, []string{"dropped: its TTL is 1 (ttl)"}, 1},
		{"a stranger's answer", func() scene {
			s := whole(first)
			s.see(3, false, 9, 1, ack(mcID, first, rocev2.AckNoLimit), nil)
			return s
		}, []uint32{1, 2, 3}, 6, []string{"dropped: 10.0.0.9 is not a member, or no longer (not_member)"}, 1},
		{"an old refusal", func() scene {
			s := whole(first)
			s.see(3, false, 3, 1, ack(mcID, first, rocev2.NakSequence), nil)
			return s
		}, []uint32{1, 2, 3}, 6, []string{"refuses PSN 100", "behind what the sender was told", "(window)"}, 1},
		{"no merged answer", func() scene {
			s := whole(first)
			for _, p := range whole(first + 1)[:5] { // of another write, and the last answer does not leave
				p.Time = p.Time.Add(time.Second)
				s = append(s, p)
			}
			for _, p := range whole(first + 2) {
				p.Time = p.Time.Add(2 * time.Second)
				s = append(s, p)
			}
			return s
		}, []uint32{1, 2, 3}, 10, []string{"dropped: it was to be passed on to the sender, and was not seen to leave"}, 1},
	} {
		j := explain(t, c.scene(), Options{All: c.at > 6}, c.ports...)
		if len(j.Packets) <= c.at {
			t.Errorf("%s: %d packets", c.name, len(j.Packets))
			continue
		}
		for _, w := range c.want {
			if got := j.Packets[c.at].Comment; !strings.Contains(got, w) {
				t.Errorf("%s: %q lacks %q", c.name, got, w)
			}
		}
		if j.Dropped != c.dropped {
			t.Errorf("%s: %d packets are said to be dropped, want %d", c.name, j.Dropped, c.dropped)
		}
	}
}

// TestChoice: the first complete write is chosen, of all or after a time, or the last, or that with
// a PSN; packets of others are ignored.
func TestChoice(t *testing.T) {
	var s scene
	for i := range 3 {
		for _, p := range whole(first + rocev2.PSN(i)) {
			p.Time = p.Time.Add(time.Duration(i) * time.Second)
			s = append(s, p)
		}
	}
	s.see(1, false, 1, 2, writeOnly(mcID, first+3), nil) // still in flight
	s[len(s)-1].Time = start.Add(time.Minute)
	psn := first + 1
	for _, c := range []struct {
		o     Options
		first rocev2.PSN
		n     int
	}{{Options{}, first, 6}, {Options{Latest: true}, first + 2, 6}, {Options{PSN: &psn}, psn, 6}, {Options{All: true}, 0, 19},
		{Options{After: start.Add(time.Second / 2)}, first + 1, 6}, {Options{After: start.Add(time.Minute), PSN: &psn}, psn, 6}} {
		if j := explain(t, s, c.o, 1, 2, 3); j.First != c.first || len(j.Packets) != c.n {
			t.Errorf("%+v: %d packets from PSN %d on, want %d from %d", c.o, len(j.Packets), j.First, c.n, c.first)
		}
	}
	e, err := New(testTree())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Explain(s[18:], Options{}); !errors.Is(err, ErrNoWrite) {
		t.Errorf("of a part of a write: %v", err)
	}
	if _, err := e.Explain(s[:6], Options{}); err != nil {
		t.Errorf("of a whole write: %v", err)
	}
	psn = 9999
	for _, o := range []Options{{PSN: &psn}, {}} {
		packets := s
		if o.PSN == nil {
			packets = s[:5]
		}
		if _, err := e.Explain(packets, o); !errors.Is(err, ErrNoWrite) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := New(&grouptree.Tree{}); err == nil {
		t.Error("a group that no agent reports is taken")
	}
}

// long is a scene of that many writes, one after another.
func long(writes int) (s scene) {
	for i := range writes {
		for _, p := range whole(first + rocev2.PSN(i)) {
			p.Time = start.Add(time.Duration(len(s)) * time.Microsecond)
			s = append(s, p)
		}
	}
	return s
}

// TestLong: in a long capture each packet matches the right earlier ones, and not those of long
// ago. BenchmarkLook measures the time.
func TestLong(t *testing.T) {
	s := long(4000)
	e, err := New(testTree())
	if err != nil {
		t.Fatal(err)
	}
	for i := range s {
		if !e.Relevant(&s[i]) {
			t.Fatalf("packet %d is not of the group", i)
		}
	}
	j, err := e.Explain(s, Options{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range j.Packets {
		if want := whole(first)[i%6]; p.Port != want.Port || p.Out != want.Out || strings.Contains(p.Comment, "not seen") || i%6 == 0 && strings.Contains(p.Comment, "again") {
			t.Fatalf("packet %d, %s: %s", i, p.Summary, p.Comment)
		}
	}
	if again, err := e.Explain(s, Options{Latest: true}); err != nil || len(again.Packets) != 6 || again.First != first+3999 {
		t.Errorf("the second time: %+v, %v", again, err)
	}
	for writes, want := range map[int]string{lookBack/6 - 1: "again sent by", lookBack/6 + 1: "as sent by"} { // the same PSN, that many packets later
		s := long(writes)
		s.see(1, false, 1, 2, writeOnly(mcID, first), nil)
		if p := explain(t, s, Options{All: true}, 1, 2, 3).Packets; !strings.HasPrefix(p[len(p)-1].Comment, want) {
			t.Errorf("after %d writes: %s, want %s", writes, p[len(p)-1].Comment, want)
		}
	}
}

// BenchmarkLook is the time to explain 200,000 packets: one write, the last, and all.
func BenchmarkLook(b *testing.B) {
	s := long(33334)
	e, err := New(testTree())
	if err != nil {
		b.Fatal(err)
	}
	for i := range s {
		e.Relevant(&s[i])
	}
	for name, o := range map[string]Options{"none": {After: start.Add(time.Hour)}, "latest": {Latest: true}, "all": {All: true}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if j, err := e.Explain(s, o); (err != nil) != (name == "none") || err == nil && len(j.Packets) < 6 {
					b.Fatal(err)
				}
			}
		})
	}
}

// FuzzExplain: any capture is explained or refused.
func FuzzExplain(f *testing.F) {
	for _, p := range whole(first) {
		f.Add(p.Data, p.Out, uint8(p.Port))
	}
	f.Fuzz(func(t *testing.T, frame []byte, out bool, port uint8) {
		e, err := New(testTree())
		if err != nil {
			t.Fatal(err)
		}
		s := whole(first)
		for i := range s {
			x := append(s[:i:i], Packet{Switch: "s", Port: uint32(port), Out: out, Time: s[i].Time, Data: frame})
			x = append(x, s[i:]...)
			if j, err := e.Explain(x, Options{All: true}); err != nil || len(j.Packets) < 6 {
				t.Fatal(err)
			}
		}
	})
}
