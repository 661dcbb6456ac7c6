package replica

import (
	"errors"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// An item is an entry of the log. Its data is in memory until it is on disk and in the store, or it
// is on disk and the memory is needed: then Data is nil, and the log on disk has it.
type item struct {
	wal.Entry
	buf *Buffer
	seq uint64 // of the change that appends the entry, which is on disk when that is durable
	end uint64 // the bytes of all entries up to this one
}

func (i *item) bytes() uint64 { return uint64(wal.HeaderSize + i.DataLen()) } //nolint:gosec // not negative

func (i *item) span() span { return span{i.Offset, i.Offset + i.Length} }

// resident says that the data is in memory, or that there is none.
func (i *item) resident() bool { return i.Data != nil || i.Kind != wal.Data }

// errNoMemory: there is no buffer for an entry.
var errNoMemory = errors.New("no memory for entries: they come again")

// parseEntry reads an entry with its data, which it copies into a buffer; nil: there is none.
func parseEntry(raw []byte, buffer func(n int) *Buffer) (item, error) {
	e, err := wal.ParseHeader(raw)
	if err == nil && e.DataLen() != len(raw)-wal.HeaderSize {
		err = fmt.Errorf("%d bytes with the header of %d", len(raw), e.DataLen())
	}
	if err != nil {
		return item{}, err
	}
	buf := buffer(e.DataLen())
	if buf == nil {
		return item{}, errNoMemory
	}
	copy(buf.data, raw[wal.HeaderSize:])
	if e.Kind != wal.Data {
		buf.Release()
		return item{Entry: e}, nil
	}
	if err := e.SetData(buf.data); err != nil {
		buf.Release()
		return item{}, err
	}
	return item{Entry: e, buf: buf}, nil
}

type requestID struct{ session, seq uint64 }

// content has the entries of a volume's log after tail, as core.Node does, and received entries
// that are not in the log yet.
type content struct {
	tail     uint64
	items    []item // after tail
	trimmed  uint64 // the bytes of all entries up to tail
	kept     uint64 // the data of entries up to this one is not in memory
	durable  uint64 // changes
	arrived  map[core.Version]item
	requests map[requestID]uint64 // index of a client's request
	past     past                 // requests of trimmed entries
	known    uint64               // all requests of entries after this one are in requests or past
}

func newContent(tail uint64) *content {
	return &content{tail: tail, kept: tail, known: tail, arrived: map[core.Version]item{}, requests: map[requestID]uint64{}}
}

func (c *content) head() uint64 { return c.tail + uint64(len(c.items)) }

// at returns an entry of the log, or nil.
func (c *content) at(index uint64) *item {
	if index <= c.tail || index > c.head() {
		return nil
	}
	return &c.items[index-c.tail-1]
}

// load takes an entry that is on disk.
func (c *content) load(e wal.Entry) {
	e.Data = nil
	c.push(item{Entry: e})
	c.kept = c.head()
}

// size returns the bytes of all entries up to an index, including those that a client has just
// written (core.Config.Size).
func (c *content) size(index uint64) (n uint64) {
	if index <= c.tail {
		return c.trimmed
	}
	if i := c.at(index); i != nil {
		return i.end
	}
	n = c.size(c.head())
	for _, i := range c.arrived {
		n += i.bytes()
	}
	return n
}

func (c *content) push(i item) {
	i.end = c.size(c.head()) + i.bytes()
	c.items = append(c.items, i)
	if id := (requestID{i.Session, i.Seq}); id != (requestID{}) {
		c.requests[id] = i.Version.Index
	}
}

// arrive adds a received entry, and reports whether it is new.
func (c *content) arrive(i item) bool {
	there := c.at(i.Version.Index)
	if _, ok := c.arrived[i.Version]; ok || i.Version.Index <= c.tail || there != nil && there.Version == i.Version {
		i.buf.Release()
		return false
	}
	c.arrived[i.Version] = i
	return true
}

// made finds a client's request: the index of its entry, or of a later one. known is false if it is not known
// whether it was made after the log had an index.
func (c *content) made(id requestID, floor uint64) (index uint64, ok, known bool) {
	if index, ok = c.requests[id]; ok {
		return index, true, true
	}
	return c.tail, c.past.has(id), floor >= c.known
}

// forget drops a received entry that is not in the log.
func (c *content) forget(v core.Version) {
	c.arrived[v].buf.Release()
	delete(c.arrived, v)
}

// forgetAll drops all received entries that are not in the log.
func (c *content) forgetAll() {
	for v := range c.arrived {
		c.forget(v)
	}
}

// take appends a received entry to the log. It returns nil if the entry has not been received, or
// is not the next.
func (c *content) take(v core.Version, seq uint64) *item {
	i, ok := c.arrived[v]
	if !ok || v.Index != c.head()+1 {
		return nil
	}
	delete(c.arrived, v)
	i.seq = seq
	c.push(i)
	return c.at(v.Index)
}

func (c *content) drop(i *item) {
	i.buf.Release()
	if id := (requestID{i.Session, i.Seq}); c.requests[id] == i.Version.Index {
		delete(c.requests, id)
	}
	*i = item{}
}

// truncate drops the entries after an index.
func (c *content) truncate(after uint64) {
	for c.head() > after && len(c.items) > 0 {
		c.drop(&c.items[len(c.items)-1])
		c.items = c.items[:len(c.items)-1]
	}
	c.kept = min(c.kept, c.head())
}

// reset begins the log anew.
func (c *content) reset(tail uint64) {
	c.truncate(c.tail)
	c.tail, c.kept, c.known = tail, tail, tail
	for v := range c.arrived {
		if v.Index <= tail { // the copy of the store has it
			c.forget(v)
		}
	}
}

// trim drops the entries up to an index.
func (c *content) trim(to uint64) {
	n := 0
	for ; c.tail < to && n < len(c.items); n++ {
		i := &c.items[n]
		c.trimmed = i.end
		if id := (requestID{i.Session, i.Seq}); id != (requestID{}) && !c.past.add(id) {
			c.past, c.known = past{}, i.Version.Index
		}
		c.drop(i)
		c.tail++
	}
	c.items = c.items[n:]
	c.kept = max(c.kept, c.tail)
}

// release gives up the memory of entries up to an index, as far as they are on disk.
func (c *content) release(to uint64) {
	for c.kept < min(to, c.head()) {
		i := c.at(c.kept + 1)
		if i.seq > c.durable {
			return
		}
		i.buf.Release()
		i.buf, i.Data = nil, nil
		c.kept++
	}
}

// parts finds which parts of a range come from which entries after applied up to index. It returns
// false if the log no longer has all of these.
func (c *content) parts(all span, applied, index uint64) (parts []part, ok bool) {
	if applied < c.tail || index > c.head() {
		return nil, false
	}
	o := overlay{gaps: []span{all}}
	for i := index; i > applied; i-- {
		if x := c.at(i).span(); !x.cut(all).empty() && !o.add(i, x) {
			break
		}
	}
	return o.parts, true
}

// read copies the content of a range in the entries after applied up to index into p, which begins
// at off, as far as they are in memory. The rest must be read from the log on disk.
func (c *content) read(p []byte, off int64, applied, index uint64) (rest []part, ok bool) {
	parts, ok := c.parts(span{off, off + int64(len(p))}, applied, index)
	for _, q := range parts {
		x, to := c.at(q.index), p[q.off-off:q.end-off]
		switch {
		case x.Kind != wal.Data:
			clear(to)
		case x.Data == nil:
			rest = append(rest, q)
		default:
			copy(to, x.Data[q.off-x.Offset:])
		}
	}
	return rest, ok
}
