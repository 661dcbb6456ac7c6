package pipeline

import (
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// state is the state of a program between packets, and the control plane's view: tables, action
// profiles, counters, meters, registers, value sets, digests. Packets use it by index (the slices
// are parallel to the program's), the control plane by name. It is not safe for concurrent use.
type state struct {
	prog      *program.Program
	argOffset [][]int // by action and parameter: its first word in bound.args
	argWords  []int   // by action
	tables    []*Table
	profiles  []*Profile
	counters  []*Counter
	meters    []*Meter
	registers []*Register
	valueSets []*ValueSet
	digests   digests
	idle      idleQueue
	ports     ports
	offload   Offload // nil: none
	badIndex  uint64  // accesses to counters, meters and registers out of range

	tableNames    map[string]*Table
	profileNames  map[string]*Profile
	counterNames  map[string]*Counter
	meterNames    map[string]*Meter
	registerNames map[string]*Register
	valueSetNames map[string]*ValueSet
}

// newState returns the initial state of a program: const entries and default actions, all else
// empty or zero. It returns an error if const entries contradict each other.
func newState(p *program.Program) (*state, error) {
	s := &state{prog: p}
	s.argOffset = make([][]int, len(p.Actions))
	s.argWords = make([]int, len(p.Actions))
	for i, a := range p.Actions {
		s.argOffset[i] = make([]int, len(a.Params))
		for j, prm := range a.Params {
			s.argOffset[i][j] = s.argWords[i]
			s.argWords[i] += match.Words(prm.Bits)
		}
	}
	s.profiles, s.profileNames = build(p.Profiles, func(x *program.Profile) (string, *Profile) { return x.Name, newProfile(s, x) })
	s.counters, s.counterNames = build(p.Counters, func(x *program.Counter) (string, *Counter) { return x.Name, newCounter(s, x) })
	s.meters, s.meterNames = build(p.Meters, func(x *program.Meter) (string, *Meter) { return x.Name, newMeter(s, x) })
	s.registers, s.registerNames = build(p.Registers, func(x *program.Register) (string, *Register) { return x.Name, newRegister(s, x) })
	s.valueSets, s.valueSetNames = build(p.ValueSets, func(x *program.ValueSet) (string, *ValueSet) { return x.Name, newValueSet(x) })
	s.tables, s.tableNames = build(p.Tables, func(x *program.Table) (string, *Table) { return x.Name, newTable(s, x) })
	for _, t := range s.tables {
		if err := t.addConst(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// build makes one object for each declaration, and a map by name.
func build[D, O any](decls []D, make1 func(*D) (string, *O)) ([]*O, map[string]*O) {
	all, names := make([]*O, len(decls)), make(map[string]*O, len(decls))
	for i := range decls {
		name, o := make1(&decls[i])
		all[i], names[name] = o, o
	}
	return all, names
}

// Table returns the table of that name, or nil. Here and in the following methods, names are those
// of the program.Program.
func (s *state) Table(name string) *Table { return s.tableNames[name] }

// Profile returns the action profile or selector of that name, or nil.
func (s *state) Profile(name string) *Profile { return s.profileNames[name] }

// Counter returns the counter array of that name, or nil. A direct counter has
// no array; its values are in the table's entries.
func (s *state) Counter(name string) *Counter { return s.counterNames[name] }

// Meter returns the meter array of that name, or nil. A direct meter has no
// array; its cells are in the table's entries.
func (s *state) Meter(name string) *Meter { return s.meterNames[name] }

// Register returns the register array of that name, or nil.
func (s *state) Register(name string) *Register { return s.registerNames[name] }

// ValueSet returns the parser value set of that name, or nil.
func (s *state) ValueSet(name string) *ValueSet { return s.valueSetNames[name] }

// Program returns the state's program.
func (s *state) Program() *program.Program { return s.prog }

// Expired is an entry that no packet has hit for at least its timeout.
type Expired struct {
	Table *Table
	Entry *Entry
}

// Expired returns the entries that no packet has hit for at least their timeout by now (pipeline
// time), and again after each further timeout (P4Runtime, "Table Idle Timeout Notification"). The
// work is proportional to the number of due entries, not of all entries.
func (s *state) Expired(now time.Duration) []Expired { return s.idle.expired(now) }
