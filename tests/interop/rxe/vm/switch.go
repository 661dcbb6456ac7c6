package vm

import (
	"io"
	"sync"
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
	ports []io.ReadWriteCloser
	where map[[6]byte]io.Writer
}

// attach adds a port and carries its frames until it is closed.
func (s *ethSwitch) attach(p io.ReadWriteCloser) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports = append(s.ports, p)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		buf := make([]byte, maxFrame)
		for {
			n, err := p.Read(buf)
			if err != nil {
				return
			}
			s.forward(p, buf[:n])
		}
	}()
}

// forward sends a frame on its way. What a port cannot take is lost, as on any
// network.
func (s *ethSwitch) forward(from io.Writer, frame []byte) {
	if len(frame) < ethLen || !s.impair.apply(frame) {
		return
	}
	if s.tap != nil {
		s.tap(frame)
	}
	for _, p := range s.route(from, [6]byte(frame[:6]), [6]byte(frame[6:12])) {
		_, _ = p.Write(frame)
	}
}

// route learns where src is and returns the ports for dst.
func (s *ethSwitch) route(from io.Writer, dst, src [6]byte) []io.Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.where == nil {
		s.where = map[[6]byte]io.Writer{}
	}
	s.where[src] = from
	if p, ok := s.where[dst]; ok {
		if p == from {
			return nil // it is there already
		}
		return []io.Writer{p}
	}
	var out []io.Writer
	for _, p := range s.ports {
		if io.Writer(p) != from {
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
