package switchagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// callTime bounds one call to another agent; the caller's deadline may be nearer.
const callTime = 5 * time.Second

// peers are the agents of other switches.
type peers struct {
	name     bifurcation.Switch // of this switch
	table    *groups.Table
	metrics  *metrics
	all      map[bifurcation.Switch]*peer
	sequence atomic.Uint64 // of requests to them, and generations; never repeats
	detours  atomic.Bool   // a step bypasses a switch that did not answer
}

// A peer is the agent of another switch.
type peer struct {
	of     *peers
	at     bifurcation.Switch
	conn   *grpc.ClientConn
	rpc    mcrdmav1.SwitchPeerClient
	unsure wakeup // the switch may hold branches that are not in held: it is synced soon

	mu    sync.Mutex // before the table's
	held  planner.Holdings[groups.StepKey, *groups.Step]
	err   error // of the last call; nil: it answered
	tried bool
}

// hold makes another switch deliver to a branch's receivers.
func (p *peers) hold(ctx context.Context, s *groups.Step, sp groups.Spec, k planner.Branch, receivers []bifurcation.Receiver) error {
	to := p.all[k.Next]
	if to == nil {
		return fmt.Errorf("%w: switch %s is next on the way to %v, and the configuration names no agent of it", ErrPeer, k.Next, k.Dst)
	}
	err := to.holdOnce(ctx, s, sp, k, receivers)
	if p.catchUp(err) {
		err = to.holdOnce(ctx, s, sp, k, receivers)
	}
	return err
}

// catchUp continues from the sequence number that another agent knows, and reports whether that
// changes anything. An agent without its state file, or with a clock that was set back, starts with
// numbers that it has used before.
func (p *peers) catchUp(err error) bool {
	const most = 1 << 62 // nanoseconds since 1970 reach this in 2116; more is invalid
	r, ok := errors.AsType[*failure.Error](err)
	if !ok || r.Reason != mcrdmav1.Reason_STALE {
		return false
	}
	for {
		now := p.sequence.Load()
		if r.Sequence < now || r.Sequence > most {
			return false
		}
		if p.sequence.CompareAndSwap(now, r.Sequence+1) {
			return true
		}
	}
}

func (p *peer) holdOnce(ctx context.Context, s *groups.Step, sp groups.Spec, k planner.Branch, receivers []bifurcation.Receiver) error {
	key := groups.StepKey{Key: s.Key.Key, Dst: k.Dst}
	p.mu.Lock()
	sequence := p.of.sequence.Add(1)
	asked := p.held.Ask(key, s, sequence) // so that a sync does not release it meanwhile
	p.mu.Unlock()
	if !asked {
		return fmt.Errorf("%w: group %v comes by switch %s on two ways", bifurcation.ErrAmbiguous, key, p.at)
	}
	via := make([]string, 0, len(sp.Via)+1)
	for _, v := range sp.Via {
		via = append(via, string(v))
	}
	_, err := call(ctx, p, p.rpc.Hold, &mcrdmav1.HoldRequest{Group: groupKeyProto(key.Key), Generation: sp.Generation, Sequence: sequence,
		Via: append(via, string(p.of.name)), Destination: k.Dst.String(), Receivers: receiversProto(receivers)})
	if err != nil {
		p.unsure.wake()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held.Answered(key, err == nil || p.of.table.State(s).Branches[k] != nil)
	return err
}

// release releases a branch, unless it belongs to another step by now.
func (p *peers) release(ctx context.Context, s *groups.Step, k planner.Branch) error {
	if to := p.all[k.Next]; to != nil {
		return to.release(ctx, s, groups.StepKey{Key: s.Key.Key, Dst: k.Dst})
	}
	return nil
}

func (p *peer) release(ctx context.Context, s *groups.Step, k groups.StepKey) error {
	p.mu.Lock()
	told := p.held.Release(k, s)
	sequence := p.of.sequence.Add(1) // before another step can ask for it
	p.mu.Unlock()
	if !told {
		return nil
	}
	_, err := call(ctx, p, p.rpc.Release, &mcrdmav1.ReleaseRequest{Group: groupKeyProto(k.Key), Destination: k.Dst.String(), Sequence: sequence})
	if err != nil {
		p.unsure.wake()
	}
	return err
}

// call makes a call within callTime and records whether the peer answers.
func call[Q, R any](ctx context.Context, p *peer, rpc func(context.Context, Q, ...grpc.CallOption) (R, error), req Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	begun := time.Now()
	res, err := rpc(ctx, req)
	if err = heard(p.at, err); isUnreachable(err) && p.back(ctx) {
		res, err = rpc(ctx, req) // all calls may be made twice
		err = heard(p.at, err)
	}
	p.of.metrics.peerCall(time.Since(begun), err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tried, p.err = true, nil
	if isUnreachable(err) || errors.Is(err, ErrDenied) {
		p.err = err
	}
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
	for _, p := range a.peers.all {
		wg.Go(func() {
			for ctx.Err() == nil {
				wait := period
				repair, err := p.sync(ctx)
				if err != nil {
					wait = min(wait, time.Second)
				}
				if repair {
					a.rerun.wake()
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

// sync sends the list of what the switch holds. repair: it lacks a branch, or may have been bypassed.
func (p *peer) sync(ctx context.Context) (repair bool, err error) {
	req := &mcrdmav1.SyncRequest{}
	p.mu.Lock()
	req.Sequence = p.of.sequence.Load()
	for k, b := range p.held {
		req.Branches = append(req.Branches, &mcrdmav1.HeldBranch{
			Group: groupKeyProto(k.Key), Destination: k.Dst.String(), Sequence: b.Sequence})
	}
	p.mu.Unlock()
	res, err := call(ctx, p, p.rpc.Sync, req)
	if err != nil {
		return false, err
	}
	repair = p.of.detours.Swap(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range res.GetMissing() {
		k, err := stepKeyFrom(b.GetGroup(), b.GetDestination())
		h, ok := p.held[k]
		if err != nil || !ok || h.Asking || h.Sequence != b.GetSequence() {
			continue
		}
		p.of.table.Change(h.Owner, func(now *groups.State) {
			if now.Branches[planner.Branch{Next: p.at, Dst: k.Dst}] != nil {
				now.Behind, repair = true, true
			}
		})
	}
	return repair, nil
}

// status says whether the peer answers, and how many branches its switch holds.
func (p *peer) status() (tried bool, branches int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tried, len(p.held), p.err
}
