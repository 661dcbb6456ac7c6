package doctor

import (
	"fmt"
	"net/netip"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
)

// routesElsewhere: an agent with routes from a topology file has one to the hosts of every other
// switch. Where one of its links is not up, that is the reason, and is reported.
func (d *diagnosis) routesElsewhere(a *Agent) {
	if a.Status.GetRouting() != "static" || !a.Status.GetSettled() || !a.Status.GetP4Runtime().GetPrimary() || len(a.Routes) == 0 {
		return
	}
	for _, p := range a.Status.GetPorts() {
		if p.GetState() != "up" && p.GetState() != "-" {
			return
		}
	}
	for _, b := range d.Agents {
		if b.Status.GetName() == a.Status.GetName() {
			continue
		}
		for _, r := range b.Routes {
			if r.GetNote() == "hosts" && !reaches(a.Routes, r.GetPrefix()) {
				d.Add(findings.Error, a.name(), fmt.Sprintf("it has no route to %s, the hosts of %s", r.GetPrefix(), b.name()),
					"its topology file does not have what that agent's configuration has under prefixes",
					"use the same topology file for all agents")
			}
		}
	}
}

// reaches reports that one of the routes leads to a prefix.
func reaches(routes []*mcrdmav1.RouteStatus, prefix string) bool {
	to, err := netip.ParsePrefix(prefix)
	for _, r := range routes {
		if p, e := netip.ParsePrefix(r.GetPrefix()); e == nil && p.Bits() <= to.Bits() && p.Contains(to.Addr()) && (len(r.GetHops()) > 0 || r.GetNote() == "hosts") {
			return true
		}
	}
	return err != nil
}
