// Package match is the match engine of the embedded switch: tables from keys of exact,
// longest-prefix, ternary and range fields to values of any type.
//
// A [Table] is built once from the [Spec]s of its fields. [Table.Insert] and [Table.Delete] change
// its entries. [Table.Lookup] finds the entry that applies to the words of a packet, without
// allocation and without Go maps:
//
//   - exact keys by an open-addressing hash table;
//   - keys with prefixes by one probe of such a table for each combination of
//     prefix lengths in use, longest first;
//   - keys with ternary or range fields by one probe with the exact fields,
//     which finds the few entries that agree in them, in order of priority.
//
// The package is pure: it imports the standard library only, and has no clock, concurrency or
// randomness; the same calls give the same results. A Table is not safe for concurrent use, not
// even by several Lookups.
package match

import "errors"

// Kind is the match kind of a field.
type Kind uint8

// Kinds of fields.
const (
	Exact Kind = iota
	LPM
	Ternary
	Range
)

// Spec is a field of a table's key.
type Spec struct {
	Kind Kind
	Bits int
}

// Field is one field of an entry's key. The Spec's Kind determines which members are used; the zero
// Field means "don't care" for every kind except Exact. Otherwise a nil Value, Mask or High means
// zero.
type Field struct {
	Value     Value // of a range: its start
	Mask      Value // Ternary: the relevant bits; Value has no others
	High      Value // Range: the inclusive end
	PrefixLen int   // LPM: number of relevant leading bits; Value has no others
}

// Key is the key of an entry: a Field for each Spec.
type Key []Field

// Errors that the errors of this package wrap.
var (
	ErrExists = errors.New("entry exists already")
	ErrFull   = errors.New("table is full")
	ErrKey    = errors.New("bad key")
)
