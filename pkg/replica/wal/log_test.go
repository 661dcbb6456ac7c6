package wal

import (
	"bytes"
	"encoding/hex"
	"errors"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/internal/durable"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// sample is a log of some segments, which was closed, and what it has held after each change.
func sample(t testing.TB) (*memDisk, []model) {
	rnd := rand.New(rand.NewPCG(3, 3))
	disk := newMemDisk(rnd)
	f, err := start(disk, model{}, 600)
	if err != nil {
		t.Fatal(err)
	}
	for f.l.Stats().Segments < 4 || f.l.unmarked {
		if err := f.run(rnd); err != nil {
			t.Fatal(err)
		}
	}
	return disk.restart(), f.after
}

// segments returns the names of the disk's files, except the spare.
func (d *memDisk) segments() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(d.names)), func(name string) bool { return name == spare })
}

// files are the contents of segments.
func (d *memDisk) files() [][]byte {
	var all [][]byte
	for _, name := range d.segments() {
		all = append(all, slices.Clone(d.names[name].data))
	}
	return all
}

// with is a disk with the same segments, and other contents.
func (d *memDisk) with(files [][]byte) *memDisk {
	n := newMemDisk(d.rnd)
	for i, name := range d.segments() {
		n.names[name] = &memFile{data: slices.Clone(files[i]), safe: slices.Clone(files[i])}
	}
	n.durable = maps.Clone(n.names)
	return n
}

// Each flipped bit in a closed log is refused, or changes nothing.
func TestFlippedBits(t *testing.T) {
	disk, states := sample(t)
	want := states[len(states)-1]
	files := disk.files()
	ends := map[string]int64{} // after these the file has older content
	l, err := open(disk.with(files), 7, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range l.segments {
		ends[g.name] = g.end
	}
	refused, harmless := 0, 0
	for i, name := range disk.segments() {
		for at := range files[i] {
			if end, ok := ends[name]; ok && int64(at) >= end {
				break
			}
			files[i][at] ^= 1 << (at % 8)
			l, err := open(disk.with(files), 7, Options{})
			switch {
			case err == nil:
				if err := want.compare(l); err != nil {
					t.Fatalf("file %d, byte %d: %v", i, at, err)
				}
				harmless++
			case errors.Is(err, ErrDamaged) || errors.Is(err, ErrFormat) && at%align == 4:
				refused++
			default:
				t.Fatalf("file %d, byte %d: %v", i, at, err)
			}
			files[i][at] ^= 1 << (at % 8)
		}
	}
	t.Logf("%d files: %d bits refused, %d harmless (padding, the last mark)", len(files), refused, harmless)
	if refused < 3*harmless {
		t.Error("too many do no harm")
	}
}

func TestRefused(t *testing.T) {
	disk, _ := sample(t)
	files := disk.files()
	edit := func(f func(files [][]byte)) *memDisk {
		c := disk.files()
		f(c)
		return disk.with(c)
	}
	last := len(files) - 1
	seal := func(b []byte) { // a header's CRC
		clear(b[8:12])
		r := crcOf(b[:HeaderSize])
		copy(b[8:], r)
	}
	for name, c := range map[string]struct {
		disk   *memDisk
		volume uint64
		want   error
		text   string
	}{
		"another volume": {disk.with(files), 8, ErrForeign, "not this volume's directory"},
		"newer format":   {edit(func(f [][]byte) { f[last][4] = segmentFormat + 1; seal(f[last]) }), 7, ErrFormat, "use a newer program"},
		"first segment gone": {func() *memDisk {
			d := disk.with(files)
			delete(d.names, slices.Min(slices.Collect(maps.Keys(d.names))))
			return d
		}(), 7, ErrDamaged, "was removed"},
		"segment cut":         {edit(func(f [][]byte) { f[0] = f[0][:192] }), 7, ErrDamaged, "does not go on"},
		"segment for another": {edit(func(f [][]byte) { f[0], f[1] = f[1], f[0] }), 7, ErrDamaged, "it says that it is segment"},
		"a hole of zeros":     {edit(func(f [][]byte) { clear(f[1][192:256]) }), 7, ErrDamaged, "at byte 192"},
	} {
		if _, err := open(c.disk, c.volume, Options{}); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A record that follows a torn one is cut; if a mark follows, it is damage.
func TestTornOrDamaged(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 4))
	disk := newMemDisk(rnd)
	f, err := start(disk, model{}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var ends []int64
	var last core.Version
	for seq := uint64(1); seq <= 3; seq++ {
		e := draw(rnd, last)
		last = e.Version
		f.l.Persist(core.Persist{Seq: seq, Change: core.Append{Version: last}}, &e)
		if _, err := f.l.step(); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, f.l.current().end)
	}
	files := disk.files()
	for i, end := range ends {
		files[0][end-align] ^= 1 // in the entry's header or data
		l, err := open(disk.with(files), 7, Options{})
		switch {
		case i < 2 && (!errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "shows that it was durable")):
			t.Errorf("entry %d: %v", i, err)
		case i == 2 && (err != nil || l.state.head() != 2 || l.Stats().Torn == 0):
			t.Errorf("the last entry, without a mark: %v", err)
		}
		files[0][end-align] ^= 1
	}
	if more, err := f.l.step(); err != nil || !more { // writes the mark
		t.Fatal(err)
	}
	files = disk.files()
	files[0][ends[2]-align] ^= 1
	if _, err := open(disk.with(files), 7, Options{}); !errors.Is(err, ErrDamaged) {
		t.Errorf("the last entry, with a mark: %v", err)
	}
	for _, b := range disk.names { // below a log that is open
		b.data[ends[2]-align] ^= 1
	}
	if _, err := f.l.Read(3); !errors.Is(err, ErrDamaged) {
		t.Errorf("read of a damaged entry: %v", err)
	}
}

// An error of the disk is reported once, and nothing after it is durable; entries in memory stay
// readable.
func TestDiskFails(t *testing.T) {
	disk := newMemDisk(rand.New(rand.NewPCG(5, 5)))
	var told []error
	l, err := open(disk, 7, Options{Synced: func(_ uint64, err error) { told = append(told, err) }})
	if err != nil {
		t.Fatal(err)
	}
	disk.fails = disk.ops + 2 // the sync
	var last core.Version
	for seq := uint64(1); seq <= 5; seq++ {
		e := draw(disk.rnd, last)
		last = e.Version
		l.Persist(core.Persist{Seq: seq, Change: core.Append{Version: last}}, &e)
	}
	if _, err = l.step(); err == nil {
		t.Fatal("it goes on")
	}
	l.fail(err)
	close(l.done) // as run does
	e := draw(disk.rnd, last)
	l.Persist(core.Persist{Seq: 6, Change: core.Append{Version: e.Version}}, &e)
	if got, err := l.Read(6); err != nil || !bytes.Equal(got.Data, e.Data) {
		t.Errorf("read of what is in memory: %v", err)
	}
	if err := l.Close(); !errors.Is(err, errFull) || !strings.Contains(err.Error(), "make space") {
		t.Errorf("Close: %v", err)
	}
	if len(told) != 1 || !errors.Is(told[0], errFull) {
		t.Errorf("told %v", told)
	}
}

// What cannot be is refused, and ends the log with an error.
func TestInvalidChanges(t *testing.T) {
	at := func(index uint64) core.Version { return core.Version{Epoch: 3, Index: index} }
	data := func(index uint64, n int64) *Entry {
		return &Entry{Version: at(index), Kind: Data, Length: n, Data: make([]byte, n)}
	}
	for name, c := range map[string]struct {
		p core.Persist
		e *Entry
	}{
		"a gap":             {core.Persist{Seq: 2, Change: core.Append{Version: at(3)}}, data(3, 1)},
		"twice":             {core.Persist{Seq: 2, Change: core.Append{Version: at(1)}}, data(1, 1)},
		"an older epoch":    {core.Persist{Seq: 2, Change: core.Append{Version: core.Version{Epoch: 2, Index: 2}}}, &Entry{Version: core.Version{Epoch: 2, Index: 2}, Kind: Zero, Length: 1}},
		"without content":   {core.Persist{Seq: 2, Change: core.Append{Version: at(2)}}, nil},
		"other content":     {core.Persist{Seq: 2, Change: core.Append{Version: at(2)}}, data(1, 1)},
		"too long":          {core.Persist{Seq: 2, Change: core.Append{Version: at(2)}}, data(2, MaxData+1)},
		"no data":           {core.Persist{Seq: 2, Change: core.Append{Version: at(2)}}, &Entry{Version: at(2), Kind: Data, Length: 5}},
		"of no length":      {core.Persist{Seq: 2, Change: core.Append{Version: at(2)}}, data(2, 0)},
		"an overflow":       {core.Persist{Seq: 2, Change: core.Append{Version: at(2)}}, &Entry{Version: at(2), Kind: Zero, Offset: 2, Length: 1<<63 - 1}},
		"a log's own kind":  {core.Persist{Seq: 2, Change: core.Append{Version: at(2)}}, &Entry{Version: at(2), Kind: kindMark}},
		"not the next":      {core.Persist{Seq: 3, Change: core.Save{}}, nil},
		"trim beyond":       {core.Persist{Seq: 2, Change: core.Trim{To: 2}}, nil},
		"truncation beyond": {core.Persist{Seq: 2, Change: core.Truncate{After: 2}}, nil},
		"no change":         {core.Persist{Seq: 2}, nil},
	} {
		var told []error
		l, err := Open(filepath.Join(t.TempDir(), "log"), 7, Options{Synced: func(_ uint64, err error) {
			if err != nil {
				told = append(told, err)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		l.Persist(core.Persist{Seq: 1, Change: core.Append{Version: at(1)}}, data(1, 10))
		l.Persist(c.p, c.e)
		if err := l.Close(); !errors.Is(err, ErrInvalid) || len(told) != 1 || !errors.Is(told[0], ErrInvalid) {
			t.Errorf("%s: %v, told %v", name, err, told)
		}
	}
}

// TestDelay: entries wait for more, but not longer than Delay, nor when they are many, hurried, or followed by another change.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 5 * time.Millisecond
		var synced atomic.Uint64
		l, err := open(newMemDisk(rand.New(rand.NewPCG(8, 8))), 7, Options{Delay: delay, Synced: func(seq uint64, err error) {
			if synced.Store(seq); err != nil {
				t.Error(err)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		go l.run()
		seq, index := uint64(0), uint64(0)
		change := func(c core.Change, e *Entry) {
			seq++
			l.Persist(core.Persist{Seq: seq, Change: c}, e)
			synctest.Wait()
		}
		add := func(size int64) {
			index++
			v := core.Version{Epoch: 1, Index: index}
			change(core.Append{Version: v}, &Entry{Version: v, Kind: Data, Length: size, Data: make([]byte, size)})
		}
		expect := func(want uint64) {
			t.Helper()
			if synctest.Wait(); synced.Load() != want {
				t.Errorf("%d are durable, and not %d", synced.Load(), want)
			}
		}
		add(4096)
		time.Sleep(delay - 1)
		add(4096)
		expect(0)
		time.Sleep(1 * time.Nanosecond)
		expect(2)
		add(4096)
		expect(2)
		l.Hurry(4)
		expect(3)
		add(4096) // the hurry was for this one, too
		expect(4)
		add(4096)
		expect(4)
		change(core.Truncate{After: 5}, nil)
		expect(6)
		add(enough)
		expect(7)
		add(4096)
		expect(7)
		change(core.Save{HardState: core.HardState{Epoch: 1}}, nil)
		expect(9)
		change(core.Save{HardState: core.HardState{Epoch: 1, Applying: 1}}, nil) // no caller waits for that
		expect(9)
		l.Hurry(index + 1) // nor for an entry that is queued
		expect(9)
		time.Sleep(delay)
		expect(10)
		add(4096)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		expect(11)
		if s := l.Stats(); s.Syncs != 8 {
			t.Errorf("%+v", s)
		}
	})
}

// The log on a real disk, its methods called at once.
func TestConcurrent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	synced := make(chan uint64, 1000)
	l, err := Open(dir, 7, Options{SegmentSize: 20000, Synced: func(seq uint64, err error) {
		if err != nil {
			t.Error(err)
		}
		synced <- seq
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, 7, Options{}); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := l.Stored()
				for _, e := range l.Headers() {
					if got, err := l.Read(e.Version.Index); err != nil && !errors.Is(err, ErrNotFound) {
						t.Error(err)
					} else if err == nil && got.DataLen() != len(got.Data) {
						t.Error("data is missing")
					}
				}
				if _, err := l.Read(s.Tail.Index); !errors.Is(err, ErrNotFound) && err != nil {
					t.Error(err)
				}
				l.Stats()
			}
		})
	}
	rnd := rand.New(rand.NewPCG(6, 6))
	m := model{}
	for seq := uint64(1); seq <= 500; seq++ {
		c, e := m.change(rnd)
		l.Persist(core.Persist{Seq: seq, Change: c}, e)
		if seq%20 == 0 {
			for <-synced < seq {
			}
		}
	}
	close(stop)
	wg.Wait()
	if err := m.compare(l); err != nil {
		t.Error(err)
	}
	s := l.Stats()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if s.Changes != 500 || s.Syncs < 25 || s.Syncs > 500 {
		t.Errorf("%+v", s)
	}
	if l, err = Open(dir, 7, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := m.compare(l); err != nil {
		t.Error(err)
	}
	if s := l.Stats(); s.Torn != 0 {
		t.Errorf("%+v", s)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil || len(names) != l.Stats().Segments {
		t.Errorf("%d files, %d segments, %v", len(names), l.Stats().Segments, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// Segments without entries of the log leave the disk.
func TestTrimFreesSpace(t *testing.T) {
	disk := newMemDisk(rand.New(rand.NewPCG(8, 8)))
	l, err := open(disk, 7, Options{SegmentSize: 4 * MaxData / 64})
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 300; i++ {
		v := core.Version{Epoch: 1, Index: i}
		l.Persist(core.Persist{Seq: 2*i - 1, Change: core.Append{Version: v}}, &Entry{Version: v, Kind: Data, Length: 4000, Data: make([]byte, 4000)})
		l.Persist(core.Persist{Seq: 2 * i, Change: core.Trim{To: i - min(i, 20)}}, nil)
		if _, err := l.step(); err != nil {
			t.Fatal(err)
		}
		if s := l.Stats(); s.Segments > 4 || len(disk.segments()) != s.Segments || len(disk.names) > s.Segments+1 {
			t.Fatalf("entry %d: %d segments, %d files", i, s.Segments, len(disk.names))
		}
	}
}

// The format of what is on disk and on the wire does not change, unless its version does.
func TestFormat(t *testing.T) {
	e := Entry{Version: core.Version{Epoch: 2, Index: 3}, Kind: Data, Offset: 4096, Length: 3, Session: 5, Seq: 6, Data: []byte("abc")}
	g := begin{7, 8, 9, 10, point{core.HardState{Incarnation: 1, Epoch: 2, Born: 3, LastEpochStarted: 4, Applying: 5, Backfilling: true}, core.Version{Epoch: 6, Index: 7}, 8}}
	for want, got := range map[string][]byte{
		"4d43574c010100006a83c701b73f4b36020000000000000003000000000000000010000000000000030000000000000005000000000000000600000000000000": e.AppendHeader(nil),
		"0700000000000000080000000000000009000000000000000a000000000000000100000000000000020000000000000003000000000000000400000000000000" +
			"050000000000000001060000000000000007000000000000000800000000000000": packed(kindBegin, g).Data,
		"0100000000000000020000000000000003000000000000000400000000000000050000000000000001": packed(kindSave, g.Point.Hard).Data,
	} {
		if hex.EncodeToString(got) != want {
			t.Errorf("%x in place of %s", got, want)
		}
	}
	if kindBegin != 129 || kindTrim != 134 || Data != 1 || Zero != 3 {
		t.Error("kinds have changed")
	}
}

// TestReadTrimmed: an entry that is trimmed while it is read is not there: its file may be another segment by then.
func TestReadTrimmed(t *testing.T) {
	disk := newMemDisk(rand.New(rand.NewPCG(9, 9)))
	l, err := open(disk, 7, Options{SegmentSize: 600})
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	change := func(c core.Change, e *Entry) {
		seq++
		l.Persist(core.Persist{Seq: seq, Change: c}, e)
		for l.urgent || l.unmarked {
			if _, err := l.step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := uint64(1); i <= 3; i++ {
		v := core.Version{Epoch: 1, Index: i}
		change(core.Append{Version: v}, &Entry{Version: v, Kind: Data, Length: 700, Data: make([]byte, 700)})
	}
	disk.reading = func() {
		disk.reading = func() {}
		change(core.Trim{To: 2}, nil)
	}
	if _, err := l.Read(1); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// TestFormer: a log whose segments were written before records were bound to them is read.
func TestFormer(t *testing.T) {
	rnd := rand.New(rand.NewPCG(10, 10))
	disk := newMemDisk(rnd)
	f, err := start(disk, model{}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	b := disk.names[segmentName(1)].data
	b[4] = 1
	clear(b[8:12])
	copy(b[8:], crcOf(b[:HeaderSize]))
	f.l.segments[0].bound = false
	for len(f.after) < 30 {
		if err := f.run(rnd); err != nil {
			t.Fatal(err)
		}
	}
	l, err := open(disk.restart(), 7, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.after[len(f.after)-1].compare(l); err != nil || l.Stats().Torn != 0 {
		t.Errorf("%v, %+v", err, l.Stats())
	}
}

// TestAhead: most small batches lie where zeros were written before, and a power loss finds nothing wrong with those. A disk
// without room gets none.
func TestAhead(t *testing.T) {
	for _, large := range []bool{false, true} {
		disk := newMemDisk(rand.New(rand.NewPCG(11, 11)))
		disk.large = large
		l, err := open(disk, 7, Options{SegmentSize: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		const entries = 60
		before := disk.grown
		for i := uint64(1); i <= entries; i++ {
			v := core.Version{Epoch: 1, Index: i}
			l.Persist(core.Persist{Seq: i, Change: core.Append{Version: v}}, &Entry{Version: v, Kind: Data, Length: 4096, Data: make([]byte, 4096)})
			if _, err := l.step(); err != nil {
				t.Fatal(err)
			}
		}
		if grown := disk.grown - before; large && grown > 2 || !large && grown != entries {
			t.Errorf("large %v: %d of %d batches went beyond what was written", large, grown, entries)
		}
		l, err = open(disk.restart(), 7, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if head := l.state.head(); head != entries {
			t.Errorf("large %v: %d entries of %d after a power loss", large, head, entries)
		}
	}
}
