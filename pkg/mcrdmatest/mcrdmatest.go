// Package mcrdmatest is a rack for tests of programs that use package mcrdma: an embedded switch
// that copies packets, its agent, and hosts with their daemons, all in the test's process, on
// separate loopback addresses. It needs no privilege, and starts in a second.
//
//	rack := mcrdmatest.Start(t, 3)
//	group, err := rack.Dial("h1").Create(ctx, mcrdma.GroupConfig{Service: "s", Receivers: []string{"h2", "h3"}})
//	…
//	rack.Kill("h3")
//
// The groups are real, and the switch copies. To test the relay, use mcrdma.ModeOff.
//
// It is for tests.
package mcrdmatest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/qp"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // the hosts' devices
)

// MaxHosts is how many hosts a rack may have.
const MaxHosts = 20

// A Rack is a switch and its hosts, h1, h2, and so on. It ends with the test. All methods may be called by any
// goroutine that may end the test.
type Rack struct {
	tb     testing.TB
	lab    *lab.Lab
	cables map[string]*cable // by host

	mu   sync.Mutex
	apps map[string]*app // by host
	wg   sync.WaitGroup
}

// Start starts a rack with so many hosts.
func Start(tb testing.TB, hosts int) *Rack {
	tb.Helper()
	if hosts < 2 || hosts > MaxHosts {
		tb.Fatalf("mcrdmatest: a rack of %d hosts: it has 2 to %d", hosts, MaxHosts)
	}
	r := &Rack{tb: tb, cables: map[string]*cable{}, apps: map[string]*app{}}
	var nodes, links []string
	for i := 1; i <= hosts; i++ {
		nodes = append(nodes, fmt.Sprintf("{name: h%d, address: 10.1.0.%d}", i, 10+i))
		links = append(links, fmt.Sprintf("{a: {node: h%d}, b: {node: tor, port: %d}}", i, i))
		r.cables[fmt.Sprint("h", i)] = &cable{}
	}
	one, err := topology.Parse(fmt.Appendf(nil, "{switches: [{name: tor, address: 10.255.0.1, prefixes: [10.1.0.0/24]}], hosts: [%s], links: [%s]}",
		strings.Join(nodes, ", "), strings.Join(links, ", ")), "rack")
	r.must(err)
	dir, remove, err := lab.TempDir()
	r.must(err)
	tb.Cleanup(remove)
	r.lab, err = lab.Start(tb.Context(), lab.Options{Dir: dir, Topology: one, Failed: func(err error) { tb.Error(err) },
		Port: func(_, to string, p ports.Port) (ports.Port, error) {
			c := r.cables[to]
			c.Port = p
			return c, nil
		}})
	r.must(err)
	tb.Cleanup(func() {
		for h := range r.cables {
			r.end(h, (*app).close)
		}
		r.wg.Wait()
		if err := r.lab.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
}

func (r *Rack) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal("mcrdmatest: ", err)
	}
}

// An app is a host's application.
type app struct {
	client *mcrdma.Client
	dev    qp.Device

	mu     sync.Mutex
	killed bool
	open   []interface{ Close() error } // connections and listeners
}

// keep closes what an application that was killed has opened too late.
func (a *app) keep(c interface{ Close() error }) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.killed {
		_ = c.Close()
		return net.ErrClosed
	}
	a.open = append(a.open, c)
	return nil
}

// Dial starts the application of a host, which has none: its session with the daemon, and its device. It ends
// with the test, if not before.
func (r *Rack) Dial(host string) *mcrdma.Client {
	r.tb.Helper()
	if r.cables[host] == nil {
		r.tb.Fatalf("mcrdmatest: there is no host %q", host)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.apps[host] != nil {
		r.tb.Fatalf("mcrdmatest: %s has an application already, and has one device: Kill or Close it first", host)
	}
	a := &app{}
	var err error
	a.dev, err = qp.Open(r.lab.Device(host))
	r.must(err)
	a.client, err = mcrdma.Dial(r.tb.Context(), mcrdma.Options{Socket: r.lab.Host(host).Socket, Device: a.dev,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				err = a.keep(c)
			}
			return c, err
		},
		Listen: func(network, address string) (net.Listener, error) {
			l, err := net.Listen(network, address)
			if err == nil {
				err = a.keep(l)
			}
			return &listener{l, a}, err
		}})
	r.must(err)
	r.apps[host] = a
	return a.client
}

// A listener keeps what it accepts.
type listener struct {
	net.Listener
	a *app
}

// Accept waits for a connection.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = l.a.keep(c)
	}
	return c, err
}

func (r *Rack) end(host string, how func(*app)) {
	r.mu.Lock()
	a := r.apps[host]
	delete(r.apps, host)
	r.mu.Unlock()
	if a != nil {
		how(a)
	}
}

// close ends an application in good order.
func (a *app) close() {
	_ = a.client.Close()
	_ = a.dev.Close()
}

// Close ends a host's application in good order. The host may have another one afterward.
func (r *Rack) Close(host string) { r.end(host, (*app).close) }

// Kill ends a host's application as SIGKILL does: its device and its connections are gone, and nothing that the rest
// of it does in the test's process gets out any more. The host may have another one afterward.
func (r *Rack) Kill(host string) {
	r.end(host, func(a *app) {
		a.mu.Lock()
		a.killed = true
		open := a.open
		a.mu.Unlock()
		for _, c := range open { // before the device: an application without one would say that it closes its groups
			_ = c.Close()
		}
		_ = a.dev.Close()
		r.wg.Go(func() { _ = a.client.Close() })
	})
}

// Cut has the switch lose all frames from and to a host, or ends that. Its daemon is still there.
func (r *Rack) Cut(host string, on bool) {
	r.tb.Helper()
	if r.cables[host] == nil {
		r.tb.Fatalf("mcrdmatest: there is no host %q", host)
	}
	r.cables[host].cut.Store(on)
}

// A cable is a port that may lose all frames.
type cable struct {
	ports.Port
	cut atomic.Bool
}

// Send loses what it is given, if the cable is cut.
func (c *cable) Send(frames [][]byte) int {
	if c.cut.Load() {
		return len(frames)
	}
	return c.Port.Send(frames)
}

// Recv waits for frames; those of a cable that is cut are lost.
func (c *cable) Recv(bufs [][]byte) (int, error) {
	for {
		if n, err := c.Port.Recv(bufs); err != nil || !c.cut.Load() {
			return n, err
		}
	}
}
