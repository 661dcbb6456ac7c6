// Package doctor diagnoses a fabric of switches and the interfaces of this host: what is wrong,
// why, and what to do.
//
// The rules are pure: Diagnose turns collected facts into findings. Interfaces collects the facts
// about interfaces here; the facts about agents are the answers of their gRPC services, which the
// command collects.
package doctor

import (
	"fmt"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
)

// Facts are the collected facts.
type Facts struct {
	Now        time.Time
	Agents     []Agent // each once
	Complete   bool    // all known agents were asked
	Interfaces []Interface
}

// An Agent is the answers of an agent. Answers that were not requested are nil.
type Agent struct {
	Address  string
	Expected string // the switch that it should belong to; empty: any
	From     string // the switch that named it; empty: it was given by the user
	Err      error  // of Status: then nothing else is known
	Status   *mcrdmav1.GetStatusResponse
	Groups   []*mcrdmav1.GroupStatus
	Steps    []*mcrdmav1.Step
	Counters []*mcrdmav1.Counter
	Routes   []*mcrdmav1.RouteStatus
	// Failed has the errors of requests other than Status.
	Failed []error
}

// Diagnose applies all rules. Findings are sorted by severity, the worst first.
func Diagnose(f Facts) []findings.Finding {
	d := &diagnosis{Facts: f}
	for i := range f.Agents {
		a := &f.Agents[i]
		if a.Err != nil {
			d.unreachable(a)
			continue
		}
		for _, rule := range []func(*Agent){
			d.failed, d.whose, d.p4runtime, d.pipeline, d.fastPath, d.ports, d.bgp, d.peers, d.usage, d.routing, d.routesElsewhere, d.reported, d.groups, d.drops,
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
