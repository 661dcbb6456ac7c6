package softswitch

import (
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// This file implements p4rtserver.Target.

// CPUPort returns the port of packet-in and packet-out; 0: there is none.
func (s *Switch) CPUPort() uint16 { return s.cfg.CPUPort }

// Do calls f with exclusive access to the pipeline and the packet replication engine, which are nil
// before the first Load. f must not call the Switch.
func (s *Switch) Do(f func(*pipeline.Pipeline, *pre.Engine)) {
	s.control.take()
	defer s.control.give()
	s.lock.take()
	defer s.lock.give()
	f(s.manager.Pipeline(), s.pre)
	if s.fast == nil {
		return
	}
	for wait := s.fast.Ends(); wait != nil; wait = s.fast.Ends() { // packets continue meanwhile, here by the new tables and there by the old ones
		s.lock.give()
		wait()
		s.lock.take()
	}
	s.fast.Changed()
}

// A FastPath processes packets of the switch's ports before they reach the switch, by the same
// tables. Except where noted, its methods are called while the switch processes no packet.
type FastPath interface {
	// Loaded is called with the pipeline for all packets from now on.
	Loaded(p *pipeline.Pipeline, e *pre.Engine)
	// Ends is called after the control plane had access to the pipeline. It returns a function that
	// prepares Changed, or waits until it may be called; afterward Ends is called again. nil: Changed
	// may be called. The function is called without the switch's lock, so that the function returned by
	// Look may run meanwhile.
	Ends() (wait func())
	Changed()
	// Mine reports that a frame must not be processed here, and counts it.
	Mine(frame []byte) bool
	// Look is called each second, and after News, without the switch's lock. The function that it
	// returns is called with the lock.
	Look() (note func())
	News() <-chan struct{}
	// Status says briefly where packets are processed, and why.
	Status() string
}

// NoFastPath is a FastPath that processes nothing. Its value is the reason.
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

// Accelerate sets the switch's fast path. Call it once, when all ports are attached.
func (s *Switch) Accelerate(f FastPath) {
	s.lock.take()
	defer s.lock.give()
	s.fast = f
	if p := s.manager.Pipeline(); p != nil {
		f.Loaded(p, s.pre)
	}
	s.work.Go(func() { s.follow(f) })
}

// follow lets the fast path check the ports, regularly and after news.
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

// Load makes p and e the pipeline and the packet replication engine of packets that arrive from now
// on; packets in queues leave through the previous pipeline. Load tells the pipeline which ports
// are down, and the switch reports each later change within 100 ms; ports that are not attached
// count as up.
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

// NewPipeline prepares a program for Load. The error names the construct that is not supported.
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

// Inject processes a frame as if it had arrived on the CPU port. The Switch keeps the frame. The
// error wraps ErrConfig (there is no CPU port), ErrNoPipeline, ErrBusy or ErrClosed.
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

// Subscribe sets the functions that are called for each frame sent to the CPU port (valid during
// the call), with new digests, and with idle entries, each reported within 100 ms, and again after
// each further timeout without a packet. The functions must neither block nor call the Switch.
func (s *Switch) Subscribe(packetIn func(frame []byte), digests func([]pipeline.Digest), idle func([]pipeline.Expired)) {
	s.lock.take()
	defer s.lock.give()
	s.packetIn, s.digests, s.idle = packetIn, digests, idle
}

// Now returns the pipeline's time.
func (s *Switch) Now() time.Duration { return s.cfg.Clock() }
