package framelink

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
)

func TestParse(t *testing.T) {
	ap := netip.MustParseAddrPort
	for _, tc := range []struct {
		s   string
		cfg Config
		tun TunnelConfig
	}{
		{
			"10.0.0.1/24,gw=10.0.0.254,tunnel=127.0.0.1:7001-127.0.0.1:7002",
			Config{Prefix: prefix("10.0.0.1/24"), Gateway: addr("10.0.0.254"), MAC: macAddr{2, 0, 10, 0, 0, 1}, MTU: 4200},
			TunnelConfig{Local: ap("127.0.0.1:7001"), Remote: ap("127.0.0.1:7002"), MaxFrame: 9216, Buffer: 4 << 20},
		},
		{
			"10.0.0.1/31,mac=02-11-22-33-44-55,tunnel=[::1]:0-[::1]:7002,mtu=65486",
			Config{Prefix: prefix("10.0.0.1/31"), MAC: macAddr{2, 0x11, 0x22, 0x33, 0x44, 0x55}, MTU: 65486},
			TunnelConfig{Local: ap("[::1]:0"), Remote: ap("[::1]:7002"), MaxFrame: 65500, Buffer: 4 << 20},
		},
		{
			"10.0.0.1/24,tunnel=0.0.0.0:7001-[::1]:2",
			Config{Prefix: prefix("10.0.0.1/24"), MAC: macAddr{2, 0, 10, 0, 0, 1}, MTU: 4200},
			TunnelConfig{Local: ap("0.0.0.0:7001"), Remote: ap("[::1]:2"), MaxFrame: 9216, Buffer: 4 << 20},
		},
	} {
		cfg, tun, err := Parse(tc.s)
		if err != nil || cfg != tc.cfg || tun != tc.tun {
			t.Errorf("Parse(%q) = %+v, %+v, %v", tc.s, cfg, tun, err)
		}
		if !Is(tc.s) {
			t.Errorf("Is(%q) is false", tc.s)
		}
	}
}

func TestParseErrors(t *testing.T) {
	const form = " (the form is " + Syntax + ")"
	for s, want := range map[string]string{
		"":             `no tunnel= after the address`,
		"10.0.0.1/24":  `no tunnel= after the address`,
		"10.0.0.1/24,": `no tunnel= after the address`,
		"10.0.0.1,tunnel=127.0.0.1:1-127.0.0.1:2":                                   `"10.0.0.1" is not an address with a prefix length`,
		"10.0.0.1/24,gw=10.0.0.2":                                                   `tunnel= is missing`,
		"10.0.0.1/24,tunnel":                                                        `option "tunnel" has no value`,
		"10.0.0.1/24,tunnel=127.0.0.1:1":                                            `tunnel=127.0.0.1:1 is not LOCAL-REMOTE`,
		"10.0.0.1/24,tunnel=a-b":                                                    `tunnel: "a" is not an IP address and port`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-b":                                          `tunnel: "b" is not an IP address and port`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-":                                           `tunnel: "" is not an IP address and port`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-[::1]:2":                                    `local address 127.0.0.1:1 and remote address [::1]:2 are of different families`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,":                               `option "" has no value`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,tunnel=127.0.0.1:1-127.0.0.1:2": `option tunnel is there twice`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,color=red":                      `unknown option "color"`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,gw=router":                      `gw=router is not an address`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,gw=10.0.1.1":                    `gateway 10.0.1.1 is not another host in 10.0.0.0/24`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,mtu=big":                        `mtu=big is not a number from 320 to 65486`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,mtu=0":                          `mtu=0 is not a number from 320 to 65486`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,mac=02":                         `mac=02 is not an Ethernet address`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,mac=00:00:00:00:00:00":          `mac=00:00:00:00:00:00 is not a host's address`,
		"10.0.0.1/24,tunnel=127.0.0.1:1-127.0.0.1:2,mac=01:00:5e:00:00:01":          `MAC address 01:00:5e:00:00:01 is a multicast address`,
		"10.0.0.1/40,tunnel=127.0.0.1:1-127.0.0.1:2":                                `"10.0.0.1/40" is not an address with a prefix length`,
		"10.0.0.0/24,tunnel=127.0.0.1:1-127.0.0.1:2":                                `10.0.0.0 cannot be a host's address in 10.0.0.0/24`,
	} {
		_, _, err := Parse(s)
		if !errors.Is(err, ErrConfig) {
			t.Errorf("Parse(%q): %v; want ErrConfig", s, err)
			continue
		}
		full := "framelink: \"" + s + "\": bad configuration: " + want + form
		if diff := cmp.Diff(full, err.Error()); diff != "" {
			t.Errorf("Parse(%q) (-want +got):\n%s", s, diff)
		}
		if _, err := Open(s); !errors.Is(err, ErrConfig) {
			t.Errorf("Open(%q): %v", s, err)
		}
	}
}

func TestIs(t *testing.T) {
	for _, s := range []string{"", "10.0.0.1", "10.0.0.1/24", "eth0", "10.0.0.1?rx=udp", "10.0.0.1,tunnel=x", "10.0.0.1/24,gw=1"} {
		if Is(s) {
			t.Errorf("Is(%q) is true", s)
		}
	}
}

func TestOpen(t *testing.T) {
	at := freePort(t)
	a, err := Open("10.0.0.1/24,tunnel=127.0.0.1:0-" + at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := Open("10.0.0.2/24,mtu=1500,tunnel=" + at.String() + "-" + a.conn.(*Tunnel).LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	received := receiver(t, b)
	receiver(t, a)
	if err := a.Send([]link.Tx{packet(b.Addr(), 0, "data")}); err != nil {
		t.Fatal(err)
	}
	expect(t, received, got{a.Addr(), 0x6a, "data"})
	if c, err := Open("10.0.0.3/24,tunnel=" + at.String() + "-127.0.0.1:2"); err == nil {
		c.Close()
		t.Error("one tunnel address twice")
	} else if _, ok := errors.AsType[*net.OpError](err); !ok {
		t.Errorf("one tunnel address twice: %v", err)
	}
}

// Whatever Parse accepts, New and DialTunnel do, and it comes back the same
// with its defaults spelled out.
func FuzzParse(f *testing.F) {
	f.Add("10.0.0.1/24,gw=10.0.0.254,tunnel=127.0.0.1:7001-127.0.0.1:7002")
	f.Add("10.0.0.1/24,tunnel=[::1]:7001-[::1]:2,mtu=1500,mac=02:00:00:00:00:01")
	f.Fuzz(func(t *testing.T, s string) {
		cfg, tun, err := Parse(s)
		if err != nil {
			if !errors.Is(err, ErrConfig) {
				t.Errorf("%q: %v does not wrap ErrConfig", s, err)
			}
			return
		}
		if c2, t2 := cfg, tun; c2.check() != nil || t2.check() != nil || c2 != cfg || t2 != tun {
			t.Errorf("%q: %+v %+v do not check", s, cfg, tun)
		}
		if !Is(s) {
			t.Errorf("%q is accepted, but Is says no", s)
		}
	})
}
