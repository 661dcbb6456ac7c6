package ports

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

func tunnel(t testing.TB, remote netip.AddrPort, o Options) *Tunnel {
	t.Helper()
	p, err := OpenTunnel(TunnelConfig{Local: netip.MustParseAddrPort("127.0.0.1:0"), Remote: remote, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestTunnelFramelink: a host's framelink and a switch's tunnel understand each
// other.
func TestTunnelFramelink(t *testing.T) {
	near, far := netip.AddrPortFrom(testenv.Loopback(), 4000), netip.AddrPortFrom(testenv.Loopback(), 4000)
	host, err := framelink.DialTunnel(framelink.TunnelConfig{Local: near, Remote: far})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	p, err := OpenTunnel(TunnelConfig{Local: far, Remote: near})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var want [][]byte
	for i := range 200 {
		want = append(want, frame(HeaderLen+i*45, i))
	}
	if n := p.Send(want); n != len(want) {
		t.Fatal(n)
	}
	var got [][]byte
	for len(got) < len(want) {
		frames := make([][]byte, 64)
		n, err := host.Recv(frames)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range frames[:n] {
			got = append(got, slices.Clone(f))
		}
	}
	if err := equal(got, want); err != nil {
		t.Error(err)
	}
	c := collect(t, p, 9600)
	if err := host.Send(want); err != nil {
		t.Fatal(err)
	}
	if got, err = c.wait(len(want)); err == nil {
		err = equal(got, want)
	}
	if err != nil {
		t.Error(err)
	}
	s := p.Stats()
	if s.RxPackets != 200 || s.TxPackets != 200 || s.RxBytes != s.TxBytes || len(s.Drops) != 0 {
		t.Errorf("%+v", s)
	}
}

// TestTunnelDrops: what is not a frame of the peer's is dropped by its reason,
// and what is kept stays whole though it shares a batch with it.
func TestTunnelDrops(t *testing.T) {
	lo := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
	peer, err := net.ListenUDP("udp", lo)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	stranger, err := net.ListenUDP("udp", lo)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	var hints []string
	p := tunnel(t, peer.LocalAddr().(*net.UDPAddr).AddrPort(), Options{Hint: func(s string) { hints = append(hints, s) }})
	send := func(c *net.UDPConn, b []byte) {
		t.Helper()
		if _, err := c.WriteToUDPAddrPort(b, p.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	var want [][]byte
	for i := range 5 {
		send(stranger, frame(60, 99))
		send(peer, frame(13, 99))
		send(peer, frame(1501, 99))
		want = append(want, frame(1500-i, i))
		send(peer, want[i])
	}
	var got [][]byte
	bufs := room(7, 1500)
	for len(got) < 5 {
		n, err := p.Recv(bufs)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range bufs[:n] {
			got = append(got, slices.Clone(b))
		}
	}
	if err := equal(got, want); err != nil {
		t.Error(err)
	}
	seen := map[*byte]bool{}
	for _, b := range bufs {
		seen[&b[:1][0]] = true
	}
	if len(seen) != len(bufs) {
		t.Error("a buffer was lost or is there twice")
	}
	p.Send([][]byte{frame(13, 0), frame(70000, 0), frame(60, 1)})
	d := p.Stats().Drops
	if d["rx_stranger"] != 5 || d["rx_runt"] != 5 || d["rx_too_long"] != 5 || d["tx_runt"] != 1 || d["tx_too_long"] != 1 {
		t.Error(d)
	}
	if len(hints) != 1 || !strings.Contains(hints[0], stranger.LocalAddr().String()) {
		t.Errorf("hints: %q", hints)
	}
	if n, err := peer.Read(make([]byte, 2000)); n != 60 || err != nil {
		t.Errorf("what came out after two bad frames: %d bytes, %v", n, err)
	}
}

func TestTunnelClose(t *testing.T) {
	closes(t, tunnel(t, netip.MustParseAddrPort("127.0.0.1:9"), Options{}))
}

func TestTunnelConfig(t *testing.T) {
	for _, c := range [][2]string{
		{"", "127.0.0.1:9"},
		{"127.0.0.1:0", ""},
		{"127.0.0.1:0", "127.0.0.1:0"},
		{"127.0.0.1:0", "0.0.0.0:9"},
		{"127.0.0.1:0", "224.0.0.1:9"},
		{"127.0.0.1:0", "[::1]:9"},
		{"127.0.0.1:0", "[fe80::1%lo]:9"},
	} {
		var cfg TunnelConfig
		cfg.Local, _ = netip.ParseAddrPort(c[0])
		cfg.Remote, _ = netip.ParseAddrPort(c[1])
		if p, err := OpenTunnel(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%v: %v, %v", c, p, err)
		}
	}
	first := tunnel(t, netip.MustParseAddrPort("127.0.0.1:9"), Options{})
	_, err := OpenTunnel(TunnelConfig{Local: first.LocalAddr(), Remote: netip.MustParseAddrPort("127.0.0.1:9")})
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("address in use: %v", err)
	}
}

func TestComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tag := rapid.SampledFrom([]int{0, 4}).Draw(t, "tag")
		b := rapid.SliceOfN(rapid.Byte(), 40, 100).Draw(t, "frame")
		start := 2 * rapid.IntRange(0, 60).Draw(t, "start")
		offset := 2 * rapid.IntRange(0, 20).Draw(t, "offset")
		var v vnetHeader
		binary.NativeEndian.PutUint16(v[vnetCsumStart:], uint16(start))
		binary.NativeEndian.PutUint16(v[vnetCsumOffset:], uint16(offset))
		was := slices.Clone(b)
		v.complete(b, tag)
		if !slices.Equal(b, was) {
			t.Fatal("changed without need")
		}
		v[vnetFlags] = vnetNeedsCsum
		v.complete(b, tag)
		at := start + tag + offset
		if at+2 > len(b) {
			if !slices.Equal(b, was) {
				t.Fatal("changed beyond the frame's end")
			}
			return
		}
		// The pseudo header's sum, which was in the field, and the rest make
		// all ones.
		sum := int(^rocev2.Checksum(b[start+tag:])) + int(binary.BigEndian.Uint16(was[at:]))
		if sum>>16+sum&0xffff != 0xffff {
			t.Fatalf("sum %#x", sum)
		}
		b[at], b[at+1] = was[at], was[at+1]
		if !slices.Equal(b, was) {
			t.Fatal("changed elsewhere")
		}
	})
}

func TestReasons(t *testing.T) {
	seen := map[string]bool{}
	for r := range numReasons {
		if name := fmt.Sprint(r); name == "" || seen[name] {
			t.Errorf("reason %d is called %q", int(r), name)
		} else {
			seen[name] = true
		}
	}
}
