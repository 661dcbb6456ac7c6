// Package kernel reads and follows the routes and neighbors in the tables of a Linux network
// namespace, for switches whose operating system runs a routing daemon that fills them.
//
// It is the only package that imports netlink besides internal/hostnet. A [Source] runs one
// goroutine until it is closed. Notifications only trigger another read of the tables: the kernel
// sends none for IPv4 routes that are removed with their interface, and drops some when they come
// too fast (ENOBUFS), so a copy maintained from them would drift.
package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/routing"
)

// maxInterrupted is how often a read that a concurrent change interrupted is repeated, before the
// source waits for the next notification.
const maxInterrupted = 5

// Config configures a Source. The zero value means the main table of the process's namespace.
type Config struct {
	// Namespace is the path of a network namespace, such as /run/netns/sw1.
	Namespace string
	// Table is the number of the routing table; 0 is the main one.
	Table int
	// OnError is called when a read failed. The state then stays unchanged, and the source retries
	// within a second. It may be nil, and must not call Close.
	OnError func(error)
}

// A Source follows a namespace's tables. It has the routes of IPv4, whose next hops may be neighbors
// with IPv6 addresses. The ports of next hops are interface names. It ignores the weights of
// multipath routes, next hops whose link is down, routes with a TOS, and all routes to a prefix
// except the one of the lowest metric. Blackhole, unreachable and prohibit routes have an empty set.
type Source struct {
	routing.Table
	cfg    Config
	handle *netlink.Handle
	events *nl.NetlinkSocket
	dirty  chan struct{} // holds a token when the tables may have changed
	stop   context.CancelFunc
	once   sync.Once
	wg     sync.WaitGroup
}

var _ routing.Source = (*Source)(nil)

// groups are the netlink groups that report changes of routes and neighbors.
var groups = []uint{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_NEIGH, unix.RTNLGRP_LINK, unix.RTNLGRP_NEXTHOP}

// Open reads the tables and starts to follow them. It needs no privilege except to enter the
// namespace.
func Open(cfg Config) (*Source, error) {
	cfg.Table = cmp.Or(cfg.Table, unix.RT_TABLE_MAIN)
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	ns := netns.None()
	if cfg.Namespace != "" {
		var err error
		if ns, err = netns.GetFromPath(cfg.Namespace); err != nil {
			return nil, fmt.Errorf("kernel: opening network namespace %s: %w", cfg.Namespace, err)
		}
		defer func() { _ = ns.Close() }() // the sockets stay in the namespace
	}
	events, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("kernel: subscribing to changes of routes%s: %w", in(cfg), err)
	}
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		events.Close()
		return nil, fmt.Errorf("kernel: opening a netlink socket%s: %w", in(cfg), err)
	}
	s := &Source{cfg: cfg, handle: handle, events: events, dirty: make(chan struct{}, 1)}
	if err := s.read(); err != nil {
		events.Close()
		handle.Close()
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.wg.Go(func() { s.listen(ctx) })
	s.wg.Go(func() { routing.Follow(ctx, s.dirty, s.read, cfg.OnError) })
	return s, nil
}

func in(cfg Config) string {
	if cfg.Namespace == "" {
		return ""
	}
	return " in " + cfg.Namespace
}

// Close ends the source.
func (s *Source) Close() error {
	s.once.Do(func() {
		s.stop()
		s.events.Close()
		s.wg.Wait()
		s.handle.Close()
	})
	return s.Table.Close()
}

// listen turns notifications, and their loss, into tokens in dirty.
func (s *Source) listen(ctx context.Context) {
	for {
		_, _, err := s.events.Receive()
		if ctx.Err() != nil { // closing the socket makes Receive fail in various ways
			return
		}
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
			select {
			case s.dirty <- struct{}{}:
			default:
			}
		default:
			s.cfg.OnError(fmt.Errorf("kernel: receiving notifications%s: %w", in(s.cfg), err))
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	}
}

// read updates the table from the kernel's.
func (s *Source) read() error {
	for range maxInterrupted {
		err := s.readOnce()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return fmt.Errorf("kernel: routes%s change faster than they can be read", in(s.cfg))
}

func (s *Source) readOnce() error {
	links, err := s.handle.LinkList()
	if err != nil {
		return fmt.Errorf("kernel: reading interfaces%s: %w", in(s.cfg), err)
	}
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	list, err := s.handle.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: s.cfg.Table}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("kernel: reading routes%s: %w", in(s.cfg), err)
	}
	var neighbors []routing.Neighbor
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		known, err := s.handle.NeighList(0, family)
		if err != nil {
			return fmt.Errorf("kernel: reading neighbors%s: %w", in(s.cfg), err)
		}
		for i := range known {
			if n, ok := neighbor(&known[i], names); ok {
				neighbors = append(neighbors, n)
			}
		}
	}
	s.Replace(best(list, names), neighbors)
	return nil
}

// best returns the effective route for each prefix: the one with the lowest metric, and the first
// among equals.
func best(list []netlink.Route, names map[int]string) []routing.Route {
	metric := map[netip.Prefix]int{}
	hops := map[netip.Prefix]routing.Hops{}
	for i := range list {
		r := &list[i]
		prefix, ok := destination(r)
		if !ok || r.Tos != 0 || prefix.Addr().IsMulticast() {
			continue
		}
		if m, have := metric[prefix]; have && m <= r.Priority {
			continue
		}
		switch r.Type {
		case unix.RTN_UNICAST:
			set := nextHops(r, names)
			if len(set) == 0 {
				continue // all its links are down: use the next metric
			}
			hops[prefix] = set
		case unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT:
			hops[prefix] = nil
		default:
			continue
		}
		metric[prefix] = r.Priority
	}
	routes := make([]routing.Route, 0, len(hops))
	for p, set := range hops {
		routes = append(routes, routing.Route{Prefix: p, Hops: set})
	}
	return routes
}

func destination(r *netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), true
	}
	a, ok := address(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a, bits), ok
}

func nextHops(r *netlink.Route, names map[int]string) routing.Hops {
	var hops []routing.NextHop
	add := func(index, flags int, gw net.IP, via netlink.Destination) {
		if flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0 || names[index] == "" {
			return
		}
		if v, ok := via.(*netlink.Via); ok { // an IPv6 neighbor for IPv4
			gw = v.Addr
		}
		a, _ := address(gw) // invalid: the destination is on the link
		hops = append(hops, routing.NextHop{Addr: a, Port: names[index]})
	}
	for _, h := range r.MultiPath {
		add(h.LinkIndex, h.Flags, h.Gw, h.Via)
	}
	if len(r.MultiPath) == 0 {
		add(r.LinkIndex, r.Flags, r.Gw, r.Via)
	}
	return routing.NewHops(hops...)
}

// neighbor converts an entry; it reports whether it can be used for sending.
func neighbor(n *netlink.Neigh, names map[int]string) (routing.Neighbor, bool) {
	const usable = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT
	a, ok := address(n.IP)
	name := names[n.LinkIndex]
	if !ok || n.State&usable == 0 || len(n.HardwareAddr) != 6 || name == "" || a.IsMulticast() {
		return routing.Neighbor{}, false
	}
	m := routing.MAC(n.HardwareAddr)
	return routing.Neighbor{NeighborKey: routing.NeighborKey{Addr: a, Port: name}, MAC: m}, m.IsStation()
}

func address(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}
