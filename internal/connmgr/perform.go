package connmgr

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/store"
)

// A runner carries out the actions of a group's machine. It belongs to the group's goroutine.
type runner struct {
	*group
	life   context.Context
	calls  context.Context // of calls that CancelCalls ends
	cancel context.CancelFunc
}

func (r *runner) renew() { r.calls, r.cancel = context.WithCancel(r.life) }

// run runs the group's machine until nothing is left of the group or the daemon ends.
func (g *group) run(ctx context.Context, s *machine.Sender) {
	defer g.end(ctx)
	r := &runner{group: g, life: ctx}
	r.renew()
	defer func() { r.cancel() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		g.mu.Lock()
		events := g.events
		g.events = nil
		g.mu.Unlock()
		for _, e := range append(events, (*machine.Sender).Tick) {
			e(s, time.Now())
			for list := s.Take(); len(list) > 0; list = s.Take() {
				g.status.Store(s.Status())
				for _, a := range list {
					r.perform(a)
				}
			}
		}
		status := s.Status()
		g.status.Store(status)
		if status.State == machine.Closed {
			return
		}
		var due <-chan time.Time
		if at := s.Deadline(); !at.IsZero() {
			timer.Reset(time.Until(at))
			due = timer.C
		}
		select {
		case <-g.wake:
		case <-due:
		case <-ctx.Done():
			return
		}
	}
}

// end fails the unanswered calls.
func (g *group) end(ctx context.Context) {
	g.cancel()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = true
	err := ctx.Err()
	if err == nil {
		err = g.closed()
	}
	for _, c := range g.calls {
		c <- answer{err: err}
	}
	clear(g.calls)
}

// startGroup starts a group's goroutine.
func (m *Manager) startGroup(g *group, s *machine.Sender) {
	m.background(func(ctx context.Context) { g.run(ctx, s) })
}

// start calls f in a goroutine, with a time limit, and posts the event that f returns.
func (r *runner) start(ctx context.Context, limit time.Duration, f func(context.Context) event) {
	r.m.background(func(context.Context) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		r.post(f(ctx))
	})
}

func (r *runner) perform(a machine.SenderAction) {
	m := r.m
	switch a := a.(type) {
	case machine.SaveGroup:
		r.save(a)
	case machine.TakeNumber:
		r.start(r.life, requestTime, func(context.Context) event {
			id, err := m.mcIDs.take(m.store, a.Receivers)
			return func(s *machine.Sender, now time.Time) { s.Numbered(id, rand.Uint32N(machine.MaxPSN+1), err, now) } //nolint:gosec // not a secret
		})
	case machine.FreeNumber:
		m.mcIDs.inUse.Delete(a.MCID)
	case machine.PrepareMember:
		r.start(r.calls, m.peers.patient(a.Limit, a.Addr), func(ctx context.Context) event {
			x, err := r.prepare(ctx, a)
			unsent := errors.As(err, new(*unsentError))
			return func(s *machine.Sender, now time.Time) { s.Prepared(a.Formation.MCID, a.Addr, x, err, unsent, now) }
		})
	case machine.InstallFormation:
		r.start(r.calls, requestTime, func(ctx context.Context) event {
			in, err := m.install(ctx, r.group, a.Formation, a.Old)
			return func(s *machine.Sender, now time.Time) { s.Installed(a.Formation.MCID, in, err, now) }
		})
	case machine.CommitMember:
		info := r.info(a.Formation)
		r.start(r.calls, commitTime, func(ctx context.Context) event {
			_, err := askHost(ctx, m.peers, a.Addr, mcrdmav1.HostsClient.Commit, &mcrdmav1.CommitRequest{Formation: info, Address: a.Addr.String()})
			return func(s *machine.Sender, now time.Time) { s.Committed(a.Formation.MCID, a.Addr, err, now) }
		})
	case machine.CancelCalls:
		r.cancel()
		r.renew()
	case machine.RecordMembers:
		r.start(r.calls, commitTime, func(ctx context.Context) event {
			err := r.recordMembers(ctx, a)
			return func(s *machine.Sender, now time.Time) { s.ViewRecorded(a.Next.View, a.Addr, err, now) }
		})
	case machine.UpdateSwitch:
		r.start(r.calls, requestTime, func(ctx context.Context) event {
			err := m.tor.Update(ctx, &r.spec, a.Next)
			return func(s *machine.Sender, now time.Time) { s.Updated(a.Next.View, err, now) }
		})
	case machine.CleanUp:
		r.cleanUp(a.Job)
	case machine.DrawTree:
		r.start(r.life, treeTime, func(ctx context.Context) event {
			lines, why := m.draw(ctx, a.Formation)
			return func(s *machine.Sender, now time.Time) { s.Drawn(a.Formation, lines, why, now) }
		})
	case machine.AskMissing:
		r.start(r.life, requestTime, func(ctx context.Context) event {
			missing := len(m.tor.Missing(ctx, m.tor.Key(a.MCID, 0))) > 0
			return func(s *machine.Sender, now time.Time) { s.Missing(a.MCID, missing, true, now) }
		})
	case machine.ProbeSwitch:
		r.start(r.life, installTime, func(ctx context.Context) event {
			ready := m.tor != nil && m.tor.Unusable() == ""
			return func(s *machine.Sender, now time.Time) { s.Probed(ready, now) }
		})
	case machine.TellSender:
		r.tellSender(a)
	case machine.ReplySender:
		out := answer{err: a.Err}
		if a.Formation != nil {
			out.info = r.info(a.Formation)
			for i, x := range a.Formation.Receivers { // other members' unicast secrets are not sent
				out.info.Members[i].Unicast = x.Unicast
			}
		}
		r.answer(a.Call, out)
	case machine.FormationComplete:
		r.formed(a.Formation)
	case machine.SenderEnded:
		r.ended(a.Why)
	}
}

// save makes the group's record durable, or deletes it.
func (r *runner) save(a machine.SaveGroup) {
	m := r.m
	edit := editOf(groupsBucket, r.id.number, nil)
	if a.Record != nil {
		edit.Value = store.Encode(groupRecord{ID: r.id, Spec: r.spec, User: r.sess.record(), Created: r.created, SenderRecord: *a.Record})
	}
	m.background(func(ctx context.Context) {
		err := m.commitState(ctx, edit)
		if err != nil && ctx.Err() == nil {
			m.log.Error("a group is not in the daemon's state as it is", "group", r.id, "error", err)
		}
		r.post(func(s *machine.Sender, now time.Time) { s.Recorded(a.Version, err, now) })
	})
}

// answerShare is the share of the remaining time that an application has to answer.
const answerShare = 0.9

// prepare asks a receiver's daemon to take part.
func (r *runner) prepare(ctx context.Context, a machine.PrepareMember) (machine.Receiver, error) {
	m, f := r.m, a.Formation
	req := &mcrdmav1.PrepareRequest{Version: ProtocolVersion, Group: r.id.proto(), Formation: f.N, Service: r.spec.Service, Program: r.spec.Program,
		Address: a.Addr.String(), Regions: r.spec.RegionSpecs(), Relay: r.spec.Relays(f.Sender), Lease: durationpb.New(m.cfg.Leases.Member), Joins: a.Joins}
	if m.host.NoSwitch(&r.spec, f) == "" {
		req.Connection = &mcrdmav1.Connection{Address: m.cfg.Address.String(), Qpn: f.MCID, Psn: f.PSN, Mtu: r.spec.MTU, Dscp: r.spec.DSCP, Timeout: uint32(r.timeout)}
	}
	res, err := askHost(ctx, m.peers, a.Addr, func(c mcrdmav1.HostsClient, ctx context.Context, req *mcrdmav1.PrepareRequest, _ ...grpc.CallOption) (*mcrdmav1.PrepareResponse, error) {
		if end, ok := ctx.Deadline(); ok {
			req = proto.CloneOf(req)
			req.Timeout = durationpb.New(time.Duration(answerShare * float64(time.Until(end))))
		}
		return c.Prepare(ctx, req)
	}, req)
	if err != nil {
		return machine.Receiver{}, err
	}
	return machine.ReceiverFrom(a.Addr, req, res)
}

// recordMembers makes a receiver's daemon record a view. A daemon of an older release does not know
// views, and is skipped.
func (r *runner) recordMembers(ctx context.Context, a machine.RecordMembers) error {
	req := &mcrdmav1.RecordViewRequest{Group: r.id.proto(), Formation: a.Next.N, Address: a.Addr.String(), View: a.Next.View}
	for _, x := range a.Next.Receivers {
		req.Members = append(req.Members, &mcrdmav1.Member{Address: x.Addr.String(), Host: x.Host})
	}
	_, err := askHost(ctx, r.m.peers, a.Addr, mcrdmav1.HostsClient.RecordView, req)
	if failure.Is(err, mcrdmav1.Reason_VERSION) {
		return nil
	}
	return err
}

// cleanUp undoes something elsewhere.
func (r *runner) cleanUp(j machine.Job) {
	m := r.m
	if !j.Addr.IsValid() {
		m.mcIDs.inUse.Store(j.MCID, false)
	}
	r.start(r.life, undoTime, func(ctx context.Context) event {
		var err error
		if j.Addr.IsValid() {
			_, err = askHost(ctx, m.peers, j.Addr, mcrdmav1.HostsClient.Drop, &mcrdmav1.DropRequest{Group: r.id.proto(), Formation: j.Formation,
				Address: j.Addr.String(), Reason: j.Reason, Text: failure.Clip(j.Text, failure.MaxText)})
		} else {
			err = m.tor.Remove(ctx, j.MCID)
		}
		return func(s *machine.Sender, now time.Time) { s.Cleaned(j.ID, err, now) }
	})
}

// tellSender tells the group's application.
func (r *runner) tellSender(a machine.TellSender) {
	m := r.m
	c := &mcrdmav1.GroupChanged{Group: r.id.proto(), Type: a.Type, Formation: a.Formation, Text: a.Text, Reason: a.Reason, Host: a.Member.Host,
		Tree: a.Tree}
	if a.Member.Addr.IsValid() {
		c.Address = a.Member.Addr.String()
	}
	if v := a.View; v != nil {
		c.View = v.View
		for _, addr := range v.Addrs() {
			c.Members = append(c.Members, addr.String())
		}
	}
	switch a.Type {
	case mcrdmav1.GroupChanged_TYPE_REMOVED:
		m.metrics.removed.WithLabelValues(a.Label).Inc()
		m.log.Info("a receiver was taken out", "group", r.id, "host", a.Member.Host, "why", a.Member.Why)
		r.happened("removed", a.Member.Addr, a.Member.Host, a.Member.Why)
	case mcrdmav1.GroupChanged_TYPE_REFORM:
		m.log.Info("a group is to be formed anew", "group", r.id, "why", a.Text)
		r.happened("reform", a.Member.Addr, a.Member.Host, a.Text)
	}
	r.sess.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_GroupChanged{GroupChanged: c}})
}

// formed starts following the receivers of a new formation.
func (r *runner) formed(f *formation) {
	m, now := r.m, time.Now()
	m.metrics.formation(f)
	m.log.Info("a group has been formed", "group", r.id, "formation", f.N, "path", f.Path, "receivers", len(f.Receivers), "why", strings.Join(f.Why, "; "))
	r.happened("formed", netip.Addr{}, "", machine.Plural(len(f.Receivers), "receiver")+", "+strings.Join(f.Why, "; "))
	r.checks.Store(&stallChecks{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watch(f, now)
}

// ended removes the group from all tables.
func (r *runner) ended(why *failure.Error) {
	m := r.m
	text := "closed by its application"
	if why != nil {
		text = why.Error()
	}
	m.log.Info("a group has ended", "group", r.id, "why", text)
	r.happened("ended", netip.Addr{}, "", text)
	r.group.cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.groups, r.id)
	r.sess.noteEnd(end{group: r.id, why: why})
}
