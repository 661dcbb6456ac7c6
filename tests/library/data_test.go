package library

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// TestEqual: every kind of operation in all sizes: replicas are equal when it is done.
func TestEqual(t *testing.T) {
	sizes := []int{1, 100, 1024, 4097, 8192, 8193, 100_000, 1 << 20, 16 << 20}
	if testenv.Race {
		sizes = sizes[:7]
	}
	region := sizes[len(sizes)-1]
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		tm := l.group("s", l.hosts[0], l.hosts[1:], region, region, cfg)
		ctx := t.Context()
		for i, n := range sizes {
			fill(tm.mem.Bytes()[:n], uint64(i))
			pieces := []mcrdma.Piece{tm.mem.Slice(0, n/3), tm.mem.Slice(n/3, n-n/3)}
			l.must(tm.g.Write(ctx, mcrdma.At{}, pieces...))
			tm.same(n)
			fill(tm.mem.Bytes()[:n], uint64(i+100))
			tm.post(0)
			l.must(tm.g.WriteImm(ctx, mcrdma.At{}, uint32(i), pieces...))
			tm.recv(mcrdma.Received{N: n, Imm: uint32(i), HasImm: true, Kind: mcrdma.OpWriteImm}, nil)
			tm.same(n)
			tm.post(n)
			l.must(tm.g.Send(ctx, pieces...))
			tm.recv(mcrdma.Received{N: n, Kind: mcrdma.OpSend}, tm.mem.Bytes()[:n])
			tm.post(n)
			l.must(tm.g.SendImm(ctx, 9, pieces...))
			tm.recv(mcrdma.Received{N: n, Imm: 9, HasImm: true, Kind: mcrdma.OpSendImm}, tm.mem.Bytes()[:n])
		}
		info := tm.g.Info()
		t.Logf("%v %v, %d operations, %d bytes: %d posts, %d completions; %q", info.Path, info.Algorithm, info.Stats.Completed,
			info.Stats.Bytes, info.Stats.Posts, info.Stats.Completions, info.Why)
		if n := uint64(4 * len(sizes)); info.Path == mcrdma.PathSwitch && (info.Stats.Posts != n || info.Stats.Completions != n) {
			t.Errorf("%d posts and %d completions for %d operations", info.Stats.Posts, info.Stats.Completions, n)
		}
		tm.close()
	})
}

// post posts a receive at all receivers.
func (tm *team) post(n int) {
	tm.t.Helper()
	for _, a := range tm.apps {
		p := mcrdma.Piece{}
		if n > 0 {
			p = a.mem.Slice(a.region, n)
		}
		if err := a.m.PostRecv(p); err != nil {
			tm.t.Fatal(a.h.name, err)
		}
	}
}

// recv receives at all receivers.
func (tm *team) recv(want mcrdma.Received, content []byte) {
	tm.t.Helper()
	for _, a := range tm.apps {
		got, err := a.m.Recv(tm.t.Context())
		if err != nil {
			tm.t.Fatal(a.h.name, err)
		}
		if !bytes.Equal(got.Bytes(), content) {
			tm.t.Fatalf("%s: the content of a %v differs", a.h.name, got.Kind)
		}
		got.Piece = mcrdma.Piece{}
		if got != want {
			tm.t.Fatalf("%s: got %+v, want %+v", a.h.name, got, want)
		}
	}
}

// TestManyGroups: several senders and groups at once, each with many operations under
// way, which are done in order, and whose messages come in order.
func TestManyGroups(t *testing.T) {
	const ops, size = 200, 5000
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		var wg sync.WaitGroup
		for i, depth := range []int{1, 8, 64} {
			cfg.Depth = depth
			from := l.hosts[i%2]
			to := append([]*host{l.hosts[1-i%2]}, l.hosts[2:]...)
			tm := l.group(fmt.Sprint("s", i), from, to, 1<<16, ops*size, cfg)
			for _, a := range tm.apps {
				for n := range ops {
					l.must(a.m.PostRecv(a.mem.Slice(a.region+n*size, size)))
				}
				wg.Go(func() {
					for n := range ops {
						got, err := a.m.Recv(t.Context())
						if err != nil || got.Imm != uint32(n) || !bytes.Equal(got.Bytes(), tm.mem.Bytes()[n:n+size]) {
							t.Errorf("%s: message %d: %v", a.h.name, n, err)
							return
						}
					}
				})
			}
			wg.Go(func() {
				done := 0
				for n := range ops {
					err := tm.g.Submit(t.Context(), &mcrdma.Op{Kind: mcrdma.OpSendImm, Imm: uint32(n), Pieces: []mcrdma.Piece{tm.mem.Slice(n, size)},
						Done: func(op *mcrdma.Op) {
							if op.Err != nil || op.Imm != uint32(done) {
								t.Errorf("operation %d is done after %d: %v", op.Imm, done, op.Err)
							}
							done++
						}})
					if err != nil {
						t.Error(err)
						return
					}
				}
				if err := tm.g.Close(t.Context()); err != nil || done != ops {
					t.Errorf("%d operations are done: %v", done, err)
				}
			})
		}
		wg.Wait()
	})
}
