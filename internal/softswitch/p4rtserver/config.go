package p4rtserver

import (
	"bytes"
	"sync"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A config is a forwarding pipeline config with its pipeline, and the server's own data beside the
// pipeline's state.
type config struct {
	*index
	wire *p4.ForwardingPipelineConfig // as received
	pipe *pipeline.Pipeline
	pre  *pre.Engine

	multicast kept[*p4.MulticastGroupEntry, []pre.Replica]
	clones    kept[*p4.CloneSessionEntry, pre.Session]

	learning map[uint32]*p4.DigestEntry_Config // enabled digests

	loaded bool // packets are processed by it
}

// current returns the config to which reads and writes refer: the saved one, if there is one. The
// caller holds s.state.
func (s *Server) current() (*config, error) {
	switch {
	case s.saved != nil:
		return s.saved, nil
	case s.active != nil:
		return s.active, nil
	}
	return nil, fail(codes.FailedPrecondition, "no forwarding pipeline config has been set yet: call SetForwardingPipelineConfig first")
}

// do calls f with exclusive access to the state.
func (s *Server) do(c *config, f func()) {
	if !c.loaded {
		f() // no other goroutine has access to it; s.state is held
		return
	}
	s.target.Do(func(*pipeline.Pipeline, *pre.Engine) { f() })
}

// latest is the program loaded last: the switches of one process run the same program, and
// pipelines do not change it.
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

// newConfig verifies a config and prepares it to be loaded.
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

// checkPlatform rejects a P4Info that requires more than the replication engine has ("PkgInfo
// Message").
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
