package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// A Fabric runs. Its methods fail the test if they cannot do what they should.
// Except where they say otherwise, they are for the test's goroutine.
type Fabric struct {
	t         testing.TB
	spec      Spec
	nodes     map[string]*node
	order     []*node // as in the Spec
	hosts     map[string]*host
	byAddr    map[netip.Addr]*host
	hostList  []*host
	wires     []*Wire
	tap       atomic.Pointer[tap]
	bgpPort   uint16
	topology  string // the file, for static routes
	stateDir  string
	lookAhead bool // not all switches are programmable
	ca        *identitytest.CA
	rand      *rand.Rand
	lastMCID  uint32

	conns []*grpc.ClientConn

	listening sync.Mutex
	listeners map[*listener]bool
}

// Start starts a fabric, and waits until all agents are ready and all hosts can
// reach each other.
func Start(t testing.TB, s Spec) *Fabric {
	t.Helper()
	if s.Routing == "" {
		s.Routing = BGP
	}
	if s.Hello == 0 {
		s.Hello = defaultHello
	}
	if s.Settle == 0 && s.Routing == BGP {
		s.Settle = time.Second
	}
	f := &Fabric{t: t, spec: s, nodes: map[string]*node{}, hosts: map[string]*host{}, byAddr: map[netip.Addr]*host{},
		stateDir: s.StateDir, rand: rand.New(rand.NewPCG(1, 2)), listeners: map[*listener]bool{}}
	if f.stateDir == "" {
		f.stateDir = t.TempDir()
	}
	if s.TLS {
		f.ca = identitytest.New(t)
	}
	t.Cleanup(f.close)
	logs := Logs(t)
	for i, sw := range s.Switches {
		n := &node{Switch: sw, f: f, number: i + 1, sockets: map[uint16]socket{}, target: "127.0.0.1:0",
			log: slog.New(logs).With("switch", sw.Name)}
		f.nodes[sw.Name] = n
		f.order = append(f.order, n)
		f.lookAhead = f.lookAhead || !sw.Programmable
		if f.ca != nil {
			n.files = f.ca.Switch(sw.Name)
		}
	}
	f.cable()
	f.must(f.openSwitches())
	f.writeTopology()
	begun := time.Now()
	for _, n := range f.order {
		f.must(n.startAgent(t.Context()))
	}
	f.Ready()
	f.Converged()
	t.Logf("fabric: %d switches, %d links, %d hosts: converged in %v", len(f.order), len(s.Links), len(s.Hosts),
		time.Since(begun).Round(time.Millisecond))
	return f
}

func (f *Fabric) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// cable makes all wires, and the hosts. A switch's ports are 1, 2, … for its hosts,
// and then for its links in the order of the Spec.
func (f *Fabric) cable() {
	socketAt := func(name string) (*node, End) {
		n := f.nodes[name]
		if n == nil {
			f.t.Fatalf("there is no switch %q", name)
		}
		return n, End{name, uint16(len(n.sockets) + 1)}
	}
	for _, spec := range f.spec.Hosts {
		n, at := socketAt(spec.Switch)
		w := newWire(at, End{Node: spec.Name}, &f.tap)
		n.sockets[at.Port] = socket{w, 0}
		h := newHost(f, n, spec, at.Port, w)
		n.hosts = append(n.hosts, h)
		f.wires, f.hostList = append(f.wires, w), append(f.hostList, h)
		f.hosts[spec.Name], f.byAddr[spec.Addr] = h, h
	}
	for _, l := range f.spec.Links {
		a, endA := socketAt(l.A)
		b, endB := socketAt(l.B)
		w := newWire(endA, endB, &f.tap)
		a.sockets[endA.Port], b.sockets[endB.Port] = socket{w, 0}, socket{w, 1}
		a.links, b.links = append(a.links, w), append(b.links, w)
		f.wires = append(f.wires, w)
	}
}

// openSwitches starts all that agents find when they start: switches, the addresses
// where agents will be, and, before any of them has sessions, BGP speakers.
func (f *Fabric) openSwitches() error {
	for _, n := range f.order {
		if err := n.startSwitch(); err != nil {
			return err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		n.held, n.listen = l, l.Addr().String()
		if n.reader, err = p4rt.New(p4rt.Config{Target: n.target, DeviceID: uint64(n.number)}); err != nil {
			return err
		}
		n.client = f.connect(n, identity.Identity{Role: identity.Admin, Name: "test"})
	}
	if f.spec.Routing != BGP {
		return nil
	}
	for _, n := range f.order {
		n.bgp = testenv.Loopback()
	}
	l, err := net.Listen("tcp", net.JoinHostPort(f.order[0].bgp.String(), "0"))
	if err != nil {
		return err
	}
	f.bgpPort = uint16(l.Addr().(*net.TCPAddr).Port)
	if err := l.Close(); err != nil {
		return err
	}
	if f.spec.OwnSpeakers {
		return nil
	}
	for _, n := range f.order {
		s, err := bgp.Open(f.t.Context(), bgp.Config{ASN: n.asn(), RouterID: n.address(), Listen: []netip.Addr{n.bgp},
			ListenPort: f.bgpPort, Logger: n.log.With("part", "bgp")})
		if err != nil {
			return err
		}
		n.speaker = &lasting{Source: s}
	}
	return nil
}

// writeTopology writes the file for static routes.
func (f *Fabric) writeTopology() {
	if f.spec.Routing != Static {
		return
	}
	var t topology.Topology
	for _, n := range f.order {
		sw := topology.Switch{Name: n.Name, Address: n.address(), MAC: routing.MAC(n.mac(0)), Programmable: n.Programmable}
		if n.Prefix.IsValid() {
			sw.Prefixes = []netip.Prefix{n.Prefix}
		}
		t.Switches = append(t.Switches, sw)
	}
	end := func(e End) topology.End {
		return topology.End{Node: e.Node, Port: uint32(e.Port), MAC: routing.MAC(f.nodes[e.Node].mac(e.Port))}
	}
	for _, w := range f.wires {
		if w.B.Port != 0 {
			t.Links = append(t.Links, topology.Link{A: end(w.A), B: end(w.B)})
		}
	}
	text, err := json.Marshal(&t)
	f.must(err)
	f.topology = filepath.Join(f.stateDir, "fabric.yaml")
	f.must(os.WriteFile(f.topology, text, 0o600))
}

// close ends everything, agents first.
func (f *Fabric) close() {
	var wg sync.WaitGroup
	for _, n := range f.order {
		wg.Go(func() {
			if err := n.stopAgent(false); err != nil {
				f.t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, n := range f.order {
		if n.speaker != nil {
			if err := n.speaker.Source.Close(); err != nil {
				f.t.Errorf("speaker of %s: %v", n.Name, err)
			}
		}
		if n.held != nil {
			_ = n.held.Close()
		}
		if n.reader != nil {
			_ = n.reader.Close()
		}
		n.stopSwitch()
	}
	for _, c := range f.conns {
		_ = c.Close()
	}
	for _, h := range f.hostList {
		h.close()
	}
}

// Logs is where the parts of a test log to. What was logged last is shown if the test fails.
func Logs(t testing.TB) slog.Handler {
	o := &slog.HandlerOptions{Level: slog.LevelDebug}
	if os.Getenv("MCRDMA_FABRIC_LOG") != "" {
		return slog.NewTextHandler(os.Stderr, o)
	}
	o.Level = slog.LevelInfo
	b := &tail{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what was logged last:\n%s", b)
		}
	})
	return slog.NewTextHandler(b, o)
}

// A tail keeps the last half megabyte or so of what is written.
type tail struct {
	mu        sync.Mutex
	old, last []byte
}

func (b *tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.last) > 1<<18 {
		b.old, b.last = b.last, nil
	}
	b.last = append(b.last, p...)
	return len(p), nil
}

func (b *tail) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.old) + string(b.last)
}

// connect opens a connection to a switch's agent with the given identity.
func (f *Fabric) connect(n *node, as identity.Identity) *grpc.ClientConn {
	f.t.Helper()
	var files identity.Files
	if f.ca != nil {
		files = f.ca.Issue(as)
	}
	creds, err := files.Client(identity.Identity{Role: identity.Switch, Name: n.Name})
	f.must(err)
	c, err := grpc.NewClient(n.listen, grpc.WithTransportCredentials(creds), identity.Claim(as),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	f.must(err)
	f.conns = append(f.conns, c)
	return c
}

// Groups manages groups at a switch, as an administrator.
func (f *Fabric) Groups(sw string) mcrdmav1.SwitchGroupsClient {
	return mcrdmav1.NewSwitchGroupsClient(f.node(sw).client)
}

// GroupsAs manages groups at a host's switch, as that host's daemon.
func (f *Fabric) GroupsAs(name string) mcrdmav1.SwitchGroupsClient {
	h := f.host(name)
	if h.client == nil {
		h.client = f.connect(h.node, identity.Identity{Role: identity.Host, Name: h.Name, Addrs: []netip.Addr{h.Addr}})
	}
	return mcrdmav1.NewSwitchGroupsClient(h.client)
}

// Status asks a switch's agent.
func (f *Fabric) Status(sw string) mcrdmav1.SwitchStatusClient {
	return mcrdmav1.NewSwitchStatusClient(f.node(sw).client)
}

// State is what is on a switch, read back over P4Runtime.
func (f *Fabric) State(sw string) *switchspec.State {
	f.t.Helper()
	s, err := f.node(sw).state()
	f.must(err)
	return s
}

func (n *node) state() (s *switchspec.State, err error) {
	err = within(func(ctx context.Context) error {
		s, err = n.reader.Read(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", n.Name, err)
	}
	return s, nil
}

// patience bounds what should take no time at all.
const patience = 30 * time.Second

func within(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return do(ctx)
}

func (f *Fabric) node(name string) *node {
	f.t.Helper()
	n := f.nodes[name]
	if n == nil {
		f.t.Fatalf("there is no switch %q", name)
	}
	return n
}

func (f *Fabric) host(name string) *host {
	f.t.Helper()
	h := f.hosts[name]
	if h == nil {
		f.t.Fatalf("there is no host %q", name)
	}
	return h
}

// eventually calls cond until it returns nil, up to patience, every few
// milliseconds.
func (f *Fabric) eventually(what string, cond func() error) {
	f.t.Helper()
	f.must(f.until(what, patience, cond))
}

func (f *Fabric) until(what string, d time.Duration, cond func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(d); ; <-tick.C {
		err := cond()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, d, err)
		}
	}
}
