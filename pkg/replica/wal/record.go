package wal

import (
	"encoding/binary"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// Kinds of the log's own records, which have the header of an entry.
const (
	logKinds Kind = 128

	kindBegin    = logKinds + iota // first record of a segment: the state before it
	kindMark                       // everything before it is durable
	kindSave                       // core.Save
	kindTruncate                   // core.Truncate
	kindReset                      // core.Reset
	kindTrim                       // core.Trim
)

// align is the alignment of records in a segment, so that a header never spans two sectors.
const align = HeaderSize

// A record is an element of a segment: an entry or another change.
type record = Entry

// size returns the size of a record in a segment, in bytes.
func size(r *record) int64 { return HeaderSize + (int64(r.DataLen())+align-1)/align*align }

// begin is the content of a segment's first record: the state needed to continue without older
// segments.
type begin struct {
	Volume, Number uint64 // Number is the segment's
	Nonce          uint64 // random; tells this segment's records from those of the file's earlier segments, and from data that looks like a record
	Former         int64  // bytes in the segment before this one
	Point          point
}

// A point is the position of a log between two changes.
type point struct {
	Hard core.HardState
	Tail core.Version
	Head uint64
}

// beginSize and hardSize are the lengths of the encoded structs.
var beginSize, hardSize = binary.Size(begin{}), binary.Size(core.HardState{})

// packed returns a record whose data is a struct of fixed size.
func packed(k Kind, data any) *record {
	b, err := binary.Append(nil, binary.LittleEndian, data)
	if err != nil {
		panic(fmt.Sprintf("wal: a record of kind %d: %v", k, err)) // the type has no fixed size
	}
	return &record{Kind: k, Length: int64(len(b)), Data: b}
}

func unpack(r *record, data any) error {
	if _, err := binary.Decode(r.Data, binary.LittleEndian, data); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// mark returns the record that says that the segment is durable up to at.
func (g *begin) mark(at int64) *record {
	return &record{Kind: kindMark, Version: core.Version{Epoch: g.Volume, Index: g.Number}, Offset: at, Session: g.Nonce}
}

func (g *begin) isMark(r *record, at int64) bool {
	return r.Kind == kindMark && r.Offset == at && r.Session == g.Nonce
}

// bind combines a header's CRC with the segment's nonce, or reverses that: the file may have been
// another segment.
func (g *segment) bind(header []byte) {
	if g.bound {
		crc := header[8:12]
		binary.LittleEndian.PutUint32(crc, binary.LittleEndian.Uint32(crc)^uint32(g.begin.Nonce)) //nolint:gosec // the low half of the nonce
	}
}

// checkRecord returns an error if a record is invalid by itself.
func checkRecord(r *record) error {
	want := int64(0)
	if r.Kind >= logKinds && r.Kind != kindBegin && r.format > Format {
		return fmt.Errorf("%w: a record of kind %d with version %d", ErrDamaged, r.Kind, r.format)
	}
	switch r.Kind {
	case kindBegin:
		want = int64(beginSize)
	case kindSave:
		want = int64(hardSize)
	case kindMark, kindTruncate, kindReset, kindTrim:
	default:
		return r.check()
	}
	if r.Length != want {
		return fmt.Errorf("%w: a record of kind %d has %d bytes, not %d", ErrDamaged, r.Kind, r.Length, want)
	}
	return nil
}
