// Package links determines which of a switch's links work, and which switches are at their other
// ends. It has the codec of the hellos that switch agents send each other, a manager with one
// liveness session per port, and the ARP codec that the agent uses with hosts.
//
//	m := links.New(links.Config{Name: "torA", Ports: ports, Rand: r}, now)
//	for {
//		send, events, next := m.Tick(now)
//		// send the frames, handle the events, wait for a frame or until next
//		err := m.Receive(now, port, frame) // then Tick again
//	}
//	last := m.Close(now, hold) // send these to inform the neighbors
//
// # When a link is up
//
// A link is up while hellos of the expected neighbor arrive, and say that this switch's hellos
// reach it. So a link that has failed in one direction is down at both ends. With the defaults a
// failure is detected after 100 to 150 ms; single lost or late hellos do no harm.
//
// # When an agent restarts
//
// The switch forwards without its agent. So an agent that will be back says in its last hellos for
// how long (at most MaxHold) the neighbors should consider their links up without hellos. The first
// of these events ends the hold: the new agent's session comes up, without a link event; an agent
// of another name or port appears; the neighbor sends AdminDown; or the time ends. The last
// hellos are accepted once, and only in their own session; a later copy of them is ignored.
//
// The price is that a cut during the hold is not detected before the hold ends.
//
// # Wrong neighbors
//
// A hello names its sender and the port through which it left. A hello from another switch than the
// port's configuration names, or from this switch itself, takes the link down at once: the port's
// state is then "wrong", and stays so until that sender has been silent for its detection time.
// Hellos of other switches are ignored meanwhile, so two neighbors on one wire (through an
// unmanaged switch) cannot make the link flap. This switch goes on sending hellos, with AdminDown,
// so that the other end can report the wrong neighbor.
//
// Hellos are not authenticated. A device that can send frames into a link between
// switches can pretend to be the neighbor; host ports have no session.
//
// # Routers
//
// A router that runs BIRD or FRR sends no hellos. The agent sends it an ARP request every second;
// after three requests without a reply the link is down.
//
// The package is pure, and a Manager is not for concurrent use.
package links
