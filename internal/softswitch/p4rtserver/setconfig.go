package p4rtserver

import (
	"context"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
)

// SetForwardingPipelineConfig implements p4.v1.P4Runtime.
func (s *Server) SetForwardingPipelineConfig(_ context.Context, req *p4.SetForwardingPipelineConfigRequest) (*p4.SetForwardingPipelineConfigResponse, error) {
	release, err := s.asPrimary(req.GetDeviceId(), req.GetRole(), req.GetRoleId(), req.GetElectionId()) //nolint:staticcheck // refused if set
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.setConfig(req.GetAction(), req.GetConfig()); err != nil {
		return nil, err
	}
	return &p4.SetForwardingPipelineConfigResponse{}, nil
}

func (s *Server) setConfig(action p4.SetForwardingPipelineConfigRequest_Action, wire *p4.ForwardingPipelineConfig) error {
	if action == p4.SetForwardingPipelineConfigRequest_COMMIT {
		switch {
		case wire != nil:
			return invalid("COMMIT takes no config: it commits the saved one")
		case s.saved == nil:
			return fail(codes.NotFound, "there is no saved config to commit: call VERIFY_AND_SAVE first")
		}
		s.load(s.saved)
		return nil
	}
	switch action {
	case p4.SetForwardingPipelineConfigRequest_VERIFY,
		p4.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE,
		p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		p4.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT:
	default:
		return invalid("action %v is not one that can be done", action)
	}
	c, err := s.newConfig(wire)
	if err != nil {
		return err
	}
	switch action {
	case p4.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE:
		s.saved = c
	case p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT:
		s.load(c)
	case p4.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT:
		if s.active != nil {
			if err := s.reconcile(s.active, c); err != nil {
				return fail(codes.InvalidArgument, "the forwarding state cannot be preserved: %v", err)
			}
		}
		s.load(c)
	}
	return nil
}

// load makes a config the running one.
func (s *Server) load(c *config) {
	s.digests.reset(c)
	// Between the two, packets to the controller are read with the new header although the old
	// program wrote them. Switching both at once would require stopping packets, and
	// SetForwardingPipelineConfig guarantees nothing about packets in flight.
	s.running.Store(c)
	s.target.Load(c.pipe, c.pre)
	c.loaded = true
	s.active, s.saved = c, nil
}

// GetForwardingPipelineConfig implements p4.v1.P4Runtime. It returns the config to which reads and
// writes refer.
func (s *Server) GetForwardingPipelineConfig(_ context.Context, req *p4.GetForwardingPipelineConfigRequest) (*p4.GetForwardingPipelineConfigResponse, error) {
	if err := s.checkDevice(req.GetDeviceId()); err != nil {
		return nil, err
	}
	s.state.RLock()
	defer s.state.RUnlock()
	c, err := s.current()
	if err != nil {
		return &p4.GetForwardingPipelineConfigResponse{}, nil
	}
	out := &p4.ForwardingPipelineConfig{Cookie: c.wire.GetCookie()}
	switch t := req.GetResponseType(); t {
	case p4.GetForwardingPipelineConfigRequest_ALL:
		out.P4Info, out.P4DeviceConfig = c.wire.GetP4Info(), c.wire.GetP4DeviceConfig()
	case p4.GetForwardingPipelineConfigRequest_COOKIE_ONLY:
	case p4.GetForwardingPipelineConfigRequest_P4INFO_AND_COOKIE:
		out.P4Info = c.wire.GetP4Info()
	case p4.GetForwardingPipelineConfigRequest_DEVICE_CONFIG_AND_COOKIE:
		out.P4DeviceConfig = c.wire.GetP4DeviceConfig()
	default:
		return nil, invalid("there is no response type %d", t)
	}
	return &p4.GetForwardingPipelineConfigResponse{Config: out}, nil
}
