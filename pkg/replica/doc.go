// Package replica stores volumes on several hosts. A write is one WRITE with immediate of a group
// of pkg/mcrdma, into a ring at each acting member, and is acknowledged when all of them have it.
// Package core makes the decisions; this package carries them out.
//
//	host, err := replica.Open(replica.Config{Self: …, Client: client, Manager: manager, Dir: dir, Listener: l, Files: files})
//	v, err := host.Volume("vol")
//	err = v.WriteAt(ctx, data, offset, false) // all acting members have it in memory
//	err = v.Flush(ctx)                        // … and on disk
//
// # Parts
//
// A loop (loop.go, mailbox.go, actions.go, run.go) owns a volume's core.Node. Everything else posts
// to it: the group that this node leads (lead.go, with ring.go), its membership in another node's
// group (follow.go), the disk (disk.go), messages of other hosts (host.go, peers.go, messages.go),
// and requests (requests.go, calls.go). The content of entries is in content.go until the disk has
// it, in buffers (buffer.go), whose number bounds the memory. A Volume (volume.go) sends each
// request to the loop, or to the primary's host (forward.go, and serve.go there), and again when
// the primary has changed.
//
// # Requests that are sent again
//
// The log stores each write's session and sequence number. So the next primary finds a repeated
// write there, and does not apply it twice. It also knows the writes of entries that were trimmed
// since its process began, or since its store was copied from another host (past.go). A write has
// a floor: an index that was committed before the write was first sent. If that is before what the
// primary knows, it is unknown whether the write has taken effect, and it fails with ErrUnknown.
//
// # Flow
//
// An entry goes to the same offset of each member's ring, once all members have consumed what was
// there. By counters of the unicast connection a member reports the last index that it has
// consumed, the last that it has on disk, and its incarnation. Writes, received entries, and
// entries in messages have separate buffers, so that none of these waits for another; a buffer
// becomes free when its entry is on disk, at the latest.
//
// A write does not wait for disks. So the log waits up to 20 ms for more entries, which then share
// one sync, one report to the primary, and one job of the store. A flush makes all members sync at
// once, also the entries that follow it (core.Hurry).
//
// # Failures
//
// After a disk error the node ends: it claims nothing more and leaves its group, and the volume's
// other copies go on. Requests at this host still go to the primary.
package replica
