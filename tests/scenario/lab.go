package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/connmgr"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/p4rtserver"
	"github.com/mcrdma/mcrdma/internal/switchagent"
	agentconfig "github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

// hostsPerRack is the number of hosts at each switch, unless a test has more.
const hostsPerRack = 2

// A Lab is four hosts, each with its daemon. With switches, h1 and h2 are at leaf1, h3 and h4 at
// leaf2, and a cable joins these. Without switches, hosts exchange frames directly.
type lab struct {
	t        *testing.T
	perRack  int // hosts
	net      *memnet.Network
	dir      string
	hub      *memnet.Hub // nil if there are switches
	switches []*leaf
	hosts    []*host
	trunk    *memnet.Cable  // between the switches
	clean    []int          // content of each disk without groups
	wait     time.Duration  // of the judge
	wg       sync.WaitGroup // goroutines of stories
}

// A leaf is a switch with its agent.
type leaf struct {
	service // the agent

	l      *lab
	name   string
	number int
	cables []*memnet.Cable // to hosts
	disk   *disk
	sw     *softswitch.Switch
	server *p4rtserver.Server
	rpc    *grpc.Server
	served chan struct{}
	reader *p4rt.Client
	conn   *grpc.ClientConn // an administrator's connection to the agent
	slow   atomic.Int64     // time of a call of the agent to the switch
}

// A host has a daemon, and at most one application.
type host struct {
	service // the daemon

	l     *lab
	name  string
	addr  netip.Addr
	rack  int // from 0
	cable *memnet.Cable
	sends atomic.Pointer[func()] // if not nil, called for each sent frame
	side  int                    // side of the cable
	disk  *disk
	cfg   func(*config.Config) // nil: as usual
	conn  *grpc.ClientConn     // an application's connection to the daemon, for its status
	app   *app                 // nil: none
}

// A service is a daemon or an agent.
type service struct {
	runs *process // nil if it does not run
}

// stop ends the service in order.
func (s *service) stop() { s.end(false) }

// crash ends the service as a crash would.
func (s *service) crash() { s.end(true) }

func (s *service) end(crash bool) {
	if s.runs != nil {
		s.runs.end(crash)
		s.runs = nil
	}
}

// A process is a running daemon or agent.
type process struct {
	name   string
	l      *lab
	state  *state
	cancel context.CancelFunc
	done   chan error
}

// run runs a daemon or an agent.
func (l *lab) run(name string, s *state, f func(context.Context) error) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{name: name, l: l, state: s, cancel: cancel, done: make(chan error, 1)}
	go func() { p.done <- f(ctx) }()
	return p
}

// end ends a process, in order or, as a crash would, at once.
func (p *process) end(crash bool) {
	p.l.t.Helper()
	if crash {
		p.state.kill()
		p.l.net.Kill(p.name)
	}
	p.cancel()
	if err := <-p.done; err != nil && !crash {
		p.l.t.Errorf("%s: %v", p.name, err)
	}
	p.l.net.Kill(p.name)
}

// newLab starts everything.
func newLab(t *testing.T, switches bool, change ...func(*lab)) *lab {
	t.Helper()
	return newLabOf(t, hostsPerRack, switches, change...)
}

// newLabOf is newLab with that many hosts at each switch, up to 8.
func newLabOf(t *testing.T, perRack int, switches bool, change ...func(*lab)) *lab {
	t.Helper()
	l := &lab{t: t, perRack: perRack, net: memnet.New(), dir: t.TempDir()}
	if switches {
		for i := range 2 {
			n := &leaf{l: l, number: i + 1, name: fmt.Sprintf("leaf%d", i+1), disk: newDisk()}
			l.switches = append(l.switches, n)
		}
		l.trunk = memnet.NewCable()
	} else {
		l.hub = &memnet.Hub{}
	}
	for i := range 2 * perRack {
		h := &host{l: l, name: fmt.Sprintf("h%d", i+1), rack: i / perRack, cable: memnet.NewCable(), side: 1, disk: newDisk()}
		h.cable.Tap = func(side int, _ []byte) {
			if f := h.sends.Load(); f != nil && side == h.side {
				(*f)()
			}
		}
		h.addr = netip.AddrFrom4([4]byte{10, 0, 1, byte(11 + i)})
		if switches {
			h.addr = netip.AddrFrom4([4]byte{10, 0, byte(1 + h.rack), byte(11 + i%perRack)})
			n := l.switches[h.rack]
			n.cables = append(n.cables, h.cable)
		} else {
			l.hub.Attach(h.cable)
		}
		l.hosts = append(l.hosts, h)
	}
	for _, f := range change {
		f(l)
	}
	l.writeTopology()
	for _, n := range l.switches {
		n.startSwitch()
	}
	for _, n := range l.switches {
		n.start()
	}
	for _, n := range l.switches {
		n.ready()
	}
	for _, h := range l.hosts {
		h.start()
	}
	t.Cleanup(l.close)
	time.Sleep(3 * time.Second) // links come up, daemons and agents meet
	for _, d := range l.disks() {
		l.clean = append(l.clean, d.len())
	}
	return l
}

func (l *lab) disks() (list []*disk) {
	for _, n := range l.switches {
		list = append(list, n.disk)
	}
	for _, h := range l.hosts {
		list = append(list, h.disk)
	}
	return list
}

// dialer returns a dialer for one process.
func (l *lab) dialer(process string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return l.net.Dial(ctx, process, addr) })
}

// client makes a connection of this test.
func (l *lab) client(addr string, options ...grpc.DialOption) *grpc.ClientConn {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.net.Dial(ctx, "operator/test", addr) }))
	c, err := grpc.NewClient("passthrough:///lab", options...)
	l.must(err)
	return c
}

// writeTopology writes the file for static routes.
func (l *lab) writeTopology() {
	if l.trunk == nil {
		return
	}
	var b strings.Builder
	fmt.Fprintln(&b, "switches:")
	for _, n := range l.switches {
		fmt.Fprintf(&b, "  - {name: %s, address: %v, mac: %q, prefixes: [%v]}\n", n.name, n.address(), n.mac(0), n.prefix())
	}
	fmt.Fprintf(&b, "links:\n  - {a: {node: leaf1, port: %d, mac: %q}, b: {node: leaf2, port: %d, mac: %q}}\n",
		trunkPort, l.switches[0].mac(trunkPort), trunkPort, l.switches[1].mac(trunkPort))
	l.must(os.WriteFile(filepath.Join(l.dir, "fabric.yaml"), []byte(b.String()), 0o600))
}

// close ends everything; synctest requires that no goroutine is left.
func (l *lab) close() {
	l.wg.Wait()
	for _, h := range l.hosts {
		if h.app != nil {
			h.app.close()
		}
	}
	for _, h := range l.hosts {
		h.stop()
		_ = h.conn.Close()
	}
	for _, n := range l.switches {
		n.stop()
		_, _ = n.reader.Close(), n.conn.Close()
	}
	for _, n := range l.switches {
		n.stopSwitch()
	}
	if l.hub != nil {
		l.hub.Close()
	}
}

const trunkPort = 9

func (n *leaf) address() netip.Addr { return netip.AddrFrom4([4]byte{10, 255, 0, byte(n.number)}) }

func (n *leaf) prefix() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n.number), 0}), 24)
}

func (n *leaf) gateway() netip.Addr { return n.prefix().Addr().Next() }

func (n *leaf) mac(port uint16) switchspec.MAC {
	return switchspec.MAC{2, 0xfe, 0, byte(n.number), 0, byte(port)}
}

func (n *leaf) target() string { return fmt.Sprintf("%v:9559", n.l.net.Addr(n.name)) }
func (n *leaf) listen() string { return fmt.Sprintf("%v:9560", n.l.net.Addr(n.name)) }

// startSwitch starts the switch, with no state.
func (n *leaf) startSwitch() {
	l := n.l
	l.t.Helper()
	var err error
	n.sw, err = softswitch.New(softswitch.Config{CPUPort: bmv2.CPUPort, Log: l.log(n.name)})
	l.must(err)
	for i, c := range n.cables {
		l.must(n.sw.Attach(uint16(i+1), memnet.Port{Plug: c.Plug(0, fmt.Sprintf("%s/%d", n.name, i+1))}))
	}
	l.must(n.sw.Attach(trunkPort, memnet.Port{Plug: l.trunk.Plug(n.number-1, n.name+"/trunk")}))
	process := n.name + "/switch"
	l.net.Revive(process)
	at, err := l.net.Listen(process, n.target())
	l.must(err)
	n.server = p4rtserver.New(n.sw, p4rtserver.Options{DeviceID: uint64(n.number)})
	n.rpc = grpc.NewServer(p4rtserver.ServerOptions()...)
	n.server.Register(n.rpc)
	n.served = make(chan struct{})
	go func() { defer close(n.served); _ = n.rpc.Serve(at) }() // until it is stopped
	if n.reader == nil {
		n.reader, err = p4rt.New(p4rt.Config{Target: "passthrough:///" + n.target(), DeviceID: uint64(n.number),
			Dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), l.dialer("operator/test")}})
		l.must(err)
		n.conn = l.client(n.listen(), identity.Claim(identity.Identity{Role: identity.Admin, Name: "operator"}))
	}
}

func (n *leaf) stopSwitch() {
	if n.sw == nil {
		return
	}
	n.server.Close()
	n.rpc.Stop()
	<-n.served
	n.l.net.Kill(n.name + "/switch")
	if err := n.sw.Close(); err != nil {
		n.l.t.Error(err)
	}
	n.sw = nil
}

// start starts the agent.
func (n *leaf) start() {
	l := n.l
	l.t.Helper()
	name := n.name + "/agent"
	l.net.Revive(name)
	cfg := &agentconfig.Config{Name: n.name, Address: n.address(), MAC: n.mac(0), Prefixes: []netip.Prefix{n.prefix()},
		Gateways: []netip.Addr{n.gateway()}, Programmable: true, Insecure: true, Listen: n.listen(),
		P4Runtime: agentconfig.P4Runtime{Target: n.target(), DeviceID: uint64(n.number)},
		State:     filepath.Join(l.dir, n.name+".agent"),
		Routing:   agentconfig.Routing{Source: agentconfig.Static, Topology: filepath.Join(l.dir, "fabric.yaml")},
		Hello:     agentconfig.Hello{Interval: 250 * time.Millisecond}, Restart: agentconfig.Restart{Hold: time.Minute}}
	for _, h := range l.hosts {
		if h.rack == n.number-1 {
			cfg.Hosts = append(cfg.Hosts, agentconfig.Host{Address: h.addr, MAC: h.mac(), Port: h.port()})
			cfg.Ports = append(cfg.Ports, agentconfig.Port{Port: h.port(), MAC: n.mac(h.port())})
		}
	}
	for _, o := range l.switches {
		if o != n {
			cfg.Ports = append(cfg.Ports, agentconfig.Port{Port: trunkPort, To: o.name, MAC: n.mac(trunkPort), Hello: true})
			cfg.Switches = append(cfg.Switches, agentconfig.Switch{Name: o.name, Programmable: true, Agent: o.listen(),
				Addresses: []netip.Addr{o.address()}, Prefixes: []netip.Prefix{o.prefix()}})
		}
	}
	at, err := l.net.Listen(name, n.listen())
	l.must(err)
	var s *state
	dial := []grpc.DialOption{l.dialer(name)}
	slow := func() { time.Sleep(time.Duration(n.slow.Load())) }
	reads := grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, stream grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		slow()
		return stream(ctx, d, c, method, o...)
	})
	toSwitch := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
		slow()
		if w, ok := req.(*p4.WriteRequest); !ok || len(w.GetUpdates()) == 0 {
			return invoke(ctx, method, req, reply, c, o...)
		}
		return n.disk.toSwitch(func() error { return invoke(ctx, method, req, reply, c, o...) })
	})
	a, err := switchagent.New(l.t.Context(), cfg, switchagent.Options{Logger: l.log(name), Version: "test", Listener: at, DialSwitch: append(dial, toSwitch, reads), DialPeers: dial,
		OpenStore: func(ctx context.Context, _ string) (switchagent.Store, error) {
			s, err = n.disk.start(ctx)
			return s, err
		}})
	l.must(err)
	n.runs = l.run(name, s, a.Run)
}

// ready waits until the agent has its routes and groups.
func (n *leaf) ready() {
	n.l.t.Helper()
	n.l.eventually("the agent of "+n.name+" is ready", func() error {
		s, err := n.status()
		if err == nil && (!s.GetSettled() || !s.GetP4Runtime().GetConnected()) {
			err = errors.New(s.String())
		}
		return err
	})
}

func (n *leaf) status() (*mcrdmav1.GetStatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return mcrdmav1.NewSwitchStatusClient(n.conn).GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
}

// state returns the switch's entries.
func (n *leaf) state() *switchspec.State {
	n.l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := n.reader.Read(ctx)
	n.l.must(err)
	return s
}

func (h *host) port() uint16   { return uint16(slices.Index(h.l.hosts, h)%h.l.perRack + 1) }
func (h *host) listen() string { return fmt.Sprintf("%v:9550", h.l.net.Addr(h.name)) }

// start starts the daemon.
func (h *host) start() {
	h.l.t.Helper()
	h.l.must(h.tryStart())
}

func (h *host) tryStart() error {
	l := h.l
	l.net.Revive(h.process())
	cfg := &config.Config{Name: h.name, Address: h.addr, Insecure: true, Listen: h.listen(), Socket: h.socket(),
		Beat:  config.Beat{Interval: 150 * time.Millisecond}, // fewer than usual, for minutes of virtual time
		State: filepath.Join(l.dir, h.name+".db"), Bootstrap: l.net.Addr(h.name), Rack: uint32(h.rack + 1)}
	for _, o := range l.hosts {
		if o != h {
			cfg.Hosts = append(cfg.Hosts, config.Host{Name: o.name, Address: o.addr, Daemon: o.listen()})
		}
	}
	if len(l.switches) > 0 {
		n := l.switches[h.rack]
		cfg.Switch = config.Switch{Name: n.name, Agent: n.listen()}
	}
	if h.cfg != nil {
		h.cfg(cfg)
	}
	hosts, err := l.net.Listen(h.process(), h.listen())
	l.must(err)
	apps, err := l.net.Listen(h.process(), h.socket())
	l.must(err)
	var s *state
	m, err := connmgr.New(l.t.Context(), cfg, connmgr.Options{Logger: l.log(h.process()), Version: "test", Hosts: hosts, Apps: apps,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) { return l.net.Dial(ctx, h.process(), addr) },
		OpenStore: func(ctx context.Context, _ string) (connmgr.Store, error) {
			s, err = h.disk.start(ctx)
			return s, err
		}})
	if err != nil {
		l.net.Kill(h.process())
		return err
	}
	p := l.run(h.process(), s, m.Run)
	select {
	case <-m.Ready():
	case err := <-p.done:
		l.net.Kill(h.process())
		return err
	}
	h.runs = p
	if h.conn == nil {
		h.conn = l.client(h.socket())
	}
	return nil
}

// silence stops all packets from and to the host, or ends that.
func (h *host) silence(on bool) {
	h.cable.Cut(on)
	h.l.net.Silence(h.name, on)
}

// daemon returns the host's daemon's own status.
func (h *host) daemon() (*mcrdmav1.GetDaemonResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return mcrdmav1.NewApplicationsClient(h.conn).GetDaemon(ctx, &mcrdmav1.GetDaemonRequest{})
}

// eventually waits for a condition, in virtual time.
func (l *lab) eventually(what string, f func() error) {
	l.t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	l.t.Fatalf("not so after two minutes: %s: %v", what, err)
}

// linksUp waits until the switches' links work.
func (l *lab) linksUp() {
	l.t.Helper()
	for _, n := range l.switches {
		l.eventually("links", func() error {
			s, err := n.status()
			for _, p := range s.GetPorts() {
				if p.GetNeighbor() != "" && p.GetState() != "up" {
					return errors.New(p.String())
				}
			}
			return err
		})
	}
}
