package connmgr

import (
	"cmp"
	"context"
	"net/netip"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// A stopwatch takes the time of steps.
type stopwatch struct {
	begun, last time.Time
	steps       []step
}

func newStopwatch() *stopwatch {
	now := time.Now()
	return &stopwatch{begun: now, last: now}
}

func (w *stopwatch) lap(name string) {
	now := time.Now()
	w.steps = append(w.steps, step{name, now.Sub(w.last)})
	w.last = now
}

func (w *stopwatch) total() []step {
	return append(w.steps, step{"total", time.Since(w.begun)})
}

// create makes a group, or leaves nothing.
func (m *Manager) create(ctx context.Context, s *session, req *mcrdmav1.CreateGroupRequest) (*mcrdmav1.CreateGroupResponse, error) {
	watch := newStopwatch()
	sp, addrs, err := m.specFrom(s, req)
	if err != nil {
		return nil, err
	}
	from, err := m.senderFrom(sp, req.GetForming())
	if err != nil {
		return nil, err
	}
	leave, err := m.creating.enter(s)
	if err != nil {
		return nil, err
	}
	defer leave()
	g, err := m.enterGroup(s, sp)
	if err != nil {
		return nil, err
	}
	watch.lap("check")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)() // the application has ended
	if err := g.enter(ctx); err != nil {
		m.leaveGroup(g)
		return nil, err
	}
	defer g.leave()
	x := &forming{m: m, g: g, from: from, candidates: addrs, strict: true, limit: m.times.prepare, watch: watch}
	defer x.release()
	f, err := x.form(ctx)
	if err == nil {
		if err = m.formed(ctx, g, f); err != nil {
			x.undo("the sender's application has gone")
		}
	}
	if err != nil {
		m.leaveGroup(g)
		return nil, err
	}
	m.mu.Lock()
	m.tell(g, mcrdmav1.GroupChanged_TYPE_CREATED, netip.Addr{}, "")
	m.mu.Unlock()
	m.log.Info("a group has been formed", "group", g.id, "path", f.Path, "receivers", len(f.Receivers), "why", f.Why)
	return &mcrdmav1.CreateGroupResponse{Formation: g.info(f), Regions: g.regionsProto(), MinSize: g.spec.MinSize}, nil
}

// specFrom checks an application's request before any other host is asked.
func (m *Manager) specFrom(s *session, req *mcrdmav1.CreateGroupRequest) (spec, []netip.Addr, error) {
	sp := spec{Service: req.GetService(), Program: s.program, Mode: cmp.Or(req.GetMode(), mcrdmav1.Mode_MODE_AUTO), MinSize: req.GetMinSize(),
		DSCP: req.GetDscp(), MTU: req.GetMtu(), Algorithm: req.GetAlgorithm(), Transport: req.GetTransport(),
		Typical: req.GetTypicalSize(), CNPGap: req.GetCnpGap().AsDuration()}
	if err := checkService(sp.Service); err != nil {
		return sp, nil, err
	}
	addrs, err := m.receiversFrom(req.GetReceivers())
	if err != nil {
		return sp, nil, err
	}
	size := uint32(len(addrs)) + 1 //nolint:gosec // at most 17
	switch {
	case mcrdmav1.Mode_name[int32(sp.Mode)] == "":
		return sp, nil, refuse(Invalid, "there is no mode %d", sp.Mode)
	case sp.DSCP > 63:
		return sp, nil, refuse(Invalid, "DSCP %d has more than 6 bits", sp.DSCP)
	case sp.MinSize > size:
		return sp, nil, refuse(MinSize, "min_size %d is more than the %d copies, the sender's own counted, that the group can have", sp.MinSize, size)
	case sp.CNPGap < 0 || sp.CNPGap > time.Hour:
		return sp, nil, refuse(Invalid, "a least time of %v between CNPs is not in 0 to 1 h", sp.CNPGap)
	}
	if sp.MinSize == 0 {
		sp.MinSize = size - size/2
	}
	if sp.Regions, err = m.regionsFrom(req.GetRegions()); err != nil {
		return sp, nil, err
	}
	if err := m.checkRelay(sp); err != nil {
		return sp, nil, err
	}
	return sp, addrs, nil
}

// receiversFrom resolves addresses and names of hosts.
func (m *Manager) receiversFrom(list []string) ([]netip.Addr, error) {
	if len(list) == 0 {
		return nil, refuse(Invalid, "a group without receivers: name at least one")
	}
	if most := m.cfg.Limits.Receivers; len(list) > most {
		return nil, refuse(TooManyReceivers, "%d receivers, and %d is the most: make several groups", len(list), most)
	}
	var out []netip.Addr
	names := map[netip.Addr]string{}
	for _, s := range list {
		a, err := m.resolve(s)
		if err != nil {
			return nil, err
		}
		if a == m.addr {
			return nil, refuse(Invalid, "receiver %q is the sender itself, which has the data: leave it out", s)
		}
		if was, ok := names[a]; ok {
			return nil, refuse(DuplicateAddress, "receivers %q and %q both are %v: name each host once", was, s, a)
		}
		names[a] = s
		out = append(out, a)
	}
	return out, nil
}

// resolve finds a host's address.
func (m *Manager) resolve(s string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if !a.Is4() || a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return a, refuse(Invalid, "receiver %v is no IPv4 address of a host", a)
		}
		return a, nil
	}
	if s == m.name {
		return m.addr, nil
	}
	for _, h := range m.cfg.Hosts {
		if h.Name == s {
			return h.Address, nil
		}
	}
	return netip.Addr{}, refuse(NoSuchHost, "no host %q is in the daemon's configuration: add it under hosts, or give its address", clip(s, maxName))
}

// regionsFrom gives regions the keys and addresses that the sender's packets carry.
func (m *Manager) regionsFrom(list []*mcrdmav1.RegionSpec) ([]region, error) {
	if n, most := len(list), m.cfg.Limits.Regions; n > most {
		return nil, refuse(Limit, "%d memory regions, and %d is the most: join some, or raise limits.regions", n, most)
	}
	var out []region
	names := map[string]bool{}
	for i, r := range list {
		switch {
		case r.GetLength() == 0 || r.GetLength() > maxRegion:
			return nil, refuse(Invalid, "memory region %d (%q) of %d bytes: the length is 1 to 2^40", i, clip(r.GetName(), maxName), r.GetLength())
		case len(r.GetName()) > maxName:
			return nil, refuse(Invalid, "the name of memory region %d has %d characters, and %d is the most", i, len(r.GetName()), maxName)
		case r.GetName() != "" && names[r.GetName()]:
			return nil, refuse(Invalid, "two memory regions are called %q", r.GetName())
		}
		names[r.GetName()] = true
		out = append(out, region{Name: strings.ToValidUTF8(r.GetName(), "\ufffd"), Length: r.GetLength(),
			RKey: 0x6d630000 + uint32(i), VA: uint64(i+1) << 40}) //nolint:gosec // few regions
	}
	return out, nil
}

// senderFrom checks what the sender brings to a formation.
func (m *Manager) senderFrom(sp spec, req *mcrdmav1.Forming) (sender, error) {
	from := sender{QPN: req.GetQpn(), Bootstrap: req.GetBootstrap(), Sent: req.GetSent(), CatchUp: req.GetCatchUp()}
	relays := from.relays(sp)
	switch {
	case from.QPN > maxQPN || from.QPN == 1:
		return from, refuse(Invalid, "QPN %#x is none of a device", from.QPN)
	case from.QPN != 0 && !validMTU(sp.MTU):
		return from, refuse(MTU, "%d is no path MTU of a device: it is 256, 512, 1024, 2048 or 4096", sp.MTU)
	case !relays && m.tor == nil:
		return from, refuse(NoSwitch, "mode require, and the daemon's configuration names no switch agent: add it under switch, or use mode auto")
	case !relays && from.QPN == 0:
		return from, refuse(NoSwitch, "mode require, and the application has no RDMA device: open one, or use mode auto")
	case from.QPN == 0 && from.Bootstrap == "":
		return from, refuse(Invalid, "the sender has neither a queue pair nor an address for relaying")
	case relays && from.Bootstrap == "" && (m.tor == nil || from.CatchUp || sp.Mode == mcrdmav1.Mode_MODE_OFF):
		return from, refuse(Invalid, "hosts are to relay, and the sender has no address where it listens for that")
	}
	if from.Bootstrap != "" {
		return from, checkEndpoint(from.Bootstrap, "the sender's address for relaying")
	}
	return from, nil
}

// checkRelay says what is wrong with how hosts are to relay.
func (m *Manager) checkRelay(sp spec) error {
	if sp.Algorithm != "" && sp.Algorithm != auto {
		if err := new(schedule.Algorithm).UnmarshalText([]byte(clip(sp.Algorithm, maxName))); err != nil {
			return refuse(Invalid, "the algorithm of relaying: %v", err)
		}
	}
	switch sp.Transport {
	case "", auto, "rdma", "tcp":
		return nil
	}
	return refuse(Invalid, "the transport of relaying is auto, rdma or tcp, and not %q", clip(sp.Transport, maxName))
}

// enterGroup makes a group that has no formation yet.
func (m *Manager) enterGroup(s *session, sp spec) (*group, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.over {
		return nil, refuse(NotFound, "the session has ended")
	}
	if m.draining {
		return nil, refuse(Unreachable, drainText)
	}
	if err := m.takeGroup(s.user.uid); err != nil {
		return nil, err
	}
	g := m.newGroup(groupID{m.addr, m.numbers.take()}, sp, s)
	g.created = m.clock.now()
	g.resumed = true
	m.groups[g.id], s.groups[g.id] = g, g
	return g, nil
}

func (m *Manager) newGroup(id groupID, sp spec, s *session) *group {
	g := &group{id: id, spec: sp, timeout: ackTimeout(m.cfg.Beat.DeadAfter), user: s.user, sess: s, turn: make(chan struct{}, 1),
		looks: &looks{}, suspected: map[netip.Addr]int{}, dead: map[netip.Addr]loss{}, states: map[netip.Addr]*peerState{}}
	g.ctx, g.cancel = context.WithCancel(m.life)
	return g
}

// leaveGroup removes a group from all tables.
func (m *Manager) leaveGroup(g *group) {
	g.cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[g.id] != g {
		return
	}
	g.over = true
	delete(m.groups, g.id)
	delete(g.sess.groups, g.id)
	m.giveGroup(g.user.uid)
	m.unwatch(g)
}
