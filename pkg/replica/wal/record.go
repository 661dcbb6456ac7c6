package wal

import (
	"encoding/binary"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// The log's own records have an entry's header, and kinds of their own.
const (
	logKinds Kind = 128

	kindBegin    = logKinds + iota // of a segment: what came before it
	kindMark                       // all before it is durable
	kindSave                       // core.Save
	kindTruncate                   // core.Truncate
	kindReset                      // core.Reset
	kindTrim                       // core.Trim
)

// align is what a record's place in its segment is a multiple of: a header is never in two sectors.
const align = HeaderSize

// A record is what lies in a segment: an entry, or a change of another kind.
type record = Entry

// size is what a record takes in a segment.
func size(r *record) int64 { return HeaderSize + (int64(r.DataLen())+align-1)/align*align }

// begin is the content of a segment's first record: all that is needed to go on without older segments.
type begin struct {
	Volume, Number uint64 // Number: of the segment
	Nonce          uint64 // what records of this segment have, and those that lay there before, or data that looks like one, have not
	Former         int64  // bytes in the segment before this one
	Point          point
}

// A point is where a log is between two changes.
type point struct {
	Hard core.HardState
	Tail core.Version
	Head uint64
}

// beginSize and hardSize are the lengths of the encoded structs.
var beginSize, hardSize = binary.Size(begin{}), binary.Size(core.HardState{})

// packed is a record whose data is a struct of fixed size.
func packed(k Kind, data any) *record {
	b, err := binary.Append(nil, binary.LittleEndian, data)
	if err != nil {
		panic(fmt.Sprintf("wal: a record of kind %d: %v", k, err)) // a type that has no fixed size
	}
	return &record{Kind: k, Length: int64(len(b)), Data: b}
}

func unpack(r *record, data any) error {
	if _, err := binary.Decode(r.Data, binary.LittleEndian, data); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// mark is the record that says that a segment is durable up to where it lies.
func (g *begin) mark(at int64) *record {
	return &record{Kind: kindMark, Version: core.Version{Epoch: g.Volume, Index: g.Number}, Offset: at, Session: g.Nonce}
}

func (g *begin) isMark(r *record, at int64) bool {
	return r.Kind == kindMark && r.Offset == at && r.Session == g.Nonce
}

// bind makes a header one of this segment, or has one of it be what it was: the file may have been another segment.
func (g *segment) bind(header []byte) {
	if g.bound {
		crc := header[8:12]
		binary.LittleEndian.PutUint32(crc, binary.LittleEndian.Uint32(crc)^uint32(g.begin.Nonce)) //nolint:gosec // its low half
	}
}

// checkRecord says what makes a record invalid, by itself.
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
