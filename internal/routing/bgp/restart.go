package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	api "github.com/osrg/gobgp/v3/api"
)

const (
	maxRestart = 4095 * time.Second // 12 bits
	// staleTime is how long a peer that is back may take to send all its routes. It is
	// a bit more than speakers usually wait for their own peers, RFC 4724 §4.1.
	staleTime = 400 * time.Second
	// lookEvery is the time between two looks at how far sessions are.
	lookEvery = 50 * time.Millisecond
)

// deferral is how long a speaker that has restarted waits for its peers' routes
// before it sends its own: RFC 4724 §4.1's Selection_Deferral_Timer.
func (s *Source) deferral() time.Duration {
	return max(s.cfg.Restart/2, time.Second).Truncate(time.Second)
}

// Suspend closes the speaker without a NOTIFICATION, for a restart: its connections
// just end. Peers without graceful restart remove the routes as after Close.
func (s *Source) Suspend() error {
	var err error
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var release func()
		release, err = s.hangUp() // what GoBGP sends when it stops no longer gets out
		err = errors.Join(err, s.stop(ctx))
		release()
	})
	return errors.Join(err, s.Table.Close())
}

// Resume adds the peers of a speaker that was suspended, or crashed, while the
// switch kept forwarding by its routes. The peers keep using these until they have
// received all again. That is not before all of them have sent theirs: a route that
// leads through one of them must not be missing when the others get End-of-RIB.
// Resume returns then, or after half of Config.Restart.
func (s *Source) Resume(ctx context.Context, peers []Peer) (err error) {
	g, err := s.openGate(ctx)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), g.close())
	}
	if err != nil { // then some routes may be gone for a while; without peers all would be
		s.cfg.Logger.Warn("routes may be told to neighbors before all have been learned", "err", err)
		err = nil
	}
	defer func() { err = errors.Join(err, g.close()) }()
	for _, p := range peers {
		err = errors.Join(err, s.addPeer(ctx, p, true))
	}
	waiting, cancel := context.WithTimeout(ctx, s.deferral())
	defer cancel()
	if s.await(waiting, func(told map[string]bool) bool {
		for _, p := range peers {
			if !told[p.Addr.String()] && s.has(p.Addr) {
				return false
			}
		}
		return true
	}) != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("not all neighbors have told their routes", "after", s.deferral())
	}
	return errors.Join(err, g.open(ctx), s.read(ctx, nil))
}

func (s *Source) has(peer netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.peer[peer]
	return ok
}

// await waits until a condition holds for the set of peers, by address, that have
// sent all their routes.
func (s *Source) await(ctx context.Context, cond func(told map[string]bool) bool) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		told := map[string]bool{}
		err := s.server.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) { told[p.State.NeighborAddress] = hasTold(p) })
		if err != nil {
			return err
		}
		if cond(told) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hasTold says whether a peer has sent all its routes, as far as can be known.
func hasTold(p *api.Peer) bool {
	if p.State.SessionState != api.PeerState_ESTABLISHED {
		return false
	}
	if !restarts(p) {
		return true
	}
	speaks := map[api.Family_Afi]bool{}
	for _, c := range p.State.RemoteCap {
		if mp, ok := message(c).(*api.MultiProtocolCapability); ok {
			speaks[mp.Family.Afi] = true
		}
	}
	for _, a := range p.AfiSafis {
		if afi := a.Config.Family.Afi; speaks[afi] && !a.MpGracefulRestart.State.EndOfRibReceived {
			return false
		}
	}
	return true
}

// restarts says whether a peer has announced graceful restart.
func restarts(p *api.Peer) bool {
	for _, c := range p.State.RemoteCap {
		if _, ok := message(c).(*api.GracefulRestartCapability); ok {
			return true
		}
	}
	return false
}

// sweep removes stale routes of peers that restarted: GoBGP waits without end for the
// End-of-RIB of a peer that is back, even of one that no longer does graceful restart.
func (s *Source) sweep(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !s.stale.Load() {
			continue
		}
		if err := s.dropStale(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Error("routes of before a restart", "err", err)
		}
		s.changes.note() // GoBGP does not always tell when they are none
	}
}

// dropStale resets the sessions of peers whose time has run out.
func (s *Source) dropStale(ctx context.Context) error {
	stale := map[string]bool{}
	for _, f := range families {
		err := s.server.ListPath(ctx, &api.ListPathRequest{TableType: api.TableType_GLOBAL, Family: f}, func(d *api.Destination) {
			for _, p := range d.Paths {
				if p.Stale {
					stale[p.NeighborIp] = true
				}
			}
		})
		if err != nil {
			return err
		}
	}
	var over []string
	err := s.server.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
		if !stale[p.State.NeighborAddress] || p.State.SessionState != api.PeerState_ESTABLISHED {
			return // GoBGP drops what is not back in time
		}
		if !restarts(p) || time.Since(p.Timers.State.Uptime.AsTime()) > time.Duration(s.staleTime.Load()) {
			over = append(over, p.State.NeighborAddress)
		}
	})
	for _, addr := range over {
		s.cfg.Logger.Warn("a neighbor has restarted and has not told all its routes again; its session is reset", "peer", addr)
		err = errors.Join(err, s.server.ResetPeer(ctx, &api.ResetPeerRequest{Address: addr, Communication: "routes are stale"}))
	}
	return err
}

// holds says whether a connection between two addresses belongs to a session.
func (s *Source) holds(local, remote netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.peer[remote.Addr()]
	if !ok || p.Local.IsValid() && p.Local != local.Addr() {
		return false
	}
	port := p.Port
	if port == 0 {
		port = Port
	}
	return remote.Port() == port || s.cfg.ListenPort != 0 && local.Port() == s.cfg.ListenPort
}

// errHangUp is wrapped by errors of Suspend after which the peers learn that the
// speaker leaves.
var errHangUp = errors.New("bgp: the connections cannot be ended silently")

func hangUpError(err error) error { return fmt.Errorf("%w: %w", errHangUp, err) }
