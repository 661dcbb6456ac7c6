package bgp

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	api "github.com/osrg/gobgp/v3/api"
)

// Established is the state of a session that exchanges routes.
const Established = "Established"

// states are those of RFC 4271, section 8.2.2.
var states = map[api.PeerState_SessionState]string{
	api.PeerState_IDLE: "Idle", api.PeerState_CONNECT: "Connect", api.PeerState_ACTIVE: "Active",
	api.PeerState_OPENSENT: "OpenSent", api.PeerState_OPENCONFIRM: "OpenConfirm", api.PeerState_ESTABLISHED: Established,
}

// A Neighbor is the state of the session with a peer.
type Neighbor struct {
	Addr  netip.Addr
	ASN   uint32
	State string    // as in RFC 4271
	Since time.Time // when it was established, or ended; if it never was, when it was added
	// NextHop is the next hop announced to the peer: the Peer's, or the session's own address.
	NextHop netip.Addr
	// Prefixes received from the peer, those of them accepted, and those sent to it. Without a session
	// there are none.
	Received, Accepted, Advertised uint64
}

// Neighbors returns the peers' sessions, sorted by address.
func (s *Source) Neighbors(ctx context.Context) ([]Neighbor, error) {
	var list []Neighbor
	s.mu.Lock()
	hops, down := maps.Clone(s.hops), maps.Clone(s.down)
	s.mu.Unlock()
	err := s.server.ListPeer(ctx, &api.ListPeerRequest{EnableAdvertised: true}, func(p *api.Peer) {
		n := Neighbor{ASN: p.GetConf().GetPeerAsn(), State: states[p.GetState().GetSessionState()]}
		n.Addr, _ = netip.ParseAddr(p.GetConf().GetNeighborAddress()) // GoBGP formatted it from an address
		if n.NextHop = hops[n.Addr]; !n.NextHop.IsValid() {
			n.NextHop, _ = netip.ParseAddr(p.GetTransport().GetLocalAddress()) // none before the session is established
		}
		n.Since = down[n.Addr] // GoBGP's own begins anew with each attempt
		if up := p.GetTimers().GetState().GetUptime(); n.State == Established && up.GetSeconds() > 0 {
			n.Since = up.AsTime()
		}
		for _, f := range p.GetAfiSafis() {
			n.Received += f.GetState().GetReceived()
			n.Accepted += f.GetState().GetAccepted()
			if told := f.GetState().GetAdvertised(); told > 0 && n.State == Established { // else what would be sent
				n.Advertised += told - 1 // GoBGP counts the End-of-RIB marker of graceful restart
			}
		}
		n.State = cmp.Or(n.State, strings.ToLower(p.GetState().GetSessionState().String()))
		list = append(list, n)
	})
	if err != nil {
		return nil, fmt.Errorf("bgp: sessions: %w", err)
	}
	slices.SortFunc(list, func(x, y Neighbor) int { return x.Addr.Compare(y.Addr) })
	return list, nil
}

// session records when the session with a peer has ended.
func (s *Source) session(p *api.PeerState) {
	addr, _ := netip.ParseAddr(p.GetNeighborAddress()) // none, if p is nil
	s.mu.Lock()
	defer s.mu.Unlock()
	since, known := s.down[addr]
	switch {
	case !known: // removed
	case p.GetSessionState() == api.PeerState_ESTABLISHED:
		s.down[addr] = time.Time{}
	case since.IsZero():
		s.down[addr] = time.Now()
	}
}
