package rc

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// TestLargestMessage: a message may be as large as the standard has it, and not a byte larger. Its memory is one MiB many times.
func TestLargestMessage(t *testing.T) {
	q := NewQP(Config{MaxSendWR: 2, MaxSGE: 2049, PathMTU: 4096}, nil)
	q.StartSend(&Config{})
	mem := make([]byte, 1<<20)
	largest := slices.Repeat([][]byte{mem}, qp.MaxMessage>>20)
	if err := q.PostSend(&qp.SendWR{Opcode: qp.OpSend}, append(largest, mem[:1])); !errors.Is(err, qp.ErrSGE) {
		t.Errorf("a byte more: %v", err)
	}
	if err := q.PostSend(&qp.SendWR{Opcode: qp.OpSend}, largest); err != nil {
		t.Error(err)
	}
}

// So may one that comes.
func TestLargestMessageThatComes(t *testing.T) {
	q := NewQP(Config{PathMTU: 4096}, nil)
	q.resp.msg = message{kind: sendMessage, done: qp.MaxMessage - 8}
	for n := 8; n <= 9; n++ {
		in := In{Payload: make([]byte, n)}
		in.Opcode = rocev2.SendLast
		if ok := q.resp.wellFormed(&in); ok != (n == 8) {
			t.Errorf("%d bytes after all but 8 of the largest message: %v", n, ok)
		}
	}
}

// TestZeroConfig: zero sizes mean the defaults, and a ring has as many entries as were asked for, or as many
// as make a power of two.
func TestZeroConfig(t *testing.T) {
	q := NewQP(Config{}, nil)
	q.StartSend(&Config{})
	full := func(what string, want int, post func() error) {
		t.Helper()
		for n := 0; ; n++ {
			if err := post(); err != nil || n > want {
				if !errors.Is(err, qp.ErrQueueFull) || n != want {
					t.Errorf("%s %d of %d: %v", what, n, want, err)
				}
				return
			}
		}
	}
	four := slices.Repeat([][]byte{make([]byte, 16_385)}, qp.DefaultSGE)
	if err := q.PostRecv(0, append(four, nil)); !errors.Is(err, qp.ErrSGE) {
		t.Errorf("one SGE more: %v", err)
	}
	full("receive", qp.DefaultWR, func() error { return q.PostRecv(0, four) })
	full("send", qp.DefaultWR, func() error { return q.PostSend(&qp.SendWR{Opcode: qp.OpSend}, four) })
	var out Out
	var asks []int
	for n := 0; q.Next(0, &out); n++ {
		if out.PayloadLen != 1024 {
			t.Errorf("packet %d has %d bytes", n, out.PayloadLen)
		}
		if out.AckReq {
			asks = append(asks, n)
		}
	}
	if want := []int{15, 31, 47, 63}; !slices.Equal(asks, want) {
		t.Errorf("acknowledgements are asked for at %d, want %d: a quarter of the window of 64", asks, want)
	}

	q = NewQP(Config{MaxRecvWR: 9}, nil)
	full("receive", 16, func() error { return q.PostRecv(0, nil) })
}

// What is complete is not held any more: its memory may be collected.
func TestMemoryIsLetGo(t *testing.T) {
	q := NewQP(Config{}, nil)
	q.StartSend(&Config{})
	var sent, received weak.Pointer[[4096]byte]
	func() {
		a, b := new([4096]byte), new([4096]byte)
		sent, received = weak.Make(a), weak.Make(b)
		if err := errors.Join(q.PostSend(&qp.SendWR{Opcode: qp.OpSend}, [][]byte{a[:]}), q.PostRecv(0, [][]byte{b[:]})); err != nil {
			t.Fatal(err)
		}
	}()
	q.SetError()
	var wc qp.WC
	if !q.NextSendWC(&wc) || !q.NextRecvWC(&wc) {
		t.Fatal("no completions")
	}
	runtime.GC()
	if sent.Value() != nil || received.Value() != nil {
		t.Errorf("of the send request: %v, of the receive request: %v", sent.Value() != nil, received.Value() != nil)
	}
	runtime.KeepAlive(q)
}

// TestQueueGrows: what is outstanding stays in order when the ring grows, wherever it begins.
func TestQueueGrows(t *testing.T) {
	for begin := range uint64(2 * firstSlots) {
		q := sendQueue{workQueue: newWorkQueue(8*firstSlots, 1)}
		n, got := uint64(0), uint64(0)
		post := func() error {
			err := q.push(&qp.SendWR{ID: n, Flags: qp.FlagSignaled}, nil, 1024, false)
			n++
			return err
		}
		take := func(until uint64) {
			q.acknowledge(until)
			for wc := (qp.WC{}); q.nextWC(&wc, 1); got++ {
				if wc.ID != got {
					t.Fatalf("begun at %d: completion of %d, want %d", begin, wc.ID, got)
				}
			}
		}
		for n < begin {
			if err := post(); err != nil {
				t.Fatal(err)
			}
			take(n)
		}
		for n < begin+8*firstSlots {
			if err := post(); err != nil {
				t.Fatalf("begun at %d: %v", begin, err)
			}
		}
		if err := post(); !errors.Is(err, qp.ErrQueueFull) {
			t.Errorf("begun at %d: one more: %v", begin, err)
		}
		if take(n); got != begin+8*firstSlots {
			t.Errorf("begun at %d: %d completions", begin, got)
		}
	}
}
