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
	// accepted limits how many messages the root may have accepted that aren't complete
	// there.
	accepted = 64
	// incomingMax is the size of messages that are received without Incoming.
	incomingMax = 1 << 30
)

// A Config describes a group and which member this is. Members, Algorithm, Racks, BlockSize
// and SmallMax must be the same at all members.
type Config struct {
	// Members are the members' names, different from each other. The first is
	// the root.
	Members []string
	// Self is this member's index in Members.
	Self int
	// Algorithm is how messages are relayed; the zero value is the binomial
	// pipeline.
	Algorithm schedule.Algorithm
	// Racks says for each member in which rack it is. Hybrid needs it, other algorithms
	// don't use it.
	Racks []int
	// BlockSize is the size of blocks in bytes, at most 1 GiB. 0 means what suits the
	// transport, if it has Defaults, and otherwise 1 MiB.
	BlockSize int
	// SmallMax is the size, in bytes, up to which messages are small. At a receiver, they
	// are complete before Incoming is called for the next message. They go directly from
	// the root to each receiver, if the transport has a Ring and there are at most 16
	// receivers. 0 means 10 KiB; with a negative number, no message is small. The ring
	// takes the memory of 32 such messages at each receiver, and with some transports as
	// much at the root for each receiver.
	SmallMax int
	// Ahead lets up to 3 more blocks be under way at a time in each direction. That is
	// faster where processors are the bottleneck, as on one machine, and slower where links
	// are, because blocks then compete for them. Members may differ in it. 0 means what
	// suits the transport, if it has Defaults, and otherwise none; a negative number means
	// none.
	Ahead int
	// Have is how many messages of a former group this member has; all members learn it by
	// Group.Have.
	Have int64
	// Incoming is called at a receiver when a message begins, and returns where it is to
	// go: at least size bytes, which belong to the group until Complete, or until the group
	// is Done. Messages before this one may not be complete yet, but small ones are (see
	// SmallMax): what the root sends as a small message before a large one can say where
	// the large one belongs. An error fails the group for all members. If Incoming is nil,
	// messages of up to 1 GiB are received into fresh memory.
	Incoming func(size int64) ([]byte, error)
	// Complete, if not nil, is called when a message is complete at this member,
	// in the messages' order: at a receiver, when it has come and was relayed, at
	// the root, when it was sent. Its memory belongs to the application again.
	// Others may still lack it; see Everywhere and Group.Close.
	Complete func(msg []byte)
	// Everywhere, if not nil, is called at the root when more messages than before
	// are complete at all members: n of them, those numbered 0 to n-1 in the order
	// of Send. It costs each receiver a small message to the root for each message,
	// or for several that are complete at once. Close returns nil only after the
	// call with the number of all messages. Other members' Everywhere is not used.
	//
	// Incoming, Complete and Everywhere are called from one goroutine, the group's,
	// which does nothing else meanwhile. They must not call Send or Close.
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

// A FailedError says that a group has failed, which member is suspected, why, and how many
// messages are complete at this member.
type FailedError = engine.FailedError

// A Group is one member's end of a group. Use Join, and Close in any case. All
// methods may be called from any goroutine.
type Group struct {
	cfg       Config
	transport Transport
	ring      Ring
	engine    *engine.Engine // the loop's, but for CanSend, and Have once joined
	spare     []byte
	small     [][]byte         // the loop's: what is in the ring
	messages  [accepted][]byte // the loop's: what isn't complete, by number
	joined    chan struct{}
	done      chan struct{}
	room      chan struct{} // has a token for each message that Send has taken and that is not complete here

	mu      sync.Mutex
	pending [][]byte // messages that the loop has not yet taken from Send
	closing bool
	leaving error
	poked   bool
	waiting context.Context // of the call of Events that wake ends
	wake    context.CancelFunc
	err     error // valid when done is closed
}

// Join makes the group together with the other members, which do the same
// concurrently, and returns when all of them are there and agree, or when ctx
// ends. The transport belongs to the group from now on, and is closed with it,
// even if Join returns an error. That wraps ErrConfig if the configuration is
// impossible, or is a FailedError: for example one that wraps ErrMismatch, at
// every member, if two of them differ.
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
		joined: make(chan struct{}), done: make(chan struct{}), room: make(chan struct{}, accepted),
	}
	if cfg.Self != 0 {
		g.spare = make([]byte, e.BlockSize())
	}
	go g.loop()
	select {
	case <-g.joined:
		return g, nil
	case <-g.done:
	case <-ctx.Done():
		g.leave(ctx)
		<-g.done
	}
	if g.err == nil {
		// Joined and cleanly ended in between.
		return g, nil
	}
	return nil, g.err
}

// ringOf returns the transport's ring, and the size up to which messages use it; 0 if none
// do.
func ringOf(cfg *Config, t Transport) (Ring, int) {
	ring, ok := t.(Ring)
	if n := len(cfg.Members); !ok || n < 2 || n > smallMembers {
		return nil, 0
	}
	return ring, cfg.SmallMax
}

// fresh is Incoming if there is none.
func fresh(size int64) ([]byte, error) {
	if size > incomingMax {
		return nil, fmt.Errorf("messages of more than %d bytes need Config.Incoming", incomingMax)
	}
	return make([]byte, size), nil
}

// Have returns how many messages of a former group a member has, by its own
// Config.Have: the root sends the rest again.
func (g *Group) Have(member int) int64 { return g.engine.Have(member) }

// Send makes msg the group's next message. Only the root may. It returns when the
// message has its place in the order; msg belongs to the group, which only reads
// it, until Complete is called with it or the group is Done. If many messages
// are under way, Send waits. The error wraps ErrNotRoot, ErrSize or ErrClosed, is
// ctx's, or is the FailedError of a group that has failed.
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

// Close ends the group and returns nil if every member has every message, and otherwise a
// FailedError. At the root, Close ends the messages; other members wait for that. When ctx
// ends before the group does, this member leaves, which fails the group. Close may be
// called again, and returns the same.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closing = true
	g.poke()
	g.mu.Unlock()
	select {
	case <-g.done:
	case <-ctx.Done():
		g.leave(ctx)
		<-g.done
	}
	return g.err
}

// Done is closed when the group has ended and uses no memory any more, but that
// of messages whose Complete hasn't been called, which are lost.
func (g *Group) Done() <-chan struct{} { return g.done }

// Err returns nil until the group is Done, and then what Close returns.
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
