package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/tests/osdmaptest"
)

const (
	block      = 4096
	volumeName = "vol"
)

// A rig is hosts with a volume.
type rig struct {
	t       testing.TB
	rack    *mcrdmatest.Rack
	kv      *osdmaptest.KV
	ca      *identitytest.CA
	dir     string
	files   []identity.Files
	options Options
	id      uint64
	mu      sync.Mutex // of hosts, for clients
	hosts   []*machine
	away    chan struct{} // if not nil: hosts that are started reach the configuration manager when it is closed
}

// A machine is a host, which may be killed and started again.
type machine struct {
	*Host
	net    *network
	closed chan struct{} // after a kill: the rest of it has ended
}

func newRig(t testing.TB, hosts, minSize int, size int64, o Options) *rig {
	t.Helper()
	return newRigOf(t, hosts, hosts, minSize, size, o)
}

// newRigOf makes hosts of which the first have the volume.
func newRigOf(t testing.TB, hosts, copies, minSize int, size int64, o Options) *rig {
	t.Helper()
	if _, ok := t.(*testing.T); ok {
		t.Cleanup(func() { goleak.VerifyNone(t) })
	}
	r := &rig{t: t, kv: osdmaptest.New(), dir: t.TempDir(), options: o, id: 0x0123, hosts: make([]*machine, hosts+1)}
	r.rack = mcrdmatest.Start(t, hosts)
	r.ca = identitytest.New(t)
	v := osdmap.Volume{ID: r.id, Name: volumeName, Size: size, BlockSize: block, Created: time.Now()}
	r.files = make([]identity.Files, hosts+1)
	for i := 1; i <= hosts; i++ {
		if i <= copies {
			v.Hosts = append(v.Hosts, core.ID(i))
		}
		r.files[i] = r.ca.Host(fmt.Sprint("h", i))
	}
	if err := osdmap.New(r.kv, osdmap.Options{}).Create(t.Context(), v, osdmap.FirstMap(v, minSize)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i := 1; i <= hosts; i++ {
			r.stop(i)
		}
	})
	for i := 1; i <= hosts; i++ {
		r.start(i)
	}
	return r
}

// start starts a host, when what was killed of it has ended.
func (r *rig) start(i int) {
	r.t.Helper()
	if m := r.hosts[i]; m != nil && m.closed != nil {
		<-m.closed
	}
	at := "127.0.0.1:0"
	if m := r.hosts[i]; m != nil {
		at = m.cfg.Self.Peer
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		r.t.Fatal(err)
	}
	n := &network{away: r.away}
	log := io.Discard
	if os.Getenv("REPLICA_LOG") != "" {
		log = os.Stderr
	}
	m := &machine{net: n}
	m.Host, err = Open(Config{
		Self:   osdmap.Host{ID: core.ID(i), Name: fmt.Sprint("h", i), Peer: l.Addr().String(), NBD: "127.0.0.1:1", Device: fmt.Sprint("10.1.0.", 10+i)},
		Client: r.rack.Dial(fmt.Sprint("h", i)), Manager: osdmap.New(osdmaptest.Faulty{KV: r.kv, Fault: n.fault}, osdmap.Options{}),
		Dir: filepath.Join(r.dir, fmt.Sprint(i)), Listener: &listener{l, n}, Files: r.files[i], Options: r.options, Dial: n.dial,
		Log: slog.New(slog.NewTextHandler(log, nil)).With("h", i),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts[i] = m
}

// kill ends a host's program as SIGKILL does.
func (r *rig) kill(i int) {
	m := r.hosts[i]
	if m == nil || m.closed != nil {
		return
	}
	m.net.kill()
	r.rack.Kill(fmt.Sprint("h", i))
	m.closed = make(chan struct{})
	go func() {
		defer close(m.closed)
		_ = m.Close()
	}()
}

// stop ends a host's program in good order.
func (r *rig) stop(i int) {
	m := r.hosts[i]
	if m == nil {
		return
	}
	if m.closed != nil {
		<-m.closed
	} else if err := m.Close(); err != nil {
		r.t.Error(err)
	}
	r.rack.Close(fmt.Sprint("h", i))
	r.hosts[i] = nil
}

// volume returns the volume at a host, when that has opened it.
func (r *rig) volume(i int) *Volume {
	r.t.Helper()
	var v *Volume
	r.wait("the volume opens", func() (err error) {
		v, err = r.hosts[i].Volume(volumeName)
		return err
	})
	return v
}

// wait waits until f returns nil.
func (r *rig) wait(what string, f func() error) {
	r.t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			for i, m := range r.hosts {
				if m != nil && m.closed == nil {
					for _, v := range m.Volumes() {
						r.t.Logf("h%d: %+v", i, v.Status())
					}
				}
			}
			r.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// primary returns the host that is active.
func (r *rig) primary() int {
	r.t.Helper()
	p := 0
	r.wait("a primary", func() error {
		for i, m := range r.hosts {
			if m == nil || m.closed != nil {
				continue
			}
			if v, err := m.Volume(volumeName); err == nil && v.Status().State == core.Active {
				p = i
				return nil
			}
		}
		return errors.New("none is active")
	})
	return p
}

// acting waits until so many hosts act, and the volume is served.
func (r *rig) acting(n int) {
	r.t.Helper()
	r.wait(fmt.Sprint(n, " acting members"), func() error {
		s := r.volume(r.primary()).Status()
		if len(s.Map.Acting) != n || s.State != core.Active {
			return fmt.Errorf("%+v", s.Status)
		}
		return nil
	})
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// context of a call that must not hang.
func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

func fillBlock(n int) []byte { return bytes.Repeat([]byte(fmt.Sprintf("%08d", n)), block/8) }

// A network is what connects a host's program with others. It may be killed.
type network struct {
	mu   sync.Mutex
	dead atomic.Bool
	away chan struct{}
	open []io.Closer
}

func (n *network) keep(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead.Load() {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	n.open = append(n.open, c)
	return c, nil
}

func (n *network) dial(ctx context.Context, target string) (net.Conn, error) {
	return n.keep(new(net.Dialer).DialContext(ctx, "tcp", target))
}

func (n *network) fault(ctx context.Context, _ string, _ bool) error {
	if n.away != nil {
		select {
		case <-n.away:
		case <-ctx.Done():
		}
	}
	if n.dead.Load() {
		return errors.New("killed")
	}
	return nil
}

func (n *network) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead.Store(true)
	for _, c := range n.open {
		_ = c.Close()
	}
}

type listener struct {
	net.Listener
	n *network
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return l.n.keep(c, err)
}
