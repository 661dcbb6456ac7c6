package library

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/connmgr"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/hostload"
	datacenter "github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/tests/fabric"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A lab is hosts with daemons. The first sends.
type lab struct {
	t     *testing.T
	f     *fabric.Fabric // nil: no switches
	logs  slog.Handler   // of daemons
	hosts []*host
}

type host struct {
	lab    *lab
	name   string
	addr   netip.Addr
	dev    qp.Device
	cfg    *config.Config
	listen string // the daemon's
	door   *door
	daemon *datacenter.Part // that runs
	client *mcrdma.Client
	away   atomic.Bool // the switch's agent cannot be reached from here
}

// hostNames are the hosts of the fabric of labs.
var hostNames = []string{"h1-1", "h2-1", "h1-2", "h2-2"}

var labs atomic.Int32

// newLab starts four hosts, behind two switches and a spine or on loopback addresses.
// away are hosts whose switch's agent is not there at first.
func newLab(t *testing.T, switches bool, away ...int) *lab {
	t.Helper()
	l := &lab{t: t, logs: fabric.Logs(t)}
	if switches {
		s := fabric.LeafSpine(2, 1, 2)
		s.Routing = fabric.Static
		l.f = fabric.Start(t, s)
	}
	n := labs.Add(1)
	var listeners []net.Listener
	for i, name := range hostNames {
		h := &host{lab: l, name: name, addr: netip.AddrFrom4([4]byte{127, 42, byte(n), byte(i + 1)})}
		hosts, err := net.Listen("tcp", "127.0.0.1:0")
		l.must(err)
		h.listen = hosts.Addr().String()
		listeners = append(listeners, hosts)
		dir := t.TempDir()
		h.cfg = &config.Config{Name: name, Insecure: true, Listen: h.listen, Socket: filepath.Join(dir, "d"),
			State: filepath.Join(dir, "state"), Bootstrap: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
		if switches {
			h.addr = l.f.Addr(name)
			h.cfg.Switch.Name, h.cfg.Switch.Agent = l.f.Agent(name)
			h.dev = l.f.Device(name, softroce.Options{})
		} else {
			h.dev, err = qp.Open(fmt.Sprintf("softroce:%v?rx=udp", h.addr))
			l.must(err)
			t.Cleanup(func() { _ = h.dev.Close() })
		}
		h.cfg.Address = h.addr
		l.hosts = append(l.hosts, h)
	}
	for _, i := range away {
		l.hosts[i].away.Store(true)
	}
	for i, h := range l.hosts {
		for _, o := range l.hosts {
			if o != h {
				h.cfg.Hosts = append(h.cfg.Hosts, config.Host{Name: o.name, Address: o.addr, Daemon: o.listen})
			}
		}
		h.start(listeners[i])
		t.Cleanup(h.stop)
		h.door = newDoor(t, h.cfg.Socket)
	}
	for _, h := range l.hosts {
		h.dial()
	}
	return l
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// start starts the host's daemon.
func (h *host) start(hosts net.Listener) {
	h.lab.t.Helper()
	if hosts == nil {
		var err error
		hosts, err = net.Listen("tcp", h.listen)
		h.lab.must(err)
	}
	cfg := *h.cfg
	m, err := connmgr.New(context.Background(), &cfg, connmgr.Options{
		Logger: slog.New(h.lab.logs).With("daemon", h.name),
		Hosts:  hosts,
		Busy:   new(hostload.Meter).Busy,
		OpenStore: func(ctx context.Context, path string) (connmgr.Store, error) {
			return store.Open(ctx, path, store.Options{NoSync: true})
		},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == cfg.Switch.Agent && h.away.Load() {
				return nil, errors.New("it is away")
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		},
	})
	h.lab.must(err)
	h.daemon = datacenter.Run("daemon of "+h.name, m.Ready(), m.Run, func(error) {}) // stop tells
	h.lab.must(h.daemon.Wait(context.Background()))
}

// stop stops the host's daemon.
func (h *host) stop() {
	if h.daemon != nil {
		if err := h.daemon.End(); err != nil {
			h.lab.t.Error(err)
		}
		h.daemon = nil
	}
}

func (h *host) dial() {
	h.lab.t.Helper()
	c, err := mcrdma.Dial(h.lab.t.Context(), mcrdma.Options{Socket: h.door.path, Device: h.dev, Program: h.name})
	h.lab.must(err)
	h.client = c
	h.lab.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			h.lab.t.Error(err)
		}
	})
}

// kill ends the host's application as a crash does.
func (h *host) kill() {
	_ = h.dev.Close()
	h.door.shut()
}

// A door is a socket before the daemon's, which can be shut.
type door struct {
	path string
	l    net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	isOff bool
}

func newDoor(t *testing.T, to string) *door {
	d := &door{path: to + "oor"}
	var err error
	if d.l, err = net.Listen("unix", d.path); err != nil {
		t.Fatal(err)
	}
	d.wg.Go(func() {
		for {
			in, err := d.l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			d.join(in, out)
		}
	})
	t.Cleanup(d.shut)
	return d
}

func (d *door) join(a, b net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isOff {
		_, _ = a.Close(), b.Close()
		return
	}
	d.conns = append(d.conns, a, b)
	for _, x := range [][2]net.Conn{{a, b}, {b, a}} {
		d.wg.Go(func() {
			_, _ = io.Copy(x[0], x[1])
			_, _ = x[0].Close(), x[1].Close()
		})
	}
}

func (d *door) shut() {
	_ = d.l.Close()
	d.mu.Lock()
	d.isOff = true
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

// An app is a receiver, with a region and room for receives.
type app struct {
	h      *host
	mem    *mcrdma.Memory
	region int
	l      *mcrdma.Listener
	m      *mcrdma.Member
	lag    bool // slow to post receives
}

// receive has a host listen for a service.
func (h *host) receive(service string, region, room int) *app {
	h.lab.t.Helper()
	a := &app{h: h, region: region}
	var err error
	a.mem, err = h.client.Alloc(region + room)
	h.lab.must(err)
	a.l, err = h.client.Listen(h.lab.t.Context(), mcrdma.ListenConfig{Service: service, Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
		return &mcrdma.Grant{Regions: []mcrdma.Piece{a.mem.Slice(0, region)}}, nil
	}})
	h.lab.must(err)
	return a
}

// A team is a group with its sender's memory, and its receivers.
type team struct {
	t    *testing.T
	g    *mcrdma.Group
	mem  *mcrdma.Memory
	apps []*app
}

// group makes a group from one host to others.
func (l *lab) group(service string, from *host, to []*host, region, room int, cfg mcrdma.GroupConfig) *team {
	l.t.Helper()
	tm := &team{t: l.t}
	for _, h := range to {
		tm.apps = append(tm.apps, h.receive(service, region, room))
		cfg.Receivers = append(cfg.Receivers, h.name)
	}
	cfg.Service = service
	cfg.Regions = []mcrdma.Region{{Name: "r", Length: uint64(region)}}
	var err error
	tm.mem, err = from.client.Alloc(region)
	l.must(err)
	fill(tm.mem.Bytes(), 1)
	tm.g, err = from.client.Create(l.t.Context(), cfg)
	l.must(err)
	for _, a := range tm.apps {
		a.m, err = a.l.Accept(l.t.Context())
		l.must(err)
	}
	return tm
}

func fill(b []byte, seed uint64) {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
}

// same checks that the receivers' regions begin as the sender's memory does.
func (tm *team) same(n int) {
	tm.t.Helper()
	for _, a := range tm.apps {
		if !bytes.Equal(a.m.Region(0)[:n], tm.mem.Bytes()[:n]) {
			tm.t.Fatalf("%s: %d bytes differ (%v)", a.h.name, n, a.m.Err())
		}
		a.m.Region(0) // what is written after this comes after that, for the race detector
	}
}

func (tm *team) close() {
	tm.t.Helper()
	if err := tm.g.Close(tm.t.Context()); err != nil {
		tm.t.Error(err)
	}
	for _, a := range tm.apps {
		for {
			if _, err := a.m.Recv(tm.t.Context()); errors.Is(err, mcrdma.ErrClosed) {
				break
			} else if err != nil {
				tm.t.Errorf("%s: %v", a.h.name, err)
				break
			}
		}
	}
}

// event waits for an event.
func event(t *testing.T, c <-chan mcrdma.Event, typ mcrdma.EventType) mcrdma.Event {
	t.Helper()
	timeout := time.After(30 * time.Second)
	var seen []string
	for {
		select {
		case e, ok := <-c:
			if ok && e.Type == typ {
				return e
			}
			if !ok {
				t.Fatalf("no more events, and no %v; there were %q", typ, seen)
			}
			seen = append(seen, e.String())
		case <-timeout:
			t.Fatalf("no %v; there were %q", typ, seen)
		}
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// ways are the same application, where switches copy and where hosts relay.
func ways(t *testing.T, f func(t *testing.T, l *lab, cfg mcrdma.GroupConfig)) {
	for name, w := range map[string]struct {
		switches bool
		cfg      mcrdma.GroupConfig
	}{
		"switch": {true, mcrdma.GroupConfig{Mode: mcrdma.ModeRequire}},
		"rdma":   {false, mcrdma.GroupConfig{Tuning: mcrdma.Tuning{Transport: "rdma"}}},
		"tcp":    {false, mcrdma.GroupConfig{Tuning: mcrdma.Tuning{Transport: "tcp"}}},
	} {
		t.Run(name, func(t *testing.T) { f(t, newLab(t, w.switches), w.cfg) })
	}
}
