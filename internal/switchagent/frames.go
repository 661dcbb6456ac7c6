package switchagent

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
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

// askEvery is the minimum time between two ARP requests for a host.
const askEvery = 200 * time.Millisecond

// askHost asks for a host's MAC at all ports where it may be.
func (a *Agent) askHost(host netip.Addr) {
	now := time.Now()
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
	a.send(port, links.AppendRequest(nil, a.port(port).MAC, from, host))
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
