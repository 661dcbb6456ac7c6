package compile

import (
	"bytes"
	"errors"
	"testing"

	"github.com/mcrdma/mcrdma/bmv2"
)

// TestRecompile compiles p4src and compares with what is committed.
func TestRecompile(t *testing.T) {
	p4c, err := Compiler()
	if errors.Is(err, ErrNoCompiler) {
		t.Skip("optional:", err)
	}
	r, err := Program(t.Context(), p4c, "../../p4src")
	if err != nil {
		t.Fatal(err)
	}
	if was := bmv2.Origin().P4C; was != r.Made.P4C {
		t.Skipf("optional: p4c %s is here, the artifacts were made by %s", r.Made.P4C, was)
	}
	if !bytes.Equal(r.JSON, bmv2.JSON) {
		t.Error("bmv2/mcrdma.json is not what p4c makes of p4src; run: make p4")
	}
	if !bytes.Equal(r.P4Info, bmv2.P4Info) {
		t.Error("bmv2/mcrdma.p4info.txtpb is not what p4c makes of p4src; run: make p4")
	}
}
