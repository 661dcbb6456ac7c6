// Package lab runs a small data center in one process: an embedded switch for each switch of a
// topology, with an agent for each and BGP between the agents, and a daemon for each host. A single
// switch has static routes.
//
//	l, err := lab.Start(ctx, lab.Options{Dir: dir})
//	client, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: l.Host("h1").Socket})
//	…
//	err = l.Close()
//
// Each lab uses its own addresses of the loopback network; cables are UDP tunnels. It needs no
// privilege, and leaves only the files in Options.Dir after Close. Each process has a certificate
// from the lab's CA.
//
// Other labs use [OpenSwitch] and [Run], too: tests/fabric, whose cables are in memory so that
// tests can cut them and inspect each frame, and tests/library, whose hosts' applications are part
// of the test. tests/e2e/lab is separate: it starts the programs that users run, in namespaces.
//
// The package is for demonstrations and benchmarks.
package lab
