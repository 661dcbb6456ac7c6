package bgp

import (
	"bytes"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// TestMalformedAttributes: attributes on which GoBGP panics cost their sender only the routes that
// have them.
func TestMalformedAttributes(t *testing.T) {
	sp, _ := speakers(t, 1, 0)
	addr := netip.MustParseAddr("127.1.0.2")
	l, err := net.Listen("tcp4", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const asn = 64512
	if err := sp[0].AddPeer(t.Context(), Peer{Addr: addr, ASN: asn, Local: sp[0].addr, Port: uint16(l.Addr().(*net.TCPAddr).Port)}); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	send := func(m *bgp.BGPMessage) {
		t.Helper()
		b, err := m.Serialize()
		if err == nil {
			_, err = conn.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	send(bgp.NewBGPOpenMessage(asn, 90, addr.String(), []bgp.OptionParameterInterface{
		bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC)})}))
	send(bgp.NewBGPKeepAliveMessage())
	update := func(prefix, attribute string) {
		raw, err := hex.DecodeString(attribute)
		if err != nil {
			t.Fatal(err)
		}
		head := []byte{0x40, 1, 1, 0, 0x40, 2, 4, 2, 1, asn >> 8, asn & 0xff, 0x40, 3, 4, 127, 1, 0, 2} // origin, path, next hop
		attributes, to := append(head, raw...), netip.MustParsePrefix(prefix).Addr().As4()
		body := append([]byte{0, 0, 0, byte(len(attributes))}, attributes...)
		body = append(body, 24, to[0], to[1], to[2])
		_, err = conn.Write(append(append(bytes.Repeat([]byte{0xff}, 16), 0, byte(19+len(body)), bgp.BGP_MSG_UPDATE), body...))
		if err != nil {
			t.Fatal(err)
		}
	}
	update("10.9.0.0/24", "")
	becomes(t, sp[0].Source, "10.9.0.1", "{127.1.0.2}")
	for _, attribute := range []string{
		"d0280006060000000602", // a Prefix-SID, which routers pass on that do not know it
		"800e03000101",         // an MP_REACH_NLRI that ends before its next hop
		"800f0c0001040102020c010201eb00",
	} {
		update("10.7.0.0/24", attribute)
		update("10.8.0.0/24", "")
		becomes(t, sp[0].Source, "10.8.0.1", "{127.1.0.2}")
		update("10.8.0.0/24", attribute)
		becomes(t, sp[0].Source, "10.8.0.1", "nothing")
	}
	if _, found := sp[0].Lookup(netip.MustParseAddr("10.9.0.1")); !found {
		t.Error("a good route is gone")
	}
	if list, err := sp[0].Neighbors(t.Context()); err != nil || len(list) != 1 || list[0].State != Established || time.Since(list[0].Since) > time.Minute {
		t.Errorf("%+v, %v", list, err)
	}
}
