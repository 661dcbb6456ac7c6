package pipeline

// An Offload processes packets of a pipeline somewhere else, by what the control plane
// writes here. It is told what changes, and asked before what packets change is seen. It
// owns the registers that it refreshes.
type Offload interface {
	// EntryChanged is called after an entry was inserted or modified, or (gone) deleted.
	EntryChanged(t *Table, e *Entry, gone bool)
	// SettingChanged is called after the default entry of a table has changed.
	SettingChanged(t *Table)
	// GroupChanged is called after a group of a selector, or a member, has changed; entries of p
	// may do something else from now on.
	GroupChanged(p *Profile)
	// Counting is called before e.Counts is read or set.
	Counting(e *Entry)
	// CounterUsed is called before cell i is read or set.
	CounterUsed(c *Counter, i int)
	// RegisterUsed is called before cell i is read or set, RegisterSet after it was set.
	RegisterUsed(r *Register, i int)
	RegisterSet(r *Register, i int)
}

// SetOffload makes o the pipeline's; nil: there is none, as at first.
func (s *state) SetOffload(o Offload) { s.offload = o }

func (t *Table) changed(e *Entry, gone bool) {
	if o := t.s.offload; o != nil {
		o.EntryChanged(t, e, gone)
	}
}

func (p *Profile) changed() {
	if o := p.s.offload; o != nil {
		o.GroupChanged(p)
	}
}

// Counted returns what an entry of a table has counted. Its Counts are that then.
func (e *Entry) Counted() Counts {
	if e.table != nil && e.table.s.offload != nil {
		e.table.s.offload.Counting(e)
	}
	return e.Counts
}

// Add adds to an entry's counter what was counted elsewhere.
func (e *Entry) Add(n Counts) { e.Packets, e.Bytes = e.Packets+n.Packets, e.Bytes+n.Bytes }

// Add adds to cell i what was counted elsewhere. There must be such a cell.
func (c *Counter) Add(i int, n Counts) {
	c.cells[i].Packets += n.Packets
	c.cells[i].Bytes += n.Bytes
}

// Refresh sets cell i, of up to 64 bits, to what it is elsewhere. There must be such a cell.
func (r *Register) Refresh(i int, v uint64) { r.write(uint64(i), v) }

// Cell returns cell i, of up to 64 bits, as it is here. There must be such a cell.
func (r *Register) Cell(i int) uint64 { return r.cells[i] }
