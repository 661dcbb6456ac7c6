// Package switchspec describes the state of a switch that runs the program of p4src, desired or
// read back, in its own types, and computes the ordered changes from one to the other.
//
//	var want switchspec.State
//	err := want.Put(switchspec.PREGroup{…}, switchspec.Replica{…}, switchspec.Match{…})
//	err = want.Check()                    // no reference leads nowhere
//	changes := switchspec.Diff(have, &want) // write them stage by stage
//
// A State is a set of entities, each with a key: table entries, groups of the packet replication
// engine, and default actions of P4Runtime. docs/dataplane.md describes their meaning.
//
// # Guarantees of Diff
//
// The changes of one stage do not depend on each other, and may be done in any order, even if
// others of the stage fail. Stages must be done one after another. After any part of them
//
//   - no entity refers to a missing one, if that held before;
//   - a packet of a group that is in both states is treated as in one of the two, or as if the
//     group did not exist, but never as a mixture. It is treated as if the group did not exist only
//     if more than one entity in use must change; to avoid that, a caller gives changed entities
//     new numbers, so that the [Match] is the only change;
//   - answers of one group's members are never merged as another group's: a
//     member's entry does not meet a [MergeGroup] of an epoch that is not its own.
//
// The package is pure.
package switchspec
