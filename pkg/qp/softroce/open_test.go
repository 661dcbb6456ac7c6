package softroce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

func TestOpenErrors(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"", "IPv4 address"},
		{"host", "IPv4 address"},
		{"127.0.0.1?rx=x", "rx=x"},
		{"127.0.0.1?cc=maybe", "cc=maybe"},
		{"127.0.0.1?window=0", "window=0"},
		{"127.0.0.1?rate=fast", "rate=fast"},
		{"127.0.0.1?rate=1", "rate=1"},
		{"127.0.0.1?rate=NaNgbit", "rate=NaNgbit"},
		{"127.0.0.1?windw=5&zz=1", "[windw zz]"},
		{"127.0.0.1?%zz", "options"},
		{"192.0.2.55", "192.0.2.55"},
		{"10.0.0.1/24,tunnel=nowhere", "nowhere"},
		{"10.0.0.1/24,tunnel=127.0.0.1:0-127.0.0.1:9?gso=off", "[gso]"},
		{"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2?windw=5", "[windw]"},
		{"10.0.0.1/24,gw=10.0.0.9", "tunnel=LOCAL-REMOTE"},
		{"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,gw=10.0.1.1", "gateway 10.0.1.1 is not another host"},
	} {
		if err := qp.Check("softroce:" + c.name); c.name == "192.0.2.55" { // an address of another host
			if err != nil {
				t.Errorf("Check(%q): %v", c.name, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Check(%q): %v, want an error with %q", c.name, err, c.want)
		}
		d, err := qp.Open("softroce:" + c.name)
		if err == nil {
			d.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Open(%q): %v, want an error with %q", c.name, err, c.want)
		}
	}
	if _, err := qp.Open("softroce:192.0.2.55"); !errors.Is(err, qp.ErrDevice) {
		t.Errorf("not an address of this host: %v, want ErrDevice", err)
	}
}

func TestOpenOptions(t *testing.T) {
	d := open(t, "cc=off&window=7&rx=udp")
	if !d.opt.CC.Disable || d.opt.Window != 7 || !strings.HasSuffix(d.Name(), "?cc=off&window=7&rx=udp") {
		t.Errorf("device %+v named %s", d.opt, d.Name())
	}
	if cc := open(t, "rate=400mbit").opt.CC; cc.LineRate != 400e6 || cc.MinRate != 100e3 || cc.AIRate != 400e3 || cc.HAIRate != 4e6 {
		t.Errorf("rate: %+v", cc)
	}
	a := d.Attr()
	if a.Driver != "softroce" || a.ActiveMTU != 4096 || !strings.Contains(d.Name(), a.Addr.String()) {
		t.Errorf("attributes %+v", a)
	}
}

// TestTunnel opens two devices by name that have a cable of their own.
func TestTunnel(t *testing.T) {
	a, b := freePort(t), freePort(t)
	dev := func(addr string, local, remote int) *Device {
		d := must(qp.Open(fmt.Sprintf("softroce:%s/24,tunnel=127.0.0.1:%d-127.0.0.1:%d,mtu=4200?cc=off", addr, local, remote)))(t).(*Device)
		closeWith(t, d)
		return d
	}
	x, y := newEnd(t, dev("10.0.0.1", a, b), 1<<20, qp.Init{}), newEnd(t, dev("10.0.0.2", b, a), 1<<20, qp.Init{})
	connect(x, y)
	testMessages(t, x, y)
}

func freePort(t *testing.T) int {
	t.Helper()
	c := must(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port
}

// TestCheckPeers: hosts that a device cannot send to are told before it is opened.
func TestCheckPeers(t *testing.T) {
	const tunnel = "softroce:10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2"
	near, far := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.1.7")
	for _, c := range []struct {
		name  string
		peers []netip.Addr
		want  string // empty: none
	}{
		{tunnel, []netip.Addr{near}, ""},
		{tunnel, []netip.Addr{near, far}, "10.0.1.7 is outside 10.0.0.0/24 and there is no gateway (gw=…)"},
		{tunnel + ",gw=10.0.0.254", []netip.Addr{near, far}, ""},
		{tunnel + ",gw=10.0.0.7?cc=off", []netip.Addr{near, far}, "gw=10.0.0.7 is the address of a host"},
		{"softroce:10.0.0.1", []netip.Addr{far}, ""},
		{"ibverbs", nil, "no driver"},
	} {
		if err := qp.Check(c.name, c.peers...); c.want == "" && err != nil || c.want != "" && (!errors.Is(err, qp.ErrDevice) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("Check(%q, %v): %v, want %q", c.name, c.peers, err, c.want)
		}
	}
}
