// Package unicast computes the unicast part of a switch's desired state from routes, links and
// hosts, and tells the bifurcation how the switch reaches an address.
//
//	t, err := unicast.New(unicast.Config{…})
//	t.Adopt(readBack)        // numbers that the switch uses stay
//	t.Routes(delta)          // from a routing.Source
//	t.Link(9, true, peerMAC) // from the hellos
//	t.Learn(host, now)       // from ARP
//	t.Settled()              // the source has reported all that it knew
//	list := t.Changes()      // write them, and then
//	t.Written(list)
//	way, err := t.Resolve(receiver)
//
// # Which route counts
//
// Of routes to the same prefix, the first of these:
//
//   - the switch's own address and its gateways: to the agent;
//   - a known host: to its port, with its MAC. Static ones before those learned;
//   - the switch's own prefixes: to the agent, which asks for the host by ARP;
//   - the source's routes;
//   - routes that the switch had when it was read back, until Settled.
//
// A next hop is usable if its port is and the neighbor's MAC is known; the others are dropped from
// the set. A route without a usable next hop is unreachable, and so hides shorter prefixes. In one
// of the switch's own prefixes, a route of the source to a host port whose MAC is unknown goes to
// the agent, like the prefix.
//
// # Numbers
//
// The number of a next hop stands for a port and the two MACs of frames that leave through it, and
// for nothing else as long as it is desired or in use. So a neighbor with a new MAC gets a new
// number, and nothing changes for a group that uses the old one until its step is recomputed.
// Numbers are assigned round-robin, so that a freed number is not reused soon. ECMP groups are
// likewise identified by the set of their next hops' numbers.
//
// The package is pure, and not for concurrent use.
package unicast
