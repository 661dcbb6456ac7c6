package bgp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/mcrdma/mcrdma/internal/routing"
)

// GoBGP's own goroutines for serving and for finished sessions cannot be ended.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).Serve"),
		goleak.IgnoreAnyFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

// A speaker of a test, at a loopback address of its own.
type speaker struct {
	*Source
	addr netip.Addr
	asn  uint32
}

// speakers opens n speakers at 127.1.0.1 and up, all at one free port.
func speakers(t *testing.T, n int, drain time.Duration) ([]speaker, uint16) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.1.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var list []speaker
	for i := range n {
		addr := netip.AddrFrom4([4]byte{127, 1, 0, byte(i + 1)})
		asn := 4200000001 + uint32(i)
		s, err := Open(t.Context(), Config{ASN: asn, RouterID: addr, Listen: []netip.Addr{addr}, ListenPort: port, DrainTime: drain})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		list = append(list, speaker{s, addr, asn})
	}
	return list, port
}

func connect(t *testing.T, a, b speaker, port uint16) {
	t.Helper()
	for _, err := range []error{
		b.AddPeer(t.Context(), Peer{Addr: a.addr, ASN: a.asn, Local: b.addr, Passive: true}),
		a.AddPeer(t.Context(), Peer{Addr: b.addr, ASN: b.asn, Local: a.addr, Port: port}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// becomes waits until the next hops of an address are as wanted.
func becomes(t *testing.T, s *Source, dst, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w := s.Watch()
	defer w.Close()
	for {
		got := "nothing"
		if r, ok := s.Lookup(netip.MustParseAddr(dst)); ok {
			got = r.Hops.String()
		}
		if got == want {
			return
		}
		if _, err := w.Next(ctx); err != nil {
			t.Fatalf("%s: %s, want %s (%v)", dst, got, want, err)
		}
	}
}

// Two leaves, two spines: equal-cost paths through different ASes, withdrawal
// of a prefix, of a session, and of a speaker.
func TestMultipath(t *testing.T) {
	sp, port := speakers(t, 4, 0)
	leaf1, leaf2, spine1, spine2 := sp[0], sp[1], sp[2], sp[3]
	if err := leaf2.Announce(t.Context(), netip.MustParsePrefix("10.2.0.0/24")); err != nil {
		t.Fatal(err)
	}
	connect(t, leaf1, spine1, port)
	connect(t, leaf1, spine2, port)
	connect(t, leaf2, spine1, port)
	connect(t, leaf2, spine2, port)
	becomes(t, leaf1.Source, "10.2.0.9", "{127.1.0.3, 127.1.0.4}")
	becomes(t, spine1.Source, "10.2.0.9", "{127.1.0.2}")
	if _, ok := leaf2.Lookup(netip.MustParseAddr("10.2.0.9")); ok {
		t.Error("a speaker has a route to its own prefix")
	}

	if err := leaf1.Announce(t.Context(), netip.MustParsePrefix("10.1.0.0/24")); err != nil {
		t.Fatal(err)
	}
	becomes(t, leaf2.Source, "10.1.0.1", "{127.1.0.3, 127.1.0.4}")
	if err := leaf1.Withdraw(t.Context(), netip.MustParsePrefix("10.1.0.0/24")); err != nil {
		t.Fatal(err)
	}
	becomes(t, leaf2.Source, "10.1.0.1", "nothing")

	if err := leaf1.RemovePeer(t.Context(), spine2.addr); err != nil {
		t.Fatal(err)
	}
	becomes(t, leaf1.Source, "10.2.0.9", "{127.1.0.3}")
	if err := spine1.Close(); err != nil {
		t.Fatal(err)
	}
	becomes(t, leaf1.Source, "10.2.0.9", "nothing")
	becomes(t, leaf2.Source, "10.2.0.9", "nothing")
}

// TestNeighbors: what is reported of sessions that are up, that have ended, and that
// never came up.
func TestNeighbors(t *testing.T) {
	sp, port := speakers(t, 3, 0)
	a, b := sp[0], sp[1]
	for _, p := range []string{"10.2.0.0/24", "10.2.1.0/24"} {
		if err := b.Announce(t.Context(), netip.MustParsePrefix(p)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Announce(t.Context(), netip.MustParsePrefix("10.1.0.0/24")); err != nil {
		t.Fatal(err)
	}
	begun := time.Now().Truncate(time.Second)
	connect(t, a, b, port)
	if err := sp[2].AddPeer(t.Context(), Peer{Addr: a.addr, ASN: b.asn, Local: sp[2].addr, Passive: true}); err != nil {
		t.Fatal(err) // it refuses a, which has another AS number
	}
	if err := a.AddPeer(t.Context(), Peer{Addr: sp[2].addr, ASN: sp[2].asn, Local: a.addr, Port: port}); err != nil {
		t.Fatal(err)
	}
	becomes(t, a.Source, "10.2.1.1", "{127.1.0.2}")
	becomes(t, b.Source, "10.1.0.1", "{127.1.0.1}")
	get := func() []Neighbor {
		list, err := a.Neighbors(t.Context())
		if err != nil || len(list) != 2 {
			t.Fatal(list, err)
		}
		return list
	}
	list := get()
	other, err := b.Neighbors(t.Context())
	if err != nil || len(other) != 1 || other[0].Accepted != 1 {
		t.Fatalf("the other side: %+v, %v", other, err)
	}
	want := Neighbor{Addr: b.addr, ASN: b.asn, State: Established, Since: list[0].Since, NextHop: a.addr, Received: 2, Accepted: 2, Advertised: other[0].Received}
	if list[0] != want || list[0].Since.Before(begun) || time.Now().Before(list[0].Since) {
		t.Errorf("%+v, want %+v", list[0], want)
	}
	if n := list[1]; n.Addr != sp[2].addr || n.State == Established || n.State == "" || n.Received != 0 {
		t.Errorf("a session that cannot be: %+v", n)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	becomes(t, a.Source, "10.2.1.1", "nothing")
	n := get()[0]
	if n.State == Established || n.Since.Before(list[0].Since) || n.Received != 0 || n.Advertised != 0 {
		t.Errorf("a session that has ended: %+v", n)
	}
	for from := time.Now(); time.Since(from) < 3*time.Second; time.Sleep(100 * time.Millisecond) {
		if now := get(); now[0].Since != n.Since || now[1].Since != list[1].Since || now[1].Advertised != 0 {
			t.Fatalf("attempts count as ends: %+v, before %+v", now, []Neighbor{n, list[1]})
		}
	}
}

// While a speaker drains, traffic turns to the other path, and only with no
// other path stays.
func TestGracefulShutdown(t *testing.T) {
	sp, port := speakers(t, 4, time.Second)
	leaf1, leaf2, spine1, spine2 := sp[0], sp[1], sp[2], sp[3]
	if err := leaf2.Announce(t.Context(), netip.MustParsePrefix("10.2.0.0/24")); err != nil {
		t.Fatal(err)
	}
	if err := spine1.Announce(t.Context(), netip.MustParsePrefix("10.3.0.0/24")); err != nil {
		t.Fatal(err)
	}
	for _, leaf := range []speaker{leaf1, leaf2} {
		connect(t, leaf, spine1, port)
		connect(t, leaf, spine2, port)
	}
	becomes(t, leaf1.Source, "10.2.0.9", "{127.1.0.3, 127.1.0.4}")
	becomes(t, leaf1.Source, "10.3.0.9", "{127.1.0.3}")
	closed := make(chan error, 1)
	go func() { closed <- spine1.Close() }()
	becomes(t, leaf1.Source, "10.2.0.9", "{127.1.0.4}")
	select {
	case err := <-closed:
		t.Fatalf("closed (%v) before the others had turned away", err)
	default:
	}
	if _, ok := leaf1.Lookup(netip.MustParseAddr("10.3.0.9")); !ok {
		t.Error("the only path was given up while it still worked")
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	becomes(t, leaf1.Source, "10.3.0.9", "nothing")
}

func TestBadInput(t *testing.T) {
	id := netip.MustParseAddr("127.1.0.1")
	for _, cfg := range []Config{{}, {ASN: 65535, RouterID: id}, {ASN: 65001}, {ASN: 65001, RouterID: netip.IPv6Loopback()}} {
		if _, err := Open(t.Context(), cfg); err == nil {
			t.Errorf("%+v passed", cfg)
		}
	}
	l, err := net.Listen("tcp4", "127.1.0.1:0") // the port is in use
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // only to hold the port
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	if _, err := Open(t.Context(), Config{ASN: 65001, RouterID: id, Listen: []netip.Addr{id}, ListenPort: port}); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprint(port)) {
		t.Errorf("port in use: %v", err)
	}
	s, err := Open(t.Context(), Config{ASN: 65001, RouterID: id})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Peer{{}, {Addr: id}, {Addr: id, ASN: 65001}, {Addr: id, ASN: 65002, HoldTime: time.Second}} {
		if err := s.AddPeer(t.Context(), p); err == nil {
			t.Errorf("%+v passed", p)
		}
	}
	if err := s.Announce(t.Context(), netip.Prefix{}); err == nil {
		t.Error("no prefix passed")
	}
	if err := s.Withdraw(t.Context(), netip.MustParsePrefix("10.0.0.0/8")); err != nil {
		t.Errorf("withdrawal of what was not announced: %v", err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestEqualCost(t *testing.T) {
	path := func(hop string, pref uint32, asns ...uint32) *api.Path {
		p := &api.Path{}
		for _, m := range []proto.Message{&api.NextHopAttribute{NextHop: hop}, &api.LocalPrefAttribute{LocalPref: pref},
			&api.AsPathAttribute{Segments: []*api.AsSegment{{Type: api.AsSegment_AS_SEQUENCE, Numbers: asns}}}} {
			a, err := anypb.New(m)
			if err != nil {
				t.Fatal(err)
			}
			p.Pattrs = append(p.Pattrs, a)
		}
		p.Pattrs = append(p.Pattrs, &anypb.Any{TypeUrl: "unheard/of"})
		return p
	}
	for _, c := range []struct {
		paths []*api.Path
		want  string
	}{
		{nil, "{}"},
		{[]*api.Path{path("10.0.0.2", 100, 1, 2), path("10.0.0.1", 100, 3, 4), path("10.0.0.3", 100, 5, 6, 7)}, "{10.0.0.1, 10.0.0.2}"},
		{[]*api.Path{path("10.0.0.2", 100, 1, 2), path("10.0.0.1", 0, 3, 4)}, "{10.0.0.2}"},
		{[]*api.Path{path("0.0.0.0", 100), path("10.0.0.1", 100, 3, 4)}, "{}"},
		{[]*api.Path{path("2001:db8::1", 100, 1), path("2001:db8::1", 100, 2)}, "{2001:db8::1}"},
	} {
		if got := equalCost(c.paths); got.String() != c.want {
			t.Errorf("got %v, want %v", got, c.want)
		}
	}
}

var _ routing.Source = speaker{}
