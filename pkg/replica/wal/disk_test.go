package wal

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
)

var errPower = errors.New("the power is off")

// A memDisk is a directory that knows what is durable: after power loss the rest is there or not, or a part
// of it. A sync that fails leaves the data readable, and clean: only power loss shows that it is not on disk.
type memDisk struct {
	rnd     *rand.Rand
	names   map[string]*memFile
	durable map[string]*memFile
	ops     int // that change something: writes, syncs, removals, creations
	dies    int // with this one the power fails; 0: it does not
	dead    bool
	fails   int    // this one fails; 0: none does
	lies    bool   // it syncs nothing
	large   bool   // it can allocate 1 MiB and more
	grown   int    // writes beyond what was written of a file
	renamed int    // spares that became segments
	reading func() // if not nil, called before each read
}

type memFile struct {
	data, safe []byte
	reached    int64      // up to here it was written
	writes     []memWrite // since safe, except those that a failed sync has dropped
}

type memWrite struct {
	at   int64
	data []byte
}

func newMemDisk(rnd *rand.Rand) *memDisk {
	return &memDisk{rnd: rnd, names: map[string]*memFile{}, durable: map[string]*memFile{}}
}

// op counts an operation, and returns its fault. half: it may have been done partially.
func (d *memDisk) op() (half bool, err error) {
	if d.dead {
		return false, errPower
	}
	d.ops++
	if d.ops == d.dies {
		d.dead = true
		return true, errPower
	}
	if d.ops == d.fails {
		return true, errFull
	}
	return false, nil
}

func (d *memDisk) list() ([]string, error) { return slices.Collect(maps.Keys(d.names)), nil }
func (d *memDisk) Close() error            { return nil }

func (d *memDisk) open(name string) (file, error) {
	if d.names[name] == nil {
		half, err := d.op()
		if err == nil || half && d.rnd.IntN(2) == 0 {
			d.names[name] = &memFile{}
		}
		if err != nil {
			return nil, err
		}
	}
	return &handle{disk: d, f: d.names[name]}, nil
}

func (d *memDisk) remove(name string) error {
	half, err := d.op()
	if err == nil || half && d.rnd.IntN(2) == 0 {
		delete(d.names, name)
	}
	return err
}

func (d *memDisk) rename(from, to string) error {
	half, err := d.op()
	if err == nil || half && d.rnd.IntN(2) == 0 {
		d.names[to] = d.names[from]
		delete(d.names, from)
		if from == spare {
			d.renamed++
		}
	}
	return err
}

func (d *memDisk) sync() error {
	half, err := d.op()
	if err == nil || half && d.rnd.IntN(2) == 0 {
		d.durable = maps.Clone(d.names)
	}
	return err
}

// A handle is an open file.
type handle struct {
	disk   *memDisk
	f      *memFile
	closed bool
}

func (h *handle) ReadAt(p []byte, at int64) (int, error) {
	if h.disk.reading != nil {
		h.disk.reading()
	}
	if h.closed {
		return 0, os.ErrClosed
	}
	if at >= int64(len(h.f.data)) {
		return 0, io.EOF
	}
	n := copy(p, h.f.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) Close() error {
	h.closed = true
	return nil
}

func put(b []byte, at int64, data []byte) []byte {
	if n := int(at) + len(data); n > len(b) {
		b = append(b, make([]byte, n-len(b))...)
	}
	copy(b[at:], data)
	return b
}

func (h *handle) writev(bufs [][]byte, at int64) error {
	half, err := h.disk.op()
	if err != nil && !half {
		return err
	}
	data := slices.Concat(bufs...)
	if end := at + int64(len(data)); end > h.f.reached {
		h.f.reached = end
		h.disk.grown++
	}
	if half && len(data) > 0 && !h.disk.dead {
		data = data[:h.disk.rnd.IntN(len(data))] // a disk that is full has room for the first part
	}
	h.f.data = put(h.f.data, at, data)
	h.f.writes = append(h.f.writes, memWrite{at, data})
	return err
}

func (h *handle) allocate(size int64) bool {
	_, err := h.disk.op()
	can := err == nil && (size < 1<<20 || h.disk.large)
	if can && size > int64(len(h.f.data)) {
		h.f.data = put(h.f.data, size, nil)
	}
	return can
}

func (h *handle) truncate(size int64) error {
	half, err := h.disk.op()
	if err == nil || half && h.disk.rnd.IntN(2) == 0 {
		h.f.data = h.f.data[:min(size, int64(len(h.f.data)))]
		for i := range h.f.writes { // writes beyond the end no longer count
			w := &h.f.writes[i]
			w.data = w.data[:max(0, min(int64(len(w.data)), size-w.at))]
		}
		h.f.settle()
	}
	return err
}

// settle makes durable what was written, and not dropped.
func (f *memFile) settle() {
	for _, w := range f.writes {
		f.safe = put(f.safe, w.at, w.data)
	}
	f.safe = put(f.safe, 0, nil)
	f.safe = f.safe[:min(len(f.safe), len(f.data))]
	if n := len(f.data) - len(f.safe); n > 0 {
		f.safe = append(f.safe, make([]byte, n)...) // dropped: the size is there, the data is not
	}
	f.writes = nil
}

func (h *handle) size() (int64, error) { return int64(len(h.f.data)), nil }

func (h *handle) sync() error {
	half, err := h.disk.op()
	switch {
	case h.disk.lies:
	case err == nil:
		h.f.settle()
	case half && !h.disk.dead:
		h.f.writes = nil // the kernel has dropped them, and marked the pages clean
	case half && h.disk.rnd.IntN(2) == 0:
		h.f.settle()
	}
	return err
}

// powerLoss is the disk after it: each name and each write that is not durable is there, or not, or in part.
func (d *memDisk) powerLoss() *memDisk {
	n := newMemDisk(d.rnd)
	coin := func() bool { return d.rnd.IntN(2) == 0 }
	for _, name := range slices.Sorted(maps.Keys(d.durable)) {
		if d.names[name] != nil || coin() {
			n.names[name] = d.durable[name].torn(d.rnd)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		if d.durable[name] == nil && coin() {
			n.names[name] = d.names[name].torn(d.rnd)
		}
	}
	n.durable = maps.Clone(n.names)
	return n
}

// restart is the disk after the process has ended: all that was written is there.
func (d *memDisk) restart() *memDisk {
	d.dead, d.dies, d.fails, d.ops = false, 0, 0, 0
	return d
}

const sector = 512

func (f *memFile) torn(rnd *rand.Rand) *memFile {
	b := slices.Clone(f.safe)
	for _, w := range f.writes {
		switch rnd.IntN(5) {
		case 0:
		case 1: // up to any byte
			b = put(b, w.at, w.data[:rnd.IntN(len(w.data)+1)])
		case 2: // any sectors
			for at, rest := w.at, w.data; len(rest) > 0; {
				n := min(sector-at%sector, int64(len(rest)))
				if rnd.IntN(2) == 0 {
					b = put(b, at, rest[:n])
				}
				at, rest = at+n, rest[n:]
			}
		default:
			b = put(b, w.at, w.data)
		}
	}
	if rnd.IntN(4) == 0 { // the size is there, and the data is not
		b = append(b, make([]byte, max(0, len(f.data)-len(b)))...)
	}
	return &memFile{data: b, safe: slices.Clone(b)}
}

// errFull is the error of a disk that is full.
var errFull = &os.PathError{Op: "write", Path: "memory", Err: syscall.ENOSPC}
