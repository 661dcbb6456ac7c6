package switchagent

import (
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// TestCountersOfWhoLeaves: counters are read while a receiver leaves: they are those of the
// receivers that are told besides them, in their order.
func TestCountersOfWhoLeaves(t *testing.T) {
	l := newLine(t, 1)
	l.startAll()
	g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(1, 3), hostAddr(1, 4))
	l.install(1, g)
	a := l.nodes[0].agent
	k, err := groupKeyFrom(g.Key)
	if err != nil {
		t.Fatal(err)
	}
	at := a.installed(k)
	out := a.describe(at)
	done := make(chan error, 1)
	go func() {
		_, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, Receivers: g.Receivers[1:]})
		done <- err
	}()
	for left := false; !left; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			left = true
		default:
		}
		out.Members = nil
		if err := a.count(t.Context(), at, out); err != nil {
			t.Fatal(err)
		}
		if len(out.GetMembers()) != 3 {
			t.Fatalf("counters of %d receivers besides 3", len(out.GetMembers()))
		}
	}
	if out = a.describe(at); len(out.GetGroup().GetReceivers()) != 2 {
		t.Errorf("%v", out)
	}
}
