package connmgr

import (
	"context"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// hostsServer serves other daemons.
type hostsServer struct {
	mcrdmav1.UnimplementedHostsServer
	m *Manager
}

// caller returns the host, or another, that makes a call.
func caller(ctx context.Context) (identity.Identity, error) {
	who, err := identity.FromContext(ctx)
	if err != nil {
		return who, failure.New(mcrdmav1.Reason_UNTRUSTED, "%v", err)
	}
	return who, nil
}

// owner reads a group's name; the caller must be its sender's host.
func owner(who identity.Identity, g *mcrdmav1.GroupID) (groupID, error) {
	if !who.Is(identity.Host) {
		return groupID{}, failure.New(mcrdmav1.Reason_DENIED, "%v may not call this, which is for daemons of hosts", who)
	}
	id, err := groupIDFrom(g)
	if err != nil {
		return id, err
	}
	if !who.Owns(id.source) {
		return id, failure.New(mcrdmav1.Reason_DENIED, "%v is not %v, and a host makes groups with itself as the source only: its certificate, or without TLS its configuration, must have its address", who, id.source)
	}
	return id, nil
}

// here is owner for a request to a receiver, and checks that the receiver is this host.
func (h *hostsServer) here(ctx context.Context, g *mcrdmav1.GroupID, address string) (groupID, identity.Identity, error) {
	who, err := caller(ctx)
	if err != nil {
		return groupID{}, who, err
	}
	id, err := owner(who, g)
	if err != nil {
		return id, who, err
	}
	addr, err := machine.AddrFrom(address, "receiver")
	if err == nil && addr != h.m.cfg.Address {
		err = failure.New(mcrdmav1.Reason_NO_SUCH_HOST, "this is the daemon of %v, and not of %v: correct the sender's list of hosts", h.m.cfg.Address, addr)
	}
	return id, who, err
}

func (h *hostsServer) Prepare(ctx context.Context, req *mcrdmav1.PrepareRequest) (*mcrdmav1.PrepareResponse, error) {
	if v := req.GetVersion(); v != ProtocolVersion {
		return nil, failure.New(mcrdmav1.Reason_VERSION, "this daemon speaks version %d of the protocol, and the sender's %d: update the older of the two", ProtocolVersion, v)
	}
	id, who, err := h.here(ctx, req.GetGroup(), req.GetAddress())
	if err != nil {
		return nil, err
	}
	in, err := h.m.host.Invitation(id.source, who.Name, req)
	if err != nil {
		return nil, err
	}
	if d := req.GetTimeout().AsDuration(); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	in.Deadline, _ = ctx.Deadline() // the interceptor gives one
	return h.m.members.prepare(ctx, id, in)
}

func (h *hostsServer) Commit(ctx context.Context, req *mcrdmav1.CommitRequest) (*mcrdmav1.CommitResponse, error) {
	id, _, err := h.here(ctx, req.GetFormation().GetGroup(), req.GetAddress())
	if err != nil {
		return nil, err
	}
	f := req.GetFormation()
	v := machine.RecordedView{}
	if f.GetView() != 0 { // the daemon's release has views
		if v, err = h.m.host.View(f.GetView(), f.GetMembers()); err != nil {
			return nil, err
		}
	}
	return &mcrdmav1.CommitResponse{}, h.m.members.commit(ctx, id, f, v)
}

func (h *hostsServer) RecordView(ctx context.Context, req *mcrdmav1.RecordViewRequest) (*mcrdmav1.RecordViewResponse, error) {
	id, _, err := h.here(ctx, req.GetGroup(), req.GetAddress())
	if err != nil {
		return nil, err
	}
	v, err := h.m.host.View(req.GetView(), req.GetMembers())
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.RecordViewResponse{}, h.m.members.recordView(ctx, id, req.GetFormation(), v)
}

func (h *hostsServer) Drop(ctx context.Context, req *mcrdmav1.DropRequest) (*mcrdmav1.DropResponse, error) {
	id, _, err := h.here(ctx, req.GetGroup(), req.GetAddress())
	if err != nil {
		return nil, err
	}
	reason := req.GetReason()
	if mcrdmav1.Detached_Reason_name[int32(reason)] == "" || reason == mcrdmav1.Detached_REASON_UNSPECIFIED {
		reason = mcrdmav1.Detached_REASON_ABORTED
	}
	return &mcrdmav1.DropResponse{}, h.m.members.drop(ctx, id, req.GetFormation(), reason, failure.Clip(req.GetText(), failure.MaxText))
}

func (h *hostsServer) Beat(ctx context.Context, req *mcrdmav1.BeatRequest) (*mcrdmav1.BeatResponse, error) {
	who, list, err := h.beatList(ctx, req)
	if err != nil {
		return nil, err
	}
	res := h.m.members.answerBeat(list)
	res.Boot, res.Busy = h.m.boot, h.m.opts.Busy(time.Now())
	res.Own, res.Number = h.m.share(who, req)
	return res, nil
}

// beatList returns the groups of a beat: those that it names, or the remembered list.
func (h *hostsServer) beatList(ctx context.Context, req *mcrdmav1.BeatRequest) (who identity.Identity, list *beatList, err error) {
	if who, err = caller(ctx); err != nil {
		return who, nil, err
	}
	if len(req.GetGroups()) == 0 {
		for _, source := range who.Addrs {
			if list = h.m.members.lists.of(source, req.GetBoot(), req.GetList()); len(list.groups) > 0 {
				return who, list, nil
			}
		}
	}
	list = &beatList{boot: req.GetBoot(), number: req.GetList()}
	for _, b := range req.GetGroups() {
		id, err := owner(who, b.GetGroup())
		if err != nil {
			return who, nil, err
		}
		if list.groups != nil && list.groups[0].id.source != id.source {
			list.number = 0
		}
		list.groups = append(list.groups, beatOf{id, b.GetFormation()})
	}
	return who, list, nil
}
