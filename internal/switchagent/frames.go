package switchagent

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

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

// port returns a port's configuration, as far as it has one.
func (a *Agent) port(number uint16) config.Port {
	for _, p := range a.cfg.Ports {
		if p.Port == number {
			return p
		}
	}
	return config.Port{Port: number, MAC: a.cfg.MAC}
}

// askHost asks for a host's MAC at all ports where it may be.
func (a *Agent) askHost(host netip.Addr) {
	if !a.uni.ask(host, time.Now()) {
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
	a.send(port, links.AppendRequest(nil, a.port(port).MAC, from, host))
}

// hostTime is how long a host has to answer ARP.
const hostTime = time.Second

// resolveHosts resolves the MACs of unknown receivers that are attached here, and waits for the
// answers. A receiver that does not answer is no error here: it has no route.
func (a *Agent) resolveHosts(ctx context.Context, receivers []bifurcation.Receiver) {
	ctx, cancel := context.WithTimeout(ctx, hostTime)
	defer cancel()
	again := time.NewTicker(hostTime / 4)
	defer again.Stop()
	for {
		silent, changed := a.uni.silent(receivers)
		if len(silent) == 0 {
			return
		}
		for _, host := range silent {
			a.askHost(host)
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// attached reports whether a sender's packets, and answers to it, all pass this switch.
func (a *Agent) attached(host netip.Addr) bool {
	return slices.ContainsFunc(a.cfg.Prefixes, func(p netip.Prefix) bool { return p.Contains(host) })
}

// settledRoutes waits until the routes are known, so that "no route" is reliable.
func (a *Agent) settledRoutes(ctx context.Context) error {
	if a.start.settled.wait(ctx) {
		return nil
	}
	return fmt.Errorf("%w: switch %s has just started and is still learning its routes; try again in some seconds", ErrNotReady, a.name)
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
