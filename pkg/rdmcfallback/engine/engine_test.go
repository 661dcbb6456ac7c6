package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// Each node has one first sender, for any number of blocks that is at least minBlocks, and it is
// the one for which the engine posts.
func TestFirstSender(t *testing.T) {
	type group struct {
		a     schedule.Algorithm
		n     int
		racks []int
	}
	var groups []group
	for n := 2; n <= 130; n++ {
		for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Sequential, schedule.Chain, schedule.BinomialTree} {
			groups = append(groups, group{a, n, nil})
		}
		for _, count := range []int{1, 2, 3, 5, 8, n} {
			racks, blocks := make([]int, n), make([]int, n)
			for i := range n {
				racks[i], blocks[i] = i%count, i*count/n
			}
			groups = append(groups, group{schedule.Hybrid, n, racks}, group{schedule.Hybrid, n, blocks})
		}
	}
	needed := false // two blocks, because with one the first sender is another
	for _, g := range groups {
		var racks *schedule.Racks
		if g.racks != nil {
			racks, _ = schedule.RacksOf(g.racks)
		}
		least := minBlocks(g.a, g.n, racks)
		for i := 1; i < g.n; i++ {
			e, err := New(Config{Members: memberNames(g.n), Self: i, Algorithm: g.a, Racks: g.racks})
			if err != nil {
				t.Fatal(err)
			}
			for k := int64(1); k <= 64; k++ {
				s, err := schedule.New(g.a, g.n, k, racks)
				if err != nil {
					t.Fatal(err)
				}
				node, _ := s.Node(i)
				first, ok := node.NextRecv(-1)
				if !ok {
					t.Fatalf("%+v: node %d receives nothing", g, i)
				}
				switch {
				case k < least:
					needed = needed || first.Peer != e.first
				case first.Peer != e.first:
					t.Fatalf("%v, n=%d, k=%d: node %d first hears of %d instead of %d", g.a, g.n, k, i, first.Peer, e.first)
				}
			}
			if testing.Short() || g.n > 33 {
				i += 7
			}
		}
	}
	if !needed {
		t.Error("one block would always do")
	}
}

// Blocks lie end to end and make up the message, none but the last two is short,
// and the immediate value says the size.
func TestShapes(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8} {
		e, _ := New(Config{Members: memberNames(n), BlockSize: 16})
		for size := range int64(200) {
			s, ok := e.shapeOf(size)
			if least := (size + s.blocks - 1) / s.blocks; size <= 16 && s.each != least {
				t.Fatalf("n=%d, %d bytes in blocks of %d, not %d", n, size, s.each, least)
			}
			if !ok || s.imm() != uint32(size) || s.blocks < e.minBlocks || s.blocks > max(2, (size+15)/16) {
				t.Fatalf("n=%d, %d bytes: %+v", n, size, s)
			}
			at := int64(0)
			for b := range s.blocks {
				span := s.span(7, b)
				if span.Message != 7 || span.Off != at || span.Len > 16 || span.Len < 0 || b < s.blocks-2 && span.Len != 16 {
					t.Fatalf("n=%d, %d bytes: block %d is %+v", n, size, b, span)
				}
				at += int64(span.Len)
			}
			if at != size {
				t.Fatalf("n=%d, %d bytes: the blocks have %d", n, size, at)
			}
		}
	}
	e, _ := New(Config{Members: memberNames(3)})
	for _, c := range []struct {
		size int64
		imm  uint32
		ok   bool
	}{
		{1<<31 - 1, 1<<31 - 1, true},
		{1 << 31, 1<<31 | 2047, true},
		{1<<31 + 1, 1<<31 | 2048, true},
		{1 << 51, 1<<32 - 1, true},
		{1<<51 + 1, 0, false},
		{1<<63 - 1, 0, false},
	} {
		s, ok := e.shapeOf(c.size)
		if ok != c.ok || ok && s.imm() != c.imm {
			t.Errorf("%d bytes: %+v, %v", c.size, s, ok)
		}
		if err := e.CanSend(c.size); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrSize) {
			t.Errorf("%d bytes: %v", c.size, err)
		}
	}
	if err := e.CanSend(-1); !errors.Is(err, ErrSize) {
		t.Errorf("-1 bytes: %v", err)
	}
}

// A transport that reports Sent without a send does no harm.
func TestSentNothing(t *testing.T) {
	e, err := New(Config{Members: memberNames(2)})
	if err != nil {
		t.Fatal(err)
	}
	e.Sent(1)
	e.Sent(7)
}

// Which members may send, and when.
func TestSendErrors(t *testing.T) {
	root, _ := New(Config{Members: memberNames(1)})
	if err := root.Send(1); !errors.Is(err, ErrClosed) {
		t.Errorf("before the group is joined: %v", err)
	}
	if a, ok := root.Next(); !ok || a.Kind != Joined {
		t.Fatalf("%+v, %v", a, ok)
	}
	if err := root.Send(1 << 62); !errors.Is(err, ErrSize) {
		t.Errorf("too large: %v", err)
	}
	root.Close()
	if err := root.Send(1); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	other, _ := New(Config{Members: memberNames(2), Self: 1})
	if err := other.CanSend(1); !errors.Is(err, ErrNotRoot) {
		t.Errorf("not the root: %v", err)
	}
	other.Leave("x")
	var f *FailedError
	if err := other.Send(1); !errors.As(err, &f) {
		t.Errorf("failed: %v", err)
	}
}

// A failure says who has reported it.
func TestReporter(t *testing.T) {
	for _, c := range []struct {
		fails func(e *Engine)
		want  int
	}{
		{func(e *Engine) { e.Down(2, errors.New("silent")) }, 0},
		{func(e *Engine) { e.Told(1, (&control{kind: kindFailed, number: 2, value: 1, code: 2}).append(nil)) }, 1},
		{func(e *Engine) { e.Told(1, (&control{kind: kindFailed, number: 2, value: 3, code: 2}).append(nil)) }, 3},
		{func(e *Engine) {
			e.Told(1, (&control{kind: kindFailed, number: 2, value: notFound, code: 2}).append(nil))
		}, 1},
	} {
		e, _ := New(Config{Members: memberNames(4)})
		c.fails(e)
		if f := e.failure; f == nil || f.Suspect != 2 || f.Reporter != c.want {
			t.Errorf("%+v, want reporter %d", f, c.want)
		}
	}
}

// What others had of a former group is known.
func TestHave(t *testing.T) {
	s := newSimulatorOf(t, 1, Config{}, 4, func(i int, c *Config) { c.Have = int64(10 * i) })
	s.run()
	s.checkClean()
	for _, m := range s.members {
		for i := range 4 {
			if m.Have(i) != int64(10*i) {
				t.Errorf("member %d: member %d has %d", m.cfg.Self, i, m.Have(i))
			}
		}
	}
}

// Messages counts those that wait, too, also when the group has failed.
func TestMessages(t *testing.T) {
	o := alone(t, 0, 2, Config{})
	for i := range int64(Window + 2) {
		if o.send(3); o.Messages() != i+1 {
			t.Errorf("%d messages after %d", o.Messages(), i+1)
		}
	}
	if o.Leave("enough"); o.Messages() != Window+2 {
		t.Errorf("%d messages after the failure", o.Messages())
	}
}

// Every control message is read as it was written, and nothing else is read.
func TestControl(t *testing.T) {
	h := hello{Nodes: 1, BlockSize: 2, Algorithm: 3, Self: 4, Counts: 1, Have: 5}
	h.digest([]string{"a", "b"}, []int{1, 2})
	for _, c := range []control{
		{kind: kindHello, hello: h},
		{kind: kindSize, number: 1, value: 1<<63 - 1},
		{kind: kindClose, number: 2},
		{kind: kindHave, number: 3},
		{kind: kindDone, number: 4},
		{kind: kindFailed, number: 5, value: 3, code: 2, text: "why not? ü"},
		{kind: kindFailed, number: 5, code: 2, text: ""},
		{kind: kindFailed, number: 5, value: notFound, code: 2, text: "of an earlier release"},
		{kind: kindAsk, number: 6},
		{kind: kindTold, number: 7},
		{kind: kindCount, number: 8},
	} {
		b := c.append(nil)
		got, err := parse(b)
		if err != nil || got != c {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
		for n := range b {
			if c.kind == kindFailed && n >= len(b)-len(c.text)-found {
				break // a shorter text
			}
			if _, err := parse(b[:n]); err == nil {
				t.Errorf("%+v: %d of %d bytes are enough", c, n, len(b))
			}
		}
		if _, err := parse(append(b, make([]byte, maxText+found+1)...)); err == nil {
			t.Errorf("%+v: more bytes are taken", c)
		}
	}
	other := (&control{kind: kindHello, hello: h}).append(nil)
	other[len(magic)]++
	if _, err := parse(other); err == nil {
		t.Error("another version is taken")
	}
	other[len(magic)]--
	other[len(magic)+1+4+4] = 2 // a flag
	if _, err := parse(other); err == nil {
		t.Error("a flag of 2 is taken")
	}
	for _, c := range []control{
		{kind: kindSize, number: -1}, {kind: kindSize, value: -1}, {kind: kindClose, number: -1}, {kind: kindFailed, number: -1 << 63},
		{kind: kindHello, hello: hello{Have: -1}},
	} {
		if _, err := parse(c.append(nil)); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	long := control{kind: kindFailed, text: strings.Repeat("x", maxText)}
	if got, err := parse(long.append(nil)); err != nil || got != long {
		t.Errorf("a text of %d bytes: %+v, %v", maxText, got, err)
	}
	if _, err := parse(nil); err == nil {
		t.Error("nothing is taken")
	}
	if got := printable("a\x1b[2Jb\xff\n"); got != "a?[2Jb??" {
		t.Errorf("%q", got)
	}
	if got := printable(strings.Repeat("ü", 1000)); len(got) != maxText-maxText%2 { // whole characters
		t.Errorf("%d bytes", len(got))
	}
}

func FuzzControl(f *testing.F) {
	for _, c := range []control{
		{kind: kindHello}, {kind: kindSize, number: 1, value: big}, {kind: kindClose}, {kind: kindFailed, code: 1, text: "x"}, {kind: kindAsk},
	} {
		f.Add(c.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parse(b)
		if err != nil {
			return
		}
		again, err := parse(c.append(nil))
		if err != nil || again != c {
			t.Fatalf("%x: %+v is read again as %+v, %v", b, c, again, err)
		}
		if n := len(c.append(nil)); n > 4096 {
			t.Fatalf("%x: %d bytes", b, n)
		}
	})
}

// FuzzEngine feeds one member any events. It must not panic, must always come to
// rest, and after its end do nothing.
func FuzzEngine(f *testing.F) {
	f.Add(uint8(4), uint8(1), []byte{0, 0, 1, 2, 3})
	f.Add(uint8(5), uint8(0), slices.Repeat([]byte{0, 1, 0, 2, 0, 3, 0, 4, 6, 9, 1, 1, 3, 1}, 5))
	f.Add(uint8(3), uint8(2), slices.Repeat([]byte{0, 0, 0, 1, 2, 0, 8, 4, 0, 9, 5, 3, 1, 1, 8}, 9))
	f.Fuzz(func(t *testing.T, n, self uint8, script []byte) {
		nodes := 1 + int(n%9)
		cfg := Config{Members: memberNames(nodes), Self: int(self) % nodes, BlockSize: 8, Ahead: int(n>>4) % 4, SmallMax: int(self>>4) % 4 * 20, Everywhere: n&8 > 0}
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		next := func() int {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return int(b)
		}
		ended, asked := false, int64(0)
		for {
			for actions := 0; ; actions++ {
				a, ok := e.Next()
				if !ok {
					break
				}
				if ended {
					t.Fatalf("after the end: %+v", a)
				}
				if actions > 20*nodes+10000 {
					t.Fatalf("no rest: %+v", a)
				}
				if s := a.Span; s.Len < 0 || s.Len > max(8, cfg.SmallMax) || s.Off < 0 || s.Message < Spare {
					t.Fatalf("%+v", a)
				}
				if a.Kind <= Tell && (a.Peer == cfg.Self || a.Peer < 0 || a.Peer >= nodes) {
					t.Fatalf("%+v", a)
				}
				ended = a.Kind == Closed || a.Kind == Failed
				if a.Kind == Open {
					asked = a.Size
				}
			}
			if len(script) == 0 {
				return
			}
			peer := next() % (nodes + 1)
			switch next() % 14 {
			case 12:
				e.Small(peer, uint32(next()%16), next()%70)
			case 13:
				e.Freed(peer, next()%40-2)
			case 0:
				h := control{kind: kindHello, hello: e.mine}
				h.hello.Self, h.hello.Counts = uint32(peer), 0
				if peer == 0 {
					h.hello.Counts = n >> 3 & 1
				}
				e.Told(peer, h.append(nil))
			case 1:
				e.Ready(peer)
			case 2:
				e.Received(peer, uint32(next()), next()%10)
			case 3:
				e.Sent(peer)
			case 4:
				e.Received(peer, uint32(next())<<24|uint32(next()), next()%10)
			case 5:
				if asked < 1<<20 { // no application has memory for more
					e.Provide()
				}
			case 6:
				_ = e.Send(int64(next()) << (next() % 60))
			case 7:
				n := min(next()%20, len(script))
				e.Told(peer, script[:n])
				script = script[n:]
			case 8:
				c := control{kind: kind(2 + next()%9), number: int64(next() % 8), value: int64(next()) << 31, code: byte(next() % 7)}
				e.Told(peer, c.append(nil))
			case 9:
				if next()%4 == 0 {
					e.Close()
				}
			case 10:
				if next()%8 == 0 {
					e.Down(peer, errors.New("gone"))
				}
			case 11:
				if next()%16 == 0 {
					e.Refuse("full")
				}
			}
		}
	})
}

// In the steady state nothing is allocated, by any member.
func TestNoAllocations(t *testing.T) {
	for _, n := range []int{2, 5, 8} {
		members := make([]*Engine, n)
		// A network that delivers at once, and doesn't allocate either.
		type arrival struct {
			kind     ActionKind
			from, to int
			imm      uint32
			n        int
		}
		queue := make([]arrival, 0, 1<<14)
		told, nTold, everywhere := make([][]byte, 256), 0, int64(0)
		pump := func(e *Engine) {
			for {
				a, ok := e.Next()
				if !ok {
					return
				}
				switch a.Kind {
				case PostRecv, SendBlock:
					queue = append(queue, arrival{a.Kind, e.cfg.Self, a.Peer, a.Imm, a.Span.Len})
				case Tell:
					nTold++
					msg := &told[nTold%len(told)]
					*msg = append((*msg)[:0], a.Msg...)
					queue = append(queue, arrival{a.Kind, e.cfg.Self, a.Peer, 0, nTold % len(told)})
				case Everywhere:
					everywhere = a.Size
				case Open:
					e.Provide()
				}
			}
		}
		run := func() {
			for len(queue) > 0 {
				q := queue[0]
				queue = slices.Delete(queue, 0, 1)
				e := members[q.to]
				switch q.kind {
				case PostRecv:
					e.Ready(q.from)
				case SendBlock:
					e.Received(q.from, q.imm, q.n)
					members[q.from].Sent(q.to)
					pump(members[q.from])
				case Tell:
					e.Told(q.from, told[q.n])
				}
				pump(e)
			}
		}
		for i := range members {
			members[i], _ = New(Config{Members: memberNames(n), Self: i, BlockSize: 8, Everywhere: true})
		}
		for _, e := range members {
			pump(e)
		}
		run()
		message := func() {
			if err := members[0].Send(8 * 100); err != nil {
				t.Fatal(err)
			}
			pump(members[0])
			run()
		}
		for range len(told) {
			message() // until all buffers have been used
		}
		before := members[n-1].complete
		if got := testing.AllocsPerRun(20, message); got != 0 {
			t.Errorf("n=%d: %v allocations for a message of 100 blocks", n, got)
		}
		if members[n-1].complete != before+21 {
			t.Errorf("n=%d: nothing was measured", n)
		}
		if everywhere != before+21 {
			t.Errorf("n=%d: %d messages are everywhere", n, everywhere)
		}
	}
}
