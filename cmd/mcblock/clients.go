package main

import (
	"fmt"
	"net"
	"strings"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/nbd"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// clientNames completes names: hosts need no role.
func clientNames(args []string) []string {
	var list []string
	for _, a := range args {
		if a != osdmap.Loopback && !strings.Contains(a, ":") {
			a = fmt.Sprintf("%v:%s", identity.Host, a)
		}
		list = append(list, a)
	}
	return list
}

// clientList returns a list as text.
func clientList(allow []string) string {
	if len(allow) == 0 {
		return "all"
	}
	return strings.Join(allow, ", ")
}

// clientName returns a client's name, as in volumes' lists.
func clientName(c nbd.Client) string {
	if c.TLS == nil {
		if a, ok := c.Addr.(*net.TCPAddr); ok && a.IP.IsLoopback() {
			return osdmap.Loopback
		}
		return ""
	}
	if len(c.TLS.PeerCertificates) == 0 {
		return ""
	}
	id, err := identity.FromCert(c.TLS.PeerCertificates[0])
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%v:%s", id.Role, id.Name)
}
