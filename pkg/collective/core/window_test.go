package core

import (
	"fmt"
	"testing"
)

// writes counts messages to each rank, and to All.
func writes(n *Node) map[int]int {
	count := map[int]int{}
	for _, a := range n.Actions() {
		if a.Type == Write {
			count[a.To]++
		}
	}
	return count
}

// TestWindow: a rank has as many messages on their way to another one as the operation lets it, from its beginning on, whatever is unconfirmed of the one before.
func TestWindow(t *testing.T) {
	const ranks, slots, block = 8, 8, 16
	n := NewNode(0, ranks, Layout{Lanes: 1, Slots: slots, Block: block})
	task := Task{Kind: Broadcast, Size: ranks, Elem: 1, Count: 6 * block, Block: block}
	n.End(n.Begin(n.Group(), 0, NewOp(task, make([]byte, task.Count), make([]byte, task.Count), nil)))
	if got := writes(n); got[All] != 6 {
		t.Errorf("a broadcast of 6 messages: %v", got)
	}
	task = Task{Kind: ReduceScatter, Size: ranks, Elem: 1, Count: ranks * 20 * block, Block: block}
	n.Begin(n.Group(), 0, NewOp(task, make([]byte, task.Count), make([]byte, 20*block), func(_, _ []byte) {}))
	if got := writes(n); len(got) != ranks-1 || got[1] != 2 || got[2] != 1 {
		t.Errorf("at first each rank gets one message, and the next one another: %v", got)
	}
	land := func(to, messages int) map[int]int {
		for range messages {
			n.Landed(0, to, true)
		}
		return writes(n)
	}
	for _, c := range []struct{ to, messages, next int }{{1, 2, 2}, {2, 1, 1}, {3, 1, 1}} {
		got := land(c.to, c.messages)
		sum := 0
		for _, n := range got {
			sum += n
		}
		if sum != c.next {
			t.Errorf("rank %d has %d messages, and these are sent: %v", c.to, c.messages, got)
		}
	}
	for range 100 { // the devices have all, and no rank takes any
		for to := 1; to < ranks; to++ {
			for n.lanes[0].one[to].flying > 0 {
				land(to, 1)
			}
		}
	}
	for to := 1; to < ranks; to++ {
		if got := n.lanes[0].one[to].sent; got != task.window(slots) {
			t.Errorf("%d messages to rank %d, and the window has %d", got, to, task.window(slots))
		}
	}
	if err := n.Acked(3, 0, Unicast, 2); err != nil {
		t.Error(err)
	}
	if got := writes(n); len(got) != 1 || got[3] != 2 {
		t.Errorf("after two were taken by rank 3: %v", got)
	}
	for size, want := range map[int]uint64{2: 8, 3: 8, 4: 8, 5: 6, 8: 4, 17: 2} {
		if got := (Task{Kind: Allreduce, Size: size}).window(slots); got != want {
			t.Errorf("window of %d ranks: %d, want %d", size, got, want)
		}
	}
}

// TestTells: a rank tells what it has taken when the sender's window or its slots need it, and not otherwise.
func TestTells(t *testing.T) {
	r := rx{layout: Layout{Slots: 8}}
	for i, want := range []bool{false, true, false, true} {
		if got := r.free(1, 3); got != want {
			t.Errorf("message %d of a window of 3: %v", i, got)
		}
	}
	for i, want := range []bool{false, false, false, true} {
		if got := r.free(1, 0); got != want {
			t.Errorf("message %d when no more comes: %v", i, got)
		}
	}
	r.free(3, 0)
	r.begun = r.freed
	if r.free(1, 8) != true { // 4 of 8 slots
		t.Error("what is unconfirmed of the operation before does not count for slots")
	}
	r.free(2, 0)
	r.begun = r.freed
	if r.free(1, 3) {
		t.Error("what is unconfirmed of the operation before counts for the window")
	}
}

// TestTellsWhatIsNeeded: if the rest of the operation fits into the sender's window, it need not be told.
func TestTellsWhatIsNeeded(t *testing.T) {
	for messages, want := range map[int]int{3: 0, 5: 1} { // of a window of 4
		l := Layout{Lanes: 1, Slots: 8, Block: 16}
		n := NewNode(0, 8, l)
		task := Task{Kind: Allgather, Size: 8, Elem: 1, Count: 8 * messages * l.Block, Block: l.Block}
		op := NewOp(task, make([]byte, messages*l.Block), make([]byte, task.Count), nil)
		call := n.Begin(n.Group(), 0, op)
		memory := make([]byte, Paths*l.Half())
		for i := range uint64(messages) {
			at := l.At(Multicast, 0, i)
			l.Fill(memory[at:at+l.Slot()], Message{Data: make([]byte, l.Block), Hash: call.hash, Kind: Allgather}, i)
			if err := n.Arrived(1, Multicast, memory, l.Slot(), messageImm(0, i)); err != nil {
				t.Fatal(err)
			}
			list, err := n.Take(call)
			if err != nil || len(list) != 1 {
				t.Fatal(list, err)
			}
			if err := op.Arrive(1, Multicast, list[0].Data); err != nil {
				t.Fatal(err)
			}
			n.Progress(call)
		}
		got := 0
		for _, a := range n.Actions() {
			if a.Type == Tell {
				got++
			}
		}
		if got != want {
			t.Errorf("of %d messages it tells %d times, want %d", messages, got, want)
		}
	}
}

// TestTellsNothing: the end of an operation that no rank ends before all have begun it says that the messages of the one before were taken.
func TestTellsNothing(t *testing.T) {
	for _, degree := range []int{1, 3, 7} {
		t.Run(fmt.Sprint("degree ", degree), func(t *testing.T) { testTellsNothing(t, degree) })
	}
}

func testTellsNothing(t *testing.T, degree int) {
	l := Layout{Lanes: 1, Slots: 8, Block: 16}
	nodes, memory := make([]*Node, 8), make([][][]byte, 8)
	for id := range nodes {
		nodes[id] = NewNode(id, len(nodes), l)
		for range nodes {
			memory[id] = append(memory[id], make([]byte, Paths*l.Half()))
		}
	}
	tells := 0
	for range 100 {
		var calls []*Call
		for id, n := range nodes {
			calls = append(calls, n.Begin(n.Group(), 0, NewOp(Task{Kind: Allreduce, Rank: id, Size: len(nodes), Elem: 1, Count: 8, Block: l.Block, Small: 8, Degree: degree}, make([]byte, 8), make([]byte, 8), combineBytes)))
		}
		for again := true; again; {
			again = false
			for id, n := range nodes {
				for _, a := range n.Actions() {
					again = true
					if a.Type == Tell {
						tells++
					}
					if a.Type != Write {
						continue
					}
					path := Unicast
					if a.To == All {
						path = Multicast
					}
					at, size := l.At(path, 0, a.Seq), l.Slot()
					for to, o := range nodes {
						if to == id || a.To != All && a.To != to {
							continue
						}
						slot := memory[to][id][at : at+size]
						l.Fill(slot, a.Message, a.Seq)
						if err := o.Arrived(id, path, memory[to][id], a.Size+Trailer, a.Imm); err != nil {
							t.Fatal(err)
						}
						list, err := o.Take(calls[to])
						if err != nil {
							t.Fatal(err)
						}
						for _, x := range list {
							if err := calls[to].op.Arrive(x.From, x.Path, x.Data); err != nil {
								t.Fatal(err)
							}
						}
						o.Progress(calls[to])
					}
					n.Landed(0, a.To, true)
				}
			}
		}
		for id, n := range nodes {
			if !n.Finished(calls[id]) {
				t.Fatalf("rank %d is not finished", id)
			}
			n.End(calls[id])
		}
	}
	if tells > 0 {
		t.Errorf("%d counters were told for 100 operations", tells)
	}
}

// TestMeet: operations without data wait for the others also where reductions do not go over a tree.
func TestMeet(t *testing.T) {
	for _, k := range []Kind{Barrier, Close} {
		for rank := range 2 {
			op := NewOp(Task{Kind: k, Rank: rank, Size: 2, Elem: 1, Block: 16, Small: -1, Degree: 1}, nil, nil, func(_, _ []byte) {})
			if op.Done() {
				t.Errorf("%v of rank %d waits for nothing", k, rank)
			}
		}
	}
}

// An operation has another hash than any that differs in one respect, also in what immediate data have of it.
func TestHash(t *testing.T) {
	base := Task{Kind: Allreduce, Size: 4, Elem: 4, Count: 1024, Block: 4096, Small: 4096, Degree: 3}
	hash := base.Hash(7) & hashMask
	for i, change := range []func(*Task) (number uint64){
		func(t *Task) uint64 { t.Kind = Reduce; return 7 }, func(t *Task) uint64 { t.Root = 1; return 7 }, func(t *Task) uint64 { t.Type = 14; return 7 },
		func(t *Task) uint64 { t.Elem = 8; return 7 }, func(t *Task) uint64 { t.Count = 512; return 7 }, func(t *Task) uint64 { t.Count = 1 << 30; return 7 },
		func(*Task) uint64 { return 6 }, func(*Task) uint64 { return 7 + 256 },
	} {
		other := base
		if number := change(&other); other.Hash(number)&hashMask == hash {
			t.Errorf("difference %d: the same hash %d", i, hash)
		}
	}
}

// A slot is not reported as free while an operation of the former epoch looks into it, also if later messages of that epoch are dropped:
// slots are counted in their order.
func TestFreeBehindHeld(t *testing.T) {
	l := Layout{Lanes: 1, Slots: 2, Block: 16}
	n := NewNode(0, 2, l)
	memory := make([]byte, 2*l.Half())
	task := Task{Kind: Reduce, Size: 2, Elem: 4, Count: 1, Block: 16, Small: 16, Degree: 1}
	buf := make([]byte, 4)
	call := n.Begin(n.Group(), 0, NewOp(task, buf, buf, combineBytes))
	for seq := range uint64(2) { // of this operation and the next one
		m := Message{Data: buf, Hash: task.Hash(seq), Kind: Reduce}
		at := l.At(Unicast, 0, seq)
		l.Fill(memory[at:at+l.Slot()], m, seq)
		from, to := l.Span(len(buf))
		if err := n.Arrived(1, Unicast, memory, to-from, l.imm(m, 0, seq)); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := n.Take(call); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if err := n.GiveUp(Blames(0, ContextEnded)); err != nil {
		t.Fatal(err)
	}
	if err := n.Arrived(1, Multicast, nil, 0, n.members.own().imm()); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.Shrink(); !ok {
		t.Fatal("the ranks do not agree")
	}
	told := func() (seq uint64) {
		for _, a := range n.Actions() {
			if a.Type == Tell {
				seq = a.Seq
			}
		}
		return seq
	}
	if seq := told(); seq != 0 {
		t.Errorf("%d messages are free, and an operation looks into the first", seq)
	}
	n.End(call)
	if seq := told(); seq != 2 {
		t.Errorf("%d messages are free when it has ended", seq)
	}
}
