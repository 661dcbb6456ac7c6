package wal

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/internal/durable"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// Options are the options of Open.
type Options struct {
	// SegmentSize is the size in bytes at which the next segment begins. The space is allocated in
	// advance. 0: 32 MiB.
	SegmentSize int64
	// Delay is how long entries wait so that more of them share one sync. They do not wait behind
	// another kind of change, once 1 MiB is queued, or if Hurry asks for them. A Save that changes
	// only Applying waits too: it only allows the store to apply entries.
	Delay time.Duration
	// Synced, if not nil, is called when changes are durable, with the Seq of the last one. After a
	// failure its last call has the error, and nothing more becomes durable. It is called by one
	// goroutine, and must not call Close.
	Synced func(seq uint64, err error)
}

// Stats are counters of a log since it was opened.
type Stats struct {
	Syncs    uint64 // group commits, one fdatasync each
	Changes  uint64 // changes made durable by them
	Bytes    int64  // bytes written
	Torn     int64  // bytes that Open cut from the end: never durable records, as far as they are recognized as the log's
	Segments int    // current number of files
}

// A Log is the durable log and hard state of one volume on one host. Its methods may be called by
// several goroutines.
type Log struct {
	options Options
	dir     directory

	mu       sync.Mutex
	work     sync.Cond // for queue and closing
	state    state
	segments []*segment // the last one is being written
	queue    []item
	queued   int64  // in bytes
	urgent   bool   // write the queue now
	hurry    uint64 // entries up to this index are urgent
	delay    *time.Timer
	seq      uint64 // of the last change
	err      error
	closing  bool
	stats    Stats

	written  point         // only the writer's: after the last durable change
	unmarked bool          // only the writer's: no mark says yet that the end of the segment is durable
	spare    bool          // only the writer's: there is a spare
	done     chan struct{} // closed when the writer has ended
}

// An item is a queued change.
type item struct {
	seq    uint64
	header []byte
	data   []byte
	size   int64
	slot   *slot // of an entry; nil for other changes
	after  point
}

// Open opens and locks the log of a volume in a directory, which it creates if there is none. It
// reads and checks the whole log, and makes it durable. Errors: ErrForeign, ErrFormat, ErrDamaged
// (durable records are damaged), durable.ErrLocked, and those of the disk.
func Open(path string, volume uint64, o Options) (*Log, error) {
	var l *Log
	dir, err := durable.Dir(path)
	if err == nil {
		if l, err = open(osDirectory{dir}, volume, o); err != nil {
			err = errors.Join(err, dir.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("wal: opening %s: %w", path, told(err))
	}
	go l.run()
	return l, nil
}

// open is Open without starting the writer.
func open(dir directory, volume uint64, o Options) (*Log, error) {
	if o.SegmentSize <= 0 {
		o.SegmentSize = 32 << 20
	}
	numbers, others, hasSpare, err := segmentNumbers(dir)
	if err != nil {
		return nil, err
	}
	r := recovery{volume: volume}
	if err = r.read(dir, numbers); err == nil {
		err = r.repair(dir)
	}
	l := &Log{options: o, dir: dir, state: r.state, segments: r.segments, written: r.state.point(), spare: hasSpare, done: make(chan struct{})}
	l.work.L, l.stats.Torn = &l.mu, r.torn
	if o.Delay > 0 {
		l.delay = time.AfterFunc(o.Delay, func() { l.Hurry(0) })
	}
	if err == nil {
		err = l.roll(volume)
	}
	for _, n := range others {
		if err == nil {
			err = dir.remove(segmentName(n))
		}
	}
	if err == nil {
		err = l.sweep(l.oldest())
	}
	if err != nil {
		return nil, errors.Join(err, l.closeSegments())
	}
	return l, nil
}

// Stored returns the state for core.New: after Open what is durable, later what will be.
func (l *Log) Stored() core.Stored {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.stored()
}

// Persist queues a change, to become durable after all before it; Options.Synced reports when. It
// does not wait for the disk. Changes come in the order of Seq, which starts at 1 when the log is
// opened; e is the entry of an Append, and nil otherwise. A change that cannot follow the one
// before ends the log as a failed disk does. Before a Trim, and before a Save without Backfilling,
// the caller must sync the store.
func (l *Log) Persist(p core.Persist, e *Entry) {
	r, header := &record{}, []byte(nil)
	if e != nil {
		*r = *e
		header = r.AppendHeader(nil) // computes its CRC outside the lock
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.state.hard
	r, err := l.state.record(p.Change, r)
	var sl *slot
	if err == nil {
		if r.Kind < logKinds {
			sl = &slot{entry: *r}
		} else {
			header = r.AppendHeader(nil)
		}
		err = l.state.apply(r, sl)
	}
	if err == nil && p.Seq != l.seq+1 {
		err = fmt.Errorf("%w: change %d after %d", ErrInvalid, p.Seq, l.seq)
	}
	if err == nil && l.closing {
		err = ErrClosed
	}
	if l.seq = p.Seq; err != nil && l.err == nil {
		l.err = err // the writer reports it
	}
	if l.err == nil {
		if len(l.queue) == 0 && l.delay != nil {
			l.delay.Reset(l.options.Delay)
		}
		l.queue = append(l.queue, item{p.Seq, header, r.Data, size(r), sl, l.state.point()})
		l.queued += size(r)
	}
	was.Applying = l.state.hard.Applying
	waits := func() bool {
		return sl != nil && r.Version.Index > l.hurry || r.Kind == kindSave && was == l.state.hard
	}
	if l.err != nil || l.options.Delay == 0 || l.queued >= enough || !waits() {
		l.wake()
	}
}

// enough is the number of queued entry bytes at which entries no longer wait for more.
const enough = 1 << 20

func (l *Log) wake() {
	l.urgent = true
	l.work.Signal()
}

// Hurry makes entries up to index durable without delay, whether queued already or still to come;
// 0: all that are queued now.
func (l *Log) Hurry(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hurry = max(l.hurry, index)
	if slices.ContainsFunc(l.queue, func(i item) bool { return index == 0 || i.slot != nil && i.slot.entry.Version.Index <= index }) {
		l.wake()
	}
}

// Read returns an entry with its data, durable or not. The caller must not change Data.
func (l *Log) Read(index uint64) (Entry, error) {
	l.mu.Lock()
	sl := l.state.slot(index)
	if sl == nil {
		l.mu.Unlock()
		return Entry{}, fmt.Errorf("%w: %d", ErrNotFound, index)
	}
	e, seg, at := sl.entry, sl.seg, sl.at
	l.mu.Unlock()
	if e.DataLen() == len(e.Data) {
		return e, nil
	}
	b := make([]byte, HeaderSize+e.DataLen())
	_, err := seg.f.ReadAt(b, at)
	if err == nil {
		var found Entry
		seg.bind(b)
		if found, err = ParseHeader(b); err == nil && found.Version != e.Version {
			err = fmt.Errorf("%w: entry %v is not there, but %v", ErrDamaged, e.Version, found.Version)
		}
	}
	if err == nil {
		err = e.SetData(b[HeaderSize:])
	}
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if sl.gone { // then the file may already be another segment
			return Entry{}, fmt.Errorf("%w: %d, it was trimmed just now", ErrNotFound, index)
		}
		return Entry{}, fmt.Errorf("wal: reading entry %d: %w", index, seg.wrap(at, err))
	}
	return e, nil
}

// Headers returns the entries in the log, in order, without their data.
func (l *Log) Headers() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Entry, len(l.state.slots))
	for i, sl := range l.state.slots {
		list[i] = sl.entry
		list[i].Data = nil
	}
	return list
}

// Err returns the error that ended the log, or nil. Nothing becomes durable after it.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Stats returns the counters.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Segments = len(l.segments)
	return s
}

// Close makes what is queued durable, and ends the log. It returns Err.
func (l *Log) Close() error {
	l.mu.Lock()
	first := !l.closing
	l.closing = true
	l.work.Signal()
	l.mu.Unlock()
	if <-l.done; !first {
		return ErrClosed
	}
	return errors.Join(l.Err(), l.closeSegments(), l.dir.Close())
}

func (l *Log) closeSegments() (err error) {
	for _, g := range l.segments {
		err = errors.Join(err, g.f.Close())
	}
	return err
}

// run is the writer goroutine.
func (l *Log) run() {
	defer close(l.done)
	for more, err := true, error(nil); more; {
		if more, err = l.step(); err != nil {
			l.fail(err)
			return
		}
	}
}

// step waits for something to write, and writes the queue with one sync, while further changes
// queue. It returns false when the log is closed.
func (l *Log) step() (more bool, err error) {
	l.mu.Lock()
	for !l.unmarked && !l.urgent && !l.closing && l.err == nil {
		l.work.Wait()
	}
	var batch []item
	oldest, closing, err := l.oldest(), l.closing, l.err
	if l.urgent || closing {
		batch, l.queue, l.queued, l.urgent = l.queue, nil, 0, false
	}
	l.mu.Unlock()
	if err == nil {
		err = l.commit(batch)
	}
	if n := len(batch); err == nil && n > 0 && l.options.Synced != nil {
		l.options.Synced(batch[n-1].seq, nil)
	}
	if g := l.current(); err == nil && l.unmarked && g.end >= l.options.SegmentSize { // only after a sync
		err = l.roll(g.begin.Volume)
	}
	if err == nil {
		err = l.sweep(oldest)
	}
	return !closing || l.unmarked, err
}

// commit writes a batch and, before it unless already written, the mark that everything before is
// durable. The mark needs no sync of its own: it only serves to detect damage.
func (l *Log) commit(batch []item) error {
	g := l.current()
	var bufs [][]byte
	end := g.end
	if l.unmarked {
		mark := g.begin.mark(end).AppendHeader(nil)
		g.bind(mark)
		bufs = append(bufs, mark)
		end += HeaderSize
	}
	for _, it := range batch {
		g.bind(it.header)
		pad := it.size - HeaderSize - int64(len(it.data))
		bufs = append(bufs, it.header, it.data, zeros[:pad])
		end += it.size
	}
	if end > g.reached {
		g.reached = end
		if small := end-g.end <= ahead/4; small && end+ahead <= l.options.SegmentSize {
			bufs, g.reached = append(bufs, zeros[:]), end+ahead
		}
	}
	if err := g.f.writev(bufs, g.end); err != nil {
		return err
	}
	if len(batch) > 0 {
		if err := g.f.sync(); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := end
	for i := len(batch) - 1; i >= 0; i-- {
		at -= batch[i].size
		if sl := batch[i].slot; sl != nil {
			sl.entry.Data, sl.seg, sl.at = nil, g, at
			if !sl.gone {
				g.live++
			}
		}
	}
	l.stats.Bytes += end - g.end
	g.end, l.unmarked = end, len(batch) > 0
	if len(batch) > 0 {
		l.written = batch[len(batch)-1].after
		l.stats.Syncs++
		l.stats.Changes += uint64(len(batch))
	}
	return nil
}

// ahead is how many zeros are written after a small batch. A sync of blocks that were allocated but
// never written also waits for the file system's journal; with the zeros, only one in many small
// batches does.
const ahead = 256 << 10

var zeros [ahead]byte

func (l *Log) current() *segment {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.segments[len(l.segments)-1]
}

// roll begins a new segment. Everything before it is durable.
func (l *Log) roll(volume uint64) error {
	b := begin{Volume: volume, Number: 1, Nonce: rand.Uint64(), Point: l.written}
	if n := len(l.segments); n > 0 {
		b.Number, b.Former = l.segments[n-1].begin.Number+1, l.segments[n-1].end
	}
	g := &segment{begin: b, bound: true, name: segmentName(b.Number)}
	if err := l.begin(g); err != nil {
		return err
	}
	if !g.f.allocate(l.options.SegmentSize) {
		g.reached = math.MaxInt64 // zeros might use space that entries need
	}
	l.mu.Lock()
	l.segments, l.unmarked = append(l.segments, g), false // its first record says that all before it is durable
	l.mu.Unlock()
	return nil
}

// begin creates the file of a segment. A spare is renamed once its first record is written, so any
// other file of that name is new.
func (l *Log) begin(g *segment) (err error) {
	file := g.name
	if l.spare {
		file, l.spare = spare, false
		if err := l.dir.sync(); err != nil { // the spare's old name is gone
			return err
		}
	}
	if g.f, err = l.dir.open(file); err != nil {
		return err
	}
	r := packed(kindBegin, g.begin)
	r.format = segmentFormat
	g.end = size(r)
	if file == g.name {
		err = g.f.truncate(0) // a crash may have left part of it
	}
	if err == nil {
		err = g.f.writev([][]byte{r.AppendHeader(nil), r.Data, zeros[:g.end-HeaderSize-int64(len(r.Data))]}, 0)
	}
	if err == nil {
		err = g.f.sync()
	}
	if err == nil && file != g.name {
		g.reached, err = g.f.size()
		err = errors.Join(err, l.dir.rename(file, g.name))
	}
	if err == nil {
		err = l.dir.sync()
	}
	if err != nil {
		err = errors.Join(err, g.f.Close())
	}
	return err
}

// oldest returns the first segment that holds an entry of the log.
func (l *Log) oldest() *segment {
	for _, g := range l.segments {
		if g.live > 0 {
			return g
		}
	}
	return l.segments[len(l.segments)-1]
}

// sweep removes the segments before the given one, except for a spare. If a crash brings them back,
// Open reads or removes them.
func (l *Log) sweep(before *segment) error {
	for {
		l.mu.Lock()
		g := l.segments[0]
		if g == before {
			l.mu.Unlock()
			return nil
		}
		l.segments = l.segments[1:]
		l.mu.Unlock()
		var err error
		if l.spare {
			err = l.dir.remove(g.name)
		} else {
			err = l.dir.rename(g.name, spare)
		}
		l.spare = true
		if err = errors.Join(err, g.f.Close()); err != nil {
			return err
		}
	}
}

// told adds to an error what to do about it.
func told(err error) error {
	if durable.Full(err) {
		return fmt.Errorf("the disk is full: make space, and start again: %w", err)
	}
	return err
}

// fail ends the log, and reports the error once.
func (l *Log) fail(err error) {
	err = fmt.Errorf("wal: nothing more becomes durable: %w", told(err))
	l.mu.Lock()
	l.err, l.queue = err, nil
	l.mu.Unlock()
	if l.options.Synced != nil {
		l.options.Synced(0, err)
	}
}
