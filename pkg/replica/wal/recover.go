package wal

import (
	"errors"
	"fmt"
	"io"
)

// ours reports whether an error is about the content read, not about reading.
func ours(err error) bool {
	return errors.Is(err, ErrDamaged) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrFormat)
}

// A recovery is the state of reading a log.
type recovery struct {
	volume   uint64
	state    state
	segments []*segment
	durable  int64 // end of the records of the last segment that are known to be durable
	torn     int64 // bytes cut
}

// read reads all segments. It changes nothing on disk.
func (r *recovery) read(dir directory, numbers []uint64) error {
	for i, number := range numbers {
		g := &segment{name: segmentName(number)}
		var err error
		if g.f, err = dir.open(g.name); err != nil {
			return err
		}
		r.segments = append(r.segments, g)
		if g.end, err = g.f.size(); err != nil {
			return err
		}
		start := newReader(g)
		rec, err := start.next()
		if err == nil && rec.Kind != kindBegin {
			err = fmt.Errorf("%w: it has no beginning", ErrDamaged)
		}
		switch {
		case err == nil:
			err = r.begins(g, rec, number)
		case ours(err) && i == len(numbers)-1 && (i > 0 || number == 1) && g.end <= size(packed(kindBegin, begin{})) && !errors.Is(err, ErrFormat):
			// A crash interrupted its creation: nothing in it was ever durable.
			r.torn += g.end
			r.segments = r.segments[:i]
			return errors.Join(g.f.Close(), r.replay())
		}
		if err != nil {
			return g.wrap(0, err)
		}
	}
	return r.replay()
}

// begins handles a segment's first record.
func (r *recovery) begins(g *segment, rec *record, number uint64) error {
	if err := unpack(rec, &g.begin); err != nil {
		return err
	}
	g.bound = rec.format >= segmentFormat
	switch b := &g.begin; {
	case b.Volume != r.volume:
		return fmt.Errorf("%w: of %x, and not of %x: it is not this volume's directory", ErrForeign, b.Volume, r.volume)
	case b.Number != number || b.Point.Head < b.Point.Tail.Index:
		return fmt.Errorf("%w: it says that it is segment %d", ErrDamaged, b.Number)
	}
	return nil
}

// replay applies all records.
func (r *recovery) replay() error {
	for i, g := range r.segments {
		b := &g.begin
		if i == 0 {
			r.state.hard, r.state.tail, r.state.missing = b.Point.Hard, b.Point.Tail, b.Point.Head-b.Point.Tail.Index
		} else if r.state.point() != b.Point {
			return g.wrap(0, fmt.Errorf("%w: it does not go on from the segment before", ErrDamaged))
		}
		last := i == len(r.segments)-1
		if !last {
			r.segments[i].end = min(g.end, r.segments[i+1].begin.Former)
		}
		at, err := r.records(g)
		if err != nil && last && ours(err) {
			err = r.cut(at, err)
		}
		if err != nil {
			return g.wrap(at, err)
		}
	}
	if r.state.missing > 0 {
		return fmt.Errorf("%w: the entries from %d to %d are missing: a segment before %s was removed", ErrDamaged,
			r.state.tail.Index+1, r.state.tail.Index+r.state.missing, r.segments[0].name)
	}
	return nil
}

// records applies a segment's records, and returns where they end. The error is that of the record
// there.
func (r *recovery) records(g *segment) (end int64, err error) {
	in := newReader(g)
	r.durable = 0
	for in.at < g.end {
		at := in.at
		rec, err := in.next()
		if err != nil {
			return at, err
		}
		switch {
		case rec.Kind == kindMark && g.begin.isMark(rec, at):
			r.durable = at
			continue
		case rec.Kind == kindMark, (rec.Kind == kindBegin) != (at == 0):
			return at, impossible{fmt.Errorf("%w: a record that belongs elsewhere", ErrDamaged)}
		}
		sl := &slot{entry: *rec, seg: g, at: at}
		sl.entry.Data = nil
		if err := r.state.apply(rec, sl); err != nil {
			return at, impossible{err}
		}
		if rec.Kind < logKinds {
			g.live++
		}
	}
	return in.at, nil
}

// cut ends the last segment before a damaged record, unless that one was durable: then a mark
// follows it.
func (r *recovery) cut(at int64, cause error) error {
	g := r.segments[len(r.segments)-1]
	if errors.As(cause, &impossible{}) {
		return cause
	}
	b, end := buffered(g.f, at, g.end), at
	var h [HeaderSize]byte
	for p := at; p+HeaderSize <= g.end; p += align {
		if _, err := io.ReadFull(b, h[:]); err != nil {
			return err
		}
		if h == [HeaderSize]byte{} {
			continue // true for most of a segment
		}
		g.bind(h[:])
		rec, err := parse(h[:])
		if err != nil {
			continue // left from an earlier segment in this file, or data
		}
		if end = p + HeaderSize; g.begin.isMark(&rec, p) && p > at {
			return fmt.Errorf("%w, and what follows shows that it was durable: this host's copy cannot be used any more", cause)
		}
	}
	r.torn += end - at
	g.end = at
	return nil
}

// repair makes the last segment and its name durable as they were read: if a sync failed before,
// the page cache may hold data that is not on disk, but that the kernel considers clean.
func (r *recovery) repair(dir directory) error {
	if len(r.segments) == 0 {
		return nil
	}
	g := r.segments[len(r.segments)-1]
	buf := make([]byte, min(g.end-r.durable, 1<<20))
	for at := r.durable; at < g.end; at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), g.end-at)]
		if _, err := io.ReadFull(io.NewSectionReader(g.f, at, int64(len(buf))), buf); err != nil {
			return err
		}
		if err := g.f.writev([][]byte{buf}, at); err != nil {
			return err
		}
	}
	if err := g.f.truncate(g.end); err != nil {
		return err
	}
	return dir.sync()
}
