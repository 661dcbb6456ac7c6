package mcrdma

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// A play is a sender's queue and two receivers, whose formations fail now and then. Each
// operation writes its number, counted from 1.
type play struct {
	t        *rapid.T
	q        opQueue
	ops      []*Op
	posted   uint64 // operations, in this and other formations
	bySwitch bool
	members  [2]*player
}

type player struct {
	region [6]byte
	floor  [6]byte // what it was told is in the region, or what is newer
	have   uint64
	next   uint64 // operation to arrive
	again  uint64 // messages to be dropped, where switches copy
	asm    assembler
}

// form begins a formation, as Group.form and Group.begin do.
func (p *play) form(bySwitch bool) {
	have := min(p.members[0].have, p.members[1].have)
	most := max(p.members[0].have, p.members[1].have)
	p.q.rewind()
	p.bySwitch = bySwitch
	if bySwitch && p.q.stepsBack(have, most) {
		p.bySwitch = false
		p.q.catchUp(most, 0)
	}
	for range p.q.had(have) {
		p.q.pop()
	}
	p.posted = p.q.first
	for _, m := range p.members {
		m.next, m.again = p.q.first, m.have-have
		m.asm = assembler{regions: [][]byte{m.region[:]}, message: have, have: m.have}
	}
	p.settled()
}

// settled forms the group anew if the formation has served its purpose.
func (p *play) settled() {
	if p.q.caughtUp() {
		p.form(true)
	}
}

func (p *play) post() {
	if o := p.q.next(); o != nil {
		p.q.advance()
		p.posted++
	}
}

// arrive brings a member its next operation.
func (p *play) arrive(m *player) {
	if m.next == p.posted {
		return
	}
	op := p.ops[m.next]
	m.next++
	payload := bytes.Repeat([]byte{byte(m.next)}, int(op.size))
	var told bool
	if p.bySwitch {
		copy(m.region[op.At.Offset:], payload)
		if told = op.Kind.message() && m.again == 0; op.Kind.message() && m.again > 0 {
			m.again--
		}
	} else {
		h := header{kind: op.Kind, offset: op.At.Offset, length: op.size}
		if op.Kind.message() {
			h.message = uint32(m.asm.message + 1)
		}
		var err error
		if _, told, err = m.asm.complete(append(h.appendTo(nil), payload...)); err != nil {
			p.t.Fatal(err)
		}
	}
	if told {
		m.have++
		for n, op := range p.ops[:m.next] {
			for i := range op.size {
				m.floor[op.At.Offset+i] = byte(n + 1)
			}
		}
	}
	for i := range m.region {
		if m.region[i] < m.floor[i] {
			p.t.Fatalf("a member was told that byte %d is what operation %d wrote, and reads what %d did", i, m.floor[i], m.region[i])
		}
	}
}

// settle completes what all members have.
func (p *play) settle() {
	for p.q.first < min(p.members[0].next, p.members[1].next) {
		p.q.pop()
	}
	p.settled()
}

// TestToldStays: whatever fails, and whether switches or hosts copy, a receiver never sees
// older bytes than were reported to it; and in the end all have everything.
func TestToldStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &play{t: t, bySwitch: true}
		for i := range p.members {
			p.members[i] = &player{}
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1:
				op := &Op{Kind: Kind(rapid.IntRange(0, 1).Draw(t, "kind")), size: 1 + rapid.Uint64Range(0, 1).Draw(t, "size")}
				op.At.Offset = rapid.Uint64Range(0, 4).Draw(t, "offset")
				p.ops = append(p.ops, op)
				p.q.push(op)
			case 2, 3:
				p.post()
			case 4, 5, 6:
				p.arrive(p.members[0])
			case 7:
				p.arrive(p.members[1])
			case 8:
				p.settle()
			case 9:
				p.form(rapid.Bool().Draw(t, "by switches"))
			}
		}
		for range 3 * len(p.ops) {
			p.post()
			p.arrive(p.members[0])
			p.arrive(p.members[1])
			p.settle()
		}
		if p.q.limited {
			t.Fatal("switches are never used again")
		}
		if p.q.ops.len() > 0 {
			t.Fatalf("%d operations are never complete", p.q.ops.len())
		}
		var want [6]byte
		for n, op := range p.ops {
			for i := range op.size {
				want[op.At.Offset+i] = byte(n + 1)
			}
		}
		for _, m := range p.members {
			if m.region != want {
				t.Fatalf("a member has %v in the end, and was sent %v", m.region, want)
			}
		}
	})
}

// TestStepsBack: only bytes that are written twice within what some members have and others
// lack are a reason not to use switches.
func TestStepsBack(t *testing.T) {
	write := func(kind Kind, region int, offset, size uint64) *Op {
		return &Op{Kind: kind, At: At{region, offset}, size: size}
	}
	var q opQueue
	for _, op := range []*Op{
		write(OpWrite, 0, 50, 10), write(OpWriteImm, 0, 0, 10), // message 1
		write(OpSend, 0, 0, 10),                                                          // 2
		write(OpWrite, 0, 10, 10), write(OpWrite, 1, 0, 100), write(OpWriteImm, 0, 9, 0), // 3
		write(OpWriteImm, 0, 9, 1),                           // 4
		write(OpWrite, 0, 19, 1), write(OpWriteImm, 2, 0, 1), // 5
		write(OpWrite, 2, 0, 1), // of which no member was told
	} {
		q.push(op)
		q.advance()
	}
	for _, tt := range []struct {
		have, most uint64
		want       bool
	}{
		{0, 0, false}, {0, 1, false}, {0, 3, false}, {0, 4, true}, {1, 4, false}, {1, 5, true}, {2, 5, true}, {3, 5, false}, {5, 5, false},
		{0, 1 << 60, true}, // a member that says so lies
	} {
		if got := q.stepsBack(tt.have, tt.most); got != tt.want {
			t.Errorf("all have %d messages, one has %d: %v", tt.have, tt.most, got)
		}
	}
}

// TestAheadKeepsWhatItHas: one receiver had operations reported that the other lacks, and the
// group is formed anew. The first one skips what the sender writes again: that can be seen,
// because it has changed its bytes meanwhile.
func TestAheadKeepsWhatItHas(t *testing.T) {
	for _, transport := range []string{transportTCP, transportRDMA} {
		for _, size := range []int{1, inlineMax + 1} {
			testenv.Bubble(t, fmt.Sprint(transport, " ", size), func(t *testing.T) {
				r := newRig(t, 2, true, GroupConfig{Tuning: Tuning{Transport: transport, Algorithm: "sequential"}})
				ahead, behind := r.rs[0].m, r.rs[1].m
				post := func(m *Member) {
					for range 2 {
						if err := m.PostRecv(Piece{}); err != nil {
							t.Fatal(err)
						}
					}
				}
				post(ahead)
				// The behind one has no receive for the first message. What is large waits for it.
				kinds := []Kind{OpWriteImm, OpWrite, OpWriteImm}
				if size > inlineMax {
					kinds = kinds[:1]
				}
				for _, kind := range kinds {
					if err := r.g.Submit(t.Context(), &Op{Kind: kind, Pieces: []Piece{r.mem.Slice(0, size)}, Done: func(*Op) {}}); err != nil {
						t.Fatal(err)
					}
				}
				for _, kind := range kinds {
					if kind.message() {
						if _, err := ahead.Recv(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
				}
				clear(ahead.Region(0)[:size])
				r.seen()
				r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
				event(t, r.g.Events(), EventReformed)
				post(behind)
				if err := r.g.Write(t.Context(), At{0, 1 << 16}, r.mem.Slice(1<<16, 1)); err != nil {
					t.Fatal(err)
				}
				if got := ahead.Region(0)[:size]; !bytes.Equal(got, make([]byte, size)) {
					t.Error("what was reported to the receiver was written again")
				}
				if got := behind.Region(0)[:size]; !bytes.Equal(got, r.mem.Bytes()[:size]) {
					t.Error("the other one lacks it")
				}
			})
		}
	}
}
