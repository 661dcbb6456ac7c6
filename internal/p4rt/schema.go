package p4rt

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/mcrdma/mcrdma/bmv2"
)

// A table is what the client needs of a table of the P4Info.
type table struct {
	id     uint32
	name   string
	fields []*p4cfg.MatchField
	set    bool // an entry has a set of actions, not one
	// actions are the ids of those that entries may call.
	actions map[uint32]bool
}

// An action is what the client needs of an action.
type action struct {
	id     uint32
	name   string
	params []*p4cfg.Action_Param
}

// A schema resolves names of the P4Info to ids and back.
type schema struct {
	info    *p4cfg.P4Info
	cookie  uint64 // of JSON and P4Info: it identifies the program to a switch that keeps cookies
	tables  map[string]*table
	byTable map[uint32]*table
	actions map[string]*action
	byID    map[uint32]*action

	counters map[string]uint32 // ids
	acked    uint32            // id of the register of members' answers
	direct   map[uint32]bool   // tables, by id, that count packets of each entry
}

// ownSchema is that of the program that this client pushes. All clients share it.
var ownSchema = sync.OnceValues(newSchema)

func newSchema() (*schema, error) {
	s := &schema{info: &p4cfg.P4Info{}, tables: map[string]*table{}, byTable: map[uint32]*table{},
		actions: map[string]*action{}, byID: map[uint32]*action{},
		counters: map[string]uint32{}, direct: map[uint32]bool{}}
	if err := prototext.Unmarshal(bmv2.P4Info, s.info); err != nil {
		return nil, fmt.Errorf("p4rt: the program's P4Info: %w", err)
	}
	sum := sha256.Sum256([]byte(bmv2.HashArtifacts(bmv2.JSON, bmv2.P4Info)))
	s.cookie = binary.BigEndian.Uint64(sum[:])
	for _, t := range s.info.GetTables() {
		p := t.GetPreamble()
		x := &table{p.GetId(), p.GetName(), t.GetMatchFields(), t.GetImplementationId() != 0, map[uint32]bool{}}
		for _, a := range t.GetActionRefs() {
			x.actions[a.GetId()] = a.GetScope() != p4cfg.ActionRef_DEFAULT_ONLY || len(x.fields) == 0
		}
		s.tables[x.name], s.byTable[x.id] = x, x
	}
	for _, a := range s.info.GetActions() {
		p := a.GetPreamble()
		x := &action{p.GetId(), p.GetName(), a.GetParams()}
		s.actions[x.name], s.byID[x.id] = x, x
	}
	for _, c := range s.info.GetCounters() {
		s.counters[c.GetPreamble().GetName()] = c.GetPreamble().GetId()
	}
	for _, c := range s.info.GetDirectCounters() {
		s.direct[c.GetDirectTableId()] = true
	}
	for _, name := range slices.Concat(dropCounters[:], memberCounters[:]) {
		if s.counters[name] == 0 {
			return nil, fmt.Errorf("p4rt: the program has no counter %s", name)
		}
	}
	for _, r := range s.info.GetRegisters() {
		if r.GetPreamble().GetName() == ackedRegister {
			s.acked = r.GetPreamble().GetId()
		}
	}
	if s.acked == 0 {
		return nil, fmt.Errorf("p4rt: the program has no register %s", ackedRegister)
	}
	for _, l := range layouts {
		if s.tables[l.table] == nil {
			return nil, fmt.Errorf("p4rt: the program has no table %s", l.table)
		}
	}
	return s, nil
}

// number encodes a number as P4Runtime's canonical byte string: the shortest.
func number(v uint64) []byte {
	b := binary.BigEndian.AppendUint64(nil, v)
	b = bytes.TrimLeft(b, "\x00")
	if len(b) == 0 {
		return []byte{0}
	}
	return b
}

// value decodes a byte string of a width in bits, at most 64.
func value(b []byte, width int32) (uint64, error) {
	b = bytes.TrimLeft(b, "\x00")
	var v uint64
	for _, x := range b[:min(len(b), 8)] {
		v = v<<8 | uint64(x)
	}
	if len(b) > 8 || v > math.MaxUint64>>(64-width) {
		return 0, fmt.Errorf("%w: %x as a number of %d bits", ErrForeign, b, width)
	}
	return v, nil
}

// call encodes an action by name, with its arguments in the P4Info's order.
func (s *schema) call(name string, args ...uint64) (*p4.Action, error) {
	a := s.actions[name]
	if a == nil || len(a.params) != len(args) {
		return nil, fmt.Errorf("p4rt: the program has no action %s with %d parameters", name, len(args))
	}
	out := &p4.Action{ActionId: a.id}
	for i, p := range a.params {
		out.Params = append(out.Params, &p4.Action_Param{ParamId: p.GetId(), Value: number(args[i])})
	}
	return out, nil
}

// called decodes an action of an entry in a table.
func (s *schema) called(t *table, a *p4.Action) (string, []uint64, error) {
	x := s.byID[a.GetActionId()]
	if x == nil || !t.actions[x.id] || len(a.GetParams()) != len(x.params) {
		return "", nil, fmt.Errorf("%w: action %#x with %d parameters", ErrForeign, a.GetActionId(), len(a.GetParams()))
	}
	args := make([]uint64, len(x.params))
	for i, p := range x.params {
		j := slices.IndexFunc(a.GetParams(), func(q *p4.Action_Param) bool { return q.GetParamId() == p.GetId() })
		if j < 0 {
			return "", nil, fmt.Errorf("%w: action %s without %s", ErrForeign, x.name, p.GetName())
		}
		v, err := value(a.GetParams()[j].GetValue(), p.GetBitwidth())
		if err != nil {
			return "", nil, err
		}
		args[i] = v
	}
	return x.name, args, nil
}
