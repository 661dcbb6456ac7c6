package fabric

import (
	"context"
)

// Wires are the wires between two switches, or between a switch and a host, in the
// order of the Spec.
func (f *Fabric) Wires(a, b string) []*Wire {
	f.t.Helper()
	var list []*Wire
	for _, w := range f.wires {
		if w.A.Node == a && w.B.Node == b || w.A.Node == b && w.B.Node == a {
			list = append(list, w)
		}
	}
	if len(list) == 0 {
		f.t.Fatalf("there is no wire between %s and %s", a, b)
	}
	return list
}

// Cut cuts wires, and Mend mends them; both may be called by any goroutine.
func (f *Fabric) Cut(wires ...*Wire) {
	for _, w := range wires {
		w.cable.Cut(true)
	}
}

// CutOneWay loses the frames that a node sends into a wire.
func (f *Fabric) CutOneWay(from string, wires ...*Wire) {
	for _, w := range wires {
		switch from {
		case w.A.Node:
			w.cable.CutFrom(0, true)
		case w.B.Node:
			w.cable.CutFrom(1, true)
		}
	}
}

// Mend mends wires.
func (f *Fabric) Mend(wires ...*Wire) {
	for _, w := range wires {
		w.cable.Cut(false)
	}
}

// StopAgent ends a switch's agent in good order. The switch goes on.
func (f *Fabric) StopAgent(sw string) {
	f.t.Helper()
	f.must(f.node(sw).stopAgent(false))
}

// KillAgent ends a switch's agent as a crash does: all its connections break, and
// nothing that it still does is sent or stored.
func (f *Fabric) KillAgent(sw string) {
	f.t.Helper()
	f.must(f.node(sw).stopAgent(true))
}

// StartAgent starts a switch's agent again, at the address and with the state that
// it had. Ready waits for it.
func (f *Fabric) StartAgent(sw string) {
	f.t.Helper()
	n := f.node(sw)
	if n.agent != nil {
		f.t.Fatalf("the agent of %s runs", sw)
	}
	f.must(n.startAgent(context.WithoutCancel(f.t.Context())))
	n.client.ResetConnectBackoff()
}

// StopSwitch ends a switch: it forgets all, and forwards nothing. Its agent goes on.
func (f *Fabric) StopSwitch(sw string) {
	f.t.Helper()
	f.node(sw).stopSwitch()
}

// StartSwitch starts a switch again: empty, at the same address, with the same
// cables.
func (f *Fabric) StartSwitch(sw string) {
	f.t.Helper()
	n := f.node(sw)
	if n.embedded != nil {
		f.t.Fatalf("switch %s runs", sw)
	}
	f.must(n.startSwitch())
}

// Switches are the names of all switches; if only is given, of those for which it
// is true.
func (f *Fabric) Switches(only func(Switch) bool) (names []string) {
	for _, n := range f.order {
		if only == nil || only(n.Switch) {
			names = append(names, n.Name)
		}
	}
	return names
}
