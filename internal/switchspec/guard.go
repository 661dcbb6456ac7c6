package switchspec

import (
	"fmt"
	"net/netip"
)

// GuardedPort is a port at which only its PortHosts may send IPv4 and ARP, and
// no station may send hellos.
type GuardedPort struct{ Port uint16 }

// Key implements Entity.
func (p GuardedPort) Key() Key { return Key{kind: KindGuardedPort, a: uint64(p.Port)} }

func (p GuardedPort) String() string { return fmt.Sprintf("guarded port %d", p.Port) }
func (p GuardedPort) check() error {
	return rules(p, rule{p.Port <= MaxPort, "the port is more than 510"})
}

// PortHost is a host that may send at a GuardedPort.
type PortHost struct {
	Port uint16
	Addr netip.Addr
	MAC  MAC
}

// Key implements Entity.
func (h PortHost) Key() Key { return Key{kind: KindPortHost, a: uint64(h.Port), b: ip(h.Addr)} }

func (h PortHost) String() string {
	return fmt.Sprintf("port host: %v, %v at port %d", h.Addr, h.MAC, h.Port)
}
func (h PortHost) check() error {
	return rules(h, rule{h.Port <= MaxPort, "the port is more than 510"}, rule{h.Addr.Is4(), "the address is not IPv4"})
}
