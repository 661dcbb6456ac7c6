package osdmaptest

import (
	"context"

	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// Faulty is a store whose calls fail as Fault says. It is asked before and after each call, Get,
// Commit or Wait, and may be called by several goroutines; an error is the call's. A call that fails
// afterwards has taken effect.
type Faulty struct {
	osdmap.KV
	Fault func(ctx context.Context, call string, after bool) error
}

// Get implements [osdmap.KV].
func (f Faulty) Get(ctx context.Context, prefix string) (pairs []osdmap.Pair, revision int64, err error) {
	err = f.around(ctx, "Get", func() (err error) {
		pairs, revision, err = f.KV.Get(ctx, prefix)
		return err
	})
	return pairs, revision, err
}

// Commit implements [osdmap.KV].
func (f Faulty) Commit(ctx context.Context, changes ...osdmap.Change) (ok bool, err error) {
	err = f.around(ctx, "Commit", func() (err error) {
		ok, err = f.KV.Commit(ctx, changes...)
		return err
	})
	return ok, err
}

// Wait implements [osdmap.KV].
func (f Faulty) Wait(ctx context.Context, after int64) error {
	return f.around(ctx, "Wait", func() error { return f.KV.Wait(ctx, after) })
}

func (f Faulty) around(ctx context.Context, name string, call func() error) error {
	if err := f.Fault(ctx, name, false); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	return f.Fault(ctx, name, true)
}
