package rdmcfallback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/engine"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

const (
	// accepted is the maximum number of messages that the root has accepted and that are not
	// complete at the root.
	accepted = 64
	// incomingMax is the maximum size of messages that are received without Incoming.
	incomingMax = 1 << 30
)

// A Config configures a group and identifies this member. Members, Algorithm, Racks, BlockSize and
// SmallMax must be the same at all members.
type Config struct {
	// Members are the members' names, all different. The first is the root.
	Members []string
	// Self is this member's index in Members.
	Self int
	// Algorithm relays messages; the zero value is the binomial pipeline.
	Algorithm schedule.Algorithm
	// Racks is the rack of each member. Only Hybrid uses it, and needs it.
	Racks []int
	// BlockSize is the size of blocks in bytes, at most 1 GiB. 0 means the transport's value, if it
	// has Defaults, and otherwise 1 MiB.
	BlockSize int
	// SmallMax is the maximum size of small messages, in bytes. At a receiver, these are complete
	// before Incoming is called for the next message. They go directly from the root to each
	// receiver if the transport has a Ring and there are at most 16 receivers. 0 means 10 KiB; with
	// a negative number, no message is small. The ring takes the memory of 32 such messages at each
	// receiver, and with some transports as much at the root for each receiver.
	SmallMax int
	// Ahead allows up to 3 more blocks in flight in each direction. That is faster if processors
	// are the bottleneck, as on one machine, and slower if links are, because blocks then compete
	// for them. Members may differ in it. 0 means the transport's value, if it has Defaults, and
	// otherwise none; a negative number means none.
	Ahead int
	// Have is how many messages of a former group this member has; all members can read it with
	// Group.Have.
	Have int64
	// Incoming is called at a receiver when a message begins, and returns its memory: at least size
	// bytes, which belong to the group until Complete, or until the group is Done. Earlier messages
	// may not be complete yet, except small ones (see SmallMax): so a small message sent before a
	// large one can say where the large one belongs. An error fails the group for all members. If
	// Incoming is nil, messages of up to 1 GiB are received into new memory.
	Incoming func(size int64) ([]byte, error)
	// Complete, if not nil, is called when a message is complete at this member, in the order of
	// messages: at a receiver, when it has been received and relayed; at the root, when it has been
	// sent. Its memory belongs to the application again. Other members may not have it yet; see
	// Everywhere and Group.Close.
	Complete func(msg []byte)
	// Everywhere, if not nil, is called at the root when more messages than before are complete at
	// all members: the first n in the order of Send. Each receiver then sends the root a small
	// message for each message, or for several that complete at once. Close returns nil only after
	// the call with the number of all messages. Only the root's Everywhere is used.
	//
	// Incoming, Complete and Everywhere are called from the group's goroutine, which does nothing
	// else meanwhile. They must not call Send or Close.
	Everywhere func(n int64)
}

// The errors of this package, and what a FailedError's Reason wraps; package
// engine describes them.
var (
	ErrMismatch = engine.ErrMismatch
	ErrLost     = engine.ErrLost
	ErrProtocol = engine.ErrProtocol
	ErrRefused  = engine.ErrRefused
	ErrLeft     = engine.ErrLeft
	ErrConfig   = engine.ErrConfig
	ErrNotRoot  = engine.ErrNotRoot
	ErrSize     = engine.ErrSize
	ErrClosed   = engine.ErrClosed
)

// A FailedError says that a group has failed, which member is suspected, why, and how many messages
// are complete at this member.
type FailedError = engine.FailedError

// A Group is one member's end of a group. Use Join, and always Close. All methods may be called
// from any goroutine.
type Group struct {
	cfg       Config
	transport Transport
	ring      Ring
	engine    *engine.Engine // used by the loop only, except CanSend, and Have once joined
	spare     []byte
	small     [][]byte         // used by the loop only: the content of the ring
	messages  [accepted][]byte // used by the loop only: incomplete messages, by number
	joined    chan struct{}
	done      chan struct{} // closed when no memory is used any more
	gone      chan struct{} // closed when the transport is closed
	room      chan struct{} // has a token for each message that Send has accepted and that is not complete here

	mu      sync.Mutex
	pending [][]byte // messages that the loop has not taken from Send yet
	closing bool
	leaving error
	poked   bool
	waiting context.Context // context of the call of Events that wake interrupts
	wake    context.CancelFunc
	err     error // valid when done is closed
}

// Join forms the group together with the other members, which call it concurrently. It returns when
// all of them have joined and agree, or when ctx ends. The transport belongs to the group from now
// on, and is closed with it, even if Join returns an error. The error wraps ErrConfig if the
// configuration is invalid, or is a FailedError: for example one that wraps ErrMismatch, at every
// member, if two of them differ.
func Join(ctx context.Context, cfg Config, t Transport) (*Group, error) {
	if self, members := t.Rank(); self != cfg.Self || members != len(cfg.Members) {
		return nil, errors.Join(fmt.Errorf("%w: this is member %d of %d, and the transport is that of member %d of %d",
			ErrConfig, cfg.Self, len(cfg.Members), self, members), t.Close())
	}
	if d, ok := t.(Defaults); ok {
		block, ahead := d.Defaults()
		cfg.BlockSize, cfg.Ahead = cmp.Or(cfg.BlockSize, block), cmp.Or(cfg.Ahead, ahead)
	}
	cfg.SmallMax, cfg.Ahead = max(0, cmp.Or(cfg.SmallMax, smallMax)), max(0, cfg.Ahead)
	ring, small := ringOf(&cfg, t)
	e, err := engine.New(engine.Config{
		Members: cfg.Members, Self: cfg.Self, Algorithm: cfg.Algorithm, Racks: cfg.Racks, BlockSize: cfg.BlockSize,
		SmallMax: small, Prompt: cfg.SmallMax, Ahead: cfg.Ahead, Have: cfg.Have, Everywhere: cfg.Everywhere != nil,
	})
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	if small > 0 {
		if err := ring.OpenRing(engine.SmallSlots, small); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	if cfg.Incoming == nil {
		cfg.Incoming = fresh
	}
	if cfg.Complete == nil {
		cfg.Complete = func([]byte) {}
	}
	g := &Group{
		cfg: cfg, transport: t, ring: ring, engine: e,
		joined: make(chan struct{}), done: make(chan struct{}), gone: make(chan struct{}), room: make(chan struct{}, accepted),
	}
	if cfg.Self != 0 {
		g.spare = make([]byte, e.BlockSize())
	}
	go g.loop()
	select {
	case <-g.joined:
		return g, nil
	case <-g.gone:
	case <-ctx.Done():
		g.leave(ctx)
		<-g.gone
	}
	if g.err == nil {
		// It joined and ended cleanly meanwhile.
		return g, nil
	}
	return nil, g.err
}

// ringOf returns the transport's ring, and the maximum size of messages that use it; 0 if none do.
func ringOf(cfg *Config, t Transport) (Ring, int) {
	ring, ok := t.(Ring)
	if n := len(cfg.Members); !ok || n < 2 || n > smallMembers {
		return nil, 0
	}
	return ring, cfg.SmallMax
}

// fresh is the default of Incoming.
func fresh(size int64) ([]byte, error) {
	if size > incomingMax {
		return nil, fmt.Errorf("messages of more than %d bytes need Config.Incoming", incomingMax)
	}
	return make([]byte, size), nil
}

// Have returns how many messages of a former group a member has, according to its own Config.Have:
// the root resends the rest.
func (g *Group) Have(member int) int64 { return g.engine.Have(member) }

// Send makes msg the group's next message. Only the root may call it. It returns when the message
// has its place in the order; msg belongs to the group, which only reads it, until Complete is
// called with it or the group is Done. If many messages are incomplete, Send waits. The error wraps
// ErrNotRoot, ErrSize or ErrClosed, is ctx's, or is the FailedError of a group that has failed.
func (g *Group) Send(ctx context.Context, msg []byte) error {
	if err := g.engine.CanSend(int64(len(msg))); err != nil {
		return err
	}
	select {
	case g.room <- struct{}{}:
	case <-g.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.done:
		if g.err != nil {
			return g.err
		}
	default:
		if !g.closing && g.leaving == nil {
			g.pending = append(g.pending, msg)
			g.poke()
			return nil
		}
		<-g.room
	}
	return fmt.Errorf("%w: nothing can be sent", ErrClosed)
}

// Close ends the group. It returns nil if every member has every message, and otherwise a
// FailedError. At the root, Close ends the sequence of messages; other members wait for that. If
// ctx ends before the group does, this member leaves, which fails the group. Close waits up to 2 s
// for members that do not read why the group has failed; Done does not. Close may be called again,
// and returns the same result.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closing = true
	g.poke()
	g.mu.Unlock()
	select {
	case <-g.gone:
	case <-ctx.Done():
		g.leave(ctx)
		<-g.gone
	}
	return g.err
}

// Done is closed when the group has ended and uses no memory any more. Messages for which Complete
// has not been called by then are lost.
func (g *Group) Done() <-chan struct{} { return g.done }

// Err returns nil until the group is Done, and then the result of Close.
func (g *Group) Err() error {
	select {
	case <-g.done:
		return g.err
	default:
		return nil
	}
}

func (g *Group) leave(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaving = context.Cause(ctx)
	g.poke()
}

// poke makes the loop check for requests. g.mu is held.
func (g *Group) poke() {
	g.poked = true
	if g.wake != nil {
		g.wake()
	}
}
