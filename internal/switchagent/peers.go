package switchagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// callTime bounds one call to another agent; the caller's deadline may be nearer.
const callTime = 5 * time.Second

// A peer is the agent of another switch. held and err are under Agent.mu.
type peer struct {
	name   bifurcation.Switch
	conn   *grpc.ClientConn
	rpc    mcrdmav1.SwitchPeerClient
	held   planner.Holdings[stepKey, *step]
	err    error // of the last call; nil: it answered
	tried  bool
	unsure wakeup // the switch may hold branches that are not in held: it is synced soon
}

// hold makes another switch deliver to a branch's receivers.
func (a *Agent) hold(ctx context.Context, s *step, sp spec, k branchKey, receivers []bifurcation.Receiver) error {
	err := a.holdOnce(ctx, s, sp, k, receivers)
	if a.catchUp(err) {
		err = a.holdOnce(ctx, s, sp, k, receivers)
	}
	return err
}

// catchUp continues from the sequence number that another agent knows, and reports whether that
// changes anything. An agent without its state file, or with a clock that was set back, starts with
// numbers that it has used before.
func (a *Agent) catchUp(err error) bool {
	const most = 1 << 62 // nanoseconds since 1970 reach this in 2116; more is invalid
	r, ok := errors.AsType[*failure.Error](err)
	if !ok || r.Reason != mcrdmav1.Reason_STALE {
		return false
	}
	for {
		now := a.sequence.Load()
		if r.Sequence < now || r.Sequence > most {
			return false
		}
		if a.sequence.CompareAndSwap(now, r.Sequence+1) {
			return true
		}
	}
}

func (a *Agent) holdOnce(ctx context.Context, s *step, sp spec, k branchKey, receivers []bifurcation.Receiver) error {
	p, key, sequence, err := a.ask(s, k)
	if err != nil {
		return err
	}
	via := make([]string, 0, len(sp.Via)+1)
	for _, v := range sp.Via {
		via = append(via, string(v))
	}
	req := &mcrdmav1.HoldRequest{Group: groupKeyProto(key.groupKey), Generation: sp.Generation, Sequence: sequence,
		Via: append(via, string(a.name)), Destination: k.Dst.String(), Receivers: receiversProto(receivers)}
	if _, err = call(ctx, a, p, p.rpc.Hold, req); err != nil {
		p.unsure.wake()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.held.Answered(key, err == nil || s.branches[k] != nil)
	return err
}

// ask records a branch as held, so that a sync does not release it meanwhile.
func (a *Agent) ask(s *step, k branchKey) (*peer, stepKey, uint64, error) {
	key := stepKey{s.key.groupKey, k.Dst}
	p := a.peers[k.Next]
	if p == nil {
		return nil, key, 0, fmt.Errorf("%w: switch %s is next on the way to %v, and the configuration names no agent of it", ErrPeer, k.Next, k.Dst)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	sequence := a.sequence.Add(1)
	if !p.held.Ask(key, s, sequence) {
		return nil, key, 0, fmt.Errorf("%w: group %v comes by switch %s on two ways", bifurcation.ErrAmbiguous, key, k.Next)
	}
	return p, key, sequence, nil
}

// release releases a branch, unless it belongs to another step by now.
func (a *Agent) release(ctx context.Context, s *step, k branchKey) error {
	p := a.peers[k.Next]
	if p == nil {
		return nil
	}
	key := stepKey{s.key.groupKey, k.Dst}
	a.mu.Lock()
	told := p.held.Release(key, s)
	sequence := a.sequence.Add(1) // before another step can ask for it
	a.mu.Unlock()
	if !told {
		return nil
	}
	req := &mcrdmav1.ReleaseRequest{Group: groupKeyProto(key.groupKey), Destination: k.Dst.String(), Sequence: sequence}
	_, err := call(ctx, a, p, p.rpc.Release, req)
	if err != nil {
		p.unsure.wake()
	}
	return err
}

// call makes a call within callTime and records whether the peer answers.
func call[Q, R any](ctx context.Context, a *Agent, p *peer, rpc func(context.Context, Q, ...grpc.CallOption) (R, error), req Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	begun := time.Now()
	res, err := rpc(ctx, req)
	if err = heard(p.name, err); isUnreachable(err) && p.back(ctx) {
		res, err = rpc(ctx, req) // all calls may be made twice
		err = heard(p.name, err)
	}
	a.metrics.peerCall(time.Since(begun), err)
	a.mu.Lock()
	p.tried = true
	p.err = nil
	if isUnreachable(err) || errors.Is(err, ErrDenied) {
		p.err = err
	}
	a.mu.Unlock()
	return res, err
}

// backTime is how long a call waits for a lost connection to come back.
const backTime = 250 * time.Millisecond

// back tries to connect again at once, and reports whether that worked.
func (p *peer) back(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, backTime)
	defer cancel()
	if p.conn.GetState() == connectivity.TransientFailure { // otherwise it races with gRPC's own reconnection
		p.conn.ResetConnectBackoff()
	}
	for s := p.conn.GetState(); s != connectivity.Ready; s = p.conn.GetState() {
		p.conn.Connect()
		if !p.conn.WaitForStateChange(ctx, s) {
			return false
		}
	}
	return true
}

// syncPeers sends each switch the list of what is held there, periodically and after a failed
// request, and repairs what is missing.
func (a *Agent) syncPeers(ctx context.Context) {
	period := min(a.cfg.Leases.Branch/3, maxSyncPeriod)
	var wg sync.WaitGroup
	for _, p := range a.peers {
		wg.Go(func() {
			for ctx.Err() == nil {
				wait := period
				if err := a.syncPeer(ctx, p); err != nil {
					wait = min(wait, time.Second)
				}
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				case <-p.unsure: // soon, but a peer that refuses or is away is not called continually
					select {
					case <-ctx.Done():
					case <-time.After(resync):
					}
				}
			}
		})
	}
	wg.Wait()
}

// maxSyncPeriod is the longest time between two syncs.
const maxSyncPeriod = 10 * time.Second

// resync is the maximum time from a failed request to the next sync.
const resync = 500 * time.Millisecond

func (a *Agent) syncPeer(ctx context.Context, p *peer) error {
	req := &mcrdmav1.SyncRequest{}
	a.mu.Lock()
	req.Sequence = a.sequence.Load()
	for k, b := range p.held {
		req.Branches = append(req.Branches, &mcrdmav1.HeldBranch{
			Group: groupKeyProto(k.groupKey), Destination: k.dst.String(), Sequence: b.Sequence})
	}
	a.mu.Unlock()
	res, err := call(ctx, a, p, p.rpc.Sync, req)
	if err != nil {
		return err
	}
	repair := a.detours.Swap(false) // a step may bypass this one
	a.mu.Lock()
	for _, b := range res.GetMissing() {
		k, err := stepKeyFrom(b.GetGroup(), b.GetDestination())
		if err != nil {
			continue
		}
		h, ok := p.held[k]
		if ok && !h.Asking && h.Sequence == b.GetSequence() && h.Owner.branches[branchKey{Next: p.name, Dst: k.dst}] != nil {
			h.Owner.behind, repair = true, true
		}
	}
	a.mu.Unlock()
	if repair {
		a.rerun.wake()
	}
	return nil
}
