package p4rt

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"testing"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/internal/switchspec"
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
		if _, err := s.decodeKey(x.GetTableEntry()); err != nil && !errors.Is(err, ErrForeign) {
			t.Fatal(err)
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
			if k, err := s.decodeKey(te); err != nil || k != e.Key() {
				t.Fatalf("%v: key %v, %v", e, k, err)
			}
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
