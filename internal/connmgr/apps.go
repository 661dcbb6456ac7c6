package connmgr

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// appsServer serves applications. The interceptors explain the errors of handlers.
type appsServer struct {
	mcrdmav1.UnimplementedApplicationsServer
	m *Manager
}

func (a *appsServer) Open(req *mcrdmav1.OpenRequest, out grpc.ServerStreamingServer[mcrdmav1.OpenResponse]) error {
	m, ctx := a.m, out.Context()
	u := userOf(ctx)
	if v := req.GetVersion(); v != ProtocolVersion {
		return failure.New(mcrdmav1.Reason_VERSION, "the application speaks version %d of the protocol, and this daemon %d: update the older of the two", v, ProtocolVersion)
	}
	s, wake, resumed, err := m.sessions.open(u, req.GetToken(), failure.Clip(req.GetProgram(), failure.MaxName), req.GetViews())
	if err != nil {
		return err
	}
	defer m.endSession(s, wake, "the application has ended")
	if err := out.Send(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_Hello{Hello: m.hello(s, resumed)}}); err != nil {
		return err
	}
	for {
		list, mine := s.take(wake)
		if !mine {
			return failure.New(mcrdmav1.Reason_CLOSED, "the session has ended, or another connection has taken it")
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
			return failure.New(mcrdmav1.Reason_UNREACHABLE, "the daemon is being stopped; the session may be resumed when it is back")
		}
	}
}

func (m *Manager) hello(s *session, resumed bool) *mcrdmav1.Hello {
	return &mcrdmav1.Hello{Token: s.token, Host: m.cfg.Name, Address: m.cfg.Address.String(), Device: m.cfg.Device, Version: ProtocolVersion,
		DaemonVersion: m.opts.Version, Bootstrap: m.cfg.Bootstrap.String(), Grace: durationpb.New(m.cfg.Beat.Grace), Resumed: resumed,
		Limits: &mcrdmav1.Limits{Receivers: uint32(m.cfg.Limits.Receivers), Regions: uint32(m.cfg.Limits.Regions), Memory: m.cfg.Limits.Memory}} //nolint:gosec // checked by the configuration
}

// session returns the session of a request, by its token.
func (a *appsServer) session(ctx context.Context, req interface{ GetToken() string }) (*session, error) {
	return a.m.sessions.of(userOf(ctx), req.GetToken())
}

// with calls f with the session of a request.
func (a *appsServer) with(ctx context.Context, req interface{ GetToken() string }, f func(*session) error) error {
	s, err := a.session(ctx, req)
	if err != nil {
		return err
	}
	return f(s)
}

func (a *appsServer) Listen(ctx context.Context, req *mcrdmav1.ListenRequest) (*mcrdmav1.ListenResponse, error) {
	return &mcrdmav1.ListenResponse{}, a.with(ctx, req, func(s *session) error { return a.m.sessions.listen(ctx, s, req.GetService()) })
}

func (a *appsServer) Unlisten(ctx context.Context, req *mcrdmav1.UnlistenRequest) (*mcrdmav1.UnlistenResponse, error) {
	return &mcrdmav1.UnlistenResponse{}, a.with(ctx, req, func(s *session) error { return a.m.sessions.unlisten(s, req.GetService()) })
}

func (a *appsServer) AnswerAttach(ctx context.Context, req *mcrdmav1.AnswerAttachRequest) (*mcrdmav1.AnswerAttachResponse, error) {
	return &mcrdmav1.AnswerAttachResponse{}, a.with(ctx, req, func(s *session) error { return a.m.members.answer(s, req) })
}

func (a *appsServer) Leave(ctx context.Context, req *mcrdmav1.LeaveRequest) (*mcrdmav1.LeaveResponse, error) {
	return &mcrdmav1.LeaveResponse{}, a.with(ctx, req, func(s *session) error { return a.m.members.leave(s, req.GetAttach(), req.GetReason()) })
}

func (a *appsServer) CreateGroup(ctx context.Context, req *mcrdmav1.CreateGroupRequest) (*mcrdmav1.CreateGroupResponse, error) {
	s, err := a.session(ctx, req)
	if err != nil {
		return nil, err
	}
	return a.m.create(ctx, s, req)
}

func (a *appsServer) ReformGroup(ctx context.Context, req *mcrdmav1.ReformGroupRequest) (*mcrdmav1.ReformGroupResponse, error) {
	return ofGroup(ctx, a, req, a.m.reform)
}

func (a *appsServer) Reach(ctx context.Context, req *mcrdmav1.ReachRequest) (*mcrdmav1.ReachResponse, error) {
	if _, err := a.session(ctx, req); err != nil {
		return nil, err
	}
	return a.m.reach(ctx, req)
}

func (a *appsServer) ReportStall(ctx context.Context, req *mcrdmav1.ReportStallRequest) (*mcrdmav1.ReportStallResponse, error) {
	return ofGroup(ctx, a, req, a.m.stalled)
}

func (a *appsServer) AckView(ctx context.Context, req *mcrdmav1.AckViewRequest) (*mcrdmav1.AckViewResponse, error) {
	return ofGroup(ctx, a, req, a.m.ackView)
}

func (a *appsServer) CloseGroup(ctx context.Context, req *mcrdmav1.CloseGroupRequest) (*mcrdmav1.CloseGroupResponse, error) {
	return &mcrdmav1.CloseGroupResponse{}, a.with(ctx, req, func(s *session) error {
		id, err := groupIDFrom(req.GetGroup())
		if err != nil {
			return err
		}
		a.m.closeGroup(s, id, req.GetFailed())
		return nil
	})
}

func (a *appsServer) ResumeGroup(ctx context.Context, req *mcrdmav1.ResumeGroupRequest) (*mcrdmav1.ResumeGroupResponse, error) {
	return ofGroup(ctx, a, req, a.m.resumeGroup)
}

func (a *appsServer) ResumeMember(ctx context.Context, req *mcrdmav1.ResumeMemberRequest) (*mcrdmav1.ResumeMemberResponse, error) {
	return &mcrdmav1.ResumeMemberResponse{}, a.with(ctx, req, func(s *session) error { return a.m.members.resume(s, req) })
}

// ofGroup calls f with the group of a request, which must belong to the request's session.
func ofGroup[Req interface {
	GetToken() string
	GetGroup() *mcrdmav1.GroupID
}, Res any](ctx context.Context, a *appsServer, req Req, f func(context.Context, *group, Req) (*Res, error)) (*Res, error) {
	s, err := a.session(ctx, req)
	if err != nil {
		return nil, err
	}
	id, err := groupIDFrom(req.GetGroup())
	if err != nil {
		return nil, err
	}
	g := a.m.groupOf(s, id)
	if g == nil {
		return nil, s.whyEnded(id, 0, failure.New(mcrdmav1.Reason_NOT_FOUND, "there is no group %v of this application", id))
	}
	return f(ctx, g, req)
}
