package connmgr

import (
	"context"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// hostsServer serves other daemons.
type hostsServer struct {
	mcrdmav1.UnimplementedHostsServer
	m *Manager
}

// owner reads a group's name; the caller must be its sender's host.
func (h *hostsServer) owner(ctx context.Context, g *mcrdmav1.GroupID) (groupID, identity.Identity, error) {
	who, err := identity.FromContext(ctx)
	if err != nil {
		return groupID{}, who, refuse(Untrusted, "%v", err)
	}
	if !who.Is(identity.Host) {
		return groupID{}, who, refuse(Denied, "%v may not call this, which is for daemons of hosts", who)
	}
	id, err := groupIDFrom(g)
	if err != nil {
		return id, who, err
	}
	if !who.Owns(id.source) {
		return id, who, refuse(Denied, "%v is not %v, and a host makes groups with itself as the source only: its certificate must have its address", who, id.source)
	}
	return id, who, nil
}

// here checks that a request for an address is for this host.
func (h *hostsServer) here(address string) error {
	addr, err := addrFrom(address, "receiver")
	if err != nil {
		return err
	}
	if addr != h.m.addr {
		return refuse(NoSuchHost, "this is the daemon of %v, and not of %v: correct the sender's list of hosts", h.m.addr, addr)
	}
	return nil
}

func (h *hostsServer) Prepare(ctx context.Context, req *mcrdmav1.PrepareRequest) (*mcrdmav1.PrepareResponse, error) {
	if v := req.GetVersion(); v != ProtocolVersion {
		return nil, refuse(Version, "this daemon speaks version %d of the protocol, and the sender's %d: update the older of the two", ProtocolVersion, v)
	}
	id, who, err := h.owner(ctx, req.GetGroup())
	if err == nil {
		err = h.here(req.GetAddress())
	}
	if err != nil {
		return nil, err
	}
	in, err := h.m.invitationFrom(id, who.Name, req)
	if err != nil {
		return nil, err
	}
	if d := req.GetTimeout().AsDuration(); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	in.deadline, _ = ctx.Deadline() // the interceptor gives one
	return h.m.prepare(ctx, in)
}

func (h *hostsServer) Commit(ctx context.Context, req *mcrdmav1.CommitRequest) (*mcrdmav1.CommitResponse, error) {
	id, _, err := h.owner(ctx, req.GetFormation().GetGroup())
	if err == nil {
		err = h.here(req.GetAddress())
	}
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.CommitResponse{}, h.m.commit(ctx, id, req.GetFormation())
}

func (h *hostsServer) Drop(ctx context.Context, req *mcrdmav1.DropRequest) (*mcrdmav1.DropResponse, error) {
	id, _, err := h.owner(ctx, req.GetGroup())
	if err == nil {
		err = h.here(req.GetAddress())
	}
	if err != nil {
		return nil, err
	}
	reason := req.GetReason()
	if mcrdmav1.Detached_Reason_name[int32(reason)] == "" || reason == mcrdmav1.Detached_REASON_UNSPECIFIED {
		reason = mcrdmav1.Detached_REASON_ABORTED
	}
	h.m.drop(id, req.GetFormation(), reason, clip(req.GetText(), maxText))
	return &mcrdmav1.DropResponse{}, nil
}

func (h *hostsServer) Beat(ctx context.Context, req *mcrdmav1.BeatRequest) (*mcrdmav1.BeatResponse, error) {
	res := &mcrdmav1.BeatResponse{Boot: h.m.boot}
	for _, b := range req.GetGroups() {
		id, _, err := h.owner(ctx, b.GetGroup())
		if err != nil {
			return nil, err
		}
		if text, ok := h.m.beaten(id, b.GetFormation(), h.m.clock.now()); !ok {
			res.Gone = append(res.Gone, &mcrdmav1.Gone{Group: b.GetGroup(), Formation: b.GetFormation(), Address: b.GetAddress(), Reason: text})
		}
	}
	return res, nil
}

// beaten renews the leases of a group's memberships, since the sender lives. It reports
// whether there is one in that formation, or a later one, and if not, why.
func (m *Manager) beaten(id groupID, formation uint32, now time.Time) (why string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.memberships[id] {
		x.expires = now.Add(x.Lease)
		ok = ok || x.Formation >= formation
	}
	if ok {
		return "", true
	}
	if why = m.gone.texts[endedKey{id, formation}]; why == "" {
		why = "the host's daemon does not know the membership"
	}
	return why, false
}
