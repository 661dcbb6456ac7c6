// Package lab runs a small data center in one process, two racks and a spine of
// embedded switches, an agent beside each switch with BGP between the agents,
// and a daemon for each of four hosts.
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
// The package may import the embedded switch, the switch's agent and the daemon,
// and certificates are issued by it. It is for demonstrations and benchmarks.
package lab
