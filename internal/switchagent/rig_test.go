package switchagent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/p4rtserver"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

func TestMain(m *testing.M) {
	testenv.OneProcessor()
	// GoBGP leaves a goroutine behind when it is stopped.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).Serve"))
}

// A line is a fabric of switches in a row, sw1 to swN, each with its agent and hosts,
// and two links to each neighbor, with routes from a topology file and without hellos:
// switches have no packets to carry here.
type line struct {
	t     testing.TB
	net   *memnet.Network
	dir   string
	nodes []*node
}

type node struct {
	name   string
	listen net.Listener // of the agent, until it is started
	addr   string       // of the agent
	p4     string       // of the switch
	sw     *embedded
	agent  *Agent
	stop   func()
	client *grpc.ClientConn
	reader *p4rt.Client // nil: a connection for each time that it is read
}

// An embedded switch serves P4Runtime; it can be lost and come back.
type embedded struct {
	*softswitch.Switch
	close func()
}

func (l *line) startSwitch(addr string, change ...func(*softswitch.Config)) (*embedded, string) {
	t := l.t
	t.Helper()
	cfg := softswitch.Config{CPUPort: bmv2.CPUPort}
	for _, f := range change {
		f(&cfg)
	}
	sw, err := softswitch.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := p4rtserver.New(sw, p4rtserver.Options{FastPath: sw.FastPath, Problems: sw.Problems})
	g := grpc.NewServer(p4rtserver.ServerOptions()...)
	server.Register(g)
	at := l.listenAt(addr)
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(at) }()
	return &embedded{sw, func() {
		server.Close()
		g.Stop()
		<-served
		_ = sw.Close()
	}}, at.Addr().String()
}

// hostAddr is host i at switch n, both from 1 on.
func hostAddr(n, i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n), 0, byte(10 + i)}) }

const hostsEach = 8

// newLine starts switches, but not their agents.
func newLine(t testing.TB, n int) *line {
	t.Helper()
	l := &line{t: t, net: memnet.New(), dir: t.TempDir()}
	var topology strings.Builder
	topology.WriteString("switches:\n")
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&topology, "  - {name: sw%d, address: 10.255.0.%d, mac: \"02:00:00:00:%02x:00\", prefixes: [10.%d.0.0/24]}\n", i, i, i, i)
	}
	topology.WriteString("links:\n")
	for i := 1; i < n; i++ {
		fmt.Fprintf(&topology, "  - {a: {node: sw%d, port: 101}, b: {node: sw%d, port: 100}}\n", i, i+1)
		fmt.Fprintf(&topology, "  - {a: {node: sw%d, port: 103}, b: {node: sw%d, port: 102}}\n", i, i+1)
	}
	if err := os.WriteFile(l.topology(), []byte(topology.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= n; i++ {
		nd := &node{name: fmt.Sprintf("sw%d", i)}
		nd.sw, nd.p4 = l.startSwitch("127.0.0.1:0")
		nd.listen = l.listenAt("127.0.0.1:0")
		nd.addr = nd.listen.Addr().String()
		l.nodes = append(l.nodes, nd)
	}
	t.Cleanup(l.close)
	return l
}

func (l *line) topology() string { return filepath.Join(l.dir, "fabric.yaml") }

func (l *line) close() {
	for _, n := range l.nodes {
		n.kill()
		if n.listen != nil {
			_ = n.listen.Close()
		}
		if n.client != nil {
			_ = n.client.Close()
		}
		if n.reader != nil {
			n.reader.Close()
		}
		n.sw.close()
	}
}

// config is that of switch i, from 1 on.
func (l *line) config(i int) *config.Config {
	n := l.nodes[i-1]
	c := &config.Config{Name: n.name, Address: netip.AddrFrom4([4]byte{10, 255, 0, byte(i)}),
		MAC: switchspec.MAC{2, 0, 0, 0, byte(i), 0}, Prefixes: []netip.Prefix{netip.PrefixFrom(hostAddr(i, -10), 24)},
		Programmable: true, P4Runtime: config.P4Runtime{Target: n.p4}, Listen: n.addr,
		State: filepath.Join(l.dir, n.name+".db"), Routing: config.Routing{Source: config.Static, Topology: l.topology()},
		Leases: config.Leases{Group: 10 * time.Minute}} // tests may take their time
	for h := 1; h <= hostsEach; h++ {
		c.Ports = append(c.Ports, config.Port{Port: uint16(h)})
		c.Hosts = append(c.Hosts, config.Host{Address: hostAddr(i, h), MAC: switchspec.MAC{2, 0, 0, 0, byte(i), byte(h)}, Port: uint16(h)})
	}
	for j, other := range l.nodes {
		if j+1 == i {
			continue
		}
		c.Switches = append(c.Switches, config.Switch{Name: other.name, Programmable: true, Agent: other.addr})
		switch j + 1 {
		case i - 1:
			c.Ports = append(c.Ports, config.Port{Port: 100, To: other.name, PeerMAC: switchspec.MAC{2, 0, 0, 0, byte(i - 1), 0}},
				config.Port{Port: 102, To: other.name, PeerMAC: switchspec.MAC{2, 0, 0, 0, byte(i - 1), 0}})
		case i + 1:
			c.Ports = append(c.Ports, config.Port{Port: 101, To: other.name, PeerMAC: switchspec.MAC{2, 0, 0, 0, byte(i + 1), 0}},
				config.Port{Port: 103, To: other.name, PeerMAC: switchspec.MAC{2, 0, 0, 0, byte(i + 1), 0}})
		}
	}
	return c
}

func testLog(name string) *slog.Logger {
	if !testing.Verbose() {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("at", name)
}

// options are an agent's that reaches others in memory.
func (l *line) options(name string) Options {
	memory := []grpc.DialOption{l.inMemory()}
	return Options{Logger: testLog(name), DialSwitch: memory, DialPeers: memory}
}

// start starts the agent of switch i, and waits until it is ready.
func (l *line) start(i int, change ...func(*config.Config, *Options)) {
	l.t.Helper()
	n := l.launch(i, change...)
	select {
	case <-n.agent.Ready():
	case <-time.After(20 * time.Second):
		l.t.Fatalf("the agent of %s is not ready", n.name)
	}
}

func (l *line) launch(i int, change ...func(*config.Config, *Options)) *node {
	l.t.Helper()
	n := l.nodes[i-1]
	cfg, o := l.config(i), l.options(n.name)
	if n.listen == nil {
		n.listen = l.listenAt(n.addr)
	}
	o.Listener, n.listen = n.listen, nil
	for _, f := range change {
		f(cfg, &o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a, err := New(ctx, cfg, o)
	if err != nil {
		cancel()
		l.t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- a.Run(ctx) }()
	n.agent = a
	n.stop = func() {
		cancel()
		if err := <-ran; err != nil {
			l.t.Errorf("agent of %s: %v", n.name, err)
		}
	}
	return n
}

func (l *line) startAll() {
	l.t.Helper()
	for i := range l.nodes {
		l.launch(i + 1)
	}
	for _, n := range l.nodes {
		select {
		case <-n.agent.Ready():
		case <-time.After(20 * time.Second):
			l.t.Fatalf("the agent of %s is not ready", n.name)
		}
	}
}

// kill ends a switch's agent; the switch goes on.
func (n *node) kill() {
	if n.stop != nil {
		n.stop()
		n.stop, n.agent = nil, nil
	}
}

// groups is a client of switch i's agent, as an administrator.
func (l *line) groups(i int) mcrdmav1.SwitchGroupsClient {
	return mcrdmav1.NewSwitchGroupsClient(l.conn(i))
}

func (l *line) conn(i int) *grpc.ClientConn {
	n := l.nodes[i-1]
	if n.client == nil {
		n.client = l.dial(n.addr, identity.Identity{Role: identity.Admin, Name: "test"})
	}
	return n.client
}

func (l *line) dial(addr string, as identity.Identity) *grpc.ClientConn {
	t := l.t
	t.Helper()
	c, err := grpc.NewClient(addr, l.inMemory(), grpc.WithTransportCredentials(insecure.NewCredentials()), identity.Claim(as),
		reconnect,
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// state reads switch i back.
func (l *line) state(i int) *switchspec.State {
	l.t.Helper()
	s, err := l.read(i)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

func (l *line) read(i int) (*switchspec.State, error) {
	n := l.nodes[i-1]
	if n.reader != nil {
		return n.reader.Read(l.t.Context())
	}
	c, err := l.openSwitch(n.p4)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Read(l.t.Context())
}

func (l *line) openSwitch(addr string) (*p4rt.Client, error) {
	return p4rt.New(p4rt.Config{Target: addr, Dial: l.plain()})
}

func (l *line) listenAt(addr string) net.Listener {
	l.t.Helper()
	at, err := l.net.Listen("switches/server", addr)
	if err != nil {
		l.t.Fatal(err)
	}
	return at
}

func (l *line) inMemory() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return l.net.Dial(ctx, "switches/client", addr)
	})
}

func (l *line) plain() []grpc.DialOption {
	return []grpc.DialOption{l.inMemory(), grpc.WithTransportCredentials(insecure.NewCredentials())}
}

// readOften makes read use one connection for each switch. After a restart of the switch
// it fails until gRPC has connected again.
func (l *line) readOften() {
	l.t.Helper()
	for _, n := range l.nodes {
		var err error
		if n.reader, err = l.openSwitch(n.p4); err != nil {
			l.t.Fatal(err)
		}
	}
}

// multicast is what a switch has of groups.
func multicast(s *switchspec.State) []switchspec.Entity {
	var out []switchspec.Entity
	for e := range s.All() {
		switch e := e.(type) {
		case switchspec.Match, switchspec.Replica, switchspec.Region, switchspec.MergeGroup, switchspec.MergeMember, switchspec.Bypass:
			out = append(out, e)
		case switchspec.PREGroup:
			if e.ID != 1 {
				out = append(out, e)
			}
		}
	}
	return out
}

// What the state file holds.
const (
	bucket               = "steps"
	ownBucket            = "agent"
	slotCount, slotBlock = switchspec.MaxSlot + 1, 4096
	useEnd               = slotCount * 65535
)

type ownership struct{ Owner, Numbers uint64 }

// noLeftovers fails if any switch has anything of groups.
func (l *line) noLeftovers() {
	l.t.Helper()
	for i, n := range l.nodes {
		if left := multicast(l.state(i + 1)); len(left) > 0 {
			l.t.Errorf("%s has left-overs: %v", n.name, left)
		}
		if n.agent == nil {
			continue
		}
		if u := n.agent.table.Usage(); u.Steps+u.Groups+u.Slots+u.GroupNumbers > 0 || u.PRENumbers != 1 {
			l.t.Errorf("%s: in use are %+v", n.name, u)
		}
		for p, x := range n.agent.peers.all {
			if _, held, _ := x.status(); held > 0 {
				l.t.Errorf("%s holds %d branches at %s", n.name, held, p)
			}
		}
		n.agent.uni.with(func(t *unicast.Table) {
			for _, h := range t.HopList() {
				if h.Uses != 0 {
					l.t.Errorf("%s: next hop %d is in use", n.name, h.Number)
				}
			}
		})
	}
}

// aGroup is a group of a sender with receivers.
func aGroup(source netip.Addr, id uint32, receivers ...netip.Addr) *mcrdmav1.Group {
	g := &mcrdmav1.Group{Key: &mcrdmav1.GroupKey{Source: source.String(), McId: id}, SenderQpn: 0x4711, InitialPsn: 0xfffff0}
	for i, r := range receivers {
		g.Receivers = append(g.Receivers, aReceiver(r, uint32(0x100+i)))
	}
	return g
}

func aReceiver(addr netip.Addr, qpn uint32) *mcrdmav1.Receiver {
	return &mcrdmav1.Receiver{Address: addr.String(), Qpn: qpn, Regions: []*mcrdmav1.MemoryRegion{
		{Rkey: 7, Va: 0x1000, Length: 0x1000, ReceiverRkey: qpn, ReceiverVa: uint64(qpn) << 16},
		{Rkey: 5, Va: 0x9000, Length: 0x1000, ReceiverRkey: qpn + 1, ReceiverVa: uint64(qpn) << 20}}}
}

func (l *line) install(i int, g *mcrdmav1.Group) {
	l.t.Helper()
	if _, err := l.groups(i).Install(l.t.Context(), &mcrdmav1.InstallRequest{Group: g}); err != nil {
		l.t.Fatalf("install at sw%d: %v", i, err)
	}
}

func (l *line) remove(i int, g *mcrdmav1.Group) {
	l.t.Helper()
	if _, err := l.groups(i).Remove(l.t.Context(), &mcrdmav1.RemoveRequest{Key: g.Key}); err != nil {
		l.t.Fatalf("remove at sw%d: %v", i, err)
	}
}

// eventually waits until f holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for start := time.Now(); !f(); {
		waited := time.Since(start)
		if waited > 20*time.Second {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(max(20*time.Millisecond, waited/16))
	}
}

// problems is what the agent says of a group.
func (l *line) problems(i int, g *mcrdmav1.Group) string {
	l.t.Helper()
	res, err := l.groups(i).Get(l.t.Context(), &mcrdmav1.GetRequest{Key: g.Key})
	if err != nil {
		l.t.Fatal(err)
	}
	return strings.Join(res.Group.Problems, "\n")
}
