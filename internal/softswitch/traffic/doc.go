// Package traffic is the embedded switch's traffic manager: it queues and schedules packets between
// ingress and egress.
//
// A [Buffer] is the switch's packet memory: bytes shared by all queues, and reserved ones for each
// queue. A [Port] schedules the packets of one port: classes of strict priority, and a rate. A
// [Manager] connects a pipeline with one Port for each port number. There is no priority flow
// control: a packet that does not fit is dropped and counted.
//
//	m, err := traffic.New(traffic.Config{}, func(port uint16, frame []byte) { … })
//	m.Load(pipe)
//	m.Arrive(now, port, frame)    // passes frames that can leave at once to the function
//	at, ok := m.Run(now)          // passes those that are due; call again at that time
//
// The package is pure: no clocks, sockets or goroutines. So it runs in real time in a switch, and
// in virtual time in a simulator, which may use Buffer and Port without a pipeline.
package traffic
