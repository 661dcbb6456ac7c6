package pipeline

// An Offload processes packets of a pipeline elsewhere, by the tables that the control plane writes
// here. It is notified of changes, and called before the control plane reads state that packets
// change. It owns the registers that it refreshes.
type Offload interface {
	// EntryChanged is called after an entry was inserted, modified, or (gone) deleted.
	EntryChanged(t *Table, e *Entry, gone bool)
	// SettingChanged is called after the default entry of a table has changed.
	SettingChanged(t *Table)
	// GroupChanged is called after a selector's group, or a member, has changed. This may change
	// the actions of entries that use p.
	GroupChanged(p *Profile)
	// Counting is called before e.Counts is read or set.
	Counting(e *Entry)
	// CounterUsed is called before cell i is read or set.
	CounterUsed(c *Counter, i int)
	// RegisterUsed is called before cell i is read or set, RegisterSet after it was set.
	RegisterUsed(r *Register, i int)
	RegisterSet(r *Register, i int)
}

// SetOffload sets the pipeline's Offload; nil, as initially, means none.
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

// Counted updates and returns an entry's Counts.
func (e *Entry) Counted() Counts {
	if e.table != nil && e.table.s.offload != nil {
		e.table.s.offload.Counting(e)
	}
	return e.Counts
}

// Add adds counts from elsewhere to an entry's counter.
func (e *Entry) Add(n Counts) { e.Packets, e.Bytes = e.Packets+n.Packets, e.Bytes+n.Bytes }

// Add adds counts from elsewhere to cell i, which must exist.
func (c *Counter) Add(i int, n Counts) {
	c.cells[i].Packets += n.Packets
	c.cells[i].Bytes += n.Bytes
}

// Refresh sets cell i, of up to 64 bits, to its value elsewhere. The cell must exist.
func (r *Register) Refresh(i int, v uint64) { r.write(uint64(i), v) }

// Cell returns the local value of cell i, of up to 64 bits. The cell must exist.
func (r *Register) Cell(i int) uint64 { return r.cells[i] }
