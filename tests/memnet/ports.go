package memnet

import (
	"sync/atomic"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/tests/pipe"
)

// Pair returns two ports that are joined by a cable. When one is closed, the other still
// receives what was sent, is no longer up, and drops what it is to send.
func Pair(name1, name2 string) (ports.Port, ports.Port) {
	a, b := pipe.New(pipe.Config{})
	return &pairPort{End: a, name: name1}, &pairPort{End: b, name: name2}
}

type pairPort struct {
	*pipe.End
	name         string
	rx, tx, down atomic.Uint64
	got          [ports.MaxBatch][]byte // of the one Recv at a time
}

func (p *pairPort) Name() string { return p.name }

func (p *pairPort) Recv(bufs [][]byte) (int, error) {
	n, err := p.End.Recv(p.got[:min(len(bufs), len(p.got))])
	for i, f := range p.got[:n] {
		bufs[i] = append(bufs[i][:0], f...)
	}
	p.rx.Add(uint64(n)) //nolint:gosec // not negative
	return n, err
}

func (p *pairPort) Send(frames [][]byte) int {
	if !p.Up() || p.End.Send(frames) != nil {
		p.down.Add(uint64(len(frames)))
		return 0
	}
	p.tx.Add(uint64(len(frames)))
	return len(frames)
}

func (p *pairPort) Stats() ports.Stats {
	return ports.Stats{RxPackets: p.rx.Load(), TxPackets: p.tx.Load(), Drops: map[string]uint64{ports.TxDown.String(): p.down.Load()}}
}
