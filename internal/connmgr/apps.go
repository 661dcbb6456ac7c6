package connmgr

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// appsServer serves applications. Handlers return faults; the interceptors turn them into
// statuses.
type appsServer struct {
	mcrdmav1.UnimplementedApplicationsServer
	m *Manager
}

func (a *appsServer) Open(req *mcrdmav1.OpenRequest, out grpc.ServerStreamingServer[mcrdmav1.OpenResponse]) error {
	m, ctx := a.m, out.Context()
	u, err := userOf(ctx)
	if err != nil {
		return err
	}
	if v := req.GetVersion(); v != ProtocolVersion {
		return refuse(Version, "the application speaks version %d of the protocol, and this daemon %d: update the older of the two", v, ProtocolVersion)
	}
	s, stream, wake, resumed, err := m.openSession(u, req.GetToken(), clip(req.GetProgram(), maxName))
	if err != nil {
		return err
	}
	defer m.endSession(s, stream, "the application has ended")
	if err := out.Send(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_Hello{Hello: m.hello(s, resumed)}}); err != nil {
		return err
	}
	for {
		list, mine := m.take(s, stream)
		if !mine {
			return refuse(Closed, "the session has ended, or another connection has taken it")
		}
		for _, e := range list {
			if err := out.Send(e); err != nil {
				return err
			}
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.life.Done():
			return refuse(Unreachable, "the daemon is being stopped; the session may be resumed when it is back")
		}
	}
}

func (m *Manager) hello(s *session, resumed bool) *mcrdmav1.Hello {
	return &mcrdmav1.Hello{Token: s.token, Host: m.name, Address: m.addr.String(), Device: m.cfg.Device, Version: ProtocolVersion,
		DaemonVersion: m.opts.Version, Bootstrap: m.cfg.Bootstrap.String(), Grace: durationpb.New(m.cfg.Beat.Grace), Resumed: resumed,
		Limits: &mcrdmav1.Limits{Receivers: uint32(m.cfg.Limits.Receivers), Regions: uint32(m.cfg.Limits.Regions), Memory: m.cfg.Limits.Memory}} //nolint:gosec // checked by the configuration
}

// session returns the session of a request, by the token in it.
func (a *appsServer) session(ctx context.Context, req interface{ GetToken() string }) (*session, error) {
	u, err := userOf(ctx)
	if err != nil {
		return nil, err
	}
	return a.m.sessionOf(u, req.GetToken())
}

func (a *appsServer) Listen(ctx context.Context, req *mcrdmav1.ListenRequest) (*mcrdmav1.ListenResponse, error) {
	s, err := a.session(ctx, req)
	if err == nil {
		err = a.m.listen(s, req.GetService())
	}
	return &mcrdmav1.ListenResponse{}, err
}

func (a *appsServer) Unlisten(ctx context.Context, req *mcrdmav1.UnlistenRequest) (*mcrdmav1.UnlistenResponse, error) {
	s, err := a.session(ctx, req)
	if err == nil {
		err = a.m.unlisten(s, req.GetService())
	}
	return &mcrdmav1.UnlistenResponse{}, err
}

func (a *appsServer) AnswerAttach(ctx context.Context, req *mcrdmav1.AnswerAttachRequest) (*mcrdmav1.AnswerAttachResponse, error) {
	s, err := a.session(ctx, req)
	if err == nil {
		err = a.m.answer(s, req)
	}
	return &mcrdmav1.AnswerAttachResponse{}, err
}

func (a *appsServer) Leave(ctx context.Context, req *mcrdmav1.LeaveRequest) (*mcrdmav1.LeaveResponse, error) {
	s, err := a.session(ctx, req)
	if err == nil {
		err = a.m.leave(s, req.GetAttach(), req.GetReason())
	}
	return &mcrdmav1.LeaveResponse{}, err
}

func (a *appsServer) CreateGroup(ctx context.Context, req *mcrdmav1.CreateGroupRequest) (*mcrdmav1.CreateGroupResponse, error) {
	s, err := a.session(ctx, req)
	if err != nil {
		return nil, err
	}
	return a.m.create(ctx, s, req)
}

func (a *appsServer) ReformGroup(ctx context.Context, req *mcrdmav1.ReformGroupRequest) (*mcrdmav1.ReformGroupResponse, error) {
	g, err := a.group(ctx, req)
	if err != nil {
		return nil, err
	}
	res, err := a.m.reform(ctx, g, req)
	if err != nil {
		// The group may have failed meanwhile; then that is the result, not how this call
		// ended.
		a.m.mu.Lock()
		defer a.m.mu.Unlock()
		if why := g.sess.whyEnded(g.id, 0, nil); why != nil {
			return nil, why
		}
	}
	return res, err
}

func (a *appsServer) ReportStall(ctx context.Context, req *mcrdmav1.ReportStallRequest) (*mcrdmav1.ReportStallResponse, error) {
	g, err := a.group(ctx, req)
	if err != nil {
		return nil, err
	}
	return a.m.stalled(ctx, g, req)
}

func (a *appsServer) CloseGroup(ctx context.Context, req *mcrdmav1.CloseGroupRequest) (*mcrdmav1.CloseGroupResponse, error) {
	s, err := a.session(ctx, req)
	if err != nil {
		return nil, err
	}
	id, err := groupIDFrom(req.GetGroup())
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.CloseGroupResponse{}, a.m.closeGroup(ctx, s, id)
}

func (a *appsServer) ResumeGroup(ctx context.Context, req *mcrdmav1.ResumeGroupRequest) (*mcrdmav1.ResumeGroupResponse, error) {
	g, err := a.group(ctx, req)
	if err != nil {
		return nil, err
	}
	return a.m.resumeGroup(g, req)
}

func (a *appsServer) ResumeMember(ctx context.Context, req *mcrdmav1.ResumeMemberRequest) (*mcrdmav1.ResumeMemberResponse, error) {
	s, err := a.session(ctx, req)
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.ResumeMemberResponse{}, a.m.resumeMember(s, req)
}

// group returns the group of a request, which must belong to the request's session.
func (a *appsServer) group(ctx context.Context, req interface {
	GetToken() string
	GetGroup() *mcrdmav1.GroupID
}) (*group, error) {
	s, err := a.session(ctx, req)
	if err != nil {
		return nil, err
	}
	id, err := groupIDFrom(req.GetGroup())
	if err != nil {
		return nil, err
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	g := s.groups[id]
	if g == nil {
		return nil, s.whyEnded(id, 0, refuse(NotFound, "there is no group %v of this application", id))
	}
	return g, nil
}

// listen offers a service. A service belongs to one application.
func (m *Manager) listen(s *session, service string) error {
	if err := checkService(service); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.services[service]; o != nil && o != s {
		return refuse(Denied, "another application listens for the service %q: choose another name, or end that one", service)
	}
	if len(s.services) >= maxServices {
		return refuse(Limit, "the application listens for %d services, and no more are allowed", len(s.services))
	}
	if s.over {
		return refuse(NotFound, "the session has ended")
	}
	m.services[service] = s
	s.services[service] = struct{}{}
	return nil
}

// maxServices is how many services one application may listen for.
const maxServices = 1024

func (m *Manager) unlisten(s *session, service string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.services[service] != s {
		return refuse(NotFound, "the application does not listen for the service %q", clip(service, maxName))
	}
	delete(m.services, service)
	delete(s.services, service)
	return nil
}
