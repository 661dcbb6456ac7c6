package p4rtserver

import p4 "github.com/p4lang/p4runtime/go/p4/v1"

// Preset makes a config the running one, like SetForwardingPipelineConfig with VERIFY_AND_COMMIT,
// for the process that starts the switch: it needs no primary. The error is a gRPC status.
func (s *Server) Preset(c *p4.ForwardingPipelineConfig) error {
	s.state.Lock()
	defer s.state.Unlock()
	return s.setConfig(p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, c)
}
