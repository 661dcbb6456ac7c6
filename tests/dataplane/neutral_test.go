package dataplane

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// still is trio with its regions at the address that the sender's packets carry.
func still() Group {
	g := trio
	for i := range g.Receivers {
		g.Targets = append(g.Targets, Target{ReceiverQPN(i), ReceiverRKey(i), SenderVA})
	}
	return g
}

// udpSum is a UDP checksum from the bytes of a frame: RFC 768.
func udpSum(frame []byte) uint16 {
	ip := frame[14:]
	b := append(append([]byte(nil), ip[12:20]...), 0, 17, ip[24], ip[25])
	b = append(b, ip[20:]...)
	b[12+6], b[12+7] = 0, 0
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	sum := 0
	for ; len(b) > 0; b = b[2:] {
		sum += int(b[0])<<8 | int(b[1])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	if sum == 0xffff {
		return 0xffff
	}
	return ^uint16(sum)
}

// withSum gives a frame its UDP checksum.
func withSum(frame []byte) []byte {
	binary.BigEndian.PutUint16(frame[14+26:], udpSum(frame))
	return frame
}

// TestNeutral: copies of each opcode and length are right for their receivers, with the
// ICRC that came. Only identification and source port, and a UDP checksum, change beside
// what is rewritten.
func TestNeutral(t *testing.T) {
	s := rack(t)
	s.SetICRC(Neutral)
	g := still()
	s.Install(g)
	for op := rocev2.SendFirst; op <= rocev2.WriteOnlyImm; op++ {
		for n := 0; n <= 4096; n += 1 + n/64 {
			payload := bytes.Repeat([]byte{0xa5, byte(n)}, n/2+1)[:n]
			in := g.Data(op, rocev2.PSN(n), payload)
			in.IP.ID, in.UDP.SrcPort = uint16(n*77), uint16(0xc000+n)
			frame := in.Frame()
			if n%2 == 1 {
				frame = withSum(frame)
			}
			out := s.Send(1, frame)
			if len(out) != 3 {
				t.Fatalf("%v, %d B: %d copies; drops %v", op, n, len(out), s.Dropped())
			}
			for i, f := range out {
				end := len(f.Data) - 4
				if !bytes.Equal(f.Data[end:], frame[end:]) || binary.LittleEndian.Uint32(f.Data[end:]) != crc(f.Data[14:]) {
					t.Fatalf("%v, %d B: copy %d has ICRC % x, came with % x, right is %08x", op, n, i, f.Data[end:], frame[end:], crc(f.Data[14:]))
				}
				got := parsed(t, f)
				want := *in
				want.Eth.Dst, want.Eth.Src = HostMAC(g.Receivers[i]), RouterMAC
				want.IP.Dst, want.IP.TTL = HostIP(g.Receivers[i]), 63
				want.H.DestQP = ReceiverQPN(i)
				if op.HasRETH() {
					want.H.RETH.RKey = ReceiverRKey(i)
				}
				want.IP.ID, want.UDP.SrcPort = got.IP.ID, got.UDP.SrcPort
				b := want.Frame()
				if n%2 == 1 {
					b = withSum(b)
				}
				if !bytes.Equal(f.Data, b) {
					t.Fatalf("%v, %d B: copy %d: %s", op, n, i, cmp.Diff(parsed(t, Frame{Data: b}), got))
				}
			}
		}
	}
	if d := s.Dropped(); len(d) > 0 {
		t.Error(d)
	}
}

// TestNeutralFlow: all packets of a flow that have no RETH have one source port, and so have
// those with one, at each receiver.
func TestNeutralFlow(t *testing.T) {
	s := rack(t)
	s.SetICRC(Neutral)
	g := still()
	s.Install(g)
	ports := map[[2]int]map[uint16]bool{}
	for op := rocev2.SendFirst; op <= rocev2.WriteOnlyImm; op++ {
		for id := range 10 {
			in := g.Data(op, 0, make([]byte, 100+id))
			in.IP.ID = uint16(id)
			for i, f := range s.Send(1, in.Frame()) {
				k := [2]int{i, 0}
				if op.HasRETH() {
					k[1] = 1
				}
				if ports[k] == nil {
					ports[k] = map[uint16]bool{}
				}
				ports[k][parsed(t, f).UDP.SrcPort] = true
			}
		}
	}
	if len(ports) != 6 {
		t.Errorf("%d flows", len(ports))
	}
	for k, p := range ports {
		if len(p) != 1 {
			t.Errorf("copy %d, with RETH %d: source ports %v", k[0], k[1], p)
		}
	}
}

// TestNeutralBranch: a copy that is copied again keeps the MC_ID, and its flow.
func TestNeutralBranch(t *testing.T) {
	s := rack(t)
	s.SetICRC(Neutral)
	g := still()
	s.Install(g)
	s.Modify("egress.rewrite.replicas", []any{g.Index, 2}, "egress.rewrite.to_branch", Addr(HostIP(9)), 9, g.Neutral(9, g.MCID))
	var source uint16
	for op := rocev2.SendFirst; op <= rocev2.WriteOnlyImm; op++ {
		in := g.Data(op, 7, make([]byte, 333))
		out := s.Send(1, in.Frame())
		if len(out) != 3 {
			t.Fatalf("%d copies; drops %v", len(out), s.Dropped())
		}
		got := parsed(t, out[1])
		if source == 0 {
			source = got.UDP.SrcPort
		}
		want := *in
		want.Eth.Dst, want.Eth.Src = HostMAC(3), RouterMAC
		want.Eth.Dst = HostMAC(9)
		want.IP.Dst, want.IP.TTL = HostIP(9), 63
		want.IP.ID, want.UDP.SrcPort = got.IP.ID, source
		if !bytes.Equal(out[1].Data, want.Frame()) {
			t.Errorf("%v: %s", op, cmp.Diff(parsed(t, Frame{Data: want.Frame()}), got))
		}
	}
}

// TestNeutralDamaged: what was damaged before the switch, or in it, is never right behind it,
// wherever the damage is: in what the switch passes on, and in what it computes anew.
func TestNeutralDamaged(t *testing.T) {
	for name, g := range map[string]Group{"constants": still(), "addresses move": trio} {
		s := rack(t)
		s.SetICRC(Neutral)
		s.Install(g)
		for _, op := range []rocev2.Opcode{rocev2.SendOnly, rocev2.WriteOnly, rocev2.WriteMiddle} {
			in := g.Data(op, 1, bytes.Repeat([]byte("damage"), 20)).Frame()
			passed := 0
			for at := 14 + 12; at < len(in); at++ {
				switch at - 14 {
				case 22, 23, 24, 25, 26, 27, 28, 32: // not RoCE, not of its length, not covered, or of another opcode
					continue
				}
				bad := bytes.Clone(in)
				bad[at] ^= 0x10
				binary.BigEndian.PutUint16(bad[24:], 0)
				binary.BigEndian.PutUint16(bad[24:], rocev2.Checksum(bad[14:34]))
				for _, f := range s.Send(1, bad) {
					if passed++; f.GoodICRC() {
						t.Errorf("%s, %v: byte %d of IP was damaged, and port %d sends it with a right ICRC", name, op, at-14, f.Port)
					}
				}
			}
			if moved := name != "constants" && op == rocev2.WriteOnly; moved == (passed > 200) {
				t.Errorf("%s, %v: %d damaged copies went on; drops %v", name, op, passed, s.Dropped())
			}
		}
		// In the switch: a rule of fault injection, on the way in and out.
		for _, where := range []string{"ingress.fault_in.rules", "egress.fault_out.rules"} {
			s := rack(t)
			s.SetICRC(Neutral)
			s.Install(g)
			s.Add(where, []any{Masked{}, Masked{Addr(HostIP(1)), 0xffffffff}, Masked{}, Masked{}, Masked{}, Masked{}}, faultAction(where), 1, 1, 0, 1000, 1)
			good := 0
			for _, op := range []rocev2.Opcode{rocev2.SendOnly, rocev2.WriteOnly} {
				for _, f := range s.Send(1, g.Data(op, 1, make([]byte, 99)).Frame()) {
					if f.GoodICRC() {
						good++
					}
				}
			}
			if good > 0 {
				t.Errorf("%s: %d of the copies that %s damages are good", name, good, where)
			}
		}
	}
}

func faultAction(rules string) string { return rules[:len(rules)-len("rules")] + "fault" }

// TestNeutralComputesAnew: a region at another address, none at all, and a copy without a constant:
// their copies have a new ICRC, and all others the one that came.
func TestNeutralComputesAnew(t *testing.T) {
	s := rack(t)
	s.SetICRC(Neutral)
	g := still()
	g.Targets[1].VA = ReceiverVA(1)
	s.Install(g)
	s.Modify("egress.rewrite.replicas", []any{g.Index, 3}, "egress.rewrite.to_receiver", Addr(HostIP(4)), uint64(ReceiverQPN(2)), 4, 0)
	for name, c := range map[string]struct {
		op   rocev2.Opcode
		rkey uint32
		anew [3]bool
	}{
		"SEND":             {rocev2.SendOnly, SenderRKey, [3]bool{false, false, true}},
		"WRITE":            {rocev2.WriteOnly, SenderRKey, [3]bool{false, true, true}},
		"to another's key": {rocev2.WriteOnly, 1, [3]bool{true, true, true}},
	} {
		in := g.Data(c.op, 1, make([]byte, 100))
		in.H.RETH.RKey = c.rkey
		out := s.Send(1, in.Frame())
		if len(out) != 3 {
			t.Fatalf("%s: %d copies; drops %v", name, len(out), s.Dropped())
		}
		for i, f := range out {
			got := parsed(t, f)
			if !f.GoodICRC() {
				t.Errorf("%s: the ICRC of copy %d is wrong", name, i)
			}
			if anew := got.IP.ID == in.IP.ID && got.UDP.SrcPort == in.UDP.SrcPort; anew != c.anew[i] {
				t.Errorf("%s: copy %d is computed anew: %t, want %t", name, i, anew, c.anew[i])
			}
			if c.op == rocev2.WriteOnly && c.rkey != SenderRKey && got.H.RETH.RKey != 0 {
				t.Errorf("%s: copy %d opens %#x", name, i, got.H.RETH.RKey)
			}
		}
	}
}

// TestNeutralAnswers: answers are checked, merged and computed anew as in mode recompute.
func TestNeutralAnswers(t *testing.T) {
	s := rack(t)
	s.SetICRC(Neutral)
	g := still()
	s.Install(g)
	bad := g.Answer(0, rocev2.AckNoLimit, 3, 1).Frame()
	bad[len(bad)-5] ^= 1
	if out := s.Send(2, bad); len(out) > 0 {
		t.Fatal("a damaged answer was taken")
	}
	for i := range 3 {
		out := s.Send(uint16(2+i), g.Answer(i, rocev2.AckNoLimit, 3, 1).Frame())
		if want := i / 2; len(out) != want {
			t.Fatalf("member %d: %d answers go on, want %d; drops %v", i, len(out), want, s.Dropped())
		}
		for _, f := range out {
			if p := parsed(t, f); p.ICRC != crc(f.Data[14:]) || p.H.PSN != 3 || p.IP.Src != HostIP(2) {
				t.Errorf("%+v", p)
			}
		}
	}
	if d := cmp.Diff(map[string]uint64{"icrc": 1, "absorbed": 2}, s.Dropped()); d != "" {
		t.Error(d)
	}
}
