package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// A portSpec is an --interface flag: a port's number and what it is attached to.
type portSpec struct {
	number        uint16
	name          string         // of a network interface, or empty
	local, remote netip.AddrPort // of a UDP tunnel
}

// maxIfName is the longest name of a Linux network interface.
const maxIfName = 15

// parsePort parses NUMBER@INTERFACE or NUMBER@udp:LOCAL,REMOTE.
func parsePort(s string) (p portSpec, err error) {
	number, where, ok := strings.Cut(s, "@")
	if !ok {
		return p, fmt.Errorf("%q is not PORT@INTERFACE, such as 0@veth0, or PORT@udp:LOCAL,REMOTE, such as 0@udp:127.0.0.1:7000,127.0.0.1:7001", s)
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n > pre.MaxPort {
		return p, fmt.Errorf("%q: the port's number %q is not one from 0 to %d", s, number, pre.MaxPort)
	}
	p.number = uint16(n)
	addrs, tunnel := strings.CutPrefix(where, "udp:")
	if !tunnel {
		if where == "" || len(where) > maxIfName || strings.ContainsAny(where, "/ \t") || where == "." || where == ".." {
			return p, fmt.Errorf("%q: %q cannot be a network interface's name", s, where)
		}
		p.name = where
		return p, nil
	}
	local, remote, ok := strings.Cut(addrs, ",")
	if !ok {
		return p, fmt.Errorf("%q: a tunnel takes two addresses, its own and the other end's: PORT@udp:LOCAL,REMOTE, such as 0@udp:127.0.0.1:7000,127.0.0.1:7001", s)
	}
	const wrong = "%q: the %s address %q is not IP:PORT, such as 127.0.0.1:7000 or [::1]:7000"
	if p.local, err = netip.ParseAddrPort(local); err != nil {
		return p, fmt.Errorf(wrong, s, "local", local)
	}
	if p.remote, err = netip.ParseAddrPort(remote); err != nil {
		return p, fmt.Errorf(wrong, s, "remote", remote)
	}
	return p, nil
}

// parsePorts parses all --interface flags.
func parsePorts(list []string) (specs []portSpec, err error) {
	used := map[uint16]string{}
	names := map[string]uint16{}
	for _, s := range list {
		p, err := parsePort(s)
		if err != nil {
			return nil, fmt.Errorf("--interface %w", err)
		}
		if other, twice := used[p.number]; twice {
			return nil, fmt.Errorf("--interface %q: port %d is %q already", s, p.number, other)
		}
		if other, twice := names[p.name]; twice && p.name != "" {
			return nil, fmt.Errorf("--interface %q: %s is port %d already", s, p.name, other)
		}
		used[p.number], names[p.name] = s, p.number
		specs = append(specs, p)
	}
	return specs, nil
}

// open opens what the port is attached to.
func (p portSpec) open(o ports.Options) (ports.Port, error) {
	if p.name != "" {
		i, err := ports.OpenInterface(p.name, o)
		if err != nil {
			return nil, err // a nil interface, not an interface with a nil port
		}
		return i, nil
	}
	t, err := ports.OpenTunnel(ports.TunnelConfig{Local: p.local, Remote: p.remote, Options: o})
	if err != nil {
		return nil, err
	}
	return t, nil
}
