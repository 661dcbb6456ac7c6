// Package connmgr is the daemon of a host: it forms multicast groups for the host's applications,
// and lets them join groups of other hosts.
//
//	m, err := connmgr.New(ctx, cfg, connmgr.Options{Logger: log})
//	…
//	err = m.Run(ctx) // until ctx ends
//
// It serves two gRPC services of api/mcrdma/v1, and calls two services:
//
//   - Applications, on a unix socket. An application is identified by its user, which the kernel
//     reports, and by its session, which is the stream of Open.
//   - Hosts, for the daemons of other hosts, with mTLS (package identity). A daemon can form groups
//     only with its own addresses as the source.
//   - It calls Hosts of other daemons, for the groups of this host, and SwitchGroups of the agent
//     of its ToR.
//
// Queue pairs and memory belong to the applications; the daemon only arranges their connections.
//
// # Groups
//
// A group has formations 1, 2, …, each with its own MC_ID, PSN, and queue pairs. To form the group,
// the sender's daemon asks all receivers to prepare, asks the switches to install the group (or, if
// they cannot be used, lets the hosts relay), and commits. A group.Sender for each group decides
// the actions and their order; perform.go carries them out.
//
// The daemon monitors a formed group: it detects dead receivers by beats to their daemons (package
// health), renews the leases at the agent, and follows its events.
//
// # State
//
// Groups and memberships are in a store (package store). After a restart the daemon keeps them for
// a while for their applications, and removes them if the applications do not reconnect. It removes
// groups at the agent that the store does not have.
//
// Durable writes at the sender:
//
//   - the start of a formation (of a new group while receivers prepare and the agent installs, of
//     an existing one before they learn its number), and its completion (while receivers commit);
//   - the removal of a receiver, with the view without it, before the switch goes on without it;
//     and that it is done;
//   - that a formation was given up;
//   - that a group has ended, before others learn of that; and finally that nothing is left of it.
//
// At a receiver: a membership with its view, before its application learns that it is formed; each
// later view; and its end. A handler that panics ends the process, which restarts from these.
//
// # Concurrency
//
// A group's machine belongs to one goroutine (run, in perform.go); others post events to it, and
// read the status that it publishes. The sessions of applications (session.go), the memberships
// (member.go), and the client of the switch's agent (package agent) have their own locks.
// Manager.mu guards the table of groups, and peers.mu the other hosts and their health. The locks
// are taken in the order Manager.mu, peers, memberships, sessions, one session, and no goroutine
// waits for anything else while it holds one.
package connmgr
