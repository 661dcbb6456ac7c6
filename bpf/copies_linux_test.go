package bpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// A wired kernel has ports.
type wired struct {
	*kernel
	*dataplane.Wires
}

// newWired makes ports 1 to n, at whose other ends a program says what becomes of packets.
func newWired(t testing.TB, n int, says int32) *wired {
	t.Helper()
	w := &wired{Wires: dataplane.NewWires(t, n, says), kernel: load(t)}
	for i, index := range w.Ports {
		if _, err := w.Attach(int(index), w.Programs["ingress"]); err != nil {
			t.Fatal(err)
		}
		w.Put("ports_in", index, bpf.Port{Number: uint32(i)})
		w.Put("ports_out", uint32(i), w.Out(index))
	}
	return w
}

// burst has n frames come in at a port, all of which the program sees before the first of their copies leaves.
func (w *wired) burst(port int, frame []byte, n uint32) {
	w.Helper()
	w.live(w.Programs["ingress"], w.Ports[port], frame, n, n)
}

// live runs a program n times at an interface, with frames that go where it says.
func (w *wired) live(p *ebpf.Program, at uint32, frame []byte, n, batch uint32) {
	w.Helper()
	const liveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES
	in := struct{ Data, DataEnd, DataMeta, Interface, Queue, Egress uint32 }{DataEnd: uint32(len(frame)), Interface: at}
	if _, err := p.Run(&ebpf.RunOptions{Data: frame, Context: in, Repeat: n, BatchSize: batch, Flags: liveFrames}); err != nil {
		testenv.Skip(w, "no test runs with live frames; they take Linux 5.18: %v", err)
	}
}

// receive is the next IPv4 frame that a host receives.
func (w *wired) receive(host int) []byte {
	w.Helper()
	f := w.Next(host, 0)
	if f == nil {
		w.Fatalf("host %d receives nothing; dropped %v", host, w.dropped())
	}
	return f
}

// TestVethCopies: copies of each opcode and length are right for their receivers, with the ICRC that came.
// Only identification and source port, and a UDP checksum, change beside what is rewritten.
func TestVethCopies(t *testing.T) {
	w := newWired(t, 4, xdpPass)
	g := still()
	w.portSet(&g, w.Ports)
	w.replicate(&g, w.Ports)
	w.secondRegion(&g)
	sent := uint64(0)
	for op := rocev2.SendFirst; op <= rocev2.WriteOnlyImm; op++ {
		for n := 0; n <= 2048; n += 1 + n/2 {
			in := g.Data(op, rocev2.PSN(n), bytes.Repeat([]byte{0xa5, byte(n)}, n/2+1)[:n])
			second := uint32(sent / 2 % 2)
			in.H.RETH.RKey += second
			in.IP.ID, in.UDP.SrcPort = uint16(n*77), uint16(0xc000+n)
			frame := in.Frame()
			if n%2 == 1 {
				binary.BigEndian.PutUint16(frame[40:], udpSum(frame))
			}
			w.Wires.Send(w, 1, frame)
			sent++
			for i, host := range g.Receivers {
				got := w.receive(host)
				p, err := dataplane.Frame{Data: got}.Parse()
				if err != nil {
					t.Fatal(err)
				}
				want := *in
				want.Eth.Dst, want.Eth.Src = dataplane.HostMAC(host), dataplane.RouterMAC
				want.IP.Dst, want.IP.TTL, want.H.DestQP = dataplane.HostIP(host), 63, g.Targets[i].QPN
				if op.HasRETH() {
					want.H.RETH.RKey = g.Targets[i].RKey + second
				}
				want.IP.ID, want.UDP.SrcPort = p.IP.ID, p.UDP.SrcPort
				b := want.Frame()
				if n%2 == 1 {
					binary.BigEndian.PutUint16(b[40:], udpSum(b))
				}
				if !bytes.Equal(got, b) || !bytes.Equal(got[len(got)-4:], frame[len(frame)-4:]) {
					t.Fatalf("%v, %d B: copy %d is\n% x, expected\n% x", op, n, i, got, b)
				}
			}
		}
	}
	if d := w.dropped(); len(d) > 0 || w.count("counters", 33) != sent {
		t.Errorf("dropped %v; %d counted of %d", d, w.count("counters", 33), sent)
	}
	for i := range g.Receivers {
		if n := w.count("counters", uint32(i+1)); n != sent {
			t.Errorf("%d copies %d of %d", n, i, sent)
		}
	}
}

// TestVethMixed: where a group's requests and other packets come together, copies are rewritten, and the others leave as they are.
// The kernel has one program for all packets that wait for an interface, that of the first.
func TestVethMixed(t *testing.T) {
	w := newWired(t, 4, xdpPass)
	g := still()
	w.portSet(&g, w.Ports)
	w.replicate(&g, w.Ports)
	const n = 32
	frame := g.Data(rocev2.WriteOnly, 1, make([]byte, 64)).Frame()
	requests := w.count("counters", 33)
	w.live(w.mixer(1), w.Ports[1], frame, n, n)
	got := uint64(0)
	for range n {
		p, err := dataplane.Frame{Data: w.receive(2)}.Parse()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case p.Eth.Dst != dataplane.HostMAC(2) || p.IP.TTL != 63:
			t.Fatalf("a packet to %v, TTL %d", p.Eth.Dst, p.IP.TTL)
		case p.H.DestQP == g.Targets[0].QPN:
			got++
		case p.H.DestQP != g.MCID^1:
			t.Fatalf("a packet to QPN %#x", p.H.DestQP)
		}
	}
	if requests = w.count("counters", 33) - requests; got != requests || got == 0 || got == n {
		t.Fatalf("%d copies of %d requests among %d packets", got, requests, n)
	}
	for range requests {
		w.receive(3)
		w.receive(4)
	}
	if d := w.dropped(); len(d) > 0 {
		t.Errorf("dropped %v", d)
	}
}

// mixer is a program by which a host sends a frame with its destination QPN, or that with another last bit, by chance. The kernel's sees it when it has come
// in, and not in the test run: Linux 6.1 copies frames wrongly there.
func (w *wired) mixer(host int) *ebpf.Program {
	w.Helper()
	const end = 14 + 20 + 8 + 8 // of the destination QPN
	p, err := dataplane.XDP(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnGetPrandomU32.Call(),
		asm.And.Imm(asm.R0, 1),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, 4, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, end),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
		asm.LoadMem(asm.R5, asm.R2, end-1, asm.Byte),
		asm.Xor.Reg(asm.R5, asm.R0),
		asm.StoreMem(asm.R2, end-1, asm.R5, asm.Byte),
		asm.Mov.Imm(asm.R1, int32(w.Peers[host])), //nolint:gosec // an interface's number
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("out"),
		asm.Return(),
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { p.Close() })
	return p
}

// udpSum is a UDP checksum from the bytes of a frame: RFC 768.
func udpSum(frame []byte) uint16 {
	b := bytes.Clone(frame[14+12 : 14+20])
	b = append(append(b, 0, rocev2.ProtocolUDP, frame[38], frame[39]), frame[34:]...)
	b[18], b[19] = 0, 0
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	if sum := rocev2.Checksum(b); sum != 0 {
		return sum
	}
	return 0xffff
}

// TestVethStrays: a copy whose set of ports has changed under it meets another group's, and is dropped.
func TestVethStrays(t *testing.T) {
	w := newWired(t, 4, xdpPass)
	g := still()
	w.portSet(&g, w.Ports)
	w.replicate(&g, w.Ports)
	w.Put("copies", uint32(firstCopy+3), bpf.Copy{Dst: dataplane.HostIP(2), Known: 1, PREGroup: uint16(g.Index + 1), Interface: w.Ports[2]})
	w.Put("places", bpf.PlaceKey{Set: 1, Interface: w.Ports[2]}, uint32(3)) // behind the group's copies
	w.Put("places", bpf.PlaceKey{Set: 1, Interface: w.Ports[3]}, uint32(2)) // that to host 4
	w.Wires.Send(w, 1, g.Data(rocev2.SendOnly, 1, make([]byte, 64)).Frame())
	w.receive(4)
	if d := cmp.Diff(map[string]uint64{"no_replica": 2}, w.dropped()); d != "" {
		t.Error(d)
	}
}

// TestVethAnswers: three members' ACKs become one, at the sender's port.
func TestVethAnswers(t *testing.T) {
	w := newWired(t, 4, xdpPass)
	g := still()
	w.Members(&g)
	for i, host := range g.Receivers {
		w.Wires.Send(w, host, g.Answer(i, rocev2.AckNoLimit, 5, 2).Frame())
	}
	p, err := dataplane.Frame{Data: w.receive(1)}.Parse()
	if err != nil || p.H.PSN != 5 || p.H.DestQP != g.SenderQPN || p.IP.Src != dataplane.HostIP(2) {
		t.Errorf("the sender receives %+v, %v", p, err)
	}
	if d := cmp.Diff(map[string]uint64{"absorbed": 2}, w.dropped()); d != "" {
		t.Error(d)
	}
}

// TestVethUpdates: while the number of a PRE group goes from one group to another and back, no packet of one
// is copied as the other's are.
func TestVethUpdates(t *testing.T) {
	w := newWired(t, 4, xdpPass)
	var groups [2]dataplane.Group
	for i := range groups {
		groups[i] = still()
		groups[i].MCID += rocev2.QPN(i)
		for j := range groups[i].Targets {
			groups[i].Targets[j].QPN += rocev2.QPN(0x1000 * i)
		}
	}
	key := func(g *dataplane.Group) bpf.GroupKey {
		return bpf.GroupKey{Src: dataplane.HostIP(g.Sender), Dst: dataplane.HostIP(g.Receivers[0]), MCID: dataplane.Wire(g.MCID)}
	}
	w.portSet(&groups[0], w.Ports)
	w.portSet(&groups[0], w.Ports)
	change, changed := make(chan int), make(chan struct{})
	go func() { // on another processor, while a burst comes in
		defer close(changed)
		number := uint64(0)
		turn := func(to uint64) {
			for i := range groups {
				w.Put("generation", cellOf(&groups[i]), to)
			}
		}
		for i := range change {
			turn(number + 1)
			_ = w.Maps["groups"].Delete(key(&groups[1-i]))
			w.replicate(&groups[i], w.Ports)
			number += 4
			turn(number)
		}
	}()
	const batches, burst = 2000, 64
	copies := 0
	for n := range batches {
		p := groups[n%2].Data(rocev2.SendOnly, rocev2.PSN(n), []byte{byte(n % 2), 0, 0, 0})
		change <- n / 2 % 2
		w.burst(1, p.Frame(), burst)
		for i, host := range groups[0].Receivers {
			for got := w.Next(host, unix.MSG_DONTWAIT); got != nil; got = w.Next(host, unix.MSG_DONTWAIT) {
				if diff := w.ofOneGroup(groups[:], i, got, &copies); diff != "" {
					t.Fatalf("host %d: %s", host, diff)
				}
			}
		}
	}
	close(change)
	<-changed
	t.Logf("%d packets, %d copies, dropped %v", batches*burst, copies, w.dropped())
	if copies == 0 {
		t.Error("no copies")
	}
}

// ofOneGroup says what is wrong with a frame that receiver i of the groups got, or "".
func (w *wired) ofOneGroup(groups []dataplane.Group, i int, frame []byte, copies *int) string {
	p, err := dataplane.Frame{Data: frame}.Parse()
	if err != nil || !(dataplane.Frame{Data: frame}).GoodICRC() {
		return fmt.Sprintf("%v: % x", err, frame)
	}
	g := &groups[p.Payload[0]]
	if p.H.DestQP == g.MCID {
		return "" // it came while this was no group, and is routed
	}
	*copies++
	if want := g.Targets[i].QPN; p.H.DestQP != want {
		return fmt.Sprintf("a packet of group %d goes to QPN %#x, expected %#x", p.Payload[0], p.H.DestQP, want)
	}
	return ""
}

// cellOf is the number of a group's packets in map generation.
func cellOf(g *dataplane.Group) uint32 {
	return bpf.CellOf(dataplane.HostIP(g.Sender), dataplane.Wire(g.MCID))
}

// TestClimbs: requests to a group that the kernel cannot copy climb, whole.
func TestClimbs(t *testing.T) {
	k := load(t)
	g := still()
	k.Only(1, 2)
	k.Put("ports_out", uint32(3), k.Out(lo))
	k.Put("ports_out", uint32(4), k.Out(lo))
	interfaces := map[int]uint32{2: lo, 3: lo, 4: lo}
	k.portSet(&g, interfaces)
	k.replicate(&g, interfaces)
	k.Members(&g)
	write := func(change func(p *dataplane.Packet)) []byte {
		p := g.Data(rocev2.WriteOnly, 1, make([]byte, 64))
		change(p)
		return p.Frame()
	}
	if did, _ := k.Run(write(func(*dataplane.Packet) {})); did != xdpRedirect {
		t.Fatalf("a WRITE to the group: %d", did)
	}
	key := bpf.GroupKey{Src: dataplane.HostIP(1), Dst: dataplane.HostIP(2), MCID: dataplane.Wire(g.MCID)}
	for name, c := range map[string]struct {
		table string
		key   any
		value any
		frame []byte
	}{
		"a READ":            {frame: write(func(p *dataplane.Packet) { p.H.Opcode = rocev2.ReadRequest })},
		"an address behind": {frame: write(func(p *dataplane.Packet) { p.H.RETH.VA = dataplane.SenderVA + dataplane.RegionLen })},
		"another rkey":      {frame: write(func(p *dataplane.Packet) { p.H.RETH.RKey++ })},
		"TTL":               {frame: write(func(p *dataplane.Packet) { p.IP.TTL = 1 })},
		"recompute":         {"settings", uint32(0), bpf.Settings{}, write(func(*dataplane.Packet) {})},
		"check off":         {"settings", uint32(0), bpf.Settings{ICRCMode: bpf.CheckOff}, write(func(*dataplane.Packet) {})},
		"everything climbs": {"settings", uint32(0), bpf.Settings{ICRCMode: bpf.Neutral, Climbs: 1}, write(func(*dataplane.Packet) {})},
		"group climbs":      {"groups", key, bpf.Multicast{Group: 77, FirstPREGroup: 77, PREGroups: 1, Climbs: 1}, write(func(*dataplane.Packet) {})},
		"half an update":    {"generation", uint32(0), uint64(3), write(func(*dataplane.Packet) {})},
		"about to be one":   {"generation", uint32(0), uint64(4 + bpf.Ending), write(func(*dataplane.Packet) {})},
		"half of its own":   {"generation", cellOf(&g), uint64(3), write(func(*dataplane.Packet) {})},
		"about to be its":   {"generation", cellOf(&g), uint64(4 + bpf.Ending), write(func(*dataplane.Packet) {})},
		"no PRE group":      {"groups", key, bpf.Multicast{Group: 77, FirstPREGroup: 78, PREGroups: 1}, write(func(*dataplane.Packet) {})},
	} {
		k.Put("settings", uint32(0), bpf.Settings{ICRCMode: bpf.Neutral})
		k.Put("generation", uint32(0), uint64(4))
		k.Put("generation", cellOf(&g), uint64(4))
		k.Put("groups", key, multicast(77))
		if c.table != "" {
			k.Put(c.table, c.key, c.value)
		}
		if did, out := k.Run(c.frame); did != xdpPass || !bytes.Equal(out, c.frame) {
			t.Errorf("%s: %d", name, did)
		}
	}
}
