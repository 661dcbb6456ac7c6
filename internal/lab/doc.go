// Package lab runs a small data center in one process: the switches of a topology as
// embedded ones, an agent beside each with BGP between the agents, and a daemon for
// each host. A single switch has static routes.
//
//	l, err := lab.Start(ctx, lab.Options{Dir: dir})
//	client, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: l.Host("h1").Socket})
//	…
//	err = l.Close()
//
// Everything is on addresses of the loopback network that each lab has for itself;
// cables are UDP tunnels. Nothing takes privilege, and nothing is left after Close
// but the files in Options.Dir. Each process has a certificate from the lab's CA.
//
// [OpenSwitch] and [Run] are what other laboratories share with it: tests/fabric, whose
// cables are in memory so that tests can cut them and look at each frame, and
// tests/library, whose hosts' applications are part of the test. tests/e2e/lab is apart:
// it starts the programs that users run, in namespaces.
//
// It is for demonstrations and benchmarks.
package lab
