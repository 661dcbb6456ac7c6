package mcrdma

import (
	"context"
	"fmt"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// step gives the group's life an event.
func (g *Group) step(event func(*life)) {
	g.mu.Lock()
	event(&g.life)
	g.perform()
	g.mu.Unlock()
	poke(g.news)
}

// end ends the group.
func (g *Group) end(why error) { g.step(func(l *life) { l.stop(why) }) }

// perform does the actions of the group's life. None of them waits. g.mu is held.
func (g *Group) perform() {
	for _, a := range g.life.out {
		switch a := a.(type) {
		case cut:
			g.cut(a.why)
		case halt:
			g.stop(a.why)
		case tell:
			g.events.put(a.event)
		case show:
			g.c.wg.Go(func() { g.show(a.view) })
		case ack:
			g.c.wg.Go(func() { g.ackView(a.view) })
		case answer:
			a.to.done <- a
		case nudge:
			g.nudge()
		case changed:
			g.endUnicasts()
		case drained:
			select {
			case <-g.drained:
			default:
				close(g.drained)
			}
		}
	}
	g.life.out = g.life.out[:0]
}

// show passes a view to the application's hook.
func (g *Group) show(v View) {
	err := g.onView(v)
	g.step(func(l *life) { l.hooked(v.Number, err) })
}

// onView calls the application's hook, if there is one.
func (g *Group) onView(v View) error {
	if g.cfg.OnView == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(g.ctx, g.cfg.ViewTime)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- g.cfg.OnView(ctx, v.clone()) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("it has not returned: %w", ctx.Err())
	}
}

// ackView tells the daemon that the application knows a view.
func (g *Group) ackView(number uint32) {
	_, err := call(g.ctx, g.c, g.c.rpc.AckView, &mcrdmav1.AckViewRequest{Token: g.c.token(), Group: g.id.wire(), View: number})
	if err != nil && g.ctx.Err() == nil {
		g.c.opt.Logger.Warn("acknowledge a view", "group", g.id, "view", number, "error", err)
	}
}

// nudge speeds up operations that waited for a removed member. g.mu is held.
func (g *Group) nudge() {
	if g.path != nil && g.life.queue.posted > 0 {
		g.path.nudge()
	}
}

// post posts what is queued. g.mu is held.
func (g *Group) post() {
	for g.path != nil {
		o := g.life.queue.next()
		if o == nil {
			return
		}
		err := g.life.queue.window.fits(o.op)
		if err == nil {
			err = g.path.post(o)
		}
		if err != nil {
			g.path = nil
			g.cut(fmt.Errorf("post: %w", err))
			return
		}
		if g.life.queue.advance() {
			g.life.stats.Replayed++
		}
	}
}

// finish removes the n oldest operations, which are complete, from the queue. Only the runner calls
// it.
func (g *Group) finish(n int) {
	if n == 0 {
		return
	}
	g.mu.Lock()
	g.life.complete(n)
	g.life.addNext()
	g.post()
	g.perform()
	g.mu.Unlock()
	g.tally.move()
	g.hand(nil)
}

// hand returns the batch to the application.
func (g *Group) hand(err error) {
	batch := g.life.batch
	for _, op := range batch {
		g.letGo(op)
	}
	for i, op := range batch {
		batch[i] = nil
		op.Err = err
		op.Done(op)
	}
}

// halt stops posting.
func (g *Group) halt() {
	g.mu.Lock()
	g.path = nil
	g.mu.Unlock()
}
