package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/topology"
)

func switchAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 255, 0, byte(1 + i)}) }

func switchMAC(i int) string { return fmt.Sprintf("02:00:00:00:%02x:00", 0x50+i) }

// writeTopology writes the topology file for static routes.
func (l *Lab) writeTopology() error {
	var t topology.Topology
	for i, name := range l.Spec.switchNames() {
		sw := topology.Switch{Name: name, Address: switchAddr(i), MAC: mustMAC(switchMAC(i)), Programmable: !l.Spec.Switches[name].NotProgrammable}
		if r := rackOf(name); r != 0 {
			sw.Prefixes = []netip.Prefix{prefixOf(r)}
		}
		t.Switches = append(t.Switches, sw)
	}
	for i, at := range l.Spec.seats() {
		t.Hosts = append(t.Hosts, topology.Host{Name: hostName(i), Address: at.addr, MAC: mustMAC(hostMAC(i))})
		t.Links = append(t.Links, topology.Link{A: topology.End{Node: hostName(i)}, B: topology.End{Node: torOf(at.rack), Port: uint32(at.port)}})
	}
	for _, rack := range l.Spec.uplinks() {
		t.Links = append(t.Links, topology.Link{A: topology.End{Node: torOf(rack), Port: uplink}, B: topology.End{Node: "spine", Port: uint32(rack)}})
	}
	text, err := json.Marshal(&t)
	if err == nil {
		_, err = l.write("fabric.yaml", string(text))
	}
	return err
}

func mustMAC(s string) routing.MAC {
	m, err := routing.ParseMAC(s)
	if err != nil {
		panic(err) // made above
	}
	return m
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
	b.WriteString(l.Spec.Switches[n.Name].Agent)
	return l.write(n.Name+".yaml", b.String())
}

// writeDaemon writes a daemon's configuration, and its certificate.
func (l *Lab) writeDaemon(h *HostNode) error {
	files, err := h.Issue()
	if h.Files = files; err != nil {
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
	own := l.Spec.Daemon + spec.Daemon
	if l.Spec.BMv2 && !strings.Contains(own, "beat:") {
		fmt.Fprintf(&b, "beat: {dead_after: %v}\n", bmv2DeadAfter)
	}
	b.WriteString(own)
	h.Config, err = l.write(h.Name+".yaml", b.String())
	return err
}
