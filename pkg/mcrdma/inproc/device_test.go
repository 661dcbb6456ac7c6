package inproc

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// TestOneDevice: of two applications of a host, the second finds the address of its device in use. Groups with
// it go over TCP, and both ends say why, and which process has the device.
func TestOneDevice(t *testing.T) {
	var ds []*Daemon
	var hosts []Host
	var listeners []net.Listener
	for i, name := range []string{"one", "two"} {
		addr := netip.AddrFrom4([4]byte{127, 9, 3, byte(i + 1)})
		l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		hosts, listeners = append(hosts, Host{Name: name, Address: addr, Daemon: l.Addr().String()}), append(listeners, l)
	}
	for i, h := range hosts {
		d, err := Start(t.Context(), Options{Name: h.Name, Address: h.Address, Device: "softroce:" + h.Address.String() + "?rx=udp", Listener: listeners[i], Hosts: hosts[1-i : 2-i]})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		ds = append(ds, d)
	}
	client := func(d *Daemon) *mcrdma.Client {
		c, err := mcrdma.Dial(t.Context(), mcrdma.Options{Socket: d.Socket()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	sender, first, second := client(ds[0]), client(ds[1]), client(ds[1])
	listen := func(c *mcrdma.Client, service string) *mcrdma.Listener {
		l, err := c.Listen(t.Context(), mcrdma.ListenConfig{Service: service, Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) { return &mcrdma.Grant{}, nil }})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for i, l := range []*mcrdma.Listener{listen(first, "first"), listen(second, "second")} {
		g, err := sender.Create(t.Context(), mcrdma.GroupConfig{Service: []string{"first", "second"}[i], Receivers: []string{"two"}})
		if err != nil {
			t.Fatal(err)
		}
		m, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for end, info := range map[string]mcrdma.Info{"the sender": g.Info(), "the receiver": m.Info()} {
			why, want := strings.Join(info.Why, "\n"), []string{"rdma", "tcp"}[i]
			says := strings.Contains(why, "two: the receiver's application has no RDMA device") && strings.Contains(why, "address in use") && strings.Contains(why, "held by")
			if info.Transport != want || says != (i == 1) {
				t.Errorf("%s: by %s:\n%s", end, info.Transport, why)
			}
		}
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
