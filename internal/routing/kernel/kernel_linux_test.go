package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/routing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A space is a network namespace of the test's own.
type space struct {
	t    *testing.T
	name string
}

func newSpace(t *testing.T) space {
	t.Helper()
	skip := t.Skipf
	if os.Getenv("MCRDMA_MUST_RUN") == "1" {
		skip = t.Fatalf
	}
	if os.Geteuid() != 0 {
		skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		skip("no ip command: %v", err)
	}
	n := space{t, fmt.Sprintf("mcrdma-rt-%d", os.Getpid())}
	if out, err := exec.Command("ip", "netns", "add", n.name).CombinedOutput(); err != nil {
		skip("making a network namespace: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", n.name).CombinedOutput(); err != nil {
			t.Errorf("ip netns del: %v: %s", err, out)
		}
	})
	n.ip("link set lo up")
	for i := range 3 { // v0…v2, their peers in the same namespace
		n.ip(fmt.Sprintf("link add v%d type veth peer name p%d", i, i))
		n.ip(fmt.Sprintf("link set p%d up", i))
		n.ip(fmt.Sprintf("link set v%d up", i))
		n.ip(fmt.Sprintf("addr add 10.0.%d.1/24 dev v%d", i, i))
		n.ip(fmt.Sprintf("addr add 2001:db8:%d::1/64 dev v%d nodad", i, i))
	}
	return n
}

func (n space) ip(args string) {
	n.t.Helper()
	if out, err := exec.Command("ip", append([]string{"-n", n.name}, strings.Fields(args)...)...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

func (n space) batch(lines string) {
	n.t.Helper()
	cmd := exec.Command("ip", "-n", n.name, "-batch", "-")
	cmd.Stdin = strings.NewReader(lines)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("ip -batch: %v: %s", err, out)
	}
}

func (n space) open() *Source {
	n.t.Helper()
	s, err := Open(Config{Namespace: "/run/netns/" + n.name, OnError: func(err error) { n.t.Error(err) }})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			n.t.Error(err)
		}
	})
	return s
}

// await follows the source until the condition holds.
func await(t *testing.T, w *routing.Watch, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !ok() {
		if _, err := w.Next(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func TestNamespaceRoutes(t *testing.T) {
	n := newSpace(t)
	n.ip("route add 10.9.0.0/16 nexthop via 10.0.0.2 weight 3 nexthop via 10.0.1.2")
	s := n.open()
	w := s.Watch()
	is := func(dst, want string) {
		t.Helper()
		var got string
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for {
			got = "nothing"
			if r, ok := s.Lookup(netip.MustParseAddr(dst)); ok {
				got = r.String()
			}
			if got == want {
				return
			}
			if _, err := w.Next(ctx); err != nil {
				t.Fatalf("%s: %s, want %s", dst, got, want)
			}
		}
	}
	is("10.9.1.1", "10.9.0.0/16 → {10.0.0.2 via v0, 10.0.1.2 via v1}") // there when opened
	is("10.0.2.9", "10.0.2.0/24 → {on-link via v2}")
	is("203.0.113.1", "nothing")

	n.ip("route add default via 10.0.2.2")
	is("203.0.113.1", "0.0.0.0/0 → {10.0.2.2 via v2}")
	n.ip("route add blackhole 203.0.113.0/24")
	is("203.0.113.1", "203.0.113.0/24 → {}")
	n.ip("route replace 10.9.0.0/16 nexthop via 10.0.0.2 nexthop via 10.0.1.2 nexthop via 10.0.2.2")
	is("10.9.1.1", "10.9.0.0/16 → {10.0.0.2 via v0, 10.0.1.2 via v1, 10.0.2.2 via v2}")

	n.ip("link set p1 down") // the carrier goes; the route itself stays in the table
	is("10.9.1.1", "10.9.0.0/16 → {10.0.0.2 via v0, 10.0.2.2 via v2}")
	n.ip("link set p1 up")
	is("10.9.1.1", "10.9.0.0/16 → {10.0.0.2 via v0, 10.0.1.2 via v1, 10.0.2.2 via v2}")
	n.ip("link set v2 down") // removes routes without a notification
	is("203.0.114.1", "nothing")
	is("10.9.1.1", "10.9.0.0/16 → {10.0.0.2 via v0, 10.0.1.2 via v1}")

	n.ip("route add 10.9.0.0/16 via 10.0.1.2 metric 50") // the worse route
	n.ip("route add 10.9.0.0/16 via 10.0.0.2 table 77")  // another table
	n.ip("route del 10.9.0.0/16 metric 0")
	is("10.9.1.1", "10.9.0.0/16 → {10.0.1.2 via v1}")
	n.ip("route del 10.9.0.0/16")
	is("10.9.1.1", "nothing")

	n.ip("route add 2001:db8:ff::/48 via 2001:db8:0::2") // the fabric forwards IPv4 only
	n.ip("route add 10.9.0.0/16 via inet6 2001:db8:1::2 dev v1")
	is("10.9.1.1", "10.9.0.0/16 → {2001:db8:1::2 via v1}")
	is("2001:db8:ff::1", "nothing")
}

func TestNamespaceNeighbors(t *testing.T) {
	n := newSpace(t)
	s := n.open()
	w := s.Watch()
	key := routing.NeighborKey{Addr: netip.MustParseAddr("10.0.0.2"), Port: "v0"}
	mac := func(want routing.MAC) func() bool {
		return func() bool { m, ok := s.Neighbor(key); return m == want && ok == (want != routing.MAC{}) }
	}
	await(t, w, "no neighbor", mac(routing.MAC{}))
	n.ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:09 dev v0")
	await(t, w, "neighbor added", mac(routing.MAC{2, 0, 0, 0, 0, 9}))
	n.ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:0a dev v0")
	await(t, w, "neighbor changed", mac(routing.MAC{2, 0, 0, 0, 0, 10}))
	n.ip("neigh del 10.0.0.2 dev v0")
	await(t, w, "neighbor deleted", mac(routing.MAC{}))
}

// Notifications overflow the socket's buffer; the state is right nevertheless.
func TestNamespaceOverflow(t *testing.T) {
	n := newSpace(t)
	s := n.open()
	if err := s.events.SetReceiveBufferSize(1, false); err != nil { // the kernel's least
		t.Fatal(err)
	}
	const routes = 3000
	var add, del strings.Builder
	for i := range routes {
		fmt.Fprintf(&add, "route add 10.%d.%d.0/24 via 10.0.0.2\n", 100+i/256, i%256)
		if i%2 == 0 {
			fmt.Fprintf(&del, "route del 10.%d.%d.0/24\n", 100+i/256, i%256)
		}
	}
	base := len(s.Routes())
	w := s.Watch()
	start := time.Now()
	n.batch(add.String())
	await(t, w, "routes added", func() bool { return len(s.Routes()) == base+routes })
	t.Logf("%d routes added and seen in %v", routes, time.Since(start))
	n.batch(del.String())
	await(t, w, "half of them deleted", func() bool { return len(s.Routes()) == base+routes/2 })
}

func TestOpenFails(t *testing.T) {
	if _, err := Open(Config{Namespace: "/nonexistent"}); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Fatal(err)
	}
}

func TestBestPicksByMetric(t *testing.T) {
	ipnet, err := netlink.ParseIPNet("10.1.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	names := map[int]string{1: "a", 2: "b", 3: "c"}
	on := func(index, metric, tos, flags int) netlink.Route {
		return netlink.Route{Dst: ipnet, LinkIndex: index, Priority: metric, Tos: tos, Flags: flags, Type: unix.RTN_UNICAST}
	}
	for _, c := range []struct {
		list []netlink.Route
		want string
	}{
		{[]netlink.Route{on(1, 20, 0, 0), on(2, 10, 0, 0), on(3, 10, 0, 0)}, "{on-link via b}"},
		{[]netlink.Route{on(1, 5, 4, 0), on(2, 10, 0, 0)}, "{on-link via b}"},
		{[]netlink.Route{on(1, 5, 0, unix.RTNH_F_LINKDOWN), on(2, 10, 0, 0)}, "{on-link via b}"},
		{[]netlink.Route{on(9, 5, 0, 0), on(2, 10, 0, 0)}, "{on-link via b}"}, // the interface is gone
	} {
		got := best(c.list, names)
		if len(got) != 1 || got[0].Hops.String() != c.want {
			t.Errorf("%v: got %v, want %v", c.list, got, c.want)
		}
	}
}
