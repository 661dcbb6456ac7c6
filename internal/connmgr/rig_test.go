package connmgr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

func TestMain(m *testing.M) {
	testenv.OneProcessor()
	goleak.VerifyTestMain(m)
}

// Threads that take another user's identity are thrown away, which the main thread
// cannot be: no goroutine but main's is on it.
func init() { runtime.LockOSThread() }

// A rig is some hosts, each with its daemon, connected in memory.
type rig struct {
	t     testing.TB
	dir   string
	net   *memnet.Network  // nil: the kernel's sockets
	ca    *identitytest.CA // nil: plain text
	hosts []*host
	sw    *fakeSwitch // nil: none
}

type host struct {
	r      *rig
	name   string
	addr   netip.Addr
	listen string
	files  identity.Files
	m      *Manager
	stop   func()
	last   string // what was left
	conns  []*grpc.ClientConn

	mu          sync.Mutex
	dead        bool // nothing gets out any more
	hook        hook // around calls to other daemons
	hung        map[netip.Addr]bool
	views       bool // its applications call AckView
	full, short int  // beats that have named groups, and that have not
	// asked is the request to receivers for each formation; a different one the second time
	// is an error.
	asked map[string]string
}

// A hook wraps calls of a daemon to others.
type hook func(ctx context.Context, method string, to *host, call func(context.Context) error) error

func (h *host) setHook(f hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = f
}

// hang makes beats to a host hang, as if it were cut off, or ends that.
func (h *host) hang(to *host, on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hung[to.addr] = on
}

func (h *host) hangs(to netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hung[to]
}

func (h *host) intercept(ctx context.Context, full string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	_, method, _ := cut(full)
	target := strings.TrimPrefix(cc.Target(), "passthrough:///")
	var to *host
	for _, o := range h.r.hosts {
		if o.listen == target {
			to = o
		}
	}
	if h.isDead() {
		return errDead
	}
	if to != nil && h.hangs(to.addr) {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	h.mu.Lock()
	f := h.hook
	if b, ok := req.(*mcrdmav1.BeatRequest); ok && len(b.GetGroups()) > 0 {
		h.full++
	} else if ok {
		h.short++
	}
	if p, ok := req.(*mcrdmav1.PrepareRequest); ok {
		number, content := fmt.Sprintf("%v formation %d", p.GetGroup(), p.GetFormation()), p.GetConnection().String()
		if was, there := h.asked[number]; there && was != content {
			h.r.t.Errorf("%s: a number is used twice: %s for %s and then %s", h.name, number, was, content)
		}
		h.asked[number] = content
	}
	h.mu.Unlock()
	call := func(ctx context.Context) error { return invoke(ctx, full, req, reply, cc, opts...) }
	if f == nil || to == nil {
		return call(ctx)
	}
	return f(ctx, method, to, call)
}

// hostAddr is that of host i, from 1 on: all of 127/8 is this machine.
func hostAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 9, 0, byte(i)}) }

type rigOption func(*rig)

func withTLS(r *rig)    { r.ca = identitytest.New(r.t) }
func withSwitch(r *rig) { r.sw = newFakeSwitch(r) }

// onSockets has the rig use the kernel's sockets, for what the kernel does.
func onSockets(r *rig) { r.net = nil }

// listen listens for a process.
func (r *rig) listen(process, addr string) net.Listener {
	r.t.Helper()
	var l net.Listener
	var err error
	if r.net != nil {
		l, err = r.net.Listen(process, addr)
	} else {
		l, err = net.Listen("tcp", addr)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// dialer makes a process's connections.
func (r *rig) dialer(process string) func(context.Context, string) (net.Conn, error) {
	if r.net == nil {
		return nil
	}
	return func(ctx context.Context, addr string) (net.Conn, error) { return r.net.Dial(ctx, process, addr) }
}

// newRig starts n hosts, h1 to hn.
func newRig(t testing.TB, n int, options ...rigOption) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "connmgr") // short: paths of sockets are
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, dir: dir, net: memnet.New()}
	for _, o := range options {
		o(r)
	}
	t.Cleanup(r.close)
	r.add(n)
	for i := range r.hosts {
		r.start(i + 1)
	}
	return r
}

// add adds hosts that are not started.
func (r *rig) add(n int) {
	for i := len(r.hosts) + 1; n > 0; i, n = i+1, n-1 {
		h := &host{r: r, name: fmt.Sprintf("h%d", i), addr: hostAddr(i), hung: map[netip.Addr]bool{}, asked: map[string]string{}}
		l := r.listen(h.process(), net.JoinHostPort(hostAddr(i).String(), "0"))
		h.listen = l.Addr().String()
		_ = l.Close()
		if r.ca != nil {
			h.files = r.ca.Host(h.name, h.addr)
		}
		r.hosts = append(r.hosts, h)
	}
}

func (r *rig) close() {
	for _, h := range r.hosts {
		h.kill()
		for _, c := range h.conns {
			_ = c.Close()
		}
	}
	if r.sw != nil {
		r.sw.close()
	}
}

// process is the daemon's.
func (h *host) process() string { return h.name + "/daemon" }

// host is host i, from 1 on.
func (r *rig) host(i int) *host { return r.hosts[i-1] }

func (r *rig) config(i int) *config.Config {
	h := r.host(i)
	c := &config.Config{Name: h.name, Address: h.addr, Listen: h.listen, Socket: filepath.Join(r.dir, h.name+".sock"),
		State: filepath.Join(r.dir, h.name+".db"), TLS: config.TLS{Cert: h.files.Cert, Key: h.files.Key, CA: h.files.CA}, Rack: uint32(1 + i%2)}
	for _, o := range r.hosts {
		if o != h {
			c.Hosts = append(c.Hosts, config.Host{Name: o.name, Address: o.addr, Daemon: o.listen})
		}
	}
	if r.sw != nil {
		c.Switch = config.Switch{Name: "torA", Agent: r.sw.addr}
	}
	return c
}

func testLog(name string) *slog.Logger {
	if !testing.Verbose() {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("at", name)
}

// from has a client's connections come from a process.
func (r *rig) from(process string) grpc.DialOption {
	if r.net == nil {
		return grpc.EmptyDialOption{}
	}
	return grpc.WithContextDialer(r.dialer(process))
}

// start starts the daemon of host i, and waits until it serves.
func (r *rig) start(i int, change ...func(*config.Config, *Options)) *host {
	r.t.Helper()
	h := r.host(i)
	cfg := r.config(i)
	o := Options{Logger: testLog(h.name), Version: "test", Dial: r.dialer(h.process()),
		DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(h.intercept)},
		OpenStore: func(ctx context.Context, path string) (Store, error) {
			return store.Open(ctx, path, store.Options{NoSync: true})
		}}
	if r.net != nil {
		o.Hosts, o.Apps = r.listen(h.process(), cfg.Listen), r.listen(h.process(), cfg.Socket)
	}
	for _, f := range change {
		f(cfg, &o)
	}
	m, err := New(context.Background(), cfg, o)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	h.m = m
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("%s: %v", h.name, err)
		}
	})
	select {
	case <-m.Ready():
	case <-time.After(10 * time.Second):
		r.t.Fatalf("%s does not serve", h.name)
	}
	return h
}

var errDead = status.Error(codes.Unavailable, "killed")

func (h *host) isDead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead
}

func (h *host) setDead(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = on
}

func (h *host) kill() {
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

// restart stops a daemon and starts it again.
func (r *rig) restart(i int, change ...func(*config.Config, *Options)) {
	r.t.Helper()
	r.host(i).kill()
	r.start(i, change...)
}

// pass lets time pass, and what is due be done.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	if r.net != nil {
		synctest.Wait()
	}
}

// until polls until a condition holds.
func (r *rig) until(what string, f func() bool) {
	r.t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			for _, h := range r.hosts {
				if h.last != "" {
					what += "; " + h.name + " has" + h.last
				}
			}
			r.t.Fatalf("not so after a long time: %s", what)
		}
	}
}

// reasonOf is the ErrorInfo of an error.
func reasonOf(err error) (reason, host, sw string) {
	for _, d := range status.Convert(err).Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			return i.GetReason(), i.GetMetadata()["host"], i.GetMetadata()["switch"]
		}
	}
	return "", "", ""
}

// wantNothing checks that no daemon, no application, no store and no switch has anything
// left.
func (r *rig) wantNothing() {
	r.t.Helper()
	for _, h := range r.hosts {
		if h.stop == nil {
			continue
		}
		r.until("nothing is left at "+h.name, func() bool {
			h.last = h.leftovers()
			return h.last == ""
		})
	}
	if r.sw != nil {
		r.until("nothing is left at the switch", func() bool { return len(r.sw.list()) == 0 })
	}
}

// mcIDs is how many MC_IDs are in use.
func (h *host) mcIDs() (n int) {
	for range h.m.mcIDs.inUse.Range {
		n++
	}
	return n
}

// leftovers says what a daemon has.
func (h *host) leftovers() string {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	out := ""
	if n := len(m.groups); n > 0 {
		out += fmt.Sprintf(" %d groups", n)
	}
	if n := m.members.count(netip.Addr{}); n > 0 {
		out += fmt.Sprintf(" %d memberships", n)
	}
	m.members.mu.Lock()
	if n := len(m.members.attached) + len(m.members.calls); n > 0 {
		out += fmt.Sprintf(" %d attachments and calls", n)
	}
	m.members.mu.Unlock()
	if n := h.mcIDs(); n > 0 {
		out += fmt.Sprintf(" %d MC_IDs", n)
	}
	m.peers.mu.Lock()
	defer m.peers.mu.Unlock()
	for _, p := range m.peers.at {
		if p.users != 0 {
			out += fmt.Sprintf(" %v is used %d times", p.addr, p.users)
		}
	}
	if n := len(m.peers.health.Peers()); n > 0 {
		out += fmt.Sprintf(" %d hosts are followed", n)
	}
	for _, b := range []string{groupsBucket, membersBucket} {
		for range m.store.Load(b) {
			out += " " + b + " in the store"
		}
	}
	return out
}

var errNot = errors.New("not")

// part is a part of a test within its bubble, where t.Run may not be called.
func part(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	before := t.Failed()
	f(t)
	if t.Failed() && !before {
		t.Log("it failed in part", name)
	}
}
