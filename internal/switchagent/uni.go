package switchagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// uni is the unicast part of the switch. Where both locks are needed, Agent.mu
// comes first.
type uni struct {
	mu      sync.Mutex
	table   *unicast.Table
	changed chan struct{} // closed and replaced when the table has changed
	asked   map[netip.Addr]time.Time

	writing sync.Mutex        // one write at a time; guards the rest
	has     [whole + 1]uint64 // by part: the table's version that the switch has
	ways    uint64            // the version of the ways that it has
}

func newUni(t *unicast.Table) *uni {
	return &uni{table: t, changed: make(chan struct{}), asked: map[netip.Addr]time.Time{}}
}

// do calls f with the table, and wakes waiting goroutines if the table has changed.
func (u *uni) do(f func(*unicast.Table)) (changed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.table.Version()
	f(u.table)
	if changed = u.table.Version() != was; changed {
		close(u.changed)
		u.changed = make(chan struct{})
	}
	return changed
}

func (u *uni) adopt(s *switchspec.State) { u.do(func(t *unicast.Table) { t.Adopt(s) }) }

func (u *uni) use(hops []uint16) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, n := range hops {
		u.table.Use(n)
	}
}

func (u *uni) unuse(hops []uint16) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, n := range hops {
		u.table.Unuse(n)
	}
}

// attached reports whether a sender's packets, and answers to it, all pass this switch.
func (a *Agent) attached(host netip.Addr) bool {
	return slices.ContainsFunc(a.cfg.Prefixes, func(p netip.Prefix) bool { return p.Contains(host) })
}

// settledRoutes waits until the routes are known, so that "no route" is reliable.
func (a *Agent) settledRoutes(ctx context.Context) error {
	if closed(a.settled) {
		return nil
	}
	select {
	case <-a.settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: switch %s has just started and is still learning its routes; try again in some seconds", ErrNotReady, a.name)
	}
}

// hostTime is how long a host has to answer ARP.
const hostTime = time.Second

// resolveHosts resolves the MACs of unknown receivers that are attached here, and waits for the
// answers. A receiver that does not answer is no error here: it has no route.
func (a *Agent) resolveHosts(ctx context.Context, receivers []bifurcation.Receiver) error {
	ctx, cancel := context.WithTimeout(ctx, hostTime)
	defer cancel()
	again := time.NewTicker(hostTime / 4)
	defer again.Stop()
	for {
		var silent []netip.Addr
		a.uni.mu.Lock()
		changed := a.uni.changed
		for _, r := range receivers {
			var u *unicast.Unresolved
			if _, err := a.uni.table.Resolve(r.Addr); errors.As(err, &u) {
				silent = append(silent, r.Addr)
			}
		}
		a.uni.mu.Unlock()
		if len(silent) == 0 {
			return nil
		}
		for _, host := range silent {
			a.askHost(host)
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// A part of the unicast part of the switch.
type part int

const (
	hops  part = iota // what copies leave by
	ways              // and where packets go
	whole             // and nothing else
)

// wanted returns the table's entries that the switch lacks, and the table's versions.
type wanted struct {
	changes       []*unicast.Change
	version, ways uint64
}

func (u *uni) wanted() wanted {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.wantedLocked()
}

func (u *uni) wantedLocked() wanted {
	return wanted{u.table.Changes(), u.table.Version(), u.table.WaysVersion()}
}

// writeHops writes the next hops of copies to the switch.
func (a *Agent) writeHops(ctx context.Context) error {
	a.uni.writing.Lock()
	defer a.uni.writing.Unlock()
	_, err := a.putUnicast(ctx, hops, a.uni.wanted())
	return err
}

// writeWhole writes everything to the switch, and deletes the rest, unless the routes are no longer
// those of this version.
func (a *Agent) writeWhole(ctx context.Context, ways uint64) error {
	a.uni.writing.Lock()
	defer a.uni.writing.Unlock()
	w := a.uni.wanted()
	if w.ways != ways {
		return nil
	}
	_, err := a.putUnicast(ctx, whole, w)
	return err
}

// putUnicast writes a part to the switch, unless the switch has a later one. Entries that are no
// longer desired stay unless the whole is written, because groups may still use them. It does
// nothing, and returns false, if the numbers of next hops have changed their meaning on the switch
// since. The caller has uni.writing.
func (a *Agent) putUnicast(ctx context.Context, p part, want wanted) (done bool, err error) {
	u := a.uni
	if u.has[p] >= want.version {
		return true, nil
	}
	list := slices.DeleteFunc(want.changes, func(c *unicast.Change) bool {
		return p != whole && c.Entity == nil || p == hops && !isHop(c.Key)
	})
	overtaken := u.has[hops] > want.version
	if len(list) > 0 {
		err := a.driver.write(ctx, func(d *draft) error {
			for _, c := range list {
				if now, there := d.want.Find(c.Key); overtaken && there && c.Entity != nil && isHop(c.Key) && now != c.Entity {
					return errOutdated
				}
				if err := d.set(c.Key, c.Entity); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, errOutdated) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("unicast routes: %w", err)
		}
	}
	u.mu.Lock()
	u.table.Written(list)
	u.mu.Unlock()
	for i := range p + 1 {
		u.has[i] = max(u.has[i], want.version)
	}
	if p != hops {
		u.ways = want.ways
	}
	return true, nil
}

func isHop(k switchspec.Key) bool {
	return k.Kind() == switchspec.KindNextHop || k.Kind() == switchspec.KindNeighbor
}
