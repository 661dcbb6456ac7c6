package mcrdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// onUnicasts is onPaths, with the unicast connection to the first receiver: on queue pairs, and over TCP.
func onUnicasts(t *testing.T, f func(t *testing.T, r *rig, u *Unicast)) {
	for name, device := range map[string]bool{"queue pair": true, "tcp": false} {
		testenv.Bubble(t, name, func(t *testing.T) {
			w, ds := newWorld(t, 3)
			if !device {
				w.noDevice, w.bootstrap = true, "127.0.0.1"
			}
			r := newRigIn(w, ds, true, GroupConfig{})
			u, err := r.g.Unicast(r.ds[0].address)
			if err != nil {
				t.Fatal(err)
			}
			f(t, r, u)
		})
	}
}

// TestUnicast: each operation to one member, and what the member tells.
func TestUnicast(t *testing.T) {
	onUnicasts(t, func(t *testing.T, r *rig, u *Unicast) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		m, other := r.rs[0].m, r.rs[1].m
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, size := range []int{0, 1, 100, 5000, 300_000} {
			piece := r.mem.Slice(100, size)
			must(u.Write(ctx, At{0, 10}, piece))
			if !bytes.Equal(m.Region(0)[10:10+size], piece.Bytes()) {
				t.Fatalf("a WRITE of %d bytes is not there", size)
			}
			if size > 0 && bytes.Equal(other.Region(0)[10:10+size], piece.Bytes()) {
				t.Fatal("another member has it")
			}
			m.Region(0)
			must(u.WriteImm(ctx, At{0, 11}, 7, piece))
			got, err := m.Recv(ctx)
			if want := (Received{N: size, Imm: 7, HasImm: true, Kind: OpWriteImm, Unicast: true}); err != nil || got != want {
				t.Fatalf("%+v, %v", got, err)
			}
			if !bytes.Equal(m.Region(0)[11:11+size], piece.Bytes()) {
				t.Fatalf("a WRITE with immediate of %d bytes is not there", size)
			}
			clear(r.mem.Bytes()[500_000:])
			must(u.Read(ctx, At{0, 11}, r.mem.Slice(500_000, size/2), r.mem.Slice(500_000+size/2, size-size/2)))
			if !bytes.Equal(r.mem.Bytes()[500_000:500_000+size], piece.Bytes()) {
				t.Fatalf("a READ of %d bytes", size)
			}
			fillRandom(r.mem.Bytes(), uint64(size))
			if size > MaxUnicastMessage {
				wants(t, "a long message", u.Send(ctx, piece), ErrInvalid, "at most 8192")
				wants(t, "a long message to the sender", m.Send(ctx, piece.Bytes()), ErrInvalid, "at most 8192")
				continue
			}
			must(u.SendImm(ctx, 9, piece))
			must(u.Send(ctx, piece))
			for _, imm := range []uint32{9, 0} {
				got, err := m.Recv(ctx)
				if err != nil || !bytes.Equal(got.Bytes(), piece.Bytes()) || got.Imm != imm || got.HasImm != (imm > 0) || !got.Unicast {
					t.Fatalf("%+v, %v", got, err)
				}
			}
			must(m.Send(ctx, piece.Bytes()))
			got, err = u.Recv(ctx)
			if err != nil || !bytes.Equal(got.Bytes(), piece.Bytes()) || got.Kind != OpSend {
				t.Fatalf("%+v, %v", got, err)
			}
			r.seen()
		}
		if n := u.Counter(3); n != 0 {
			t.Errorf("a counter that was not set is %d", n)
		}
		for n := range uint64(100) {
			must(m.SetCounter(3, n))
		}
		must(u.WaitCounter(ctx, 3, 99))
		if n := u.Counter(3); n != 99 {
			t.Errorf("it is %d", n)
		}
		wants(t, "no such counter", m.SetCounter(Counters, 1), ErrInvalid, "counter 8 of 8")
		wants(t, "no such counter", u.WaitCounter(ctx, -1, 0), ErrInvalid, "counter -1 of 8")
		wants(t, "outside", u.Read(ctx, At{0, regionSize - 5}, r.mem.Slice(0, 6)), ErrInvalid, "in a region of")
		wants(t, "a READ of all", r.g.do(ctx, Op{Kind: OpRead}, nil), ErrInvalid, "Group.Unicast reads from one")
		_, err := r.g.Unicast("another")
		wants(t, "no member", err, ErrInvalid, "no member")
		same, err := r.g.Unicast("host-" + r.ds[0].address)
		if err != nil || same != u {
			t.Error("the same member has another connection", err)
		}
	})
}

// TestUnicastMessagesWait: messages wait for the application that takes them; counters do not wait
// behind them.
func TestUnicastMessagesWait(t *testing.T) {
	onUnicasts(t, func(t *testing.T, r *rig, u *Unicast) {
		m := r.rs[0].m
		sent := make(chan error)
		const n = 100
		go func() {
			for i := range n {
				sent <- m.Send(t.Context(), fmt.Append(nil, i))
			}
		}()
		for range 16 {
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
		select {
		case err := <-sent:
			t.Fatalf("the 17th message did not wait: %v", err)
		case <-time.After(time.Second):
		}
		if err := m.SetCounter(0, 5); err != nil {
			t.Fatal(err)
		}
		if err := u.WaitCounter(t.Context(), 0, 5); err != nil {
			t.Fatal(err)
		}
		var rest sync.WaitGroup
		defer rest.Wait()
		rest.Go(func() {
			for range n - 16 {
				if err := <-sent; err != nil {
					t.Error(err)
				}
			}
		})
		for i := range n {
			got, err := u.Recv(t.Context())
			if err != nil || string(got.Bytes()) != fmt.Sprint(i) {
				t.Fatalf("message %d is %q, %v", i, got.Bytes(), err)
			}
		}
	})
}

// TestUnicastGoesOn: what is submitted when the loss of the connection is known waits for the next one.
func TestUnicastGoesOn(t *testing.T) {
	onUnicasts(t, func(t *testing.T, r *rig, u *Unicast) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		const n = 17 // the last one waits for the member to take another
		done := make(chan error, n+1)
		again := &Op{Kind: OpWrite, Pieces: []Piece{r.mem.Slice(0, 100)}, Done: func(op *Op) { done <- op.Err }}
		for i := range n {
			op := &Op{Kind: OpSend, Done: func(op *Op) {
				if i == n-1 {
					if err := u.Submit(ctx, again); err != nil {
						t.Error(err)
					}
				}
				done <- op.Err
			}}
			if err := u.Submit(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
		outcome := func() error {
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for range n - 1 {
			if err := outcome(); err != nil {
				t.Fatal(err)
			}
		}
		r.w.net.Break(r.src.address+"/app", r.ds[0].address+"/app")
		wants(t, "what was under way", outcome(), ErrUnreachable, "lost")
		if err := outcome(); err != nil {
			t.Errorf("what came later: %v", err)
		}
	})
}

// TestUnicastSendsGivenUp: a member's messages whose calls were given up still take their places: there are never
// more of them than the sender's library would keep.
func TestUnicastSendsGivenUp(t *testing.T) {
	testenv.Bubble(t, "no sender", func(t *testing.T) {
		r := newRig(t, 1, false, GroupConfig{})
		m := r.rs[0].m
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			err := m.Send(ctx, fmt.Append(nil, i))
			wants(t, "given up", err, context.DeadlineExceeded, "has no unicast connection with this member")
			cancel()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		u, err := r.g.Unicast(r.ds[0].address)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 17 {
			if i == 16 {
				if err := m.Send(ctx, []byte("100")); err != nil {
					t.Fatal(err)
				}
				i = 100
			}
			if got, err := u.Recv(ctx); err != nil || string(got.Bytes()) != fmt.Sprint(i) {
				t.Errorf("message %q, %v instead of %d", got.Bytes(), err, i)
			}
		}
	})
}

// TestUnicastPackets: what a member tells takes a packet and its acknowledgement, as a small write of the group does,
// and nothing before that.
func TestUnicastPackets(t *testing.T) {
	testenv.Bubble(t, "queue pair", func(t *testing.T) {
		r := newRig(t, 1, false, GroupConfig{})
		u, err := r.g.Unicast(r.ds[0].address)
		if err != nil {
			t.Fatal(err)
		}
		ctx, m, piece, count := t.Context(), r.rs[0].m, r.mem.Slice(0, 64), uint64(0)
		steps := map[string]func() error{
			"group":   func() error { return r.g.Write(ctx, At{}, piece) },
			"counter": func() error { count++; return errors.Join(m.SetCounter(0, count), u.WaitCounter(ctx, 0, count)) },
			"message": func() error {
				err := m.Send(ctx, piece.Bytes())
				_, err2 := u.Recv(ctx)
				return errors.Join(err, err2)
			},
			"write": func() error { return u.Write(ctx, At{}, piece) },
			"read":  func() error { return u.Read(ctx, At{}, piece) },
		}
		sent := func() (n [2]uint64) {
			time.Sleep(time.Second) // all that would follow has come
			for i, c := range []*Client{r.c, r.rs[0].c} {
				n[i] = c.dev.Counters()["tx_packets"]
			}
			return n
		}
		if err := steps["counter"](); err != nil { // it connects
			t.Fatal(err)
		}
		for name, do := range steps {
			before := sent()
			if err := do(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if after := sent(); after[0]-before[0] != 1 || after[1]-before[1] != 1 {
				t.Errorf("%s: the sender has sent %d packets, and the member %d", name, after[0]-before[0], after[1]-before[1])
			}
		}
	})
}
