package mcrdma

import (
	"context"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestNoAllocations: in the steady state, an operation by switches allocates nothing, at
// the sender and at the receiver.
func TestNoAllocations(t *testing.T) {
	if testenv.Race {
		t.Skip("optional: the race detector allocates")
	}
	r := newSpeedRig(t, 1, false, GroupConfig{Depth: 8})
	ctx := context.Background()
	done := make(chan struct{}, 1)
	pieces := []Piece{r.mem.Slice(0, 100), r.mem.Slice(5000, 3000)}
	op := &Op{Kind: OpWrite, Pieces: pieces, Done: func(*Op) { done <- struct{}{} }}
	at := 0
	submit := func() {
		at = (at + 1) % 1000
		op.At.Offset = uint64(at)
		if err := r.g.Submit(ctx, op); err != nil {
			t.Fatal(err)
		}
		<-done
	}
	write := func() {
		if err := r.g.Write(ctx, At{0, 7}, pieces[0], pieces[1]); err != nil {
			t.Fatal(err)
		}
	}
	m := r.rs[0].m
	receive := r.rs[0].mem.Slice(regionSize, 4000)
	message := func() {
		if err := m.PostRecv(receive); err != nil {
			t.Fatal(err)
		}
		if err := r.g.SendImm(ctx, 1, pieces...); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for name, f := range map[string]func(){"Submit": submit, "Write": write, "SendImm and Recv": message} {
		for range 100 {
			f()
		}
		// What other goroutines of the process allocate now and then doesn't count.
		if n := testing.AllocsPerRun(2000, f); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	for name, p := range paths {
		for _, size := range []int{64, 64 << 10} {
			b.Run(name+"/"+map[int]string{64: "64B", 64 << 10: "64KiB"}[size], func(b *testing.B) {
				r := newSpeedRig(b, p.receivers, p.relay, p.cfg)
				room := make(chan *Op, DefaultDepth)
				for range cap(room) {
					room <- &Op{Kind: OpWrite, Pieces: []Piece{r.mem.Slice(0, size)}, Done: func(op *Op) { room <- op }}
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := r.g.Submit(context.Background(), <-room); err != nil {
						b.Fatal(err)
					}
				}
				for range cap(room) {
					<-room
				}
			})
		}
	}
}
