// Package traffic is the embedded switch's traffic manager: what happens to
// packets between ingress and egress.
//
// A [Queue] decides which packets of one port leave when: depth, tail drop and
// rate. A [Manager] joins a pipeline with one queue for each port.
//
//	m := traffic.New(func(port uint16, frame []byte) { … })
//	m.Load(pipe)
//	m.Arrive(now, port, frame)    // frames that can leave at once are given to the function
//	at, ok := m.Run(now)          // those whose time has come; more at that time
//
// The package is pure: no clocks, sockets or goroutines, so that it runs by real
// time in a switch and by virtual time in a simulator. It imports the standard
// library and packages pipeline and pre only.
package traffic
