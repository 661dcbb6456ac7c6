package fabric

import (
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/internal/topology"
)

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
		sw := topology.Switch{Name: n.Name, Address: n.address(), MAC: n.mac(0), Programmable: n.Programmable}
		if n.Prefix.IsValid() {
			sw.Prefixes = []netip.Prefix{n.Prefix}
		}
		t.Switches = append(t.Switches, sw)
	}
	end := func(e End) topology.End {
		return topology.End{Node: e.Node, Port: uint32(e.Port), MAC: f.nodes[e.Node].mac(e.Port)}
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
