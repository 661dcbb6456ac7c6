package vm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// maxFrame is the largest Ethernet frame that the switch carries.
const maxFrame = 64 << 10

// An ethSwitch joins ports, each of which reads and writes whole Ethernet
// frames. It learns addresses like any bridge; every frame passes its
// impairer and tap once.
type ethSwitch struct {
	impair impairer
	// tap, if set, sees every frame as it was delivered. It is set before the
	// first port is added.
	tap func(frame []byte)

	wg sync.WaitGroup

	mu    sync.Mutex
	ports []*ethPort
	where map[[6]byte]*ethPort
}

// An ethPort is one of the switch's, and what has come from there.
type ethPort struct {
	io.ReadWriteCloser
	first  bool // of all
	frames int
	last   time.Time
	ended  error // why no more come
}

// String says what has come, to find out which frames did not.
func (p *ethPort) String() string {
	s := fmt.Sprintf("%d frames", p.frames)
	if p.frames > 0 {
		s += fmt.Sprintf(", the last %v ago", time.Since(p.last).Round(time.Millisecond))
	}
	if p.ended != nil {
		s += fmt.Sprintf("; ended: %v", p.ended)
	}
	return s
}

// String says what has come from each port.
func (s *ethSwitch) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ports []string
	for i, p := range s.ports {
		ports = append(ports, fmt.Sprintf("port %d: %v", i, p))
	}
	return strings.Join(ports, "; ")
}

// attach adds a port and carries its frames until it is closed.
func (s *ethSwitch) attach(rw io.ReadWriteCloser) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &ethPort{ReadWriteCloser: rw, first: len(s.ports) == 0}
	s.ports = append(s.ports, p)
	s.wg.Go(func() {
		buf := make([]byte, maxFrame)
		for {
			n, err := p.Read(buf)
			s.note(p, err)
			if err != nil {
				return
			}
			s.forward(p, buf[:n])
		}
	})
}

func (s *ethSwitch) note(p *ethPort, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		p.frames++
		p.last = time.Now()
	} else if !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) {
		p.ended = err
	}
}

// forward sends a frame on its way. What a port cannot take is lost, as on any
// network.
func (s *ethSwitch) forward(from *ethPort, frame []byte) {
	if len(frame) >= ethLen && !s.impair.hold(from, frame) && s.impair.apply(frame) {
		s.deliver(from, frame)
	}
}

// change changes the impairment, delivers what was held back, and returns the counts since the last
// change.
func (s *ethSwitch) change(i Impairment) Stats {
	stats := s.impair.set(i)
	for _, h := range s.impair.release() {
		s.deliver(h.from, h.frame)
	}
	return stats
}

func (s *ethSwitch) deliver(from *ethPort, frame []byte) {
	if s.tap != nil {
		s.tap(frame)
	}
	if from.first {
		s.impair.inward(frame)
	}
	for _, p := range s.route(from, [6]byte(frame[:6]), [6]byte(frame[6:12])) {
		_, _ = p.Write(frame)
	}
}

// route learns where src is and returns the ports for dst.
func (s *ethSwitch) route(from *ethPort, dst, src [6]byte) []*ethPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.where == nil {
		s.where = map[[6]byte]*ethPort{}
	}
	s.where[src] = from
	if p, ok := s.where[dst]; ok {
		if p == from {
			return nil // it is there already
		}
		return []*ethPort{p}
	}
	var out []*ethPort
	for _, p := range s.ports {
		if p != from {
			out = append(out, p)
		}
	}
	return out
}

// close closes all ports and waits until nothing is carried any more.
func (s *ethSwitch) close() {
	s.mu.Lock()
	for _, p := range s.ports {
		p.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
