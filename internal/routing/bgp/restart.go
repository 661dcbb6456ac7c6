package bgp

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// Suspend closes the speaker without a NOTIFICATION, for a restart: its connections just end. Peers
// without graceful restart remove the routes as after Close.
func (s *Source) Suspend() error {
	var err error
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var release func()
		release, err = s.hangUp() // blocks what GoBGP sends when it stops
		err = errors.Join(err, s.stop(ctx))
		release()
	})
	return errors.Join(err, s.Table.Close())
}

// Resume adds the peers of a speaker that was suspended or crashed while the switch continued to
// forward by its routes. The peers keep using these until they have received all routes again. That
// is not before all of them have sent theirs, because a route through one of them must not be
// missing when the others get End-of-RIB. Resume returns then, or after half of Config.Restart.
func (s *Source) Resume(ctx context.Context, peers []Peer) (err error) {
	g, err := s.openGate(ctx)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), g.close())
	}
	if err != nil { // then some routes may be missing for a while; without peers all would be
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
