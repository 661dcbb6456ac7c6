// Package switchagent is the agent of one switch: it programs unicast routes, and
// makes the switch's steps of multicast groups, alone and together with the
// agents of the other switches.
//
//	a, err := switchagent.New(ctx, cfg, switchagent.Options{Logger: log})
//	err = a.Run(ctx) // until ctx ends; the switch keeps what it has
//
// # Parts
//
// Goroutines meet in Agent, whose lock guards the tables of groups and steps:
//
//   - fabric learns what is around the switch: routes from a routing source, links
//     by hellos, hosts by ARP. All goes into the unicast table (package unicast).
//   - follow puts changed routes on the switch and makes those steps again that
//     they concern.
//   - the driver alone writes to the switch. It knows what is wanted on it, changes
//     that by edits that others post, many of them in one batch, and when it finds
//     a switch, reads it back and makes it so.
//   - requests by gRPC, of daemons and of other agents, run on goroutines of their
//     own. A goroutine waits for its turn to change a step.
//   - syncPeers and tick renew and expire leases.
//
// # A group's tree
//
// A group is installed at the sender's switch, where its answers are merged. Each
// switch makes its step (package bifurcation) and has the next ones hold the
// branches that come out, by Hold. A Hold returns when everything downstream has been
// installed; only then packets are sent there. So the ingress match of the
// sender's switch is the last entry of all, and what fails before it is rolled
// back: package planner decides, transit carries it out. To change a step, everything
// new is installed beside the old entries, under fresh numbers, and then one entry
// switches packets over.
//
// Where equal-cost paths meet, several other switches hold a step. The step stays
// while any switch holds it. Sync settles which switch holds what: each agent regularly
// tells the others everything that it holds at them; they release what it does
// not name, and say what they lack. That makes up for lost answers, crashes and
// restarts alike, so there is no other log of unfinished changes.
//
// When routes change, each agent makes its own steps again; the group's root need
// not know. If a next switch's agent does not answer then, or cannot tell two
// branches apart, its receivers get copies of their own from here, which needs
// no agent downstream.
//
// # What outlives the agent
//
// The store holds what each step is for, and its holders; what is on the switch is
// never stored but read back. Merging is the exception that needs care: an
// epoch must not come back while a switch's registers know it. So uses of slots are
// numbered (slots), and the switch's settings say whose numbers it knows and up to
// which (ownership): the state reserves numbers first, then the switch learns of them,
// then they are used. If the state is not the one that the switch knows, or is older,
// the agent clears the switch and gives up its groups (judge in adopt.go; adopt beside it
// finds what is its own). So does an agent that
// starts and finds a switch that knows nothing.
//
// # How an agent ends
//
// With Config.Restart the neighbors are asked to wait: their links hold (package
// links), and their BGP keeps routes (bgp.Source.Suspend). The next agent finds the
// switch forwarding, and resumes the sessions. It adopts what the switch has, and
// takes no route from BGP before all neighbors have announced theirs: a part of them
// may form a loop. Without Config.Restart, or with Options.Leave, the neighbors
// learn that the switch is gone.
package switchagent
