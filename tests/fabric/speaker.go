package fabric

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/switchagent"
)

// A lasting speaker outlives the agents that use it one after the other, since
// GoBGP cannot open one while others in the process have sessions. An agent that
// closes it leaves a speaker without sessions and prefixes, which acts like
// none.
type lasting struct {
	*bgp.Source

	mu       sync.Mutex
	peers    map[netip.Addr]bool
	prefixes map[netip.Prefix]bool
}

func (l *lasting) open(context.Context, bgp.Config) (switchagent.Speaker, error) {
	return &lasting{Source: l.Source, peers: map[netip.Addr]bool{}, prefixes: map[netip.Prefix]bool{}}, nil
}

func (l *lasting) Announce(ctx context.Context, p netip.Prefix) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prefixes[p] = true
	return l.Source.Announce(ctx, p)
}

func (l *lasting) AddPeer(ctx context.Context, p bgp.Peer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers[p.Addr] = true
	return l.Source.AddPeer(ctx, p)
}

func (l *lasting) RemovePeer(ctx context.Context, a netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.peers, a)
	return l.Source.RemovePeer(ctx, a)
}

// Resume is for speakers in processes of their own.
func (l *lasting) Resume(ctx context.Context, peers []bgp.Peer) error {
	var errs []error
	for _, p := range peers {
		errs = append(errs, l.AddPeer(ctx, p))
	}
	return errors.Join(errs...)
}

// Suspend looks like Close to a peer that would wait: the speaker goes on.
func (l *lasting) Suspend() error { return l.Close() }

// Close leaves the speaker to the next agent.
func (l *lasting) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for a := range l.peers {
		errs = append(errs, l.Source.RemovePeer(context.Background(), a))
	}
	for p := range l.prefixes {
		errs = append(errs, l.Source.Withdraw(context.Background(), p))
	}
	return errors.Join(errs...)
}
