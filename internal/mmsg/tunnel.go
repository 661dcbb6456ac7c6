package mmsg

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// CheckTunnel says what is wrong with the two ends of a UDP tunnel: local, whose port may be 0
// and whose address unspecified, and remote, which is one host and port. IPv4 addresses are not
// mapped to IPv6.
func CheckTunnel(local, remote netip.AddrPort) error {
	switch l, r := local.Addr(), remote.Addr(); {
	case !l.IsValid():
		return errors.New("no local address")
	case l.Zone() != "" || r.Zone() != "":
		return errors.New("addresses with a zone are not supported")
	case !r.IsValid() || r.IsUnspecified() || r.IsMulticast() || remote.Port() == 0:
		return fmt.Errorf("remote address %v is not one host and port", remote)
	case l.Is4() != r.Is4() && !l.IsUnspecified():
		return fmt.Errorf("local address %v and remote address %v are of different families", local, remote)
	}
	return nil
}

// Listen opens a UDP socket at local with buffers of so many bytes, and a Socket on it.
func Listen(local netip.AddrPort, buffer int) (*net.UDPConn, *Socket, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		return nil, nil, err
	}
	s, err := New(c)
	if err = errors.Join(err, c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer)); err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return c, s, nil
}

// LocalAddr returns the address of a UDP socket, IPv4 not mapped to IPv6.
func LocalAddr(c *net.UDPConn) netip.AddrPort { return Unmap(c.LocalAddr().(*net.UDPAddr).AddrPort()) }

// Unmap returns an address with IPv4 not mapped to IPv6.
func Unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
