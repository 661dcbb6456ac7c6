// Package links finds out which of a switch's links work and which switches are at
// their other ends. It has the codec of the hellos that switch agents send each other, a manager
// of one liveness session for each port, and the codec of ARP for the agent's
// dealings with hosts.
//
//	m := links.New(links.Config{Name: "torA", Ports: ports, Rand: r}, now)
//	for {
//		send, events, next := m.Tick(now)
//		// send the frames, act upon the events, wait for a frame or until next
//		err := m.Receive(now, port, frame) // then Tick again
//	}
//	last := m.Close(now, hold) // send these, the neighbors then know
//
// # When a link is up
//
// A link is up while hellos of the expected neighbor come in, and say that ours
// reach it. So a link that has failed in one direction is down at both ends.
// With the defaults a failure is noticed 100 to 150 ms after it; hellos that are lost
// or late one at a time do no harm.
//
// # When an agent restarts
//
// The switch forwards without its agent. So an agent that will be back says so in
// its last hellos, and for how long (at most MaxHold) the neighbors are to count their
// links as up without hellos. The first of these ends that:
// the new agent's session, which comes up unnoticed; an agent of another name or
// port; the neighbor, by AdminDown; or the end of the time. The last hellos
// count once and in their own session; a copy of them that comes later means nothing.
//
// The price: a link that is cut while it is held is not noticed until it is watched
// again.
//
// # Wrong neighbors
//
// A hello names its sender and the port by which it left. One of a switch other than
// the port's configuration says, or one of this switch itself, takes the link down at once:
// a port's state is then "wrong", and stays so until that sender has been
// silent for its detection time. No other switch's hello counts meanwhile, so two
// neighbors on one wire (an unmanaged switch between) cannot make the link flap.
// Our own hellos go on and say AdminDown, so that the other end can tell its
// operators which switch is there.
//
// Hellos are not authenticated. A device that can send frames into a link between
// switches can pretend to be the neighbor; host ports have no session.
//
// # Routers
//
// A router that runs BIRD or FRR sends no hellos. It is asked by ARP for its address every
// second; three requests without an answer take the link down.
//
// The package is pure, and a Manager is not for concurrent use.
package links
