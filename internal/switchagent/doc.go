// Package switchagent is the agent of one switch: it programs unicast routes, and installs the
// switch's steps of multicast groups, together with the agents of the other switches.
//
//	a, err := switchagent.New(ctx, cfg, switchagent.Options{Logger: log})
//	err = a.Run(ctx) // until ctx ends; the switch keeps its state
//
// # Parts
//
// Each part has the lock of its own data, and only its methods take it:
//
//   - groups.Table has the groups and steps, with their numbers and merging slots.
//   - uni has the unicast table (package unicast), and which version of it the switch has.
//   - driver has the desired state of the switch, and the session.
//   - ports has the links; a peer has what another switch holds.
//
// They call each other in this order: a Table calls the driver, uni calls the driver. Goroutines
// meet there:
//
//   - fabric learns the switch's surroundings: routes from a routing source, links by hellos, hosts
//     by ARP. All of it goes into the unicast table.
//   - follow writes changed routes to the switch, and recomputes the steps that they affect.
//   - only the driver writes to the switch. It has the desired state. Others post edits of that
//     state, which it writes in batches. When it connects to a switch, it reads the state back and
//     writes the difference.
//   - gRPC requests of daemons and of other agents run in separate goroutines. A goroutine waits
//     for its turn to change a step.
//   - syncPeers and tick renew and expire leases.
//
// # A group's tree
//
// A group is installed at the sender's switch, which merges its answers. Each switch computes its
// step (package bifurcation) and asks the next switches to hold the resulting branches, by Hold. A
// Hold returns when everything downstream is installed; only then are packets sent there. So the
// ingress match of the sender's switch is the last entry of all, and a failure before it is rolled
// back: package planner decides, transit carries it out. To change a step, the new entries are
// installed beside the old ones, under new numbers, and then one entry switches packets over.
//
// Where equal-cost paths meet, several other switches hold a step. The step stays while any switch
// holds it. Sync reconciles the holders: each agent regularly sends the others the list of
// everything that it holds at them; they release what is not on the list, and report what they
// lack. That repairs lost answers, crashes and restarts, so there is no other log of unfinished
// changes.
//
// When routes change, each agent recomputes its own steps; the sender's switch need not know. If a
// next switch's agent does not answer then, or cannot tell two branches apart, its receivers get
// separate copies from this switch, which needs no agent downstream.
//
// # State that survives the agent
//
// The store has the purpose of each step, and its holders; the switch's entries are never stored
// but read back. Package groups says how the agent tells whether it may trust them. If it must not,
// the agent clears the switch and gives up its groups. An agent that starts and finds an empty switch
// gives up its groups, too.
//
// # How an agent ends
//
// With Config.Restart the agent asks the neighbors to wait: they keep their links up (package
// links) and its routes (bgp.Source.Suspend). The next agent finds the switch forwarding, and
// resumes the sessions. It adopts the switch's entries, and uses no route from BGP before all
// neighbors have advertised theirs, because a part of the routes may form a loop. Without
// Config.Restart, or with Options.Leave, the neighbors learn that the switch is gone.
package switchagent
