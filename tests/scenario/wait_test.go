package scenario

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// TestWaits: groups that wait when too few receivers are left.
func TestWaits(t *testing.T) {
	everywhere(t, []story{{"all receivers die, and others come", allDieOthersCome}, {"below min_size", belowMinSize},
		{"too few are added at a time", fewAdded}})
}

// waits expects that nothing completes, and returns the operation.
func (tm *team) waits() *mcrdma.Pending {
	l := tm.l
	l.t.Helper()
	p, err := tm.g.Post(l.t.Context(), mcrdma.Op{Kind: mcrdma.OpWrite, Pieces: []mcrdma.Piece{tm.sender.mem.Slice(0, size)}})
	l.must(err)
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	if err := p.Wait(ctx); ctx.Err() == nil {
		l.t.Errorf("it is complete with too few copies: %v", err)
	}
	if err := tm.g.Err(); err != nil {
		l.t.Fatal(err)
	}
	return p
}

func allDieOthersCome(l *lab, cfg mcrdma.GroupConfig) {
	cfg.WaitForMinSize = true
	tm := l.group(cfg, l.hosts[1], l.hosts[2])
	tm.write()
	for _, a := range tm.apps {
		a.kill()
	}
	tm.event(mcrdma.EventWaiting)
	p := tm.waits()
	if d := tm.g.Departures(); len(d) != 2 {
		l.t.Errorf("%+v", d)
	}
	_, err := tm.g.Add(l.t.Context(), "h4") // no application listens there
	if !errors.Is(err, mcrdma.ErrMinSize) && !errors.Is(err, mcrdma.ErrUnreachable) {
		l.t.Error(err)
	}
	tm.apps = nil
	for _, h := range l.hosts[2:4] { // one of them is back
		a := h.receive()
		tm.add(h.name)
		a.accept()
		tm.apps = append(tm.apps, a)
	}
	l.must(p.Wait(l.t.Context()))
	tm.write()
	tm.members(2)
	tm.close()
}

// fewAdded: one call of Add must add enough.
func fewAdded(l *lab, cfg mcrdma.GroupConfig) {
	cfg.MinSize, cfg.WaitForMinSize = 3, true
	tm := l.group(cfg, l.hosts[1], l.hosts[2])
	tm.write()
	for _, a := range tm.apps {
		a.kill()
	}
	tm.event(mcrdma.EventWaiting)
	p := tm.waits()
	tm.apps = []*app{l.hosts[1].receive(), l.hosts[2].receive()}
	_, err := tm.g.Add(l.t.Context(), "h2")
	l.fails(err, mcrdma.ErrMinSize, "")
	if n := len(tm.g.Info().Members); n != 0 {
		l.t.Errorf("%d members", n)
	}
	_, err = tm.g.Add(l.t.Context(), "h2", "h3")
	l.must(err)
	for _, a := range tm.apps {
		a.accept()
	}
	l.must(p.Wait(l.t.Context()))
	tm.write()
	tm.close()
}

func belowMinSize(l *lab, cfg mcrdma.GroupConfig) {
	cfg.MinSize, cfg.WaitForMinSize = 3, true
	tm := l.group(cfg, l.hosts[1], l.hosts[2])
	tm.write()
	h := tm.apps[1].h
	tm.apps[1].kill()
	tm.event(mcrdma.EventWaiting)
	p := tm.waits()
	again := h.receive()
	tm.add(h.name)
	again.accept()
	tm.apps[1] = again
	l.must(p.Wait(l.t.Context()))
	tm.write()
	tm.members(2)
	tm.close()
}
