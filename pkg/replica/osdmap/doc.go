// Package osdmap is the configuration manager of the replicated volumes: which hosts there are,
// which volumes, and for each volume its [core.Map], which says who is the primary and who must
// have each write.
//
// All of it lies in a key-value store that a majority must agree on ([KV]): etcd, run by the hosts
// themselves (package embedded) or by others (package etcd), and in memory for tests (package
// osdmaptest). No write or read of a volume goes there. Only changes need it: a new primary, a
// member that is taken out of or into the acting set, a volume that is made or deleted.
//
// A volume is one record, of the volume and its map. A map is replaced by compare-and-swap
// ([Manager.Propose]): the next one has an epoch that is higher by one, and of two that are
// proposed one is written. A call that fails may still take effect, even later. Each call can be
// made again with the same arguments: that changes nothing if it had taken effect.
//
// Records are JSON with a format number, the oldest that can say it. A record that a newer program wrote is refused with
// ErrFormat, one that makes no sense with ErrDamaged, each by itself: the others count.
package osdmap
