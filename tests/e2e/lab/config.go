package lab

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/mcrdma/mcrdma/internal/identity"
)

func switchAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 255, 0, byte(1 + i)}) }

func switchMAC(i int) string { return fmt.Sprintf("02:00:00:00:%02x:00", 0x50+i) }

// writeTopology writes what static routes are made of.
func (l *Lab) writeTopology() error {
	var b strings.Builder
	b.WriteString("switches:\n")
	for i, name := range l.Spec.switchNames() {
		fmt.Fprintf(&b, "  - {name: %s, address: %v, mac: %q", name, switchAddr(i), switchMAC(i))
		if r := rackOf(name); r != 0 {
			fmt.Fprintf(&b, ", prefixes: [%v]", prefixOf(r))
		}
		if l.Spec.Switches[name].NotProgrammable {
			b.WriteString(", programmable: false")
		}
		b.WriteString("}\n")
	}
	b.WriteString("hosts:\n")
	links := "links:\n"
	for i, at := range l.Spec.seats() {
		fmt.Fprintf(&b, "  - {name: %s, address: %v, mac: %q}\n", hostName(i), at.addr, hostMAC(i))
		links += fmt.Sprintf("  - {a: {node: %s}, b: {node: %s, port: %d}}\n", hostName(i), torOf(at.rack), at.port)
	}
	for _, rack := range l.Spec.uplinks() {
		links += fmt.Sprintf("  - {a: {node: %s, port: %d}, b: {node: spine, port: %d}}\n", torOf(rack), uplink, rack)
	}
	_, err := l.write("fabric.yaml", b.String()+links)
	return err
}

// writeAgent writes an agent's configuration.
func (l *Lab) writeAgent(n *SwitchNode) (string, error) {
	files, err := l.CA.Issue(identity.Identity{Role: identity.Switch, Name: n.Name})
	if err != nil {
		return "", err
	}
	self := 0
	for i, name := range l.Spec.switchNames() {
		if name == n.Name {
			self = i
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\naddress: %v\nmac: %q\nlisten: %v:%d\nstate: %s\n", n.Name, switchAddr(self), switchMAC(self), n.Management, agentPort, l.StateFile(n.Name))
	fmt.Fprintf(&b, "tls: {cert: %s, key: %s, ca: %s}\n", files.Cert, files.Key, files.CA)
	if r := rackOf(n.Name); r != 0 {
		fmt.Fprintf(&b, "prefixes: [%v]\n", prefixOf(r))
	}
	if l.Spec.Switches[n.Name].NotProgrammable {
		b.WriteString("programmable: false\n")
	}
	if l.Spec.BGP {
		fmt.Fprintf(&b, "routing: {source: bgp, settle: 1s, bgp: {asn: %d, listen: [%v], port: %d}}\n", 65001+self, n.Management, bgpPort)
	} else {
		b.WriteString("routing: {source: static, topology: fabric.yaml}\n")
	}
	b.WriteString("ports:\n")
	for _, p := range l.Spec.portsOf(n.Name) {
		switch {
		case n.Name == "spine":
			fmt.Fprintf(&b, "  - {port: %d, to: %s}\n", p, torOf(p))
		case p == uplink:
			fmt.Fprintf(&b, "  - {port: %d, to: spine}\n", p)
		default:
			fmt.Fprintf(&b, "  - {port: %d}\n", p)
		}
	}
	b.WriteString("switches:\n")
	for i, name := range l.Spec.switchNames() {
		if i == self {
			continue
		}
		fmt.Fprintf(&b, "  - name: %s\n    agent: %v:%d\n    addresses: [%v]\n", name, management(i), agentPort, switchAddr(i))
		if l.Spec.Switches[name].NotProgrammable {
			b.WriteString("    programmable: false\n")
		}
		if r := rackOf(name); r != 0 {
			fmt.Fprintf(&b, "    prefixes: [%v]\n", prefixOf(r))
		}
		if l.Spec.BGP && (name == "spine" || n.Name == "spine") {
			fmt.Fprintf(&b, "    bgp: {address: %v, asn: %d, port: %d, local: %v, passive: %v}\n", management(i), 65001+i, bgpPort, n.Management, self > i)
		}
	}
	// Many processes share few processors here: a late process is not a dead one.
	b.WriteString("hello: {interval: 150ms, multiplier: 4}\n")
	b.WriteString(l.Spec.Switches[n.Name].Agent)
	return l.write(n.Name+".yaml", b.String())
}

// writeDaemon writes a daemon's configuration, and its certificate.
func (l *Lab) writeDaemon(h *HostNode) error {
	files, err := h.Issue()
	if err != nil {
		return err
	}
	rack := l.Spec.seats()[h.index].rack
	spec := l.Spec.Hosts[h.Name]
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\naddress: %v\nrack: %d\nsocket: %s\nstate: %s\n", h.Name, h.Addr, rack, h.Socket, l.StateFile(h.Name))
	fmt.Fprintf(&b, "tls: {cert: %s, key: %s, ca: %s}\n", files.Cert, files.Key, files.CA)
	if !spec.NoSwitch {
		tor := l.Switch(torOf(rack))
		fmt.Fprintf(&b, "switch: {name: %s, agent: \"%v:%d\"}\n", tor.Name, tor.Management, agentPort)
	}
	b.WriteString("hosts:\n")
	for _, o := range l.Hosts {
		if o != h {
			fmt.Fprintf(&b, "  - {name: %s, address: %v}\n", o.Name, o.Addr)
		}
	}
	if l.Spec.Calm {
		fmt.Fprintf(&b, "beat: {dead_after: %v}\n", l.Spec.deadAfter())
	}
	b.WriteString(l.Spec.Daemon + spec.Daemon)
	h.Config, err = l.write(h.Name+".yaml", b.String())
	return err
}
