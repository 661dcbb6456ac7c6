package mcrdma

import (
	"testing"

	"pgregory.net/rapid"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// TestPacketsUnderWay: no more packets are posted than the switches take, those of whole operations, and all are posted
// in the end, in each of a number of formations.
func TestPacketsUnderWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q opQueue
		limit := rapid.Uint32Range(0, 30).Draw(t, "limit")
		most := uint64(max(limit, maxNudges+1) - maxNudges)
		if limit == 0 {
			most = mergedPackets - maxNudges
		}
		for range rapid.IntRange(1, 3).Draw(t, "formations") {
			q.window = windowOf(&mcrdmav1.Connection{Mtu: 256, MaxPackets: limit})
			for range rapid.IntRange(0, 30).Draw(t, "operations") {
				op := &Op{size: uint64(rapid.IntRange(0, 40*256).Draw(t, "bytes"))}
				if n := max(1, (op.size+255)/256); (q.window.fits(op) == nil) != (n <= most) {
					t.Fatalf("%d packets, at most %d: %v", n, most, q.window.fits(op))
				} else if n <= most {
					q.push(op)
				}
			}
			var under []uint64
			sum := uint64(0)
			for rapid.IntRange(0, 50).Draw(t, "goes on") > 0 {
				if o := q.next(); o != nil && rapid.Bool().Draw(t, "post") {
					q.advance()
					under = append(under, max(1, (o.op.size+255)/256))
					if sum += under[len(under)-1]; sum > most {
						t.Fatalf("%d packets are under way, %d may be", sum, most)
					}
				} else if len(under) > 0 {
					q.pop()
					sum, under = sum-under[0], under[1:]
				} else if o == nil && q.ops.len() > 0 {
					t.Fatal("nothing is under way, and nothing can be posted")
				}
			}
			q.rewind()
		}
		if err := windowOf(nil).fits(&Op{size: 1 << 31}); err != nil {
			t.Fatal("by hosts: ", err)
		}
	})
}

// TestQueue plays a sender and a receiver whose connection is lost now and then: each
// message must arrive once and in order, whatever is replayed.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q opQueue
		var wire []uint64 // operations under way
		var ops []*Op     // all, by their number
		popped := 0
		// A receiver: its position in this formation, and what it has.
		var have uint64
		var got []int // numbers of messages as they were delivered
		drop, ever := uint64(0), uint64(0)
		pop := func() {
			if op := q.pop(); op != ops[popped] {
				t.Fatalf("operation %d completed out of order", popped)
			}
			popped++
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				op := &Op{Kind: Kind(rapid.IntRange(0, 3).Draw(t, "kind"))}
				ops = append(ops, op)
				q.push(op)
			case 1:
				if o := q.next(); o != nil {
					number := q.first + uint64(q.posted)
					if o.op != ops[number] {
						t.Fatalf("next is not operation %d", number)
					}
					if again := q.advance(); again != (number < ever) {
						t.Fatalf("operation %d is said to be posted again: %v", number, again)
					}
					ever = max(ever, number+1)
					wire = append(wire, number)
				}
			case 2: // something arrives
				if len(wire) > 0 {
					n := wire[0]
					wire = wire[1:]
					if ops[n].Kind.message() {
						if drop > 0 {
							drop--
						} else {
							have++
							got = append(got, int(n))
						}
					}
					if rapid.Bool().Draw(t, "acknowledged") {
						for popped <= int(n) {
							pop()
						}
					}
				}
			case 3: // the formation is lost
				sent := q.sent()
				if have > sent {
					t.Fatalf("%d messages arrived, %d were sent", have, sent)
				}
				// Another member may have less, but never less than is complete.
				base := rapid.Uint64Range(q.before(0), have).Draw(t, "have")
				q.rewind()
				wire = nil
				n := q.had(base)
				if q.before(n) != base {
					t.Fatalf("%d messages come before operation %d, all have %d", q.before(n), n, base)
				}
				for range n {
					pop()
				}
				if q.before(0) != base {
					t.Fatalf("goes on after %d messages, all have %d", q.before(0), base)
				}
				drop = have - base
			case 4:
				if q.ops.len() != len(ops)-popped || q.first != uint64(popped) {
					t.Fatalf("%d in the queue from %d, %d submitted, %d complete", q.ops.len(), q.first, len(ops), popped)
				}
			}
		}
		next := 0
		for n, op := range ops {
			if op.Kind.message() && next < len(got) {
				if got[next] != n {
					t.Fatalf("delivered %v", got)
				}
				next++
			}
		}
		if next < len(got) {
			t.Fatalf("delivered %v", got)
		}
	})
}

// TestRenumber: all receivers that had something are gone, and the next formation has new
// ones only, which count from what was posted. Nothing that is not complete counts as
// theirs.
func TestRenumber(t *testing.T) {
	var q opQueue
	for _, k := range []Kind{OpSend, OpSend, OpWrite, OpWriteImm, OpSend} {
		q.push(&Op{Kind: k})
	}
	q.advance()
	q.pop() // the first is complete
	for range 3 {
		q.advance()
	}
	q.rewind()
	sent := q.sent()
	if sent != 3 || q.had(sent) != 3 {
		t.Fatalf("sent %d, had %d", sent, q.had(sent))
	}
	q.renumber(sent)
	if q.had(sent) != 0 || q.before(0) != sent || q.sent() != sent {
		t.Errorf("had %d, before %d, sent %d", q.had(sent), q.before(0), q.sent())
	}
	for i, want := range []uint64{4, 4, 5, 6} {
		q.advance()
		if q.sent() != want {
			t.Errorf("after %d operations %d messages are sent, want %d", i+1, q.sent(), want)
		}
	}
}

// TestWindowOf: a daemon that does not say how many packets may be under way lets through as many as switches can merge.
func TestWindowOf(t *testing.T) {
	if w, want := windowOf(&mcrdmav1.Connection{Mtu: 1024}), (window{1024, 1<<21 - maxNudges}); w != want {
		t.Errorf("%+v, want %+v", w, want)
	}
}
