// Package framelink attaches a softroce device to a separate network: it implements Ethernet, ARP
// and IPv4, and moves whole frames over a Conn, such as a UDP tunnel (DialTunnel). So a host can be
// attached to a port of the embedded switch, in one process or across processes, without root,
// interfaces or namespaces.
//
//	conn, err := framelink.DialTunnel(framelink.TunnelConfig{Local: …, Remote: …})
//	l, err := framelink.New(conn, framelink.Config{Prefix: netip.MustParsePrefix("10.0.0.1/24")})
//
// or, by name, as a device's configuration gives it:
//
//	l, err := framelink.Open("10.0.0.1/24,gw=10.0.0.254,tunnel=127.0.0.1:7001-127.0.0.1:7002")
//
// A device that supports several attachments recognizes this one by Is, which is true for strings
// with a tunnel in them and false for a plain address or interface name:
// "softroce:10.0.0.1/24,tunnel=…" then opens this package's link with the part after the driver's
// colon.
//
// # The tunnel's format
//
// One UDP datagram carries one Ethernet frame and nothing else: destination MAC, source MAC,
// EtherType, payload; no preamble, no frame check sequence, no tunnel header. A frame may be
// shorter than the 60 bytes that a physical network requires; a bridge to one pads. Datagrams
// shorter than an Ethernet header (14 bytes) are dropped. Datagrams may be lost or reordered, like
// frames on any network.
//
// # Layers
//
// The ARP machine (arp.go) is pure: it takes packets and the time, and returns
// frames. The Host around it holds the lock, the timer and the counters.
//
// The package must not import the device above it.
package framelink
