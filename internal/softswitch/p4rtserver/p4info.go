package p4rtserver

import (
	"cmp"
	"fmt"
	"slices"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// An index is a P4Info with every id resolved to the pipeline's object of the same name. It does
// not change, except for the members and groups of profiles.
type index struct {
	kinds map[uint32]string // of all objects, for messages: "table ingress.t"

	tables    objects[table]
	actions   map[uint32]*action
	profiles  objects[profile]
	counters  objects[counter]
	meters    objects[meter]
	registers objects[register]
	valueSets objects[valueSet]
	digests   objects[digest]

	byState   map[*pipeline.Table]*table
	byDigest  []*digest // by the program's digest
	packetIn  *packetHeader
	packetOut *packetHeader
}

// An object is the common part of all objects of a P4Info.
type object struct {
	kind string
	id   uint32
	name string
}

func (o object) String() string { return o.kind + " " + o.name }

// objects are the objects of one kind.
type objects[T any] struct {
	kind  string
	kinds map[uint32]string // the index's
	byID  map[uint32]*T
	list  []*T // in the order of the P4Info
}

func newObjects[T any](x *index, kind string) objects[T] {
	return objects[T]{kind: kind, kinds: x.kinds, byID: map[uint32]*T{}}
}

// find returns the object with an id.
func (o *objects[T]) find(id uint32) (*T, error) {
	if x := o.byID[id]; x != nil {
		return x, nil
	}
	if id == 0 {
		return nil, invalid("no %s id is given", o.kind)
	}
	return nil, invalid("there is no %s with id %d (0x%08x): that is %s", o.kind, id, id, kindOf(o.kinds, id))
}

// selected returns the object with an id, or all objects if id is 0.
func (o *objects[T]) selected(id uint32) ([]*T, error) {
	if id == 0 {
		return o.list, nil
	}
	x, err := o.find(id)
	return []*T{x}, err
}

// modified finds an object that can only be modified.
func (o *objects[T]) modified(id uint32, kind p4.Update_Type) (*T, error) {
	x, err := o.find(id)
	if err == nil && kind != p4.Update_MODIFY {
		err = notModify(o.kinds[id], kind)
	}
	return x, err
}

// notModify is the error of another update than a modification of such an object.
func notModify(what string, kind p4.Update_Type) error {
	return invalid("%s: %v is not possible: it can only be modified", what, kind)
}

// kindOf describes an id for messages.
func kindOf(kinds map[uint32]string, id uint32) string {
	return cmp.Or(kinds[id], "nothing in the P4Info")
}

// A table is one of the P4Info's tables.
type table struct {
	object
	state       *pipeline.Table
	key         keyReader
	actions     []tableAction
	prioritized bool // has an optional, ternary or range field
	constant    bool
	idle        bool
	profile     *profile // nil: direct
	counter     *resource
	meter       *resource
	constAction bool       // the default action is const
	initial     *p4.Action // the P4Info's initial default action
}

// A field is a field of a key.
type field struct {
	id   uint32
	name string
	kind p4cfg.MatchField_MatchType
	bits int
}

func (f *field) String() string { return fmt.Sprintf("field %d (%s)", f.id, f.name) }

// findField finds a field by its id, or returns -1. It first tries the position at which compilers
// put the field: ids ascend from 1.
func findField(fields []field, byID []int, id uint32) int {
	if i := int(id) - 1; i >= 0 && i < len(byID) {
		if at := byID[i]; fields[at].id == id {
			return at
		}
	}
	return slices.IndexFunc(fields, func(f field) bool { return f.id == id })
}

// A tableAction is an action as called by a table: bmv2's JSON has a copy of an action for each
// table.
type tableAction struct {
	*action
	prog  int // index into Program.Actions
	scope p4cfg.ActionRef_Scope
}

// findAction finds an action in a list by the P4Info's id.
func findAction(list []tableAction, id uint32) *tableAction {
	for i := range list {
		if list[i].id == id {
			return &list[i]
		}
	}
	return nil
}

// byProgram finds an action in a list by the program's index.
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
	object
	params []field // in the program's order; kind is not used
	byID   []int
	words  int
}

// A profile is an action profile, with or without a selector.
type profile struct {
	object
	selector  bool
	maxGroup  int32
	byMembers bool // size is sum_of_members instead of sum_of_weights
	maxWeight int32
	tables    []*table
	actions   []tableAction // of its tables, which all have the same
	state     *pipeline.Profile
	members   kept[*p4.ActionProfileMember, pipeline.Call]
	groups    kept[*p4.ActionProfileGroup, selection]
}

// An array is an indexed counter, meter or register, with a V in each cell.
type array[V any] struct {
	object
	state interface {
		Len() int
		Get(i int) (V, error)
		Set(i int, v V) error
	}
}

type counter struct{ array[pipeline.Counts] }

type meter struct {
	array[pipeline.MeterConfig]
	kind p4cfg.MeterSpec_Type
}

type register struct {
	array[match.Value]
	data *dataType
}

// A resource is a direct counter or a direct meter.
type resource struct {
	object
	kind p4cfg.MeterSpec_Type
}

// A valueSet is a parser value set.
type valueSet struct {
	object
	state *pipeline.ValueSet
	key   keyReader
}

// A digest is a format of digests.
type digest struct {
	object
	data *dataType
	bits []int // of the program's fields
}
