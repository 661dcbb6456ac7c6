package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

const (
	// HeaderSize is the length of an entry's header in bytes.
	HeaderSize = 64
	// MaxData is the maximum number of data bytes in one entry.
	MaxData = 1 << 20
	// Format is the version of the format that this package writes, on the wire and on disk.
	Format = 1
	// segmentFormat is the format of segments, in their first record. Since 2, the CRCs of the
	// other records include the segment's nonce.
	segmentFormat = 2
)

// Errors that the errors of this package wrap.
var (
	ErrDamaged  = errors.New("wal: damaged")
	ErrFormat   = errors.New("wal: format of a newer version")
	ErrForeign  = errors.New("wal: log of another volume")
	ErrNotFound = errors.New("wal: no such entry in the log")
	ErrInvalid  = errors.New("wal: invalid")
	ErrClosed   = errors.New("wal: closed")
)

// A Kind is what an entry does to its bytes of the volume.
type Kind uint8

// Kinds of entries. They are part of the wire and disk formats: the numbers do not change.
const (
	Data Kind = 1 // writes Data
	Trim Kind = 2 // zeroes the range, and frees its space
	Zero Kind = 3 // zeroes the range, and allocates its space
)

func (k Kind) String() string {
	switch k {
	case Data:
		return "data"
	case Trim:
		return "trim"
	case Zero:
		return "zero"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// An Entry is one write of a volume.
type Entry struct {
	Version core.Version
	Kind    Kind
	Offset  int64 // in bytes
	Length  int64 // in bytes; for Data len(Data), at most MaxData
	// Session and Seq identify the client's request, so that a retried request is recognized and
	// not applied twice. 0: none.
	Session, Seq uint64
	// Data is the content of kind Data; nil if only the header is known. It must not change until
	// the entry is durable.
	Data []byte

	sum    uint32 // of Data: CRC-32C
	summed bool
	format byte // 0: Format
}

// castagnoli is the polynomial of CRC-32C (RFC 3720, appendix B.4).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// magic is the start of each header.
const magic = 0x4c57434d // "MCWL"

// check returns ErrInvalid, with the reason, unless the entry is valid.
func (e *Entry) check() error {
	switch {
	case e.Version.Epoch == 0 || e.Version.Index == 0:
		return fmt.Errorf("%w: entry without a version: %+v", ErrInvalid, e.Version)
	case e.format > Format:
		return fmt.Errorf("%w: %d, and this program knows up to %d: use a newer program", ErrFormat, e.format, Format)
	case e.Kind < Data || e.Kind > Zero:
		return fmt.Errorf("%w: entry of %v", ErrInvalid, e.Kind)
	case e.Offset < 0 || e.Length <= 0 || e.Offset > math.MaxInt64-e.Length:
		return fmt.Errorf("%w: entry for %d bytes at %d", ErrInvalid, e.Length, e.Offset)
	case e.Kind == Data && e.Length > MaxData:
		return fmt.Errorf("%w: entry of %d bytes: at most %d", ErrInvalid, e.Length, MaxData)
	}
	return nil
}

// AppendHeader appends the entry's header: HeaderSize bytes, little-endian, with the format's
// version, a CRC-32C of the header and one of Data.
//
//	0 magic, 4 version, 5 kind, 8 CRC of the header, 12 CRC of the data,
//	16 epoch, 24 index, 32 offset, 40 length, 48 session, 56 seq
//
// Data must be set. Its CRC is computed once: by the first call, or by the sender if the entry came
// from ParseHeader.
func (e *Entry) AppendHeader(b []byte) []byte {
	if !e.summed {
		e.sum, e.summed = crc32.Checksum(e.Data, castagnoli), true
	}
	b = slices.Grow(b, HeaderSize)
	at := len(b)
	le := binary.LittleEndian
	b = le.AppendUint32(b, magic)
	b = append(b, max(e.format, Format), byte(e.Kind), 0, 0)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint32(b, e.sum)
	for _, v := range [...]uint64{e.Version.Epoch, e.Version.Index, uint64(e.Offset), uint64(e.Length), e.Session, e.Seq} {
		b = le.AppendUint64(b, v)
	}
	le.PutUint32(b[at+8:], crc32.Checksum(b[at:], castagnoli))
	return b
}

// ParseHeader parses the header of an entry; SetData adds the data. Errors: ErrDamaged, ErrFormat,
// ErrInvalid.
func ParseHeader(b []byte) (Entry, error) {
	e, err := parse(b)
	if err == nil {
		err = e.check()
	}
	if err != nil {
		return Entry{}, err
	}
	return e, nil
}

// DataLen returns the number of data bytes that follow the header.
func (e *Entry) DataLen() int {
	if e.Kind != Data && e.Kind < logKinds {
		return 0
	}
	return int(e.Length)
}

// SetData sets the data of an entry that came from ParseHeader: exactly DataLen bytes, which it
// keeps. It returns ErrDamaged if the CRC does not match.
func (e *Entry) SetData(b []byte) error {
	if len(b) != e.DataLen() {
		return fmt.Errorf("%w: entry %v has %d bytes of data in place of %d", ErrDamaged, e.Version, len(b), e.DataLen())
	}
	if crc32.Checksum(b, castagnoli) != e.sum {
		return fmt.Errorf("%w: the data of entry %v, %d bytes, does not have its CRC", ErrDamaged, e.Version, len(b))
	}
	e.Data = b
	return nil
}

// parse parses the header of an entry or of one of the log's own records.
func parse(b []byte) (Entry, error) {
	le := binary.LittleEndian
	if len(b) < HeaderSize || le.Uint32(b) != magic {
		return Entry{}, fmt.Errorf("%w: no header of an entry", ErrDamaged)
	}
	if b[4] > segmentFormat {
		return Entry{}, fmt.Errorf("%w: %d, and this program knows up to %d: use a newer program", ErrFormat, b[4], segmentFormat)
	}
	var h [HeaderSize]byte
	copy(h[:], b)
	clear(h[8:12])
	if crc32.Checksum(h[:], castagnoli) != le.Uint32(b[8:]) || b[4] == 0 || b[6] != 0 || b[7] != 0 {
		return Entry{}, fmt.Errorf("%w: the header of an entry does not have its CRC", ErrDamaged)
	}
	return Entry{
		Version: core.Version{Epoch: le.Uint64(b[16:]), Index: le.Uint64(b[24:])},
		Kind:    Kind(b[5]),
		Offset:  int64(le.Uint64(b[32:])), //nolint:gosec // the same bits
		Length:  int64(le.Uint64(b[40:])), //nolint:gosec // the same bits
		Session: le.Uint64(b[48:]), Seq: le.Uint64(b[56:]),
		sum: le.Uint32(b[12:]), summed: true, format: b[4],
	}, nil
}
