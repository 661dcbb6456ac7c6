// Package wal is the durable log of one volume on one host: its entries, and its hard state.
//
//	log, err := wal.Open(dir, volume, wal.Options{Synced: func(seq uint64, err error) { … }})
//	node := core.New(config, log.Stored(), now)
//	log.Persist(action, entry) // for each core.Persist, in their order; Synced says when it is durable
//
// An [Entry] is one write; its header and data are the same on the wire and on disk. A record is a header of
// 64 bytes, each with a CRC-32C of its own and of its data; records other than entries are the changes
// of core, in one sequence, so that what is durable is always all up to some change. All that is queued is
// written and synced at once, while what comes next queues (group commit). Entries that no flush waits for
// wait for more for a while (Options.Delay, Hurry).
//
// # Files
//
// A segment begins with all that is needed to go on without those before: these are removed when the
// log has none of their entries, but for one, a spare, whose file is the next segment: to sync what overwrites blocks that are there
// is cheaper than to sync new ones. So behind a segment's end may lie records of another: the CRC of each record's header is combined with a
// number that is drawn for its segment. Each Open begins a new segment. In front of a batch, or after it if nothing follows,
// lies a mark: all before it is durable. So Open tells a tail that was torn by a crash, which it
// cuts, from damage to what had been durable, which it refuses: there is a mark behind. What lies after the last
// mark is written once more, since after a sync that has failed the kernel may only pretend to have it.
//
// After an error of the disk nothing becomes durable any more, and no sync is tried again (A. Rebello et al.:
// Can Applications Recover from fsync Failures?, USENIX ATC 2020).
//
// # Why not a library
//
// raft-wal v0.4.0 gives a flipped bit in an entry as right, silently ends a log at a damaged frame, and keeps hard state and
// truncations in bbolt, by syncs of their own. tidwall/wal v1.2.1 has no CRC, and does not open a log with
// a torn tail. etcd's wal cannot read one entry. A shim around any of them is a log of its own.
package wal
