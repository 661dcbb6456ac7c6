package fabric

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/switchspec"
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
