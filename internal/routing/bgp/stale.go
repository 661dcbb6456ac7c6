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
	var back map[string]returned
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !s.stale.Load() {
			back = nil
			continue
		}
		var err error
		if back, err = s.dropStale(ctx, back); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Error("routes of before a restart", "err", err)
		}
		s.changes.note() // GoBGP does not always report that no paths are left
	}
}

// A returned is a peer that is back, with stale routes. GoBGP knows since when only by the wall clock.
type returned struct {
	uptime time.Time // by GoBGP, of this session
	since  time.Time
}

// dropStale resets the sessions of peers whose time has expired. It takes and returns those that are back.
func (s *Source) dropStale(ctx context.Context, before map[string]returned) (back map[string]returned, _ error) {
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
	back = map[string]returned{}
	var over []string
	err = s.server.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
		if !stale[p.State.NeighborAddress] || p.State.SessionState != api.PeerState_ESTABLISHED {
			return // GoBGP removes the routes of a peer that does not return in time
		}
		a := p.State.NeighborAddress
		if back[a] = before[a]; !back[a].uptime.Equal(p.Timers.State.Uptime.AsTime()) {
			back[a] = returned{p.Timers.State.Uptime.AsTime(), time.Now()}
		}
		if !restarts(p) || time.Since(back[a].since) > time.Duration(s.staleTime.Load()) {
			over = append(over, a)
		}
	})
	for _, addr := range over {
		s.cfg.Logger.Warn("a neighbor has restarted and has not told all its routes again; its session is reset", "peer", addr)
		err = errors.Join(err, s.server.ResetPeer(ctx, &api.ResetPeerRequest{Address: addr, Communication: "routes are stale"}))
	}
	return back, err
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
