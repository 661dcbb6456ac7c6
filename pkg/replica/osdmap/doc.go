// Package osdmap is the configuration manager of the replicated volumes. It stores the hosts, the
// volumes, and for each volume its [core.Map], which names the primary and the members that must
// have each write.
//
// All of it is in a key-value store with majority consensus ([KV]): etcd, run by the hosts
// themselves (package embedded) or elsewhere (package etcd), or a store in memory for tests
// (package osdmaptest). Reads and writes of a volume do not use it. Only changes do: a new primary,
// a member that leaves or joins the acting set, a volume that is created or deleted.
//
// One record holds a volume and its map. A map is replaced by compare-and-swap ([Manager.Propose]):
// the next map has the next epoch, and of two proposals for an epoch one is written. A call that
// fails may still take effect, even later. Each call may be repeated with the same arguments, which
// changes nothing if it has taken effect.
//
// Records are JSON with a format number, the oldest that can express the content. A record written
// in a newer format is refused with ErrFormat, an invalid one with ErrDamaged; other records are
// not affected.
package osdmap
