package connmgr

import (
	"context"
	"sync"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
)

// create makes a group, or leaves nothing.
func (m *Manager) create(ctx context.Context, s *session, req *mcrdmav1.CreateGroupRequest) (*mcrdmav1.CreateGroupResponse, error) {
	begun := time.Now()
	sp, addrs, err := m.host.Spec(s.record().Program, req)
	if err != nil {
		return nil, err
	}
	from, err := m.host.Sender(&sp, req.GetForming())
	if err != nil {
		return nil, err
	}
	leave, err := m.mayCreate(s)
	if err != nil {
		return nil, err
	}
	defer leave()
	g, err := m.enterGroup(s, sp)
	if err != nil {
		return nil, err
	}
	by, _ := ctx.Deadline()
	views := s.acksViews()
	f, err := g.call(ctx, func(s *machine.Sender, call uint64, now time.Time) {
		s.Create(machine.Call{ID: call, Begun: begun, By: by}, from, addrs, views, now)
	})
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.CreateGroupResponse{Formation: f, Regions: g.spec.RegionSpecs(), MinSize: g.spec.MinSize, Waits: g.spec.Waits}, nil
}

// reform makes a group anew.
func (m *Manager) reform(ctx context.Context, g *group, req *mcrdmav1.ReformGroupRequest) (*mcrdmav1.ReformGroupResponse, error) {
	begun, again := time.Now(), machine.Again{Formation: req.GetFormation(), Fruitless: req.GetFruitless()}
	var err error
	if again.From, err = m.host.Sender(&g.spec, req.GetForming()); err != nil {
		return nil, err
	}
	if len(req.GetAdd()) > 0 {
		if again.Add, err = m.host.ReceiversFrom(req.GetAdd()); err != nil {
			return nil, err
		}
	}
	for _, s := range req.GetSuspects() {
		a, err := machine.AddrFrom(s, "suspect")
		if err != nil {
			return nil, err
		}
		again.Suspects = append(again.Suspects, a)
	}
	if req.GetReporter() != "" {
		if again.Reporter, err = machine.AddrFrom(req.GetReporter(), "reporter"); err != nil {
			return nil, err
		}
	}
	m.log.Debug("a group is to be formed anew", "group", g.id, "reason", failure.Clip(req.GetReason(), failure.MaxText))
	by, _ := ctx.Deadline()
	f, err := g.call(ctx, func(s *machine.Sender, call uint64, now time.Time) {
		s.Reform(machine.Call{ID: call, Begun: begun, By: by}, again, now)
	})
	if err != nil {
		// If the group has failed meanwhile, that is the result, not the error of this call.
		if why := g.sess.whyEnded(g.id, 0, nil); why != nil {
			return nil, why
		}
		return nil, err
	}
	return &mcrdmav1.ReformGroupResponse{Formation: f}, nil
}

// ackView takes the application's acknowledgement of a view.
func (m *Manager) ackView(ctx context.Context, g *group, req *mcrdmav1.AckViewRequest) (*mcrdmav1.AckViewResponse, error) {
	_, err := g.call(ctx, func(s *machine.Sender, call uint64, now time.Time) { s.AckView(call, req.GetView(), now) })
	return &mcrdmav1.AckViewResponse{}, err
}

// enterGroup makes a group that has no formation yet.
func (m *Manager) enterGroup(s *session, sp machine.Spec) (*group, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.isEnded() {
		return nil, failure.New(mcrdmav1.Reason_NOT_FOUND, "the session has ended")
	}
	if m.draining {
		return nil, failure.New(mcrdmav1.Reason_UNREACHABLE, drainText)
	}
	if err := m.roomForGroup(s.uid); err != nil {
		return nil, err
	}
	g := m.newGroup(groupID{m.cfg.Address, m.numbers.Add(1)}, sp, s, time.Now())
	m.groups[g.id] = g
	m.startGroup(g, machine.NewSender(m.senderConfig(sp)))
	return g, nil
}

// reach asks hosts whether they answer.
func (m *Manager) reach(ctx context.Context, req *mcrdmav1.ReachRequest) (*mcrdmav1.ReachResponse, error) {
	addrs, err := m.host.ReceiversFrom(req.GetReceivers())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, grpcclient.ConnectTime)
	defer cancel()
	errs := make([]error, len(addrs))
	var wg sync.WaitGroup
	for i, a := range addrs {
		wg.Go(func() {
			_, errs[i] = askHost(ctx, m.peers, a, mcrdmav1.HostsClient.Beat, &mcrdmav1.BeatRequest{Boot: m.boot})
		})
	}
	wg.Wait()
	res := &mcrdmav1.ReachResponse{}
	for i, err := range errs {
		if err != nil {
			res.Absent = append(res.Absent, m.absent(machine.Absent{Addr: addrs[i], Loss: machine.LossBy(err)}))
		}
	}
	return res, nil
}
