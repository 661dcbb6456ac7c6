package connmgr

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// tor is the agent of the host's switch.
type tor struct {
	m      *Manager
	name   string
	target string
	conn   *grpcclient.Conn
	groups mcrdmav1.SwitchGroupsClient
	status mcrdmav1.SwitchStatusClient
	health healthpb.HealthClient
	kick   chan struct{}       // 1: look whether the agent has our groups
	reads  *semaphore.Weighted // maxAgentCounters: of counters
	probes singleflight.Group
	moved  map[netip.Addr]time.Time // when the switch was seen to have counted answers; under Manager.mu

	mu     sync.Mutex
	synced bool  // events are followed
	err    error // why not
}

// state says whether the agent's events are followed, and why not.
func (t *tor) state() (synced bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.synced, t.err
}

// follows notes it, and returns what was before.
func (t *tor) follows(synced bool, err error) (was bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, t.synced, t.err = t.synced, synced, err
	return was
}

func (m *Manager) dialSwitch() error {
	c := m.cfg.Switch
	if c.Agent == "" {
		return nil
	}
	conn, err := m.connect(c.Agent, identity.Identity{Role: identity.Switch, Name: c.Name}, m.opts.DialSwitch)
	if err != nil {
		return fmt.Errorf("%w: the agent of switch %s: %w", ErrConfig, c.Name, err)
	}
	m.tor = &tor{m: m, name: c.Name, target: c.Agent, conn: conn, kick: make(chan struct{}, 1), reads: semaphore.NewWeighted(maxAgentCounters),
		err: errNotYet, moved: map[netip.Addr]time.Time{}, groups: mcrdmav1.NewSwitchGroupsClient(conn),
		status: mcrdmav1.NewSwitchStatusClient(conn), health: healthpb.NewHealthClient(conn)}
	return nil
}

var (
	errNotYet = errors.New("the agent has not answered yet")
)

// A torError is what an agent has answered, or that it has not.
type torError struct {
	sw, text string
	// transient: another try later may succeed. Routes come back, when a link does. The
	// later try has another MC_ID: after EXISTS, the
	// existing group is of a state that this daemon has lost.
	transient bool
	unchanged bool // the agent has changed nothing
}

func (e *torError) Error() string { return e.sw + ": " + e.text }

// explain says what the error of a call to the agent means. unsent: the request cannot
// have arrived.
func (t *tor) explain(ctx context.Context, unsent bool, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return ctx.Err()
	}
	s, info := status.Convert(err), failure.Info(err)
	timeout := s.Code() == codes.DeadlineExceeded
	if reason := failure.Clip(info.GetReason(), failure.MaxName); reason != "" {
		again := timeout || reason == mcrdmav1.Reason_NOT_READY.String() || reason == mcrdmav1.Reason_NO_ROUTE.String() || reason == mcrdmav1.Reason_EXISTS.String() || reason == mcrdmav1.Reason_CLOSED.String()
		return &torError{sw: cmp.Or(failure.Clip(info.GetMetadata()["switch"], failure.MaxName), t.name),
			text: reason + ": " + failure.Clip(info.GetMetadata()["text"], failure.MaxText), transient: again, unchanged: !timeout}
	}
	e := &torError{sw: t.name, transient: true, unchanged: unsent,
		text: fmt.Sprintf("its agent at %s does not answer: %s", t.target, failure.Said(err))}
	switch cause := t.conn.Last(); {
	case timeout:
		e.text = fmt.Sprintf("its agent at %s did not answer in time", t.target)
	case s.Code() == codes.Unavailable && grpcclient.Untrusted(cause):
		e.text = fmt.Sprintf("its agent at %s and this daemon do not trust each other: %v", t.target, cause)
	case s.Code() == codes.Unavailable && cause != nil:
		e.text = fmt.Sprintf("its agent at %s does not answer: %v", t.target, cause)
	case s.Code() != codes.Unavailable && s.Code() != codes.Internal && s.Code() != codes.Unknown:
		e.text = s.Code().String() + ": " + e.text
		e.transient, e.unchanged = false, s.Code() != codes.Canceled
	}
	return e
}

// call makes a call within installTime, perhaps twice.
func (t *tor) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	begun := time.Now()
	unsent, err := t.conn.Call(ctx, f)
	t.m.metrics.agentCall(time.Since(begun), err)
	return t.explain(ctx, unsent, err)
}

func (t *tor) key(mcID uint32) *mcrdmav1.GroupKey {
	return &mcrdmav1.GroupKey{Source: t.m.cfg.Address.String(), McId: mcID}
}

// install has the switches copy a formation's packets. After an error that is no answer,
// they may have begun to.
func (t *tor) install(ctx context.Context, g *group, f *formation) error {
	req := &mcrdmav1.InstallRequest{Lease: durationpb.New(t.m.cfg.Leases.Group), Group: &mcrdmav1.Group{Key: t.key(f.MCID),
		SenderQpn: f.Sender.QPN, InitialPsn: f.PSN, Address: f.First.String(), Receivers: g.spec.SwitchReceivers(f.Receivers)}}
	if g.spec.CNPGap > 0 {
		req.Group.CnpGap = durationpb.New(g.spec.CNPGap)
	}
	_, err := ask(ctx, t.call, t.groups.Install, req)
	return err
}

// update leaves these receivers only.
func (t *tor) update(ctx context.Context, g *group, f *formation) error {
	req := &mcrdmav1.UpdateRequest{Key: t.key(f.MCID), Receivers: g.spec.SwitchReceivers(f.Receivers)}
	_, err := ask(ctx, t.call, t.groups.Update, req)
	return err
}

func (t *tor) remove(ctx context.Context, mcID uint32) error {
	_, err := ask(ctx, t.call, t.groups.Remove, &mcrdmav1.RemoveRequest{Key: t.key(mcID)})
	return err
}

// install has the switches copy, if they can, or determines how hosts relay. It takes the
// formation before out of the switches first.
func (m *Manager) install(ctx context.Context, g *group, f, old *formation) (in machine.Installation, err error) {
	if old != nil {
		undo, cancel := context.WithTimeout(ctx, undoTime)
		if err := m.tor.remove(undo, old.MCID); err != nil {
			m.log.Warn("a formation that has ended is still at the switch; it will be removed", "group", g.id, "error", err)
			in.OldLeft = true
		}
		cancel()
	}
	why, sw := m.host.NoSwitch(&g.spec, f), ""
	if why == "" {
		err := m.tor.install(ctx, g, f)
		if in.Left = true; err == nil {
			in.Path, in.Why = mcrdmav1.Path_PATH_SWITCH, []string{fmt.Sprintf("by switches: %s merges, %s", m.tor.name, plural(len(f.Receivers), "receiver"))}
			return in, nil
		}
		if ctx.Err() != nil {
			return in, ctx.Err()
		}
		why, sw = err.Error(), m.tor.name
		if e, ok := errors.AsType[*torError](err); ok {
			sw, in.Transient, in.Left = e.sw, e.transient, !e.unchanged
		}
	}
	if !g.spec.Relays(f.Sender) {
		e := failure.New(mcrdmav1.Reason_NO_SWITCH, "mode require, and switches cannot copy: %s", why)
		e.Switch = sw
		return in, e
	}
	var secret [8]byte
	_, _ = rand.Read(secret[:]) // never fails
	choice := machine.RelayChoice{Algorithm: notAuto(g.spec.Algorithm, m.cfg.Relay.Algorithm), Transport: notAuto(g.spec.Transport, m.cfg.Relay.Transport),
		Block: m.cfg.Relay.Block, Typical: g.spec.Typical, Host: m.cfg.Name, Rack: m.cfg.Rack, Group: max(binary.BigEndian.Uint64(secret[:]), 1)}
	if in.Relay, err = choice.For(f); err != nil {
		cannot := failure.Of(err)
		cannot.Text += " (switches cannot copy: " + why + ")"
		return in, cannot
	}
	in.Path, in.Why = mcrdmav1.Path_PATH_RELAY, []string{"by hosts: " + why, fmt.Sprintf("relayed as %s over %s", in.Relay.Algorithm, in.Relay.Transport)}
	return in, nil
}

// notAuto returns the first choice that is not left to the daemon; "": there is none.
func notAuto(choices ...string) string {
	for _, c := range choices {
		if c != "" && c != machine.Auto {
			return c
		}
	}
	return ""
}
