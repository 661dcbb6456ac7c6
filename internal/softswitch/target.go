package softswitch

import (
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// This file implements p4rtserver.Target.

// Do calls f with exclusive access to the pipeline and the packet replication
// engine, which are nil before the first Load. f must not call the Switch.
func (s *Switch) Do(f func(*pipeline.Pipeline, *pre.Engine)) {
	s.control.take()
	defer s.control.give()
	s.lock.take()
	defer s.lock.give()
	f(s.manager.Pipeline(), s.pre)
	if s.fast == nil {
		return
	}
	if wait := s.fast.Ends(); wait != nil { // packets go on meanwhile, by the new tables here and the old ones there
		s.lock.give()
		wait()
		s.lock.take()
	}
	s.fast.Changed()
}

// A FastPath processes packets of the switch's ports before they come to the switch, by the same
// tables. Its methods are called while no packet is processed here.
type FastPath interface {
	// Loaded is called with a pipeline that packets meet from now on.
	Loaded(p *pipeline.Pipeline, e *pre.Engine)
	// Ends is called when the control plane has had access to the pipeline. It returns what waits
	// until Changed may be called, without the switch's lock, so that what Look returns may come meanwhile; nil: nothing does.
	Ends() (wait func())
	Changed()
	// Mine says that a frame must not be processed here, and counts it.
	Mine(frame []byte) bool
	// Look is called each second, and when there are News, without the switch's lock, and what it returns with it.
	Look() (note func())
	News() <-chan struct{}
	// Status says in a few words where packets are processed, and why.
	Status() string
}

// NoFastPath is a FastPath that processes nothing, for that reason.
type NoFastPath string

// Loaded implements FastPath.
func (NoFastPath) Loaded(*pipeline.Pipeline, *pre.Engine) {}

// Ends implements FastPath.
func (NoFastPath) Ends() (wait func()) { return nil }

// Changed implements FastPath.
func (NoFastPath) Changed() {}

// Mine implements FastPath.
func (NoFastPath) Mine([]byte) bool { return false }

// Look implements FastPath.
func (NoFastPath) Look() (note func()) { return func() {} }

// News implements FastPath.
func (NoFastPath) News() <-chan struct{} { return nil }

// Status implements FastPath.
func (why NoFastPath) Status() string { return "off: " + string(why) }

// Accelerate gives the switch a fast path, once, when all ports are attached.
func (s *Switch) Accelerate(f FastPath) {
	s.lock.take()
	defer s.lock.give()
	s.fast = f
	if p := s.manager.Pipeline(); p != nil {
		f.Loaded(p, s.pre)
	}
	s.work.Go(func() { s.follow(f) })
}

// follow has the fast path see what has changed at ports.
func (s *Switch) follow(f FastPath) {
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for {
		select {
		case <-f.News():
		case <-tick.C:
		case <-s.stop.Done():
			return
		}
		note := f.Look()
		s.lock.take()
		note()
		s.lock.give()
	}
}

// FastPath says where packets are processed, and why; "": there is no fast path.
func (s *Switch) FastPath() string {
	s.lock.take()
	defer s.lock.give()
	if s.fast == nil {
		return ""
	}
	return s.fast.Status()
}

// Load makes p and e the pipeline and the packet replication engine of packets
// that arrive from now on; packets that wait in queues leave by the previous
// pipeline. Load tells the pipeline which ports are down, and the switch reports
// each later change within 100 ms; ports that are not attached count as up.
func (s *Switch) Load(p *pipeline.Pipeline, e *pre.Engine) {
	s.control.take()
	defer s.control.give()
	s.lock.take()
	defer s.lock.give()
	for port, down := range s.down {
		p.SetPortUp(uint16(port), !down)
	}
	s.manager.Load(p)
	s.pre = e
	if s.fast != nil {
		s.fast.Loaded(p, e)
	}
	s.loaded.Store(true)
}

// NewPipeline makes a program ready to be loaded. The error says which construct
// cannot be run.
func (s *Switch) NewPipeline(prog *program.Program) (*pipeline.Pipeline, *pre.Engine, error) {
	e := pre.New(s.cfg.PRE)
	o := pipeline.Options{PRE: e, Seed: s.cfg.Seed, DropPort: s.cfg.DropPort}
	if s.cfg.LogMessages {
		o.Log = func(text string) { s.log.Info("log_msg", "text", text) }
	}
	p, err := pipeline.New(prog, o)
	if err != nil {
		return nil, nil, fmt.Errorf("softswitch: %w", err)
	}
	return p, e, nil
}

// Inject processes a frame as if it had come in on the CPU port. The frame is
// the Switch's to keep. The error wraps ErrConfig (there is no CPU port),
// ErrNoPipeline, ErrBusy or ErrClosed.
func (s *Switch) Inject(frame []byte) error {
	if s.cfg.CPUPort == 0 {
		return fmt.Errorf("softswitch: packet-out: %w: there is no CPU port; start the switch with one (--cpu-port)", ErrConfig)
	}
	switch {
	case s.stop.Err() != nil:
		return fmt.Errorf("softswitch: packet-out: %w", ErrClosed)
	case !s.loaded.Load():
		return fmt.Errorf("softswitch: packet-out: %w", ErrNoPipeline)
	}
	if frame == nil {
		frame = []byte{}
	}
	select {
	case s.injected <- frame:
		s.outs.Add(1)
		return nil
	default:
		return fmt.Errorf("softswitch: packet-out: %w: %d frames wait already; send more slowly", ErrBusy, injectQueue)
	}
}

// Subscribe sets what is called for each frame that leaves by the CPU port (valid
// during the call), with new digests, and with entries that have become idle, each
// reported within 100 ms, and again for each further time-out without a packet. The
// functions must neither block nor call the Switch.
func (s *Switch) Subscribe(packetIn func(frame []byte), digests func([]pipeline.Digest), idle func([]pipeline.Expired)) {
	s.lock.take()
	defer s.lock.give()
	s.packetIn, s.digests, s.idle = packetIn, digests, idle
}

// Now returns the pipeline's time.
func (s *Switch) Now() time.Duration { return s.cfg.Clock() }
