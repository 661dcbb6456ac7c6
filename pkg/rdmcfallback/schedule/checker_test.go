package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A plan is the checker's input: the sends and receives of each node, in order.
type plan struct {
	blocks       int64
	steps        int64
	sends, recvs [][]Transfer // by node
}

// A checker checks plans one after another, in the same memory.
type checker struct {
	held []int64
	from []int
	all  []send
}

// check says which rule of the model a plan breaks first, or nil. It knows
// nothing of any algorithm.
func (c *checker) check(p plan) error {
	if err := inOrder(p.sends, p.steps); err != nil {
		return fmt.Errorf("sends: %w", err)
	}
	if err := inOrder(p.recvs, p.steps); err != nil {
		return fmt.Errorf("receives: %w", err)
	}
	// held is the step in which each node received each block, -1 for what the
	// root has from the beginning, and steps for what never comes.
	held := make([][]int64, len(p.recvs))
	c.held = slices.Grow(c.held[:0], len(p.recvs)*int(p.blocks))
	room := c.held[:len(p.recvs)*int(p.blocks)]
	received := 0
	for i, recvs := range p.recvs {
		held[i], room = room[:p.blocks], room[p.blocks:]
		for b := range held[i] {
			held[i][b] = p.steps
			if i == 0 {
				held[i][b] = -1
			}
		}
		for _, t := range recvs {
			if t.Block < 0 || t.Block >= p.blocks {
				return fmt.Errorf("node %d receives block %d of %d in step %d", i, t.Block, p.blocks, t.Step)
			}
			if held[i][t.Block] < p.steps {
				return fmt.Errorf("node %d receives block %d in step %d, and has had it since step %d", i, t.Block, t.Step, held[i][t.Block])
			}
			held[i][t.Block] = t.Step
		}
		if i > 0 && int64(len(recvs)) != p.blocks {
			return fmt.Errorf("node %d receives %d blocks of %d", i, len(recvs), p.blocks)
		}
		received += len(recvs)
	}
	next := make([]int, len(p.recvs)) // of each node's receives
	sent, last := 0, int64(-1)
	for _, t := range c.byStep(p) {
		if t.peer < 0 || t.peer >= len(p.recvs) || t.peer == t.node {
			return fmt.Errorf("node %d sends to node %d in step %d", t.node, t.peer, t.step)
		}
		if held[t.node][t.block] >= t.step {
			return fmt.Errorf("node %d sends block %d in step %d without having it", t.node, t.block, t.step)
		}
		want := Transfer{Step: t.step, Block: t.block, Peer: t.node}
		recvs := p.recvs[t.peer]
		if next[t.peer] == len(recvs) || recvs[next[t.peer]] != want {
			return fmt.Errorf("node %d sends block %d to node %d in step %d, which does not expect it", t.node, t.block, t.peer, t.step)
		}
		next[t.peer]++
		sent++
		last = t.step
	}
	if sent != received {
		return fmt.Errorf("%d blocks are sent, and %d received", sent, received)
	}
	if last != p.steps-1 {
		return fmt.Errorf("the last block is sent in step %d, and there are %d steps", last, p.steps)
	}
	return nil
}

// inOrder checks that no node does two things in a step.
func inOrder(transfers [][]Transfer, steps int64) error {
	for i, ts := range transfers {
		last := int64(-1)
		for _, t := range ts {
			if t.Step <= last || t.Step >= steps {
				return fmt.Errorf("node %d: step %d after step %d, of %d", i, t.Step, last, steps)
			}
			last = t.Step
		}
	}
	return nil
}

// A send is a block's way, with both ends.
type send struct {
	step, block int64
	node, peer  int
}

// byStep returns all sends in order of their steps.
func (c *checker) byStep(p plan) []send {
	c.from = slices.Grow(c.from[:0], int(p.steps)+1)
	from := c.from[:p.steps+1]
	clear(from)
	for _, ts := range p.sends {
		for _, t := range ts {
			from[t.Step+1]++
		}
	}
	for j := range p.steps {
		from[j+1] += from[j]
	}
	c.all = slices.Grow(c.all[:0], from[p.steps])
	all := c.all[:from[p.steps]]
	for i, ts := range p.sends {
		for _, t := range ts {
			all[from[t.Step]] = send{step: t.Step, block: t.Block, node: i, peer: t.Peer}
			from[t.Step]++
		}
	}
	return all
}

// newPlan returns an empty plan for a schedule. It reuses old's memory.
func newPlan(s Schedule, old plan) plan {
	p := plan{blocks: s.Blocks(), steps: s.Steps(), sends: old.sends, recvs: old.recvs}
	for _, all := range []*[][]Transfer{&p.sends, &p.recvs} {
		*all = slices.Grow((*all)[:0], s.Nodes())[:s.Nodes()]
		for i := range *all {
			(*all)[i] = (*all)[i][:0]
		}
	}
	return p
}

// equal reports whether two plans are the same.
func equal(a, b plan) bool {
	same := func(x, y []Transfer) bool { return slices.Equal(x, y) }
	return a.blocks == b.blocks && a.steps == b.steps &&
		slices.EqualFunc(a.sends, b.sends, same) && slices.EqualFunc(a.recvs, b.recvs, same)
}

// walk makes a plan of what NextSend and NextRecv say.
func walk(t *testing.T, s Schedule) plan { return walkInto(t, s, plan{}) }

// walkInto is walk in old's memory.
func walkInto(t *testing.T, s Schedule, old plan) plan {
	p := newPlan(s, old)
	for i := range s.Nodes() {
		n := node(t, s, i)
		for x, ok := n.NextSend(-1); ok; x, ok = n.NextSend(x.Step) {
			p.sends[i] = append(p.sends[i], x)
		}
		for x, ok := n.NextRecv(-1); ok; x, ok = n.NextRecv(x.Step) {
			p.recvs[i] = append(p.recvs[i], x)
		}
	}
	return p
}

// stepsInto makes a plan of what Send and Recv say of every step, in old's memory.
func stepsInto(t *testing.T, s Schedule, old plan) plan {
	p := newPlan(s, old)
	for i := range s.Nodes() {
		n := node(t, s, i)
		for j := int64(-2); j < s.Steps()+2; j++ {
			if x, ok := n.Send(j); ok {
				p.sends[i] = append(p.sends[i], x)
			}
			if x, ok := n.Recv(j); ok {
				p.recvs[i] = append(p.recvs[i], x)
			}
		}
	}
	return p
}

func node(t testing.TB, s Schedule, i int) Node {
	n, err := s.Node(i)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func mustNew(t testing.TB, a Algorithm, nodes int, blocks int64, racks *Racks) Schedule {
	t.Helper()
	s, err := New(a, nodes, blocks, racks)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCheckerRejects breaks each rule once: the checker has to see it.
func TestCheckerRejects(t *testing.T) {
	good := func() plan { // a chain of three nodes
		return plan{
			blocks: 2,
			steps:  3,
			sends:  [][]Transfer{{{0, 0, 1}, {1, 1, 1}}, {{1, 0, 2}, {2, 1, 2}}, nil},
			recvs:  [][]Transfer{nil, {{0, 0, 0}, {1, 1, 0}}, {{1, 0, 1}, {2, 1, 1}}},
		}
	}
	if err := new(checker).check(good()); err != nil {
		t.Fatalf("the good plan: %v", err)
	}
	for want, spoil := range map[string]func(*plan){
		"step 1 after step 1":     func(p *plan) { p.sends[0][0].Step = 1 },
		"step 3 after step 1":     func(p *plan) { p.recvs[2][1].Step = 3 },
		"without having it":       func(p *plan) { p.sends[1][0], p.recvs[2][0] = Transfer{0, 0, 2}, Transfer{0, 0, 1} },
		"has had it":              func(p *plan) { p.sends[1][1].Block, p.recvs[2][1].Block = 0, 0 },
		"receives 1 blocks of 2":  func(p *plan) { p.sends[1], p.recvs[2] = p.sends[1][:1], p.recvs[2][:1] },
		"does not expect it":      func(p *plan) { p.recvs[2][0].Peer = 0 },
		"which does not expect":   func(p *plan) { p.recvs[2][0], p.recvs[2][1] = Transfer{1, 1, 1}, Transfer{2, 0, 1} },
		"sends to node 1 in":      func(p *plan) { p.sends[1][0].Peer = 1 },
		"sends to node 3 in":      func(p *plan) { p.sends[1][0].Peer = 3 },
		"receives block 2 of 2":   func(p *plan) { p.sends[1][1].Block, p.recvs[2][1].Block = 2, 2 },
		"3 blocks are sent":       func(p *plan) { p.sends[1] = p.sends[1][:1] },
		"and there are 4 steps":   func(p *plan) { p.steps = 4 },
		"node 0 receives block 0": func(p *plan) { p.sends[1], p.recvs[0] = []Transfer{{2, 0, 0}}, []Transfer{{2, 0, 1}} },
	} {
		p := good()
		spoil(&p)
		if err := new(checker).check(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, have %v", want, err)
		}
	}
}
