package ports

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// madeAnew is the interval at which a removed interface is looked for.
const madeAnew = 500 * time.Millisecond

// A Lasting is a port on a network interface that outlives it: after the interface was removed, the port is
// down until there is one of the same name again.
type Lasting struct {
	o    Options
	now  atomic.Pointer[Interface]
	stop chan struct{}

	mu     sync.Mutex // of what follows, and of changes of now
	closed bool
	before Stats // of removed interfaces
}

// NewLasting makes a port of an open one, which it then owns. o is what that was opened with.
func NewLasting(i *Interface, o Options) *Lasting {
	l := &Lasting{o: o, stop: make(chan struct{}), before: Stats{Drops: map[string]uint64{}}}
	l.now.Store(i)
	return l
}

// Name implements Port.
func (l *Lasting) Name() string { return l.now.Load().Name() }

// Recv implements Port.
func (l *Lasting) Recv(bufs [][]byte) (int, error) {
	for {
		n, err := l.now.Load().Recv(bufs)
		if !errors.Is(err, ErrGone) {
			return n, err
		}
		for again := false; !again; {
			select {
			case <-time.After(madeAnew):
			case <-l.stop:
				return 0, net.ErrClosed
			}
			again = l.reopen()
		}
	}
}

// reopen opens the interface of the port's name, and reports whether it did.
func (l *Lasting) reopen() bool {
	i, err := OpenInterface(l.Name(), l.o)
	if err != nil {
		return false // there is none yet, or it is just being removed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = i.Close()
		return false
	}
	gone := l.now.Swap(i)
	_ = gone.Close() // it has no interface
	l.before = l.before.plus(gone.Stats())
	return true
}

// Send implements Port.
func (l *Lasting) Send(frames [][]byte) int { return l.now.Load().Send(frames) }

// Up implements Port.
func (l *Lasting) Up() bool { return l.now.Load().Up() }

// Stats implements Port.
func (l *Lasting) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.before.plus(l.now.Load().Stats())
}

// Close implements Port.
func (l *Lasting) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	close(l.stop)
	return l.now.Load().Close()
}

// plus is the sum; s keeps its own Drops.
func (s Stats) plus(o Stats) Stats {
	sum := Stats{RxPackets: s.RxPackets + o.RxPackets, RxBytes: s.RxBytes + o.RxBytes,
		TxPackets: s.TxPackets + o.TxPackets, TxBytes: s.TxBytes + o.TxBytes, Drops: map[string]uint64{}}
	for _, m := range []map[string]uint64{s.Drops, o.Drops} {
		for why, n := range m {
			sum.Drops[why] += n
		}
	}
	return sum
}
