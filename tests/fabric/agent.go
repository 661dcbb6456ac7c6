package fabric

import "net/netip"

// Agent is where groups of a host's are managed: its switch, and the address of that
// one's agent.
func (f *Fabric) Agent(host string) (sw, address string) {
	f.t.Helper()
	n := f.host(host).node
	return n.Name, n.listen
}

// Addr is a host's address.
func (f *Fabric) Addr(host string) netip.Addr {
	f.t.Helper()
	return f.host(host).Addr
}
