package lab

import (
	"context"
	"errors"
	"fmt"
)

// A Part is an agent or a daemon that runs.
type Part struct {
	name   string
	ready  <-chan struct{}
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
}

// Run starts a part; failed is called if it ends by itself.
func Run(name string, ready <-chan struct{}, run func(context.Context) error, failed func(error)) *Part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Part{name: name, ready: ready, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if p.err = run(ctx); p.err != nil {
			p.err = fmt.Errorf("%s: %w", name, p.err)
		}
		if ctx.Err() == nil {
			failed(errors.Join(fmt.Errorf("%s has ended", name), p.err))
		}
	}()
	return p
}

// Wait waits until the part is ready.
func (p *Part) Wait(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		return errors.Join(fmt.Errorf("%s has ended before it was ready", p.name), p.err)
	case <-ctx.Done():
		return fmt.Errorf("%s: not ready: %w", p.name, context.Cause(ctx))
	}
}

// End ends the part and returns its error.
func (p *Part) End() error {
	p.cancel()
	<-p.done
	return p.err
}
