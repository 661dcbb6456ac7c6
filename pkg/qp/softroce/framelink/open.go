package framelink

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
)

var (
	_ link.Link   = (*Host)(nil)
	_ link.Seeing = (*Host)(nil)
)

// Syntax is the form of the strings that Open takes.
const Syntax = "ADDRESS/LENGTH,tunnel=LOCAL-REMOTE[,gw=ADDRESS][,mtu=BYTES][,mac=MAC]"

// Is reports whether s is meant for Open, rather than for an attachment that
// is named otherwise; Open then says whether it is right.
func Is(s string) bool {
	addr, options, ok := strings.Cut(s, ",")
	return ok && strings.Contains(addr, "/") && strings.Contains(","+options, ",tunnel=")
}

// Open opens the link that s describes, a host on a UDP tunnel:
//
//	10.0.0.1/24,tunnel=127.0.0.1:7001-127.0.0.1:7002,gw=10.0.0.254
//
// First comes the host's address with its prefix length, then, in any order:
//
//   - tunnel=LOCAL-REMOTE: the UDP addresses of this end and of the other, as
//     host:port with IP addresses, IPv6 ones in brackets. LOCAL's port may be
//     0.
//   - gw=ADDRESS: the gateway out of the prefix.
//   - mtu=BYTES: the IPv4 MTU, 4200 if not given.
//   - mac=02:00:0a:00:00:01: the MAC address, else derived from the address.
//
// Errors in s wrap ErrConfig.
func Open(s string) (*Host, error) {
	cfg, tun, err := Parse(s)
	if err != nil {
		return nil, err
	}
	conn, err := DialTunnel(tun)
	if err != nil {
		return nil, err
	}
	h, err := New(conn, cfg)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return h, nil
}

// Parse reads a string as Open takes it, and checks all that can be checked
// without a network. The configurations come back with defaults filled in.
func Parse(s string) (Config, TunnelConfig, error) {
	cfg, tun, err := parse(s)
	if err != nil {
		return Config{}, TunnelConfig{}, fmt.Errorf("framelink: %q: %w (the form is %s)", s, err, Syntax)
	}
	return cfg, tun, nil
}

func parse(s string) (cfg Config, tun TunnelConfig, err error) {
	addr, options, _ := strings.Cut(s, ",")
	if options == "" {
		return cfg, tun, fmt.Errorf("%w: no tunnel= after the address", ErrConfig)
	}
	if cfg.Prefix, err = netip.ParsePrefix(addr); err != nil {
		return cfg, tun, fmt.Errorf("%w: %q is not an address with a prefix length", ErrConfig, addr)
	}
	seen := map[string]bool{}
	for option := range strings.SplitSeq(options, ",") {
		key, value, ok := strings.Cut(option, "=")
		switch {
		case !ok:
			return cfg, tun, fmt.Errorf("%w: option %q has no value", ErrConfig, option)
		case seen[key]:
			return cfg, tun, fmt.Errorf("%w: option %s is there twice", ErrConfig, key)
		}
		seen[key] = true
		if err = parseOption(&cfg, &tun, key, value); err != nil {
			return cfg, tun, err
		}
	}
	if !seen["tunnel"] {
		return cfg, tun, fmt.Errorf("%w: tunnel= is missing", ErrConfig)
	}
	if err = cfg.check(); err != nil {
		return cfg, tun, err
	}
	tun.MaxFrame = max(DefaultTunnelMaxFrame, cfg.maxFrame())
	return cfg, tun, tun.check()
}

func parseOption(cfg *Config, tun *TunnelConfig, key, value string) (err error) {
	switch key {
	case "tunnel":
		return parseTunnel(tun, value)
	case "gw":
		if cfg.Gateway, err = netip.ParseAddr(value); err != nil {
			return fmt.Errorf("%w: gw=%s is not an address", ErrConfig, value)
		}
	case "mtu":
		if cfg.MTU, err = strconv.Atoi(value); err != nil || cfg.MTU < minMTU || cfg.MTU > maxMTU {
			return fmt.Errorf("%w: mtu=%s is not a number from %d to %d", ErrConfig, value, minMTU, maxMTU)
		}
	case "mac":
		mac, err := net.ParseMAC(value)
		if err != nil || len(mac) != len(cfg.MAC) {
			return fmt.Errorf("%w: mac=%s is not an Ethernet address", ErrConfig, value)
		}
		if cfg.MAC = macAddr(mac); cfg.MAC == (macAddr{}) {
			return fmt.Errorf("%w: mac=%s is not a host's address", ErrConfig, value)
		}
	default:
		return fmt.Errorf("%w: unknown option %q", ErrConfig, key)
	}
	return nil
}

func parseTunnel(tun *TunnelConfig, value string) (err error) {
	local, remote, ok := strings.Cut(value, "-")
	if !ok {
		return fmt.Errorf("%w: tunnel=%s is not LOCAL-REMOTE", ErrConfig, value)
	}
	if tun.Local, err = netip.ParseAddrPort(local); err != nil {
		return fmt.Errorf("%w: tunnel: %q is not an IP address and port", ErrConfig, local)
	}
	if tun.Remote, err = netip.ParseAddrPort(remote); err != nil {
		return fmt.Errorf("%w: tunnel: %q is not an IP address and port", ErrConfig, remote)
	}
	return nil
}
