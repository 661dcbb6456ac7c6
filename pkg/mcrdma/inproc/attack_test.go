package inproc

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
)

// refused is how many requests a daemon has counted as refused for a reason.
func refused(t *testing.T, g prometheus.Gatherer, reason string) int {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "mcrdma_daemon_refused_total" && m.GetLabel()[0].GetValue() == reason {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

// TestAttackOnAccept: a receiver wants the groups of one host only. Another, whose
// certificate is good, asks again and again, and pretends to run the same program; its name
// is what its certificate says, and so it is refused. The first one's data arrives all the
// time.
func TestAttackOnAccept(t *testing.T) {
	ca := identitytest.New(t)
	var hosts []Host
	var listeners []net.Listener
	for i := range 3 {
		addr := netip.AddrFrom4([4]byte{127, 9, 2, byte(i + 1)})
		l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		hosts = append(hosts, Host{Name: fmt.Sprint("h", i+1), Address: addr, Daemon: l.Addr().String()})
	}
	metrics := prometheus.NewRegistry() // of the receiver
	var clients []*mcrdma.Client
	for i, h := range hosts {
		files := ca.Host(h.Name, h.Address)
		o := Options{Name: h.Name, Address: h.Address, Listener: listeners[i], Cert: files.Cert, Key: files.Key, CA: files.CA,
			Hosts: append(append([]Host(nil), hosts[:i]...), hosts[i+1:]...)}
		if h.Name == "h2" {
			o.Metrics = metrics
		}
		d, err := Start(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		c, err := mcrdma.Dial(t.Context(), mcrdma.Options{Socket: d.Socket(), Program: "the same"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	const size = 4096
	theirs, err := clients[1].Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	errNot := errors.New("not wanted here")
	l, err := clients[1].Listen(t.Context(), mcrdma.ListenConfig{Service: "s", Accept: func(r *mcrdma.Request) (*mcrdma.Grant, error) {
		if r.Sender != "h1" {
			return nil, errNot
		}
		return &mcrdma.Grant{Regions: []mcrdma.Piece{theirs.All()}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := mcrdma.GroupConfig{Service: "s", Receivers: []string{"h2"}, Regions: []mcrdma.Region{{Length: size}}}
	g, err := clients[0].Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	member, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mine, err := clients[0].Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	write := func(n int) {
		t.Helper()
		copy(mine.Bytes(), bytes.Repeat([]byte{byte(n), byte(n >> 8), 1, 2}, size/4))
		if err := g.Write(t.Context(), mcrdma.At{}, mine.All()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(member.Region(0), mine.Bytes()) {
			t.Fatalf("write %d is not what the receiver has", n)
		}
		member.Region(0) // what is written after this comes after that, for the race detector
	}
	const times = 20
	var wg sync.WaitGroup
	asked := make(chan struct{})
	wg.Go(func() {
		defer close(asked)
		for range times {
			if _, err := clients[2].Create(t.Context(), cfg); !errors.Is(err, mcrdma.ErrDenied) {
				t.Errorf("mallory's group: %v", err)
			}
		}
	})
	n := 0
	for done := false; !done; n++ {
		select {
		case <-asked:
			done = true
		default:
		}
		write(n)
	}
	wg.Wait()
	if got := refused(t, metrics, "DENIED"); got != times {
		t.Errorf("the daemon counted %d requests as denied, want %d", got, times)
	}
	if i := g.Info(); i.Formation != 1 || len(i.Members) != 1 {
		t.Errorf("the group has changed: %+v", i)
	}
	another, err := clients[0].Create(t.Context(), cfg) // room for it is there still
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []*mcrdma.Group{another, g} {
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := member.Recv(t.Context()); !errors.Is(err, mcrdma.ErrClosed) {
		t.Error(err)
	}
}
