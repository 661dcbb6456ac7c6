// Package replica keeps volumes on several hosts: a write is one WRITE with immediate of a group of pkg/mcrdma, into a
// ring at each acting member, and is acknowledged when all of them have it. Which host does what, pkg/replica/core
// decides; this package carries it out.
//
//	host, err := replica.Open(replica.Config{Self: …, Client: client, Manager: manager, Dir: dir, Listener: l, Files: files})
//	v, err := host.Volume("vol")
//	err = v.WriteAt(ctx, data, offset, false) // all acting members have it in memory
//	err = v.Flush(ctx)                        // … and on disk
//
// # Parts
//
// A loop (loop.go, mailbox.go, actions.go, run.go) owns a volume's core.Node. All else posts to it: the group that
// this node leads (lead.go, with ring.go), its membership in another's (follow.go), the disk (disk.go), messages of
// other hosts (host.go, peers.go, messages.go), and requests (requests.go, calls.go). What entries hold is in content.go
// until the disk has it, in buffers of buffer.go, whose number bounds the memory. A Volume (volume.go) sends each request
// to the loop, or to the host of the primary (forward.go, and serve.go there), and again when that has changed.
//
// # Requests that are sent again
//
// A write has the number of its session and its own, which lie in the log with it. So the next primary finds it there,
// and does not apply it twice. A write also has a floor: an index that was committed before it was sent first. If the log
// does not go back that far, it cannot be known whether the write has taken effect, and it fails with ErrUnknown.
//
// # Flow
//
// An entry goes to the same place of each member's ring, when all members have taken out what was there. A member tells
// by counters of the unicast connection up to which index it has taken them out, and up to which it has them on disk, and its
// incarnation.
// Buffers of writes, of entries that land, and of entries in messages are apart, so that none of these waits for another;
// each becomes free when its entry is on disk at the latest.
//
// A write does not wait for disks. So the log waits 20 ms for more entries, which then are one sync, one report to the primary, and one
// job of the store. A flush has all members sync at once, and entries that follow it too (core.Hurry).
//
// # Failures
//
// After an error of the disk the node ends: it claims nothing more and leaves its group, and the volume's other copies
// go on. Requests on this host go to the primary as before.
package replica
