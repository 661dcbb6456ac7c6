package agents

import (
	"context"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// atOnce is how many agents are asked in parallel.
const atOnce = 16

// Each calls do for the numbers below n, some of them in parallel, and returns when all have
// returned.
func Each(n int, do func(i int)) {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i := range n {
		g.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = g.Wait() // none returns an error
}

// Found is a found agent.
type Found struct {
	Agent  *Agent
	From   string // the switch that named it; empty: it was given by the user
	Status *mcrdmav1.GetStatusResponse
	Err    error // of asking for Status
}

// Name returns the switch's own name, or the one by which another agent named it, or its address.
func (f *Found) Name() string {
	switch {
	case f.Status.GetName() != "":
		return f.Status.GetName()
	case f.Agent.Address.Switch != "":
		return f.Agent.Address.Switch
	}
	return f.Agent.Address.HostPort
}

// Discover asks these agents for their status and, if follow is set, the agents that they name as
// peers, and so on, up to most agents. An agent that answers at two addresses is listed once. An
// error is about the TLS files.
func (f *Fleet) Discover(ctx context.Context, given []Address, follow bool, most int) (all []*Found, complete bool, err error) {
	known := map[string]bool{}    // addresses
	listed := map[instance]bool{} // of agents
	next := make([]*Found, 0, len(given))
	complete = true
	add := func(addr Address, from string) error {
		switch {
		case addr.HostPort == "" || known[addr.HostPort]:
			return nil
		case len(known) >= most:
			complete = false
			return nil
		}
		known[addr.HostPort] = true
		a, err := f.Agent(addr)
		if err == nil {
			next = append(next, &Found{Agent: a, From: from})
		}
		return err
	}
	for _, a := range given {
		if err := add(a, ""); err != nil {
			return nil, false, err
		}
	}
	for len(next) > 0 {
		level := next
		next = nil
		Each(len(level), func(i int) {
			x := level[i]
			x.Status, x.Err = x.Agent.Status.GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
			if c := cli.CodeOf(x.Err); c == codes.DeadlineExceeded || c == codes.Unavailable {
				x.Agent.Silent = x.Err
			}
		})
		for _, found := range level {
			if found.Err == nil {
				me := instance{found.Status.GetName(), found.Status.GetStarted().AsTime().UnixNano()}
				if listed[me] {
					continue
				}
				listed[me] = true
			}
			all = append(all, found)
			for _, p := range found.Status.GetPeers() {
				addr, err := ParseAddress(p.GetAgent())
				if !follow || err != nil {
					continue
				}
				addr.Switch = p.GetName()
				if err := add(addr, found.Name()); err != nil {
					return nil, false, err
				}
			}
		}
	}
	return all, complete, nil
}

// instance identifies an agent, independent of the address.
type instance struct {
	name    string
	started int64
}
