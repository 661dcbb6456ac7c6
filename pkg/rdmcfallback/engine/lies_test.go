package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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
		text    string // what it is said to have done
	}{
		"two greetings": {1, 3, Config{}, nil, func(o odd) {
			o.Told(2, (&control{kind: kindHello, hello: o.greeting(2, 0)}).append(nil))
		}, 2, "it greeted twice"},
		"ready for everything": {1, 3, Config{}, func(o odd) {
			for range maxCredits {
				o.Ready(2)
			}
		}, func(o odd) { o.Ready(2) }, 2, "it is ready for 65 blocks"},
		"a block unasked": {3, 4, Config{}, nil, func(o odd) { o.receive(2, 3, 3) }, 2, "it sent a block that it was not asked for"},

		"failed by no member": {3, 4, Config{}, nil, func(o odd) {
			o.Told(2, (&control{kind: kindFailed, number: 4, code: 3}).append(nil))
		}, 2, "it told that member 4 failed with code 3"},
		"reported by no member": {3, 4, Config{}, nil, func(o odd) {
			o.Told(2, (&control{kind: kindFailed, number: 1, value: 4, code: 3}).append(nil))
		}, 2, "it told that member 1 failed with code 3"},
		"failed for no reason": {3, 4, Config{}, nil, func(o odd) {
			o.Told(2, (&control{kind: kindFailed, number: 1, code: 6}).append(nil))
		}, 2, "it told that member 1 failed with code 6"},
		"another size":             {3, 4, Config{}, func(o odd) { o.receive(1, 9, 4) }, func(o odd) { o.receive(2, 8, 3) }, 2, "block 1 of message 0 came with 3 bytes and immediate value 0x8 instead of 4 and 0x9"},
		"closed by a member":       {3, 4, Config{}, nil, func(o odd) { o.tell(2, kindClose, 0, 0) }, 2, "it sent a control message of kind 3, which only the root may"},
		"done by a member":         {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 0, 0) }, func(o odd) { o.tell(2, kindDone, 0, 0) }, 2, "it sent a control message of kind 5, which only the root may"},
		"size by a member":         {3, 4, Config{}, nil, func(o odd) { o.tell(2, kindSize, 0, big) }, 2, "it sent a control message of kind 2, which only the root may"},
		"told by a member":         {3, 4, Config{}, func(o odd) { o.receive(1, big|9, 4) }, func(o odd) { o.tell(2, kindTold, 1, 0) }, 2, "it sent a control message of kind 8, which only the root may"},
		"size by a member to root": {0, 4, Config{}, nil, func(o odd) { o.tell(2, kindSize, 0, big) }, 2, "it sent a control message of kind 2, which only the root may"},
		"closed twice":             {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 1, 0) }, func(o odd) { o.tell(0, kindClose, 1, 0) }, 0, "it told that there are 1 messages, after it sent 0"},
		"closed below": {3, 4, Config{}, func(o odd) { o.receive(1, 3, 3) },
			func(o odd) { o.tell(0, kindClose, 0, 0) }, 0, "it told that there are 0 messages, after it sent 1"},
		"done before have": {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 1, 0) }, func(o odd) { o.tell(0, kindDone, 1, 0) }, 0, "it announced that all members have all 1 messages, but this member has 0"},
		"done with more":   {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 0, 0) }, func(o odd) { o.tell(0, kindDone, 1, 0) }, 0, "it announced that all members have all 1 messages, but this member has 0"},
		"have before close": {0, 3, Config{}, nil, func(o odd) {
			o.tell(1, kindHave, 0, 0)
		}, 1, "it told that it has all 0 messages"},
		"have twice": {0, 3, Config{}, func(o odd) { o.end(); o.tell(1, kindHave, 0, 0) }, func(o odd) { o.tell(1, kindHave, 0, 0) }, 1, "it told that it has all 0 messages"},
		"have more":  {0, 3, Config{}, func(o odd) { o.Close() }, func(o odd) { o.tell(1, kindHave, 1, 0) }, 1, "it told that it has all 1 messages"},
		"have to a member": {3, 4, Config{}, nil, func(o odd) {
			o.tell(2, kindHave, 0, 0)
		}, 2, "it told that it has all 0 messages"},

		"count unasked":     {0, 3, Config{}, func(o odd) { o.send(3) }, func(o odd) { o.tell(1, kindCount, 1, 0) }, 1, "it told that it has 1 messages"},
		"count to a member": {3, 4, asking, nil, func(o odd) { o.tell(2, kindCount, 1, 0) }, 2, "it told that it has 1 messages"},
		"count of what was not sent": {0, 3, asking, func(o odd) { o.send(3); o.tell(1, kindCount, 1, 0) },
			func(o odd) { o.tell(1, kindCount, 2, 0) }, 1, "it told that it has 2 messages"},
		"count of nothing": {0, 3, asking, func(o odd) { o.send(3) }, func(o odd) { o.tell(1, kindCount, 0, 0) }, 1, "it told that it has 0 messages"},
		"count going back": {0, 3, asking, func(o odd) { o.send(3); o.send(3); o.tell(1, kindCount, 2, 0) },
			func(o odd) { o.tell(1, kindCount, 1, 0) }, 1, "it told that it has 1 messages"},
		"count again":      {0, 3, asking, func(o odd) { o.send(3); o.tell(1, kindCount, 1, 0) }, func(o odd) { o.tell(1, kindCount, 1, 0) }, 1, "it told that it has 1 messages"},
		"count after have": {0, 3, asking, func(o odd) { o.send(3); o.end(); o.tell(1, kindHave, 1, 0) }, func(o odd) { o.tell(1, kindCount, 1, 0) }, 1, "it told that it has 1 messages"},

		"a message too many": {3, 4, Config{}, func(o odd) { o.receive(1, 3, 3); o.tell(0, kindClose, 1, 0) },
			// The spare block was posted before the end was known.
			func(o odd) { o.receive(1, 3, 3) }, 1, "it sent message 1; there are only 1"},
		"large, but the next one": {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 1, big) }, func(o odd) { o.receive(1, big|9, 4) }, 1, "it sent message 0 with immediate value 0x80000009, but the root announced others"},
		"large, but not by its value": {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 0, big) },
			func(o odd) { o.receive(1, 3, 3) }, 1, "it sent message 0 with immediate value 0x3, but the root announced others"},
		"large, but another size": {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 0, big) }, func(o odd) { o.receive(1, big|9, 4) }, 1, "message 0 of 2147483648 bytes came with immediate value 0x80000009"},
		"large, but not announced": {3, 4, Config{}, func(o odd) { o.receive(1, big|9, 4) }, func(o odd) {
			o.tell(0, kindTold, 1, 0)
		}, 1, "it sent a message with immediate value 0x80000009, of which the root doesn't know"},
		"told unasked":   {3, 4, Config{}, nil, func(o odd) { o.tell(0, kindTold, 1, 0) }, 0, "it answered question 1, after 0 of 0"},
		"told too early": {3, 4, Config{}, func(o odd) { o.receive(1, big|9, 4) }, func(o odd) { o.tell(0, kindTold, 2, 0) }, 0, "it answered question 2, after 0 of 1"},
		"told twice": {3, 4, ring, func(o odd) {
			o.receive(1, 10, 4)
			o.tell(0, kindSize, 0, 10)
			o.tell(0, kindTold, 1, 0)
		}, func(o odd) { o.tell(0, kindTold, 1, 0) }, 0, "it answered question 1, after 1 of 1"},
		// Its value is just that of a message of as many bytes.
		"large, but not yet told": {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 1, big) },
			func(o odd) { o.receive(1, big|715827882, 4) }, 1, "it sent message 0 with immediate value 0xaaaaaaaa, but the root announced others"},
		"a short first block":  {3, 4, Config{}, nil, func(o odd) { o.receive(1, 9, 3) }, 1, "its first block of message 0 has 3 bytes instead of 4"},
		"a small size told":    {3, 4, Config{}, nil, func(o odd) { o.tell(0, kindSize, 0, big-1) }, 0, "it told that message 0 has 2147483647 bytes, after message -1"},
		"a size after the end": {3, 4, Config{}, func(o odd) { o.tell(0, kindClose, 9, 0) }, func(o odd) { o.tell(0, kindSize, 2, big) }, 0, "it told that message 2 has 2147483648 bytes, after message -1"},
		"sizes backwards":      {3, 4, Config{}, func(o odd) { o.tell(0, kindSize, 2, big) }, func(o odd) { o.tell(0, kindSize, 2, big) }, 0, "it told that message 2 has 2147483648 bytes, after message 2"},
		"sizes without end": {3, 4, Config{}, func(o odd) {
			for i := range int64(Window * 4) {
				o.tell(0, kindSize, i, big)
			}
		}, func(o odd) { o.tell(0, kindSize, 99, big) }, 0, "it told that message 99 has 2147483648 bytes, after message 15"},

		"small without ring":   {3, 4, Config{}, nil, func(o odd) { o.Small(0, 0, 1) }, 0, "it sent a small message of 1 bytes, the 1. here"},
		"small by a member":    {3, 4, ring, nil, func(o odd) { o.Small(1, 0, 1) }, 1, "it sent a small message of 1 bytes, the 1. here"},
		"small and too large":  {3, 4, ring, nil, func(o odd) { o.Small(0, 0, 10) }, 0, "it sent a small message of 10 bytes, the 1. here"},
		"small again":          {3, 4, ring, func(o odd) { o.Small(0, 0, 1); o.rest() }, func(o odd) { o.Small(0, 0, 1) }, 0, "it sent message 0 twice"},
		"small after the end":  {3, 4, ring, func(o odd) { o.tell(0, kindSize, 0, 10); o.tell(0, kindClose, 1, 0) }, func(o odd) { o.Small(0, 3, 1) }, 0, "it sent small message 3; there are only 1"},
		"small, of none":       {3, 4, ring, func(o odd) { o.tell(0, kindClose, 0, 0) }, func(o odd) { o.Small(0, 0, 1); o.rest() }, 0, "it sent small message 0; there are only 0"},
		"the end before small": {3, 4, ring, func(o odd) { o.tell(0, kindSize, 0, 10); o.Small(0, 2, 1) }, func(o odd) { o.tell(0, kindClose, 2, 0) }, 0, "it sent small message 2; there are only 2"},
		"small and told": {3, 4, ring, func(o odd) { o.tell(0, kindSize, 0, 10) }, func(o odd) {
			o.Small(0, 0, 1)
			o.rest()
		}, 0, "it sent message 0 as a small one and as another"},
		"a small one left out": {3, 4, ring, func(o odd) { o.Small(0, 1, 1); o.rest(); o.tell(0, kindClose, 2, 0) }, func(o odd) {
			o.tell(0, kindTold, 1, 0)
		}, 0, "it sent small message 1, but never message 0"},
		"a small one left out before a large one": {3, 4, ring, func(o odd) { o.Small(0, 1, 1); o.rest() }, func(o odd) {
			o.tell(0, kindSize, 2, 10)
		}, 0, "it sent small message 1, but never message 0"},
		"too many small": {3, 4, ring, func(o odd) {
			for i := range SmallSlots {
				o.Small(0, uint32(i+1), 1)
			}
		}, func(o odd) { o.Small(0, SmallSlots+1, 1) }, 0, "it sent a small message of 1 bytes, the 33. here"},
		"small size told":        {3, 4, ring, nil, func(o odd) { o.tell(0, kindSize, 0, 9) }, 0, "it told that message 0 has 9 bytes, after message -1"},
		"freed too much":         {0, 4, ring, nil, func(o odd) { o.Freed(2, 1) }, 2, "it freed 1 slots for small messages"},
		"freed nothing":          {0, 4, ring, nil, func(o odd) { o.Freed(2, 0) }, 2, "it freed 0 slots for small messages"},
		"freed without ring":     {0, 4, Config{}, nil, func(o odd) { o.Freed(2, 1) }, 2, "it freed 1 slots for small messages"},
		"freed at a member":      {3, 4, ring, nil, func(o odd) { o.Freed(2, 1) }, 2, "it freed 1 slots for small messages"},
		"large with ring, alone": {3, 4, ring, func(o odd) { o.receive(1, 10, 4) }, func(o odd) { o.tell(0, kindTold, 1, 0) }, 1, "it sent a message with immediate value 0xa, of which the root doesn't know"},
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
			if f := o.Failure(); !errors.Is(f, ErrProtocol) || f.Suspect != c.suspect || !strings.HasSuffix(f.Reason.Error(), "): "+c.text) {
				t.Fatalf("%v, not member %d: %s", f, c.suspect, c.text)
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

// Events that come from no peer, or when the group has failed, do nothing.
func TestIdleEvents(t *testing.T) {
	events := []func(o odd, peer int){
		func(o odd, peer int) { o.Told(peer, nil) },
		func(o odd, peer int) { o.Ready(peer) },
		func(o odd, peer int) { o.Sent(peer) },
		func(o odd, peer int) { o.Received(peer, 3, 3) },
		func(o odd, peer int) { o.Small(peer, 0, 1) },
		func(o odd, peer int) { o.Freed(peer, 0) },
		func(o odd, peer int) { o.Down(peer, errors.New("gone")) },
	}
	for i, event := range events {
		for _, peer := range []int{-1, 1, 4} {
			o := alone(t, 1, 4, Config{})
			if event(o, peer); o.Failure() != nil || len(o.tells) > 0 {
				t.Errorf("event %d of peer %d: %v", i, peer, o.Failure())
			}
		}
	}
	for i, event := range append(events, func(o odd, _ int) { o.Leave("enough") }) {
		o := alone(t, 1, 4, Config{})
		o.Small(2, 0, 1)
		o.rest()
		was := o.Failure()
		if event(o, 2); was == nil || o.Failure() != was || len(o.tells) > 0 {
			t.Errorf("event %d after %v: %v", i, was, o.Failure())
		}
	}
}

// A connection that ends because its peer lied is not said to be lost.
func TestDown(t *testing.T) {
	for _, want := range []error{ErrProtocol, ErrLost} {
		o := alone(t, 1, 4, Config{})
		o.Down(2, fmt.Errorf("%w: too long", want))
		if f := o.Failure(); !errors.Is(f, want) || errors.Is(f, ErrLost) != errors.Is(want, ErrLost) || f.Suspect != 2 {
			t.Errorf("%v, when the connection ended with %v", f, want)
		}
	}
}

// The slots of small messages are free again a quarter at a time: the root does not wait for
// the ring to be empty, nor hears of each.
func TestFreedByQuarters(t *testing.T) {
	o := alone(t, 1, 2, Config{SmallMax: 9})
	var freed []int64
	for i := range uint32(32) {
		o.Small(0, i, 1)
		for a, ok := o.Next(); ok; a, ok = o.Next() {
			switch a.Kind {
			case Open:
				o.Provide()
			case FreeSmall:
				freed = append(freed, a.Size)
			}
		}
	}
	if !slices.Equal(freed, []int64{8, 8, 8, 8}) {
		t.Errorf("slots were freed by %v", freed)
	}
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
