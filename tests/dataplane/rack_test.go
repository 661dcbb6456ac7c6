package dataplane

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/internal/pcapfile"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

func rack(t testing.TB) *Switch {
	t.Helper()
	s, err := NewRack()
	if err != nil {
		t.Fatal(err)
	}
	if beneath != nil {
		beneath(t, s)
	}
	return s
}

func parsed(t testing.TB, f Frame) *Packet {
	t.Helper()
	p, err := f.Parse()
	if err != nil {
		t.Fatalf("%v\n% x", err, f.Data)
	}
	return p
}

// crc is an ICRC in the plainest way, from the specification's words and
// nothing else.
func crc(ip []byte) uint32 {
	b := append(bytes.Repeat([]byte{0xff}, 8), ip[:len(ip)-4]...)
	for _, i := range []int{1, 8, 10, 11, 26, 27, 32} { // ToS, TTL, checksums, BTH byte 4
		b[8+i] = 0xff
	}
	return crc32.ChecksumIEEE(b)
}

var trio = Group{Index: 7, Sender: 1, SenderQPN: 0x11, MCID: 0x80_0005, Receivers: []int{2, 3, 4}, Epoch: 1}

// TestCopies: each copy is what its receiver would get in unicast.
func TestCopies(t *testing.T) {
	s := rack(t)
	s.Install(trio)
	for _, n := range []int{0, 1, 2, 3, 4, 1024, 4096} {
		payload := bytes.Repeat([]byte{0xa5, 1}, n/2+1)[:n]
		in := trio.Data(rocev2.WriteOnly, 5, payload)
		in.H.RETH.VA += 100
		out := s.Send(1, in.Frame())
		if len(out) != 3 {
			t.Fatalf("%d B: %d copies; drops %v", n, len(out), s.Dropped())
		}
		for i, f := range out {
			got := parsed(t, f)
			if int(f.Port) != trio.Receivers[i] || got.ICRC != crc(f.Data[14:]) {
				t.Errorf("%d B: copy %d at port %d, ICRC %08x, expected %08x", n, i, f.Port, got.ICRC, crc(f.Data[14:]))
			}
			want := *in
			want.Eth.Dst, want.Eth.Src = HostMAC(trio.Receivers[i]), RouterMAC
			want.IP.Dst, want.IP.TTL = HostIP(trio.Receivers[i]), 63
			want.H.DestQP = ReceiverQPN(i)
			want.H.RETH.VA = ReceiverVA(i) + 100
			want.H.RETH.RKey = ReceiverRKey(i)
			if !bytes.Equal(f.Data, want.Frame()) {
				t.Errorf("%d B: copy %d: %s", n, i, cmp.Diff(parsed(t, Frame{Data: want.Frame()}), got))
			}
		}
	}
}

// TestMergedAnswer: an answer looks as if the receiver that the sender knows had
// given it.
func TestMergedAnswer(t *testing.T) {
	s := rack(t)
	s.Install(trio)
	for i := range 2 {
		if out := s.Send(uint16(2+i), trio.Answer(i, 0x0a, 3, 1).Frame()); len(out) != 0 {
			t.Fatalf("member %d was passed on", i)
		}
	}
	in := trio.Answer(2, rocev2.AckNoLimit, 2, 1)
	out := s.Send(4, in.Frame())
	if len(out) != 1 || out[0].Port != 1 {
		t.Fatalf("%v; drops %v", out, s.Dropped())
	}
	want := *in
	want.Eth.Dst, want.Eth.Src = HostMAC(1), RouterMAC
	want.IP.Src, want.IP.TTL = HostIP(2), 63
	want.H.DestQP = trio.SenderQPN
	if !bytes.Equal(out[0].Data, want.Frame()) {
		t.Error(cmp.Diff(parsed(t, Frame{Data: want.Frame()}), parsed(t, out[0])))
	}
	if d := cmp.Diff(map[string]uint64{"absorbed": 2}, s.Dropped()); d != "" {
		t.Error(d)
	}
}

// TestCapturesPass: frames of the Linux kernel's RoCE stack come out of unicast
// as they went in, but for MACs, TTL and IP checksum.
func TestCapturesPass(t *testing.T) {
	frames := 0
	for _, name := range []string{"rc_send", "rc_write", "rc_read", "rc_atomic", "ud_send", "cm_rping"} {
		packets, err := (&pcapfile.Tail{Name: "../../pkg/rocev2/testdata/" + name + ".pcap"}).Read()
		if err != nil {
			t.Fatal(err)
		}
		s := rack(t)
		s.Add("ingress.unicast.routes", []any{Prefix{0, 0}}, "ingress.unicast.to_next_hop", 9)
		for i, p := range packets {
			in := append([]byte(nil), p.Data...)
			if in[12] != 8 || in[13] != 0 {
				continue // not IPv4
			}
			frames++
			copy(in, RouterMAC[:])
			out := s.Send(1, in)
			if len(out) != 1 {
				t.Fatalf("%s %d: %d frames; drops %v", name, i, len(out), s.Dropped())
			}
			want := append([]byte(nil), in...)
			host := HostMAC(9)
			copy(want, host[:])
			copy(want[6:], RouterMAC[:])
			want[22]--
			want[24], want[25] = 0, 0
			sum := rocev2.Checksum(want[14:34])
			want[24], want[25] = byte(sum>>8), byte(sum)
			if !bytes.Equal(out[0].Data, want) {
				t.Errorf("%s %d:\n% x\n% x", name, i, out[0].Data, want)
			}
		}
	}
	if frames < 50 {
		t.Errorf("only %d frames", frames)
	}
}

// TestBadICRC: what arrives broken is not made right.
func TestBadICRC(t *testing.T) {
	s := rack(t)
	s.Install(trio)
	in := trio.Data(rocev2.SendOnly, 1, make([]byte, 100)).Frame()
	for i := 14; i < len(in); i++ {
		bad := append([]byte(nil), in...)
		bad[i] ^= 0x10
		for _, f := range s.Send(1, bad) {
			// Only what nothing covers may be wrong: UDP checksum, BTH byte 4.
			// With another UDP port it is not RoCE.
			if at := i - 14; at != 22 && at != 23 && (!f.GoodICRC() || at != 26 && at != 27 && at != 32) {
				t.Errorf("byte %d of IP is wrong, and %v came out", at, f.Port)
			}
		}
	}
	if d := s.Dropped(); d["icrc"] < 100 {
		t.Errorf("drops %v", d)
	}
}
