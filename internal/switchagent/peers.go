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
	all      map[bifurcation.Switch]*peer
	sequence atomic.Uint64 // of requests to them, and generations; never repeats
	detours  atomic.Bool   // a step bypasses a switch that did not answer
}

// A peer is the agent of another switch.
type peer struct {
	name     bifurcation.Switch
	conn     *grpc.ClientConn
	rpc      mcrdmav1.SwitchPeerClient
	sequence *atomic.Uint64 // of all peers
	unsure   wakeup         // the switch may hold branches that are not in held: it is synced soon

	mu    sync.Mutex
	held  planner.Holdings[groups.StepKey, *groups.Step]
	err   error // of the last call; nil: it answered
	tried bool
}

// ask records a branch as held, so that a sync does not release it meanwhile.
func (p *peer) ask(k groups.StepKey, s *groups.Step) (sequence uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sequence = p.sequence.Add(1)
	if !p.held.Ask(k, s, sequence) {
		return 0, fmt.Errorf("%w: group %v comes by switch %s on two ways", bifurcation.ErrAmbiguous, k, p.name)
	}
	return sequence, nil
}

// answered ends a request; kept says that the branch is held.
func (p *peer) answered(k groups.StepKey, kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held.Answered(k, kept)
}

// release ends a holding, and reports whether the switch has to be told, with which number.
func (p *peer) release(k groups.StepKey, s *groups.Step) (sequence uint64, tell bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tell = p.held.Release(k, s)
	return p.sequence.Add(1), tell // before another step can ask for it
}

// list returns the branches that the switch holds.
func (p *peer) list() *mcrdmav1.SyncRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	req := &mcrdmav1.SyncRequest{Sequence: p.sequence.Load()}
	for k, b := range p.held {
		req.Branches = append(req.Branches, &mcrdmav1.HeldBranch{
			Group: groupKeyProto(k.Key), Destination: k.Dst.String(), Sequence: b.Sequence})
	}
	return req
}

// lacks returns the step whose branch the switch lacks, if it was asked for it with that number.
func (p *peer) lacks(k groups.StepKey, sequence uint64) *groups.Step {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h, ok := p.held[k]; ok && !h.Asking && h.Sequence == sequence {
		return h.Owner
	}
	return nil
}

// called records whether the peer answers.
func (p *peer) called(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tried, p.err = true, nil
	if isUnreachable(err) || errors.Is(err, ErrDenied) {
		p.err = err
	}
}

// status says whether the peer answers, and how many branches its switch holds.
func (p *peer) status() (tried bool, err error, branches int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tried, p.err, len(p.held)
}

// hold makes another switch deliver to a branch's receivers.
func (a *Agent) hold(ctx context.Context, s *groups.Step, sp groups.Spec, k planner.Branch, receivers []bifurcation.Receiver) error {
	err := a.holdOnce(ctx, s, sp, k, receivers)
	if a.peers.catchUp(err) {
		err = a.holdOnce(ctx, s, sp, k, receivers)
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

func (a *Agent) holdOnce(ctx context.Context, s *groups.Step, sp groups.Spec, k planner.Branch, receivers []bifurcation.Receiver) error {
	key, p := groups.StepKey{Key: s.Key.Key, Dst: k.Dst}, a.peers.all[k.Next]
	if p == nil {
		return fmt.Errorf("%w: switch %s is next on the way to %v, and the configuration names no agent of it", ErrPeer, k.Next, k.Dst)
	}
	sequence, err := p.ask(key, s)
	if err != nil {
		return err
	}
	via := make([]string, 0, len(sp.Via)+1)
	for _, v := range sp.Via {
		via = append(via, string(v))
	}
	req := &mcrdmav1.HoldRequest{Group: groupKeyProto(key.Key), Generation: sp.Generation, Sequence: sequence,
		Via: append(via, string(a.name)), Destination: k.Dst.String(), Receivers: receiversProto(receivers)}
	if _, err = call(ctx, a, p, p.rpc.Hold, req); err != nil {
		p.unsure.wake()
	}
	p.answered(key, err == nil || a.table.State(s).Branches[k] != nil)
	return err
}

// release releases a branch, unless it belongs to another step by now.
func (a *Agent) release(ctx context.Context, s *groups.Step, k planner.Branch) error {
	p := a.peers.all[k.Next]
	if p == nil {
		return nil
	}
	key := groups.StepKey{Key: s.Key.Key, Dst: k.Dst}
	sequence, tell := p.release(key, s)
	if !tell {
		return nil
	}
	req := &mcrdmav1.ReleaseRequest{Group: groupKeyProto(key.Key), Destination: k.Dst.String(), Sequence: sequence}
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
	p.called(err)
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
	res, err := call(ctx, a, p, p.rpc.Sync, p.list())
	if err != nil {
		return err
	}
	repair := a.peers.detours.Swap(false) // a step may bypass this one
	for _, b := range res.GetMissing() {
		k, err := stepKeyFrom(b.GetGroup(), b.GetDestination())
		if err != nil {
			continue
		}
		if s := p.lacks(k, b.GetSequence()); s != nil {
			a.table.Change(s, func(now *groups.State) {
				if now.Branches[planner.Branch{Next: p.name, Dst: k.Dst}] != nil {
					now.Behind, repair = true, true
				}
			})
		}
	}
	if repair {
		a.rerun.wake()
	}
	return nil
}
