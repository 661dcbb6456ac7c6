package connmgr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// tor is the agent of the host's switch.
type tor struct {
	m      *Manager
	name   string
	target string
	link   *link
	conn   *grpc.ClientConn
	groups mcrdmav1.SwitchGroupsClient
	status mcrdmav1.SwitchStatusClient
	health healthpb.HealthClient
	kick   chan struct{} // 1: look whether the agent has our groups
	reads  chan struct{} // maxAgentCounters: reads of counters that are under way

	// Under Manager.mu.
	synced bool  // events are followed
	err    error // why not
	due    time.Time
	busy   bool // leases are being renewed
}

func (m *Manager) dialSwitch() error {
	c := m.cfg.Switch
	if c.Agent == "" {
		return nil
	}
	creds, err := m.files.Client(identity.Identity{Role: identity.Switch, Name: c.Name})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	t := &tor{m: m, name: c.Name, target: c.Agent, link: &link{TransportCredentials: creds, once: dialOnce}, kick: make(chan struct{}, 1), reads: make(chan struct{}, maxAgentCounters), err: errNotYet}
	if t.conn, err = grpc.NewClient("passthrough:///"+c.Agent, append(dialOptions(t.link, m.own()), m.opts.DialSwitch...)...); err != nil {
		return fmt.Errorf("%w: the agent of switch %s: %w", ErrConfig, c.Name, err)
	}
	t.groups = mcrdmav1.NewSwitchGroupsClient(t.conn)
	t.status = mcrdmav1.NewSwitchStatusClient(t.conn)
	t.health = healthpb.NewHealthClient(t.conn)
	m.tor = t
	return nil
}

var (
	errNotYet  = errors.New("the agent has not answered yet")
	errNoAgent = errors.New("no switch agent is configured") // any longer, if a formation has switches
)

// A torError is what an agent has answered, or that it has not.
type torError struct {
	reason    string // of its ErrorInfo; "": it did not answer
	sw, text  string
	unchanged bool // it has changed nothing
}

func (e *torError) Error() string {
	if e.reason == "" {
		return e.sw + ": " + e.text
	}
	return fmt.Sprintf("%s: %s: %s", e.sw, e.reason, e.text)
}

// transient reports whether another try later may succeed. A later try has another MC_ID:
// after EXISTS, the existing group is of a state that this daemon has lost.
func (e *torError) transient() bool {
	return e.reason == "" || e.reason == "NOT_READY" || e.reason == "EXISTS" || e.reason == codes.DeadlineExceeded.String()
}

// An unsentError is the error of a request that cannot have arrived.
type unsentError struct{ s *status.Status }

func (e *unsentError) Error() string              { return e.s.Message() }
func (e *unsentError) GRPCStatus() *status.Status { return e.s }

// fault says what the error of a call to the agent means.
func (t *tor) fault(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return ctx.Err()
	}
	s := status.Convert(err)
	_, unsent := errors.AsType[*unsentError](err)
	if info := infoOf(s); info != nil && info.GetReason() != "" {
		e := &torError{reason: clip(info.GetReason(), maxName), sw: clip(info.GetMetadata()["switch"], maxName),
			text: clip(info.GetMetadata()["text"], maxText), unchanged: s.Code() != codes.DeadlineExceeded}
		if e.sw == "" {
			e.sw = t.name
		}
		return e
	}
	e := &torError{sw: t.name, unchanged: unsent, text: fmt.Sprintf("its agent at %s does not answer: %s", t.target, clip(s.Message(), maxText))}
	switch cause := t.link.last(); {
	case s.Code() == codes.DeadlineExceeded:
		e.text = fmt.Sprintf("its agent at %s did not answer in time", t.target)
	case s.Code() == codes.Unavailable && cause != nil:
		e.text = fmt.Sprintf("its agent at %s does not answer: %v", t.target, cause)
	case s.Code() != codes.Unavailable && s.Code() != codes.Internal && s.Code() != codes.Unknown:
		e.reason, e.unchanged = s.Code().String(), s.Code() != codes.Canceled
	}
	return e
}

// call makes a call, which may be made twice.
func (t *tor) call(ctx context.Context, f func(context.Context) error) error {
	begun := time.Now()
	err := t.once(ctx, f)
	if status.Code(err) == codes.Unavailable && infoOf(status.Convert(err)) == nil && ctx.Err() == nil && time.Since(begun) < t.m.times.connect && t.conn.GetState() != connectivity.Ready {
		err = t.once(ctx, f) // the connection had been lost unnoticed
	}
	t.m.metrics.agentCall(time.Since(begun), err)
	return t.fault(ctx, err)
}

func (t *tor) once(ctx context.Context, f func(context.Context) error) error {
	if !t.link.connect(ctx, t.conn, t.m.times.connect) {
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return &unsentError{status.New(codes.Unavailable, "no connection in time")}
	}
	return f(ctx)
}

func (t *tor) key(source netip.Addr, mcID uint32) *mcrdmav1.GroupKey {
	return &mcrdmav1.GroupKey{Source: source.String(), McId: mcID}
}

// install has the switches copy a formation's packets. After an error that is no answer,
// they may have begun to.
func (t *tor) install(ctx context.Context, g *group, f *formation) error {
	ctx, cancel := context.WithTimeout(ctx, t.m.times.install)
	defer cancel()
	req := &mcrdmav1.InstallRequest{Lease: durationpb.New(t.m.cfg.Leases.Group), Group: &mcrdmav1.Group{Key: t.key(g.id.source, f.MCID),
		SenderQpn: f.Sender.QPN, InitialPsn: f.PSN, Address: f.First.String(), Receivers: receiversProto(g.spec.Regions, f.Receivers)}}
	if g.spec.CNPGap > 0 {
		req.Group.CnpGap = durationpb.New(g.spec.CNPGap)
	}
	return t.call(ctx, func(ctx context.Context) error {
		_, err := t.groups.Install(ctx, req)
		return err
	})
}

// update leaves these receivers only.
func (t *tor) update(ctx context.Context, g *group, f *formation) error {
	ctx, cancel := context.WithTimeout(ctx, t.m.times.install)
	defer cancel()
	req := &mcrdmav1.UpdateRequest{Key: t.key(g.id.source, f.MCID), Receivers: receiversProto(g.spec.Regions, f.Receivers)}
	return t.call(ctx, func(ctx context.Context) error {
		_, err := t.groups.Update(ctx, req)
		return err
	})
}

func (t *tor) remove(ctx context.Context, source netip.Addr, mcID uint32) error {
	return t.call(ctx, func(ctx context.Context) error {
		_, err := t.groups.Remove(ctx, &mcrdmav1.RemoveRequest{Key: t.key(source, mcID)})
		return err
	})
}

func receiversProto(regions []region, list []receiver) []*mcrdmav1.Receiver {
	out := make([]*mcrdmav1.Receiver, 0, len(list))
	for _, r := range list {
		x := &mcrdmav1.Receiver{Address: r.Addr.String(), Qpn: r.QPN}
		for i, p := range r.Regions {
			x.Regions = append(x.Regions, &mcrdmav1.MemoryRegion{Rkey: regions[i].RKey, Va: regions[i].VA, Length: regions[i].Length,
				ReceiverRkey: p.RKey, ReceiverVa: p.VA})
		}
		out = append(out, x)
	}
	return out
}

// mayUseSwitch returns why switches are not even tried; "": they are.
func (m *Manager) mayUseSwitch(g *group, f *formation) string {
	switch {
	case g.spec.Mode == mcrdmav1.Mode_MODE_OFF:
		return "the application wants it so (mode off)"
	case f.Sender.CatchUp:
		return "some receivers have to catch up with others"
	case m.tor == nil:
		return errNoAgent.Error()
	case f.Sender.QPN == 0:
		return "the sender's application has no RDMA device"
	}
	for _, r := range f.Receivers {
		if r.QPN == 0 {
			return fmt.Sprintf("%s: the receiver's application has no RDMA device", r.Host)
		}
	}
	return ""
}

// choose decides between switches and hosts for copying, and installs switches if they can.
func (x *forming) choose(ctx context.Context) error {
	m, g, f := x.m, x.g, x.f
	why, sw := m.mayUseSwitch(g, f), ""
	if why == "" {
		x.mayBe = true
		err := m.tor.install(ctx, g, f)
		if err == nil {
			f.Path, f.Why = mcrdmav1.Path_PATH_SWITCH, []string{fmt.Sprintf("by switches: %s merges, %s", m.tor.name, plural(len(f.Receivers), "receiver"))}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		why, sw = err.Error(), m.tor.name
		if e := (*torError)(nil); errors.As(err, &e) {
			sw, f.Transient = e.sw, e.transient()
			x.mayBe = !e.unchanged
		}
	}
	if !f.Sender.relays(g.spec) {
		e := refuse(NoSwitch, "mode require, and switches cannot copy: %s", why)
		e.sw = sw
		return e
	}
	var err error
	if f.Relay, err = m.relayFor(g, f); err != nil {
		fault := faultOf(err)
		fault.text += " (switches cannot copy: " + why + ")"
		return fault
	}
	f.Path, f.Why = mcrdmav1.Path_PATH_RELAY, []string{"by hosts: " + why, "relayed as " + f.Relay.text()}
	if x.mayBe { // whether or not the agent has installed it
		x.mayBe = false
		m.startCleanup(&cleanup{mcID: f.MCID, installed: true})
	}
	return nil
}
