// Package fabric is a whole fabric in one process, for tests and benchmarks: embedded switches
// joined by wires that can be cut, an agent for each, and hosts. Agents speak gRPC to each other,
// P4Runtime to their switches and BGP to their neighbors, all over loopback TCP; only the wires are
// in memory.
//
//	f := fabric.Start(t, fabric.Figure3())
//	g := f.Group("A1", "B1", "D1")
//	f.Install(g)
//	f.CheckDelivery(g)          // packets, as they arrive at the receivers
//	f.CheckAcks(g)              // and their answers, merged
//	f.Cut(f.Wires("torA", "core")[0])
//	f.Converged()
//	f.CheckDelivery(g)
//	f.Remove(g)
//	f.CheckLeftovers(0)
//
// A cut wire loses frames silently, like a link through a device that drops
// them: only hellos detect it. Switches and agents can be stopped and started
// one by one. Everything ends with the test, and what the agents logged is
// shown if it failed (or at once, if the environment has MCRDMA_FABRIC_LOG).
//
// It is separate from internal/lab, but runs switches and agents in the same way: its cables are in
// memory, so that tests can cut them and inspect each frame, and its agents can be killed and
// restarted.
//
// Fabrics of one process run one after another, because GoBGP keeps options of all its speakers in
// global variables.
package fabric
