package connmgr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

const (
	// maxSuspected is in how many formations in a row a receiver may be suspected
	// and yet stay.
	maxSuspected = 3
	// reformTries is how many times a formation is tried if receivers drop out of it at the
	// very end.
	reformTries = 3
)

// reform makes a group anew.
func (m *Manager) reform(ctx context.Context, g *group, req *mcrdmav1.ReformGroupRequest) (*mcrdmav1.ReformGroupResponse, error) {
	watch := newStopwatch()
	from, err := m.senderFrom(g.spec, req.GetForming())
	if err != nil {
		return nil, err
	}
	var add, suspects []netip.Addr
	if len(req.GetAdd()) > 0 {
		if add, err = m.receiversFrom(req.GetAdd()); err != nil {
			return nil, err
		}
	}
	for _, s := range req.GetSuspects() {
		a, err := addrFrom(s, "suspect")
		if err != nil {
			return nil, err
		}
		suspects = append(suspects, a)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	if err := g.enter(ctx); err != nil {
		return nil, err
	}
	defer g.leave()
	candidates, lost, err := m.candidates(g, req, suspects, add)
	if err != nil {
		return nil, err
	}
	watch.lap("check")
	f, err := m.reformWith(ctx, g, from, candidates, add, lost, watch)
	if err != nil {
		if errors.Is(err, MinSize) {
			m.fail(g, err.Error())
		}
		return nil, err
	}
	m.log.Info("a group has been formed anew", "group", g.id, "formation", f.N, "path", f.Path, "receivers", len(f.Receivers), "why", f.Why, "reason", clip(req.GetReason(), maxText))
	return &mcrdmav1.ReformGroupResponse{Formation: g.info(f)}, nil
}

// candidates are the receivers of a group's next formation, and those of the present
// one that are not to be in it.
func (m *Manager) candidates(g *group, req *mcrdmav1.ReformGroupRequest, suspects, add []netip.Addr) (stay []netip.Addr, lost map[netip.Addr]loss, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.over || g.form == nil {
		return nil, nil, refuse(NotFound, "there is no group %v any longer", g.id)
	}
	if g.form.N != req.GetFormation() {
		return nil, nil, refuse(Stale, "group %v is at formation %d, and not %d", g.id, g.form.N, req.GetFormation())
	}
	lost = map[netip.Addr]loss{}
	again := g.counted == g.form.N // the same formation's end, after a try that failed
	g.counted = g.form.N
	for _, a := range g.form.addrs() {
		switch {
		case !slices.Contains(suspects, a):
			delete(g.suspected, a)
		case !again || g.suspected[a] == 0:
			g.suspected[a]++
		}
		switch l := g.dead[a]; {
		case l != loss{}:
			lost[a] = l
		case g.suspected[a] >= maxSuspected:
			lost[a] = loss{"suspected", fmt.Sprintf("the sender has suspected it in %d formations in a row", g.suspected[a])}
		default:
			stay = append(stay, a)
		}
	}
	for _, a := range add {
		if g.form.has(a) {
			return nil, nil, refuse(DuplicateAddress, "receiver %v is in the group already", a)
		}
		stay = append(stay, a)
	}
	if most := m.cfg.Limits.Receivers; len(stay) > most {
		return nil, nil, refuse(TooManyReceivers, "%d receivers, and %d is the most", len(stay), most)
	}
	return stay, lost, nil
}

// reformWith makes the formation of the candidates that can take part.
func (m *Manager) reformWith(ctx context.Context, g *group, from sender, candidates, add []netip.Addr, lost map[netip.Addr]loss, watch *stopwatch) (*formation, error) {
	old := g.form
	m.mu.Lock()
	g.departures = slices.DeleteFunc(g.departures, func(d departure) bool { return slices.Contains(add, d.Addr) })
	m.mu.Unlock()
	var f *formation
	skipped := false
	for try := 1; ; try++ {
		x := &forming{m: m, g: g, from: from, candidates: candidates, joining: add, limit: m.reformTime(), watch: watch,
			before: m.takeDown(g, old), skipped: skipped}
		var err error
		if f, err = x.form(ctx); err == nil {
			err = m.formedAs(ctx, g, x, lost)
			if err != nil {
				x.undo("the sender's application has gone")
			}
			x.release()
			if err != nil {
				return nil, err
			}
			break
		}
		if errors.Is(err, errBehind) {
			m.mu.Lock()
			g.last = max(g.last, faultOf(err).formation)
			m.mu.Unlock()
			skipped = true
			continue
		}
		out := x.failed()
		if ctx.Err() != nil || len(out) == 0 || try == reformTries || errors.Is(err, MinSize) || errors.Is(err, errLate) {
			return nil, err
		}
		candidates = slices.DeleteFunc(slices.Clone(candidates), func(a netip.Addr) bool {
			e := out[a]
			if e != nil {
				lost[a] = lossOf(e)
			}
			return e != nil
		})
	}
	if old.MCID != f.MCID {
		m.freeMCID(old.MCID)
	}
	return f, nil
}

// reformTime is how long receivers may take to prepare: at least as long as a silent host
// is not yet dead.
func (m *Manager) reformTime() time.Duration { return max(m.times.reform, m.cfg.Beat.DeadAfter) }

// failed returns the receivers that dropped out, and why.
func (x *forming) failed() map[netip.Addr]error {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[netip.Addr]error{}
	for a, err := range x.out {
		if !errors.Is(err, context.Canceled) {
			out[a] = err
		}
	}
	return out
}

func lossOf(err error) loss {
	if f := faultOf(err); f != nil {
		return loss{"unprepared", f.text}
	}
	return loss{"unprepared", err.Error()}
}

// takeDown removes a formation from the switches before the next one is installed.
func (m *Manager) takeDown(g *group, f *formation) func(context.Context) {
	return func(ctx context.Context) {
		if f.Path != mcrdmav1.Path_PATH_SWITCH || m.tor == nil {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, m.times.undo)
		defer cancel()
		if err := m.tor.remove(ctx, m.addr, f.MCID); err != nil {
			m.log.Warn("a formation that is over is still at the switch; it will be removed", "group", g.id, "error", err)
			m.startCleanup(&cleanup{mcID: f.MCID, installed: true})
		}
	}
}

// formedAs makes a formation the group's present one, and tells the application which
// receivers are no longer in it.
func (m *Manager) formedAs(ctx context.Context, g *group, x *forming, lost map[netip.Addr]loss) error {
	for a, err := range x.failed() {
		lost[a] = lossOf(err)
	}
	if err := m.formed(ctx, g, x.f); err != nil {
		return err
	}
	var gone []netip.Addr
	m.mu.Lock()
	for a, l := range lost {
		if x.f.has(a) || slices.Contains(x.joining, a) { // one that could not join never was a receiver
			continue
		}
		g.dead[a] = l
		m.removed(g, a)
		gone = append(gone, a)
	}
	m.mu.Unlock()
	if len(gone) > 0 {
		m.startCleanup(m.cleanupOf(g, mcrdmav1.Detached_REASON_REMOVED, "it could not be in the next formation", gone))
	}
	return nil
}
