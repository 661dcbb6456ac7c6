package core

import "time"

// At returns the version of an entry of the log, or of the last one that was trimmed.
func (n *Node) At(index uint64) (v Version, ok bool) { return n.log.at(index) }

// Write accepts a write, whose content the caller has, and returns the version of its entry. If ok
// is false the volume waits, and so must the write. Ack says when it is done.
func (n *Node) Write(now time.Duration) (v Version, ok bool) {
	l := n.lead
	if l == nil || l.state != Active || n.full() {
		return Version{}, false
	}
	for i := range l.peers {
		if n.outruns(&l.peers[i], now) {
			return Version{}, false
		}
	}
	l.calls++
	v = Version{l.interval.Since, n.log.head().Index + 1}
	n.append(v)
	n.do(Post{v, n.commit, n.stable})
	return v, true
}

// full reports that the log takes no more before some of it is trimmed.
func (n *Node) full() bool { return n.log.head().Index-n.log.tail.Index >= n.cfg.Limit }

// Completed says that all members of the group's view have the entries up to one.
func (n *Node) Completed(iv Interval, index uint64, now time.Duration) {
	if n.lead == nil || iv != n.lead.interval || n.lead.state != Active || index > n.log.head().Index {
		return
	}
	for i := range n.lead.peers {
		if p := &n.lead.peers[i]; index > n.commit && n.outruns(p, now) {
			p.race.gained = now // what it is sent may be behind these writes on the link
		}
	}
	n.commit = max(n.commit, index)
	n.settle()
	n.release(now)
}

// Flush begins a flush of all writes accepted before; Flushed ends it. If ok is false the volume
// waits. A write with FUA is a write and a flush.
func (n *Node) Flush(call uint64, now time.Duration) (ok bool) {
	if n.lead == nil || n.lead.state != Active {
		return false
	}
	n.lead.calls++
	n.lead.flushes = append(n.lead.flushes, flush{call, n.log.head().Index})
	n.settle()
	n.release(now)
	n.hurry(now)
	return true
}

// eager is how many entries after a flush are hurried too, as another one is likely to follow.
const eager = 32

// hurry makes all members sync the entries that flushes wait for.
func (n *Node) hurry(now time.Duration) {
	l, head := n.lead, n.log.head().Index
	if len(l.flushes) > 0 && head > l.hurried {
		l.hurried = head + eager
		n.do(Hurry{l.hurried})
		n.leases(now)
	}
}

// Read begins a read. The caller reads the store and, of the log, the entries up to index: later ones
// are not committed, and must not be seen. Then it calls ReadDone with iv. If ok is false the volume waits.
func (n *Node) Read(now time.Duration) (iv Interval, index uint64, ok bool) {
	if !n.leased(now) {
		return Interval{}, 0, false
	}
	n.lead.calls++
	return n.lead.interval, n.commit, true
}

// ReadDone reports whether the data that was read may be served. now must be a time after the read.
func (n *Node) ReadDone(iv Interval, now time.Duration) bool {
	return n.leased(now) && n.lead.interval.Since == iv.Since
}
