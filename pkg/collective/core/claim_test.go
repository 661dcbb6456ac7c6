package core

import (
	"errors"
	"testing"
)

// Ranks that wait in calls that differ, and get no message of one another, learn of it by claims; and of a rank that has gone on, if it would have
// sent a message before. Claims of calls that are the same, and of a rank that is late, are no mismatch.
func TestClaims(t *testing.T) {
	l := Layout{Lanes: 2, Slots: 2, Block: 16}
	reduce := func(root int) Task {
		return Task{Kind: Reduce, Size: 2, Root: root, Elem: 4, Count: 1, Block: 16, Small: 16, Degree: 1}
	}
	broadcast := Task{Kind: Broadcast, Size: 2, Root: 1, Elem: 4, Count: 1, Block: 16, Degree: 1}
	for _, c := range []struct {
		what         string
		ours, theirs []Task // the last of which wait
		want         *Mismatch
	}{
		{"the same", []Task{broadcast}, []Task{broadcast}, nil},
		{"other roots", []Task{reduce(0)}, []Task{reduce(1)}, &Mismatch{1, Reduce, Reduce, false}},
		{"other kinds", []Task{broadcast}, []Task{reduce(1)}, &Mismatch{1, Reduce, Broadcast, false}},
		{"it is late", []Task{{Kind: Broadcast, Size: 2, Elem: 4, Block: 16}, broadcast}, []Task{reduce(1)}, nil},
		{"it has not sent a broadcast", []Task{broadcast}, []Task{{Kind: Broadcast, Size: 2, Elem: 4, Block: 16}, reduce(1)}, &Mismatch{1, Reduce, Broadcast, true}},
		{"it has sent a broadcast, and gone on", []Task{broadcast}, []Task{broadcast, reduce(1)}, nil},
		{"it has not sent to one alone", []Task{reduce(0)}, []Task{{Kind: Broadcast, Size: 2, Elem: 4, Block: 16}, reduce(1)}, &Mismatch{1, Reduce, Reduce, true}},
		{"it has not sent to one alone, and is in no call", []Task{reduce(0)}, []Task{broadcast, {}}, &Mismatch{1, 0, Reduce, true}},
		{"it has not sent a broadcast, and is in no call", []Task{broadcast}, []Task{reduce(0), {}}, &Mismatch{1, 0, Broadcast, true}},
		{"it is in no call yet", []Task{{Kind: Broadcast, Size: 2, Elem: 4, Block: 16}, broadcast}, []Task{reduce(0), {}}, nil},
		{"it has sent a broadcast, and is in no call", []Task{broadcast}, []Task{broadcast, {}}, nil},
		{"it has sent to one alone, and gone on", []Task{reduce(0)}, []Task{reduce(0), reduce(1)}, nil},
		{"it has sent to one alone, and is in no call", []Task{reduce(0)}, []Task{reduce(0), {}}, nil},
	} {
		nodes := []*Node{NewNode(0, 2, l), NewNode(1, 2, l)}
		var calls []*Call
		for rank, tasks := range [][]Task{c.ours, c.theirs} {
			n := nodes[rank]
			var call *Call
			for _, task := range tasks {
				if call != nil {
					n.End(call)
				}
				if task.Rank = rank; task.Kind == 0 {
					continue
				}
				buf := make([]byte, 4)
				call = n.Begin(n.Group(), 1, NewOp(task, buf, buf, combineBytes))
			}
			calls = append(calls, call)
			n.Ask()
			n.Ask()
		}
		memory := make([]byte, 2*l.Half())
		deliver := func(from, to int) {
			n := nodes[from]
			for _, a := range n.Actions() {
				path, written := Multicast, 0
				if a.To != All {
					path = Unicast
				}
				if a.Type == Write {
					at := l.At(path, a.Lane, a.Seq)
					l.Fill(memory[at:at+l.Slot()], a.Message, a.Seq)
					from, to := l.Span(a.Size)
					written = to - from
					n.Landed(a.Lane, a.To, true)
				}
				if a.Type == Write || a.Type == Announce || a.Type == Also || a.Type == Reply {
					if err := nodes[to].Arrived(from, path, memory, written, a.Imm); err != nil {
						t.Errorf("%s: %v", c.what, err)
					}
				}
			}
		}
		deliver(1, 0)
		for _, a := range nodes[0].Actions() { // none of its messages
			if a.Type == Announce || a.Type == Also {
				if err := nodes[1].Arrived(0, Multicast, nil, 0, a.Imm); err != nil {
					t.Errorf("%s: %v", c.what, err)
				}
			}
		}
		deliver(1, 0)
		if list, err := nodes[0].Take(calls[0]); err == nil && len(list) > 0 {
			if err := calls[0].op.Arrive(1, list[0].Path, list[0].Data); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		_, err := nodes[0].Take(calls[0])
		if m, _ := errors.AsType[*Mismatch](err); (m == nil) != (c.want == nil) || m != nil && *m != *c.want {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
	if err := NewNode(0, 2, l).Arrived(1, Multicast, nil, 0, claim{lane: 2}.imm()); !errors.Is(err, errMessage) {
		t.Errorf("a lane that is not: %v", err)
	}
}

// A call that has failed, and not ended yet, says nothing of the next epoch.
func TestClaimOfFailedCall(t *testing.T) {
	n := NewNode(0, 2, Layout{Lanes: 1, Slots: 2, Block: 16})
	task := Task{Kind: Broadcast, Size: 2, Root: 1, Elem: 4, Count: 1, Block: 16}
	buf := make([]byte, 4)
	n.End(n.Begin(n.Group(), 0, NewOp(task, buf, buf, nil)))
	_ = n.Begin(n.Group(), 0, NewOp(task, buf, buf, nil))
	if err := n.GiveUp(Blames(0, ContextEnded)); err != nil {
		t.Fatal(err)
	}
	s := n.members.own()
	if err := n.Arrived(1, Multicast, nil, 0, s.imm()); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.Shrink(); !ok {
		t.Fatal("the ranks do not agree")
	}
	_ = n.Actions()
	if err := n.Arrived(1, Multicast, nil, 0, claim{kind: Reduce}.imm()); err != nil {
		t.Fatal(err)
	}
	if list := n.Actions(); len(list) > 0 {
		t.Errorf("it does %+v", list)
	}
}
