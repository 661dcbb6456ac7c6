package unicast

import (
	"errors"
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

var seed = flag.Uint64("unicast.seed", 0, "play only the adversary with this seed")

// A sent is what is on its way from one end to the other.
type sent struct {
	op    *Op
	board *Board
}

// A side is an end, its application, and what is on its way to the other.
type side struct {
	Core
	out      []sent
	acks     uint64 // of operations that have arrived, on their way back
	boards   bool   // one has arrived, and its being sent is not known
	inbox    []int  // messages that came, by number; of this and earlier connections
	numbers  map[*Op]int
	next     int // number of the next operation
	done     int // … that is complete
	latest   uint64
	set      [Counters]uint64
	lastSeen int // number of the last operation that came
}

// TestCore: an adversary has two ends submit, set, deliver, take and lose the connection in any order. Each
// operation comes at most once and in order, none is complete that has not come, no end keeps more
// than its slots, and when all that is on its way has come, nothing waits that could go on.
func TestCore(t *testing.T) {
	for n := range uint64(3000) {
		if *seed > 0 {
			n = *seed
		}
		play(t, n)
		if t.Failed() {
			t.Fatalf("replay: go test ./pkg/mcrdma/internal/unicast -run TestCore -unicast.seed=%d", n)
		}
		if *seed > 0 {
			return
		}
	}
}

func play(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	sides := [2]*side{}
	for i := range sides {
		sides[i] = &side{Core: Core{Window: 1 + r.IntN(40)}, numbers: map[*Op]int{}, lastSeen: -1}
		sides[i].Begin()
	}
	kinds := []qp.Opcode{qp.OpWrite, qp.OpWriteImm, qp.OpSend, qp.OpSendImm, qp.OpRead}
	for range 50 + r.IntN(400) {
		i := r.IntN(2)
		s, o := sides[i], sides[1-i]
		switch r.IntN(10) {
		case 0, 1, 2:
			op := &Op{Kind: kinds[r.IntN(len(kinds))]}
			s.numbers[op] = s.next
			s.next++
			s.Submit(op)
		case 3:
			s.latest++
			c := r.IntN(Counters)
			s.set[c] = s.latest
			s.Set(c, s.latest)
		case 4:
			s.post(t)
		case 5, 6:
			s.post(t)
			s.arrive(t, o)
		case 7:
			s.ack(t)
		case 8:
			if len(s.inbox) > 0 {
				s.inbox = s.inbox[1:]
				s.Took()
			}
		case 9:
			if r.IntN(20) == 0 { // the connection is lost
				for _, s := range sides {
					for _, op := range s.End() {
						if s.numbers[op] != s.done {
							t.Errorf("operation %d fails, after %d", s.numbers[op], s.done)
						}
						s.done++
					}
					s.out, s.acks, s.boards = nil, 0, false
				}
				for _, s := range sides {
					s.Begin()
				}
			}
		}
	}
	for busy := true; busy; { // now both work, and both applications take
		busy = false
		for i, s := range sides {
			for s.post(t); len(s.out) > 0; s.post(t) {
				s.arrive(t, sides[1-i])
				busy = true
			}
			busy = busy || s.boards || s.acks > 0 || len(s.inbox) > 0
			s.ack(t)
			for ; len(s.inbox) > 0; s.inbox = s.inbox[1:] {
				s.Took()
			}
		}
	}
	for i, s := range sides {
		if s.done != s.next {
			t.Errorf("%d operations are done, of %d", s.done, s.next)
		}
		if got, want := sides[1-i].Peer(), s.set; got != want {
			t.Errorf("the counters are %v, and the other end has %v", want, got)
		}
	}
}

// post puts all that can be posted on its way.
func (s *side) post(t *testing.T) {
	for {
		if b, ok := s.Tell(); ok {
			s.out = append(s.out, sent{board: &b})
		} else if op := s.Next(); op != nil {
			s.out = append(s.out, sent{op: op})
		} else {
			break
		}
	}
	if s.posted > s.Window || s.flying > Slots {
		t.Errorf("%d operations are posted, %d of them messages", s.posted, s.flying)
	}
}

// arrive has the oldest of what is on its way come to the other end.
func (s *side) arrive(t *testing.T, o *side) {
	if len(s.out) == 0 {
		return
	}
	x := s.out[0]
	s.out = s.out[1:]
	if x.board != nil {
		if s.boards {
			t.Error("two boards are under way")
		}
		s.boards = true
		if err := o.Heard(*x.board); err != nil {
			t.Error(err)
		}
		return
	}
	n := s.numbers[x.op]
	if n <= o.lastSeen {
		t.Errorf("operation %d comes after %d", n, o.lastSeen)
	}
	o.lastSeen = n
	s.acks++
	if !x.op.message() {
		return
	}
	if err := o.Came(); err != nil {
		t.Error(err)
	}
	if o.inbox = append(o.inbox, n); len(o.inbox) > Slots {
		t.Errorf("%d messages are kept", len(o.inbox))
	}
}

// ack tells the sender what has arrived.
func (s *side) ack(t *testing.T) {
	if s.boards {
		s.boards = false
		s.Told()
	}
	ops, err := s.Complete(s.acks)
	if err != nil {
		t.Error(err)
	}
	s.acks = 0
	for _, op := range ops {
		if s.numbers[op] != s.done {
			t.Errorf("operation %d is complete, after %d", s.numbers[op], s.done)
		}
		s.done++
	}
}

// TestLimits: what docs/api.md says.
func TestLimits(t *testing.T) {
	if got, want := [...]int{Counters, Slots, MaxMessage}, [...]int{8, 16, 8192}; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestSlots: no more messages are under way than have slots to send from, whatever the peer takes; and the
// peer hears of free slots when half of them are.
func TestSlots(t *testing.T) {
	c := Core{Window: 100}
	c.Begin()
	if b, ok := c.Tell(); !ok || b.Limit != Slots {
		t.Errorf("the first board is %+v, %v", b, ok)
	}
	c.Told()
	for range 3 * Slots {
		c.Submit(&Op{Kind: qp.OpSend})
	}
	posted := func() (n int) {
		for c.Next() != nil {
			n++
		}
		return n
	}
	if n := posted(); n != 0 {
		t.Errorf("%d messages are posted before the peer has said that it takes any", n)
	}
	for i, limit := range []int64{Slots, 2 * Slots} {
		if err := c.Heard(Board{Limit: limit}); err != nil {
			t.Fatal(err)
		}
		if n, want := posted(), []int{Slots, 0}[i]; n != want {
			t.Errorf("%d messages are posted with limit %d, want %d", n, limit, want)
		}
	}
	if _, err := c.Complete(3); err != nil || posted() != 3 {
		t.Errorf("not as many as are complete: %v", err)
	}
	for n := 1; n <= Slots; n++ {
		if err := c.Came(); err != nil {
			t.Fatal(err)
		}
		c.Took()
		if b, ok := c.Tell(); ok != (n%(Slots/2) == 0) || ok && b.Limit != int64(n)+Slots {
			t.Errorf("after %d were taken: %+v, %v", n, b, ok)
		}
		c.Told()
	}
	if err := c.Came(); err != nil {
		t.Fatal(err)
	}
	c.Took()
	c.Set(0, 1)
	if b, _ := c.Tell(); b.Limit != 2*Slots+1 {
		t.Errorf("a board that goes for a counter has the limit %d, want the latest, %d", b.Limit, 2*Slots+1)
	}
	// As many in the next connection, of those that failed with this one.
	failed := c.End()
	c.Begin()
	for _, op := range failed {
		c.Submit(op)
	}
	if err := c.Heard(Board{Limit: Slots}); err != nil {
		t.Fatal(err)
	}
	if n := posted(); n != Slots {
		t.Errorf("%d messages are posted in the next connection, want %d of %d", n, Slots, len(failed))
	}
}

// TestCoreLies: what a peer cannot say.
func TestCoreLies(t *testing.T) {
	c := Core{Window: 4}
	c.Begin()
	c.Submit(&Op{Kind: qp.OpWrite})
	if c.Next() == nil {
		t.Fatal("nothing to post")
	}
	_, err := c.Complete(2)
	for what, err := range map[string]error{"two of one are complete": err, "too large a limit": c.Heard(Board{Limit: Slots + 1}), "a negative one": c.Heard(Board{Limit: -1})} {
		if !errors.Is(err, ErrPeer) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.Heard(Board{Limit: 3}); err != nil {
		t.Error(err)
	}
	if err := c.Heard(Board{Limit: 2}); !errors.Is(err, ErrPeer) {
		t.Errorf("less than before: %v", err)
	}
	for i := range Slots + 1 {
		if err := c.Came(); (err != nil) != (i == Slots) {
			t.Errorf("message %d: %v", i, err)
		}
	}
}

func FuzzWire(f *testing.F) {
	board := appendBoard(nil, Board{Limit: 5, Counters: [Counters]uint64{1, 2}})
	f.Add(board)
	h := header{Kind: kindWriteImm, Region: 1, Imm: 2, Offset: 3, Length: 4}
	f.Add(h.appendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		var h header
		if err := h.parse(b[:headerLen]); err != nil {
			if !errors.Is(err, ErrPeer) {
				t.Fatal(err)
			}
			return
		}
		if again := h.appendTo(nil); string(again) != string(b[:headerLen]) {
			t.Fatalf("%x becomes %x", b[:headerLen], again)
		}
		if h.Kind == kindBoard && len(b) >= headerLen+boardLen {
			if again := appendBoard(nil, parseBoard(b[headerLen:])); string(again) != string(b[:headerLen+boardLen]) {
				t.Fatalf("%x becomes %x", b, again)
			}
		}
	})
}
