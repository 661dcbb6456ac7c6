package fabric

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// guarded has the agents of a fabric guard the ports of its hosts.
func guarded(s Spec) Spec {
	s.Agent = func(name string, cfg *config.Config, _ *switchagent.Options) {
		cfg.Guard = true
		at := 0
		for _, h := range s.Hosts {
			if h.Switch == name {
				cfg.Hosts = append(cfg.Hosts, config.Host{Address: h.Addr, MAC: framelink.DefaultMAC(h.Addr), Port: cfg.Ports[at].Port})
				at++
			}
		}
		cfg.Guard = at > 0
	}
	return s
}

// guardedAndNot runs a test for two racks with the guard, and for the same without.
func guardedAndNot(t *testing.T, test func(t *testing.T, s Spec, guard bool)) {
	t.Helper()
	s := LeafSpine(2, 2, 4)
	s.Routing = Static
	t.Run("guarded", func(t *testing.T) { test(t, guarded(s), true) })
	t.Run("unguarded", func(t *testing.T) { test(t, s, false) })
}

// spoofed is how many packets a switch has dropped because of their source.
func (f *Fabric) spoofed(sw string) uint64 {
	f.t.Helper()
	return f.drops(sw, "spoofed")
}

// patient keeps a fabric's links from going down because the machine is busy.
func patient(s Spec) Spec {
	edit := s.Agent
	s.Agent = func(name string, cfg *config.Config, o *switchagent.Options) {
		if edit != nil {
			edit(name, cfg, o)
		}
		cfg.Hello.Multiplier = 200
	}
	return s
}

// drops is how many packets a switch has dropped for a reason before any was copied.
func (f *Fabric) drops(sw, reason string) uint64 {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	res, err := f.Status(sw).GetCounters(ctx, &mcrdmav1.GetCountersRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, c := range res.GetCounters() {
		if c.GetName() == "ingress.drops" && c.GetCell() == reason {
			return c.GetPackets()
		}
	}
	f.t.Fatalf("switch %s counts no packets as %s", sw, reason)
	return 0
}

// An attack has a host send what it must not. It returns how many packets that
// were, and whether a host or switch was deceived.
type attack struct {
	what string
	do   func(f *Fabric, g *Group, mallory *host) (sent int, deceived bool)
}

// attacks on a group, by a host that is not in it. After the last, hosts are lost.
var attacks = []attack{
	{"acknowledgements of the receivers", func(f *Fabric, g *Group, mallory *host) (int, bool) {
		f.Walk(g, 0)
		deceived := f.hears(g.Sender, g.SenderQPN, func() {
			for _, r := range g.Receivers {
				mallory.send(f.host(r.Host).packet(f.host(g.Sender).Addr, 1, rocev2.Headers{
					BTH:  rocev2.BTH{Opcode: rocev2.Acknowledge, PKey: rocev2.DefaultPKey, MigReq: true, DestQP: rocev2.QPN(g.MCID), PSN: rocev2.PSN(g.sent)},
					AETH: rocev2.AETH{Syndrome: rocev2.AckNoLimit, MSN: 1}}, nil))
			}
		})
		return len(g.Receivers), deceived
	}},
	{"data into the group", func(f *Fabric, g *Group, mallory *host) (int, bool) {
		r := g.Receivers[0]
		payload := f.nonce()
		return 1, f.hears(r.Host, r.QPN, func() {
			mallory.send(f.host(g.Sender).packet(f.address(g), 1, rocev2.Headers{
				BTH:  rocev2.BTH{Opcode: rocev2.WriteOnly, PKey: rocev2.DefaultPKey, MigReq: true, DestQP: rocev2.QPN(g.MCID), PSN: rocev2.PSN(g.sent).Add(1)},
				RETH: rocev2.RETH{VA: g.VA, RKey: g.RKey, Length: uint32(len(payload))}}, payload))
		})
	}},
	{"data to a receiver", func(f *Fabric, g *Group, mallory *host) (int, bool) {
		r := g.Receivers[0]
		payload := f.nonce()
		return 1, f.hears(r.Host, r.QPN, func() {
			mallory.send(f.host(g.Sender).packet(f.host(r.Host).Addr, 1, rocev2.Headers{
				BTH:  rocev2.BTH{Opcode: rocev2.WriteOnly, PKey: rocev2.DefaultPKey, MigReq: true, DestQP: rocev2.QPN(r.QPN), PSN: rocev2.PSN(g.sent).Add(1)},
				RETH: rocev2.RETH{VA: r.VA, RKey: r.RKey, Length: uint32(len(payload))}}, payload))
		})
	}},
	{"the sender's address, by ARP", func(f *Fabric, g *Group, mallory *host) (int, bool) {
		victim := f.host(g.Sender)
		mallory.mu.Lock()
		p := mallory.plug
		mallory.mu.Unlock()
		_ = p.Send([][]byte{links.AppendReply(nil, mallory.mac, victim.Addr, mallory.node.mac(0), mallory.node.gateway())})
		other := f.host(g.Receivers[1].Host) // what the first one sends to the sender's queue pair is dropped
		deceived := false
		for range 4 { // an agent takes its time to believe it
			deceived = deceived || f.hears(mallory.Name, g.SenderQPN, func() {
				other.send(other.packet(victim.Addr, 1, rocev2.Headers{
					BTH: rocev2.BTH{Opcode: rocev2.SendOnly, PKey: rocev2.DefaultPKey, MigReq: true, DestQP: rocev2.QPN(g.SenderQPN)}}, f.nonce()))
			})
		}
		return 1, deceived
	}},
}

// hears reports whether a host gets a RoCE packet for a queue pair after something
// was done.
func (f *Fabric) hears(name string, qpn uint32, do func()) bool {
	f.t.Helper()
	got := make(chan struct{}, 1)
	stop := f.listen(func(h *host, b []byte) {
		if c := roce(b); c != nil && h.Name == name && uint32(c.DestQP) == qpn {
			select {
			case got <- struct{}{}:
			default:
			}
		}
	})
	defer stop()
	do()
	select {
	case <-got:
		return true
	case <-time.After(10 * quiet):
		return false
	}
}

// At guarded ports, a host cannot speak in another's name, whether it is in the
// sender's rack or in another one; the group doesn't notice. Without the guard each
// of the attacks that can work does, so the test sees them.
func TestSpoofing(t *testing.T) {
	guardedAndNot(t, func(t *testing.T, s Spec, guard bool) {
		f := Start(t, s)
		for i, a := range attacks {
			for _, from := range []string{"h1-4", "h2-4"} {
				g := f.Group("h1-1", "h1-2", "h2-1", "h2-2")
				f.Install(g)
				f.CheckDelivery(g)
				mallory := f.host(from)
				before := f.spoofed(mallory.Switch)
				sent, deceived := a.do(f, g, mallory)
				counted := f.spoofed(mallory.Switch) - before
				switch {
				case guard && deceived:
					t.Errorf("%s from %s: it worked", a.what, from)
				case guard && counted != uint64(sent):
					t.Errorf("%s from %s: %d packets were sent, %d counted as spoofed", a.what, from, sent, counted)
				case !guard && from == "h1-4" && !deceived:
					t.Errorf("%s from %s: it does not work without the guard either: the test cannot fail", a.what, from)
				}
				if guard {
					f.CheckDelivery(g)
					f.CheckAcks(g)
				}
				f.Remove(g)
				if !guard && i == len(attacks)-1 {
					return
				}
			}
		}
	})
}

// TestForgedHellos: a host says hello as a spine does. Guarded or not, no link goes
// down or comes up for that, groups are delivered, and guarded ports count each hello
// as spoofed.
func TestForgedHellos(t *testing.T) {
	guardedAndNot(t, func(t *testing.T, s Spec, guard bool) {
		f := Start(t, patient(s))
		g := f.Group("h1-1", "h1-2", "h2-1")
		f.Install(g)
		f.Repaired(g)
		if w := f.helloAs("spine1", f.host("h1-4"), g, guard); len(w) > 0 {
			t.Errorf("links have changed because a host said hello: %v", w)
		}
		f.CheckAcks(g)
		f.Remove(g)
	})
}

// helloAs has a host say hello in a switch's name. It returns the links that changed
// meanwhile.
func (f *Fabric) helloAs(sw string, mallory *host, g *Group, guard bool) []*Wire {
	f.t.Helper()
	f.Links()
	before, since := f.spoofed(mallory.Switch), time.Now()
	now := since
	liar := links.New(links.Config{Name: sw, Rand: rand.New(rand.NewPCG(1, 1)), Ports: []links.Port{{Number: 1, MAC: mallory.mac}}}, now)
	mallory.mu.Lock()
	p := mallory.plug
	mallory.mu.Unlock()
	sent := uint64(0)
	for range 100 {
		frames, _, next := liar.Tick(now)
		for _, fr := range frames {
			_ = p.Send([][]byte{fr.Bytes})
			sent++
		}
		now = next
	}
	want := uint64(0)
	if guard {
		want = sent
	}
	f.eventually("hellos are counted", func() error {
		if n := f.spoofed(mallory.Switch) - before; sent == 0 || n != want {
			return fmt.Errorf("%d hellos were sent, and %d are counted as spoofed", sent, n)
		}
		return nil
	})
	f.Repaired(g)
	return f.Flapped(since, nil)
}
