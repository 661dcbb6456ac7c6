// Package e2e tests the parts together, as users run them: softroce devices as hosts, on the ports
// of an embedded switch that runs the compiled program.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// A rack is an embedded switch with hosts on UDP tunnels, in one subnet.
type rack struct {
	sw    *softswitch.Switch
	hosts []*host // host n is hosts[n-1], on port n
}

type host struct {
	dev *softroce.Device
	pd  qp.PD
	cq  qp.CQ
	mr  qp.MR
	qp  qp.QP
}

const startPSN = 0xfffff0 // wraps soon

func newRack(t *testing.T, hosts, region int) *rack {
	t.Helper()
	r := &rack{}
	var err error
	if r.sw, err = softswitch.New(softswitch.Config{CPUPort: bmv2.CPUPort}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.sw.Close() })
	prog, err := program.Load(bmv2.JSON)
	if err != nil {
		t.Fatal(err)
	}
	pipe, engine, err := r.sw.NewPipeline(prog)
	if err != nil {
		t.Fatal(err)
	}
	r.sw.Load(pipe, engine)
	for n := 1; n <= hosts; n++ {
		near, far := freeAddr(t), freeAddr(t)
		tunnel, err := ports.OpenTunnel(ports.TunnelConfig{Local: near, Remote: far})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.sw.Attach(uint16(n), tunnel); err != nil {
			t.Fatal(err)
		}
		mac := dataplane.HostMAC(n)
		name := fmt.Sprintf("%v/24,tunnel=%v-%v,mac=%v", netip.AddrFrom4(dataplane.HostIP(n)), far, near, net.HardwareAddr(mac[:]))
		r.hosts = append(r.hosts, newHost(t, name, region))
	}
	r.program(func(s *dataplane.Switch) {
		var all []pre.Replica
		for n := 1; n <= hosts; n++ {
			all = append(all, pre.Replica{Port: uint16(n), Instance: 1})
			s.Add("ingress.bridge_ports", []any{n}, "ingress.bridge_port", 1000)
			s.Add("ingress.unicast.bridge", []any{dataplane.MAC(dataplane.HostMAC(n))}, "ingress.unicast.to_port", uint64(n))
			s.Add("egress.neighbour.neighbours", []any{n}, "egress.neighbour.rewrite",
				dataplane.MAC(dataplane.RouterMAC), dataplane.MAC(dataplane.HostMAC(n)))
		}
		if err := s.PRE.InsertGroup(1000, all); err != nil {
			t.Fatal(err)
		}
	})
	return r
}

// program calls f on the switch between packets.
func (r *rack) program(f func(*dataplane.Switch)) {
	r.sw.Do(func(p *pipeline.Pipeline, e *pre.Engine) { f(&dataplane.Switch{Pipeline: p, PRE: e}) })
}

func freeAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func newHost(t *testing.T, name string, region int) *host {
	t.Helper()
	dev, err := softroce.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	h := &host{dev: dev}
	if h.pd, err = dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if h.cq, err = dev.CreateCQ(256); err != nil {
		t.Fatal(err)
	}
	if h.mr, err = h.pd.RegMR(make([]byte, region), qp.AccessLocalWrite|qp.AccessRemoteWrite); err != nil {
		t.Fatal(err)
	}
	if h.qp, err = h.pd.CreateQP(qp.Init{SendCQ: h.cq, RecvCQ: h.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSGE: 1}); err != nil {
		t.Fatal(err)
	}
	return h
}

// connect moves a host's queue pair to RTS, connected to a peer.
func (h *host) connect(t *testing.T, peer [4]byte, qpn rocev2.QPN) {
	t.Helper()
	for _, m := range []struct {
		a qp.Attr
		m qp.AttrMask
	}{
		{qp.Attr{State: qp.StateInit, Access: qp.AccessRemoteWrite}, qp.MaskInit},
		{qp.Attr{State: qp.StateRTR, DestAddr: netip.AddrFrom4(peer), DestQPN: qpn, PathMTU: 1024, RQPSN: startPSN, MinRNRTimer: 5}, qp.MaskRTR},
		{qp.Attr{State: qp.StateRTS, SQPSN: startPSN, Timeout: 16, RetryCnt: 7, RNRRetry: 7}, qp.MaskRTS},
	} {
		if err := h.qp.Modify(&m.a, m.m); err != nil {
			t.Fatal(err)
		}
	}
}

// wait returns the next completion.
func (h *host) wait(ctx context.Context) (qp.WC, error) {
	var wc [1]qp.WC
	for {
		if n, err := h.cq.Poll(wc[:]); err != nil || n > 0 {
			return wc[0], errors.Join(err, wc[0].Status.Err())
		}
		if err := h.cq.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}

const mcID = rocev2.QPN(0x80_0001)

// group connects host 1 to all others, through the switch, as one connection.
func (r *rack) group(t *testing.T) dataplane.Group {
	t.Helper()
	g := dataplane.Group{Index: 1, Sender: 1, SenderQPN: r.hosts[0].qp.QPN(), MCID: mcID, Epoch: 1, InitialPSN: startPSN}
	for n := 2; n <= len(r.hosts); n++ {
		g.Receivers = append(g.Receivers, n)
		h := r.hosts[n-1]
		h.connect(t, dataplane.HostIP(1), mcID)
		g.Targets = append(g.Targets, dataplane.Target{QPN: h.qp.QPN(), RKey: h.mr.RKey(), VA: h.mr.Addr()})
	}
	r.hosts[0].connect(t, dataplane.HostIP(2), mcID)
	r.program(func(s *dataplane.Switch) { s.Install(g) })
	return g
}

// TestReplicatedWrites: the sender posts each WRITE once, and when it completes, every receiver has
// it; the same with packets lost, corrupted and marked on every path: to all, to one, from one, and
// merged. In mode neutral, the receivers drop corrupted packets.
func TestReplicatedWrites(t *testing.T) {
	embeddedOnly(t, "it is within this process")
	for i := range 12 {
		neutral, faulty, members := i/6 == 1, i/3%2 == 1, []int{1, 3, 7}[i%3]
		t.Run(fmt.Sprintf("members=%d,faults=%v,neutral=%v", members, faulty, neutral), func(t *testing.T) {
			const region, writes = 1 << 20, 48
			r := newRack(t, members+1, region)
			if neutral {
				r.keep(t)
			}
			g := r.group(t)
			if faulty {
				r.program(func(s *dataplane.Switch) { spoil(s, g) })
			}
			replicate(t, r, region, writes)
			r.checkDrops(t, faulty, neutral)
		})
	}
}

// keep makes copies keep their ICRC: hosts have their memory at the addresses that the sender uses.
func (r *rack) keep(t *testing.T) {
	t.Helper()
	r.program(func(s *dataplane.Switch) { s.SetICRC(dataplane.Neutral) })
	for _, h := range r.hosts {
		mr, err := h.pd.(qp.Mapper).RegMRAt(h.mr.Bytes(), dataplane.SenderVA, qp.AccessLocalWrite|qp.AccessRemoteWrite)
		if err == nil {
			err = h.mr.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		h.mr = mr
	}
}

// spoil adds fault rules: some packets of each flow are dropped, corrupted or marked.
func spoil(s *dataplane.Switch, g dataplane.Group) {
	slot := uint64(0)
	rule := func(control string, src, dst int, op rocev2.Opcode, first, count, kind uint64) {
		s.Add(control+".rules", []any{dataplane.Masked{}, dataplane.Exactly(dataplane.Addr(dataplane.HostIP(src)), 32),
			dataplane.Exactly(dataplane.Addr(dataplane.HostIP(dst)), 32), dataplane.Masked{}, dataplane.Exactly(uint64(op), 8), dataplane.Masked{}},
			control+".fault", slot, 1, first, count, kind)
		slot++
	}
	rule("ingress.fault_in", g.Sender, g.Receivers[0], rocev2.WriteMiddle, 20, 1, 0) // before it is copied
	rule("ingress.fault_in", g.Sender, g.Receivers[0], rocev2.WriteLast, 9, 1, 1)
	for i, n := range g.Receivers {
		rule("egress.fault_out", g.Sender, n, rocev2.WriteMiddle, uint64(100+37*i), 2, 0)
		rule("egress.fault_out", g.Sender, n, rocev2.WriteFirst, uint64(11+i), 1, 1)
		rule("egress.fault_out", g.Sender, n, rocev2.WriteLast, uint64(3+i), 4, 2)
		rule("ingress.fault_in", n, g.Sender, rocev2.Acknowledge, uint64(2+i), 2, 0)
	}
	rule("egress.fault_out", g.Receivers[0], g.Sender, rocev2.Acknowledge, 6, 2, 0) // merged
}

// replicate writes random bytes to all receivers, piece by piece, with several in flight, and
// compares after each completion.
func replicate(t *testing.T, r *rack, region, writes int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rng := rand.New(rand.NewPCG(1, 2))
	src := r.hosts[0].mr.Bytes()
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	piece := region / writes
	posted := 0
	for done := range writes {
		for ; posted < writes && posted-done < 4; posted++ {
			wr := qp.SendWR{ID: uint64(posted), Opcode: qp.OpWrite, Flags: qp.FlagSignaled, RKey: dataplane.SenderRKey,
				SGEs: []qp.SGE{r.hosts[0].mr.SGE(posted*piece, piece)}, RemoteAddr: dataplane.SenderVA + uint64(posted*piece)}
			if err := r.hosts[0].qp.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
		}
		wc, err := r.hosts[0].wait(ctx)
		if err != nil {
			t.Fatalf("write %d: %v; drops %v", done, err, r.drops())
		}
		if wc.ID != uint64(done) {
			t.Fatalf("write %d completed, expected %d", wc.ID, done)
		}
		for n, h := range r.hosts[1:] {
			// The race detector cannot see data that arrived over a network; this acquires the
			// queue pair's lock, under which it was written.
			if _, err := h.qp.Query(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(h.mr.Bytes()[done*piece:(done+1)*piece], src[done*piece:(done+1)*piece]) {
				t.Fatalf("write %d is complete, and host %d has not got it", done, n+2)
			}
		}
	}
}

func (r *rack) drops() (m map[string]uint64) {
	r.program(func(s *dataplane.Switch) { m = s.Dropped() })
	return m
}

func (r *rack) checkDrops(t *testing.T, faulty, neutral bool) {
	t.Helper()
	d, atHosts := r.drops(), uint64(0)
	for _, h := range r.hosts[1:] {
		n := h.dev.Counters()["rx_drop_icrc"]
		atHosts += n
		if faulty && n == 0 {
			t.Error("a receiver has dropped nothing")
		}
	}
	if faulty && (d["fault"] < uint64(3*len(r.hosts)) || neutral != (d["icrc"] == 0)) || faulty != (atHosts > 0) {
		t.Errorf("the faults did not happen, or elsewhere: %v; %d ICRCs were wrong at the receivers", d, atHosts)
	}
	for _, reason := range []string{"malformed", "no_replica", "not_member", "syndrome", "opcode", "no_neighbour"} {
		if d[reason] != 0 {
			t.Errorf("drops %v", d)
		}
	}
}
