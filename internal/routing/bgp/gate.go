package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

const (
	gateTime = 10 * time.Second // maximum wait of a gate
	gateHold = 65535            // hold time in seconds, without keepalives; GoBGP requires one
	// lookEvery is the interval at which the state of sessions is polled.
	lookEvery = 50 * time.Millisecond
)

// A gate is a local peer at a loopback address that sends no End-of-RIB while it is shut. It delays
// GoBGP's announcements: after a restart GoBGP sends its routes as soon as all peers with
// established sessions have sent theirs, so without a gate right after the first session. The
// gate's session is established before any other.
type gate struct {
	s      *Source
	addr   netip.Addr
	listen net.Listener
	conn   net.Conn
	read   chan struct{} // closed when the reader has ended
}

// openGate returns a shut gate. After an error it is nil, and the methods of a nil gate do nothing.
func (s *Source) openGate(ctx context.Context) (*gate, error) {
	ctx, cancel := context.WithTimeout(ctx, gateTime)
	defer cancel()
	g := &gate{s: s, addr: s.freeLoopback(), read: make(chan struct{})}
	var err error
	if g.listen, err = new(net.ListenConfig).Listen(ctx, "tcp", netip.AddrPortFrom(g.addr, 0).String()); err != nil {
		return nil, fmt.Errorf("bgp: waiting for all neighbors: %w", err)
	}
	if err = s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: g.peer()}); err == nil {
		err = g.greet(ctx)
	}
	if err != nil {
		if g.conn == nil {
			close(g.read)
		}
		return nil, fmt.Errorf("bgp: waiting for all neighbors: %w", errors.Join(err, g.close()))
	}
	return g, nil
}

// freeLoopback returns a random loopback address that no peer uses.
func (s *Source) freeLoopback() netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n := rand.Uint32N(1<<24 - 1<<16) //nolint:gosec // not a secret
		a := netip.AddrFrom4([4]byte{127, byte(n>>16) + 1, byte(n >> 8), byte(n) | 1})
		if _, taken := s.peer[a]; !taken && a != s.cfg.RouterID {
			return a
		}
	}
}

// asn returns a private AS number other than the speaker's own.
func (g *gate) asn() uint16 {
	if g.s.cfg.ASN == 64512 {
		return 64513
	}
	return 64512
}

func (g *gate) peer() *api.Peer {
	return &api.Peer{
		Conf:            &api.PeerConf{NeighborAddress: g.addr.String(), PeerAsn: uint32(g.asn())},
		Transport:       &api.Transport{RemotePort: uint32(g.listen.Addr().(*net.TCPAddr).Port)}, //nolint:gosec // of 16 bits
		Timers:          &api.Timers{Config: &api.TimersConfig{HoldTime: gateHold, ConnectRetry: 1}},
		GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: 1, LocalRestarting: true},
		AfiSafis: []*api.AfiSafi{{Config: &api.AfiSafiConfig{Family: ipv4, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}}}},
	}
}

// greet opens the session, over a connection that GoBGP makes.
func (g *gate) greet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = g.listen.Close() })
	conn, err := g.listen.Accept()
	if !stop() || err != nil {
		if err == nil {
			_ = conn.Close()
		}
		return errors.Join(err, context.Cause(ctx))
	}
	g.conn = conn
	caps := []bgp.ParameterCapabilityInterface{bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC),
		bgp.NewCapGracefulRestart(false, false, 1, []*bgp.CapGracefulRestartTuple{bgp.NewCapGracefulRestartTuple(bgp.RF_IPv4_UC, true)})}
	open := bgp.NewBGPOpenMessage(g.asn(), gateHold, g.addr.String(), []bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(caps)})
	err = errors.Join(conn.SetDeadline(time.Now().Add(gateTime)), g.send(open), g.expect(bgp.BGP_MSG_OPEN),
		g.send(bgp.NewBGPKeepAliveMessage()), g.expect(bgp.BGP_MSG_KEEPALIVE), conn.SetDeadline(time.Time{}))
	go func() {
		defer close(g.read)
		_, _ = io.Copy(io.Discard, conn) // until it is closed
	}()
	return err
}

func (g *gate) send(m *bgp.BGPMessage) error {
	b, err := m.Serialize()
	if err == nil {
		_, err = g.conn.Write(b)
	}
	return err
}

// expect reads a message of the given type.
func (g *gate) expect(kind uint8) error {
	var head [bgp.BGP_HEADER_LENGTH]byte
	if _, err := io.ReadFull(g.conn, head[:]); err != nil {
		return err
	}
	var h bgp.BGPHeader
	if err := h.DecodeFromBytes(head[:]); err != nil {
		return err
	}
	if h.Type != kind {
		return fmt.Errorf("message of type %d, want %d", h.Type, kind)
	}
	_, err := io.CopyN(io.Discard, g.conn, int64(h.Len)-bgp.BGP_HEADER_LENGTH)
	return err
}

// open sends End-of-RIB, and waits until GoBGP has read it.
func (g *gate) open(ctx context.Context) error {
	if g == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, gateTime)
	defer cancel()
	if err := g.send(bgp.NewEndOfRib(bgp.RF_IPv4_UC)); err != nil {
		return fmt.Errorf("bgp: telling routes after a restart: %w", err)
	}
	return g.s.await(ctx, func(told map[string]bool) bool { return told[g.addr.String()] })
}

// close removes the gate.
func (g *gate) close() error {
	if g == nil {
		return nil
	}
	err := g.s.server.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: g.addr.String()})
	_ = g.listen.Close()
	if g.conn != nil {
		_ = g.conn.Close()
	}
	<-g.read
	if err != nil {
		return fmt.Errorf("bgp: after a restart: %w", err)
	}
	return nil
}

// await waits until a condition holds for the set of peers, by address, that have sent all their
// routes.
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

// hasTold reports whether a peer has sent all its routes, as far as GoBGP knows.
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
