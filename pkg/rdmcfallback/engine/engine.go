package engine

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

const (
	// Window is the maximum number of messages that a member works on at a time. Their numbers are
	// consecutive.
	Window = 4
	// Spare stands for the spare block, as the message of a Span.
	Spare = -1

	// maxAhead bounds Config.Ahead.
	maxAhead = 3
	// samePeer is the maximum number of concurrent transfers in one direction if they are all with
	// one peer.
	samePeer = 2
	// maxCredits limits how many blocks a peer may announce to be ready for.
	maxCredits = 64

	defaultBlockSize = 1 << 20
	maxBlockSize     = 1 << 30
)

// A Config configures a group and identifies this member.
type Config struct {
	// Members are the members' names. The first is the root. All members must have the same names
	// in the same order.
	Members []string
	// Self is this member's index in Members.
	Self int
	// Algorithm is how messages are relayed. Hybrid needs Racks.
	Algorithm schedule.Algorithm
	// Racks is the rack of each member.
	Racks []int
	// BlockSize is the size of blocks in bytes, at most 1 GiB; 0 means 1 MiB.
	BlockSize int
	// Ahead allows up to 3 more concurrent transfers than one in each direction (two if they are
	// with the same peer): receives are posted, and blocks sent, that many steps ahead. If links
	// are the bottleneck this is slower, because blocks then compete for links and members get out
	// of step; if processors are, it is faster, because members wait less for each other. Members
	// may differ in it.
	Ahead int
	// SmallMax is the maximum size of messages that go through the ring; 0 if there is none. It
	// must be the same at all members.
	SmallMax int
	// Prompt is the maximum size of messages that are complete, at a receiver, before the next one
	// is opened; at least SmallMax. Members may differ in it.
	Prompt int
	// Have is how many messages of a former group the member has. All others learn it, so that the
	// application knows what to resend.
	Have int64
	// Everywhere enables the action of this name. Only the root's setting is used.
	Everywhere bool
}

// An ActionKind is the kind of an action.
type ActionKind uint8

// Kinds of actions.
const (
	// PostRecv: post Span for the next block from Peer.
	PostRecv ActionKind = iota + 1
	// SendBlock: send the block in Span to Peer, with Imm.
	SendBlock
	// Tell: send Msg to Peer as a control message.
	Tell
	// Joined: the group is complete, Send may be called.
	Joined
	// Open: ask the application for the memory of message Span.Message, of Size bytes, and then
	// call Provide or Refuse.
	Open
	// PutSmall: put the small message in Span, with Imm, into the ring of Peer.
	PutSmall
	// CopySmall: copy the oldest small message in this member's ring to Span.
	CopySmall
	// FreeSmall: free the Size oldest slots of this member's ring.
	FreeSmall
	// Copy: copy the first bytes of the spare block to Span.
	Copy
	// Complete: message Span.Message is complete here, and its memory belongs to the application
	// again.
	Complete
	// Everywhere, at the root: the first Size messages, more than before, are complete at all
	// members.
	Everywhere
	// Closed: the group has ended, and all members have all messages.
	Closed
	// Failed: the group has ended otherwise; see Failure.
	Failed
)

// A Span is the position of a block in a message, or the spare block.
type Span struct {
	Message int64
	Off     int64
	Len     int
}

// An Action is something that the owner must do.
type Action struct {
	Kind ActionKind
	Peer int
	Imm  uint32
	Span Span
	Size int64
	// Msg is valid until the next call of Next.
	Msg []byte
}

type phase uint8

const (
	joining phase = iota
	open
	closed
	failed
)

// A transfer is a block in transit to or from a peer.
type transfer struct {
	peer   int
	number int64 // Spare, or the message's
	block  int64
}

// spare is the state of the spare block.
type spare uint8

const (
	spareFree    spare = iota
	sparePosted        // the first sender may fill it
	spareArrived       // it holds a block of the next message, whose size isn't known yet
	spareBegun         // it holds a block of the newest message, until its memory is provided
)

// A tell is a control message to be sent to a peer.
type tell struct {
	peer int
	msg  []byte
}

// An Engine is one member's state machine. Use New. Only one goroutine at a time may call its
// methods.
type Engine struct {
	cfg       Config
	nodes     int
	racks     *schedule.Racks
	minBlocks int64
	first     int // member that sends this one the first block of each message

	phase    phase
	reported bool // Closed or Failed was returned
	failure  *FailedError
	tells    []tell

	greetings
	messages
	transfers
	spareBlock
	announcements
	smallRing
	ending
	tally tally
}

// greetings are what the members say of themselves.
type greetings struct {
	mine    hello
	greeted []bool // greetings received
	greets  int
	have    []int64
}

// messages are those that the member works on, and at the root those that follow.
type messages struct {
	queue    []int64 // root: sizes of the messages accepted but not begun
	ring     [Window]message
	started  int64 // messages begun
	complete int64 // … and completed
	sendAt   int64 // the message whose sends are issued
}

// transfers are blocks in transit, and the credits for more.
type transfers struct {
	credits  []int32    // blocks that each peer is ready for
	recvs    []transfer // posted, oldest first
	sendings []transfer // issued, oldest first
}

// A spareBlock takes the first block of a message whose size is not known yet.
type spareBlock struct {
	spare    spare
	spareImm uint32
	spareLen int
}

// announcements are the sizes that the root tells ahead, and questions about them.
type announcements struct {
	sizes   []control // told ahead
	asks    int64     // questions put to the root
	answers int64     // the last one that was answered
	gap     int64     // receiver: a message that is not in the ring although a later one is, about which the root was asked
	gapAsk  int64     // … by this question
}

// A smallRing has the slots for small messages: a receiver's own, and at the root what is free in those of all.
type smallRing struct {
	puts     []put // receiver: what is in the ring
	freeable int   // receiver: free slots of the ring that the root does not know about yet
	room     []int // root: free slots at each receiver
}

// ending is what is known of the group's end.
type ending struct {
	closing   bool   // root: no more messages follow
	total     int64  // total number of messages; -1: not known yet
	told      bool   // receiver: it has told the root that it has all messages
	finished  []bool // root: the member has told it so
	nFinished int
}

// New returns an engine, whose first actions are its greetings. The error wraps ErrConfig.
func New(cfg Config) (*Engine, error) {
	n := len(cfg.Members)
	cfg.BlockSize = cmp.Or(cfg.BlockSize, defaultBlockSize)
	switch {
	case n < 1 || n > schedule.MaxNodes || cfg.Self < 0 || cfg.Self >= n:
		return nil, fmt.Errorf("%w: member %d of %d; a group has 1 to %d members, counted from 0", ErrConfig, cfg.Self, n, schedule.MaxNodes)
	case cfg.BlockSize < 1 || cfg.BlockSize > maxBlockSize:
		return nil, fmt.Errorf("%w: blocks of %d bytes; possible are 1 to %d", ErrConfig, cfg.BlockSize, maxBlockSize)
	case cfg.Ahead < 0 || cfg.Ahead > maxAhead:
		return nil, fmt.Errorf("%w: %d transfers ahead; possible are 0 to %d", ErrConfig, cfg.Ahead, maxAhead)
	case cfg.SmallMax < 0 || cfg.SmallMax > maxBlockSize:
		return nil, fmt.Errorf("%w: small messages of up to %d bytes; possible are 0 to %d", ErrConfig, cfg.SmallMax, maxBlockSize)
	case cfg.Have < 0:
		return nil, fmt.Errorf("%w: %d messages of a former group", ErrConfig, cfg.Have)
	}
	cfg.Prompt = max(cfg.Prompt, cfg.SmallMax)
	seen := make(map[string]int, n)
	for i, name := range cfg.Members {
		if first, ok := seen[name]; ok {
			return nil, fmt.Errorf("%w: members %d and %d are both %q", ErrConfig, first, i, name)
		}
		seen[name] = i
	}
	e := &Engine{
		cfg: cfg, nodes: n, minBlocks: 1, first: -1,
		greetings:     greetings{greeted: make([]bool, n), have: make([]int64, n)},
		transfers:     transfers{make([]int32, n), make([]transfer, 0, maxAhead+samePeer), make([]transfer, 0, maxAhead+samePeer)},
		announcements: announcements{gap: -1},
		smallRing:     smallRing{puts: make([]put, 0, SmallSlots), room: slices.Repeat([]int{SmallSlots}, n)},
		ending:        ending{total: -1, finished: make([]bool, n)},
	}
	if err := e.plan(); err != nil {
		return nil, err
	}
	e.mine = hello{Nodes: uint32(n), Self: uint32(cfg.Self), BlockSize: uint32(cfg.BlockSize),
		Algorithm: uint8(cfg.Algorithm), SmallMax: uint32(cfg.SmallMax), Have: cfg.Have}
	if cfg.Everywhere && cfg.Self == 0 {
		e.tally.start(n)
		e.mine.Counts = 1
	}
	e.mine.digest(cfg.Members, cfg.Racks)
	e.greeted[cfg.Self], e.greets, e.have[cfg.Self] = true, 1, cfg.Have
	e.tellAll(&control{kind: kindHello, hello: e.mine})
	return e, nil
}

// plan checks that there is a schedule for the group, and finds the member that sends the first
// block to this one.
func (e *Engine) plan() error {
	var err error
	if len(e.cfg.Racks) > 0 {
		if len(e.cfg.Racks) != e.nodes {
			return fmt.Errorf("%w: racks of %d members, but there are %d", ErrConfig, len(e.cfg.Racks), e.nodes)
		}
		if e.cfg.Algorithm != schedule.Hybrid {
			return fmt.Errorf("%w: racks with algorithm %v; only %v uses them", ErrConfig, e.cfg.Algorithm, schedule.Hybrid)
		}
	}
	if e.nodes == 1 {
		return nil
	}
	if e.cfg.Algorithm == schedule.Hybrid {
		if e.racks, err = schedule.RacksOf(e.cfg.Racks); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	sched, err := schedule.New(e.cfg.Algorithm, e.nodes, 2, e.racks)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	e.minBlocks = minBlocks(e.cfg.Algorithm, e.nodes, e.racks)
	node, _ := sched.Node(e.cfg.Self) // checked above
	if t, ok := node.NextRecv(-1); ok {
		e.first = t.Peer
	}
	return nil
}

// digest fills in the digests.
func (t *hello) digest(members []string, racks []int) {
	all, places := sha256.New(), sha256.New()
	for _, name := range members {
		all.Write(binary.BigEndian.AppendUint64(nil, uint64(len(name))))
		all.Write([]byte(name))
	}
	for _, x := range racks {
		places.Write(binary.BigEndian.AppendUint64(nil, uint64(x)))
	}
	root := sha256.Sum256([]byte(members[0]))
	copy(t.Members[:], all.Sum(nil))
	copy(t.Root[:], root[:])
	copy(t.Racks[:], places.Sum(nil))
}

// BlockSize returns the size of blocks, including the spare block.
func (e *Engine) BlockSize() int { return e.cfg.BlockSize }

// Have returns how many messages of a former group a member has, according to itself. It is known
// from Joined on.
func (e *Engine) Have(member int) int64 { return e.have[member] }

// Messages returns how many messages the root has accepted, which is the number of the next one.
func (e *Engine) Messages() int64 { return e.started + int64(len(e.queue)) }

// Failure returns why the group failed, from the action Failed on; nil before.
func (e *Engine) Failure() *FailedError { return e.failure }
