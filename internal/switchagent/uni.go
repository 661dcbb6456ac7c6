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

// uni is the unicast part of the switch. Its methods take its locks, writing before mu.
type uni struct {
	driver *driver

	mu      sync.Mutex
	table   *unicast.Table
	changed chan struct{} // closed and replaced when the table has changed
	asked   map[netip.Addr]time.Time

	writing sync.Mutex        // one write at a time; guards the rest
	has     [whole + 1]uint64 // by part: the table's version that the switch has
	ways    uint64            // the version of the ways that it has
}

func newUni(t *unicast.Table, d *driver) *uni {
	return &uni{driver: d, table: t, changed: make(chan struct{}), asked: map[netip.Addr]time.Time{}}
}

// with calls f with the table. Unlike do, it wakes no goroutine.
func (u *uni) with(f func(*unicast.Table)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f(u.table)
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

// adopt takes over the switch's entries, and counts the use of these next hops.
func (u *uni) adopt(s *switchspec.State, hops []uint16) {
	u.do(func(t *unicast.Table) {
		t.Adopt(s)
		for _, n := range hops {
			t.Use(n)
		}
	})
}

func (u *uni) unuse(hops []uint16) {
	u.with(func(t *unicast.Table) {
		for _, n := range hops {
			t.Unuse(n)
		}
	})
}

// askEvery is the minimum time between two ARP requests for a host.
const askEvery = 200 * time.Millisecond

// ask reports whether a host may be asked for its MAC, and records that it is.
func (u *uni) ask(host netip.Addr, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.asked[host]) < askEvery {
		return false
	}
	if len(u.asked) > unicast.MaxHosts {
		clear(u.asked)
	}
	u.asked[host] = now
	return true
}

// silent returns the receivers whose MACs are not known, and what is closed when the table changes.
func (u *uni) silent(receivers []bifurcation.Receiver) (list []netip.Addr, changed <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range receivers {
		var unknown *unicast.Unresolved
		if _, err := u.table.Resolve(r.Addr); errors.As(err, &unknown) {
			list = append(list, r.Addr)
		}
	}
	return list, u.changed
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

func wantedOf(t *unicast.Table) wanted { return wanted{t.Changes(), t.Version(), t.WaysVersion()} }

func (u *uni) wanted() (w wanted) {
	u.with(func(t *unicast.Table) { w = wantedOf(t) })
	return w
}

// written returns the version of the ways that the switch has.
func (u *uni) written() uint64 {
	u.writing.Lock()
	defer u.writing.Unlock()
	return u.ways
}

// writeHops writes the next hops of copies to the switch.
func (u *uni) writeHops(ctx context.Context) error {
	u.writing.Lock()
	defer u.writing.Unlock()
	_, err := u.put(ctx, hops, u.wanted())
	return err
}

// writeWays writes these ways to the switch. See put.
func (u *uni) writeWays(ctx context.Context, want wanted) (done bool, err error) {
	u.writing.Lock()
	defer u.writing.Unlock()
	return u.put(ctx, ways, want)
}

// writeWhole writes everything to the switch, and deletes the rest, unless the routes are no longer
// those of this version.
func (u *uni) writeWhole(ctx context.Context, ways uint64) error {
	u.writing.Lock()
	defer u.writing.Unlock()
	w := u.wanted()
	if w.ways != ways {
		return nil
	}
	_, err := u.put(ctx, whole, w)
	return err
}

// errOutdated says that routes have changed since a step was planned.
var errOutdated = errors.New("routes have changed")

// put writes a part to the switch, unless the switch has a later one. Entries that are no
// longer desired stay unless the whole is written, because groups may still use them. It does
// nothing, and returns false, if the numbers of next hops have changed their meaning on the switch
// since. The caller has u.writing.
func (u *uni) put(ctx context.Context, p part, want wanted) (done bool, err error) {
	if u.has[p] >= want.version {
		return true, nil
	}
	list := slices.DeleteFunc(want.changes, func(c *unicast.Change) bool {
		return p != whole && c.Entity == nil || p == hops && !isHop(c.Key)
	})
	overtaken := u.has[hops] > want.version
	if len(list) > 0 {
		err := u.driver.write(ctx, func(d *draft) error {
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
	u.with(func(t *unicast.Table) { t.Written(list) })
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
