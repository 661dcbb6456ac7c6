package main

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/mcrdma/mcrdma/tests/bench/child"
)

// makeVeth makes two network namespaces joined by a veth pair with a jumbo MTU,
// as RoCE networks have.
func makeVeth() (p path, remove func(), err error) {
	if os.Geteuid() != 0 {
		return p, nil, fmt.Errorf("network namespaces take root")
	}
	p = path{name: "veth", from: "10.99.0.1", to: "10.99.0.2",
		fromNS: fmt.Sprintf("srb%d-a", os.Getpid()), toNS: fmt.Sprintf("srb%d-b", os.Getpid())}
	var made []string
	remove = func() {
		for _, n := range made {
			_ = netns.DeleteNamed(n)
		}
	}
	for _, n := range []string{p.fromNS, p.toNS} {
		if err := child.NewNamespace(n); err != nil {
			remove()
			return p, nil, err
		}
		made = append(made, n)
	}
	if err := join(p); err != nil {
		remove()
		return p, nil, err
	}
	return p, remove, nil
}

func join(p path) error {
	ends := [2]*netlink.Handle{}
	var fds [2]netns.NsHandle
	for i, n := range []string{p.fromNS, p.toNS} {
		h, err := netns.GetFromName(n)
		if err != nil {
			return err
		}
		defer h.Close()
		fds[i] = h
		if ends[i], err = netlink.NewHandleAt(h); err != nil {
			return err
		}
		defer ends[i].Close()
	}
	la := netlink.NewLinkAttrs()
	la.Name, la.MTU = "veth0", 9000
	veth := &netlink.Veth{LinkAttrs: la, PeerName: "veth0", PeerNamespace: netlink.NsFd(fds[1]), PeerMTU: 9000}
	if err := ends[0].LinkAdd(veth); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	for i, a := range []string{p.from, p.to} {
		l, err := ends[i].LinkByName("veth0")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(a + "/24")
		if err != nil {
			return err
		}
		if err := ends[i].AddrAdd(l, addr); err != nil {
			return err
		}
		if err := ends[i].LinkSetUp(l); err != nil {
			return err
		}
	}
	return nil
}
