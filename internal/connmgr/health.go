package connmgr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/health"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
)

// watch starts following the receivers of a group. It is called with Manager.mu, as beat, which stops
// following hosts, holds that.
func (m *Manager) watch(f *formation, now time.Time) {
	for _, r := range f.Receivers {
		if err := m.peers.follow(r.Addr, now); err != nil {
			m.log.Error("no connection can be made", "host", r.Addr, "error", err)
		}
	}
}

// Names of states, as in api/mcrdma/v1.
const (
	stateOK      = "ok"
	stateSilent  = "silent"
	stateDown    = "daemon down"
	stateRemoved = "removed"
)

// condition returns a host's state as users see it: its name and the reason. distrust is that of
// peers.
func condition(c health.Change, distrust error) (state, reason string) {
	switch c.State {
	case health.OK:
		return stateOK, ""
	case health.Down:
		if distrust != nil {
			return stateDown, distrust.Error()
		}
		return stateDown, "its daemon does not run"
	}
	return stateSilent, fmt.Sprintf("nothing is heard of its daemon for %v", c.For.Round(time.Millisecond))
}

// since is a time as tools get it; nil: not known.
func since(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// act handles a change in the health of receivers' hosts. It is called with Manager.mu.
func (m *Manager) act(c health.Change) {
	distrust := m.peers.distrust(c.Addr)
	_, reason := condition(c, distrust)
	for _, g := range m.groups {
		f := g.form()
		r := f.Receiver(c.Addr)
		switch {
		case r == nil:
		case c.State == health.OK:
			g.noticed(f, mcrdmav1.GroupChanged_TYPE_RECOVERED, "recovered", r, "it answers again")
		case c.State == health.Silent || c.State == health.Down && c.Was == health.OK:
			g.noticed(f, mcrdmav1.GroupChanged_TYPE_SUSPECTED, "suspected", r, reason)
		case c.State == health.Gone:
			silence := c.For.Round(time.Millisecond)
			why, label := fmt.Sprintf("nothing was heard of its daemon for %v", silence), "silent"
			if c.Was == health.Down {
				why, label = fmt.Sprintf("its daemon has not run for %v", silence), "down"
			}
			if distrust != nil {
				why, label = fmt.Sprintf("no connection with it for %v: %v", silence, distrust), "untrusted"
			}
			m.lose(g, c.Addr, label, why)
		}
	}
}

// distrust returns why this host and another do not accept each other's certificates, as of the last
// call; nil: they do, or that is not known.
func (t *peers) distrust(a netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[a].distrust()
}

// distrust is called with peers.mu.
func (p *peer) distrust() error {
	if p == nil || !failure.Is(p.err, mcrdmav1.Reason_UNTRUSTED) {
		return nil
	}
	return p.err
}

// follow has a host with receivers followed.
func (t *peers) follow(a netip.Addr, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.health.Add(a, now)
	_, err := t.get(a)
	return err
}

// keep stops following all hosts but those with a list of groups. It adds to the lists the hosts whose
// daemons wait for an answer to their beat.
func (t *peers) keep(lists map[netip.Addr]uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.health.Peers() {
		if _, used := lists[a]; !used {
			t.health.Remove(a)
			delete(t.answers, a)
		}
	}
	for a, p := range t.at {
		if _, used := lists[a]; !used && p.theirs != nil {
			lists[a] = 0 // it has none of this host's groups
		}
	}
}

// tick returns the changes in the health of the hosts that are followed; busy: this host is busy.
func (t *peers) tick(now time.Time, busy bool) []health.Change {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.health.Tick(now, busy)
}

// blame returns the hosts to remove because they do not answer beats; see health.Tracker.Blame.
func (t *peers) blame(among []netip.Addr, now time.Time, down bool) []health.Change {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteAcknowledged(among, now)
	return t.health.Blame(among, now, down)
}

// suspected reports whether there is a host to blame, and the time after which there may be one.
func (t *peers) suspected(among []netip.Addr, now time.Time) (there bool, next time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteAcknowledged(among, now)
	return len(t.health.Suspects(among, now, false)) > 0, t.health.SuspectIn(among, now)
}

// noteAcknowledged asks this host's kernel whether the others' kernels acknowledge data. It is
// called with peers.mu.
func (t *peers) noteAcknowledged(among []netip.Addr, now time.Time) {
	for _, a := range among {
		if p := t.at[a]; p != nil {
			if ago, ok := p.conn.Acknowledged(); ok {
				t.health.Acknowledged(a, now, ago)
			}
		}
	}
}

// patient extends d for hosts that are slower than usual.
func (t *peers) patient(d time.Duration, among ...netip.Addr) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Duration(float64(d) * t.health.Patience(among))
}

// An answered is when a host last answered packets of the group of its latest answer, and of any other.
type answered struct {
	group     groupID
	at, other time.Time
}

// noteAnswers records that these hosts have answered packets of a group.
func (t *peers) noteAnswers(id groupID, hosts []netip.Addr, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range hosts {
		last := t.answers[a]
		if last.group != id {
			last.group, last.other = id, last.at
		}
		last.at = now
		t.answers[a] = last
	}
}

// withoutAnswers returns the hosts that have answered no other group than this since then.
func (t *peers) withoutAnswers(id groupID, hosts []netip.Addr, then time.Time) []netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(hosts, func(a netip.Addr) bool {
		last := t.answers[a]
		return last.other.After(then) || last.group != id && last.at.After(then)
	})
}

// askEvery is the minimum time between two status requests to other hosts.
const askEvery = time.Second

// ask queries the hosts that get no beats, or beat for both, so that a status is up to date.
func (t *peers) ask(ctx context.Context, boot uint64) {
	// All callers share the answer, so it does not depend on this caller's context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grpcclient.ConnectTime)
	defer cancel()
	var wg sync.WaitGroup
	t.mu.Lock()
	now := time.Now()
	for _, p := range t.at {
		if t.health.Follows(p.addr) && p.heardAt.IsZero() || !p.asked.IsZero() && now.Sub(p.asked) < askEvery {
			continue
		}
		p.asked = now
		p.users++
		wg.Go(func() { p.ask(ctx, boot) })
	}
	t.mu.Unlock()
	wg.Wait()
}

func (p *peer) ask(ctx context.Context, boot uint64) {
	defer p.let()
	var trip time.Duration
	err := p.call(ctx, func(ctx context.Context) error {
		begun := time.Now()
		_, err := p.rpc.Beat(ctx, &mcrdmav1.BeatRequest{Boot: boot})
		trip = time.Since(begun)
		return err
	})
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.err = err; err == nil {
		p.trip = trip
	}
}

// states returns the states of a formation's receivers as tools see them.
func (t *peers) states(f *formation) (out []*mcrdmav1.MemberState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, r := range f.Receivers {
		c := t.health.Last(r.Addr, now)
		state, reason := condition(c, t.at[r.Addr].distrust())
		out = append(out, &mcrdmav1.MemberState{Address: r.Addr.String(), Host: r.Host, State: state, Reason: reason, Since: since(c.Since)})
	}
	return out
}

// describe returns the other hosts as tools see them, in order of their addresses.
func (t *peers) describe() (out []*mcrdmav1.PeerLink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range slices.SortedFunc(maps.Keys(t.at), netip.Addr.Compare) {
		p := t.at[a]
		x := &mcrdmav1.PeerLink{Host: p.name, Address: a.String(), Daemon: p.target, State: stateOK, RoundTrip: durationpb.New(p.trip)}
		switch {
		case errors.Is(p.err, errNotTried):
			x.State = "unknown"
		case p.distrust() != nil:
			x.State, x.Error = "untrusted", p.err.Error()
		case p.err != nil:
			x.State, x.Error = "down", p.err.Error()
		}
		if t.health.State(a) == health.Silent {
			x.State = stateSilent
		}
		out = append(out, x)
	}
	return out
}
