package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/log"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/mcrdma/mcrdma/internal/routing"
)

// changes collects what has changed since the table was read.
type changes struct {
	mu    sync.Mutex
	all   bool // any path may have changed
	paths map[netip.Prefix]bool
	wake  chan struct{} // holds a token when there are changes
}

// note records prefixes whose paths have changed; without arguments, all may have.
func (c *changes) note(list ...netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = c.all || len(list) == 0
	for _, p := range list {
		c.paths[p] = true
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns and resets the changed prefixes; nil: all may have changed.
func (c *changes) take() map[netip.Prefix]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.paths
	if c.all {
		list = nil
	}
	c.all, c.paths = false, map[netip.Prefix]bool{}
	return list
}

// watch records every change of best paths. It uses only the prefixes of the events, because a
// withdrawn path and a new best one have the same form. After a change of a session, paths may
// change without an event.
func (s *Source) watch(ctx context.Context) error {
	err := s.server.WatchEvent(ctx, &api.WatchEventRequest{
		Peer: &api.WatchEventRequest_Peer{},
		Table: &api.WatchEventRequest_Table{Filters: []*api.WatchEventRequest_Table_Filter{
			{Type: api.WatchEventRequest_Table_Filter_BEST, Init: true}}}},
		func(e *api.WatchEventResponse) {
			s.session(e.GetPeer().GetPeer().GetState())
			var list []netip.Prefix
			for _, p := range e.GetTable().GetPaths() {
				prefix, ok := nlri(p)
				if !ok {
					list = nil
					break
				}
				list = append(list, prefix)
			}
			s.changes.note(list...)
		})
	if err != nil {
		return fmt.Errorf("bgp: watching best paths: %w", err)
	}
	return nil
}

func nlri(p *api.Path) (netip.Prefix, bool) {
	n, ok := message(p.GetNlri()).(*api.IPAddressPrefix)
	addr, err := netip.ParseAddr(n.GetPrefix())
	prefix := netip.PrefixFrom(addr, int(n.GetPrefixLen())).Masked()
	return prefix, ok && err == nil && prefix.IsValid()
}

// follow reads the paths whenever they changed.
func (s *Source) follow(ctx context.Context) {
	routing.Follow(ctx, s.changes.wake, func() error { return s.read(ctx, s.changes.take()) }, func(err error) {
		s.cfg.Logger.Error("reading BGP paths", "err", err)
		s.changes.note()
	})
}

// read updates the table from GoBGP's, for some prefixes or, if changed is nil, for all.
func (s *Source) read(ctx context.Context, changed map[netip.Prefix]bool) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	var d routing.Delta
	var only []*api.TableLookupPrefix
	for p := range changed {
		only = append(only, &api.TableLookupPrefix{Prefix: p.String()})
	}
	stale := changed != nil && s.stale.Load()
	if changed == nil || len(only) > 0 {
		err := s.server.ListPath(ctx, &api.ListPathRequest{TableType: api.TableType_GLOBAL, Family: ipv4, Prefixes: only}, func(x *api.Destination) {
			for _, p := range x.Paths {
				stale = stale || p.Stale
			}
			prefix, err := netip.ParsePrefix(x.Prefix)
			if err != nil {
				return // not unicast
			}
			if hops := equalCost(x.Paths); len(hops) > 0 {
				d.Routes = append(d.Routes, routing.Route{Prefix: prefix, Hops: hops})
				delete(changed, prefix)
			}
		})
		if err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil // the list may be incomplete
	}
	s.stale.Store(stale)
	if changed == nil {
		s.Replace(d.Routes, nil)
		return nil
	}
	d.Withdrawn = slices.Collect(maps.Keys(changed))
	s.Apply(d)
	return nil
}

// attributes are the attributes by which paths are compared.
type attributes struct {
	localPref uint32
	length    int
	origin    uint32
	med       uint32
}

// equalCost returns the next hops of the best path and of those of equal cost: with the same
// preference, length of AS path, origin and MED, whatever the ASes are. The best path comes first.
// A prefix announced by this speaker has none.
func equalCost(paths []*api.Path) routing.Hops {
	var hops []routing.NextHop
	var best attributes
	for i, p := range paths {
		attr, hop := read(p)
		if i == 0 {
			best = attr
		}
		if attr != best {
			continue
		}
		if !hop.IsValid() || hop.IsUnspecified() {
			return nil // announced by this speaker
		}
		hops = append(hops, routing.NextHop{Addr: hop})
	}
	return routing.NewHops(hops...)
}

func read(p *api.Path) (attributes, netip.Addr) {
	a := attributes{localPref: 100}
	var hop netip.Addr
	parse := func(text string) {
		if h, err := netip.ParseAddr(text); err == nil {
			hop = h.Unmap()
		}
	}
	for _, any := range p.Pattrs {
		switch m := message(any).(type) {
		case *api.LocalPrefAttribute:
			a.localPref = m.LocalPref
		case *api.OriginAttribute:
			a.origin = m.Origin
		case *api.MultiExitDiscAttribute:
			a.med = m.Med
		case *api.AsPathAttribute:
			for _, seg := range m.Segments {
				switch seg.Type {
				case api.AsSegment_AS_SEQUENCE:
					a.length += len(seg.Numbers)
				case api.AsSegment_AS_SET: // counts as one, RFC 4271 §9.1.2.2
					a.length++
				}
			}
		case *api.NextHopAttribute:
			parse(m.NextHop)
		}
	}
	return a, hop
}

func message(a *anypb.Any) any {
	m, err := a.UnmarshalNew()
	if err != nil {
		return nil // an attribute unknown to GoBGP, too
	}
	return m
}

// A logger passes on GoBGP's log. Fatal messages do not end the process.
type logger struct{ l *slog.Logger }

var _ log.Logger = logger{}

func (l logger) log(level slog.Level, msg string, fields log.Fields) {
	if !l.l.Enabled(context.Background(), level) {
		return
	}
	args := make([]any, 0, 2*len(fields))
	for k, v := range fields {
		args = append(args, k, v)
	}
	l.l.Log(context.Background(), level, msg, args...)
}

func (l logger) Panic(msg string, f log.Fields) { l.log(slog.LevelError, msg, f) }
func (l logger) Fatal(msg string, f log.Fields) { l.log(slog.LevelError, msg, f) }
func (l logger) Error(msg string, f log.Fields) { l.log(slog.LevelError, msg, f) }
func (l logger) Warn(msg string, f log.Fields)  { l.log(slog.LevelWarn, msg, f) }
func (l logger) Info(msg string, f log.Fields)  { l.log(slog.LevelInfo, msg, f) }
func (l logger) Debug(msg string, f log.Fields) { l.log(slog.LevelDebug, msg, f) }
func (l logger) SetLevel(log.LogLevel)          {} // the slog handler decides

// GetLevel returns the level below which GoBGP may skip work.
func (l logger) GetLevel() log.LogLevel {
	if l.l.Enabled(context.Background(), slog.LevelDebug) {
		return log.DebugLevel
	}
	return log.InfoLevel
}
