// Package traffic is the embedded switch's traffic manager: what happens to
// packets between ingress and egress.
//
// A [Buffer] is the switch's packet memory: bytes that all queues share, and some
// for each queue alone. A [Port] decides which packets of one port leave when:
// classes of strict priority, and a rate. A [Manager] joins a pipeline with one Port
// for each port number. There is no priority flow control: a packet that finds no room is
// dropped and counted.
//
//	m, err := traffic.New(traffic.Config{}, func(port uint16, frame []byte) { … })
//	m.Load(pipe)
//	m.Arrive(now, port, frame)    // frames that can leave at once are given to the function
//	at, ok := m.Run(now)          // those whose time has come; more at that time
//
// The package is pure: no clocks, sockets or goroutines, so that it runs by real
// time in a switch and by virtual time in a simulator, which may use Buffer and Port
// without a pipeline.
package traffic
