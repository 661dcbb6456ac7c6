package connmgr

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

type formation = machine.Formation

// A group is a group whose sender is an application of this host. Its machine belongs to one
// goroutine (run), to which events are posted.
type group struct {
	m       *Manager
	id      groupID
	spec    machine.Spec
	created time.Time
	timeout uint8 // of its queue pairs; see ackTimeout
	sess    *session
	ctx     context.Context // ends when the group has ended for its application
	cancel  context.CancelFunc
	status  atomic.Pointer[machine.SenderStatus]
	checks  atomic.Pointer[stallChecks] // for receivers that stall the present formation

	mu     sync.Mutex
	events []event
	wake   chan struct{} // 1
	calls  map[uint64]chan answer
	last   uint64 // number of a call
	gone   bool   // run has returned
}

// An event is an event for a group's machine.
type event func(*machine.Sender, time.Time)

// An answer is a machine's answer to a call.
type answer struct {
	info *mcrdmav1.FormationInfo
	err  error
}

func (m *Manager) newGroup(id groupID, sp machine.Spec, s *session, created time.Time) *group {
	g := &group{m: m, id: id, spec: sp, created: created, timeout: ackTimeout(m.cfg.Beat.DeadAfter), sess: s,
		wake: make(chan struct{}, 1), calls: map[uint64]chan answer{}}
	g.checks.Store(&stallChecks{})
	g.ctx, g.cancel = context.WithCancel(m.life)
	g.status.Store(&machine.SenderStatus{Resumed: true})
	return g
}

// senderConfig configures the machine of a group.
func (m *Manager) senderConfig(sp machine.Spec) machine.SenderConfig {
	c := machine.SenderConfig{MinSize: sp.MinSize, Waits: sp.Waits, Receivers: m.cfg.Limits.Receivers, MemberLease: m.cfg.Leases.Member, GroupLease: m.cfg.Leases.Group,
		PrepareTime: prepareTime, ReformTime: max(leastReform, m.cfg.Beat.DeadAfter), Grace: m.cfg.Beat.Grace}
	if m.tor != nil {
		c.Switch = m.tor.Name
	}
	return c
}

// form is the present formation; nil: there is none, or the group has ended.
func (g *group) form() *formation { return g.status.Load().Form }

// post sends the machine an event. It reports false if nothing is left of the group.
func (g *group) post(e event) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return false
	}
	g.events = append(g.events, e)
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return true
}

// call calls the machine, and waits for its answer, which comes soon after ctx has ended. If
// nothing is left of the group, it returns that the group has been closed.
func (g *group) call(ctx context.Context, f func(s *machine.Sender, call uint64, now time.Time)) (*mcrdmav1.FormationInfo, error) {
	answers := make(chan answer, 1)
	g.mu.Lock()
	g.last++
	id := g.last
	if !g.gone {
		g.calls[id] = answers
	}
	g.mu.Unlock()
	if !g.post(func(s *machine.Sender, now time.Time) { f(s, id, now) }) {
		return nil, g.closed()
	}
	defer context.AfterFunc(ctx, func() {
		g.post(func(s *machine.Sender, now time.Time) { s.Cancelled(id, ctx.Err(), now) })
	})()
	a := <-answers
	return a.info, a.err
}

func (g *group) answer(call uint64, a answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.calls[call]; c != nil {
		c <- a
		delete(g.calls, call)
	}
}

func (g *group) closed() error {
	return failure.New(mcrdmav1.Reason_CLOSED, "the group %v has been closed", g.id)
}

// lose asks for the removal of a receiver from a group. It may be called with Manager.mu.
func (m *Manager) lose(g *group, a netip.Addr, label, why string) {
	g.post(func(s *machine.Sender, now time.Time) { s.Lose(a, machine.Loss{Label: label, Why: why}, now) })
}

// ackTimeout is the exponent of the local ACK timeout of a sender's queue pair. The queue pair must
// retry for longer than the detection of a dead receiver takes, which with packets in flight is a
// quarter of deadAfter (health.Tracker.Blame) or a little more than one timeout. The timeout is not
// shorter than busy hosts take to answer, and not so long that a lost packet costs too much.
func ackTimeout(deadAfter time.Duration) (n uint8) {
	const tries, least, most = 8, 12, 16 // 17 ms, 268 ms
	for n = least; n < most && tries*qp.AckTimeout(n) <= deadAfter; n++ {
	}
	return n
}

// info returns what applications and other daemons see of a formation.
func (g *group) info(f *formation) *mcrdmav1.FormationInfo {
	out := &mcrdmav1.FormationInfo{Group: g.id.proto(), Formation: f.N, Path: f.Path, Why: f.Why, Have: f.Have, McId: f.MCID, Tree: f.Tree, View: f.View}
	for _, r := range f.Receivers {
		out.Members = append(out.Members, &mcrdmav1.Member{Address: r.Addr.String(), Host: r.Host, Qpn: r.QPN, Bootstrap: r.Bootstrap, Have: r.Have})
	}
	if f.Path == mcrdmav1.Path_PATH_SWITCH {
		out.Connection = &mcrdmav1.Connection{Address: f.First.String(), Qpn: f.MCID, Psn: f.PSN, Mtu: g.spec.MTU, Dscp: g.spec.DSCP, Timeout: uint32(g.timeout), MaxPackets: f.MaxPackets}
	}
	if r := f.Relay; r != nil {
		out.Relay = &mcrdmav1.Relay{Algorithm: r.Algorithm, Transport: r.Transport, Block: r.Block, Racks: r.Racks, Group: r.Group,
			Bootstrap: []string{f.Sender.Bootstrap}}
		for _, x := range f.Receivers {
			out.Relay.Bootstrap = append(out.Relay.Bootstrap, x.Bootstrap)
		}
	}
	for _, d := range g.status.Load().Departures {
		out.Departures = append(out.Departures, &mcrdmav1.Departure{Address: d.Addr.String(), Host: d.Host, Text: d.Why})
	}
	for _, x := range f.Absent {
		out.Absent = append(out.Absent, g.m.absent(x))
	}
	for _, s := range f.Phases {
		out.Phases = append(out.Phases, &mcrdmav1.PhaseTime{Phase: s.Name, Took: durationpb.New(s.Took)})
	}
	return out
}

func (m *Manager) absent(x machine.Absent) *mcrdmav1.Absent {
	return &mcrdmav1.Absent{Address: x.Addr.String(), Host: m.host.NameOf(x.Addr), Reason: x.Reason, Text: failure.Clip(x.Why, failure.MaxText)}
}
