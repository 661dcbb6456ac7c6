package p4rtserver

import (
	"math"
	"slices"
	"sync"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

const (
	// digestInbox is the maximum number of digests that wait to be processed.
	digestInbox = 8192
	// digestList is the size of a list if the controller sets no limit.
	digestList = 1024
	// digestCache is how many unacknowledged digests are remembered, of each kind; older ones may
	// be sent again.
	digestCache = 1 << 16
)

// A digester collects digests into lists ("DigestEntry").
type digester struct {
	wake chan struct{} // new digests have arrived

	mu      sync.Mutex
	inbox   []pipeline.Digest
	index   *index
	learn   map[uint32]*learner
	started uint64 // number of lists started, also the latest list id
}

// A learner is the state of an enabled digest.
type learner struct {
	digest *digest
	config *p4.DigestEntry_Config

	// The list being collected.
	keys  []string
	data  []*p4.P4Data
	first time.Duration // when the oldest digest in it arrived

	seen map[string]bool // digests in the list being collected, or in unacknowledged lists
	sent []sentList      // unacknowledged lists, oldest first
}

type sentList struct {
	id   uint64
	at   time.Duration
	keys []string
}

func newDigester() *digester {
	return &digester{wake: make(chan struct{}, 1), learn: map[uint32]*learner{}}
}

func (d *digester) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// put adds digests and returns how many did not fit.
func (d *digester) put(list []pipeline.Digest) (dropped int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(list), digestInbox-len(d.inbox))
	d.inbox = append(d.inbox, list[:n]...)
	d.wakeUp()
	return len(list) - n
}

// reset starts again for another pipeline.
func (d *digester) reset(c *config) {
	d.mu.Lock()
	d.index, d.inbox, d.learn = c.index, nil, map[uint32]*learner{}
	d.mu.Unlock()
	d.configure(c)
}

// configure sets which digests are enabled, and their configurations.
func (d *digester) configure(c *config) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.learn {
		if c.learning[id] == nil {
			delete(d.learn, id)
		}
	}
	for id, config := range c.learning {
		if l := d.learn[id]; l != nil {
			l.config = config
		} else {
			d.learn[id] = &learner{digest: c.digests.byID[id], config: config, seen: map[string]bool{}}
		}
	}
	d.wakeUp()
}

// ack handles an acknowledgement of a list. It ignores unknown lists.
func (d *digester) ack(a *p4.DigestListAck) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.index == nil || d.index.digests.byID[a.GetDigestId()] == nil {
		return invalid("digest acknowledgement: there is no digest with id %d", a.GetDigestId())
	}
	l := d.learn[a.GetDigestId()]
	if l == nil {
		return nil
	}
	if i := slices.IndexFunc(l.sent, func(s sentList) bool { return s.id == a.GetListId() }); i >= 0 {
		l.forget(i)
	}
	return nil
}

// forget removes unacknowledged list i.
func (l *learner) forget(i int) {
	for _, k := range l.sent[i].keys {
		delete(l.seen, k)
	}
	l.sent = slices.Delete(l.sent, i, i+1)
}

// never is a time after all others.
const never = time.Duration(math.MaxInt64)

// run processes new digests and what is due now. It returns the lists to send, and the time of the
// next call. If heard is false, no controller would get the lists, so they are discarded.
func (d *digester) run(now time.Duration, heard bool) (lists []*p4.DigestList, next time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	send := func(l *learner) {
		d.started++
		lists = append(lists, l.close(d.started, now, heard))
	}
	for _, in := range d.inbox {
		l := d.learnerOf(in)
		if l == nil {
			continue
		}
		l.expire(now)
		if l.add(in.Values, now) >= l.size() || l.config.GetMaxTimeoutNs() == 0 && len(l.data) > 0 {
			send(l)
		}
	}
	clear(d.inbox)
	d.inbox = d.inbox[:0]

	next = never
	for _, l := range sorted(d.learn) {
		l.expire(now)
		if len(l.data) > 0 {
			due := sum(l.first, l.config.GetMaxTimeoutNs())
			if due <= now {
				send(l)
			} else {
				next = min(next, due)
			}
		}
		if len(l.sent) > 0 {
			next = min(next, sum(l.sent[0].at, l.config.GetAckTimeoutNs()))
		}
	}
	return lists, next
}

// sum adds without overflow.
func sum(t time.Duration, ns int64) time.Duration {
	if ns > int64(never-t) {
		return never
	}
	return t + time.Duration(ns)
}

// learnerOf finds the learner of a digest; nil if the digest is not enabled, or from another
// program.
func (d *digester) learnerOf(in pipeline.Digest) *learner {
	if d.index == nil || in.Index < 0 || in.Index >= len(d.index.byDigest) || d.index.byDigest[in.Index] == nil {
		return nil
	}
	l := d.learn[d.index.byDigest[in.Index].id]
	if l == nil || len(in.Values) != len(l.digest.bits) {
		return nil
	}
	for i, v := range in.Values {
		if !v.Fits(l.digest.bits[i]) {
			return nil
		}
	}
	return l
}

// size returns the number of digests in a full list.
func (l *learner) size() int {
	if n := int(l.config.GetMaxListSize()); n > 0 {
		return n
	}
	return digestList
}

// add adds a digest to the list, unless it is a duplicate, and returns the list's length.
func (l *learner) add(values []match.Value, now time.Duration) int {
	var key []byte
	for _, v := range values {
		for _, w := range v {
			key = append(key, byte(w>>56), byte(w>>48), byte(w>>40), byte(w>>32), byte(w>>24), byte(w>>16), byte(w>>8), byte(w))
		}
	}
	if l.seen[string(key)] {
		return len(l.data)
	}
	if len(l.data) == 0 {
		l.first = now
	}
	data, _ := l.digest.data.encode(values)
	k := string(key)
	l.seen[k] = true
	l.keys = append(l.keys, k)
	l.data = append(l.data, data)
	return len(l.data)
}

// close closes the list and remembers it until it is acknowledged.
func (l *learner) close(id uint64, now time.Duration, heard bool) *p4.DigestList {
	list := &p4.DigestList{DigestId: l.digest.id, ListId: id, Data: l.data}
	l.sent = append(l.sent, sentList{id, now, l.keys})
	l.data, l.keys = nil, nil
	if !heard || l.config.GetAckTimeoutNs() == 0 {
		l.forget(len(l.sent) - 1)
	}
	for len(l.seen) > digestCache && len(l.sent) > 0 {
		l.forget(0)
	}
	return list
}

// expire forgets lists that were not acknowledged in time.
func (l *learner) expire(now time.Duration) {
	for len(l.sent) > 0 && sum(l.sent[0].at, l.config.GetAckTimeoutNs()) <= now {
		l.forget(0)
	}
}

// takeDigests is the target's callback for new digests.
func (s *Server) takeDigests(list []pipeline.Digest) {
	if n := s.digests.put(list); n > 0 {
		s.stats.digestDrops.Add(uint64(n))
	}
}

// sendDigests sends due lists, until the server is closed.
func (s *Server) sendDigests() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.digests.wake:
		case <-timer.C:
		case <-s.closing:
			return
		}
		now := s.target.Now()
		primaries := *s.primaries.Load()
		lists, next := s.digests.run(now, len(primaries) > 0)
		for _, l := range lists {
			l.Timestamp = s.opt.Clock().UnixNano()
			if len(primaries) == 0 {
				s.stats.digestDrops.Add(uint64(len(l.GetData())))
			}
			offerAll(primaries, len(l.GetData()), &s.stats.digests, &s.stats.digestDrops,
				&p4.StreamMessageResponse{Update: &p4.StreamMessageResponse_Digest{Digest: l}})
		}
		timer.Stop()
		if next != never {
			timer.Reset(max(next-now, 0))
		}
	}
}

func (s *Server) digestAck(st *stream, a *p4.DigestListAck) error {
	if err := s.mustBePrimary(st, "digest acknowledgement"); err != nil {
		return err
	}
	return s.digests.ack(a)
}

// idle is the target's callback for entries that have become idle ("Table Idle Timeout
// Notification"). It sends one message per table.
func (s *Server) idle(list []pipeline.Expired) {
	primaries := *s.primaries.Load()
	c := s.running.Load()
	if len(primaries) == 0 || c == nil {
		s.stats.idleDrops.Add(uint64(len(list)))
		return
	}
	now := s.opt.Clock().UnixNano()
	byTable := map[*pipeline.Table]*p4.IdleTimeoutNotification{}
	var order []*p4.IdleTimeoutNotification
	for _, x := range list {
		t := c.byState[x.Table]
		if t == nil { // of a pipeline that was just replaced
			s.stats.idleDrops.Add(1)
			continue
		}
		n := byTable[x.Table]
		if n == nil || len(n.TableEntry) >= responseSize {
			n = &p4.IdleTimeoutNotification{Timestamp: now}
			byTable[x.Table] = n
			order = append(order, n)
		}
		e := t.identity(x.Entry)
		e.IdleTimeoutNs = int64(x.Entry.IdleTimeout)
		n.TableEntry = append(n.TableEntry, e)
	}
	for _, n := range order {
		offerAll(primaries, len(n.TableEntry), &s.stats.idleEntries, &s.stats.idleDrops,
			&p4.StreamMessageResponse{Update: &p4.StreamMessageResponse_IdleTimeoutNotification{IdleTimeoutNotification: n}})
	}
}
