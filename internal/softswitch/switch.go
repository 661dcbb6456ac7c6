// Package softswitch is the embedded switch: it runs a compiled P4 program
// (package program) on frames from ports (package ports), by a pipeline (package
// pipeline) with a queue for each port behind its ingress (package traffic), and
// lets a control plane at it (package p4rtserver, whose Target a Switch is).
//
//	sw, err := softswitch.New(softswitch.Config{CPUPort: 510})
//	err = sw.Attach(0, port)
//	pipe, engine, err := sw.NewPipeline(prog)
//	sw.Load(pipe, engine)
//	…
//	sw.Close()
//
// # From port to port
//
// Each port has a goroutine that receives, up to ports.MaxBatch frames at a
// time, and hands them on. One goroutine processes all packets, one batch after
// the other and each packet to its end, so that identical arrivals have identical
// results. It sends before it takes the next batch.
//
// The only queue before the pipeline is a port's few batches. A switch that cannot
// keep up fetches frames later; the operating system drops frames that find its
// buffer full, before any work was spent on them, and they are counted as that
// port's rx_full. Each port gets its turn, whatever the others do; frames from the
// control plane go before all others. Between ingress and egress each port has
// strict-priority queues in a buffer that all ports share, and optionally a rate;
// without a rate packets pass at once.
//
// The control plane gets in between two batches, and batches between two of its
// accesses, each in the order in which they asked.
package softswitch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
)

// Errors that those of this package wrap, besides those of its parts.
var (
	ErrConfig     = errors.New("bad configuration")
	ErrNoPipeline = errors.New("no pipeline is loaded")
	ErrBusy       = errors.New("the switch is overloaded")
	ErrClosed     = errors.New("the switch is closed")
)

// DefaultDropPort is v1model's port for packets to be dropped.
const DefaultDropPort = 511

// MaxFrame is the longest frame that a port receives: jumbo frames with tags.
const MaxFrame = 9728

const (
	batches     = 4                      // of each port, between its goroutine and the pipeline
	injectQueue = 1024                   // frames from the control plane that wait
	idlePeriod  = 100 * time.Millisecond // between looks for idle entries
	upPeriod    = 100 * time.Millisecond // between looks at the ports' states
	lookPeriod  = time.Second            // between looks of the fast path where nothing is new
)

// A Config describes a Switch. The zero value works.
type Config struct {
	// CPUPort is the port of packet-in and packet-out; 0: there is none.
	CPUPort uint16
	// DropPort is the egress_spec of packets to be dropped; 0 means
	// DefaultDropPort.
	DropPort uint16
	// Traffic describes the packet memory and its queues.
	Traffic traffic.Config
	// Rate is how fast each port sends. The CPU port has no rate.
	Rate traffic.Rate
	// PRE limits the packet replication engines of new pipelines.
	PRE pre.Limits
	// Seed is that of the program's random numbers.
	Seed uint64
	// Clock is the pipeline's time; nil means the time since New. It must not
	// go back.
	Clock func() time.Duration
	// Log gets what an operator should know; nil: nothing.
	Log *slog.Logger
	// LogMessages makes the program's log_msg() messages appear in the log too.
	LogMessages bool
}

// A Switch is an embedded switch. Its methods may be called by many goroutines at
// once.
type Switch struct {
	cfg Config
	log *slog.Logger

	control  turns // of the control plane, whose accesses are one after the other
	lock     turns // guards what follows
	manager  *traffic.Manager
	pre      *pre.Engine
	ports    [traffic.Ports]*attachment
	down     [traffic.Ports]bool // ports seen to be down; watch changes them
	packetIn func([]byte)
	digests  func([]pipeline.Digest)
	idle     func([]pipeline.Expired)
	fast     FastPath // nil: all packets come here
	noPort   uint64
	ins      uint64

	// Of the goroutine that processes packets.
	dirty []*attachment // have frames to send

	in       chan *batch
	injected chan []byte
	outs     atomic.Uint64
	loaded   atomic.Bool // there is a pipeline

	stop context.Context
	halt context.CancelFunc
	work sync.WaitGroup
}

// turns is a FIFO mutex, so that neither the control plane nor packets can
// starve the other.
type turns chan struct{}

func (t turns) take() { t <- struct{}{} }
func (t turns) give() { <-t }

// An attachment is a port in use.
type attachment struct {
	number uint16
	port   ports.Port
	free   chan *batch
	tx     [][]byte              // frames to send, in room that is used again
	failed atomic.Pointer[error] // it receives no more
}

// A batch is what a port received at once.
type batch struct {
	from   *attachment
	frames [][]byte
	n      int
}

// New returns a switch without ports and pipeline. Close ends it. The error
// wraps ErrConfig.
func New(cfg Config) (s *Switch, err error) {
	cfg.DropPort = cmp.Or(cfg.DropPort, DefaultDropPort)
	switch {
	case cfg.CPUPort > pre.MaxPort || cfg.DropPort > pre.MaxPort:
		return nil, fmt.Errorf("softswitch: %w: CPU port %d, drop port %d; ports are 0 to %d", ErrConfig, cfg.CPUPort, cfg.DropPort, pre.MaxPort)
	case cfg.CPUPort == cfg.DropPort:
		return nil, fmt.Errorf("softswitch: %w: port %d cannot be both CPU port and drop port; choose another CPU port", ErrConfig, cfg.CPUPort)
	}
	if cfg.Clock == nil {
		start := time.Now()
		cfg.Clock = func() time.Duration { return time.Since(start) }
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s = &Switch{cfg: cfg, log: cfg.Log, control: make(turns, 1), lock: make(turns, 1), in: make(chan *batch),
		injected: make(chan []byte, injectQueue),
		packetIn: func([]byte) {}, digests: func([]pipeline.Digest) {}, idle: func([]pipeline.Expired) {}}
	s.stop, s.halt = context.WithCancel(context.Background())
	if s.manager, err = traffic.New(cfg.Traffic, s.emit); err != nil {
		return nil, fmt.Errorf("softswitch: %w: %w", ErrConfig, err)
	}
	for p := range uint16(traffic.Ports) {
		if p == cfg.CPUPort && p != 0 {
			continue
		}
		if err := s.manager.SetRate(p, cfg.Rate); err != nil {
			return nil, fmt.Errorf("softswitch: %w: %w", ErrConfig, err)
		}
	}
	s.work.Go(s.process)
	s.work.Go(s.watch)
	return s, nil
}

// SetRate changes how fast a port sends. The error wraps ErrConfig.
func (s *Switch) SetRate(number uint16, r traffic.Rate) error {
	s.lock.take()
	defer s.lock.give()
	if number > pre.MaxPort || number == s.cfg.CPUPort && number != 0 {
		return fmt.Errorf("softswitch: %w: no rate for port %d", ErrConfig, number)
	}
	if err := s.manager.SetRate(number, r); err != nil {
		return fmt.Errorf("softswitch: %w: %w", ErrConfig, err)
	}
	return nil
}

// Attach makes p the port of that number; the Switch closes it. The error wraps
// ErrConfig or ErrClosed, and then p stays the caller's.
func (s *Switch) Attach(number uint16, p ports.Port) error {
	a := &attachment{number: number, port: p, free: make(chan *batch, batches), tx: make([][]byte, 0, ports.MaxBatch)}
	for range batches {
		b := &batch{from: a, frames: make([][]byte, ports.MaxBatch)}
		for i := range b.frames {
			b.frames[i] = make([]byte, 0, MaxFrame)
		}
		a.free <- b
	}
	s.lock.take()
	defer s.lock.give()
	switch {
	case s.stop.Err() != nil:
		return fmt.Errorf("softswitch: port %d: %w", number, ErrClosed)
	case number > pre.MaxPort:
		return fmt.Errorf("softswitch: %w: port %d (%s); ports are 0 to %d", ErrConfig, number, p.Name(), pre.MaxPort)
	case number == s.cfg.DropPort:
		return fmt.Errorf("softswitch: %w: port %d (%s) is the drop port", ErrConfig, number, p.Name())
	case number == s.cfg.CPUPort && number != 0:
		return fmt.Errorf("softswitch: %w: port %d (%s) is the CPU port", ErrConfig, number, p.Name())
	case s.ports[number] != nil:
		return fmt.Errorf("softswitch: %w: port %d is both %s and %s", ErrConfig, number, s.ports[number].port.Name(), p.Name())
	}
	s.ports[number] = a
	s.work.Go(func() { s.receive(a) })
	return nil
}

// Close ends the switch and its ports and waits until nothing of it runs.
func (s *Switch) Close() error {
	s.halt()
	s.lock.take()
	var errs []error
	for _, a := range s.ports {
		if a != nil {
			errs = append(errs, a.port.Close())
		}
	}
	s.lock.give()
	s.work.Wait()
	return errors.Join(errs...)
}

// receive brings in a port's frames until the port ends.
func (s *Switch) receive(a *attachment) {
	for {
		var b *batch
		select {
		case b = <-a.free:
		case <-s.stop.Done():
			return
		}
		n, err := a.port.Recv(b.frames)
		if err != nil {
			why := err // which alone goes to the heap
			a.failed.Store(&why)
			if s.stop.Err() == nil && !errors.Is(err, net.ErrClosed) {
				s.log.Error("a port receives no more; restart the switch when it is back",
					"port", a.number, "name", a.port.Name(), "error", err)
			}
			return
		}
		b.n = n
		select {
		case s.in <- b:
		case <-s.stop.Done():
			return
		}
	}
}

// process processes packets until the switch is closed.
func (s *Switch) process() {
	idle := time.NewTicker(idlePeriod)
	defer idle.Stop()
	wake := time.NewTimer(time.Hour) // when a queue's rate lets a packet go
	defer wake.Stop()
	for {
		var b *batch
		var frame []byte
		look := false
		select {
		case frame = <-s.injected: // before all else
		default:
			select {
			case b = <-s.in:
			case frame = <-s.injected:
			case <-wake.C:
			case <-idle.C:
				look = true
			case <-s.stop.Done():
				return
			}
		}
		s.lock.take()
		if b != nil {
			for _, f := range b.frames[:b.n] {
				if s.fast != nil && s.fast.Mine(f) {
					continue
				}
				s.manager.Arrive(s.cfg.Clock(), b.from.number, f)
			}
		}
		if frame != nil {
			s.manager.Arrive(s.cfg.Clock(), s.cfg.CPUPort, frame)
		}
		now := s.cfg.Clock()
		next, waits := s.manager.Run(now)
		s.report(now, look)
		s.lock.give()
		s.flush()
		if b != nil {
			b.from.free <- b
		}
		if waits {
			wake.Reset(max(next-now, 0))
		}
	}
}

// report tells the control plane what is new.
func (s *Switch) report(now time.Duration, look bool) {
	p := s.manager.Pipeline()
	if p == nil {
		return
	}
	if list := p.TakeDigests(); len(list) > 0 {
		s.digests(list)
	}
	if !look {
		return
	}
	if list := p.Expired(now); len(list) > 0 {
		s.idle(list)
	}
}

// emit takes a frame that leaves: the manager calls it.
func (s *Switch) emit(port uint16, frame []byte) {
	if port == s.cfg.CPUPort && port != 0 {
		s.ins++
		s.packetIn(frame)
		return
	}
	a := s.ports[port]
	if a == nil {
		s.noPort++
		return
	}
	n := len(a.tx)
	if n == cap(a.tx) {
		a.send()
		n = 0
	}
	if n == 0 {
		s.dirty = append(s.dirty, a)
	}
	a.tx = a.tx[:n+1]
	a.tx[n] = append(a.tx[n][:0], frame...)
}

// flush sends what was emitted.
func (s *Switch) flush() {
	for _, a := range s.dirty {
		a.send()
	}
	s.dirty = s.dirty[:0]
}

func (a *attachment) send() {
	if len(a.tx) > 0 {
		a.port.Send(a.tx)
		a.tx = a.tx[:0]
	}
}

// watch tells the pipeline when ports come up or go down, and logs it.
func (s *Switch) watch() {
	tick := time.NewTicker(upPeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.stop.Done():
			return
		}
		for _, a := range s.attached() {
			up := a.up()
			if s.down[a.number] != up {
				continue
			}
			s.setUp(a.number, up)
			state := "down"
			if up {
				state = "up"
			}
			s.log.Warn("a port is "+state, "port", a.number, "name", a.port.Name())
		}
	}
}

// setUp notes that a port went up or down.
func (s *Switch) setUp(port uint16, up bool) {
	s.lock.take()
	defer s.lock.give()
	s.down[port] = !up
	if p := s.manager.Pipeline(); p != nil {
		p.SetPortUp(port, up)
	}
}

func (a *attachment) up() bool { return a.failed.Load() == nil && a.port.Up() }

// Problems says what is wrong with ports, each with what to do.
func (s *Switch) Problems() (list []string) {
	for _, a := range s.attached() {
		if err := a.failed.Load(); err != nil {
			list = append(list, fmt.Sprintf("port %d, %s, receives no more: %v; restart the switch when it is back", a.number, a.port.Name(), *err))
		} else if !a.port.Up() {
			list = append(list, fmt.Sprintf("port %d, %s, is down or has no link; set it and its other end up", a.number, a.port.Name()))
		}
	}
	return list
}

func (s *Switch) attached() (list []*attachment) {
	s.lock.take()
	defer s.lock.give()
	for _, a := range s.ports {
		if a != nil {
			list = append(list, a)
		}
	}
	return list
}
