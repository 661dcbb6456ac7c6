package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// brought has the sender's queue pair and listener for a formation, and later the formation's path.
type brought struct {
	endpoint
	path    outbound // nil: it is not connected
	phases  []Phase
	sent    uint64
	catchUp bool // hosts are to relay

	noDevice string // why
}

// bring makes a queue pair and a listener, as the group's mode requires. If receivers must catch
// up, hosts relay in any mode.
func (g *Group) bring(catchUp bool) (*brought, error) {
	began := time.Now()
	b := &brought{catchUp: catchUp, noDevice: g.c.noDeviceText()}
	g.mu.Lock()
	b.sent = g.life.queue.sent()
	g.mu.Unlock()
	var err error
	if g.c.dev != nil {
		b.queuePair, err = g.c.newQueuePair(g.cfg.Depth+maxNudges+1, qp.Init{MaxSendWR: g.cfg.Depth + maxNudges, MaxRecvWR: 1,
			MaxSGE: min(MaxPieces, g.c.dev.Attr().MaxSGE), Multicast: true}, 0)
		if err != nil {
			return nil, fmt.Errorf("make a queue pair: %w", closedOr(err))
		}
	}
	if g.cfg.Mode != ModeRequire || catchUp {
		if err = b.listen(g.c); err != nil {
			b.close()
			return nil, err
		}
	}
	b.phases = []Phase{{"qp", time.Since(began)}}
	return b, nil
}

func (b *brought) forming() *mcrdmav1.Forming {
	return &mcrdmav1.Forming{Sent: b.sent, CatchUp: b.catchUp, Qpn: b.qpn(), Bootstrap: b.bootstrap(), NoDevice: b.noDevice}
}

// close closes what the formation has not taken over. b may be nil.
func (b *brought) close() {
	if b == nil {
		return
	}
	if b.path != nil {
		_ = b.path.run(ended)
	}
	b.endpoint.close()
	*b = brought{}
}

// connect makes the formation's path out of b and the daemon's answer.
func (g *Group) connect(b *brought, info *mcrdmav1.FormationInfo) error {
	ctx, cancel := context.WithTimeout(g.ctx, joinWithin)
	defer cancel()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	g.step(func(l *life) {
		g.cut = cut
		l.overtaken()
	})
	began := time.Now()
	var path outbound
	var err error
	switch Path(info.GetPath()) {
	case PathSwitch:
		if b.qp == nil {
			err = errors.New("there is no device")
		} else if err = ready(b.qp, info.GetConnection()); err == nil {
			path, b.queuePair = &switched{queuePair: b.queuePair, g: g}, queuePair{}
		}
	case PathRelay:
		l := b.listener
		b.listener = nil
		path, err = g.relay(ctx, l, info)
	default:
		err = fmt.Errorf("%w: path %v", ErrDaemon, info.GetPath())
	}
	if why, ok := errors.AsType[*formationError](context.Cause(ctx)); ok && err != nil {
		err = why // no member is suspected of not having come
	}
	if err != nil {
		return fmt.Errorf("connect by %v: %w", Path(info.GetPath()), err)
	}
	phases := append(b.phases, Phase{"connect", time.Since(began)})
	b.close() // of the unused path
	b.path, b.phases = path, phases
	return nil
}
