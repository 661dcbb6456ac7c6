// Package bgp learns routes by BGP from neighboring switches and advertises the prefixes behind
// this one, as in RFC 7938: external sessions between private AS numbers, with multipath over all
// AS paths of the same length.
//
// It is the only package that imports GoBGP, which runs inside the process. A [Source] implements
// routing.Source; its next hops have addresses but no ports.
//
// # Restart
//
// A speaker that stops with [Source.Suspend] sends no NOTIFICATION: peers that negotiated graceful
// restart (RFC 4724) keep its routes for Config.Restart. Its successor calls [Source.Resume].
// Speakers always act as helpers for restarting peers and, by RFC 8538, for peers that fall silent.
//
// GoBGP keeps some options in global variables: several speakers in one process are safe only if
// all are opened before sessions are added.
package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/server"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/mcrdma/mcrdma/internal/routing"
)

// Port is BGP's TCP port.
const Port = 179

// gracefulShutdown is the community of RFC 8326: routes with it will be withdrawn soon, and are
// used only if there are no others.
const gracefulShutdown = "65535:0"

const maxRestart = 4095 * time.Second // 12 bits

// Config configures the local speaker.
type Config struct {
	ASN      uint32     // private: 64512–65534 and 4200000000–4294967294
	RouterID netip.Addr // IPv4; unique in the fabric
	// Listen are the addresses at which to accept sessions, all at port ListenPort. If there are
	// none, or the port is 0, sessions are only opened, not accepted.
	Listen     []netip.Addr
	ListenPort uint16
	// DrainTime is how long Close waits between asking the neighbors to use other paths and ending
	// the sessions; 0: it does not wait.
	DrainTime time.Duration
	// Restart is how long peers are asked to keep this speaker's routes when its sessions break; in
	// whole seconds, up to 4095 s. 0: not at all.
	Restart time.Duration
	Logger  *slog.Logger // nil: no log
}

// A Peer is a neighboring speaker.
type Peer struct {
	Addr    netip.Addr
	ASN     uint32
	Port    uint16     // 0: 179
	Local   netip.Addr // own address of the session; invalid: chosen by the system
	Passive bool       // wait for the peer to open the session
	// HoldTime is the silence after which the session ends; 0: 9 s. At least 3 s, in whole seconds.
	// Keepalives are sent every third of it.
	HoldTime time.Duration
	// NextHop is announced to the peer as the next hop; invalid: the session's own address.
	NextHop netip.Addr
	// Hops is the distance to the peer in links; 0: 1. Packets from other distances are not
	// accepted.
	Hops uint8
}

// A Source is a BGP speaker. Besides being a routing.Source, it announces prefixes.
type Source struct {
	routing.Table
	cfg     Config
	server  *server.BgpServer
	cancel  context.CancelFunc
	once    sync.Once
	wg      sync.WaitGroup
	changes changes

	mu   sync.Mutex
	own  map[netip.Prefix]bool
	peer map[netip.Addr]Peer
	hops map[netip.Addr]netip.Addr // next hops in GoBGP's policy, by peer
	down map[netip.Addr]time.Time  // since when sessions are not established; zero: they are

	reading   sync.Mutex   // one read at a time, so that the last one is the latest
	stale     atomic.Bool  // there are stale routes of restarting peers
	staleTime atomic.Int64 // a time.Duration, see sweep
}

var _ routing.Source = (*Source)(nil)

var ipv4 = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}

// GoBGP 3.37 panics on some malformed attributes that routes of IPv4 do not need. Without flags that
// an attribute can have, it treats their routes as withdrawn instead of parsing them.
func init() {
	for _, t := range []bgp.BGPAttrType{bgp.BGP_ATTR_TYPE_MP_REACH_NLRI, bgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI, bgp.BGP_ATTR_TYPE_PREFIX_SID} {
		bgp.PathAttrFlags[t] = 0
	}
}

// Open starts a speaker without sessions or prefixes.
func Open(ctx context.Context, cfg Config) (*Source, error) {
	if cfg.ASN == 0 || cfg.ASN == 1<<32-1 || cfg.ASN == 23456 || cfg.ASN == 65535 {
		return nil, fmt.Errorf("bgp: AS number %d is reserved: use a private one, such as 4200000001", cfg.ASN)
	}
	if !cfg.RouterID.Is4() || cfg.RouterID.IsUnspecified() {
		return nil, fmt.Errorf("bgp: router ID %v: want an IPv4 address, unique in the fabric", cfg.RouterID)
	}
	if cfg.Restart < 0 || cfg.Restart > maxRestart || cfg.Restart%time.Second != 0 {
		return nil, fmt.Errorf("bgp: restart time %v: want whole seconds, up to %v (RFC 4724)", cfg.Restart, maxRestart)
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &Source{cfg: cfg, own: map[netip.Prefix]bool{}, peer: map[netip.Addr]Peer{}, hops: map[netip.Addr]netip.Addr{}, down: map[netip.Addr]time.Time{},
		changes: changes{paths: map[netip.Prefix]bool{}, wake: make(chan struct{}, 1)}}
	s.staleTime.Store(int64(staleTime))
	s.server = server.NewBgpServer(server.LoggerOption(logger{cfg.Logger}))
	go s.server.Serve() // ends with the process: GoBGP cannot stop it
	global := &api.Global{Asn: cfg.ASN, RouterId: cfg.RouterID.String(), ListenPort: -1, UseMultiplePaths: true}
	if cfg.ListenPort != 0 && len(cfg.Listen) > 0 {
		global.ListenPort = int32(cfg.ListenPort)
		for _, a := range cfg.Listen {
			global.ListenAddresses = append(global.ListenAddresses, a.String())
		}
	}
	if err := s.server.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("another BGP speaker listens there (ss -ltnp shows which); stop it, or choose another routing.bgp.listen or port: %w", err)
		}
		return nil, fmt.Errorf("bgp: starting the speaker (AS %d, port %d): %w", cfg.ASN, cfg.ListenPort, err)
	}
	run, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if err := errors.Join(s.deferToOthers(ctx), s.watch(run)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.wg.Go(func() { s.follow(run) })
	s.wg.Go(func() { s.sweep(run) })
	return s, nil
}

// deferToOthers installs the receiving side of RFC 8326: the lowest preference for routes that will
// be withdrawn soon.
func (s *Source) deferToOthers(ctx context.Context) error {
	const name = "graceful-shutdown"
	err := s.server.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: &api.DefinedSet{
		DefinedType: api.DefinedType_COMMUNITY, Name: name, List: []string{"^" + gracefulShutdown + "$"}}})
	if err == nil {
		err = s.assign(ctx, api.PolicyDirection_IMPORT, &api.Statement{Name: name + "-in",
			Conditions: &api.Conditions{CommunitySet: &api.MatchSet{Name: name}},
			Actions:    &api.Actions{RouteAction: api.RouteAction_ACCEPT, LocalPref: &api.LocalPrefAction{Value: 1}}}) // 0 would mean "unchanged"
	}
	if err != nil {
		return fmt.Errorf("bgp: installing the policy for graceful shutdown: %w", err)
	}
	return nil
}

// assign attaches a statement to the policy of one direction.
func (s *Source) assign(ctx context.Context, dir api.PolicyDirection, st *api.Statement) error {
	policy := &api.Policy{Name: st.Name, Statements: []*api.Statement{st}}
	if err := s.server.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy}); err != nil {
		return err
	}
	return s.server.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: dir, Policies: []*api.Policy{{Name: policy.Name}}, DefaultAction: api.RouteAction_ACCEPT}})
}

// AddPeer adds a peer and keeps a session with it.
func (s *Source) AddPeer(ctx context.Context, p Peer) error { return s.addPeer(ctx, p, false) }

func (s *Source) addPeer(ctx context.Context, p Peer, restarting bool) error {
	if p.ASN == s.cfg.ASN {
		return fmt.Errorf("bgp: peer %v has our own AS number %d: give each switch one of its own", p.Addr, p.ASN)
	}
	if !p.Addr.IsValid() || p.ASN == 0 {
		return fmt.Errorf("bgp: peer %v of AS %d: needs an address and an AS number", p.Addr, p.ASN)
	}
	hold := uint64(max(cmp.Or(p.HoldTime, 9*time.Second), 0) / time.Second)
	if hold < 3 {
		return fmt.Errorf("bgp: peer %v: hold time %v: want 3s or more (RFC 4271)", p.Addr, p.HoldTime)
	}
	peer := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: p.Addr.String(), PeerAsn: p.ASN},
		Transport: &api.Transport{PassiveMode: p.Passive, RemotePort: uint32(p.Port)},
		Timers: &api.Timers{Config: &api.TimersConfig{HoldTime: hold, KeepaliveInterval: max(hold/3, 1),
			ConnectRetry: 1, IdleHoldTimeAfterReset: 1}},
		GracefulRestart: &api.GracefulRestart{Enabled: true, HelperOnly: s.cfg.Restart == 0, RestartTime: uint32(s.cfg.Restart / time.Second),
			DeferralTime: uint32(s.deferral() / time.Second), LocalRestarting: restarting},
	}
	if p.Local.IsValid() {
		peer.Transport.LocalAddress = p.Local.String()
	}
	if p.Hops > 1 {
		peer.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(p.Hops)}
	}
	peer.AfiSafis = []*api.AfiSafi{{Config: &api.AfiSafiConfig{Family: ipv4, Enabled: true},
		MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: s.cfg.Restart > 0}}}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.announceHop(ctx, p); err != nil {
		return fmt.Errorf("bgp: the next hop for peer %v: %w", p.Addr, err)
	}
	if err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: peer}); err != nil {
		return fmt.Errorf("bgp: adding peer %v: %w", p.Addr, err)
	}
	s.peer[p.Addr], s.down[p.Addr] = p, time.Now()
	return nil
}

// announceHop installs the policy that sets the next hop in announcements to a peer. It stays when
// the peer is removed. The caller holds mu.
func (s *Source) announceHop(ctx context.Context, p Peer) error {
	switch has := s.hops[p.Addr]; {
	case has == p.NextHop:
		return nil
	case has.IsValid():
		return fmt.Errorf("it was %v and cannot become %v", has, p.NextHop)
	}
	name := "next-hop-" + p.Addr.String()
	err := s.server.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: &api.DefinedSet{
		DefinedType: api.DefinedType_NEIGHBOR, Name: name, List: []string{netip.PrefixFrom(p.Addr, p.Addr.BitLen()).String()}}})
	if err == nil {
		err = s.assign(ctx, api.PolicyDirection_EXPORT, &api.Statement{Name: name,
			Conditions: &api.Conditions{NeighborSet: &api.MatchSet{Name: name}},
			Actions:    &api.Actions{Nexthop: &api.NexthopAction{Address: p.NextHop.String()}}})
	}
	if err == nil {
		s.hops[p.Addr] = p.NextHop
	}
	return err
}

// deferral returns how long a restarted speaker waits for its peers' routes before it sends its
// own: the Selection_Deferral_Timer of RFC 4724 §4.1.
func (s *Source) deferral() time.Duration {
	return max(s.cfg.Restart/2, time.Second).Truncate(time.Second)
}

// RemovePeer ends a session; its routes are withdrawn at once.
func (s *Source) RemovePeer(ctx context.Context, addr netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: addr.String()}); err != nil {
		return fmt.Errorf("bgp: removing peer %v: %w", addr, err)
	}
	delete(s.peer, addr)
	delete(s.down, addr)
	return nil
}

// Announce announces a prefix to all peers.
func (s *Source) Announce(ctx context.Context, p netip.Prefix) error {
	path, err := ownPath(p)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.server.AddPath(ctx, &api.AddPathRequest{Path: path}); err != nil {
		return fmt.Errorf("bgp: announcing %v: %w", p, err)
	}
	s.own[p.Masked()] = true
	return nil
}

// Withdraw withdraws an announced prefix.
func (s *Source) Withdraw(ctx context.Context, p netip.Prefix) error {
	path, err := ownPath(p)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.own[p.Masked()] {
		return nil
	}
	if err := s.server.DeletePath(ctx, &api.DeletePathRequest{Path: path}); err != nil {
		return fmt.Errorf("bgp: withdrawing %v: %w", p, err)
	}
	delete(s.own, p.Masked())
	return nil
}

func ownPath(p netip.Prefix) (*api.Path, error) {
	if !p.Addr().Is4() {
		return nil, fmt.Errorf("bgp: %v is not a prefix of IPv4", p)
	}
	p = p.Masked()
	// These three messages hold only numbers and ASCII: marshalling cannot fail.
	nlri, _ := anypb.New(&api.IPAddressPrefix{Prefix: p.Addr().String(), PrefixLen: uint32(p.Bits())})
	origin, _ := anypb.New(&api.OriginAttribute{Origin: 0})
	hop, _ := anypb.New(&api.NextHopAttribute{NextHop: "0.0.0.0"}) // the session's own address
	return &api.Path{Family: ipv4, Nlri: nlri, Pattrs: []*anypb.Any{origin, hop}}, nil
}

// Close asks the peers to prefer other paths (RFC 8326), waits for DrainTime, and ends the
// sessions.
func (s *Source) Close() error {
	var err error
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTime+10*time.Second)
		defer cancel()
		if s.cfg.DrainTime > 0 {
			err = s.drain(ctx)
			select {
			case <-time.After(s.cfg.DrainTime):
			case <-ctx.Done():
			}
		}
		s.quiesce(ctx)
		err = errors.Join(err, s.stop(ctx))
	})
	return errors.Join(err, s.Table.Close())
}

// quiesce ends all sessions, and waits briefly for that, because GoBGP must not be stopped while it
// receives.
func (s *Source) quiesce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s.mu.Lock()
	for addr := range s.peer {
		_ = s.server.DisablePeer(ctx, &api.DisablePeerRequest{Address: addr.String()}) // on error the peer is stopped as it is
	}
	s.mu.Unlock()
	for {
		idle := true
		err := s.server.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
			idle = idle && p.GetState().GetSessionState() == api.PeerState_IDLE
		})
		if err != nil || idle {
			return
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Source) stop(ctx context.Context) error {
	s.cancel()
	s.wg.Wait()
	return s.server.StopBgp(ctx, &api.StopBgpRequest{})
}

// drain announces all prefixes again, with the graceful shutdown community.
func (s *Source) drain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.assign(ctx, api.PolicyDirection_EXPORT, &api.Statement{Name: "graceful-shutdown-out",
		Conditions: &api.Conditions{},
		Actions: &api.Actions{RouteAction: api.RouteAction_ACCEPT,
			Community: &api.CommunityAction{Type: api.CommunityAction_ADD, Communities: []string{gracefulShutdown}}}})
	for addr := range s.peer {
		err = errors.Join(err, s.server.ResetPeer(ctx, &api.ResetPeerRequest{
			Address: addr.String(), Soft: true, Direction: api.ResetPeerRequest_OUT}))
	}
	if err != nil {
		return fmt.Errorf("bgp: announcing graceful shutdown: %w", err)
	}
	return nil
}
