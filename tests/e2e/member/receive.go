package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// A replica is what this application has received in a group.
type replica struct {
	id      string
	regions []*mcrdma.Memory
	places  *mcrdma.Memory // where SENDs go

	mu       sync.Mutex
	member   *mcrdma.Member // nil: not formed yet
	messages messages
	more     chan struct{} // closed, and replaced, when something has arrived
	ended    string
}

// messages has all two-sided messages so far, as sender and receivers see them.
type messages struct {
	count int
	hash  hash.Hash
}

func newMessages() messages { return messages{hash: sha256.New()} }

func (m *messages) add(kind mcrdma.Kind, n int, imm uint32, payload ...[]byte) {
	var h [13]byte
	h[0] = byte(kind)
	binary.BigEndian.PutUint64(h[1:], uint64(n))
	binary.BigEndian.PutUint32(h[9:], imm)
	m.hash.Write(h[:])
	for _, p := range payload {
		m.hash.Write(p)
	}
	m.count++
}

func (m *messages) sum() string { return hex.EncodeToString(m.hash.Sum(nil)) }

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func (a *app) listen(args orders.ListenArgs) (any, error) {
	c, err := a.session()
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(0, 10*time.Second)
	defer cancel()
	l, err := c.Listen(ctx, mcrdma.ListenConfig{Service: args.Service, Accept: func(r *mcrdma.Request) (*mcrdma.Grant, error) {
		time.Sleep(time.Duration(args.Stall) * time.Millisecond) // simulates a slow policy
		if args.Refuse != "" {
			return nil, errors.New(args.Refuse)
		}
		return a.grant(c, &args, r)
	}})
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.listeners[args.Service] = l
	a.mu.Unlock()
	go a.accept(l)
	return nil, nil
}

// grant allocates memory for a group.
func (a *app) grant(c *mcrdma.Client, args *orders.ListenArgs, r *mcrdma.Request) (*mcrdma.Grant, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	rep := a.replicas[r.Group.String()]
	if rep == nil {
		rep = &replica{id: r.Group.String(), messages: newMessages(), more: make(chan struct{})}
		for _, x := range r.Regions {
			m, err := c.Alloc(max(1, int(x.Length)-args.Small))
			if err != nil {
				return nil, err
			}
			rep.regions = append(rep.regions, m)
		}
		if n := args.Receives * args.ReceiveSize; n > 0 {
			var err error
			if rep.places, err = c.Alloc(n); err != nil {
				return nil, err
			}
		}
		a.replicas[rep.id] = rep
	}
	g := &mcrdma.Grant{}
	for _, m := range rep.regions {
		g.Regions = append(g.Regions, m.All())
	}
	for i := range args.Receives {
		if rep.places == nil {
			g.Receives = append(g.Receives, mcrdma.Piece{})
		} else {
			g.Receives = append(g.Receives, rep.places.Slice(i*args.ReceiveSize, args.ReceiveSize))
		}
	}
	return g, nil
}

// accept takes members until the listener is closed.
func (a *app) accept(l *mcrdma.Listener) {
	for {
		m, err := l.Accept(context.Background())
		if err != nil {
			a.log.Info("no more members", "error", err)
			return
		}
		a.mu.Lock()
		r := a.replicas[m.Info().ID.String()]
		a.mu.Unlock()
		if r == nil {
			a.log.Error("a member of a group without a request to join it", "group", m.Info().ID)
			continue
		}
		r.mu.Lock()
		r.member = m
		r.mu.Unlock()
		r.woken()
		go r.receive(m)
	}
}

// receive takes messages until the membership has ended.
func (r *replica) receive(m *mcrdma.Member) {
	for {
		x, err := m.Recv(context.Background())
		r.mu.Lock()
		if err != nil {
			r.ended = err.Error()
		} else {
			r.messages.add(x.Kind, x.N, x.Imm, x.Bytes())
		}
		r.mu.Unlock()
		if err == nil {
			err = m.PostRecv(x.Piece)
			if err != nil && !errors.Is(err, mcrdma.ErrClosed) {
				r.mu.Lock()
				r.ended = err.Error()
				r.mu.Unlock()
			}
			err = nil
		}
		r.woken()
		if r.over() {
			return
		}
	}
}

func (r *replica) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended != ""
}

func (r *replica) woken() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.more)
	r.more = make(chan struct{})
}

func (a *app) replica(args orders.ReplicaArgs) (info orders.ReplicaInfo, err error) {
	ctx, cancel := within(args.Millis, 10*time.Second)
	defer cancel()
	a.mu.Lock()
	r := a.replicas[args.Group]
	a.mu.Unlock()
	if r == nil {
		return info, fmt.Errorf("no group %s", args.Group)
	}
	for {
		r.mu.Lock()
		count, more := r.messages.count, r.more
		info = orders.ReplicaInfo{Messages: r.messages.sum(), Count: count, Open: r.member != nil && r.ended == "", Ended: r.ended}
		r.mu.Unlock()
		if count >= args.Count {
			break
		}
		select {
		case <-more:
		case <-ctx.Done():
			return info, fmt.Errorf("%d of %d messages have come; ended: %q", count, args.Count, info.Ended)
		}
	}
	for _, m := range r.regions {
		info.Regions = append(info.Regions, digest(m.Bytes()))
	}
	return info, nil
}

func (a *app) unlisten(args orders.Name) (any, error) {
	a.mu.Lock()
	l := a.listeners[args.Name]
	delete(a.listeners, args.Name)
	a.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("no service %s", args.Name)
	}
	return nil, l.Close()
}

func (a *app) leave(args orders.Name) (any, error) {
	a.mu.Lock()
	r := a.replicas[args.Name]
	a.mu.Unlock()
	if r == nil {
		return nil, fmt.Errorf("no group %s", args.Name)
	}
	r.mu.Lock()
	m := r.member
	r.mu.Unlock()
	if m == nil {
		return nil, fmt.Errorf("group %s has not been formed", args.Name)
	}
	return nil, m.Close()
}
