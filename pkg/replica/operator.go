package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// ErrLoss means that the operator's change would lose data, and was not made.
var ErrLoss = errors.New("data would be lost")

// OperatorConfig configures an Operator, which acts as one of the hosts.
type OperatorConfig struct {
	Manager *osdmap.Manager
	Files   identity.Files // whose certificate names Name; zero: plain text
	Name    string         // of the host
	Timeout time.Duration  // for each answer of a host; default 5 s
	// Dial connects to hosts; nil: by TCP.
	Dial func(ctx context.Context, target string) (net.Conn, error)
	Log  *slog.Logger // nil: the default one
}

// An Operator changes which hosts have copies of volumes, and inspects the copies. It is not safe
// for concurrent use.
type Operator struct {
	manager *osdmap.Manager
	peers   *peers
	timeout time.Duration
	cancel  context.CancelFunc
}

// NewOperator returns an Operator, which the caller must close.
func NewOperator(c OperatorConfig) *Operator {
	o := &Operator{manager: c.Manager, timeout: cmp.Or(c.Timeout, 5*time.Second)}
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	o.peers = &peers{files: c.Files, own: identity.Identity{Role: identity.Host, Name: c.Name}, dial: c.Dial, log: cmp.Or(c.Log, slog.Default()), ctx: ctx, all: map[core.ID]*peer{}}
	return o
}

// Close closes the connections.
func (o *Operator) Close() {
	o.cancel()
	o.peers.close()
}

// A Copy is a host's report about its copy of a volume.
type Copy struct {
	Host             core.ID
	Err              error // it does not answer, or has none
	Self             core.Member
	Acting, Active   bool // as far as it knows; Active: it is the primary, and serves
	Backfilling      bool
	Born             uint64 // the incarnation that made it
	LastEpochStarted uint64
	Head             core.Version // the last entry that is durable
	Failure          string       // why the copy has ended; empty: it has not
}

// alive reports whether the host answers, and its copy has not ended.
func (c *Copy) alive() bool { return c.Err == nil && c.Failure == "" }

// query makes a request at a host.
func query[Q, A any](ctx context.Context, o *Operator, id core.ID, rpc func(replicav1.ReplicasClient, context.Context, Q, ...grpc.CallOption) (A, error), q Q) (a A, err error) {
	x := o.peers.get(id)
	if x == nil {
		return a, fmt.Errorf("host %d: %w", id, errNoPeer)
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	_, err = x.conn.Call(ctx, func(ctx context.Context) (err error) {
		a, err = rpc(x.rpc, ctx, q)
		return err
	})
	if err != nil {
		err = fmt.Errorf("host %s at %s: %w", x.host.Name, x.host.Peer, x.conn.Explain(err))
	}
	return a, err
}

// forEach queries hosts concurrently.
func forEach(ids []core.ID, f func(i int, id core.ID)) {
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { f(i, id) })
	}
	wg.Wait()
}

// Copies asks all hosts of a volume about their copies.
func (o *Operator) Copies(ctx context.Context, s *osdmap.State, v *osdmap.VolumeState) []Copy {
	o.peers.update(s.Hosts, 0)
	all := make([]Copy, len(v.Volume.Hosts))
	forEach(v.Volume.Hosts, func(i int, id core.ID) { all[i] = o.describe(ctx, id, v.Volume.ID) })
	return all
}

// describe asks a host about its copy.
func (o *Operator) describe(ctx context.Context, id core.ID, volume uint64) Copy {
	a, err := query(ctx, o, id, replicav1.ReplicasClient.Describe, &replicav1.DescribeRequest{Volume: volume})
	return Copy{Host: id, Err: err, Self: memberFrom(a.GetSelf()), Acting: a.GetActing(), Active: a.GetActive(), Backfilling: a.GetBackfilling(), Born: a.GetBorn(),
		LastEpochStarted: a.GetLastEpochStarted(), Head: versionFrom(a.GetHead()), Failure: a.GetFailure()}
}

// look reads the state, and finds a volume in it.
func (o *Operator) look(ctx context.Context, volume uint64) (*osdmap.State, *osdmap.VolumeState, error) {
	s, err := o.manager.Read(ctx)
	if err != nil {
		return nil, nil, err
	}
	v := s.Volume(volume)
	if v == nil {
		return nil, nil, fmt.Errorf("volume %016x: %w", volume, osdmap.ErrNotFound)
	}
	o.peers.update(s.Hosts, 0)
	return &s, v, nil
}

// change replaces the map of a volume by next's result, and retries if others change the map
// meanwhile.
func (o *Operator) change(ctx context.Context, volume uint64, next func(s *osdmap.State, v *osdmap.VolumeState) (core.Map, error)) (*osdmap.State, error) {
	for {
		s, v, err := o.look(ctx, volume)
		if err != nil {
			return nil, err
		}
		m, err := next(s, v)
		if err != nil {
			if _, now, looked := o.look(ctx, volume); looked == nil && now.Map.Epoch != v.Map.Epoch {
				continue // the error may be of the map that was
			}
			return nil, err
		}
		if m.Epoch == v.Map.Epoch { // it is so already
			return s, nil
		}
		now, err := o.manager.Change(ctx, volume, m)
		if err != nil {
			return nil, err
		}
		if reflect.DeepEqual(now, m) {
			v.Map, v.Volume.Hosts = m, m.Up
			return s, nil
		}
	}
}

// Replace gives the place of a host in a volume to another host, which gets a copy. If no other
// host is up to date it fails with ErrLoss; with loseData the volume goes on with the most recent
// of the other copies, and the host lost must not be running then. It returns the new state.
func (o *Operator) Replace(ctx context.Context, volume uint64, lost, by core.ID, loseData bool) (*osdmap.State, error) {
	return o.change(ctx, volume, func(s *osdmap.State, v *osdmap.VolumeState) (core.Map, error) {
		if !slices.Contains(v.Volume.Hosts, lost) && v.Map.Has(by, lost) {
			return v.Map, nil
		}
		if slices.Contains(v.Volume.Hosts, lost) && slices.Contains(v.Volume.Hosts, by) {
			return core.Map{}, fmt.Errorf("%w: %s has a copy of volume %s already: name another host than %s", core.ErrPlace, s.HostName(by), v.Volume.Name,
				strings.Join(s.HostNames(v.Volume.Hosts), ", "))
		}
		only, err := o.without(ctx, s, v, lost, loseData)
		if err == nil {
			err = o.vacant(ctx, s, volume, by)
		}
		if err != nil {
			return core.Map{}, err
		}
		next, err := v.Map.Replaced(lost, by, only)
		if err == nil && v.Map.Primary.ID == lost && o.describe(ctx, lost, volume).Err == nil {
			soon, cancel := context.WithTimeout(ctx, o.timeout)
			defer cancel()
			_, _ = o.Relieve(soon, v, lost) // its map replaces this one; if it fails, clients wait for longer
		}
		return next, err
	})
}

// vacant checks that a host is running and has no copy of a volume. A host that had a place before
// may still be removing its copy.
func (o *Operator) vacant(ctx context.Context, s *osdmap.State, volume uint64, by core.ID) error {
	name := s.HostName(by)
	_, err := query(ctx, o, by, replicav1.ReplicasClient.Describe, &replicav1.DescribeRequest{Volume: volume})
	switch {
	case status.Code(err) == codes.FailedPrecondition:
		return nil
	case err == nil:
		return fmt.Errorf("%w: host %s still has a copy, which it removes when the volume does not need it: try again then", core.ErrPlace, name)
	}
	return fmt.Errorf("the new host, %s, does not answer: start mcblock there: %w", name, err)
}

// Lost removes from the acting set a host that will not come back with its data, without giving its
// place to another. It returns ErrLoss, and uses loseData, as Replace does.
func (o *Operator) Lost(ctx context.Context, volume uint64, lost core.ID, loseData bool) (*osdmap.State, error) {
	return o.change(ctx, volume, func(s *osdmap.State, v *osdmap.VolumeState) (core.Map, error) {
		if slices.Contains(v.Volume.Hosts, lost) && !v.Map.Holds(lost) {
			return v.Map, nil
		}
		only, err := o.without(ctx, s, v, lost, loseData)
		if err != nil {
			return core.Map{}, err
		}
		if only != (core.Member{}) {
			return v.Map.Only(only), nil
		}
		return v.Map.Without(lost)
	})
}

// without returns the members with which a volume can go on without a host: the rest of the acting
// set, or only one member.
func (o *Operator) without(ctx context.Context, s *osdmap.State, v *osdmap.VolumeState, lost core.ID, loseData bool) (only core.Member, err error) {
	if !slices.Contains(v.Volume.Hosts, lost) {
		return core.Member{}, fmt.Errorf("%w: volume %s has no copy on %s: its hosts are %s", core.ErrPlace, v.Volume.Name, s.HostName(lost), strings.Join(s.HostNames(v.Volume.Hosts), ", "))
	}
	if !v.Map.Holds(lost) || v.Map.Unused() {
		return core.Member{}, nil
	}
	only, loss, never := judge(&v.Map, lost, o.Copies(ctx, s, v))
	if loss == "" || loseData && !never {
		return only, nil
	}
	acting := strings.Join(s.HostNames(hostsOf(v.Map.Acting)), ", ")
	text := strings.NewReplacer("LOST", s.HostName(lost), "ONLY", s.HostName(only.ID), "ACTING", acting).Replace(loss)
	return core.Member{}, fmt.Errorf("%w: volume %s: %s", ErrLoss, v.Volume.Name, text)
}

// judge returns what would be lost without a host, by the hosts' reports about their copies:
// nothing, if another acting member runs in the map's incarnation. never: the change is not allowed
// at all.
func judge(m *core.Map, lost core.ID, copies []Copy) (only core.Member, loss string, never bool) {
	var best *Copy
	restarted := false
	for i := range copies {
		c := &copies[i]
		if !c.alive() {
			continue
		}
		k := slices.IndexFunc(m.Acting, func(x core.Member) bool { return x.ID == c.Host })
		same := k >= 0 && c.Born <= m.Acting[k].Incarnation // otherwise its copy was made later
		if c.Host == lost {
			never = never || same
			continue
		}
		if m.Acts(c.Self) {
			return core.Member{}, "", false
		}
		if c.Backfilling || c.LastEpochStarted == 0 {
			continue
		}
		restarted = restarted || same
		if best == nil || cmp.Or(cmp.Compare(c.LastEpochStarted, best.LastEpochStarted), c.Head.Compare(best.Head)) > 0 {
			best = c
		}
	}
	switch {
	case never:
		return core.Member{}, "LOST answers, and no other host has everything that was acknowledged: the acting set is ACTING. Wait until another one is in it (mcblock volume show), or stop mcblock on LOST if its data is to be given up", true
	case restarted:
		return core.Member{}, "the other hosts of the acting set ACTING have restarted, or do not answer: they have all that was flushed, but writes that were acknowledged and not flushed are on LOST only. Start mcblock there with the disk that it had. If that is lost, --lose-data goes on without these writes", false
	case best != nil:
		return best.Self, fmt.Sprintf("LOST is the last one of the acting set ACTING that has everything: start mcblock there, or on another host of that. "+
			"If they are all lost, --lose-data goes on with the copy of ONLY, which was up to date in epoch %d (now it is %d): all that was written later is lost, also what was flushed", best.LastEpochStarted, m.Epoch), false
	}
	return core.Member{}, "no other host that answers has a copy: the acting set is ACTING. Start mcblock on a host that has one", true
}

// Promote makes another acting member the primary, and waits until a primary serves.
func (o *Operator) Promote(ctx context.Context, volume uint64, host core.ID) (*osdmap.State, error) {
	s, err := o.change(ctx, volume, func(s *osdmap.State, v *osdmap.VolumeState) (core.Map, error) {
		if v.Map.Primary.ID == host && v.Map.Since > 0 {
			return v.Map, nil
		}
		if !slices.Contains(v.Volume.Hosts, host) {
			return core.Map{}, fmt.Errorf("%w: volume %s has no copy there: its hosts are %s", core.ErrActing, v.Volume.Name, strings.Join(s.HostNames(v.Volume.Hosts), ", "))
		}
		m, err := v.Map.Promoted(host)
		if err != nil {
			return m, err
		}
		for _, c := range o.Copies(ctx, s, v) {
			if c.Host == host && (!c.alive() || !m.Acts(c.Self)) {
				return m, fmt.Errorf("%w: the host does not answer, has just restarted, or its copy has ended: wait until it is back (mcblock volume show)", core.ErrActing)
			}
		}
		return m, nil
	})
	for err == nil {
		v := s.Volume(volume)
		if slices.ContainsFunc(o.Copies(ctx, s, v), func(c Copy) bool { return c.Active && c.Self == v.Map.Primary }) {
			return s, nil
		}
		select {
		case <-time.After(retryTime):
		case <-ctx.Done():
			return s, fmt.Errorf("the map has the new primary, and it does not serve yet: see mcblock status: %w", ctx.Err())
		}
		s, _, err = o.look(ctx, volume)
	}
	return s, err
}

// Relieve makes another acting host the primary if a host is, which must be running: the volume's
// clients would otherwise wait until its leases have ended. It returns the new primary; 0: none was
// needed.
func (o *Operator) Relieve(ctx context.Context, v *osdmap.VolumeState, host core.ID) (by core.ID, err error) {
	if v.Map.Primary.ID != host || v.Map.Since == 0 {
		return 0, nil
	}
	for _, x := range v.Map.Acting {
		if x.ID == host {
			continue
		}
		if _, err = o.Promote(ctx, v.Volume.ID, x.ID); err == nil {
			return x.ID, nil
		}
	}
	return 0, err
}

// MinSize sets the number of up-to-date copies below which a volume waits.
func (o *Operator) MinSize(ctx context.Context, volume uint64, n int) (*osdmap.State, error) {
	return o.change(ctx, volume, func(_ *osdmap.State, v *osdmap.VolumeState) (core.Map, error) {
		if v.Map.MinSize == n {
			return v.Map, nil
		}
		return v.Map.Needs(n)
	})
}
