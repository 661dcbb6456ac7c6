// Package connmgr is the daemon of a host: it makes multicast groups for the host's
// applications, and lets them take part in groups of other hosts.
//
//	m, err := connmgr.New(ctx, cfg, connmgr.Options{Logger: log})
//	…
//	err = m.Run(ctx) // until ctx ends
//
// It serves two gRPC services of api/mcrdma/v1, and calls two:
//
//   - Applications, on a unix socket. An application is known by its user, as the
//     kernel tells it, and by its session, which is the stream of Open.
//   - Hosts, for the daemons of other hosts, by mTLS (package identity). A daemon
//     makes groups with its own addresses as the source only.
//   - It calls Hosts of others, for the groups that start here, and SwitchGroups
//     of the agent of its ToR.
//
// Queue pairs and memory belong to the applications; the daemon only arranges what they are
// connected to.
//
// # Groups
//
// A group is made in formations 1, 2, …, each with its own MC_ID, PSN, and queue pairs. To
// make one, the daemon of the sender has all receivers prepare, has the switches install
// the group (or, if they can't be used, has the hosts relay), and commits. A formation
// succeeds as a whole or leaves nothing: what has been begun is undone (cleanup.go), and
// leases end what cannot be reached.
//
// The daemon monitors a formed group: beats to the receivers' daemons detect dead receivers
// (package health), leases at the agent are renewed, and its events followed. Receivers
// that are gone are taken out, or the application is asked to have the group formed anew.
//
// # State
//
// Groups and memberships are in a store (package store). After a restart they wait for
// their applications for a while, and are swept if the applications don't come. A group at
// the agent that no group of the store owns is removed.
//
// Durable writes at the sender: the formation that is begun (while receivers of a new group
// prepare, but before those of an old one hear its number), and that it is complete (while
// receivers commit); which receiver is to be taken out, before the switch goes on without
// it, and that it is out; that a formation was given up; that a group is gone, once all is
// undone elsewhere. At a receiver: a membership, before its application learns that it is
// formed, and its end. A handler that panics ends the process, which restarts from these.
//
// # Concurrency
//
// Manager.mu guards everything in memory, and no goroutine waits for anything else while it
// holds it. A goroutine that changes a group's formation holds the group's turn.
//
// The package may import the standard library, grpc, prometheus, api, and the
// packages identity, store, rdmcfallback/schedule, qp (its units), and its own parts.
package connmgr
