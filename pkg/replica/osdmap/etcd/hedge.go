package etcd

import (
	"context"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// hedge is after how long without an answer of one member the next one is asked as well. A member that is frozen keeps
// its connections, and answers nothing.
const hedge = 200 * time.Millisecond

// members are the ways to the members of the cluster, of which one is asked first: that which has answered last.
type members struct {
	each  []*clientv3.Client
	first atomic.Int32
}

// ask asks one member, and others beside it that have not answered or have failed, until one answers. So f may be carried out
// more than once.
func ask[T any](ctx context.Context, m *members, f func(context.Context, *clientv3.Client) (T, error)) (T, error) {
	type answer struct {
		from int
		v    T
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(m.each))
	first, begun, failed := int(m.first.Load()), 0, 0
	late := time.NewTimer(hedge)
	defer late.Stop()
	begin := func() {
		if begun < len(m.each) {
			i := (first + begun) % len(m.each)
			go func() {
				v, err := f(ctx, m.each[i])
				answers <- answer{i, v, err}
			}()
			begun++
		}
	}
	begin()
	for {
		select {
		case a := <-answers:
			if a.err == nil {
				m.first.Store(int32(a.from)) //nolint:gosec // few
				return a.v, nil
			}
			if failed++; failed == len(m.each) || ctx.Err() != nil {
				return a.v, a.err
			}
			begin()
		case <-late.C:
			begin()
			late.Reset(hedge)
		}
	}
}
