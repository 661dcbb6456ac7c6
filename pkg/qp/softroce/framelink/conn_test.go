package framelink

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func frames(ss ...string) (fs [][]byte) {
	for _, s := range ss {
		fs = append(fs, []byte(s))
	}
	return fs
}

// drain receives until it has n frames.
func drain(t *testing.T, c Conn, n int) (got []string) {
	t.Helper()
	fs := make([][]byte, 7)
	for len(got) < n {
		k, err := c.Recv(fs)
		if err != nil || k == 0 {
			t.Fatalf("after %d of %d frames: %d, %v", len(got), n, k, err)
		}
		for _, f := range fs[:k] {
			got = append(got, string(f))
		}
	}
	return got
}

func dial(t testing.TB, cfg TunnelConfig) *Tunnel {
	t.Helper()
	c, err := DialTunnel(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	// Nothing here waits longer than this.
	if err := c.udp.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

var anyPort = netip.MustParseAddrPort("127.0.0.1:0")

// freePort returns a loopback address that is free just now.
func freePort(t testing.TB) netip.AddrPort {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(anyPort))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func testTunnel(t testing.TB) (Conn, Conn) {
	at := freePort(t)
	a := dial(t, TunnelConfig{Local: anyPort, Remote: at})
	return a, dial(t, TunnelConfig{Local: at, Remote: a.LocalAddr()})
}

func TestTunnelPair(t *testing.T) {
	ca, cb := testTunnel(t)
	a := newHost(t, ca, Config{Prefix: prefix("10.0.0.1/24")})
	b := newHost(t, cb, Config{Prefix: prefix("10.0.0.2/24")})
	exchange(t, a, b)
	if counters(a)["syscalls"] == 0 {
		t.Error("no system calls counted")
	}
}

func TestTunnelFilter(t *testing.T) {
	at := freePort(t)
	a := dial(t, TunnelConfig{Local: anyPort, Remote: at})
	b := dial(t, TunnelConfig{Local: at, Remote: a.LocalAddr(), MaxFrame: 60})
	stranger := dial(t, TunnelConfig{Local: anyPort, Remote: at})
	frame := strings.Repeat("f", 60)
	if err := errors.Join(
		stranger.Send(frames(frame)),
		a.Send(frames("", strings.Repeat("s", 13), strings.Repeat("l", 61), frame)),
	); err != nil {
		t.Fatal(err)
	}
	if got := drain(t, b, 1); got[0] != frame {
		t.Errorf("received %q", got)
	}
	checkCounters(t, b, map[string]uint64{"rx_drop_remote": 1, "rx_drop_runt": 2, "rx_drop_too_long": 1})
}

// What the network refuses is lost like on any cable; the rest goes.
func TestTunnelLoss(t *testing.T) {
	ca, cb := testTunnel(t)
	if err := ca.Send(frames("one frame here", string(make([]byte, 66000)), "another frame!")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one frame here", "another frame!"}, drain(t, cb, 2)); diff != "" {
		t.Error(diff)
	}
	checkCounters(t, ca, map[string]uint64{"tx_drop_tunnel": 1})
	// A missing peer is no error either.
	cb.Close()
	for range 5 {
		if err := ca.Send(frames("is the peer there?")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTunnelConfig(t *testing.T) {
	ap := netip.MustParseAddrPort
	for name, cfg := range map[string]TunnelConfig{
		"empty":            {},
		"no remote":        {Local: anyPort},
		"remote port 0":    {Local: anyPort, Remote: anyPort},
		"remote any":       {Local: anyPort, Remote: ap("0.0.0.0:1")},
		"remote multicast": {Local: anyPort, Remote: ap("224.0.0.1:1")},
		"families":         {Local: anyPort, Remote: ap("[::1]:1")},
		"zone":             {Local: ap("[fe80::1%lo]:1"), Remote: ap("[fe80::2]:1")},
		"frame too small":  {Local: anyPort, Remote: ap("127.0.0.1:1"), MaxFrame: 13},
		"frame too large":  {Local: anyPort, Remote: ap("127.0.0.1:1"), MaxFrame: 65508},
		"buffer":           {Local: anyPort, Remote: ap("127.0.0.1:1"), Buffer: -1},
	} {
		if c, err := DialTunnel(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v, %v; want ErrConfig", name, c, err)
		}
	}
	a := dial(t, TunnelConfig{Local: anyPort, Remote: ap("127.0.0.1:1")})
	if c, err := DialTunnel(TunnelConfig{Local: a.LocalAddr(), Remote: ap("127.0.0.1:1")}); err == nil {
		c.Close()
		t.Error("one address twice")
	}
}
