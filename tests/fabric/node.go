package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/internal/hostload"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

// A node is a switch, and where its agent is.
type node struct {
	Switch
	f       *Fabric
	number  int // from 1
	sockets map[uint16]socket
	links   []*Wire // to switches; port p of its own is links[p-first]
	hosts   []*host
	target  string // the switch's P4Runtime
	listen  string // the agent's gRPC
	bgp     netip.Addr
	speaker *lasting
	files   identity.Files
	log     *slog.Logger
	reader  *p4rt.Client
	client  *grpc.ClientConn // as an administrator

	held     net.Listener // keeps the agent's address until it is started first
	embedded *lab.Switch  // nil: the switch is stopped
	agent    *running     // nil: stopped
}

// mac is the address of one of the node's ports; of port 0 that of the router.
func (n *node) mac(port uint16) switchspec.MAC {
	return switchspec.MAC{0x02, 0xfe, byte(n.number >> 8), byte(n.number), byte(port >> 8), byte(port)}
}

// address is the router's.
func (n *node) address() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 255, byte(n.number >> 8), byte(n.number)})
}

// asn is a private AS number of the node's own; its thousands tell the tier.
func (n *node) asn() uint32 { return 4200000000 + uint32(n.Tier)*10000 + uint32(n.number) }

// gateway is the first address of the prefix.
func (n *node) gateway() netip.Addr { return n.Prefix.Addr().Next() }

// neighbor is the node at the other end of a wire.
func (n *node) neighbor(w *Wire) *node {
	if w.A.Node == n.Name {
		return n.f.nodes[w.B.Node]
	}
	return n.f.nodes[w.A.Node]
}

// port is the node's port on a wire.
func (n *node) port(w *Wire) uint16 {
	if w.A.Node == n.Name {
		return w.A.Port
	}
	return w.B.Port
}

// startSwitch starts the node's switch; the first time at any address, then there.
func (n *node) startSwitch() error {
	l, err := net.Listen("tcp", n.target)
	if err != nil {
		return err
	}
	n.target = l.Addr().String()
	sw, err := lab.OpenSwitch(l, uint64(n.number), n.log.With("part", "switch"))
	if err != nil {
		return err
	}
	for number, s := range n.sockets {
		if err := sw.Attach(number, memnet.Port{Plug: s.plug()}); err != nil {
			return errors.Join(err, sw.Close())
		}
	}
	n.embedded = sw
	return nil
}

func (n *node) stopSwitch() {
	if n.embedded != nil {
		_ = n.embedded.Close()
		n.embedded = nil
	}
}

// running is an agent that runs.
type running struct {
	*lab.Part
	conns *connections
	dead  atomic.Bool // killed: its state is no longer written
}

// startAgent makes an agent and runs it.
func (n *node) startAgent(ctx context.Context) error {
	r := &running{conns: &connections{}}
	cfg := n.config()
	l := n.held
	n.held = nil
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", n.listen); err != nil {
			return err
		}
	}
	o := switchagent.Options{Logger: n.log, Version: "test", Listener: r.conns.listener(l), Busy: new(hostload.Meter).Busy,
		DialSwitch: []grpc.DialOption{grpc.WithContextDialer(r.conns.dial)},
		DialPeers:  []grpc.DialOption{grpc.WithContextDialer(r.conns.dial)},
		OpenStore: func(ctx context.Context, path string) (switchagent.Store, error) {
			s, err := store.Open(ctx, path, store.Options{})
			if err != nil {
				return nil, err
			}
			return &mortal{Store: s, dead: &r.dead}, nil
		}}
	if n.speaker != nil {
		o.OpenBGP = n.speaker.open
	}
	if n.f.spec.Agent != nil {
		n.f.spec.Agent(n.Name, cfg, &o)
	}
	a, err := switchagent.New(ctx, cfg, o)
	if err != nil {
		return errors.Join(fmt.Errorf("agent of %s: %w", n.Name, err), l.Close())
	}
	r.Part = lab.Run("agent of "+n.Name, a.Ready(), a.Run, func(error) {}) // End tells
	n.agent = r
	return nil
}

// stopAgent ends the agent; if kill, as a crash does: from one moment on it
// sends and stores nothing.
func (n *node) stopAgent(kill bool) error {
	r := n.agent
	if r == nil {
		return nil
	}
	n.agent = nil
	if kill {
		r.dead.Store(true)
		r.conns.cut()
	}
	return r.End()
}

// errDead is what a killed agent gets from its store.
var errDead = errors.New("the agent was killed")

// A mortal store takes nothing from an agent that is dead.
type mortal struct {
	*store.Store
	dead *atomic.Bool
}

func (m *mortal) Commit(ctx context.Context, edits ...store.Edit) error {
	if m.dead.Load() {
		return errDead
	}
	return m.Store.Commit(ctx, edits...)
}

// connections are an agent's, so that they can be cut at once.
type connections struct {
	mu    sync.Mutex
	open  map[net.Conn]bool
	ended bool
}

func (c *connections) add(conn net.Conn) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, errors.Join(errDead, conn.Close())
	}
	if c.open == nil {
		c.open = map[net.Conn]bool{}
	}
	k := &known{conn, c}
	c.open[k] = true
	return k, nil
}

func (c *connections) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for conn := range c.open {
		_ = conn.(*known).Conn.Close()
	}
}

func (c *connections) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return c.add(conn)
}

func (c *connections) listener(l net.Listener) net.Listener { return &accepting{l, c} }

type accepting struct {
	net.Listener
	c *connections
}

func (l *accepting) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if conn, err = l.c.add(conn); err == nil {
			return conn, nil
		}
	}
}

// A known connection is forgotten when it is closed.
type known struct {
	net.Conn
	c *connections
}

func (k *known) Close() error {
	k.c.mu.Lock()
	delete(k.c.open, k)
	k.c.mu.Unlock()
	return k.Conn.Close()
}

// config is what a person would write for the node's agent.
func (n *node) config() *config.Config {
	s := n.f.spec
	c := &config.Config{Name: n.Name, Address: n.address(), MAC: n.mac(0), Programmable: n.Programmable,
		P4Runtime: config.P4Runtime{Target: n.target, DeviceID: uint64(n.number)}, Listen: n.listen,
		TLS:     config.TLS(n.files),
		State:   filepath.Join(n.f.stateDir, n.Name+".db"),
		Hello:   config.Hello{Interval: s.Hello},
		Routing: config.Routing{Source: s.Routing, Topology: n.f.topology, Settle: s.Settle}}
	if s.Routing == BGP {
		c.Routing.BGP = config.Speaker{ASN: n.asn(), Listen: []netip.Addr{n.bgp}, Port: n.f.bgpPort}
	}
	if n.Prefix.IsValid() {
		c.Prefixes = []netip.Prefix{n.Prefix}
	}
	for _, h := range n.hosts {
		c.Ports = append(c.Ports, config.Port{Port: h.port, MAC: n.mac(h.port)})
	}
	known := map[*node]bool{n: true}
	add := func(o *node, bgp *config.Peer) {
		if known[o] {
			return
		}
		known[o] = true
		x := config.Switch{Name: o.Name, Programmable: o.Programmable, Addresses: []netip.Addr{o.address()}, BGP: bgp}
		if o.Programmable {
			x.Agent = o.listen
		}
		if o.Prefix.IsValid() {
			x.Prefixes = []netip.Prefix{o.Prefix}
		}
		c.Switches = append(c.Switches, x)
	}
	for _, w := range n.links {
		o := n.neighbor(w)
		c.Ports = append(c.Ports, config.Port{Port: n.port(w), To: o.Name, MAC: n.mac(n.port(w)), Hello: true})
		var peer *config.Peer
		if s.Routing == BGP {
			peer = &config.Peer{Address: o.bgp, ASN: o.asn(), Port: n.f.bgpPort, Local: n.bgp, Passive: n.number > o.number}
		}
		add(o, peer)
	}
	if n.f.lookAhead { // whose packets come out of a switch that is not programmable
		for _, o := range n.f.order {
			if o.Prefix.IsValid() {
				add(o, nil)
			}
		}
	}
	return c
}
