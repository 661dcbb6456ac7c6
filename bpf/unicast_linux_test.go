package bpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// A twin is a switch twice: the compiled program on the pipeline, and the kernel.
type twin struct {
	*kernel
	s *dataplane.Switch
	g dataplane.Group
}

const (
	ecmpTarget  = 200 // last byte of an address behind four paths
	firstECMP   = 10  // of next hops 10 to 13
	bridgedHost = 9
)

// newTwin has a group, routes over equal paths, a bridge, and guarded ports above 15.
func newTwin(t testing.TB) *twin {
	s, err := dataplane.NewRack()
	if err != nil {
		t.Fatal(err)
	}
	w := &twin{kernel: load(t), s: s, g: still()}
	w.s.Install(w.g)
	w.Members(&w.g)
	w.s.Default("ingress.settings", "ingress.configure", 0, 0xabcd, 0, 0)
	w.Put("settings", uint32(0), bpf.Settings{ICRCMode: bpf.Neutral, HashSeed: 0xabcd})

	paths := bpf.Paths{N: 4}
	var members []pipeline.Weighted
	selector := w.s.Profile("ingress.unicast.ecmp_selector")
	toNextHop := slices.IndexFunc(w.s.Program().Actions, func(a program.Action) bool { return a.Name == "ingress.unicast.to_next_hop" })
	for i := range 4 {
		paths.NextHops[i] = uint16(firstECMP + i)
		call := pipeline.Call{Action: toNextHop, Args: []match.Value{{uint64(firstECMP + i)}}}
		if err := selector.InsertMember(uint32(i+1), call); err != nil {
			t.Fatal(err)
		}
		members = append(members, pipeline.Weighted{Member: uint32(i + 1), Weight: 1, WatchPort: -1})
	}
	if err := selector.InsertGroup(1, members, 0); err != nil {
		t.Fatal(err)
	}
	e := &pipeline.Entry{Key: match.Key{{Value: match.Value{7}}}, Ref: pipeline.RefGroup, Group: 1}
	if err := w.s.Table("ingress.unicast.ecmp_groups").Insert(e); err != nil {
		t.Fatal(err)
	}
	ip := dataplane.HostIP(ecmpTarget)
	w.s.Add("ingress.unicast.routes", []any{dataplane.Prefix{Value: dataplane.Addr(ip), Len: 32}}, "ingress.unicast.to_ecmp", 7)
	w.Put("routes", bpf.Prefix{Bits: 32, Dst: ip}, bpf.Route{ECMP: 7})
	w.Put("ecmp_groups", uint32(7), paths)

	w.s.Add("ingress.unicast.bridge", []any{dataplane.MAC(dataplane.HostMAC(bridgedHost))}, "ingress.unicast.to_port", bridgedHost)
	w.Put("bridge", bpf.MAC{At: dataplane.HostMAC(bridgedHost)}, uint32(bridgedHost))
	for n := 16; n <= dataplane.RackHosts; n++ {
		w.s.Add("ingress.guard.guarded_ports", []any{n}, "NoAction")
		w.s.Add("ingress.guard.port_hosts", []any{n, dataplane.Addr(dataplane.HostIP(n))}, "ingress.guard.host", dataplane.MAC(dataplane.HostMAC(n)))
		w.Put("port_hosts", bpf.PortHost{Port: uint32(n), IP: dataplane.HostIP(n)}, bpf.MAC{At: dataplane.HostMAC(n)})
	}
	return w
}

// send gives both a frame that comes in at a port. It returns whether the kernel dealt with it, and how the two differ, or "".
func (w *twin) send(port int, frame []byte) (dealt bool, diff string) {
	before := w.s.Dropped()
	out := w.s.Send(uint16(port), frame)
	leaves := uint32(0) // a port that is none
	if len(out) > 0 {
		leaves = uint32(out[0].Port)
	}
	w.Only(uint32(port), leaves)
	if port >= 16 {
		w.Put("ports_in", lo, bpf.Port{Number: uint32(port), Guarded: 1})
	}
	lost := w.dropped()
	did, got := w.Run(frame)
	switch {
	case did == xdpPass:
		if !bytes.Equal(got, frame) {
			return false, fmt.Sprintf("it climbs, but changed:\n% x", got)
		}
		return false, ""
	case did == xdpRedirect:
		if len(out) != 1 || !bytes.Equal(out[0].Data, got) {
			return true, fmt.Sprintf("the kernel sends\n% x\nthe program %v, drops %v", got, out, w.s.Dropped())
		}
		return true, ""
	case did != xdpDrop || len(out) != 0:
		return true, fmt.Sprintf("the kernel says %d, the program sends %v", did, out)
	}
	now := w.dropped()
	for reason, n := range w.s.Dropped() {
		if n != before[reason] && now[reason] != lost[reason]+n-before[reason] {
			return true, fmt.Sprintf("the program drops it: %s; the kernel: %v, before %v", reason, now, lost)
		}
	}
	return true, ""
}

// udp is a packet of another protocol than RoCE.
func udp(from, to int, srcPort uint16, payload []byte) []byte {
	p := dataplane.Between(from, to, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly}}, payload)
	p.UDP.SrcPort, p.UDP.DstPort = srcPort, 53
	return p.Frame()
}

// ip changes a frame's IPv4 header, and mends its checksum.
func ip(frame []byte, change func(h []byte)) []byte {
	frame = bytes.Clone(frame)
	change(frame[14:34])
	frame[24], frame[25] = 0, 0
	binary.BigEndian.PutUint16(frame[24:], rocev2.Checksum(frame[14:34]))
	return frame
}

// TestUnicast: what the kernel deals with becomes what it becomes in the pipeline; and the kernel deals with what
// it is meant for.
func TestUnicast(t *testing.T) {
	w := newTwin(t)
	set := func(at int, v byte) func([]byte) { return func(b []byte) { b[at] = v } }
	toMAC := func(f []byte, mac [6]byte) []byte { f = bytes.Clone(f); copy(f, mac[:]); return f }
	data := func(to int, qpn rocev2.QPN) []byte {
		return dataplane.Between(1, to, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, MigReq: true, PKey: rocev2.DefaultPKey, DestQP: qpn}}, make([]byte, 256)).Frame()
	}
	plain := udp(1, 5, 99, make([]byte, 100))
	wrong := func(f []byte) []byte { f[len(f)-1] ^= 1; return f }
	ack := func(i int) []byte { return w.g.Answer(i, rocev2.AckNoLimit, 5, 1).Frame() }
	for _, c := range []struct {
		name  string
		port  int
		frame []byte
		deals bool
	}{
		{"UDP", 1, plain, true},
		{"TCP", 1, ip(plain, set(9, 6)), true},
		{"ICMP", 1, ip(plain, set(9, 1)), true},
		{"RoCE", 1, data(5, 9), true},
		{"a READ", 1, dataplane.Between(1, 5, rocev2.Headers{BTH: rocev2.BTH{Opcode: 0x0c, DestQP: 9}}, make([]byte, 16)).Frame(), true},
		{"bridged", 1, toMAC(plain, dataplane.HostMAC(bridgedHost)), true},
		{"unknown MAC", 1, toMAC(plain, dataplane.HostMAC(77)), false},
		{"TTL 1", 1, ip(plain, set(8, 1)), false},
		{"TTL 2", 1, ip(plain, set(8, 2)), true},
		{"no route", 1, ip(plain, set(19, 99)), false},
		{"IP checksum", 1, func() []byte { f := bytes.Clone(plain); f[24] ^= 1; return f }(), false},
		{"options", 1, ip(plain, set(0, 0x46)), false},
		{"fragment", 1, ip(plain, set(6, 0x20)), false},
		{"DF", 1, ip(plain, set(6, 0x40)), true},
		{"ECN", 1, ip(plain, set(1, 2)), true},
		{"not IPv4", 1, func() []byte { f := bytes.Clone(plain); f[12] = 0x86; return f }(), false},
		{"cut", 1, plain[:33], false},
		{"RoCE, lengths", 1, func() []byte { f := data(5, 9); f[39]++; return f }(), false},
		{"guarded", 17, udp(17, 5, 99, make([]byte, 100)), true},
		{"guarded, in another's name", 17, udp(18, 5, 99, make([]byte, 100)), false},
		{"guarded, another's MAC", 17, func() []byte { f := udp(17, 5, 99, nil); f[11]++; return f }(), false},
		{"an ACK of no group", 1, dataplane.Between(1, 5, w.g.Answer(0, 0, 0, 0).H, nil).Frame(), true},
		{"an ACK of no group, ICRC", 1, wrong(dataplane.Between(1, 5, w.g.Answer(0, 0, 0, 0).H, nil).Frame()), false},
		{"past merging", 2, func() []byte { a := w.g.Answer(0, 0, 0, 0); a.H.DestQP = w.g.SenderQPN; return a.Frame() }(), false},
		{"data of a member", 2, dataplane.Between(2, 1, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, DestQP: w.g.MCID}}, nil).Frame(), false},
		{"first ACK", 2, ack(0), true},
		{"second ACK", 3, ack(1), true},
		{"third ACK", 4, ack(2), true},
		{"again", 4, ack(2), true},
		{"ICRC", 4, wrong(ack(2)), true},
		{"answer, TTL 1", 4, ip(ack(2), set(8, 1)), true},
		{"answer, cut", 4, ack(2)[:61], false},
		{"answer, ECN", 4, ip(ack(2), set(1, 2)), true},
		{"answer, unknown MAC", 4, toMAC(ack(2), dataplane.HostMAC(77)), true},
	} {
		dealt, diff := w.send(c.port, c.frame)
		if diff != "" || dealt != c.deals {
			t.Errorf("%s: dealt with: %v, expected %v; %s", c.name, dealt, c.deals, diff)
		}
	}
}

// TestUnfinished: what has the sum of the pseudo-header in place of its checksum climbs, but not what has that for its checksum: those behind
// would overtake it.
func TestUnfinished(t *testing.T) {
	w := newTwin(t)
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // for a test
	sum := func(words []byte) uint16 { return ^rocev2.Checksum(words) }
	for i := range 400 {
		payload := make([]byte, 12+2*rng.IntN(1200))
		for k := range payload {
			payload[k] = byte(rng.Uint32())
		}
		f := udp(1, 5, uint16(rng.Uint32()), payload)
		if i%3 == 1 { // TCP, whose checksum is behind what else is looked at
			f = ip(f, func(h []byte) { h[9] = 6 })
		}
		at := 40
		if f[23] == 6 {
			at = 50
		}
		l4 := f[34:]
		pseudo := append(bytes.Clone(f[26:34]), 0, f[23], byte(len(l4)>>8), byte(len(l4)))
		binary.BigEndian.PutUint16(f[at:], sum(pseudo))
		binary.BigEndian.PutUint16(l4[len(l4)-2:], 0)
		rest := sum(append(pseudo, l4...))
		if dealt, diff := w.send(1, f); dealt != (rest == 0xffff) || diff != "" {
			t.Fatalf("packet %d, unfinished: dealt with: %v; %s", i, dealt, diff)
		}
		binary.BigEndian.PutUint16(l4[len(l4)-2:], ^rest) // now it adds up
		if dealt, diff := w.send(1, f); !dealt || diff != "" {
			t.Fatalf("packet %d of %d bytes: dealt with: %v; %s", i, len(f), dealt, diff)
		}
	}
}

// TestPaths: of equal paths, the kernel and the pipeline choose the same.
func TestPaths(t *testing.T) {
	w := newTwin(t)
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // for a test
	for i := range 300 {
		f := udp(1+i%15, 5, uint16(rng.Uint32()), nil)
		f = ip(f, func(h []byte) { h[19] = ecmpTarget; h[9] = []byte{17, 6, 1}[i%3] })
		if dealt, diff := w.send(1+i%15, f); !dealt || diff != "" {
			t.Fatalf("packet %d: dealt with: %v; %s", i, dealt, diff)
		}
	}
}

// TestUnicastHalfAnUpdate: what comes while tables change climbs.
func TestUnicastHalfAnUpdate(t *testing.T) {
	w := newTwin(t)
	w.Put("generation", uint32(0), uint64(1))
	if dealt, diff := w.send(1, udp(1, 5, 99, nil)); dealt || diff != "" {
		t.Errorf("dealt with: %v; %s", dealt, diff)
	}
}
