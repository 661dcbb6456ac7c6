package main

import (
	"fmt"
	"strings"
)

// replay takes actions from the initial state on, with members numbered as there, and describes
// each: what moved, and the queues afterward. It ends at the first that breaks S1 or is impossible,
// and otherwise also returns the final state.
func replay(b *bound, as []action) (string, *world) {
	m := newMachine(b)
	w := m.initial(b)
	var out strings.Builder
	for _, a := range as {
		var possible bool
		for _, p := range m.actions(w, nil) {
			possible = possible || p == a
		}
		if !possible {
			fmt.Fprintf(&out, "%-24v cannot happen\n", a)
			return out.String(), nil
		}
		err := m.take(w, a)
		fmt.Fprintf(&out, "%-24v %s\n", a, m.describe(w))
		if err != nil {
			fmt.Fprintf(&out, "%v\n", err)
			return out.String(), nil
		}
	}
	return out.String(), w
}

// describe returns the state as one line: what each member has received, the switch's record of it,
// and packets in flight.
func (m *machine) describe(w *world) string {
	var out strings.Builder
	for i := range w.n {
		b := &w.members[i]
		fmt.Fprintf(&out, "%d", m.received(b))
		if b.record.Epoch == m.epoch {
			fmt.Fprintf(&out, "(%d)", b.record.PSN.Sub(startPSN)+1)
		} else {
			out.WriteString("(-)")
		}
		switch {
		case b.dead:
			out.WriteString("dead")
		case b.liar && b.current:
			out.WriteString("liar")
		case !b.current:
			out.WriteString("out")
		}
		fmt.Fprintf(&out, "%v%v ", dataList(b.held.all()), b.answers.all())
	}
	m.sender.LoadState(w.sender, instant)
	sent, posted := m.sender.Unacknowledged()
	fmt.Fprintf(&out, "late %v, sender %d unacknowledged of %d", w.held.all(), sent, posted)
	return out.String()
}

type dataList []packet

// String returns the packets' positions in the stream.
func (l dataList) String() string {
	var out strings.Builder
	for _, p := range l {
		fmt.Fprintf(&out, ">%d", p.wire().Sub(startPSN))
	}
	return out.String()
}

// String returns the packet as an answer.
func (p packet) String() string {
	n := p.wire().Sub(startPSN)
	switch {
	case p.syndrome.IsAck():
		return fmt.Sprintf("ack %d", n)
	case p.syndrome.IsRNR():
		return fmt.Sprintf("rnr %d", n)
	case p.syndrome.IsFatal():
		return fmt.Sprintf("refused %d", n)
	}
	return fmt.Sprintf("nak %d", n)
}
