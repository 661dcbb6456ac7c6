package bgp

import (
	"context"
	"errors"
	"time"

	api "github.com/osrg/gobgp/v3/api"
)

// staleTime is how long a returned peer may take to send all its routes. It is a bit more than
// speakers usually wait for their own peers (RFC 4724 §4.1).
const staleTime = 400 * time.Second

// sweep removes stale routes of peers that restarted. GoBGP waits forever for the End-of-RIB of a
// returned peer, even of one that no longer does graceful restart.
func (s *Source) sweep(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var since map[string]time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !s.stale.Load() {
			since = nil
			continue
		}
		var err error
		if since, err = s.dropStale(ctx, since); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Error("routes of before a restart", "err", err)
		}
		s.changes.note() // GoBGP does not always report that no paths are left
	}
}

// dropStale resets the sessions of peers whose time has expired. It takes and returns since when peers
// have been back with stale routes: GoBGP knows that only by the wall clock.
func (s *Source) dropStale(ctx context.Context, before map[string]time.Time) (since map[string]time.Time, _ error) {
	stale := map[string]bool{}
	err := s.server.ListPath(ctx, &api.ListPathRequest{TableType: api.TableType_GLOBAL, Family: ipv4}, func(d *api.Destination) {
		for _, p := range d.Paths {
			if p.Stale {
				stale[p.NeighborIp] = true
			}
		}
	})
	if err != nil {
		return before, err
	}
	since = map[string]time.Time{}
	var over []string
	err = s.server.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
		if !stale[p.State.NeighborAddress] || p.State.SessionState != api.PeerState_ESTABLISHED {
			return // GoBGP removes the routes of a peer that does not return in time
		}
		a := p.State.NeighborAddress
		if since[a] = before[a]; since[a].IsZero() {
			since[a] = time.Now()
		}
		if !restarts(p) || time.Since(since[a]) > time.Duration(s.staleTime.Load()) {
			over = append(over, a)
		}
	})
	for _, addr := range over {
		s.cfg.Logger.Warn("a neighbor has restarted and has not told all its routes again; its session is reset", "peer", addr)
		err = errors.Join(err, s.server.ResetPeer(ctx, &api.ResetPeerRequest{Address: addr, Communication: "routes are stale"}))
	}
	return since, err
}

// restarts reports whether a peer has announced graceful restart.
func restarts(p *api.Peer) bool {
	for _, c := range p.State.RemoteCap {
		if _, ok := message(c).(*api.GracefulRestartCapability); ok {
			return true
		}
	}
	return false
}
