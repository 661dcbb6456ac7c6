// Package softswitch is the embedded switch. It runs a compiled P4 program (package program) on the
// frames of its ports (package ports), in a pipeline (package pipeline) with a queue for each port
// after ingress (package traffic). A control plane accesses it through package p4rtserver, whose
// Target a Switch is.
//
//	sw, err := softswitch.New(softswitch.Config{CPUPort: 510})
//	err = sw.Attach(0, port)
//	pipe, engine, err := sw.NewPipeline(prog)
//	sw.Load(pipe, engine)
//	…
//	sw.Close()
//
// # Path of a packet
//
// Each port has a goroutine that receives up to ports.MaxBatch frames at a time. One goroutine
// processes all packets, batch by batch and each packet to its end, so that identical arrivals have
// identical results. It sends the results before it takes the next batch.
//
// The only queue before the pipeline is a few batches per port. A switch that cannot keep up reads
// frames later; the operating system drops frames when its buffer is full, before any work was
// spent on them, and they are counted as that port's rx_full. Ports are served in turn; frames from
// the control plane have precedence over all others. Between ingress and egress each port has
// strict-priority queues in a buffer that all ports share, and optionally a rate; without a rate
// packets pass at once.
//
// The control plane gets access between two batches, and batches run between two of its accesses,
// each in order of request.
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

// Errors that the errors of this package wrap, besides those of its parts.
var (
	ErrConfig     = errors.New("bad configuration")
	ErrNoPipeline = errors.New("no pipeline is loaded")
	ErrBusy       = errors.New("the switch is overloaded")
	ErrClosed     = errors.New("the switch is closed")
)

// DefaultDropPort is v1model's port for dropped packets.
const DefaultDropPort = 511

// MaxFrame is the longest frame that a port receives: jumbo frames with tags.
const MaxFrame = 9728

const (
	batches     = 4                      // per port, between its goroutine and the pipeline
	injectQueue = 1024                   // waiting frames from the control plane
	idlePeriod  = 100 * time.Millisecond // interval of checks for idle entries
	upPeriod    = 100 * time.Millisecond // interval of checks of the ports' states
	lookPeriod  = time.Second            // interval of checks by the fast path without news
)

// A Config configures a Switch. The zero value works.
type Config struct {
	// CPUPort is the port of packet-in and packet-out; 0: none.
	CPUPort uint16
	// DropPort is the egress_spec that drops a packet; 0 means DefaultDropPort.
	DropPort uint16
	// Traffic configures the packet memory and its queues.
	Traffic traffic.Config
	// Rate limits each port. The CPU port has no rate.
	Rate traffic.Rate
	// PRE limits the packet replication engines of new pipelines.
	PRE pre.Limits
	// Seed seeds the program's random numbers.
	Seed uint64
	// Clock returns the pipeline's time, which must not decrease; nil means the time since New.
	Clock func() time.Duration
	// Log gets messages for the operator; nil: none.
	Log *slog.Logger
	// LogMessages also logs the program's log_msg() messages.
	LogMessages bool
}

// A Switch is an embedded switch. Its methods may be called concurrently.
type Switch struct {
	cfg Config
	log *slog.Logger

	control  turns // serializes the accesses of the control plane
	lock     turns // guards the following fields
	manager  *traffic.Manager
	pre      *pre.Engine
	ports    [traffic.Ports]*attachment
	down     [traffic.Ports]bool // ports that were down at the last check; watch updates them
	packetIn func([]byte)
	digests  func([]pipeline.Digest)
	idle     func([]pipeline.Expired)
	fast     FastPath // nil: all packets are processed here
	noPort   uint64
	ins      uint64

	// Used by the goroutine that processes packets:
	dirty []*attachment // with frames to send

	in       chan *batch
	injected chan []byte
	outs     atomic.Uint64
	loaded   atomic.Bool // there is a pipeline

	stop context.Context
	halt context.CancelFunc
	work sync.WaitGroup
}

// turns is a FIFO mutex, so that neither the control plane nor packets can starve the other.
type turns chan struct{}

func (t turns) take() { t <- struct{}{} }
func (t turns) give() { <-t }

// An attachment is a port in use.
type attachment struct {
	number uint16
	port   ports.Port
	free   chan *batch
	tx     [][]byte              // frames to send, in reused buffers
	failed atomic.Pointer[error] // why it no longer receives
	drops  dropped
}

// A batch is the frames that a port received at once.
type batch struct {
	from   *attachment
	frames [][]byte
	n      int
}

// New returns a switch without ports and without a pipeline. Close stops it. The error wraps
// ErrConfig.
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

// SetRate sets a port's rate. The error wraps ErrConfig.
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

// Attach makes p the port of that number. The Switch then owns p and closes it. If the error, which
// wraps ErrConfig or ErrClosed, is not nil, the caller still owns p.
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

// Close stops the switch, closes its ports, and waits for its goroutines.
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

// receive reads a port's frames until the port ends.
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
			why := err // so that only the copy escapes to the heap
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
	wake := time.NewTimer(time.Hour) // for when a queue's rate allows a packet
	defer wake.Stop()
	for {
		var b *batch
		var frame []byte
		look := false
		select {
		case frame = <-s.injected: // has precedence
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

// report sends new digests and idle entries to the control plane.
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

// emit queues a frame to be sent; the manager calls it.
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

// flush sends the emitted frames.
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

// watch tells the pipeline when ports go up or down, and logs it, and notes what ports drop.
func (s *Switch) watch() {
	tick, drops := time.NewTicker(upPeriod), time.NewTicker(dropsPeriod)
	defer tick.Stop()
	defer drops.Stop()
	for {
		select {
		case <-tick.C:
		case now := <-drops.C:
			for _, a := range s.attached() {
				a.drops.look(a.port.Stats().Drops, now)
			}
			continue
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

// setUp records that a port went up or down.
func (s *Switch) setUp(port uint16, up bool) {
	s.lock.take()
	defer s.lock.give()
	s.down[port] = !up
	if p := s.manager.Pipeline(); p != nil {
		p.SetPortUp(port, up)
	}
}

func (a *attachment) up() bool { return a.failed.Load() == nil && a.port.Up() }

// Problems says what to do, by what is wrong with ports.
func (s *Switch) Problems() map[string]string {
	remedies := map[string]string{}
	for _, a := range s.attached() {
		if err := a.failed.Load(); err != nil {
			remedies[fmt.Sprintf("port %d, %s, receives no more: %v", a.number, a.port.Name(), *err)] = "restart the switch when it is back"
		} else if !a.port.Up() {
			remedies[fmt.Sprintf("port %d, %s, is down or has no link", a.number, a.port.Name())] = "set it and its other end up"
		}
		a.drops.lately(time.Now(), func(what, remedy string) {
			remedies[fmt.Sprintf("port %d, %s, %s", a.number, a.port.Name(), what)] = remedy
		})
	}
	return remedies
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
