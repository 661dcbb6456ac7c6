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
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// linkGrace is how long after the start the routes count as not settled while
// some links have not come up.
const linkGrace = 3 * time.Second

// fabric is the goroutine that learns what is around the switch: routes, links and
// hosts. It never waits for the switch.
func (a *Agent) fabric(ctx context.Context) {
	deltas := make(chan routing.Delta)
	a.wg.Go(func() { a.watchRoutes(ctx, deltas) })
	var (
		hello   = time.NewTimer(0)
		second  = time.NewTicker(time.Second)
		learnt  bool // the source has reported what it had
		asked   chan struct{}
		adopted = a.adopted
	)
	defer hello.Stop()
	defer second.Stop()
	for {
		select {
		case <-ctx.Done():
			a.linksMu.Lock()
			last := a.links.Close(a.now(), a.absence())
			a.linksMu.Unlock()
			for _, f := range last {
				a.send(f.Port, f.Bytes)
			}
			return
		case d := <-deltas:
			learnt = true
			a.table(func(t *unicast.Table) { t.Routes(d) })
		case p := <-a.packets:
			a.packetIn(p)
		case d := <-a.digests:
			a.learn(unicast.Host{Addr: d.Addr, MAC: d.MAC, Port: d.Port})
		case <-adopted:
			adopted = nil
		case <-hello.C:
		case <-a.opened:
			a.linksMu.Lock()
			a.links.SendNow(a.now())
			a.linksMu.Unlock()
		case <-asked:
			asked = nil
			hello.Reset(a.stepLinks())
			continue
		case <-second.C:
			var ask []unicast.Host
			a.table(func(t *unicast.Table) { ask, _ = t.Probe(a.now()) })
			for _, h := range ask {
				a.request(h.Port, h.Addr)
			}
		}
		if asked == nil {
			if asked = a.askAbout(ctx); asked == nil {
				hello.Reset(a.stepLinks())
			}
		}
		if !closed(a.settled) && learnt && a.settling() == "" {
			a.settle()
		}
	}
}

// settling says why what the agent has not learned by now may exist all the same; "": it does not.
func (a *Agent) settling() string {
	since := a.now().Sub(a.started)
	switch {
	case !closed(a.adopted):
		return "what the switch has is being read"
	case since < a.cfg.Routing.Settle:
		return fmt.Sprintf("routes are being learned, for another %v (routing.settle)", (a.cfg.Routing.Settle - since).Round(time.Millisecond))
	case since >= linkGrace:
		return ""
	}
	for _, l := range a.linkStates() {
		if l.State != links.Up {
			return fmt.Sprintf("the link of port %d to %s is %s, for which the agent waits for another %v", l.Port, l.Expect, l.State, (linkGrace - since).Round(time.Millisecond))
		}
	}
	return ""
}

func (a *Agent) settle() {
	a.table(func(t *unicast.Table) { t.Settled(true) })
	close(a.settled)
	a.log.Info("routes are settled")
	a.rerun.wake()
}

// table changes the unicast table, and wakes follow.
func (a *Agent) table(f func(*unicast.Table)) {
	if a.uni.do(f) {
		a.rerun.wake()
	}
}

// watchRoutes passes on the source's routes. After a restart it waits until the source
// knows all again: a part of the routes may form a loop, while what was adopted from
// the switch still holds.
func (a *Agent) watchRoutes(ctx context.Context, to chan<- routing.Delta) {
	if a.routes.known != nil {
		select {
		case <-a.routes.known:
		case <-ctx.Done():
			return
		}
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

// askAbout makes sure that links are broken which are about to count as such, and closes what
// it returns; nil: there is none. On a busy machine the switch may be late, what is between
// it and this agent, or the agent at the other end, and not the link. So this agent asks
// both for anything; links stay up until they answer, but for no longer than makes it three
// times the detection time.
func (a *Agent) askAbout(ctx context.Context) chan struct{} {
	a.linksMu.Lock()
	names := a.links.Doubtful(a.now())
	a.linksMu.Unlock()
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
			if p := a.peers[bifurcation.Switch(n)]; p != nil {
				all.Go(func() { _, _ = healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{}) })
			}
		}
		all.Wait()
	})
	return asked
}

// stepLinks does what is due on the links, and returns when to call it again.
func (a *Agent) stepLinks() time.Duration {
	now := a.now()
	a.linksMu.Lock()
	a.links.Busy(a.opts.Busy != nil && a.opts.Busy(now))
	send, events, next := a.links.Tick(now)
	a.linksMu.Unlock()
	for _, f := range send {
		a.send(f.Port, f.Bytes)
	}
	for _, e := range events {
		a.log.Info("link", "port", e.Port, "up", e.Up, "switch", e.Name, "reason", e.Reason)
		a.metrics.linkChanges.WithLabelValues(strconv.Itoa(int(e.Port)), a.portTo[e.Port]).Inc()
		a.table(func(t *unicast.Table) { t.Link(e.Port, e.Up, e.Peer) })
		a.routes.link(e.Port, a.portTo[e.Port], e.Up)
	}
	if next.IsZero() {
		return time.Hour
	}
	return max(next.Sub(now), 0)
}

func (a *Agent) linkStates() []links.State {
	a.linksMu.Lock()
	defer a.linksMu.Unlock()
	return a.links.States()
}

// send sends a frame out of a port, if there is a switch.
func (a *Agent) send(port uint16, frame []byte) {
	_, s := a.driver.current()
	if s == nil {
		return
	}
	if err := s.PacketOut(port, frame); err != nil {
		a.metrics.dropped("packet_out")
	}
}

// listen passes on what a session's switch sends, and has hellos sent to it.
func (a *Agent) listen(s *p4rt.Session) {
	a.wg.Go(func() { forward(s, s.PacketIns(), a.packets) })
	a.wg.Go(func() { forward(s, s.Digests(), a.digests) })
	a.opened.wake()
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

const (
	etherHello = 0x88b5
	etherARP   = 0x0806
	etherIPv4  = 0x0800
)

// packetIn takes a frame that the switch sent to the agent.
func (a *Agent) packetIn(p p4rt.PacketIn) {
	if len(p.Frame) < 14 {
		a.metrics.dropped("short")
		return
	}
	switch binary.BigEndian.Uint16(p.Frame[12:]) {
	case etherHello:
		a.linksMu.Lock()
		err := a.links.Receive(a.now(), p.Port, p.Frame)
		a.linksMu.Unlock()
		if err != nil {
			a.metrics.dropped("hello")
			a.log.Debug("a hello was ignored", "port", p.Port, "error", err)
		}
	case etherARP:
		q, err := links.ParseARP(p.Frame)
		if err != nil {
			a.metrics.dropped("arp")
			return
		}
		a.linksMu.Lock()
		a.links.ReceiveARP(a.now(), p.Port, q)
		a.linksMu.Unlock()
		a.learn(unicast.Host{Addr: q.SenderAddr, MAC: q.SenderMAC, Port: p.Port})
		if q.Op == links.ARPRequest && a.answersFor(q.TargetAddr, p.Port) {
			a.send(p.Port, links.AppendReply(nil, a.portMAC(p.Port), q.TargetAddr, q.SenderMAC, q.SenderAddr))
		}
	case etherIPv4:
		if len(p.Frame) < 34 {
			a.metrics.dropped("short")
			return
		}
		dst := netip.AddrFrom4([4]byte(p.Frame[30:34]))
		if reply := echoReply(p.Frame, a.portMAC(p.Port)); reply != nil && a.answersFor(dst, 0) {
			a.send(p.Port, reply)
		} else if a.attached(dst) && !a.answersFor(dst, 0) {
			a.askHost(dst)
		}
	default:
		a.metrics.dropped("unknown")
	}
}

func (a *Agent) learn(h unicast.Host) {
	a.table(func(t *unicast.Table) { t.Learn(h, a.now()) })
}

// answersFor says whether an address is the router's own, and not that of another port;
// port 0 stands for all.
func (a *Agent) answersFor(dst netip.Addr, port uint16) bool {
	return dst == a.cfg.Address || slices.Contains(a.cfg.Gateways, dst) || slices.ContainsFunc(a.cfg.Ports, func(p config.Port) bool {
		return p.Address.Addr() == dst && (port == 0 || port == p.Port)
	})
}

func (a *Agent) portMAC(port uint16) switchspec.MAC {
	for _, p := range a.cfg.Ports {
		if p.Port == port && p.MAC != (switchspec.MAC{}) {
			return p.MAC
		}
	}
	return a.cfg.MAC
}

// askEvery is the least time between two ARP requests for a host.
const askEvery = 200 * time.Millisecond

// askHost asks for a host's MAC at all ports where it may be.
func (a *Agent) askHost(host netip.Addr) {
	now := a.now()
	a.uni.mu.Lock()
	wait := now.Sub(a.uni.asked[host]) < askEvery
	if !wait {
		if len(a.uni.asked) > unicast.MaxHosts {
			clear(a.uni.asked)
		}
		a.uni.asked[host] = now
	}
	a.uni.mu.Unlock()
	if wait {
		return
	}
	for _, p := range a.cfg.Ports {
		if p.To == "" {
			a.request(p.Port, host)
		}
	}
}

// request asks at one port.
func (a *Agent) request(port uint16, host netip.Addr) {
	from := a.cfg.Address
	for i, p := range a.cfg.Prefixes {
		if p.Contains(host) && i < len(a.cfg.Gateways) {
			from = a.cfg.Gateways[i]
		}
	}
	a.send(port, links.AppendRequest(nil, a.portMAC(port), from, host))
}

// echoReply answers a ping of the router, so that operators can check that it is
// reachable; nil if the frame is something else. The frame is at least 34 bytes long.
func echoReply(frame []byte, own switchspec.MAC) []byte {
	const ether, echo, reply, icmp = 14, 8, 0, 1
	ip := frame[ether:]
	header := int(ip[0]&0x0f) * 4
	length := int(binary.BigEndian.Uint16(ip[2:]))
	fragment := binary.BigEndian.Uint16(ip[6:]) & 0x3fff
	if ip[0]>>4 != 4 || header < 20 || length > len(ip) || length < header+8 || ip[9] != icmp || fragment != 0 || ip[header] != echo {
		return nil
	}
	out := append([]byte(nil), frame[:ether+length]...)
	copy(out[0:6], frame[6:12])
	copy(out[6:12], own[:])
	o := out[ether:]
	copy(o[12:16], ip[16:20])
	copy(o[16:20], ip[12:16])
	o[8] = 64
	binary.BigEndian.PutUint16(o[10:], 0)
	binary.BigEndian.PutUint16(o[10:], rocev2.Checksum(o[:header]))
	o[header] = reply
	binary.BigEndian.PutUint16(o[header+2:], 0)
	binary.BigEndian.PutUint16(o[header+2:], rocev2.Checksum(o[header:]))
	for len(out) < 60 {
		out = append(out, 0)
	}
	return out
}
