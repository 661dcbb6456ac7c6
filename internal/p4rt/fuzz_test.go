package p4rt

import (
	"cmp"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// FuzzDecode gives the decoder any entity that fits in a message: it is refused,
// or is one that encodes to what says the same.
func FuzzDecode(f *testing.F) {
	s, err := newSchema()
	if err != nil {
		f.Fatal(err)
	}
	for e := range everything(f).All() {
		x, err := s.encode(e)
		if err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(x)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x := &p4.Entity{}
		if proto.Unmarshal(b, x) != nil {
			return
		}
		e, err := s.decode(x)
		if err != nil {
			if !errors.Is(err, ErrForeign) {
				t.Fatal(err)
			}
			return
		}
		state := &switchspec.State{}
		if err := state.Put(e); err != nil {
			return
		}
		y, err := s.encode(e)
		if err != nil {
			t.Fatalf("%v was decoded, and does not encode: %v", e, err)
		}
		again, err := s.decode(y)
		if err != nil || !reflect.DeepEqual(e, again) {
			t.Fatalf("%v, again %v, %v", e, again, err)
		}
		if te := y.GetTableEntry(); te != nil {
			table := s.byTable[te.GetTableId()]
			was, err := s.parts(table, x.GetTableEntry())
			is, err2 := s.parts(table, te)
			byHop := func(x, y switchspec.ECMPHop) int { return cmp.Compare(x.NextHop, y.NextHop) }
			slices.SortFunc(was.set, byHop)
			if err != nil || err2 != nil || !reflect.DeepEqual(was, is) {
				t.Fatalf("%v was %v, and is %v", e, x, y)
			}
		}
	})
}

// TestForeignEntries: what this client would not have written is not taken for
// something else.
func TestForeignEntries(t *testing.T) {
	s, err := newSchema()
	if err != nil {
		t.Fatal(err)
	}
	route := switchspec.Route{Dst: netip.PrefixFrom(ip(0), 8), To: switchspec.ToNextHop, Number: 2}
	region := switchspec.Region{Group: 1, Translation: bifurcation.Translation{RID: 3, RKey: 9, First: 5, Last: 6}}
	set := switchspec.ECMPGroup{ID: 4, Hops: []switchspec.ECMPHop{{NextHop: 1, Weight: 1}}}
	param := func(te *p4.TableEntry, i int) *p4.Action_Param { return te.GetAction().GetAction().GetParams()[i] }
	for name, c := range map[string]struct {
		of   switchspec.Entity
		edit func(te *p4.TableEntry)
	}{
		"no such table":     {route, func(te *p4.TableEntry) { te.TableId = 1 }},
		"another table":     {route, func(te *p4.TableEntry) { te.TableId = s.tables["ingress.fault_in.rules"].id }},
		"no such action":    {route, func(te *p4.TableEntry) { te.GetAction().GetAction().ActionId = 1 }},
		"no action":         {route, func(te *p4.TableEntry) { te.Action = nil }},
		"a member":          {route, func(te *p4.TableEntry) { te.Action.Type = &p4.TableAction_ActionProfileMemberId{} }},
		"parameter missing": {region, func(te *p4.TableEntry) { a := te.GetAction().GetAction(); a.Params = a.Params[:1] }},
		"parameter twice":   {region, func(te *p4.TableEntry) { param(te, 1).ParamId = param(te, 0).ParamId }},
		"parameter too many": {route, func(te *p4.TableEntry) {
			a := te.GetAction().GetAction()
			a.Params = append(a.Params, &p4.Action_Param{})
		}},
		"parameter too wide": {route, func(te *p4.TableEntry) { param(te, 0).Value = []byte{1, 0, 2} }},
		"number too long":    {region, func(te *p4.TableEntry) { param(te, 0).Value = []byte{1, 0, 0, 0, 0, 0, 0, 0, 0} }},
		"another's action": {switchspec.Replica{Group: 1, Rewrite: bifurcation.Rewrite{RID: 9, Dst: ip(3), NextHop: 2}}, func(te *p4.TableEntry) {
			te.GetAction().GetAction().ActionId = s.actions["egress.neighbour.rewrite"].id
		}},
		"a set without selector": {switchspec.Settings{}, func(te *p4.TableEntry) { te.Action.Type = &p4.TableAction_ActionProfileActionSet{} }},
		"a selector without set": {set, func(te *p4.TableEntry) {
			te.Action.Type = &p4.TableAction_Action{Action: te.GetAction().GetActionProfileActionSet().ActionProfileActions[0].Action}
		}},
		"another action in a set": {set, func(te *p4.TableEntry) {
			te.GetAction().GetActionProfileActionSet().ActionProfileActions[0].Action.ActionId = s.actions[toECMP].id
		}},
		"weight": {set, func(te *p4.TableEntry) {
			te.GetAction().GetActionProfileActionSet().ActionProfileActions[0].Weight = 1 << 16
		}},
		"field missing":    {region, func(te *p4.TableEntry) { te.Match = te.Match[1:] }},
		"field twice":      {region, func(te *p4.TableEntry) { te.Match = append(te.Match, te.Match[0]) }},
		"field unknown":    {route, func(te *p4.TableEntry) { te.Match[0].FieldId = 9 }},
		"key too wide":     {region, func(te *p4.TableEntry) { te.Match[0].GetExact().Value = []byte{1, 0, 1} }},
		"exact as LPM":     {region, func(te *p4.TableEntry) { te.Match[0].FieldMatchType = &p4.FieldMatch_Lpm{Lpm: &p4.FieldMatch_LPM{}} }},
		"exact as ternary": {region, func(te *p4.TableEntry) { te.Match[0].FieldMatchType = &p4.FieldMatch_Ternary_{} }},
		"LPM as exact":     {route, func(te *p4.TableEntry) { te.Match[0].FieldMatchType = &p4.FieldMatch_Exact_{} }},
		"range as exact":   {region, func(te *p4.TableEntry) { te.Match[3].FieldMatchType = &p4.FieldMatch_Exact_{} }},
		"prefix too long":  {route, func(te *p4.TableEntry) { te.Match[0].GetLpm().PrefixLen = 33 }},
		"prefix negative":  {route, func(te *p4.TableEntry) { te.Match[0].GetLpm().PrefixLen = -1 }},
		"priority":         {region, func(te *p4.TableEntry) { te.Priority = 2 }},
		"a priority":       {route, func(te *p4.TableEntry) { te.Priority = 1 }},
	} {
		x, err := s.encode(c.of)
		if err == nil {
			_, err = s.decode(x)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.edit(x.GetTableEntry())
		if e, err := s.decode(x); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	for name, g := range map[string]*p4.MulticastGroupEntry{
		"group":    {MulticastGroupId: 1 << 16},
		"instance": {MulticastGroupId: 1, Replicas: []*p4.Replica{{Instance: 1 << 16}}},
		"port":     {MulticastGroupId: 1, Replicas: []*p4.Replica{{PortKind: &p4.Replica_Port{Port: []byte{1, 0, 0}}}}},
		"ports":    {MulticastGroupId: 1, Replicas: []*p4.Replica{{PortKind: &p4.Replica_Port{Port: []byte{1, 0, 0, 0, 0, 0, 0, 0, 1}}}}},
	} {
		if e, err := decodePRE(g); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
}
