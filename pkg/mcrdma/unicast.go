package mcrdma

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/internal/unicast"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// Counters is the number of counters of a member, 8: see Member.SetCounter.
const Counters = unicast.Counters

// MaxUnicastMessage is the maximum size in bytes of a message to one member, or from a member to
// its sender: 8 KiB.
const MaxUnicastMessage = unicast.MaxMessage

// A Unicast is the connection of a group's sender with one member, for operations to that member
// alone, and for its messages and counters. It lasts as long as the membership, on any path of the
// group. The first call of Group.Unicast connects; a lost connection is made again. All methods may
// be called by any goroutine.
type Unicast struct {
	poster
	g      *Group
	peer   Peer
	how    []byte // as the member has answered
	end    *unicast.End
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	number uint64
	inbox  inbox[Received]
}

// Unicast returns the connection with a member, given by its address or its host's name. It does
// not wait: operations wait for the connection, and fail if it cannot be made. The error wraps
// ErrInvalid if there is no such member, ErrVersion if a daemon's release has no unicast
// connections, or the reason why the group has ended.
func (g *Group) Unicast(member string) (*Unicast, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.life.state >= closing {
		return nil, g.life.err
	}
	for _, m := range g.life.members {
		if m.GetAddress() != member && m.GetHost() != member {
			continue
		}
		if u := g.unicasts[m.GetAddress()]; u != nil {
			return u, nil
		}
		if len(m.GetUnicast()) <= len(unicast.Secret{}) {
			return nil, newError(mcrdmav1.Reason_VERSION, "%s, its daemon or this host's is of a release that knows no unicast connections", member)
		}
		return g.newUnicast(m), nil
	}
	return nil, fmt.Errorf("%w: %q is no member of the group", ErrInvalid, member)
}

// newUnicast starts a connection. g.mu is held.
func (g *Group) newUnicast(m *mcrdmav1.Member) *Unicast {
	c := g.c
	cfg := unicast.Config{Device: c.dev, PD: c.pd, Window: g.cfg.Depth, SGEs: c.maxPieces, Timeout: timeoutOf(g.life.info.GetConnection())}
	if c.dev != nil {
		cfg.Window = min(cfg.Window, c.dev.Attr().MaxQPWR-1)
	}
	for _, r := range g.cfg.Regions {
		cfg.Lengths = append(cfg.Lengths, r.Length)
	}
	u := &Unicast{g: g, peer: marked([]Peer{peerOf(m)}, g.life.from)[0], how: m.GetUnicast(), inbox: newInbox[Received]()}
	cfg.Deliver = u.deliver
	u.end = unicast.NewEnd(cfg)
	u.poster = poster{c: c, to: u, regions: g.cfg.Regions, room: make(chan struct{}, g.cfg.Depth), over: u.end.Closed()}
	u.ctx, u.cancel = context.WithCancel(c.ctx)
	if g.unicasts == nil {
		g.unicasts = map[string]*Unicast{}
	}
	g.unicasts[m.GetAddress()] = u
	c.wg.Go(u.run)
	return u
}

// endUnicasts ends the connections with receivers that are no longer members, or have joined again.
// g.mu is held.
func (g *Group) endUnicasts() {
	for address, u := range g.unicasts {
		stays := false
		for _, m := range g.life.members {
			stays = stays || m.GetAddress() == address && bytes.Equal(m.GetUnicast(), u.how)
		}
		if !stays {
			delete(g.unicasts, address)
			g.c.wg.Go(func() { u.stop(fmt.Errorf("%w: receiver %s", ErrRemoved, address)) })
		}
	}
}

// run connects, and reconnects until the membership ends.
func (u *Unicast) run() {
	const first, longest = 10 * time.Millisecond, time.Second
	for pause := first; u.ctx.Err() == nil; pause = min(2*pause, longest) {
		begun := time.Now()
		err := u.dial()
		if time.Since(begun) > longest {
			pause = first
		}
		if errors.Is(err, unicast.ErrPeer) {
			u.g.tally.violations.Add(1)
		}
		u.c.opt.Logger.Info("no unicast connection", "group", u.groupID(), "member", u.peer.Address, "error", err)
		select {
		case <-u.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// dial connects, and returns when the connection has ended. If it fails, waiting operations fail.
func (u *Unicast) dial() error {
	var secret unicast.Secret
	addr, err := netip.ParseAddr(u.peer.Address)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrDaemon, err)
	}
	var conn net.Conn
	if err == nil {
		ctx, cancel := context.WithTimeout(u.ctx, joinWithin)
		defer cancel()
		conn, err = u.c.opt.Dial(ctx, "tcp", string(u.how[copy(secret[:], u.how):]))
	}
	if err != nil {
		u.end.Fail(err)
		return err
	}
	return u.end.Dial(u.ctx, conn, addr, secret)
}

// stop ends the connection, and returns when no operation is in flight.
func (u *Unicast) stop(why error) {
	u.end.Close(u.groupID().about(why))
	u.cancel()
}

func (u *Unicast) groupID() GroupID { return u.g.id }

// Peer returns the member.
func (u *Unicast) Peer() Peer { return u.peer }

// Err returns the reason why the connection has ended: the member was removed (ErrRemoved), or the
// group has ended. It returns nil before that.
func (u *Unicast) Err() error { return u.end.Err() }

// Write writes the pieces, one after another, into a region of the member, and returns when it has
// them. Operations of one Unicast take effect and complete in the order of their submission; there
// is no order between them and the group's. If the connection is lost, the error wraps
// ErrUnreachable, and the operation may have taken effect, a WRITE partly. If ctx ends first, the
// operation goes on, as in Group.Write.
func (u *Unicast) Write(ctx context.Context, at At, pieces ...Piece) error {
	return u.do(ctx, Op{Kind: OpWrite, At: at}, pieces)
}

// WriteImm is Write, and the member gets a message with imm from Recv.
func (u *Unicast) WriteImm(ctx context.Context, at At, imm uint32, pieces ...Piece) error {
	return u.do(ctx, Op{Kind: OpWriteImm, At: at, Imm: imm}, pieces)
}

// Send sends the pieces as one message of at most MaxUnicastMessage bytes, which the member's Recv
// returns. The member's library buffers 9 to 16 messages that its application has not received; a
// further one waits, and so do operations submitted after it.
func (u *Unicast) Send(ctx context.Context, pieces ...Piece) error {
	return u.do(ctx, Op{Kind: OpSend}, pieces)
}

// SendImm is Send with immediate data.
func (u *Unicast) SendImm(ctx context.Context, imm uint32, pieces ...Piece) error {
	return u.do(ctx, Op{Kind: OpSendImm, Imm: imm}, pieces)
}

// Read fills the pieces from a region of the member, with the bytes that it has at some moment
// before Read returns. Concurrent changes by the member or an operation may be included in part.
func (u *Unicast) Read(ctx context.Context, at At, pieces ...Piece) error {
	return u.do(ctx, Op{Kind: OpRead, At: at}, pieces)
}

// Post is Group.Post, to this member.
func (u *Unicast) Post(ctx context.Context, op Op) (*Pending, error) {
	return u.begin(ctx, op, op.Pieces)
}

// Submit is Group.Submit, to this member: Op.Number counts the operations of this Unicast, and
// Op.View is not set. Done may run concurrently with Done of the group's operations.
func (u *Unicast) Submit(ctx context.Context, op *Op) error {
	if err := u.admit(ctx, op, OpRead); err != nil {
		return err
	}
	x := &unicast.Op{Kind: qp.Opcode(op.Kind), Deferred: op.Deferred, Imm: op.Imm, Region: op.At.Region, Offset: op.At.Offset, Bufs: make([]unicast.Buf, 0, len(op.Pieces))}
	if !op.Kind.hasImm() {
		x.Imm = 0
	}
	for _, p := range op.Pieces {
		if p.n > 0 {
			x.Bufs = append(x.Bufs, p.buf())
		}
	}
	x.Done = func(err error) {
		u.letGo(op)
		op.Err = u.explain(err)
		op.Done(op)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	op.Number = u.number
	if err := u.end.Submit(x); err != nil {
		u.letGo(op)
		return err
	}
	u.number++
	return nil
}

// explain turns the end's error into one of this package.
func (u *Unicast) explain(err error) error {
	if err == nil {
		return nil
	}
	if why := u.Err(); why != nil {
		return why
	}
	e := newError(mcrdmav1.Reason_UNREACHABLE, "member %s: %v", u.peer.Address, err)
	e.Host, e.Group, e.under = u.peer.Host, u.groupID(), err
	return e
}

func (u *Unicast) deliver(m unicast.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.inbox.put(unicastReceived(m))
}

// unicastReceived makes a Received of a message. Its bytes are not registered memory.
func unicastReceived(m unicast.Message) Received {
	r := Received{N: m.N, Imm: m.Imm, Kind: Kind(m.Kind), HasImm: Kind(m.Kind).hasImm(), Unicast: true}
	if len(m.Data) > 0 {
		r.Piece = Piece{&Memory{buf: m.Data, closed: true}, 0, len(m.Data)}
	}
	return r
}

// Recv returns the member's next message (Member.Send). If the connection is lost, messages of the
// member may be lost, and its Send returns an error. After the remaining messages, the error is
// that of Err, or ctx's.
func (u *Unicast) Recv(ctx context.Context) (Received, error) {
	r, ok, err := u.inbox.wait(ctx, &u.mu, u.end.Closed())
	if !ok {
		return Received{}, cmp.Or(err, u.Err())
	}
	u.end.Took()
	return r, nil
}

// Counter returns the latest known value of one of the member's counters, even after the member's
// end; 0 if the member has not set it since it joined. It panics if there is no such counter.
func (u *Unicast) Counter(i int) uint64 {
	counters, _ := u.end.Peer()
	return counters[i]
}

// WaitCounter waits until one of the member's counters is at least atLeast. The error wraps
// ErrInvalid if there is no such counter, or is that of Err, or ctx's. A lost connection is no
// error: WaitCounter waits for the next one.
func (u *Unicast) WaitCounter(ctx context.Context, i int, atLeast uint64) error {
	if i < 0 || i >= Counters {
		return errCounter(i)
	}
	for {
		counters, changed := u.end.Peer()
		if counters[i] >= atLeast {
			return nil
		}
		select {
		case <-changed:
		case <-u.end.Closed(): // what came just before counts
			if counters, _ = u.end.Peer(); counters[i] >= atLeast {
				return nil
			}
			return u.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func errCounter(i int) error { return fmt.Errorf("%w: counter %d of %d", ErrInvalid, i, Counters) }
