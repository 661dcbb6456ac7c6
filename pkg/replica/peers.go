package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

const (
	maxMessage = 16 << 20 // bytes
	maxQueue   = 256      // messages queued to one host; more are dropped, because any message may be lost
	maxReading = 64 << 20 // bytes of reads in flight to one host, which are in memory several times at both
)

var (
	errNoPeer   = errors.New("the host has no record with the configuration manager yet: start mcblock there")
	errStarting = errors.New("this host has not read yet which hosts there are: try again")
)

// peers are the connections to the other hosts.
type peers struct {
	files identity.Files
	own   identity.Identity
	dial  func(ctx context.Context, target string) (net.Conn, error)
	log   *slog.Logger

	sentLog, sentStore atomic.Uint64 // bytes of entries and of pieces of stores, with their headers

	mu     sync.Mutex
	ctx    context.Context
	all    map[core.ID]*peer
	byName map[string]core.ID
	wg     sync.WaitGroup
}

// A peer is another host.
type peer struct {
	host  osdmap.Host
	conn  *grpcclient.Conn
	rpc   replicav1.ReplicasClient
	queue chan message
	reads *semaphore.Weighted // maxReading
	end   context.CancelFunc
}

// update adds hosts, or their new addresses. One that has no record any more stays: no host is ever removed, and so the
// configuration manager was restored from an old copy.
func (p *peers) update(hosts []osdmap.Host, self core.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byName == nil {
		p.byName = map[string]core.ID{}
	}
	for _, h := range hosts {
		p.byName[h.Name] = h.ID
		was := p.all[h.ID]
		if h.ID == self || was != nil && was.host == h {
			continue
		}
		if was != nil {
			was.end()
		}
		x, err := p.connect(h)
		if err != nil {
			p.log.Error("cannot connect to a host", "host", h.Name, "error", err)
			continue
		}
		p.all[h.ID] = x
	}
}

func (p *peers) connect(h osdmap.Host) (*peer, error) {
	creds, err := p.files.Client(identity.Identity{Role: identity.Host, Name: h.Name})
	if err != nil {
		return nil, err
	}
	conn, err := grpcclient.New(grpcclient.Config{Target: h.Peer, Creds: creds, Own: p.own, MaxMessage: maxMessage, Dial: p.dial})
	if err != nil {
		return nil, err
	}
	x := &peer{host: h, conn: conn, rpc: replicav1.NewReplicasClient(conn), queue: make(chan message, maxQueue),
		reads: semaphore.NewWeighted(maxReading)}
	ctx, end := context.WithCancel(p.ctx)
	x.end = end
	p.wg.Go(func() {
		p.run(ctx, x)
		_ = conn.Close()
	})
	return x, nil
}

// close ends all connections.
func (p *peers) close() {
	p.mu.Lock()
	for _, x := range p.all {
		x.end()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *peers) get(id core.ID) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[id]
}

// id returns the number of the host that has a name.
func (p *peers) id(name string) (core.ID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, ok := p.byName[name]
	switch {
	case p.byName == nil:
		return 0, errStarting
	case !ok:
		return 0, fmt.Errorf("host %s: %w", name, errNoPeer)
	}
	return id, nil
}

// send sends a message, or drops it.
func (p *peers) send(m message) {
	if x := p.get(m.To.ID); x != nil {
		select {
		case x.queue <- m:
			return
		default:
		}
	}
	m.release()
}

// run sends queued messages. Those in flight when the stream ends are lost.
func (p *peers) run(ctx context.Context, x *peer) {
	var stream replicav1.Replicas_DeliverClient
	for {
		var m message
		select {
		case m = <-x.queue:
		case <-ctx.Done():
			return
		}
		out, err := m.encode()
		m.release()
		if err != nil {
			continue
		}
		if stream == nil {
			if stream, err = x.rpc.Deliver(ctx); err != nil {
				stream = nil
				continue
			}
		}
		if stream.Send(out) != nil {
			stream = nil
			continue
		}
		p.count(out)
	}
}

// count counts the bytes of logs and stores sent.
func (p *peers) count(m *replicav1.Message) {
	for _, e := range m.GetPush().GetEntries() {
		p.sentLog.Add(uint64(len(e)))
	}
	for _, c := range m.GetChunk().GetPieces() {
		p.sentStore.Add(uint64(len(c.GetData())))
	}
}
