package lab

import (
	"context"
	"errors"
	"net/netip"
)

// Link makes a link between two namespaces, up at both ends, for a network that is not a Lab.
func Link(a *Space, aName string, b *Space, bName string) error {
	return errors.Join(join(a, aName, b, bName, defaultMTU), a.up(aName, netip.Prefix{}), b.up(bName, netip.Prefix{}))
}

// NewHost makes a host of such a network: its namespace, and an application, which Member.Stop
// ends.
func NewHost(ctx context.Context, p Programs, name string, addr netip.Addr) (*HostNode, error) {
	s, err := NewSpace(name)
	if err != nil {
		return nil, err
	}
	h := &HostNode{Name: name, Addr: addr, Space: s, lab: &Lab{},
		Member: newMember(&Process{Name: "application of " + name, Space: s, Args: []string{p.Member}, Talks: true})}
	if err := h.Member.Start(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return h, nil
}
