// Package lab is a whole lab on one machine, for tests and benchmarks: network
// namespaces joined by veth pairs, an embedded switch and an agent in those of
// switches, a daemon and an application in those of hosts, each a process of its
// own, made of the programs that users run.
//
//	   torA ── spine ── torB         two racks; each switch is "switchctl
//	  /    \           /    \        softswitch" with "switchctl agent"
//	h1      h2       h3      h4      10.1.0.11, .12 and 10.2.0.11, .12
//
// Daemons talk to each other through the switches; with the agents of their
// switches, and agents with each other, they do by a management network.
//
//	l, err := lab.Start(ctx, lab.Spec{})
//	defer l.Close()
//	h1 := l.Host("h1")
//	err = h1.Member.Call(ctx, "create", …)
//
// The namespaces have no names, and processes get killed when the one that started
// them is gone, whichever way it went. So nothing is left behind.
//
// It is apart from internal/lab, which runs everything in one process without privilege:
// here the programs themselves are tested, on the kernel's network, and can be killed.
//
// It takes root, and Linux. Tests and benchmarks may import it.
package lab
