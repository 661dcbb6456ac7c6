package ports

import (
	"fmt"
	"net"
	"sync"
)

// DefaultPairQueue is how many frames each direction of a pair holds.
const DefaultPairQueue = 1024

// Pair returns two ports in memory that are joined by a cable. Each direction
// holds queue frames (0 means DefaultPairQueue); more are dropped and counted
// at the receiver as RxFull. When one end closes, the other still receives what
// was sent, is no longer up, and drops what it is to send.
func Pair(name1, name2 string, queue int) (Port, Port) {
	if queue <= 0 {
		queue = DefaultPairQueue
	}
	a := &memory{name: name1, ring: make([][]byte, queue)}
	b := &memory{name: name2, ring: make([][]byte, queue)}
	a.ready.L, b.ready.L = &a.mu, &b.mu
	a.peer, b.peer = b, a
	return a, b
}

// A memory is one end of a pair; the ring holds the frames on the way to it.
type memory struct {
	name string
	peer *memory
	counters

	mu      sync.Mutex
	ready   sync.Cond // the ring is not empty, or closed
	ring    [][]byte
	head, n int
	closed  bool
}

func (m *memory) Name() string { return m.name }

func (m *memory) Recv(bufs [][]byte) (int, error) {
	if len(bufs) == 0 {
		return 0, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		for m.n == 0 && !m.closed {
			m.ready.Wait()
		}
		if m.closed {
			return 0, fmt.Errorf("ports: %s: %w", m.name, net.ErrClosed)
		}
		if n := m.take(bufs); n > 0 {
			return n, nil
		}
	}
}

func (m *memory) take(bufs [][]byte) int {
	n, bytes := 0, 0
	for m.n > 0 && n < min(len(bufs), MaxBatch) {
		f := m.ring[m.head]
		m.head = (m.head + 1) % len(m.ring)
		m.n--
		if cap(bufs[n]) < len(f) {
			m.drop(RxTooLong, 1)
			continue
		}
		bufs[n] = append(bufs[n][:0], f...)
		bytes += len(f)
		n++
	}
	m.received(n, bytes)
	return n
}

// Send copies the frames to the other end.
func (m *memory) Send(frames [][]byte) int {
	if !m.Up() {
		m.drop(TxDown, len(frames))
		return 0
	}
	sent := 0
	for i, f := range frames {
		if len(f) < HeaderLen {
			m.drop(TxRunt, 1)
			continue
		}
		m.peer.put(f)
		m.sent(frames[i : i+1])
		sent++
	}
	m.peer.ready.Signal()
	return sent
}

func (m *memory) put(f []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n == len(m.ring) {
		m.drop(RxFull, 1)
		return
	}
	slot := &m.ring[(m.head+m.n)%len(m.ring)]
	*slot = append((*slot)[:0], f...)
	m.n++
}

// Up reports whether neither end is closed.
func (m *memory) Up() bool { return !m.isClosed() && !m.peer.isClosed() }

func (m *memory) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

func (m *memory) Stats() Stats { return m.stats() }

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.ready.Broadcast()
	return nil
}
