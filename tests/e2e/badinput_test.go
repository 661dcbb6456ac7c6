package e2e

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// refused makes h1 try to create a group, which must fail with that sentinel error, or one of
// several, and with all of those words.
func refused(t *testing.T, l *lab.Lab, args orders.CreateArgs, sentinel string, words ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args.Name = "refused"
	if args.Service == "" {
		args.Service = "small"
	}
	if args.Regions == nil {
		args.Regions = []uint64{1 << 20}
	}
	start := time.Now()
	err := l.Host("h1").Member.Do(ctx, orders.Create, args, nil)
	took := time.Since(start)
	t.Logf("after %v: %v", took.Round(time.Millisecond), err)
	if !slices.ContainsFunc(strings.Fields(sentinel), func(s string) bool { return lab.Refused(err, s) }) {
		t.Errorf("it does not wrap %s: %v", sentinel, err)
	}
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("it does not say %q", w)
		}
	}
	if took > 7*time.Second {
		t.Errorf("it took %v", took)
	}
	nothingLeft(t, l, 5*time.Second)
}

// Impossible requests are refused with a clear error, and leave nothing behind.
func TestNamespaceBadGroups(t *testing.T) {
	l := startLab(t, lab.Spec{Daemon: hasty, Hosts: map[string]lab.Host{"h2": {MTU: 1500}}})
	dial(t, l.Hosts...)
	h1, h3, h4 := l.Host("h1"), l.Host("h3"), l.Host("h4")
	to := others(l, h1)
	far := []*lab.HostNode{h3, h4}
	listen(t, small, to...)
	listen(t, orders.ListenArgs{Service: "picky", Refuse: "no visitors, please"}, h4)
	listen(t, orders.ListenArgs{Service: "picky"}, h3)
	listen(t, orders.ListenArgs{Service: "slow", Stall: 3000}, h4)
	listen(t, orders.ListenArgs{Service: "slow"}, h3)
	listen(t, orders.ListenArgs{Service: "mean", Small: 100}, far...)

	var many []string
	for i := range 17 {
		many = append(many, fmt.Sprintf("10.2.0.%d", 100+i))
	}
	for _, c := range []struct {
		name     string
		args     orders.CreateArgs
		sentinel string
		words    []string
	}{
		{"unknown service", orders.CreateArgs{Service: "nothing", Receivers: addrs(far)}, "NO_SERVICE", []string{"nothing", "h"}},
		{"impossible service", orders.CreateArgs{Service: "no such/thing", Receivers: addrs(far)}, "ErrInvalid", nil},
		{"refused by policy", orders.CreateArgs{Service: "picky", Receivers: addrs(far)}, "ErrDenied", []string{"no visitors, please", "h4"}},
		{"too many members", orders.CreateArgs{Receivers: many}, "TOO_MANY_RECEIVERS", []string{"17", "16"}},
		{"duplicate addresses", orders.CreateArgs{Receivers: []string{"h3", "10.2.0.11"}}, "DUPLICATE_ADDRESS", []string{"10.2.0.11"}},
		{"the sender itself", orders.CreateArgs{Receivers: []string{"h1", "h3"}}, "ErrInvalid", []string{"h1", "sender"}},
		{"unknown host", orders.CreateArgs{Receivers: []string{"h3", "h99"}}, "NO_SUCH_HOST", []string{"h99"}},
		{"no receivers", orders.CreateArgs{Receivers: []string{}}, "ErrInvalid", nil},
		{"MTU mismatch", orders.CreateArgs{Receivers: addrs(to)}, "MTU", []string{"1024", "4096", "h2"}},
		{"absent host", orders.CreateArgs{Receivers: []string{"h3", "10.2.0.99"}}, "ErrUnreachable", []string{"10.2.0.99"}},
		{"region of nothing", orders.CreateArgs{Receivers: addrs(far), Regions: []uint64{0}}, "ErrInvalid", nil},
		{"region granted too small", orders.CreateArgs{Service: "mean", Receivers: addrs(far)}, "ErrInvalid", []string{"host h", "1048476", "1048576"}},
		{"too many regions", orders.CreateArgs{Receivers: addrs(far), Regions: make([]uint64, 17)}, "ErrInvalid", nil},
		{"impossible min_size", orders.CreateArgs{Receivers: addrs(far), MinSize: 4}, "ErrMinSize", []string{"4", "3"}},
		{"too late", orders.CreateArgs{Service: "slow", Receivers: addrs(far), Millis: 500}, "ErrTimeout DeadlineExceeded", nil},
		{"cancelled in the middle", orders.CreateArgs{Service: "slow", Receivers: addrs(far), Cancel: 500}, "Canceled", nil},
	} {
		t.Run(c.name, func(t *testing.T) { refused(t, l, c.args, c.sentinel, c.words...) })
	}
	t.Run("a smaller MTU does", func(t *testing.T) {
		m := gather(t, h1, to, orders.CreateArgs{Name: "ok", Service: "small", MTU: 1024, Mode: "require", Regions: []uint64{1 << 20}})
		m.work(t, orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Count: 48, Depth: 4, Seed: 1})
		m.close(t)
	})
	nothingLeft(t, l, 5*time.Second)
}

// Invalid certificates, and a daemon of another version.
func TestNamespaceBadPeers(t *testing.T) {
	l := startLab(t, lab.Spec{Daemon: hasty})
	dial(t, l.Hosts...)
	h1, h4 := l.Host("h1"), l.Host("h4")
	listen(t, small, l.Host("h2"), l.Host("h3"))
	to := others(l, h1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	own := identity.Identity{Role: identity.Host, Name: "h4", Addrs: []netip.Addr{h4.Addr}}
	stranger, err := lab.NewCA(l.Dir + "/stranger")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		id    identity.Identity
		ca    *lab.CA
		edit  func(*x509.Certificate)
		words []string
	}{
		{"expired", own, l.CA, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, []string{"h4", "expired"}},
		{"another CA's", own, stranger, func(*x509.Certificate) {}, []string{"h4"}},
		{"another host's name", identity.Identity{Role: identity.Host, Name: "h5", Addrs: []netip.Addr{h4.Addr}}, l.CA, func(*x509.Certificate) {}, []string{"h4", "h5"}},
		{"without the address", identity.Identity{Role: identity.Host, Name: "h4"}, l.CA, func(*x509.Certificate) {}, []string{h4.Addr.String()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files, err := c.ca.Issue(c.id, c.edit)
			if err != nil {
				t.Fatal(err)
			}
			impostor(t, l, h4, files, nil)
			refused(t, l, orders.CreateArgs{Receivers: addrs(to)}, "UNTRUSTED", c.words...)
		})
	}
	t.Run("another version", func(t *testing.T) {
		files, err := h4.Issue()
		if err != nil {
			t.Fatal(err)
		}
		impostor(t, l, h4, files, &future{})
		refused(t, l, orders.CreateArgs{Receivers: addrs(to)}, "ErrVersion", "h4")
	})
	// When everything is in order again, it works.
	if _, err := h4.Issue(); err != nil {
		t.Fatal(err)
	}
	if err := h4.Daemon.Start(ctx); err != nil {
		t.Fatal(err)
	}
	h4.Member.Kill() // it had a session with the daemon that has ended
	if err := h4.NewMember(ctx); err != nil {
		t.Fatal(err)
	}
	dial(t, h4)
	listen(t, small, h4)
	m := gather(t, h1, to, orders.CreateArgs{Name: "ok", Service: "small", Mode: "require", Regions: []uint64{1 << 20}})
	m.work(t, orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Count: 48, Depth: 4, Seed: 1})
	m.close(t)
	nothingLeft(t, l, 5*time.Second)
}

// future is a daemon of a later version.
type future struct {
	mcrdmav1.UnimplementedHostsServer
}

func (f *future) Prepare(context.Context, *mcrdmav1.PrepareRequest) (*mcrdmav1.PrepareResponse, error) {
	return &mcrdmav1.PrepareResponse{Host: "h4", Qpn: 1, Mtu: 4096, Version: 2, Regions: []*mcrdmav1.ReceiverRegion{{Rkey: 1, Va: 1}}}, nil
}

func (f *future) Drop(context.Context, *mcrdmav1.DropRequest) (*mcrdmav1.DropResponse, error) {
	return &mcrdmav1.DropResponse{}, nil
}

// impostor replaces a host's daemon until the test ends, with those files, and no service unless
// there is a server.
func impostor(t *testing.T, l *lab.Lab, h *lab.HostNode, files identity.Files, hosts mcrdmav1.HostsServer) {
	t.Helper()
	h.Daemon.Kill()
	files.CA = l.Dir + "/tls/ca.crt"
	creds, err := files.Server()
	if err != nil {
		t.Fatal(err)
	}
	var listener net.Listener
	err = h.Space.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(h.Addr, 9550).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(creds))
	if hosts != nil {
		mcrdmav1.RegisterHostsServer(g, hosts)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(listener) // until it is stopped
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
}

// Requests that the library itself refuses.
func TestNamespaceBadOperations(t *testing.T) {
	l := startLab(t, lab.Spec{Daemon: hasty})
	dial(t, l.Hosts...)
	h1 := l.Host("h1")
	to := others(l, h1)
	listen(t, small, to...)
	m := gather(t, h1, to, orders.CreateArgs{Name: "g", Service: "small", Mode: "require", Regions: []uint64{1 << 16}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, at := range []int{1, 1 << 16, 1 << 40} {
		err := h1.Member.Do(ctx, orders.Beyond, orders.BeyondArgs{Name: "g", Offset: uint64(at), Size: 1 << 16}, nil)
		if !lab.Refused(err, "ErrInvalid") {
			t.Errorf("a WRITE of 65536 bytes at %d: %v", at, err)
		}
	}
	// The group still works.
	m.work(t, orders.WorkArgs{Kinds: allKinds, Sizes: []int{1, 60_000}, Count: 48, Depth: 4, Seed: 1})
	m.close(t)
	nothingLeft(t, l, 5*time.Second)
}
