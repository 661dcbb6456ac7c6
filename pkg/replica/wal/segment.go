package wal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A segment is one file of the log.
type segment struct {
	begin   begin
	bound   bool // the CRCs of records after the first include the nonce
	name    string
	f       file
	end     int64 // of its records, in bytes
	reached int64 // only the writer's: the file has been written up to here
	live    int   // number of durable entries in it that are still in the log
}

const (
	suffix = ".log"
	spare  = "spare" // the file of an old segment, to be reused for the next one: its blocks are allocated
)

func segmentName(number uint64) string { return fmt.Sprintf("%016x%s", number, suffix) }

// segmentNumbers lists the segments in order: those in use, and older ones that a crash may have
// brought back; and whether there is a spare.
func segmentNumbers(dir directory) (used, others []uint64, hasSpare bool, err error) {
	names, err := dir.list()
	for _, name := range names {
		hasSpare = hasSpare || name == spare
		digits, ok := strings.CutSuffix(name, suffix)
		if n, err := strconv.ParseUint(digits, 16, 64); ok && err == nil && name == segmentName(n) {
			used = append(used, n)
		}
	}
	slices.Sort(used)
	for i := len(used) - 1; i > 0; i-- {
		if used[i-1]+1 != used[i] {
			return used[i:], used[:i], hasSpare, err
		}
	}
	return used, nil, hasSpare, err
}

// wrap adds the position to an error.
func (g *segment) wrap(at int64, err error) error {
	if errors.Is(err, ErrInvalid) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("%s at byte %d: %w", g.name, at, err)
}

// impossible is the error of a record with a valid CRC and invalid content. Such a record is not
// torn.
type impossible struct{ error }

func (e impossible) Unwrap() error { return e.error }

// A reader reads the records of a segment.
type reader struct {
	g    *segment
	b    *bufio.Reader
	at   int64 // of the next record
	end  int64
	data []byte // of the latest record
}

func newReader(g *segment) *reader {
	return &reader{g: g, b: buffered(g.f, 0, g.end), end: g.end}
}

func buffered(f file, from, end int64) *bufio.Reader {
	return bufio.NewReaderSize(io.NewSectionReader(f, from, end-from), int(min(end-from, 256<<10)))
}

// next returns the record at r.at, and advances past it. The record's data is valid until the next
// call. Errors that are not of this package are the disk's.
func (r *reader) next() (*record, error) {
	var h [HeaderSize]byte
	if r.end-r.at < HeaderSize {
		return nil, fmt.Errorf("%w: a record ends early", ErrDamaged)
	}
	if _, err := io.ReadFull(r.b, h[:]); err != nil {
		return nil, err
	}
	if r.at > 0 {
		r.g.bind(h[:])
	}
	rec, err := parse(h[:])
	if err != nil {
		return nil, err
	}
	if err := checkRecord(&rec); err != nil {
		return nil, impossible{err}
	}
	n := size(&rec)
	if n > r.end-r.at {
		return nil, fmt.Errorf("%w: a record ends early", ErrDamaged)
	}
	r.data = slices.Grow(r.data[:0], int(n-HeaderSize))[:n-HeaderSize]
	if _, err := io.ReadFull(r.b, r.data); err != nil {
		return nil, err
	}
	if err := rec.SetData(r.data[:rec.DataLen()]); err != nil {
		return nil, err
	}
	r.at += n
	return &rec, nil
}
