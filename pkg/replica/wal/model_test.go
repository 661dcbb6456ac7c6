package wal

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

var seeds = flag.Int("seeds", 2000, "number of seeds of TestModel")

// A model is what a log should hold.
type model struct {
	hard    core.HardState
	tail    core.Version
	entries []Entry
}

func (m *model) head() core.Version {
	if n := len(m.entries); n > 0 {
		return m.entries[n-1].Version
	}
	return m.tail
}

func (m *model) clone() model {
	c := *m
	c.entries = slices.Clone(m.entries)
	return c
}

// change draws a change, and makes it.
func (m *model) change(rnd *rand.Rand) (core.Change, *Entry) {
	n := len(m.entries)
	index := func(max int) uint64 { return m.tail.Index + uint64(rnd.IntN(max+1)) }
	switch k := rnd.IntN(20); {
	case k < 12:
		e := draw(rnd, m.head())
		m.entries = append(m.entries, e)
		return core.Append{Version: e.Version}, &e
	case k < 15:
		h := &m.hard
		*h = core.HardState{Incarnation: h.Incarnation + 1, Epoch: h.Epoch + rnd.Uint64N(3), Born: rnd.Uint64(),
			LastEpochStarted: rnd.Uint64(), Applying: rnd.Uint64(), Backfilling: rnd.IntN(2) == 0}
		return core.Save{HardState: *h}, nil
	case k < 17:
		to := index(n)
		if k := to - m.tail.Index; k > 0 {
			m.tail, m.entries = m.entries[k-1].Version, m.entries[k:]
		}
		return core.Trim{To: to}, nil
	case k < 19:
		after := index(n)
		m.entries = slices.Clone(m.entries[:after-m.tail.Index])
		return core.Truncate{After: after}, nil
	}
	m.tail, m.entries = core.Version{Epoch: m.head().Epoch + 1, Index: rnd.Uint64N(100)}, nil
	return core.Reset{Tail: m.tail}, nil
}

// draw makes an entry that follows another.
func draw(rnd *rand.Rand, after core.Version) Entry {
	e := Entry{Version: core.Version{Epoch: max(1, after.Epoch) + rnd.Uint64N(4)/3, Index: after.Index + 1},
		Kind: Kind(1 + rnd.IntN(3)), Offset: rnd.Int64N(1 << 40), Length: 1 + rnd.Int64N(1<<30), Session: rnd.Uint64(), Seq: rnd.Uint64()}
	if e.Kind == Data {
		e.Length = 1 + rnd.Int64N([]int64{64, 700, 5000}[rnd.IntN(3)])
		e.Data = make([]byte, e.Length)
		for i := range e.Data {
			e.Data[i] = byte(rnd.Uint32())
		}
	}
	return e
}

// compare says in what the log is not what it should be.
func (m *model) compare(l *Log) error {
	want := core.Stored{HardState: m.hard, Tail: m.tail}
	for i, e := range m.entries {
		if i+1 == len(m.entries) || m.entries[i+1].Version.Epoch != e.Version.Epoch {
			want.Runs = append(want.Runs, e.Version)
		}
	}
	if s := l.Stored(); s.HardState != want.HardState || s.Tail != want.Tail || !slices.Equal(s.Runs, want.Runs) {
		return fmt.Errorf("stored %+v, not %+v", s, want)
	}
	headers := l.Headers()
	if len(headers) != len(m.entries) {
		return fmt.Errorf("%d headers, not %d", len(headers), len(m.entries))
	}
	for i, want := range m.entries {
		got, err := l.Read(want.Version.Index)
		if err != nil {
			return err
		}
		if headers[i].Data != nil || !same(headers[i], want) || !same(got, want) || !bytes.Equal(got.Data, want.Data) {
			return fmt.Errorf("entry %v is %.200s, not %.200s", want.Version, fmt.Sprint(got), fmt.Sprint(want))
		}
	}
	for _, index := range []uint64{m.tail.Index, m.head().Index + 1} {
		if _, err := l.Read(index); !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("entry %d, which is not in the log: %w", index, err)
		}
	}
	return nil
}

// same compares headers.
func same(a, b Entry) bool {
	return a.Version == b.Version && a.Kind == b.Kind && a.Offset == b.Offset && a.Length == b.Length && a.Session == b.Session && a.Seq == b.Seq
}

// A life is one process that has the log.
type life struct {
	l      *Log
	after  []model // each change, from none on
	synced uint64  // reported
	errs   int
}

func start(disk *memDisk, m model, segment int64) (*life, error) {
	f := &life{after: []model{m.clone()}}
	var err error
	f.l, err = open(disk, 7, Options{SegmentSize: segment, Synced: f.told})
	return f, err
}

func (f *life) told(seq uint64, err error) {
	if err != nil {
		f.errs++
		return
	}
	if f.errs > 0 || seq <= f.synced {
		panic(fmt.Sprintf("reported %d after %d, and %d errors", seq, f.synced, f.errs))
	}
	f.synced = seq
}

// find is the state that a log has, which must be one of those from the last that was reported on.
func (f *life) find(l *Log) (model, error) {
	var first error
	for i := f.synced; i < uint64(len(f.after)); i++ {
		err := f.after[i].compare(l)
		if err == nil {
			return f.after[i], nil
		}
		if first == nil {
			first = err
		}
	}
	return model{}, fmt.Errorf("none of the states from %d to %d; of the first: %w", f.synced, len(f.after)-1, first)
}

// A tally counts what has happened in a run of the model.
type tally struct{ lives, losses, failures, torn, rolls, reused, changes int }

func (t *tally) add(o tally) {
	t.lives += o.lives
	t.losses += o.losses
	t.failures += o.failures
	t.torn += o.torn
	t.rolls += o.rolls
	t.reused += o.reused
	t.changes += o.changes
}

// play runs some lives of a log, on a disk that loses its power, or fails.
func play(seed int, lies bool) (n tally, err error) {
	rnd := rand.New(rand.NewPCG(uint64(seed), 1))
	disk := newMemDisk(rnd)
	var m model
	old := &life{after: []model{{}}}
	for range 12 {
		disk.lies = lies
		if rnd.IntN(2) == 0 {
			disk.dies = 1 + rnd.IntN(20)
		} else if rnd.IntN(2) == 0 {
			disk.fails = 1 + rnd.IntN(20)
		}
		f, err := start(disk, m, 200+rnd.Int64N(6000))
		if err == nil {
			if m, err = old.find(f.l); err != nil {
				return n, fmt.Errorf("seed %d: %w", seed, err)
			}
			f.after[0] = m
			if n := f.l.Stats().Segments; len(disk.segments()) != n {
				return tally{}, fmt.Errorf("seed %d: %d files, %d segments", seed, len(disk.names), n)
			}
			if err := f.run(rnd); err != nil {
				return n, fmt.Errorf("seed %d: %w", seed, err)
			}
			n.add(tally{lives: 1, torn: int(f.l.Stats().Torn), changes: int(f.synced), rolls: f.l.Stats().Segments - 1, reused: disk.renamed, failures: f.errs})
			disk.renamed = 0
			old = f
		} else if !errors.Is(err, errPower) && !errors.Is(err, errFull) {
			return n, fmt.Errorf("seed %d: %w", seed, err)
		}
		if disk.dead || rnd.IntN(3) == 0 {
			disk = disk.powerLoss()
			n.losses++
		} else {
			disk.restart()
		}
	}
	return n, nil
}

// TestModel: what was reported durable is there, in order, after power loss at each operation of
// the disk, after a failed sync and a failed write. It is followed at most by a prefix of the later
// changes.
func TestModel(t *testing.T) {
	var all tally
	for seed := range *seeds {
		n, err := play(seed, false)
		if err != nil {
			t.Fatal(err)
		}
		all.add(n)
	}
	t.Logf("%+v", all)
	if min(all.lives, all.losses, all.failures, all.torn, all.rolls, all.reused, all.changes) < *seeds/2 {
		t.Error("not much has happened")
	}
}

// A disk that falsely reports a sync is detected; so would be a log that does not sync.
func TestLyingDisk(t *testing.T) {
	for seed := range 20 {
		if _, err := play(seed, true); err != nil {
			t.Log(err)
			return
		}
	}
	t.Error("not found")
}

// run has the log change until its disk fails, or for some time.
func (f *life) run(rnd *rand.Rand) error {
	for range rnd.IntN(12) {
		for range 1 + rnd.IntN(6) {
			m := f.after[len(f.after)-1].clone()
			c, e := m.change(rnd)
			f.after = append(f.after, m)
			f.l.Persist(core.Persist{Seq: uint64(len(f.after) - 1), Change: c}, e)
		}
		if err := f.after[len(f.after)-1].compare(f.l); err != nil { // durable or not
			return err
		}
		for range 1 + rnd.IntN(2) { // the second one writes the mark
			if f.l.unmarked || len(f.l.queue) > 0 {
				if _, err := f.l.step(); err != nil {
					f.l.fail(err)
					return nil
				}
			}
		}
	}
	return nil
}
