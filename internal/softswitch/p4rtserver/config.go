package p4rtserver

import (
	"bytes"
	"context"
	"sync"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A config is a forwarding pipeline config with the pipeline made of it, and
// what the service itself keeps beside the pipeline's state.
type config struct {
	*index
	wire *p4.ForwardingPipelineConfig // as it was given
	pipe *pipeline.Pipeline
	pre  *pre.Engine

	multicast kept[*p4.MulticastGroupEntry, []pre.Replica]
	clones    kept[*p4.CloneSessionEntry, pre.Session]

	learning map[uint32]*p4.DigestEntry_Config // digests that are enabled

	loaded bool // packets meet it
}

// do calls f with exclusive access to the state.
func (s *Server) do(c *config, f func()) {
	if !c.loaded {
		f() // no other goroutine knows it; s.state is held
		return
	}
	s.target.Do(func(*pipeline.Pipeline, *pre.Engine) { f() })
}

// latest is the program that was loaded last: switches of one process run the same one,
// and no pipeline changes it.
var latest struct {
	sync.Mutex
	json []byte
	prog *program.Program
}

func load(json []byte) (*program.Program, error) {
	latest.Lock()
	defer latest.Unlock()
	if latest.prog != nil && bytes.Equal(latest.json, json) {
		return latest.prog, nil
	}
	prog, err := program.Load(json)
	if err == nil {
		latest.json, latest.prog = bytes.Clone(json), prog
	}
	return prog, err
}

// newConfig verifies a config and makes it ready to be loaded.
func (s *Server) newConfig(wire *p4.ForwardingPipelineConfig) (*config, error) {
	switch {
	case wire == nil:
		return nil, invalid("no config is given")
	case wire.GetP4Info() == nil:
		return nil, invalid("the config has no P4Info")
	case len(wire.GetP4DeviceConfig()) == 0:
		return nil, invalid("the config has no P4 device config, which is p4c's bmv2 JSON for this switch")
	}
	prog, err := load(wire.GetP4DeviceConfig())
	if err != nil {
		return nil, invalid("P4 device config: %v", err)
	}
	pipe, engine, err := s.target.NewPipeline(prog)
	if err != nil {
		return nil, invalid("P4 device config: %v", err)
	}
	x, err := newIndex(wire.GetP4Info(), pipe)
	if err != nil {
		return nil, err
	}
	if err := checkPlatform(wire, engine); err != nil {
		return nil, err
	}
	return &config{
		index:     x,
		wire:      wire,
		pipe:      pipe,
		pre:       engine,
		multicast: multicastGroups(engine),
		clones:    cloneSessions(engine),
		learning:  map[uint32]*p4.DigestEntry_Config{},
	}, nil
}

// checkPlatform refuses a P4Info that asks for more than the replication engine
// has ("PkgInfo Message").
func checkPlatform(wire *p4.ForwardingPipelineConfig, e *pre.Engine) error {
	want, have := wire.GetP4Info().GetPkgInfo().GetPlatformProperties(), e.Limits()
	for _, p := range []struct {
		name string
		want int32
		have int
	}{
		{"multicast_group_table_size", want.GetMulticastGroupTableSize(), have.Groups},
		{"multicast_group_table_total_replicas", want.GetMulticastGroupTableTotalReplicas(), have.Replicas},
		{"multicast_group_table_max_replicas_per_entry", want.GetMulticastGroupTableMaxReplicasPerEntry(), have.Replicas},
	} {
		if int(p.want) > p.have {
			return invalid("P4Info: platform property %s is %d, more than the %d of this switch", p.name, p.want, p.have)
		}
	}
	return nil
}

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

// load makes a config the one that packets meet.
func (s *Server) load(c *config) {
	s.digests.reset(c)
	// Between the two, packets to the controller are read with the new header
	// although the old program wrote them; both being at once is not possible
	// without stopping packets, and SetForwardingPipelineConfig promises nothing
	// about packets in flight.
	s.running.Store(c)
	s.target.Load(c.pipe, c.pre)
	c.loaded = true
	s.active, s.saved = c, nil
}

// GetForwardingPipelineConfig implements p4.v1.P4Runtime. It returns the config
// that reads and writes concern.
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
