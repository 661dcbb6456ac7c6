package links

import (
	"fmt"
	"slices"
	"time"
)

// How routers are watched. Linux's bonding driver has such an ARP monitor, too.
const (
	askEvery = time.Second
	maxAsks  = 3 // without an answer, after which the link is down
)

// ReceiveARP takes an ARP packet that came in at a port and was for this switch. Only the
// answers of a router that is watched count. Call [Manager.Tick] afterwards.
func (m *Manager) ReceiveARP(now time.Time, number uint16, a ARP) {
	i, found := slices.BinarySearchFunc(m.ports, number, byNumber)
	if m.closed || !found || m.ports[i].session != nil || a.Op != ARPReply || a.SenderAddr != m.ports[i].Router {
		return
	}
	p, was := m.ports[i], m.ports[i].peer
	p.asks, p.peer, p.name = 0, a.SenderMAC, p.Expect
	switch {
	case p.state != Up:
		p.become(m.clock(now), Up, "")
	case was != p.peer:
		p.reason = fmt.Sprintf("the neighbor's MAC changed from %v to %v", was, p.peer)
		p.tell()
	}
}
