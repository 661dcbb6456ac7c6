package main

import (
	"fmt"
	"strings"
)

// replay takes actions from the initial state on, with members as they are counted
// there, and describes each: what moved, and how the queues are afterward. It ends
// at the first that breaks S1 or cannot happen, and otherwise also returns the state
// that it has led to.
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

// describe is the state in one line: what each member has received, what the
// switch knows of it, and what is under way.
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

// String lists the packets' places in the stream.
func (l dataList) String() string {
	var out strings.Builder
	for _, p := range l {
		fmt.Fprintf(&out, ">%d", p.wire().Sub(startPSN))
	}
	return out.String()
}

// String is the packet as an answer.
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
