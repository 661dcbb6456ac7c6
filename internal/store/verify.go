package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"math"
	"os"
)

// pageSize does not follow the machine's, so that a commit writes little where
// that is large.
const pageSize = 4096

// bbolt trusts its file: damage makes it panic, even in its own goroutines, read beyond the file,
// or loop forever. So the whole file is checked once, by bbolt's documented layout, before bbolt
// opens it. Numbers are in the machine's byte order.
const (
	magic      = 0xED0CDAED
	layout     = 2
	noFreelist = math.MaxUint64

	pageHeader   = 16 // id 8, flags 2, count 2, overflow 4
	elementSize  = 16 // branch: pos 4, ksize 4, page 8; leaf: flags 4, pos 4, ksize 4, vsize 4
	bucketHeader = 16 // root page 8 (0: the page follows), sequence 8
	metaSum      = 56 // offset of the checksum in a meta page's body

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketFlag   = 0x01

	maxDepth = 32
)

var native = binary.NativeEndian

// damage is what is wrong with the file's content.
type damage string

func (d damage) Error() string { return string(d) }

func damaged(format string, args ...any) error { return damage(fmt.Sprintf(format, args...)) }

// verify reads the file and returns nil if bbolt can be trusted with it and every
// value is what was written. Errors wrap ErrCorrupt or ErrVersion, or are those
// of reading.
func verify(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	v := &verifier{f: f, size: uint64(max(info.Size(), 0)), seen: map[uint64]bool{}} //nolint:gosec // not negative
	err = v.file()
	if d, ok := errors.AsType[damage](err); ok {
		return corrupt("%v", d)
	}
	return err
}

type verifier struct {
	f    io.ReaderAt
	size uint64
	high uint64 // no page has this number or a higher one
	seen map[uint64]bool
}

// A meta is the entry point of one of the last two transactions.
type meta struct{ root, freelist, high, tx uint64 }

// meta reads one of the two meta pages.
func (v *verifier) meta(page uint64) (meta, error) {
	b := make([]byte, pageHeader+metaSum+8)
	if _, err := v.f.ReadAt(b, int64(page*pageSize)); err != nil { //nolint:gosec // 0 or 1
		if errors.Is(err, io.EOF) {
			return meta{}, damaged("it ends within its first pages")
		}
		return meta{}, err
	}
	b = b[pageHeader:]
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSum]) // cannot fail
	switch {
	case native.Uint32(b) != magic:
		return meta{}, damaged("it is no state file")
	case native.Uint64(b[metaSum:]) != sum.Sum64():
		return meta{}, damaged("wrong checksum of page %d", page)
	case native.Uint32(b[4:]) != layout:
		return meta{}, fmt.Errorf("%w: its layout is %d, this program knows %d", ErrVersion, native.Uint32(b[4:]), layout)
	case native.Uint32(b[8:]) != pageSize:
		return meta{}, damaged("pages of %d bytes: it is no state file", native.Uint32(b[8:]))
	}
	return meta{root: native.Uint64(b[16:]), freelist: native.Uint64(b[32:]), high: native.Uint64(b[40:]), tx: native.Uint64(b[48:])}, nil
}

func (v *verifier) file() error {
	m, err := v.meta(0)
	other, err1 := v.meta(1)
	if err != nil && err1 != nil {
		return err
	}
	if err != nil || err1 == nil && other.tx > m.tx {
		m = other
	}
	v.high = m.high
	if v.high > v.size/pageSize {
		return damaged("it ends before its last page, %d", v.high-1)
	}
	if m.freelist != noFreelist { // the one of a new file, with nothing in it
		p, err := v.page(m.freelist)
		if err != nil {
			return err
		}
		if p.flags != freelistPage || p.count != 0 {
			return damaged("page %d is not the empty list of free pages", m.freelist)
		}
	}
	return v.tree(m.root, nil, nil, nil, 0)
}

// A page is a page in the tree, with the pages that it overflows into.
type page struct {
	id           uint64
	flags, count uint16
	data         []byte // with the header
}

func header(b []byte) page {
	return page{id: native.Uint64(b), flags: native.Uint16(b[8:]), count: native.Uint16(b[10:]), data: b}
}

// page reads a page that nothing else has referred to.
func (v *verifier) page(id uint64) (page, error) {
	if id < 2 || id >= v.high {
		return page{}, damaged("a reference to page %d of %d", id, v.high)
	}
	b := make([]byte, pageSize)
	if err := v.read(b, id); err != nil {
		return page{}, err
	}
	if got := header(b).id; got != id {
		return page{}, damaged("page %d says that it is %d", id, got)
	}
	more := uint64(native.Uint32(b[12:]))
	if more >= v.high-id {
		return page{}, damaged("page %d goes on beyond the end", id)
	}
	for i := id; i <= id+more; i++ {
		if v.seen[i] {
			return page{}, damaged("page %d is in two places", i)
		}
		v.seen[i] = true
	}
	if more > 0 {
		b = make([]byte, (more+1)*pageSize)
		if err := v.read(b, id); err != nil {
			return page{}, err
		}
	}
	return header(b), nil
}

func (v *verifier) read(b []byte, id uint64) error {
	_, err := v.f.ReadAt(b, int64(id*pageSize)) //nolint:gosec // within the file
	return err
}

// field returns size bytes of element i, pos bytes after where the element is.
func (p page) field(i int, pos uint64, size uint64) ([]byte, error) {
	at := uint64(pageHeader+i*elementSize) + pos
	if at+size > uint64(len(p.data)) {
		return nil, damaged("page %d: entry %d goes beyond the end", p.id, i)
	}
	return p.data[at : at+size], nil
}

// tree checks the pages from id on, whose keys must be from low to below high
// (nil: any). bucket is that which they belong to; nil: the list of buckets.
func (v *verifier) tree(id uint64, bucket, low, high []byte, depth int) error {
	if depth > maxDepth {
		return damaged("page %d is too deep", id)
	}
	p, err := v.page(id)
	if err != nil {
		return err
	}
	if p.flags != branchPage {
		return v.leaf(p, bucket, low, high)
	}
	if p.count == 0 {
		return damaged("page %d has no branches", id)
	}
	var last []byte
	for i := range int(p.count) {
		key, child, err := p.branch(i)
		if err != nil {
			return err
		}
		if err := p.order(i, last, key, low, high); err != nil {
			return err
		}
		last = key
		next := high
		if i+1 < int(p.count) {
			if next, _, err = p.branch(i + 1); err != nil {
				return err
			}
		}
		if err := v.tree(child, bucket, key, next, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// branch returns the first key of branch i, and the page where it begins.
func (p page) branch(i int) (key []byte, child uint64, err error) {
	e, err := p.field(i, 0, elementSize)
	if err != nil {
		return nil, 0, err
	}
	key, err = p.field(i, uint64(native.Uint32(e)), uint64(native.Uint32(e[4:])))
	return key, native.Uint64(e[8:]), err
}

// order checks that keys rise, and stay where the branch above says.
func (p page) order(i int, last, key, low, high []byte) error {
	if len(key) == 0 || i > 0 && bytes.Compare(last, key) >= 0 || low != nil && bytes.Compare(key, low) < 0 ||
		high != nil && bytes.Compare(key, high) >= 0 {
		return damaged("page %d: key %d is out of order", p.id, i)
	}
	return nil
}

// leaf checks the pairs of a bucket, or the buckets.
func (v *verifier) leaf(p page, bucket, low, high []byte) error {
	if p.flags != leafPage {
		return damaged("page %d is of an unexpected kind, %#x", p.id, p.flags)
	}
	var last []byte
	for i := range int(p.count) {
		e, err := p.field(i, 0, elementSize)
		if err != nil {
			return err
		}
		pos, ksize := uint64(native.Uint32(e[4:])), uint64(native.Uint32(e[8:]))
		key, err := p.field(i, pos, ksize)
		if err != nil {
			return err
		}
		value, err := p.field(i, pos+ksize, uint64(native.Uint32(e[12:])))
		if err != nil {
			return err
		}
		if err := p.order(i, last, key, low, high); err != nil {
			return err
		}
		last = key
		switch flags := native.Uint32(e); {
		case bucket == nil && flags == bucketFlag:
			if err := v.bucket(p, key, value); err != nil {
				return err
			}
		case bucket != nil && flags == 0:
			n := len(value) - sealLen
			if n < 0 || binary.BigEndian.Uint32(value[n:]) != checksum(bucket, key, value[:n]) {
				return damaged("wrong checksum of %q in %q", key, bucket)
			}
		default:
			return damaged("page %d: entry %d is of an unexpected kind, %#x", p.id, i, flags)
		}
	}
	return nil
}

// bucket checks a bucket: a small one is a page within the value, with its
// positions from there on.
func (v *verifier) bucket(p page, name, value []byte) error {
	if len(value) < bucketHeader {
		return damaged("page %d: bucket %q is cut short", p.id, name)
	}
	if root := native.Uint64(value); root != 0 {
		return v.tree(root, name, nil, nil, 0)
	}
	if len(value) < bucketHeader+pageHeader {
		return damaged("page %d: bucket %q is cut short", p.id, name)
	}
	return v.leaf(header(value[bucketHeader:]), name, nil, nil)
}

// Values end with a checksum of the pair, by which Open knows that it is what
// was written.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sealLen = 4

func checksum(bucket, key, value []byte) uint32 {
	sum := crc32.Update(0, castagnoli, bucket)
	sum = crc32.Update(sum, castagnoli, key)
	return crc32.Update(sum, castagnoli, value)
}

func unsealed(v []byte) []byte { return v[:len(v)-sealLen] }
