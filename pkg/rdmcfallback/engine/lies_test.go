package engine

import (
	"errors"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// An odd engine is one member; the test plays all others of its group.
type odd struct {
	*Engine
	t *testing.T
}

// alone returns member self of a group of n that has been greeted by all.
func alone(t *testing.T, self, n int, cfg Config) odd {
	t.Helper()
	cfg.Members, cfg.Self, cfg.BlockSize = memberNames(n), self, 4
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	o := odd{e, t}
	for i := range n {
		if i != self {
			o.Told(i, (&control{kind: kindHello, hello: e.greeting(uint32(i), 0)}).append(nil))
		}
	}
	o.rest()
	return o
}

// rest carries out everything, and gives memory to all messages.
func (o odd) rest() {
	for {
		a, ok := o.Next()
		if !ok {
			return
		}
		if a.Kind == Open {
			o.Provide()
		}
	}
}

func (o odd) tell(peer int, k kind, number, value int64) {
	o.Told(peer, (&control{kind: k, number: number, value: value}).append(nil))
	o.rest()
}

func (o odd) receive(peer int, imm uint32, n int) {
	o.Received(peer, imm, n)
	o.rest()
}

// What no member may send, each at the moment at which it is wrong. In a pipeline of 4
// members, member 3 first hears of member 1.
func TestLies(t *testing.T) {
	ring, asking := Config{SmallMax: 9}, Config{Everywhere: true}
	for name, c := range map[string]struct {
		self, n int
		cfg     Config
		right   func(o odd) // all is well until here
		wrong   func(o odd)
		suspect int
	}{
		"two greetings": {1, 3, Config{}, nil, func(o odd) {
			o.Told(2, (&control{kind: kindHello, hello: o.greeting(2, 0)}).append(nil))
		}, 2},
		"ready for everything": {1, 3, Config{}, func(o odd) {
			for range maxCredits {
				o.Ready(2)
			}
		}, func(o odd) { o.Ready(2) }, 2},
		"a block unasked": {3, 4, Config{}, nil, func(o odd) { o.receive(2, 3, 3) }, 2},

		"closed by a member":       {3, 4, Config{}, nil, func(o odd) { o.tell(2, kindClose, 0, 0) }, 2},
		"done by a member":         {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 0, 0) }, func(o odd) { o.tell(2, kindDone, 0, 0) }, 2},
		"size by a member":         {3, 4, Config{}, nil, func(o odd) { o.tell(2, kindSize, 0, big) }, 2},
		"told by a member":         {3, 4, Config{}, func(o odd) { o.receive(1, big|9, 4) }, func(o odd) { o.tell(2, kindTold, 1, 0) }, 2},
		"size by a member to root": {0, 4, Config{}, nil, func(o odd) { o.tell(2, kindSize, 0, big) }, 2},
		"closed twice":             {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 1, 0) }, func(o odd) { o.tell(0, kindClose, 1, 0) }, 0},
		"closed below": {3, 4, Config{}, func(o odd) { o.receive(1, 3, 3) },
			func(o odd) { o.tell(0, kindClose, 0, 0) }, 0},
		"done before have": {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 1, 0) }, func(o odd) { o.tell(0, kindDone, 1, 0) }, 0},
		"done with more":   {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 0, 0) }, func(o odd) { o.tell(0, kindDone, 1, 0) }, 0},
		"have before close": {0, 3, Config{}, nil, func(o odd) {
			o.tell(1, kindHave, 0, 0)
		}, 1},
		"have twice": {0, 3, Config{}, func(o odd) { o.end(); o.tell(1, kindHave, 0, 0) }, func(o odd) { o.tell(1, kindHave, 0, 0) }, 1},
		"have more":  {0, 3, Config{}, func(o odd) { o.Close() }, func(o odd) { o.tell(1, kindHave, 1, 0) }, 1},
		"have to a member": {3, 4, Config{}, nil, func(o odd) {
			o.tell(2, kindHave, 0, 0)
		}, 2},

		"count unasked":     {0, 3, Config{}, func(o odd) { o.send(3) }, func(o odd) { o.tell(1, kindCount, 1, 0) }, 1},
		"count to a member": {3, 4, asking, nil, func(o odd) { o.tell(2, kindCount, 1, 0) }, 2},
		"count of what was not sent": {0, 3, asking, func(o odd) { o.send(3); o.tell(1, kindCount, 1, 0) },
			func(o odd) { o.tell(1, kindCount, 2, 0) }, 1},
		"count of nothing": {0, 3, asking, func(o odd) { o.send(3) }, func(o odd) { o.tell(1, kindCount, 0, 0) }, 1},
		"count going back": {0, 3, asking, func(o odd) { o.send(3); o.send(3); o.tell(1, kindCount, 2, 0) },
			func(o odd) { o.tell(1, kindCount, 1, 0) }, 1},
		"count again":      {0, 3, asking, func(o odd) { o.send(3); o.tell(1, kindCount, 1, 0) }, func(o odd) { o.tell(1, kindCount, 1, 0) }, 1},
		"count after have": {0, 3, asking, func(o odd) { o.send(3); o.end(); o.tell(1, kindHave, 1, 0) }, func(o odd) { o.tell(1, kindCount, 1, 0) }, 1},

		"a message too many": {3, 4, Config{}, func(o odd) { o.receive(1, 3, 3); o.tell(0, kindClose, 1, 0) },
			// The spare block was posted before the end was known.
			func(o odd) { o.receive(1, 3, 3) }, 1},
		"large, but the next one": {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 1, big) }, func(o odd) { o.receive(1, big|9, 4) }, 1},
		"large, but not by its value": {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 0, big) },
			func(o odd) { o.receive(1, 3, 3) }, 1},
		"large, but another size": {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 0, big) }, func(o odd) { o.receive(1, big|9, 4) }, 1},
		"large, but not announced": {3, 4, Config{}, func(o odd) { o.receive(1, big|9, 4) }, func(o odd) {
			o.tell(0, kindTold, 1, 0)
		}, 1},
		"told unasked": {3, 4, Config{}, nil, func(o odd) { o.tell(0, kindTold, 1, 0) }, 0},
		"told twice": {3, 4, ring, func(o odd) {
			o.receive(1, 10, 4)
			o.tell(0, kindSize, 0, 10)
			o.tell(0, kindTold, 1, 0)
		}, func(o odd) { o.tell(0, kindTold, 1, 0) }, 0},
		// Its value is just that of a message of as many bytes.
		"large, but not yet told": {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 1, big) },
			func(o odd) { o.receive(1, big|715827882, 4) }, 1},
		"a short first block":  {3, 4, Config{}, nil, func(o odd) { o.receive(1, 9, 3) }, 1},
		"a small size told":    {3, 4, Config{}, nil, func(o odd) { o.tell(0, kindSize, 0, big-1) }, 0},
		"a size after the end": {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 9, 0) }, func(o odd) { o.tell(0, kindSize, 2, big) }, 0},
		"sizes backwards":      {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 2, big) }, func(o odd) { o.tell(0, kindSize, 2, big) }, 0},
		"sizes without end": {3, 4, Config{}, func(o odd) {
			for i := range int64(Window * 4) {
				o.tell(0, kindSize, i, big)
			}
		}, func(o odd) { o.tell(0, kindSize, 99, big) }, 0},

		"small without ring":   {3, 4, Config{}, nil, func(o odd) { o.Small(0, 0, 1) }, 0},
		"small by a member":    {3, 4, ring, nil, func(o odd) { o.Small(1, 0, 1) }, 1},
		"small and too large":  {3, 4, ring, nil, func(o odd) { o.Small(0, 0, 10) }, 0},
		"small again":          {3, 4, ring, func(o odd) { o.Small(0, 0, 1); o.rest() }, func(o odd) { o.Small(0, 0, 1) }, 0},
		"small after the end":  {3, 4, ring, func(o odd) { o.tell(0, kindSize, 0, 10); o.tell(0, kindClose, 1, 0) }, func(o odd) { o.Small(0, 1, 1) }, 0},
		"the end before small": {3, 4, ring, func(o odd) { o.tell(0, kindSize, 0, 10); o.Small(0, 2, 1) }, func(o odd) { o.tell(0, kindClose, 2, 0) }, 0},
		"small and told": {3, 4, ring, func(o odd) { o.tell(0, kindSize, 0, 10) }, func(o odd) {
			o.Small(0, 0, 1)
			o.rest()
		}, 0},
		"a small one left out": {3, 4, ring, func(o odd) { o.Small(0, 1, 1); o.rest(); o.tell(0, kindClose, 2, 0) }, func(o odd) {
			o.tell(0, kindTold, 1, 0)
		}, 0},
		"a small one left out before a large one": {3, 4, ring, func(o odd) { o.Small(0, 1, 1); o.rest() }, func(o odd) {
			o.tell(0, kindSize, 2, 10)
		}, 0},
		"too many small": {3, 4, ring, func(o odd) {
			for i := range SmallSlots {
				o.Small(0, uint32(i+1), 1)
			}
		}, func(o odd) { o.Small(0, SmallSlots+1, 1) }, 0},
		"small size told":        {3, 4, ring, nil, func(o odd) { o.tell(0, kindSize, 0, 9) }, 0},
		"freed too much":         {0, 4, ring, nil, func(o odd) { o.Freed(2, 1) }, 2},
		"freed nothing":          {0, 4, ring, nil, func(o odd) { o.Freed(2, 0) }, 2},
		"freed without ring":     {0, 4, Config{}, nil, func(o odd) { o.Freed(2, 1) }, 2},
		"freed at a member":      {3, 4, ring, nil, func(o odd) { o.Freed(2, 1) }, 2},
		"large with ring, alone": {3, 4, ring, func(o odd) { o.receive(1, 10, 4) }, func(o odd) { o.tell(0, kindTold, 1, 0) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := alone(t, c.self, c.n, c.cfg)
			if c.right != nil {
				c.right(o)
			}
			o.rest()
			if o.phase != open {
				t.Fatalf("too early: phase %d, %v", o.phase, o.Failure())
			}
			c.wrong(o)
			o.rest()
			if f := o.Failure(); !errors.Is(f, ErrProtocol) || f.Suspect != c.suspect {
				t.Fatalf("%v, not member %d", f, c.suspect)
			}
		})
	}
}

// send lets the root send a message.
func (o odd) send(size int64) {
	o.t.Helper()
	if err := o.Send(size); err != nil {
		o.t.Fatal(err)
	}
	o.rest()
}

// end lets the root end the group.
func (o odd) end() {
	o.Close()
	o.rest()
}

// A member that isn't the root wants to know what members have.
func TestAskingMember(t *testing.T) {
	e, _ := New(Config{Members: memberNames(3), Self: 1})
	e.Told(2, (&control{kind: kindHello, hello: e.greeting(2, 1)}).append(nil))
	if f := e.Failure(); !errors.Is(f, ErrProtocol) || f.Suspect != 2 {
		t.Fatal(f)
	}
}

// Messages that complete at the same time are told at the same time, and what the last
// message implies is not told.
func TestCountsCoalesce(t *testing.T) {
	e, _ := New(Config{Members: memberNames(2), Self: 1, BlockSize: 4, SmallMax: 9})
	e.Told(0, (&control{kind: kindHello, hello: e.greeting(0, 1)}).append(nil))
	told := func() (counts []int64) {
		for {
			a, ok := e.Next()
			if !ok {
				return counts
			}
			switch a.Kind {
			case Open:
				e.Provide()
			case Tell:
				if c, err := parse(a.Msg); err != nil {
					t.Fatal(err)
				} else if c.kind == kindCount {
					counts = append(counts, c.number)
				}
			}
		}
	}
	told()
	for _, c := range []struct {
		small int
		close int64
		want  []int64
	}{{1, 0, []int64{1}}, {3, 0, []int64{4}}, {0, 0, nil}, {2, 6, nil}} {
		for range c.small {
			e.Small(0, uint32(e.complete)+uint32(len(e.puts)), 5)
		}
		if c.close > 0 {
			e.Told(0, (&control{kind: kindClose, number: c.close}).append(nil))
		}
		if got := told(); !slices.Equal(got, c.want) {
			t.Errorf("%d small messages: told %v, want %v", c.small, got, c.want)
		}
	}
	if e.complete != 6 || !e.told {
		t.Errorf("%d messages, told %v", e.complete, e.told)
	}
}

// An answer may be so late that there is another question already, which it does not
// answer.
func TestAnswersLate(t *testing.T) {
	o := alone(t, 1, 2, Config{SmallMax: 9})
	for i := range int64(2) {
		o.receive(0, 10, 4)
		o.tell(0, kindSize, i, 10)
		o.receive(0, 10, 4)
		o.receive(0, 10, 2)
	}
	o.receive(0, 10, 4)
	o.tell(0, kindTold, 1, 0)
	o.tell(0, kindTold, 2, 0)
	if f := o.Failure(); f != nil || o.asks != 3 || o.complete != 2 {
		t.Fatalf("%v after %d questions and %d messages", f, o.asks, o.complete)
	}
	o.tell(0, kindTold, 3, 0)
	if f := o.Failure(); !errors.Is(f, ErrProtocol) || f.Suspect != 0 {
		t.Fatal(f)
	}
}

// A member that can't relay takes no more messages than it can keep apart.
func TestWindow(t *testing.T) {
	o := alone(t, 1, 3, Config{Algorithm: schedule.Chain})
	for range Window {
		o.receive(0, 4, 4)
	}
	if o.started != Window || o.complete != 0 {
		t.Fatalf("%d messages begun, %d complete", o.started, o.complete)
	}
	o.receive(0, 4, 4)
	if o.started != Window || o.spare != spareArrived {
		t.Fatalf("%d messages begun, spare %d", o.started, o.spare)
	}
	o.Ready(2)
	o.rest()
	o.Sent(2)
	o.rest()
	if o.started != Window+1 || o.complete != 1 {
		t.Fatalf("%d messages begun, %d complete", o.started, o.complete)
	}
}

// A control message comes before the greeting.
func TestNotGreeted(t *testing.T) {
	e, _ := New(Config{Members: memberNames(3), Self: 1})
	e.Told(0, (&control{kind: kindClose}).append(nil))
	if f := e.Failure(); !errors.Is(f, ErrProtocol) || f.Suspect != 0 {
		t.Fatal(f)
	}
}

// greeting returns what another member with the same configuration would say.
func (e *Engine) greeting(self uint32, counts uint8) hello {
	h := e.mine
	h.Self, h.Counts, h.Have = self, counts, 0
	return h
}
