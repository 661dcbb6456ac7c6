package switchagent

import (
	"net/netip"
	"testing"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

// ARP is answered for the address of a link only there, and pings from everywhere.
func TestLinkAddress(t *testing.T) {
	at9 := netip.MustParsePrefix("10.0.0.0/31")
	a := &Agent{cfg: &config.Config{Address: netip.MustParseAddr("10.255.0.1"), Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
		Ports: []config.Port{{Port: 1}, {Port: 9, Address: at9}}}}
	for _, c := range []struct {
		dst  string
		port uint16
		want bool
	}{{"10.0.0.0", 9, true}, {"10.0.0.0", 0, true}, {"10.0.0.0", 1, false}, {"10.0.0.1", 9, false},
		{"10.1.0.1", 9, true}, {"10.255.0.1", 1, true}, {"10.1.0.2", 1, false}} {
		if got := a.answersFor(netip.MustParseAddr(c.dst), c.port); got != c.want {
			t.Errorf("%s at port %d: %v, want %v", c.dst, c.port, got, c.want)
		}
	}
}
