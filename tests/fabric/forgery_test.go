package fabric

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A prey is a group of real devices, one sender and two receivers, in whose name
// another host sends.
type prey struct {
	f         *Fabric
	g         *Group
	sender    *endpoint
	receivers []*endpoint
	next      rocev2.PSN // that the sender will use
}

const (
	preyRegion = 16 << 10
	preyPiece  = 4 << 10
	preyMTU    = 1 << 10
)

// prey makes the group on devices that are there.
func (f *Fabric) prey(devices map[string]*softroce.Device) *prey {
	f.t.Helper()
	p := &prey{f: f, g: f.Group("h1-1"), sender: f.endpointOn("h1-1", devices["h1-1"], preyRegion)}
	p.next = rocev2.PSN(p.g.InitialPSN)
	p.g.SenderQPN, p.g.VA, p.g.Length = uint32(p.sender.qp.QPN()), regionVA, preyRegion
	for _, name := range []string{"h1-2", "h2-1"} {
		e := f.endpointOn(name, devices[name], preyRegion)
		p.receivers = append(p.receivers, e)
		p.g.Receivers = append(p.g.Receivers, Receiver{Host: name, QPN: uint32(e.qp.QPN()), RKey: e.mr.RKey(), VA: e.mr.Addr()})
		f.must(e.connect(f.host("h1-1").Addr, rocev2.QPN(p.g.MCID), p.g.InitialPSN, 18))
	}
	f.must(p.sender.connect(f.address(p.g), rocev2.QPN(p.g.MCID), p.g.InitialPSN, 18))
	f.Install(p.g)
	return p
}

// post writes a piece of the sender's region with new content.
func (p *prey) post(at int) {
	p.f.t.Helper()
	copy(p.sender.mr.Bytes()[at:], bytes.Repeat(p.f.nonce(), preyPiece/16))
	p.f.must(p.sender.qp.PostSend(&qp.SendWR{Opcode: qp.OpWrite, Flags: qp.FlagSignaled, RKey: p.g.RKey,
		SGEs: []qp.SGE{p.sender.mr.SGE(at, preyPiece)}, RemoteAddr: p.g.VA + uint64(at)}))
	p.next = p.next.Add(preyPiece / preyMTU)
}

// harmed says which receiver's memory is not what the sender wrote.
func (p *prey) harmed() error {
	for _, r := range p.receivers {
		if _, err := r.qp.Query(); err != nil { // the race detector sees no network: this passes the lock
			return err
		}
		if !bytes.Equal(r.mr.Bytes(), p.sender.mr.Bytes()) {
			return fmt.Errorf("the memory of %s differs", r.name)
		}
	}
	return nil
}

// A forgery sends in the group's name. It returns how many packets that were, and in
// what way they are seen to have worked.
type forgery struct {
	name string
	do   func(p *prey, mallory *host) (sent int, worked func(ctx context.Context) bool)
}

// evil is a WRITE to the beginning of a region.
func (p *prey) evil(qpn, rkey uint32, va uint64) (h rocev2.Headers, payload []byte) {
	payload = bytes.Repeat([]byte("evil"), evilBytes/4)
	return rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.WriteOnly, PKey: rocev2.DefaultPKey, MigReq: true, DestQP: rocev2.QPN(qpn), PSN: p.next},
		RETH: rocev2.RETH{VA: va, RKey: rkey, Length: uint32(len(payload))}}, payload
}

// arrival waits until a receiver has taken so many bytes of payload since this call.
// Only then may its memory be looked at.
func (p *prey) arrival(r *endpoint, n int) (wait func()) {
	before := r.dev.Counters()["rx_bytes"]
	return func() {
		p.f.t.Helper()
		p.f.eventually("data arrives", func() error {
			if got := r.dev.Counters()["rx_bytes"] - before; got < uint64(n) {
				return fmt.Errorf("%s has %d bytes of %d", r.name, got, n)
			}
			return nil
		})
	}
}

const evilBytes = 256

var forgeries = []forgery{
	{"data with the group's MC_ID", func(p *prey, mallory *host) (int, func(context.Context) bool) {
		arrives := p.arrival(p.receivers[0], evilBytes)
		h, payload := p.evil(p.g.MCID, p.g.RKey, p.g.VA)
		mallory.send(p.f.host(p.g.Sender).packet(p.f.address(p.g), 1, h, payload))
		return 1, func(context.Context) bool { arrives(); return p.harmed() != nil }
	}},
	{"data to the receivers", func(p *prey, mallory *host) (int, func(context.Context) bool) {
		arrives := p.arrival(p.receivers[0], evilBytes)
		for _, r := range p.g.Receivers {
			h, payload := p.evil(r.QPN, r.RKey, r.VA)
			mallory.send(p.f.host(p.g.Sender).packet(p.f.host(r.Host).Addr, 1, h, payload))
		}
		return len(p.g.Receivers), func(context.Context) bool { arrives(); return p.harmed() != nil }
	}},
	{"acknowledgements of a receiver that is cut off", func(p *prey, mallory *host) (int, func(context.Context) bool) {
		away := p.f.host("h2-1")
		p.f.Cut(away.wire)
		arrives := p.arrival(p.receivers[0], preyPiece)
		p.post(0)
		arrives() // so the switch has seen it
		const times = 3
		for range times {
			mallory.send(away.packet(p.f.host(p.g.Sender).Addr, 1, rocev2.Headers{
				BTH:  rocev2.BTH{Opcode: rocev2.Acknowledge, PKey: rocev2.DefaultPKey, MigReq: true, DestQP: rocev2.QPN(p.g.MCID), PSN: p.next.Add(-1)},
				AETH: rocev2.AETH{Syndrome: rocev2.AckNoLimit, MSN: 2}}, nil))
		}
		return times, func(ctx context.Context) bool { return p.sender.wait(ctx) == nil && p.harmed() != nil }
	}},
}

// TestForgery: real devices write to each other in a group while a host at another
// port sends in their names. Guarded, their memory holds what the sender wrote and
// nothing else, no write is complete that a receiver lacks, the group goes on, and
// each forged packet is counted; unguarded, each of the forgeries works.
func TestForgery(t *testing.T) {
	guardedAndNot(t, func(t *testing.T, s Spec, guard bool) {
		f := Start(t, patient(s))
		devices := map[string]*softroce.Device{}
		for _, h := range []string{"h1-1", "h1-2", "h2-1"} {
			devices[h] = f.Device(h, softroce.Options{})
		}
		for _, a := range forgeries {
			f.forge(devices, a, "h1-4", guard)
			if guard {
				f.forge(devices, a, "h2-4", guard)
			}
		}
		if !guard {
			f.corrupt(devices, "h1-4")
		}
	})
}

// corrupt sends data with the group's MC_ID whose ICRC is wrong where no guard is in the
// way: a switch that made it right would harm the receivers, which drop it.
func (f *Fabric) corrupt(devices map[string]*softroce.Device, from string) {
	t := f.t
	t.Helper()
	p := f.prey(devices)
	mallory := f.host(from)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p.post(0)
	f.must(p.sender.wait(ctx))
	dropped := func() (n uint64) {
		for _, r := range p.receivers {
			n += r.dev.Counters()["rx_drop_icrc"]
		}
		return n
	}
	before := dropped()
	const sent = 32
	for bit := range sent {
		h, payload := p.evil(p.g.MCID, p.g.RKey, p.g.VA)
		b := f.host(p.g.Sender).packet(f.address(p.g), 1, h, payload)
		b[len(b)-1-bit/8] ^= 1 << (bit % 8)
		mallory.send(b)
	}
	f.eventually("wrong ICRCs are counted", func() error {
		if n := dropped() - before; n != sent*uint64(len(p.receivers)) {
			return fmt.Errorf("%d packets were sent, and %d are counted as rx_drop_icrc at the receivers", sent, n)
		}
		return nil
	})
	p.goesOn(ctx)
	f.Remove(p.g)
}

// goesOn checks that no receiver is harmed, and that all that is written comes through.
func (p *prey) goesOn(ctx context.Context) {
	p.f.t.Helper()
	p.f.must(p.harmed())
	for at := 0; at < preyRegion; at += preyPiece {
		p.post(at)
		p.f.must(p.sender.wait(ctx))
		p.f.must(p.harmed())
	}
}

// forge has a host try a forgery on a new group.
func (f *Fabric) forge(devices map[string]*softroce.Device, a forgery, from string, guard bool) {
	t := f.t
	t.Helper()
	p := f.prey(devices)
	mallory := f.host(from)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p.post(0)
	f.must(p.sender.wait(ctx))
	f.must(p.harmed())
	before := f.spoofed(mallory.Switch)
	sent, worked := a.do(p, mallory)
	if !guard {
		if !worked(ctx) {
			t.Errorf("%s from %s: it does not work without the guard either: the test cannot fail", a.name, from)
		}
	} else {
		f.eventually("forged packets are counted", func() error {
			if n := f.spoofed(mallory.Switch) - before; n != uint64(sent) {
				return fmt.Errorf("%s from %s: %d packets were sent, and %d are counted as spoofed", a.name, from, sent, n)
			}
			return nil
		})
		away := f.host("h2-1").wire
		if !away.up() { // a write that cannot have completed
			if n, err := p.sender.cq.Poll(make([]qp.WC, 1)); n > 0 || err != nil {
				t.Errorf("%s from %s: a write is complete that a receiver lacks (%v)", a.name, from, err)
			}
			f.Mend(away)
			f.must(p.sender.wait(ctx))
		}
		if err := p.harmed(); err != nil {
			t.Errorf("%s from %s: %v", a.name, from, err)
		}
		p.goesOn(ctx)
	}
	f.Mend(f.host("h2-1").wire)
	f.Remove(p.g)
	for _, e := range append(p.receivers, p.sender) {
		f.must(e.qp.Close())
	}
}
