// Package core is the replication of one volume, or log, as a state machine: primary-backup with writes to all
// of an acting set, in the manner of W. Lin, M. Yang, L. Zhang, L. Zhou: PacificA: Replication in Log-Based
// Distributed Storage Systems, MSR-TR-2008-25. Where Ceph has a word it is used: acting set, epoch,
// min_size, peering, stray, backfill, last_epoch_started.
//
// # Use
//
// A [Node] is one host's part. Each event is a call of a method, which has the time of the host's
// monotonic clock as its argument; the actions that follow are fetched by Take, and carried out in order;
// each action says which event is its outcome. The core holds no data: entries of the log are a
// [Version], an epoch and an index, and the caller keeps the content that belongs to it. Reads and writes
// go to the primary, which makes one group of pkg/mcrdma to the other acting members: a write is one
// operation of it (Post), and a completion (Completed) says that all members of the group's view have it in
// memory. Everything else is messages, which may be lost, duplicated, delayed and reordered.
//
// # What is promised
//
//   - Linearizable: a block is a register, while one incarnation of the acting set survives: a read
//     returns the last write that was acknowledged before it began, or one that was under way. A
//     primary that was replaced serves nothing, however long it was frozen.
//   - Acked: an acknowledged write is in the memory of all acting members, and survives while one of them
//     has not restarted.
//   - Flushed: what a flush covered is on the disks of all acting members. After all have restarted each
//     block has its last flushed content, or what was written later. If the operator takes those out of the map that do
//     not come back (Without), one of them suffices. Of those that are back, the one that has most prevails.
//   - Waits: what cannot be done is not refused, but waits: with fewer than MinSize members, or when the members
//     with the data have not all come back. It goes on when they are back.
//   - Live: when faults stop for some multiples of Grace, the volume serves, and all hosts that are there are in
//     the acting set.
//
// It takes for granted: hosts do not lie about what they have, but what they cannot have is not
// believed; clocks differ in rate by a tenth at most, and in nothing else matter; a disk keeps what it
// has acknowledged; the transport knows which host a message is from.
//
// # Members, the map, and who may change it
//
// A [Member] is a host in an incarnation, which rises with each start: with its process a host loses what it
// had in memory only, so what it was before says nothing about what it has now. The [Map] is one
// record of a configuration manager (etcd), changed by compare-and-swap of its epoch only. Nodes take the map
// from there alone; a message that names a newer epoch just has them ask. So no member can forge one. Without
// the manager nothing changes, and nothing else is affected.
//
// The outcome of a compare-and-swap may not be known: then it is written again, always the same,
// until the map shows a newer epoch. Meanwhile both sets count: what is acknowledged is with all members of
// the map and of the proposal, and the leases are from all of them.
//
// These invariants hold for the acting set of the map at each moment:
//
//	A1  each member of it, in its incarnation, has all acknowledged writes in memory
//	A2  each host of it has all that is stable on its disk: what was flushed, applied or trimmed anywhere
//	A3  no member but these may become the primary while one of them has not restarted
//
// A write completes only in the group's view, and a view is approved (AnswerView) only when it has all of
// the acting set, which establishes A1. A member may be taken out of the set at any time, by the primary, which
// does so when the group is to go on without it, when it has restarted, or is silent for Grace; but MinSize
// must be left. A member is added when it has A1 and A2: it has come into the group (Add), has all entries from before that,
// and on disk all that is stable; it is required for what follows before it is proposed.
//
// # Who is the primary
//
// The primary asks all members for leases all the time. A grant counts for Lease from when the request was
// *sent*, and the member that gives it does not take over for Grace from when the request *came*. Grace is at least 5/4 of
// Lease, so that clocks that differ by a tenth agree on the order (1.1/0.9 < 5/4). A read is served if
// all that are required have granted, by the time at which it has been read; so are acknowledgements given.
// It sees the log up to the commit index and no further: what is not yet with all might not survive.
// A member that has waited for Grace proposes itself, and grants nothing until the outcome is
// known, even if that takes long: its proposal may still win. The old primary stays in the acting
// set only if fewer than MinSize would be left, since it may be the only other one with everything. A primary that the
// operator has promoted has not waited: it serves when each holder of a lease that it granted before has granted one to
// it, and so knows, or Grace has passed.
//
// If all acting members have restarted, all of them say so (Notify), and what their disks have. The best, by
// last_epoch_started and then by version, proposes itself, with all that have notified, in their new
// incarnations. Nothing is acknowledged or read before they agree on the log, so A1 asks nothing of
// them until then. A first map has members of incarnation 0: a new volume begins in this same way. A
// disk that was replaced does not count for the one before (HardState.Born): it was made in a later incarnation than the map has.
//
// # What the operator may change
//
// An operator makes maps too, by the same compare-and-swap (operator.go). To take a host out keeps A1 to A3 for the rest. If
// it was the primary, the map has none: each member stops granting when it knows, and waits for Grace, as after a primary that
// was silent. Another primary by the operator need not wait, as the old one stays in the acting set: peering waits for
// it, or for Grace, and no lease that it has is longer. Hosts that get or lose a place are part of the map's epoch (Map.Up), so
// none is proposed that has no place any more.
//
// # Peering
//
// A new primary first leaves the group that it is a member of, and takes what has landed there: it is in
// memory, and may have been acknowledged. Then its log is the volume's. So do the others when they
// learn of a newer [Interval], before they answer: nothing of an older group lands any more, which is the fence.
// Each tells its log as the last entry of each epoch; since an epoch has one primary, and entries are taken only
// after the one before, two logs that have the same version are the same up to it, so the newest epoch that both have
// tells where they part. From there the primary sends (Push). When a member has all of it, it drops
// what is beyond, and records last_epoch_started (Start). When all acting members have, all of the log is
// committed, for whichever of them comes next has it, and the group is formed. A group that fails is
// formed anew by the same primary in another round: peering, without a change of the map.
//
// # The store, and trimming
//
// Stable is what all acting members have on disk. Only that is applied to stores, which is less than
// what is committed: after all have restarted, entries that were committed but on some disks only may be gone, and a store that
// had them would have to undo them. That it may be applied is recorded before (HardState.Applying), and a
// log is never truncated below. Reads find the rest in the log. The log is trimmed up to what is stable and
// applied, but for Keep entries for members that return; for such as are on their way it keeps up to half of Limit. So a host
// of the acting set always gets what it lacks from the log.
//
// # Stray members
//
// A member that is not in the acting set gets the log as in peering. If its log parts from the primary's
// before the tail, its store is copied, piece by piece (Push with Reset, Chunk): the log begins anew at what
// the primary's store has, new entries come meanwhile, and those before the cursor are applied, others
// come with a later piece. A piece must not be older than what is applied. The copy is complete
// when the log has on disk what the newest piece may have. Meanwhile the log is trimmed as always. While clients have
// calls the copy rests after each piece, six times as long as that took. A Reset that comes late would destroy a
// member that has been promoted meanwhile: so it names how far the member was, and is void if that has gone on; and
// while one may be under way the member is not promoted.
//
// What was sent and has not arrived is sent again after four times as long as what came before it took, and then after
// twice as long each time: a link that is slow does not get more to carry.
//
// # Differences to PacificA and Ceph
//
// PacificA removes the old primary from the configuration always, and applies what is committed. Ceph's
// primary may take another's log, asks for missing objects one by one, and its acting set may shrink below
// min_size; here it does not, and so waits for fewer hosts after that. Which members are recovering is not in the map: they
// are the primary's to find, and nothing depends on it.
//
// # Tests
//
// TestAdversary runs whole volumes from a seed, TestExplorer goes through all schedules within bounds, of which one
// has three entries, two crashes, a change of the acting set, loss and reordering, and TestMistakes shows
// that the adversary finds each of some two dozen mistakes in this code. TestScripts has one node
// go through the events of testdata, and shows what it does upon each.
//
// The package is pure.
package core
