package connmgr

import (
	"context"
	"sync"
	"time"
)

// running exists as long as Run runs.
type running struct {
	started time.Time
	ready   chan struct{}
	life    context.Context // ends when Run ends
	end     context.CancelFunc
	wg      sync.WaitGroup // all goroutines of Run
}

// background runs work that must finish even if its caller has left; its context ends with Run. It
// may be called only from a goroutine of Run or a handler.
func (r *running) background(f func(context.Context)) {
	r.wg.Go(func() { f(r.life) })
}
