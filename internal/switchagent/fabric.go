package switchagent

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// linkGrace is how long after the start the routes count as unsettled while some links have not
// come up.
const linkGrace = 3 * time.Second

// ports are what the agent hears at the switch's ports.
type ports struct {
	packets chan p4rt.PacketIn
	digests chan p4rt.ARPDigest
	opened  wakeup // a session with the switch has begun

	mu    sync.Mutex
	links *links.Manager
}

// do calls f with the links.
func (p *ports) do(f func(*links.Manager)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.links)
}

func (p *ports) states() (list []links.State) {
	p.do(func(m *links.Manager) { list = m.States() })
	return list
}

// fabric is the goroutine that learns the switch's surroundings: routes, links and hosts. It never
// waits for the switch.
func (a *Agent) fabric(ctx context.Context) {
	deltas := make(chan routing.Delta)
	a.wg.Go(func() { a.watchRoutes(ctx, deltas) })
	var (
		hello   = time.NewTimer(0)
		second  = time.NewTicker(time.Second)
		learnt  bool // the source has reported what it had
		asked   chan struct{}
		adopted = a.start.adopted
	)
	defer hello.Stop()
	defer second.Stop()
	for {
		select {
		case <-ctx.Done():
			var last []links.Frame
			a.ports.do(func(m *links.Manager) { last = m.Close(time.Now(), a.absence()) })
			for _, f := range last {
				a.send(f.Port, f.Bytes)
			}
			return
		case d := <-deltas:
			learnt = true
			a.change(func(t *unicast.Table) { t.Routes(d) })
		case p := <-a.ports.packets:
			a.packetIn(p)
		case d := <-a.ports.digests:
			a.learn(unicast.Host{Addr: d.Addr, MAC: d.MAC, Port: d.Port})
		case <-adopted:
			adopted = nil
		case <-hello.C:
		case <-a.ports.opened:
			a.ports.do(func(m *links.Manager) { m.SendNow(time.Now()) })
		case <-asked:
			asked = nil
			hello.Reset(a.stepLinks())
			continue
		case <-second.C:
			var ask []unicast.Host
			a.change(func(t *unicast.Table) { ask, _ = t.Probe(time.Now()) })
			for _, h := range ask {
				a.request(h.Port, h.Addr)
			}
		}
		if asked == nil {
			if asked = a.askAbout(ctx); asked == nil {
				hello.Reset(a.stepLinks())
			}
		}
		if !a.start.settled.reached() && learnt && a.settling() == "" {
			a.settle()
		}
	}
}

// settling returns the reason why routes may exist that the agent has not learned yet; "": none
// may.
func (a *Agent) settling() string {
	since := time.Since(a.start.at)
	switch {
	case !a.start.adopted.reached():
		return "what the switch has is being read"
	case since < a.cfg.Routing.Settle:
		return fmt.Sprintf("routes are being learned, for another %v (routing.settle)", (a.cfg.Routing.Settle - since).Round(time.Millisecond))
	case since >= linkGrace:
		return ""
	}
	for _, l := range a.ports.states() {
		if l.State != links.Up {
			return fmt.Sprintf("the link of port %d to %s is %s, for which the agent waits for another %v", l.Port, l.Expect, l.State, (linkGrace - since).Round(time.Millisecond))
		}
	}
	return ""
}

func (a *Agent) settle() {
	a.change(func(t *unicast.Table) { t.Settled() })
	a.start.settled.reach()
	a.log.Info("routes are settled")
	a.rerun.wake()
}

// change changes the unicast table, and wakes follow.
func (a *Agent) change(f func(*unicast.Table)) {
	if a.uni.do(f) {
		a.rerun.wake()
	}
}

// watchRoutes passes on the source's routes. After a restart it waits until the source knows all of
// them again: a part of the routes may form a loop, and the routes adopted from the switch are
// still valid.
func (a *Agent) watchRoutes(ctx context.Context, to chan<- routing.Delta) {
	if a.routes.known != nil && !a.routes.known.wait(ctx) {
		return
	}
	w := a.routes.Watch()
	defer w.Close()
	for {
		d, err := w.Next(ctx)
		if err != nil {
			return
		}
		select {
		case to <- d:
		case <-ctx.Done():
			return
		}
	}
}

// askAbout verifies that links that are about to be declared down have failed, and then closes the
// returned channel; nil: there are none. On a busy machine the hellos may be late because of the
// switch, its connection to this agent, or the agent at the other end. So this agent sends a
// request to both; the links stay up until they answer, but for at most three times the detection
// time.
func (a *Agent) askAbout(ctx context.Context) chan struct{} {
	var names []string
	a.ports.do(func(m *links.Manager) { names = m.Doubtful(time.Now()) })
	if len(names) == 0 {
		return nil
	}
	asked := make(chan struct{})
	a.wg.Go(func() {
		defer close(asked)
		ctx, cancel := context.WithTimeout(ctx, 2*time.Duration(a.cfg.Hello.Multiplier)*a.cfg.Hello.Interval)
		defer cancel()
		var all sync.WaitGroup
		if _, s := a.driver.current(); s != nil {
			all.Go(func() { _, _ = s.ReadMemberCounters(ctx, 0) }) // any answer will do
		}
		for _, n := range names {
			if p := a.peers.all[bifurcation.Switch(n)]; p != nil {
				all.Go(func() { _, _ = healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{}) })
			}
		}
		all.Wait()
	})
	return asked
}

// stepLinks does the due work on the links, and returns when to call it again.
func (a *Agent) stepLinks() time.Duration {
	var (
		now    = time.Now()
		busy   = a.opts.Busy != nil && a.opts.Busy(now)
		send   []links.Frame
		events []links.Event
		next   time.Time
	)
	a.ports.do(func(m *links.Manager) {
		m.Busy(busy)
		send, events, next = m.Tick(now)
	})
	for _, f := range send {
		a.send(f.Port, f.Bytes)
	}
	for _, e := range events {
		a.log.Info("link", "port", e.Port, "up", e.Up, "switch", e.Name, "reason", e.Reason)
		to := a.port(e.Port).To
		a.metrics.linkChanges.WithLabelValues(strconv.Itoa(int(e.Port)), to).Inc()
		a.change(func(t *unicast.Table) { t.Link(e.Port, e.Up, e.Peer) })
		a.routes.link(e.Port, to, e.Up)
	}
	if next.IsZero() {
		return time.Hour
	}
	return max(next.Sub(now), 0)
}

// listen passes on what the session's switch sends, and sends hellos to it.
func (a *Agent) listen(s *p4rt.Session) {
	a.wg.Go(func() { forward(s, s.PacketIns(), a.ports.packets) })
	a.wg.Go(func() { forward(s, s.Digests(), a.ports.digests) })
	a.ports.opened.wake()
}

func forward[T any](s *p4rt.Session, from <-chan T, to chan<- T) {
	for {
		select {
		case x := <-from:
			select {
			case to <- x:
			case <-s.Done():
				return
			}
		case <-s.Done():
			return
		}
	}
}

// packetIn handles a frame that the switch sent to the agent.
func (a *Agent) packetIn(p p4rt.PacketIn) {
	if len(p.Frame) < 14 {
		a.metrics.dropped("short")
		return
	}
	switch binary.BigEndian.Uint16(p.Frame[12:]) {
	case links.EtherHello:
		var err error
		a.ports.do(func(m *links.Manager) { err = m.Receive(time.Now(), p.Port, p.Frame) })
		if err != nil {
			a.metrics.dropped("hello")
			a.log.Debug("a hello was ignored", "port", p.Port, "error", err)
		}
	case links.EtherARP:
		q, err := links.ParseARP(p.Frame)
		if err != nil {
			a.metrics.dropped("arp")
			return
		}
		a.ports.do(func(m *links.Manager) { m.ReceiveARP(time.Now(), p.Port, q) })
		a.learn(unicast.Host{Addr: q.SenderAddr, MAC: q.SenderMAC, Port: p.Port})
		if q.Op == links.ARPRequest && a.answersFor(q.TargetAddr, p.Port) {
			a.send(p.Port, links.AppendReply(nil, a.port(p.Port).MAC, q.TargetAddr, q.SenderMAC, q.SenderAddr))
		}
	case rocev2.EtherTypeIPv4:
		if len(p.Frame) < 34 {
			a.metrics.dropped("short")
			return
		}
		dst := netip.AddrFrom4([4]byte(p.Frame[30:34]))
		if reply := echoReply(p.Frame, a.port(p.Port).MAC); reply != nil && a.answersFor(dst, 0) {
			a.send(p.Port, reply)
		} else if a.attached(dst) && !a.answersFor(dst, 0) {
			a.askHost(dst)
		}
	default:
		a.metrics.dropped("unknown")
	}
}

func (a *Agent) learn(h unicast.Host) {
	a.change(func(t *unicast.Table) { t.Learn(h, time.Now()) })
}

// answersFor reports whether an address is the router's own, and not that of another port; port 0
// stands for all.
func (a *Agent) answersFor(dst netip.Addr, port uint16) bool {
	return dst == a.cfg.Address || slices.Contains(a.cfg.Gateways, dst) || slices.ContainsFunc(a.cfg.Ports, func(p config.Port) bool {
		return p.Address.Addr() == dst && (port == 0 || port == p.Port)
	})
}
