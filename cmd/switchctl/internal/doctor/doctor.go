// Package doctor says what is wrong with a fabric of switches and with the interfaces of
// this host, why, and what to do.
//
// The rules are pure: Diagnose makes findings of collected facts. The facts of
// interfaces are collected here (Interfaces); those of agents are what their gRPC
// services answer, which the command collects.
package doctor

import (
	"fmt"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
)

// Facts are what was collected.
type Facts struct {
	Now        time.Time
	Agents     []Agent
	Complete   bool // no more agents were known than were asked
	Interfaces []Interface
}

// An Agent is what one said. What could not be asked is nil.
type Agent struct {
	Address  string
	Expected string // the switch whose it should be; empty: any
	From     string // the switch that named it; empty: it was given
	Err      error  // of Status: then nothing else is known
	Status   *mcrdmav1.GetStatusResponse
	Groups   []*mcrdmav1.GroupStatus
	Steps    []*mcrdmav1.Step
	Counters []*mcrdmav1.Counter
	// Failed are the errors of asking for anything but Status.
	Failed []error
}

// Diagnose applies all rules. Findings are in order of severity, the worst first.
func Diagnose(f Facts) []findings.Finding {
	d := &diagnosis{Facts: f}
	for i := range f.Agents {
		a := &f.Agents[i]
		if a.Err != nil {
			d.unreachable(a)
			continue
		}
		for _, rule := range []func(*Agent){
			d.failed, d.whose, d.p4runtime, d.pipeline, d.fastPath, d.ports, d.bgp, d.peers, d.usage, d.routing, d.reported, d.groups, d.drops,
		} {
			rule(a)
		}
	}
	d.names()
	d.icrc()
	d.versions()
	if !f.Complete && len(f.Agents) > 0 {
		d.Add(findings.Warning, "fabric", fmt.Sprintf("only %d agents were looked at", len(f.Agents)), "there are more of them than this command follows",
			"name the ones that matter with --agent, and say --peers=false")
	}
	for i := range f.Interfaces {
		d.iface(&f.Interfaces[i])
	}
	d.mtus()
	return d.Sorted()
}

type diagnosis struct {
	Facts
	findings.List
}
