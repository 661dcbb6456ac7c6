package rdmcfallback

import (
	"context"
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/engine"
)

// loop is the group's goroutine: it passes the transport's events and the application's requests to
// the engine, and performs the engine's actions.
func (g *Group) loop() {
	var events [64]Event
	ended := g.perform()
	for !ended {
		ctx, poked := g.orders()
		if poked {
			ended = g.perform()
			continue
		}
		n, err := g.transport.Events(ctx, events[:])
		if n == 0 && err != nil && ctx.Err() == nil {
			g.engine.Broken(err)
			ended = g.perform()
		}
		for i := 0; i < n && !ended; i++ {
			g.event(&events[i])
			ended = g.perform()
		}
	}
	defer close(g.gone)
	f := g.engine.Failure()
	if l, ok := g.transport.(Leaver); ok && f != nil {
		l.Leave()
		g.end(f)
		_ = g.transport.Close()
		return
	}
	err := g.transport.Close()
	switch {
	case f != nil: // the error of closing does not matter then
		err = f
	case err != nil:
		err = fmt.Errorf("rdmcfallback: all members have all messages, but the transport failed: %w", err)
	}
	g.end(err)
}

// end says that the group has ended and uses no memory any more.
func (g *Group) end(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
	if g.wake != nil {
		g.wake()
	}
	close(g.done)
}

// orders passes the application's requests to the engine, and reports whether there were any. If
// not, ctx ends at the next request.
func (g *Group) orders() (ctx context.Context, poked bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.poked {
		if g.waiting == nil {
			g.waiting, g.wake = context.WithCancel(context.Background())
		}
		return g.waiting, false
	}
	g.poked = false
	if g.wake != nil {
		g.wake()
		g.waiting, g.wake = nil, nil
	}
	for i, msg := range g.pending {
		number := g.engine.Messages()
		if err := g.engine.Send(int64(len(msg))); err != nil {
			break // the group has failed, which perform reports
		}
		g.messages[number%accepted] = msg
		g.pending[i] = nil
	}
	g.pending = g.pending[:0]
	if g.closing {
		g.engine.Close()
	}
	if g.leaving != nil {
		g.engine.Leave(g.leaving.Error())
	}
	return nil, true
}

// event passes an event to the engine.
func (g *Group) event(ev *Event) {
	switch ev.Kind {
	case EventReceived:
		g.engine.Received(ev.Peer, ev.Imm, ev.N)
	case EventSent:
		g.engine.Sent(ev.Peer)
	case EventReady:
		g.engine.Ready(ev.Peer)
	case EventTold:
		g.engine.Told(ev.Peer, ev.Msg)
	case EventSmall:
		g.small = append(g.small, ev.Msg)
		g.engine.Small(ev.Peer, ev.Imm, len(ev.Msg))
	case EventFreed:
		g.engine.Freed(ev.Peer, ev.N)
	case EventDown:
		g.engine.Down(ev.Peer, ev.Err)
	}
}

// perform performs the engine's actions, and reports whether the group has ended.
func (g *Group) perform() (ended bool) {
	for {
		a, ok := g.engine.Next()
		if !ok {
			return false
		}
		var err error
		switch a.Kind {
		case engine.PostRecv:
			err = g.transport.PostRecv(a.Peer, g.block(a.Span))
		case engine.SendBlock:
			err = g.transport.Send(a.Peer, a.Imm, g.block(a.Span))
		case engine.Tell:
			err = g.transport.Tell(a.Peer, a.Msg)
		case engine.Joined:
			close(g.joined)
		case engine.Open:
			g.open(a.Span.Message, a.Size)
		case engine.PutSmall:
			err = g.ring.PutSmall(a.Peer, a.Imm, g.block(a.Span))
		case engine.CopySmall:
			copy(g.block(a.Span), g.small[0])
			g.small = slices.Delete(g.small, 0, 1)
		case engine.FreeSmall:
			err = g.ring.FreeSmall(int(a.Size))
		case engine.Copy:
			copy(g.block(a.Span), g.spare)
		case engine.Complete:
			msg := g.messages[a.Span.Message%accepted]
			g.messages[a.Span.Message%accepted] = nil
			if g.cfg.Self == 0 {
				<-g.room
			}
			g.cfg.Complete(msg)
		case engine.Everywhere:
			g.cfg.Everywhere(a.Size)
		case engine.Closed, engine.Failed:
			return true
		}
		if err != nil {
			g.engine.Broken(err)
		}
	}
}

// block returns the memory of a block.
func (g *Group) block(s engine.Span) []byte {
	if s.Message == engine.Spare {
		return g.spare
	}
	return g.messages[s.Message%accepted][s.Off : s.Off+int64(s.Len)]
}

// open asks the application for a message's memory.
func (g *Group) open(number, size int64) {
	buf, err := g.cfg.Incoming(size)
	switch {
	case err != nil:
		g.engine.Refuse(err.Error())
	case int64(len(buf)) < size:
		g.engine.Refuse(fmt.Sprintf("the buffer for message %d has %d bytes, but %d are needed", number, len(buf), size))
	default:
		g.messages[number%accepted] = buf[:size]
		g.engine.Provide()
	}
}
