package fabric

import (
	"fmt"
	"sync/atomic"

	"github.com/mcrdma/mcrdma/tests/memnet"
)

// A Wire joins two ports. Frames go through it at once, or get lost: when it is
// cut, or when too many wait at its end.
type Wire struct {
	A, B  End
	cable *memnet.Cable // whose side 0 is at A
}

// A tap sees the frames that come through wires. It must not keep them.
type tap func(w *Wire, from int, frame []byte)

// An End is where a wire is plugged in: at a switch's port, or at a host.
type End struct {
	Node string
	Port uint16 // 0 at hosts
}

func (e End) String() string {
	if e.Port == 0 {
		return e.Node
	}
	return fmt.Sprintf("%s/%d", e.Node, e.Port)
}

func (w *Wire) String() string { return fmt.Sprintf("%v–%v", w.A, w.B) }

// from is the end that frames of a direction come from.
func (w *Wire) from(side int) End {
	if side == 0 {
		return w.A
	}
	return w.B
}

// up says that frames get through in both directions.
func (w *Wire) up() bool { return !w.cable.IsCut() }

func newWire(a, b End, t *atomic.Pointer[tap]) *Wire {
	w := &Wire{A: a, B: b, cable: memnet.NewCable()}
	w.cable.Tap = func(side int, frame []byte) {
		if t := t.Load(); t != nil {
			(*t)(w, side, frame)
		}
	}
	return w
}

// A socket is one end of a wire. One plug at a time is in it.
type socket struct {
	wire *Wire
	side int
}

// plug returns a plug at this end of the wire, on which nothing waits.
func (s socket) plug() *memnet.Plug {
	return s.wire.cable.Plug(s.side, s.wire.from(s.side).String())
}
