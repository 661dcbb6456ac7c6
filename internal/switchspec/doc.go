// Package switchspec describes the state of a switch that runs the program of
// p4src, as it is wanted and as it was read back, in types of its own, and finds
// the shortest ordered way from one to the other.
//
//	var want switchspec.State
//	err := want.Put(switchspec.PREGroup{…}, switchspec.Replica{…}, switchspec.Match{…})
//	err = want.Check()                    // no reference leads nowhere
//	changes := switchspec.Diff(have, &want) // write them stage by stage
//
// A State is a set of entities, each with a key: what P4Runtime calls an entry of
// a table, a group of the packet replication engine, or a default action. What
// the entities mean is described in docs/dataplane.md.
//
// # What Diff promises
//
// The changes of one stage do not depend on each other, and may be done in any
// order, even if others of the stage fail. Stages are to be done one after the
// other. After any part of them
//
//   - no entity refers to one that is not there, if that held before;
//   - a packet of a group that is in both states is treated as in one of the
//     two, or as if the group were not there, but never as something between.
//     The latter happens only where that takes more than one change of entities
//     that are in use; to avoid it, a caller gives what changes fresh numbers,
//     so that the [Match] is the one change;
//   - answers of one group's members are never merged as another group's: a
//     member's entry does not meet a [MergeGroup] of an epoch that is not its own.
//
// The package is pure.
package switchspec
