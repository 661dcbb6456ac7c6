package history

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
)

// A Group is the record of one group.
type Group struct {
	Name string
	Key  uint64 // of Fill
	// Sender is the journal of the sender. SenderLived reports whether its process lived to the
	// end.
	Sender      []Entry
	SenderLived bool
	Members     []Member
	// Blamable are the members affected by a fault: these may be removed, and no others. Doomed:
	// the group may fail even if enough members are left, because a fault has affected its sender,
	// or something that it needs.
	Blamable []string
	Doomed   bool
	// Quiet is when the last fault had ended. Bound is how long after that, or after its
	// submission, an operation may be in flight, in µs. 0: no limit.
	Quiet, Bound int64
}

// A Member is a receiver, with a Life for each of its processes.
type Member struct {
	Name  string
	Lives []Life
}

// A Life is the record of one process of a member.
type Life struct {
	Log     []Entry
	Regions [][]byte
	Lived   bool // to the end
}

// A Violation is a broken promise.
type Violation struct {
	Rule, Group, Member string
	Op                  uint64
	Text                string
}

func (v Violation) String() string {
	s := v.Rule + ": group " + v.Group
	if v.Member != "" {
		s += ", member " + v.Member
	}
	return s + ": " + v.Text
}

// Rules that a violation breaks.
const (
	RuleJournal = "journal" // a journal makes no sense
	RuleOrder   = "order"   // completions are in order, each once, and none follows a failure
	RuleMinSize = "minsize" // no operation completes with too few members
	RuleBlame   = "blame"   // only a member affected by a fault is removed
	RuleFailure = "failure" // the group did not need to fail
	RuleHang    = "hang"    // nothing takes longer than the bound
	RuleTold    = "told"    // all members get the end of the group
	RuleMemory  = "memory"  // a member's memory is as promised
	RuleMessage = "message" // a member's messages are as promised
	RuleReturn  = "return"  // a member that has gone does not come back
	RuleView    = "view"    // an operation completes in a view that the application received before
)

// Check returns all broken promises.
func Check(g *Group) []Violation {
	c := &checker{g: g, removed: map[string]uint64{}, added: map[string]uint64{}, views: map[uint32][]string{}}
	if !c.read() {
		return c.found
	}
	c.completions()
	c.membership()
	c.inViews()
	for i := range g.Members {
		c.member(&g.Members[i])
	}
	return c.found
}

// A Summary is a group's history in numbers.
type Summary struct {
	Submitted, Promised, Failed int
	Bytes                       uint64
	Removed, Added              []string // "name from operation n on"
	Longest                     int64    // µs from submission to completion
	End                         string
}

// Summarize counts.
func Summarize(g *Group) (s Summary) {
	at := map[uint64]Entry{}
	for _, e := range g.Sender {
		switch e.What {
		case Submit:
			s.Submitted++
			at[e.N] = e
		case Done:
			if e.Text != "" {
				s.Failed++
				continue
			}
			s.Promised++
			s.Bytes += uint64(max(0, at[e.N].Size))
			s.Longest = max(s.Longest, e.At-at[e.N].At)
		case Removed:
			s.Removed = append(s.Removed, fmt.Sprintf("%s from operation %d on", e.Member, e.N))
		case Added:
			s.Added = append(s.Added, fmt.Sprintf("%s from operation %d on", e.Member, e.N))
		case Over:
			s.End = e.Text
		}
	}
	return s
}

type checker struct {
	g       *Group
	found   []Violation
	created Entry
	over    *Entry
	ops     []Entry           // submissions, by number
	done    []Entry           // completions, in the journal's order
	good    int               // promised operations are the first ones
	removed map[string]uint64 // by name, from which operation on
	added   map[string]uint64
	views   map[uint32][]string // members, by view
}

func (c *checker) fail(rule, member string, op uint64, format string, args ...any) {
	c.found = append(c.found, Violation{rule, c.g.Name, member, op, fmt.Sprintf(format, args...)})
}

// maxRegion bounds a region's size in a journal.
const maxRegion = 1 << 30

// read parses the sender's journal.
func (c *checker) read() bool {
	if len(c.g.Sender) == 0 {
		return true // it was killed before there was a group
	}
	begin := slices.IndexFunc(c.g.Sender, func(e Entry) bool { return e.What != View }) // the first view comes while the group is created
	if begin < 0 {
		return true // it was killed before it knew of the group
	}
	if c.created = c.g.Sender[begin]; c.created.What != Created {
		c.fail(RuleJournal, "", 0, "it begins with %q", c.created.What)
		return false
	}
	for i := range c.g.Sender {
		e := &c.g.Sender[i]
		if i == begin {
			continue
		}
		switch e.What {
		case View:
			c.views[e.View] = e.Members
		case Submit:
			if e.N != uint64(len(c.ops)) || !c.proper(e) {
				c.fail(RuleJournal, "", e.N, "%+v is submitted as operation %d", *e, len(c.ops))
				return false
			}
			c.ops = append(c.ops, *e)
		case Done:
			if e.N >= uint64(len(c.ops)) {
				c.fail(RuleJournal, "", e.N, "operation %d is done before it is submitted", e.N)
				return false
			}
			if _, told := c.views[e.View]; !told && e.Text == "" {
				c.fail(RuleView, "", e.N, "operation %d is completed in view %d, which the application has not been told", e.N, e.View)
			}
			c.done = append(c.done, *e)
		case Removed:
			if was, ok := c.removed[e.Member]; ok {
				c.fail(RuleJournal, e.Member, e.N, "it is removed twice, from operation %d and %d on", was, e.N)
			} else {
				c.removed[e.Member] = e.N
			}
		case Added:
			if _, ok := c.added[e.Member]; ok || slices.Contains(c.created.Members, e.Member) {
				c.fail(RuleJournal, e.Member, e.N, "it is added, and was a member before")
				return false
			}
			c.added[e.Member] = e.N
		case Over:
			c.over = e
		case Note:
		default:
			c.fail(RuleJournal, "", 0, "a sender's journal has %q", e.What)
			return false
		}
	}
	return true
}

// proper reports whether an operation is within its region.
func (c *checker) proper(e *Entry) bool {
	switch e.Kind {
	case Send, SendImm:
		return e.Size >= 0 && e.Size <= maxRegion
	case Write, WriteImm:
		if e.Region < 0 || e.Region >= len(c.created.Regions) {
			return false
		}
		n := c.created.Regions[e.Region]
		return n <= maxRegion && e.Size >= 0 && e.Size <= n && e.Offset >= 0 && e.Offset <= n-e.Size
	}
	return false
}

// completions checks the order, and the time that operations took.
func (c *checker) completions() {
	failed := false
	for i, d := range c.done {
		switch {
		case d.N != uint64(i):
			c.fail(RuleOrder, "", d.N, "completion %d is that of operation %d", i, d.N)
			return
		case d.Text == "" && failed:
			c.fail(RuleOrder, "", d.N, "it is complete, and one before it failed")
		case d.Text == "":
			c.good++
		}
		failed = failed || d.Text != ""
	}
	if !c.g.SenderLived {
		return
	}
	if n := len(c.ops) - len(c.done); n > 0 {
		c.fail(RuleHang, "", uint64(len(c.done)), "%d operations, from %d on, have no end", n, len(c.done))
	}
	if c.g.Bound > 0 {
		for i, d := range c.done {
			if took := d.At - max(c.ops[i].At, c.g.Quiet); took > c.g.Bound {
				c.fail(RuleHang, "", d.N, "operation %d took %d ms after the last fault", i, took/1000)
				break
			}
		}
	}
}

// membership checks which members were removed, and how many were left.
func (c *checker) membership() {
	if len(c.g.Sender) == 0 {
		return
	}
	changes := slices.Collect(maps.Values(c.added)) // where members change
	for name, n := range c.removed {
		if _, ok := c.first(name); !ok {
			c.fail(RuleJournal, name, n, "it is removed, and never was a member")
			continue
		}
		changes = append(changes, n)
		if !slices.Contains(c.g.Blamable, name) {
			c.fail(RuleBlame, name, n, "it was removed, and nothing was done to it")
		}
	}
	slices.Sort(changes)
	for _, n := range changes {
		if left := c.copies(n); n < uint64(c.good) && (left < c.created.MinSize || left < 2) {
			c.fail(RuleMinSize, "", n, "operation %d was completed with %d copies, min_size is %d", n, left, c.created.MinSize)
			break
		}
	}
	if !c.g.SenderLived {
		return
	}
	left := len(c.created.Members) + 1
	for _, name := range c.created.Members {
		if slices.Contains(c.g.Blamable, name) {
			left--
		}
	}
	switch {
	case c.over == nil:
		c.fail(RuleTold, "", 0, "the sender was not told that the group has ended")
	case c.good < len(c.ops) && !c.g.Doomed && left >= max(2, c.created.MinSize):
		c.fail(RuleFailure, "", uint64(c.good), "the group has failed, for no reason in what was done: %s", c.over.Text)
	}
}

// inViews checks that views only rise, and that the members of an operation's view are those that
// have it according to the events.
func (c *checker) inViews() {
	last := uint32(0)
	for _, d := range c.done[:c.good] {
		if d.View < last {
			c.fail(RuleView, "", d.N, "operation %d is completed in view %d, after view %d", d.N, d.View, last)
			return
		}
		last = d.View
		for _, name := range c.views[d.View] {
			if n, gone := c.removed[name]; gone && n <= d.N {
				c.fail(RuleView, name, d.N, "operation %d is completed in view %d, which has it as a member, and it was removed from operation %d on", d.N, d.View, n)
				return
			}
		}
	}
}

// first returns the first operation that a member has; false if it never was a member.
func (c *checker) first(name string) (n uint64, ok bool) {
	if slices.Contains(c.created.Members, name) {
		return 0, true
	}
	n, ok = c.added[name]
	return n, ok
}

// copies returns the number of copies of an operation, the sender's included.
func (c *checker) copies(op uint64) (n int) {
	n = 1
	for _, name := range slices.AppendSeq(slices.Clone(c.created.Members), maps.Keys(c.added)) {
		from, _ := c.first(name)
		until, gone := c.removed[name]
		if from <= op && (!gone || op < until) {
			n++
		}
	}
	return n
}

// member checks one member.
func (c *checker) member(m *Member) {
	joined := -1
	for i := range m.Lives {
		if !slices.ContainsFunc(m.Lives[i].Log, func(e Entry) bool { return e.What == Joined }) {
			continue
		}
		if joined >= 0 {
			c.fail(RuleReturn, m.Name, 0, "its process %d is in the group, as process %d had been before", i, joined)
			return
		}
		joined = i
	}
	promised := c.good
	if n, ok := c.removed[m.Name]; ok {
		promised = int(min(uint64(promised), n))
	}
	from, member := c.first(m.Name)
	first := int(min(from, uint64(len(c.ops)))) //nolint:gosec // no more than exist
	if joined < 0 {
		if promised > first && member {
			c.fail(RuleMemory, m.Name, 0, "%d operations are promised, and it never was in the group", promised)
		}
		return
	}
	life := &m.Lives[joined]
	if !member {
		// It was about to join when the group or the sender ended.
		if c.g.SenderLived && !c.g.Doomed && c.over != nil && c.good == len(c.ops) {
			c.fail(RuleTold, m.Name, 0, "it is in the group, and the sender was not told")
		}
		return
	}
	c.messages(m.Name, life, first, promised)
	for i := range c.created.Regions {
		if i >= len(life.Regions) || len(life.Regions[i]) != c.created.Regions[i] {
			c.fail(RuleMemory, m.Name, 0, "region %d is not there", i)
			continue
		}
		c.memory(m.Name, i, life.Regions[i], first, promised)
	}
}

// messages checks the messages that a member has received.
func (c *checker) messages(name string, l *Life, first, promised int) {
	var sent []Entry // submissions of messages
	due := 0         // of them promised
	for i, o := range c.ops {
		if o.Kind != Write && i >= first {
			sent = append(sent, o)
			if i < promised {
				due++
			}
		}
	}
	got, ended := 0, false
	for _, e := range l.Log {
		switch e.What {
		case Ended:
			ended = true
		case Receive:
			if got >= len(sent) {
				c.fail(RuleMessage, name, 0, "it took message %d, and %d were sent", got, len(sent))
				return
			}
			if want := c.message(&sent[got]); e.Kind != want.Kind || e.Size != want.Size || e.Imm != want.Imm || e.Sum != want.Sum {
				c.fail(RuleMessage, name, sent[got].N, "message %d is %s, and should be operation %d, %s%s",
					got, describe(&e), sent[got].N, describe(&want), c.instead(&e, sent))
				return
			}
			got++
		}
	}
	if !l.Lived {
		return
	}
	if !ended {
		c.fail(RuleTold, name, 0, "it was not told that its membership has ended")
	}
	if got < due {
		c.fail(RuleMessage, name, sent[got].N, "it took %d messages, and %d are promised; operation %d, %s, is the first that is lost", got, due, sent[got].N, sent[got].Kind)
	}
}

// message returns a submission as an entry of its receiver.
func (c *checker) message(o *Entry) Entry {
	e := Entry{Kind: o.Kind, Size: o.Size, Imm: o.Imm}
	if o.Kind != WriteImm {
		b := make([]byte, o.Size)
		Fill(b, c.g.Key, o.N)
		e.Sum = Sum(b)
	}
	return e
}

func describe(e *Entry) string {
	return fmt.Sprintf("%s of %d bytes (imm %d, sum %08x)", e.Kind, e.Size, e.Imm, e.Sum)
}

// instead says which operation a message is.
func (c *checker) instead(e *Entry, sent []Entry) string {
	for i := range sent {
		if sent[i].Kind == e.Kind && sent[i].Size == e.Size && sent[i].Imm == e.Imm && c.message(&sent[i]).Sum == e.Sum {
			return fmt.Sprintf("; it is operation %d, message %d", sent[i].N, i)
		}
	}
	return "; it is none that was sent"
}

// memory compares a region with the result of the promised operations.
func (c *checker) memory(name string, region int, has []byte, first, promised int) {
	want := make([]byte, len(has))
	for i := first; i < promised; i++ {
		if o := &c.ops[i]; o.in(region) {
			Fill(want[o.Offset:o.Offset+o.Size], c.g.Key, o.N)
		}
	}
	if bytes.Equal(want, has) {
		return
	}
	wrong, n := make([]bool, len(has)), 0
	for i := range has {
		if want[i] != has[i] {
			wrong[i] = true
			n++
		}
	}
	// Operations that are not promised may have arrived, also in part.
	for i := max(first, promised); i < len(c.ops) && n > 0; i++ {
		o := &c.ops[i]
		if !o.in(region) || !slices.Contains(wrong[o.Offset:o.Offset+o.Size], true) {
			continue
		}
		Fill(want[o.Offset:o.Offset+o.Size], c.g.Key, o.N)
		for at := o.Offset; at < o.Offset+o.Size; at++ {
			if wrong[at] && want[at] == has[at] {
				wrong[at] = false
				n--
			}
		}
	}
	if n == 0 {
		return
	}
	at := slices.Index(wrong, true)
	for i := promised - 1; i >= first; i-- {
		if o := &c.ops[i]; o.in(region) && at >= o.Offset && at < o.Offset+o.Size {
			c.fail(RuleMemory, name, o.N, "%d bytes of region %d are wrong, the first at %d, where promised operation %d should be (of %d promised, %d submitted)",
				n, region, at, o.N, promised, len(c.ops))
			return
		}
	}
	c.fail(RuleMemory, name, 0, "%d bytes of region %d are wrong, the first at %d, where nothing was promised", n, region, at)
}

// in says whether an operation writes to a region.
func (e *Entry) in(region int) bool {
	return e.Region == region && (e.Kind == Write || e.Kind == WriteImm)
}
