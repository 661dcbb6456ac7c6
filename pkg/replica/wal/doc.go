// Package wal is the write-ahead log of one volume on one host: its entries and its hard state.
//
//	log, err := wal.Open(dir, volume, wal.Options{Synced: func(seq uint64, err error) { … }})
//	node := core.New(config, log.Stored(), now)
//	log.Persist(action, entry) // for each core.Persist, in order; Synced reports when it is durable
//
// An [Entry] is one write; its header and data are the same on the wire and on disk. A record is a
// header of 64 bytes and data, each with a CRC-32C. Records other than entries are core's other
// changes. All records form one sequence, so what is durable is always a prefix of the changes. One
// write and one sync cover all queued records, while further ones queue (group commit). Entries
// that no flush waits for are delayed, so that more share a sync (Options.Delay, Hurry).
//
// # Files
//
// A segment begins with all the state needed to continue without older segments. Older segments are
// removed when the log has none of their entries left. One of them is kept as a spare, whose file
// becomes the next segment, because syncing overwritten blocks is cheaper than syncing new ones. So
// records of an older segment may follow the end of a segment. To tell them apart, each segment
// draws a random number, with which the CRC of each record's header is combined. Each Open begins a
// new segment.
//
// A mark is a record that says that everything before it is durable. It is written in front of the
// next batch, or after a batch if none follows. By the marks, Open tells a tail torn by a crash,
// which it cuts, from damage to durable records, which it refuses: a mark follows the damage. Open
// rewrites what follows the last mark, because after a failed sync the page cache may hold data
// that is not on disk.
//
// After an error of the disk nothing more becomes durable, and no sync is retried (A. Rebello et
// al.: Can Applications Recover from fsync Failures?, USENIX ATC 2020).
//
// # Why not a library
//
// raft-wal v0.4.0 does not detect a flipped bit in an entry, silently ends a log at a damaged
// frame, and keeps hard state and truncations in bbolt, with separate syncs. tidwall/wal v1.2.1 has
// no CRC, and does not open a log with a torn tail. etcd's wal cannot read a single entry. A shim
// around any of them would itself be a log.
package wal
