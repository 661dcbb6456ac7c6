package p4rtserver

import (
	"fmt"
	"slices"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// An index is a P4Info made ready: every id resolved to the program's object of
// the same name. It is immutable.
type index struct {
	kinds map[uint32]string // of all objects, for messages: "table ingress.t"

	tables    map[uint32]*table
	actions   map[uint32]*action
	profiles  map[uint32]*profile
	counters  map[uint32]*array
	meters    map[uint32]*meter
	registers map[uint32]*register
	valueSets map[uint32]*valueSet
	digests   map[uint32]*digest
	direct    map[uint32]*resource // direct counters and meters

	// The same in the order of the P4Info, for reading all of a kind.
	tableList    []*table
	profileList  []*profile
	counterList  []*array
	meterList    []*meter
	registerList []*register
	valueSetList []*valueSet
	digestList   []*digest

	byTable   []*table // by the program's table; nil if the P4Info has none
	byState   map[*pipeline.Table]*table
	byDigest  []*digest // by the program's digest
	packetIn  *packetHeader
	packetOut *packetHeader
}

// A table is one of the P4Info's tables.
type table struct {
	id          uint32
	name        string
	state       *pipeline.Table
	prog        int // index into Program.Tables
	key         keyReader
	actions     []tableAction
	prioritised bool // has an optional, ternary or range field
	constant    bool
	idle        bool
	profile     *profile // nil: direct
	counter     *resource
	meter       *resource
	constAction bool       // the default action cannot be changed
	initial     *p4.Action // the P4Info's initial default action
}

func (t *table) String() string { return "table " + t.name }

// A field is a field of a key.
type field struct {
	id   uint32
	name string
	kind p4cfg.MatchField_MatchType
	bits int
}

func (f *field) String() string { return fmt.Sprintf("field %d (%s)", f.id, f.name) }

// findField finds a field by its id, or returns -1. It looks first where compilers put the field: ids ascend from 1.
func findField(fields []field, byID []int, id uint32) int {
	if i := int(id) - 1; i >= 0 && i < len(byID) {
		if at := byID[i]; fields[at].id == id {
			return at
		}
	}
	return slices.IndexFunc(fields, func(f field) bool { return f.id == id })
}

// A tableAction is an action as a table may call it: bmv2's JSON has a copy of
// an action for each table.
type tableAction struct {
	*action
	prog  int // index into Program.Actions
	scope p4cfg.ActionRef_Scope
}

// action finds one of a list of actions by the P4Info's id.
func findAction(list []tableAction, id uint32) *tableAction {
	for i := range list {
		if list[i].id == id {
			return &list[i]
		}
	}
	return nil
}

// byProgram finds one of a list of actions by the program's index.
func byProgram(list []tableAction, prog int) *tableAction {
	for i := range list {
		if list[i].prog == prog {
			return &list[i]
		}
	}
	return nil
}

// An action is one of the P4Info's actions.
type action struct {
	id     uint32
	name   string
	params []field // in the program's order; kind is not used
	byID   []int
	words  int
}

func (a *action) String() string { return "action " + a.name }

// A profile is an action profile, with a selector or without.
type profile struct {
	id        uint32
	name      string
	selector  bool
	size      int64
	maxGroup  int32
	byMembers bool // sum_of_members instead of sum_of_weights
	maxWeight int32
	noWeights bool
	tables    []*table
	actions   []tableAction // of its tables, which have the same
	state     *pipeline.Profile
}

func (p *profile) String() string { return "action profile " + p.name }

// An array is an indexed counter.
type array struct {
	state *pipeline.Counter
	id    uint32
	name  string
	size  int
}

func (a *array) String() string { return "counter " + a.name }

// A meter is an indexed meter.
type meter struct {
	state *pipeline.Meter
	id    uint32
	name  string
	size  int
	kind  p4cfg.MeterSpec_Type
}

func (m *meter) String() string { return "meter " + m.name }

// A resource is a direct counter or a direct meter.
type resource struct {
	id   uint32
	what string // "direct counter ingress.c"
	kind p4cfg.MeterSpec_Type
}

// A register is a register array.
type register struct {
	state *pipeline.Register
	id    uint32
	name  string
	size  int
	bits  int
	data  *dataType
}

func (r *register) String() string { return "register " + r.name }

// A valueSet is a parser value set.
type valueSet struct {
	state *pipeline.ValueSet
	id    uint32
	name  string
	size  int
	key   keyReader
}

func (v *valueSet) String() string { return "value set " + v.name }

// A digest is a format of digests.
type digest struct {
	id   uint32
	name string
	data *dataType
	bits []int // of the program's fields
}

func (d *digest) String() string { return "digest " + d.name }

// kindOf describes an id for messages.
func (x *index) kindOf(id uint32) string {
	if k, ok := x.kinds[id]; ok {
		return k
	}
	return "nothing in the P4Info"
}

// noSuch is the error for an id that is not one of a kind.
func (x *index) noSuch(kind string, id uint32) error {
	if id == 0 {
		return invalid("no %s id is given", kind)
	}
	return invalid("there is no %s with id %d (0x%08x): that is %s", kind, id, id, x.kindOf(id))
}

// newIndex resolves a P4Info against the program that it should belong to. The
// error lists what does not fit together, by name.
func newIndex(info *p4cfg.P4Info, prog *program.Program) (*index, error) {
	b := &indexer{
		index: &index{
			kinds:     map[uint32]string{},
			tables:    map[uint32]*table{},
			actions:   map[uint32]*action{},
			profiles:  map[uint32]*profile{},
			counters:  map[uint32]*array{},
			meters:    map[uint32]*meter{},
			registers: map[uint32]*register{},
			valueSets: map[uint32]*valueSet{},
			digests:   map[uint32]*digest{},
			direct:    map[uint32]*resource{},
			byTable:   make([]*table, len(prog.Tables)),
			byDigest:  make([]*digest, len(prog.Digests)),
		},
		info: info,
		prog: prog,
	}
	b.common()
	b.readActions()
	b.readProfiles()
	b.readTables()
	b.finishProfiles()
	b.readArrays()
	b.readDirect()
	b.readValueSets()
	b.readRegisters()
	b.readDigests()
	b.readPacketHeaders()
	if err := b.result(); err != nil {
		return nil, err
	}
	return b.index, nil
}

// bind gives the index the objects of the pipeline. All are there: the index was
// made from the same program.
func (x *index) bind(p *pipeline.Pipeline) {
	x.byState = make(map[*pipeline.Table]*table, len(x.tableList))
	for _, t := range x.tableList {
		t.state = p.Table(t.name)
		x.byState[t.state] = t
	}
	for _, c := range x.profileList {
		c.state = p.Profile(c.name)
	}
	for _, c := range x.counterList {
		c.state = p.Counter(c.name)
	}
	for _, m := range x.meterList {
		m.state = p.Meter(m.name)
	}
	for _, r := range x.registerList {
		r.state = p.Register(r.name)
	}
	for _, v := range x.valueSetList {
		v.state = p.ValueSet(v.name)
	}
}

// notModify refuses an update of what can only be modified.
func notModify(what string, kind p4.Update_Type) error {
	return invalid("%s: %v is not possible: it can only be modified", what, kind)
}
