package connmgr

import (
	"cmp"
	"context"
	"net/netip"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// auto is a choice that is left to the daemon.
const auto = "auto"

// create makes a group, or leaves nothing.
func (m *Manager) create(ctx context.Context, s *session, req *mcrdmav1.CreateGroupRequest) (*mcrdmav1.CreateGroupResponse, error) {
	begun := time.Now()
	sp, addrs, err := m.specFrom(s, req)
	if err != nil {
		return nil, err
	}
	from, err := m.senderFrom(sp, req.GetForming())
	if err != nil {
		return nil, err
	}
	leave, err := m.mayCreate(s)
	if err != nil {
		return nil, err
	}
	defer leave()
	g, views, err := m.enterGroup(s, sp)
	if err != nil {
		return nil, err
	}
	by, _ := ctx.Deadline()
	f, err := g.call(ctx, g.closed(), func(s *machine.Sender, call uint64, now time.Time) {
		s.Create(machine.Call{ID: call, Begun: begun, By: by}, from, addrs, views, now)
	})
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.CreateGroupResponse{Formation: f, Regions: g.regionsProto(), MinSize: g.spec.MinSize}, nil
}

// reform makes a group anew.
func (m *Manager) reform(ctx context.Context, g *group, req *mcrdmav1.ReformGroupRequest) (*mcrdmav1.ReformGroupResponse, error) {
	begun, again := time.Now(), machine.Again{Formation: req.GetFormation()}
	var err error
	if again.From, err = m.senderFrom(g.spec, req.GetForming()); err != nil {
		return nil, err
	}
	if len(req.GetAdd()) > 0 {
		if again.Add, err = m.receiversFrom(req.GetAdd()); err != nil {
			return nil, err
		}
	}
	for _, s := range req.GetSuspects() {
		a, err := addrFrom(s, "suspect")
		if err != nil {
			return nil, err
		}
		again.Suspects = append(again.Suspects, a)
	}
	m.log.Debug("a group is to be formed anew", "group", g.id, "reason", failure.Clip(req.GetReason(), failure.MaxText))
	by, _ := ctx.Deadline()
	f, err := g.call(ctx, g.closed(), func(s *machine.Sender, call uint64, now time.Time) {
		s.Reform(machine.Call{ID: call, Begun: begun, By: by}, again, now)
	})
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.ReformGroupResponse{Formation: f}, nil
}

// specFrom checks an application's request before any other host is asked.
func (m *Manager) specFrom(s *session, req *mcrdmav1.CreateGroupRequest) (spec, []netip.Addr, error) {
	sp := spec{Service: req.GetService(), Program: s.record().Program, Mode: cmp.Or(req.GetMode(), mcrdmav1.Mode_MODE_AUTO), MinSize: req.GetMinSize(),
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
		return sp, nil, failure.New(mcrdmav1.Reason_INVALID, "there is no mode %d", sp.Mode)
	case sp.DSCP > 63:
		return sp, nil, failure.New(mcrdmav1.Reason_INVALID, "DSCP %d has more than 6 bits", sp.DSCP)
	case sp.MinSize > size:
		return sp, nil, failure.New(mcrdmav1.Reason_MIN_SIZE, "min_size %d is more than the %d copies, the sender's own counted, that the group can have", sp.MinSize, size)
	case sp.CNPGap < 0 || sp.CNPGap > time.Hour:
		return sp, nil, failure.New(mcrdmav1.Reason_INVALID, "a least time of %v between CNPs is not in 0 to 1 h", sp.CNPGap)
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
		return nil, failure.New(mcrdmav1.Reason_INVALID, "a group without receivers: name at least one")
	}
	if most := m.cfg.Limits.Receivers; len(list) > most {
		return nil, failure.New(mcrdmav1.Reason_TOO_MANY_RECEIVERS, "%d receivers, and %d is the most: make several groups", len(list), most)
	}
	var out []netip.Addr
	names := map[netip.Addr]string{}
	for _, s := range list {
		a, err := m.resolve(s)
		if err != nil {
			return nil, err
		}
		if a == m.cfg.Address {
			return nil, failure.New(mcrdmav1.Reason_INVALID, "receiver %q is the sender itself, which has the data: leave it out", s)
		}
		if was, ok := names[a]; ok {
			return nil, failure.New(mcrdmav1.Reason_DUPLICATE_ADDRESS, "receivers %q and %q both are %v: name each host once", was, s, a)
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
			return a, failure.New(mcrdmav1.Reason_INVALID, "receiver %v is no IPv4 address of a host", a)
		}
		return a, nil
	}
	if s == m.cfg.Name {
		return m.cfg.Address, nil
	}
	for _, h := range m.cfg.Hosts {
		if h.Name == s {
			return h.Address, nil
		}
	}
	return netip.Addr{}, failure.New(mcrdmav1.Reason_NO_SUCH_HOST, "no host %q is in the daemon's configuration: add it under hosts, or give its address", failure.Clip(s, failure.MaxName))
}

// regionsFrom gives regions the keys and addresses that the sender's packets carry.
func (m *Manager) regionsFrom(list []*mcrdmav1.RegionSpec) ([]region, error) {
	if n, most := len(list), m.cfg.Limits.Regions; n > most {
		return nil, failure.New(mcrdmav1.Reason_LIMIT, "%d memory regions, and %d is the most: join some, or raise limits.regions", n, most)
	}
	var out []region
	names := map[string]bool{}
	for i, r := range list {
		switch {
		case r.GetLength() == 0 || r.GetLength() > maxRegion:
			return nil, failure.New(mcrdmav1.Reason_INVALID, "memory region %d (%q) of %d bytes: the length is 1 to 2^40", i, failure.Clip(r.GetName(), failure.MaxName), r.GetLength())
		case len(r.GetName()) > failure.MaxName:
			return nil, failure.New(mcrdmav1.Reason_INVALID, "the name of memory region %d has %d characters, and %d is the most", i, len(r.GetName()), failure.MaxName)
		case r.GetName() != "" && names[r.GetName()]:
			return nil, failure.New(mcrdmav1.Reason_INVALID, "two memory regions are called %q", r.GetName())
		}
		names[r.GetName()] = true
		out = append(out, region{Name: strings.ToValidUTF8(r.GetName(), "\ufffd"), Length: r.GetLength(),
			RKey: 0x6d630000 + uint32(i), VA: uint64(i+1) << 40}) //nolint:gosec // few regions
	}
	return out, nil
}

// senderFrom checks what the sender brings to a formation.
func (m *Manager) senderFrom(sp spec, req *mcrdmav1.Forming) (machine.Endpoint, error) {
	from := machine.Endpoint{QPN: req.GetQpn(), Bootstrap: req.GetBootstrap(), Sent: req.GetSent(), CatchUp: req.GetCatchUp()}
	relays := relays(from, sp)
	switch {
	case from.QPN > maxQPN || from.QPN == 1:
		return from, failure.New(mcrdmav1.Reason_INVALID, "QPN %#x is none of a device", from.QPN)
	case from.QPN != 0 && !validMTU(sp.MTU):
		return from, failure.New(mcrdmav1.Reason_MTU, "%d is no path MTU of a device: it is 256, 512, 1024, 2048 or 4096", sp.MTU)
	case !relays && m.tor == nil:
		return from, failure.New(mcrdmav1.Reason_NO_SWITCH, "mode require, and the daemon's configuration names no switch agent: add it under switch, or use mode auto")
	case !relays && from.QPN == 0:
		return from, failure.New(mcrdmav1.Reason_NO_SWITCH, "mode require, and the application has no RDMA device: open one, or use mode auto")
	case from.QPN == 0 && from.Bootstrap == "":
		return from, failure.New(mcrdmav1.Reason_INVALID, "the sender has neither a queue pair nor an address for relaying")
	case relays && from.Bootstrap == "" && (m.tor == nil || from.CatchUp || sp.Mode == mcrdmav1.Mode_MODE_OFF):
		return from, failure.New(mcrdmav1.Reason_INVALID, "hosts are to relay, and the sender has no address where it listens for that")
	}
	if from.Bootstrap != "" {
		return from, checkEndpoint(from.Bootstrap, "the sender's address for relaying")
	}
	return from, nil
}

// checkRelay says what is wrong with how hosts are to relay.
func (m *Manager) checkRelay(sp spec) error {
	if sp.Algorithm != "" && sp.Algorithm != auto {
		if err := new(schedule.Algorithm).UnmarshalText([]byte(failure.Clip(sp.Algorithm, failure.MaxName))); err != nil {
			return failure.New(mcrdmav1.Reason_INVALID, "the algorithm of relaying: %v", err)
		}
	}
	switch sp.Transport {
	case "", auto, "rdma", "tcp":
		return nil
	}
	return failure.New(mcrdmav1.Reason_INVALID, "the transport of relaying is auto, rdma or tcp, and not %q", failure.Clip(sp.Transport, failure.MaxName))
}

// enterGroup makes a group that has no formation yet, and says whether its application calls
// AckView.
func (m *Manager) enterGroup(s *session, sp spec) (g *group, views bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.isEnded() {
		return nil, false, failure.New(mcrdmav1.Reason_NOT_FOUND, "the session has ended")
	}
	if m.draining {
		return nil, false, failure.New(mcrdmav1.Reason_UNREACHABLE, drainText)
	}
	if err := m.roomForGroup(s.uid); err != nil {
		return nil, false, err
	}
	g = m.newGroup(groupID{m.cfg.Address, m.numbers.Add(1)}, sp, s, time.Now())
	m.groups[g.id] = g
	m.startGroup(g, machine.NewSender(m.senderConfig(sp)))
	return g, s.acksViews(), nil
}

// startGroup has a group's machine run.
func (m *Manager) startGroup(g *group, s *machine.Sender) {
	m.background(func(ctx context.Context) { g.run(ctx, s) })
}
