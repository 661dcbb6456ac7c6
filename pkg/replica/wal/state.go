package wal

import (
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// A slot is an entry in the log. Data is set until the entry is durable; then it is in a segment.
type slot struct {
	entry Entry
	seg   *segment // nil: not durable yet
	at    int64    // of its record in the segment
	gone  bool     // no longer in the log
}

// drop removes the slot from the log.
func (s *slot) drop() {
	if s.gone = true; s.seg != nil {
		s.seg.live--
	}
}

// state is the content of the log after its records up to one.
type state struct {
	hard    core.HardState
	tail    core.Version
	missing uint64 // number of entries after the tail in removed segments: a later record drops them
	slots   []*slot
}

func (s *state) head() uint64 { return s.tail.Index + s.missing + uint64(len(s.slots)) }

func (s *state) point() point { return point{s.hard, s.tail, s.head()} }

// slot returns the slot of an entry, or nil if it is not in the log.
func (s *state) slot(index uint64) *slot {
	if first := s.tail.Index + s.missing; index > first && index <= s.head() {
		return s.slots[index-first-1]
	}
	return nil
}

// version returns the version of an entry, or of the tail.
func (s *state) version(index uint64) (v core.Version, ok bool) {
	if index == s.tail.Index {
		return s.tail, true
	}
	if sl := s.slot(index); sl != nil {
		return sl.entry.Version, true
	}
	return v, false
}

// stored returns the state for core.New.
func (s *state) stored() core.Stored {
	st := core.Stored{HardState: s.hard, Tail: s.tail}
	for i, sl := range s.slots {
		if v := sl.entry.Version; i > 0 && s.slots[i-1].entry.Version.Epoch == v.Epoch {
			st.Runs[len(st.Runs)-1] = v
		} else {
			st.Runs = append(st.Runs, v)
		}
	}
	return st
}

// record returns the record of a change; e is the entry of an Append.
func (s *state) record(c core.Change, e *record) (*record, error) {
	switch c := c.(type) {
	case core.Append:
		if e.Version != c.Version || e.DataLen() != len(e.Data) {
			return nil, fmt.Errorf("%w: append of %v without its content", ErrInvalid, c.Version)
		}
		return e, e.check()
	case core.Truncate:
		return &record{Kind: kindTruncate, Version: core.Version{Index: c.After}}, nil
	case core.Reset:
		return &record{Kind: kindReset, Version: c.Tail}, nil
	case core.Trim:
		v, ok := s.version(c.To)
		if !ok {
			return nil, fmt.Errorf("%w: trim up to %d, and the log is from %d to %d", ErrInvalid, c.To, s.tail.Index, s.head())
		}
		return &record{Kind: kindTrim, Version: v}, nil
	case core.Save:
		return packed(kindSave, c.HardState), nil
	}
	return nil, fmt.Errorf("%w: change of type %T", ErrInvalid, c)
}

// apply applies a record to the state; sl is the slot of an entry. ErrInvalid: the record cannot
// follow those before it.
func (s *state) apply(r *record, sl *slot) error {
	at := r.Version.Index
	switch r.Kind {
	case Data, Trim, Zero:
		last := s.tail.Epoch
		if n := len(s.slots); n > 0 {
			last = s.slots[n-1].entry.Version.Epoch
		}
		if at != s.head()+1 || r.Version.Epoch < last {
			return fmt.Errorf("%w: entry %v after %v", ErrInvalid, r.Version, core.Version{Epoch: last, Index: s.head()})
		}
		s.slots = append(s.slots, sl)
	case kindTruncate:
		if at < s.tail.Index || at > s.head() {
			return fmt.Errorf("%w: truncation after %d of a log from %d to %d", ErrInvalid, at, s.tail.Index, s.head())
		}
		s.truncate(at)
	case kindReset:
		s.truncate(s.tail.Index)
		s.tail = r.Version
	case kindTrim:
		if at < s.tail.Index || at > s.head() {
			return fmt.Errorf("%w: trim up to %d of a log from %d to %d", ErrInvalid, at, s.tail.Index, s.head())
		}
		s.trim(r.Version)
	case kindSave:
		return unpack(r, &s.hard)
	}
	return nil
}

func (s *state) truncate(after uint64) {
	keep := after - s.tail.Index
	s.missing = min(s.missing, keep)
	rest := s.slots[keep-s.missing:]
	for _, sl := range rest {
		sl.drop()
	}
	clear(rest)
	s.slots = s.slots[:keep-s.missing]
}

func (s *state) trim(to core.Version) {
	n := to.Index - s.tail.Index
	m := min(n, s.missing)
	first := s.slots[:n-m]
	for _, sl := range first {
		sl.drop()
	}
	clear(first)
	s.missing, s.slots, s.tail = s.missing-m, s.slots[n-m:], to
}
