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
// the group (or, if they can't be used, has the hosts relay), and commits. What is to be done,
// and in which order, is decided by group.Sender, one for each group; perform.go does it.
//
// The daemon monitors a formed group: beats to the receivers' daemons detect dead receivers
// (package health), leases at the agent are renewed, and its events followed.
//
// # State
//
// Groups and memberships are in a store (package store). After a restart they wait for
// their applications for a while, and are swept if the applications don't come. A group at
// the agent that no group of the store owns is removed.
//
// Durable writes at the sender: the formation that is begun (of a new group while receivers
// prepare and the agent installs, of an old one before they hear its number), and that it is
// complete (while receivers commit); which receiver is to be taken out, and the view without it, before the
// switch goes on without it, and that it is out; that a formation was given up; that a group
// has ended, before others hear of that, and at last that nothing is left of it. At a receiver:
// a membership with its view, before its application learns that it is formed; each later view;
// and its end. A handler that panics ends the process, which restarts from these.
//
// # Concurrency
//
// A group's machine belongs to one goroutine (run, in perform.go), to which events are posted; others
// read the status that it publishes. Parts with locks of their own are the sessions of
// applications (session.go), the memberships (member.go), and the client of the switch's agent (package agent).
// Manager.mu guards the table of groups, and peers.mu the other hosts and their health. No goroutine waits for anything
// else while it holds one of these locks, but for that of a later part in the order Manager.mu, peers, memberships,
// sessions, one session.
package connmgr
