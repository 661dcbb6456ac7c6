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
//     own. Whoever changes a step waits for his turn.
//   - syncPeers and tick see to leases.
//
// # A group's tree
//
// A group is installed at the sender's switch, where its answers are merged. Each
// switch makes its step (package bifurcation) and has the next ones hold the
// branches that come out, by Hold. A Hold returns when all behind has been
// installed; only then packets are turned to it. So the ingress match of the
// sender's switch is the last entry of all, and what fails before it is taken
// back. To change a step, everything new is made beside what is there, under
// fresh numbers, and then one entry turns packets over.
//
// Where equal-cost ways meet, a switch is held by several others. The step stays
// while anybody holds it. Who holds what is settled by Sync: each agent regularly
// tells the others everything that it holds at them; they release what it does
// not name, and say what they lack. That makes up for lost answers, crashes and
// restarts alike, so there is no other log of what was begun.
//
// When routes change, each agent makes its own steps again; the group's root need
// not know. If a next switch's agent does not answer then, or cannot tell two
// branches apart, its receivers get copies of their own from here, which needs
// nobody behind.
//
// # What outlives the agent
//
// The store holds what each step is for, and for whom; what is on the switch is
// never remembered but read back. Merging is the exception that needs care: an
// epoch must not come back while a switch's registers know it. So uses of slots are
// numbered (slots), and the switch's settings say whose numbers it knows and up to
// which (ownership): the state reserves numbers first, then the switch learns of them,
// then they are used. A state that is not the one the switch knows, or older, has the
// switch cleared and gives up its groups (judge). So does an agent that starts and finds a
// switch that knows nothing.
//
// # How an agent ends
//
// With Config.Restart the neighbours are asked to wait: their links hold (package
// links), and their BGP keeps routes (bgp.Source.Suspend). The next agent finds the
// switch forwarding, and has the sessions resume. What the switch has is adopted, and
// no route is taken from BGP before all neighbours have told theirs: a part of them
// may lead in circles. Without Config.Restart, or with Options.Leave, the neighbours
// are told that the switch is gone.
//
// The package may import the pure cores, the adapters (p4rt, routing), identity,
// its own sub-packages, gRPC, Prometheus; not the embedded switch, nor cmd.
package switchagent
