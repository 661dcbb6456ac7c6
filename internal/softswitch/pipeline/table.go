package pipeline

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Ref is the kind of an entry's reference.
type Ref uint8

// Kinds of references. RefNone is for entries that call an action directly.
const (
	RefNone   Ref = iota
	RefMember     // a member of the table's profile
	RefGroup      // a group of the table's selector
	RefSet        // actions of its own to select from (one-shot)
)

// Entry is an entry of a table. The caller fills in the first part and passes it to Insert; then it
// belongs to the table and must be changed with Modify only, except for the fields from Counts on.
type Entry struct {
	Key         match.Key
	Priority    int32 // the largest wins; 1 or more if there are ternary or range fields, else 0
	Call        Call  // of a direct table (RefNone)
	Ref         Ref   // of a table with a profile
	Member      uint32
	Group       uint32
	Set         []Weighted
	IdleTimeout time.Duration // 0: none
	Cookie      any           // for the caller's use
	Meter       MeterConfig   // direct meter; after Insert, change it with SetMeter

	Counts                // direct counter; continues from the value passed to Insert
	LastHit time.Duration // pipeline time of the last packet; Insert's caller sets it to now

	table *Table
	act   *bound  // RefNone
	mem   *Member // RefMember
	group *Group  // RefGroup
	sel   *choice // RefSet

	meter    *meterCell    // nil: not configured, as for most entries
	deadline time.Duration // when to check LastHit again
	reported time.Duration // when it was last reported idle, or never
	heapAt   int           // index in the idle queue plus 1; 0: not in it
}

// Table holds a table's entries and its default entry.
type Table struct {
	s        *state
	info     *program.Table
	profile  *Profile // nil: direct
	engine   *match.Table[*Entry]
	keyAt    []int // first word of each key field, for lookup
	keyWords int
	def      *Entry // nil: no action on a miss
	isConst  bool
	bytes    bool // the direct meter counts bytes
}

func newTable(s *state, info *program.Table) *Table {
	t := &Table{s: s, info: info, isConst: len(info.Entries) > 0}
	specs := make([]match.Spec, len(info.Key))
	for i, f := range info.Key {
		specs[i] = match.Spec{Kind: match.Kind(f.Match), Bits: f.Bits}
		t.keyAt = append(t.keyAt, t.keyWords)
		t.keyWords += match.Words(f.Bits)
	}
	size := info.Size
	if t.isConst {
		size = 0
	}
	t.engine = match.New[*Entry](specs, size)
	if info.Profile != program.None {
		t.profile = s.profiles[info.Profile]
		t.profile.tables = append(t.profile.tables, info)
	}
	if info.Meter != program.None {
		t.bytes = s.prog.Meters[info.Meter].Bytes
	}
	return t
}

// addConst adds the program's const entries and default entry.
func (t *Table) addConst() error {
	if err := t.ResetDefault(); err != nil {
		return err
	}
	for _, c := range t.info.Entries {
		e := &Entry{Key: make(match.Key, len(c.Key)), Call: t.s.fromProgram(c.Call)}
		for i, k := range c.Key {
			f := &t.info.Key[i]
			e.Key[i].Value = match.FromBig(k.Value, f.Bits)
			switch f.Match {
			case program.LPM:
				e.Key[i].PrefixLen = k.PrefixLen
			case program.Ternary:
				e.Key[i].Mask = match.FromBig(k.Mask, f.Bits)
			case program.Range:
				e.Key[i].High = match.FromBig(k.High, f.Bits)
			}
		}
		if t.engine.Prioritized() {
			e.Priority = int32(math.MaxInt32 - c.Priority) // as bmv2 shows it to controllers
		}
		if err := t.insert(e); err != nil {
			return err
		}
	}
	return nil
}

// Info returns the table's declaration.
func (t *Table) Info() *program.Table { return t.info }

// Len returns the number of entries, the default not counted.
func (t *Table) Len() int { return t.engine.Len() }

// All yields all entries except the default, in a deterministic order. The entry yielded last may
// be deleted during the iteration.
func (t *Table) All() iter.Seq[*Entry] { return t.engine.All() }

// Find returns the entry with this key and priority, or nil. The entry still belongs to the table;
// see Entry.
func (t *Table) Find(key match.Key, prio int32) *Entry {
	e, _ := t.engine.Find(key, prio)
	return e
}

// Exactly returns the entry whose exact fields, of up to 64 bits each, have these values, or nil.
func (t *Table) Exactly(values ...uint64) *Entry {
	k := make(match.Key, len(values))
	for i, v := range values {
		k[i].Value = match.Value{v}
	}
	return t.Find(k, 0)
}

// Insert adds an entry. Errors: ErrExists, ErrFull, ErrConst, ErrNotFound for a reference to a
// missing member or group, and ErrInvalid.
func (t *Table) Insert(e *Entry) error {
	if err := t.changeable(); err != nil {
		return err
	}
	return t.insert(e)
}

func (t *Table) changeable() error {
	if t.isConst {
		return fmt.Errorf("table %s: %w: its entries are those of the program", t.info.Name, ErrConst)
	}
	return nil
}

func (t *Table) insert(e *Entry) error {
	switch {
	case len(t.info.Key) == 0:
		return fmt.Errorf("table %s: %w: it has no key, hence no entries but the default", t.info.Name, ErrInvalid)
	case t.engine.Prioritized() && e.Priority <= 0:
		return fmt.Errorf("table %s: key %s: %w: priority %d: give 1 or more", t.info.Name, t.keyString(e.Key), ErrInvalid, e.Priority)
	}
	if err := t.checkMeter(e.Meter); err != nil {
		return err
	}
	if err := t.bindEntry(e); err != nil {
		return err
	}
	e.table = t
	if err := t.engine.Insert(e.Key, e.Priority, e); err != nil {
		return t.keyError(e.Key, e.Priority, err)
	}
	e.meter = newCell(e.Meter)
	t.hold(e, 1)
	e.reported, e.heapAt = never, 0
	t.s.idle.schedule(e)
	t.changed(e, false)
	return nil
}

// Modify replaces the action, timeout and cookie of the entry with e's key and priority by e's. Its
// counters and meter stay; LastHit becomes e's if that is later. The caller keeps e. Errors: those
// of Insert, and ErrNotFound.
func (t *Table) Modify(e *Entry) error {
	if err := t.changeable(); err != nil {
		return err
	}
	old := t.Find(e.Key, e.Priority)
	if old == nil {
		return t.notFound(e.Key, e.Priority)
	}
	n := *e
	t.hold(old, -1) // first, to free what it uses of the profile for the new entry
	if err := t.bindEntry(&n); err != nil {
		t.hold(old, 1)
		return err
	}
	t.hold(&n, 1)
	old.Call, old.Ref, old.Member, old.Group, old.Set = n.Call, n.Ref, n.Member, n.Group, n.Set
	old.act, old.mem, old.group, old.sel = n.act, n.mem, n.group, n.sel
	old.Cookie, old.IdleTimeout = n.Cookie, n.IdleTimeout
	old.LastHit = max(old.LastHit, n.LastHit)
	t.s.idle.schedule(old)
	t.changed(old, false)
	return nil
}

// Delete removes the entry with this key and priority. Errors: ErrNotFound,
// ErrConst, ErrInvalid.
func (t *Table) Delete(key match.Key, prio int32) error {
	if err := t.changeable(); err != nil {
		return err
	}
	e, ok := t.engine.Delete(key, prio)
	if !ok {
		return t.notFound(key, prio)
	}
	t.hold(e, -1)
	t.s.idle.drop(e)
	t.changed(e, true)
	return nil
}

// SetDefault sets the action for packets that match no entry. Counter and meter of the default
// entry stay. Errors: ErrConst, ErrInvalid.
func (t *Table) SetDefault(c Call) error {
	if d := t.info.Default; d != nil {
		switch {
		case d.ConstEntry:
			return fmt.Errorf("table %s: default entry: %w: it is the program's", t.info.Name, ErrConst)
		case d.ConstAction && d.Call.Action != c.Action:
			return fmt.Errorf("table %s: default entry: %w: the action can only be %s", t.info.Name, ErrConst, t.s.actionName(d.Call.Action))
		}
	}
	return t.setDefault(c)
}

func (t *Table) setDefault(c Call) error {
	b, err := t.s.bind(t.info.Actions, c)
	if err != nil {
		return fmt.Errorf("table %s: default entry: %w", t.info.Name, err)
	}
	if t.def == nil {
		t.def = &Entry{table: t}
	}
	t.def.Call, t.def.act = c, b
	if o := t.s.offload; o != nil {
		o.SettingChanged(t)
	}
	return nil
}

// ResetDefault restores the program's initial default entry, if any.
func (t *Table) ResetDefault() error {
	d := t.info.Default
	if d == nil {
		t.def = nil
		return nil
	}
	return t.setDefault(t.s.fromProgram(d.Call))
}

// DefaultEntry returns the default entry; nil if there is none. Change its action with SetDefault
// only.
func (t *Table) DefaultEntry() *Entry { return t.def }

// SetMeter configures the direct meter of an entry of the table, the default
// entry included, and fills its buckets. Errors: ErrInvalid.
func (t *Table) SetMeter(e *Entry, c MeterConfig) error {
	if err := t.checkMeter(c); err != nil {
		return err
	}
	e.Meter, e.meter = c, newCell(c)
	return nil
}

func (t *Table) checkMeter(c MeterConfig) error {
	if c.Set && t.info.Meter == program.None {
		return fmt.Errorf("table %s: %w: it has no direct meter", t.info.Name, ErrInvalid)
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("table %s: direct meter: %w", t.info.Name, err)
	}
	return nil
}

// bindEntry checks an entry's action or reference and prepares it for packets.
func (t *Table) bindEntry(e *Entry) error {
	e.act, e.mem, e.group, e.sel = nil, nil, nil, nil
	if e.IdleTimeout < 0 || e.IdleTimeout > 0 && !t.info.Timeout {
		return fmt.Errorf("table %s: key %s: %w: idle time-out %v: the table supports none", t.info.Name, t.keyString(e.Key), ErrInvalid, e.IdleTimeout)
	}
	var err error
	switch {
	case e.Ref == RefNone && t.profile == nil:
		e.act, err = t.s.bind(t.info.Actions, e.Call)
	case e.Ref == RefNone:
		err = fmt.Errorf("%w: entries refer to members or groups of %s", ErrInvalid, t.profile.info.Name)
	case t.profile == nil:
		err = fmt.Errorf("%w: entries call actions; there is no profile", ErrInvalid)
	case e.Ref == RefMember:
		e.mem, err = t.profile.member(e.Member)
	case e.Ref == RefGroup:
		e.group, err = t.profile.groupOf(e.Group)
	case e.Ref == RefSet:
		e.sel, err = t.profile.bindSet(e.Set)
	default:
		err = fmt.Errorf("%w: reference of unknown kind %d", ErrInvalid, e.Ref)
	}
	if err != nil {
		return fmt.Errorf("table %s: key %s: %w", t.info.Name, t.keyString(e.Key), err)
	}
	return nil
}

// hold adds an entry to the user counts of what it refers to (n = 1), or removes it (−1).
func (t *Table) hold(e *Entry, n int) {
	switch e.Ref {
	case RefMember:
		e.mem.users += n
	case RefGroup:
		e.group.users += n
	case RefSet:
		t.profile.oneShot += n * len(e.Set)
	}
}

func (t *Table) notFound(key match.Key, prio int32) error {
	if err := t.engine.Check(key, prio); err != nil {
		return t.keyError(key, prio, err)
	}
	return fmt.Errorf("table %s: key %s%s: entry %w", t.info.Name, t.keyString(key), prioString(prio), ErrNotFound)
}

// keyError converts an error of the match engine to this package's.
func (t *Table) keyError(key match.Key, prio int32, err error) error {
	kind := ErrInvalid
	switch {
	case errors.Is(err, match.ErrExists):
		return fmt.Errorf("table %s: key %s%s: entry %w", t.info.Name, t.keyString(key), prioString(prio), ErrExists)
	case errors.Is(err, match.ErrFull):
		kind = ErrFull
	}
	return fmt.Errorf("table %s: key %s: %w: %w", t.info.Name, t.keyString(key), kind, err)
}

func prioString(prio int32) string {
	if prio == 0 {
		return ""
	}
	return fmt.Sprintf(", priority %d", prio)
}

// keyString formats a key for messages, even an invalid one.
func (t *Table) keyString(k match.Key) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range k {
		if i > 0 {
			b.WriteString(", ")
		}
		if i >= len(t.info.Key) {
			b.WriteString("…")
			break
		}
		f, info := &k[i], &t.info.Key[i]
		fmt.Fprintf(&b, "%s=%v", info.Name, f.Value)
		switch info.Match {
		case program.LPM:
			fmt.Fprintf(&b, "/%d", f.PrefixLen)
		case program.Ternary:
			fmt.Fprintf(&b, "&&&%v", f.Mask)
		case program.Range:
			fmt.Fprintf(&b, "..%v", f.High)
		}
	}
	b.WriteByte('}')
	return b.String()
}

// For packets.

// lookup returns the entry for a packet with these key words (field i starts at keyAt[i]), or nil
// on a miss; then the default entry t.def applies, if any.
func (t *Table) lookup(words []uint64) *Entry {
	e, _ := t.engine.Lookup(words)
	return e
}

// hit counts a packet for its entry.
func (e *Entry) hit(now time.Duration, bytes int) {
	e.add(bytes)
	e.LastHit = now
}

// selects reports whether bound depends on the hash.
func (e *Entry) selects() bool { return e.Ref >= RefGroup }

// bound returns the entry's action, selected by the hash if the entry selects; nil if its group is
// empty, or all watched ports are down.
func (e *Entry) bound(hash uint64) *bound {
	switch e.Ref {
	case RefNone:
		return e.act
	case RefMember:
		return e.mem.act
	case RefGroup:
		return e.group.sel.pick(hash)
	}
	return e.sel.pick(hash)
}

// mark runs the entry's direct meter and returns the packet's color.
func (e *Entry) mark(now time.Duration, bytes int) int {
	if e.meter == nil {
		return green
	}
	if !e.table.bytes {
		bytes = 1
	}
	return e.meter.mark(now, int64(bytes))
}
