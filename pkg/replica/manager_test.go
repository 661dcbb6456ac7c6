package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// frozen is a configuration manager of which the first calls get no answer until their deadline.
type frozen struct {
	outside
	silent, calls int
}

func (f *frozen) propose(ctx context.Context, m core.Map) (core.Map, error) {
	if f.calls++; f.calls > f.silent {
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	<-ctx.Done()
	return core.Map{}, ctx.Err()
}

// TestFrozenManager: a proposal that gets no answer does not hold up the next ones, of which there are not too many.
func TestFrozenManager(t *testing.T) {
	for silent, want := range map[int]time.Duration{1: 200 * time.Millisecond, attempts - 1: (attempts - 1) * 200 * time.Millisecond, attempts: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			out := &frozen{silent: silent}
			l := &loop{mailbox: newMailbox(true, func() {}), out: out}
			l.node = core.New(core.Config{Self: 1, Up: []core.ID{1}}, core.Stored{}, 0)
			l.ctx, l.cancel = context.WithCancel(t.Context())
			go l.mailbox.run()
			begun := time.Now()
			for took := make(chan time.Duration, 1); ; time.Sleep(200 * time.Millisecond) {
				l.post(func() {
					if l.node.Status(0).Map.Epoch == 7 {
						took <- time.Since(begun)
						return
					}
					l.propose(core.Map{Epoch: 7})
				})
				synctest.Wait()
				if len(took) == 0 {
					continue
				}
				if got := <-took; got < want || got > want+400*time.Millisecond || out.calls > silent+2 {
					t.Errorf("%d without an answer: after %v, %d calls; want %v", silent, got, out.calls, want)
				}
				break
			}
			l.cancel()
			l.wg.Wait()
			l.mailbox.close()
		})
	}
}
