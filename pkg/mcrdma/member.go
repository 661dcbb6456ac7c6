package mcrdma

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/internal/unicast"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// MaxReceives is the maximum number of posted receives of a member.
const MaxReceives = 1024

// A Member is a receiver's place in a group. All methods may be called by any
// goroutine; Recv by one at a time, if the Grant has Replenish.
type Member struct {
	c        *Client
	id       GroupID
	listener *Listener
	events   *eventQueue
	ended    chan struct{}

	mu      sync.Mutex
	regions []granted   // nil: the application was not asked
	recvs   ring[Piece] // that wait for messages
	inbox   inbox[Received]
	have    uint64           // messages received in all formations
	sizes   [MaxDepth]uint32 // of the last ones, by number
	info    *mcrdmav1.FormationInfo
	writer  qp.QP // the queue pair that writes to the regions; nil: none
	life    memberLife
	working bool // a goroutine does what life.out has
	err     error

	replenish bool  // Grant.Replenish; then Recv, which one goroutine calls, has:
	back      bool  // lent is to be posted
	lent      Piece // what Recv has returned

	unicast *unicast.End  // nil: the application has not granted anything yet
	how     []byte        // the sender reaches it
	sends   chan struct{} // has a token for each Send under way

	unfenced error // of Close, once ended
}

// A granted is a region that the sender may write.
type granted struct {
	piece Piece
	mr    qp.MR // nil: there is no device
}

// An inbound receives the messages of one formation.
type inbound interface {
	// more says that there are more receives. m.mu is held.
	more()
	// run receives until ctx ends. When it returns, all that came is delivered.
	run(ctx context.Context)
}

// A Received is a received message.
type Received struct {
	// Piece is the posted receive; it belongs to the application again.
	Piece Piece
	// N is the number of bytes received: into Piece by a SEND, into a region by a WRITE.
	N      int
	Imm    uint32
	HasImm bool
	Kind   Kind // OpWriteImm, OpSend or OpSendImm
	// Unicast: the message arrived on the unicast connection, and used no posted receive. For a
	// SEND, Piece is the data, in memory that belongs to the application but is not registered.
	Unicast bool
}

// Bytes returns the data of a SEND; nil for a WRITE.
func (r *Received) Bytes() []byte {
	if r.Kind == OpWriteImm || r.N == 0 {
		return nil
	}
	return r.Piece.Bytes()[:r.N]
}

func (m *Member) ending() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life.err != nil
}

// PostRecv posts a receive; messages consume receives in the order of posting. The Piece belongs to
// the member until Recv returns it, or the member has ended. For WRITEs with immediate a zero Piece
// suffices. The error wraps ErrLimit if MaxReceives are posted, or ErrClosed.
func (m *Member) PostRecv(p Piece) error {
	if err := p.hold(m.c); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.err
	if err == nil && m.recvs.len() >= MaxReceives {
		err = fmt.Errorf("%w receives: %d are posted", ErrLimit, MaxReceives)
	}
	if err != nil {
		p.release()
		return err
	}
	m.recvs.push(p)
	if a := m.life.last; a != nil && a.path != nil {
		a.path.more()
	}
	return nil
}

// deliver hands a message to Recv, in the oldest receive. m.mu is held.
func (m *Member) deliver(r Received) {
	m.have++
	m.sizes[m.have%MaxDepth] = uint32(r.N)
	r.Piece = m.recvs.pop()
	m.inbox.put(r)
}

// Recv returns the next message: messages arrive in the sender's order, each once. When the group
// has ended, it returns the remaining messages, and then an error that wraps ErrClosed (the sender
// has closed it, or Close was called), ErrRemoved, ErrSenderLost, ErrInvalid (a message was longer
// than the receive), ErrDaemon or ErrFailed.
//
// With Grant.Replenish, it first posts again the receive that the previous call returned. If that
// fails, for example because its memory was closed, the error is PostRecv's, and the receive is
// lost.
func (m *Member) Recv(ctx context.Context) (Received, error) {
	if m.back {
		m.back = false
		if err := m.PostRecv(m.lent); err != nil && m.Err() == nil {
			return Received{}, err
		}
	}
	r, ok, err := m.inbox.wait(ctx, &m.mu, m.ended)
	switch {
	case !ok:
		return Received{}, cmp.Or(err, m.Err())
	case r.Unicast:
		m.unicast.Took()
	default:
		r.Piece.release()
		m.back, m.lent = m.replenish, r.Piece
	}
	return r, nil
}

// Region returns the bytes of a region, as granted, even after the member's end. They include all
// WRITEs that completed before the call; to see later WRITEs, call it again after they are known to
// be complete. It panics if there is no such region.
func (m *Member) Region(i int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.regions[i]
	if m.writer != nil {
		// This takes the lock under which the queue pair wrote, for Go's memory model.
		_, _ = m.writer.Query()
	}
	m.unicast.Sync()
	return g.piece.Bytes()
}

// Info returns the current state of the group, as far as a receiver knows it.
func (m *Member) Info() Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := infoOf(m.info)
	i.ID, i.Service, i.Stats.Strangers = m.id, m.listener.cfg.Service, m.c.port.strangers.Load()
	return i
}

// Events returns the channel of the member's events. If the application does not read them, the
// oldest are lost. The channel is closed after the last event, EventClosed or EventFailed.
func (m *Member) Events() <-chan Event { return m.events.c }

// Err returns the reason why the member has ended, or nil if it has not.
func (m *Member) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}
