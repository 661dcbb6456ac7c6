// Package core replicates one volume, or log, as a state machine: primary-backup replication with
// writes to all of an acting set, after W. Lin, M. Yang, L. Zhang, L. Zhou: PacificA: Replication
// in Log-Based Distributed Storage Systems, MSR-TR-2008-25. Where Ceph has a term, it is used:
// acting set, epoch, min_size, peering, stray, backfill, last_epoch_started.
//
// # Use
//
// A [Node] is one host's part. Each event is a method call with the time of the host's monotonic
// clock as an argument. Take returns the resulting actions, which the caller carries out in order;
// each action names the event that reports its outcome. The core holds no data: an entry of the
// log is a [Version], that is an epoch and an index, and the caller keeps its content. Reads and
// writes go to the primary, which makes one group of pkg/mcrdma to the other acting members. A
// write is one operation of the group (Post); its completion (Completed) says that all members of
// the group's view have the entry in memory. Everything else is messages, which may be lost,
// duplicated, delayed and reordered.
//
// # Guarantees
//
//   - Linearizable: as long as one incarnation of the acting set survives, a block is a register. A
//     read returns the last write that was acknowledged before the read began, or a concurrent
//     one. A primary that was replaced serves nothing, however long it was frozen.
//   - Acked: an acknowledged write is in the memory of all acting members. It survives as long as
//     one of them has not restarted.
//   - Flushed: what a flush covered is on the disks of all acting members. After all of them have
//     restarted, each block has its last flushed content or a later write. If the operator removes
//     members that do not come back from the map (Without), one member suffices; the one with the
//     most recent log prevails.
//   - Waits: requests that cannot be served are not refused, but wait: with fewer than MinSize
//     members, or while members that may have the only copy of some data are not back.
//   - Live: some multiples of Grace after the last fault, the volume serves, and all running hosts
//     are in the acting set.
//
// Assumptions: hosts do not lie about what they have (impossible claims are ignored); the rates of
// clocks differ by at most a tenth, and nothing else about them matters; a disk keeps what it has
// synced; the transport identifies the sender of a message.
//
// # Members, the map, and who may change it
//
// A [Member] is a host in an incarnation, which increases with each start of its process. A
// process that ends loses what the host had in memory only, so a claim of an earlier incarnation
// says nothing about the current one. The [Map] is one record of a configuration manager (etcd),
// and only changes by a compare-and-swap of its epoch. Nodes take the map only from there: a
// message that names a newer epoch only makes them ask. So no member can forge a map. While the
// manager is away, the map cannot change; nothing else is affected, leases included.
//
// The outcome of a compare-and-swap may be unknown. Then the same proposal is written again until
// the map shows a newer epoch. Meanwhile both sets count: a write is acknowledged only when all
// members of the map and of the proposal have it, and leases are needed from all of them.
//
// These invariants hold for the acting set of the map at each moment:
//
//	A1  each member of it, in its incarnation, has all acknowledged writes in memory
//	A2  each host of it has on its disk all stable entries: those flushed, applied or trimmed anywhere
//	A3  only these members may become the primary as long as one of them has not restarted
//
// A write completes only in the group's view, and a view is approved (AnswerView) only if it
// contains the whole acting set, which establishes A1. The primary may remove a member from the
// set at any time; it does so when the group must go on without it, when it has restarted, when it
// is silent for Grace, or when no group could be formed with it for Grace (Hindered). At least
// MinSize must be left. A member is added when it has A1 and A2: it has joined the group (Add), has
// all entries from before that, and has all stable entries on disk. From before the proposal on,
// later writes wait for it, too.
//
// # Who is the primary
//
// The primary continually asks all members for leases. A grant is valid for Lease from when the
// request was *sent*, and the member that gives it does not take over for Grace from when the
// request *arrived*. Grace is at least 5/4 of Lease, so clocks that differ by a tenth agree on the
// order (1.1/0.9 < 5/4). A read is served if, at the time at which it has been read, all required
// members have granted leases; the same holds for acknowledgements. A read sees the log only up to
// the commit index, because an entry that not all members have might not survive. A member that
// has waited for Grace proposes itself as the primary, and grants nothing until the outcome is
// known, however long that takes, because its proposal may still win. The old primary stays in
// the acting set only if otherwise fewer than MinSize were left, because it may be the only other
// member with everything. A primary that the operator promoted has not waited: it serves when each
// member that had granted a lease before has granted one to it, and so knows, or when Grace has
// passed.
//
// If all acting members have restarted, all of them report so (Notify), with what their disks
// have. The best one, by last_epoch_started and then by version, proposes itself, with all that
// have notified, in their new incarnations. Until they agree on the log nothing is acknowledged or
// read, so A1 requires nothing of them. The members of the first map have incarnation 0, so a new
// volume begins in the same way, but without the wait for Grace: no lease was granted in epoch 1,
// which has no primary. After Grace it begins without hosts that have not notified, if MinSize
// have. A replaced disk does not count for its predecessor
// (HardState.Born): it was made in a later incarnation than the map has.
//
// # What the operator may change
//
// An operator changes the map, too, by the same compare-and-swap (operator.go). Removing a host
// keeps A1 to A3 for the rest. If it was the primary, the map has none: each member stops granting
// when it learns of that, and waits for Grace, as after a primary that fell silent. If the operator
// names another primary, there is no wait, because the old one stays in the acting set: peering
// waits for it, or for Grace, and none of its leases lasts longer. The hosts that have a place are
// part of the map (Map.Up), so a host without a place is never proposed.
//
// # Peering
//
// A new primary first leaves the group that it is a member of, and takes over the entries that it
// has received there: they are in memory, and may have been acknowledged. Then its log is the
// volume's. The other members do the same when they learn of a newer [Interval], before they
// answer. That is the fence: nothing of an older group is accepted any more. Each reports its log
// as the last entry of each epoch. An epoch has one primary, and an entry is accepted only after
// its predecessor; so two logs that have the same version are the same up to it, and the newest
// epoch that both have tells where they diverge. From there the primary sends entries (Push). When
// a member has all of them, it drops everything beyond, and records last_epoch_started (Start).
// When all acting members have done so, all of the log is committed, because whichever of them
// becomes the next primary has it, and the group is formed. If the group fails, the same primary
// forms it again in another round, which is peering without a change of the map.
//
// # The store, and trimming
//
// An entry is stable when all acting members have it on disk. Only stable entries are applied to
// stores. Committed entries are not enough: after all members have restarted, entries that were
// committed but only on some disks may be gone, and a store that had applied them would have to
// undo them. The limit for applying is recorded before (HardState.Applying), and a log is never
// truncated below it. Reads find newer blocks in the log. The log is trimmed up to what is stable
// and applied, except for Keep entries for members that return; for members that are catching up
// it keeps up to half of Limit. So a host of the acting set always gets what it lacks from the log.
//
// # Stray members
//
// A member that is not in the acting set gets the log as in peering. If its log diverges from the
// primary's before the tail, its store is copied, piece by piece (Push with Reset, Chunk). The log
// begins again at what the primary's store has, and new entries arrive meanwhile: those for blocks
// before the cursor are applied, the others come with a later piece. A piece must not be older than
// what is applied, so no more is applied than the piece before has. The copy is complete when the
// log on disk covers everything that the newest piece may contain. Meanwhile the log is trimmed as
// always. While clients have requests, the copy pauses after each piece for six times as long as
// the piece took. A Reset that arrives late would destroy a member that has been promoted
// meanwhile. So it names the member's position, and is void if that has advanced; and while one may
// be in flight the member is not promoted.
//
// Clients may write faster than such a member gets what they write. So while it lacks more than Near
// entries, no more bytes are accepted than half of what it has got since it began (Config.Size):
// what it lacks shrinks by half of each Push, and it is near when it has got at most twice what it
// lacked. Then it comes into the group, and lacks only what was written until then. Once a copy has
// begun, or the member is in the group, writes also wait rather than that the log is trimmed after
// what the member has. So one copy suffices, unless half of Limit was not applied yet when it
// began. If the member has got nothing for a lease after all earlier writes are done, clients do not
// wait for it until it has.
//
// What was sent and has not arrived is sent again after four times as long as the data before it
// took, and then after twice as long each time, so that a slow link does not get more to carry.
//
// # Differences from PacificA and Ceph
//
// PacificA always removes the old primary from the configuration, and applies committed entries.
// Ceph's primary may adopt another member's log, requests missing objects one by one, and its
// acting set may shrink below min_size; here it does not, and so waits for fewer hosts after that.
// The map does not say which members are recovering: the primary finds out, and nothing depends
// on it.
//
// # Tests
//
// TestAdversary runs whole volumes from a seed. TestExplorer explores all schedules within bounds,
// one of which has three entries, two crashes, a change of the acting set, loss and reordering.
// TestMistakes shows that the adversary finds each of two dozen mistakes in this code. TestScripts
// runs one node through the events of testdata, and shows its actions after each.
//
// The package is pure.
package core
