// Package lab is a whole lab on one machine, for tests and benchmarks: network namespaces joined by
// veth pairs, with an embedded switch and an agent in those of switches, and a daemon and an
// application in those of hosts. Each is a separate process of the programs that users run.
//
//	   torA ── spine ── torB         two racks; each switch is "switchctl
//	  /    \           /    \        softswitch" with "switchctl agent"
//	h1      h2       h3      h4      10.1.0.11, .12 and 10.2.0.11, .12
//
// Daemons talk to each other through the switches. A management network connects daemons with their
// switches' agents, and agents with each other.
//
//	l, err := lab.Start(ctx, lab.Spec{})
//	defer l.Close()
//	h1 := l.Host("h1")
//	err = h1.Member.Call(ctx, "create", …)
//
// The namespaces have no names, and the kernel kills processes when their parent ends in any way.
// So nothing is left behind.
//
// It is separate from internal/lab, which runs everything in one process without privilege: here
// the programs themselves are tested, on the kernel's network, and can be killed.
//
// It needs root, and Linux. Tests and benchmarks may import it.
package lab
