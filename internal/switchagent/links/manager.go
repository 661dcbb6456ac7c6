package links

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/routing/liveness"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// The states of a port's link.
const (
	Up    = "up"    // hellos pass in both directions, or a router answers ARP
	Down  = "down"  // the neighbor is not heard, or says that it does not want the link
	Init  = "init"  // the neighbor is heard, but has not said that it hears us
	Wrong = "wrong" // another switch is at the other end
)

// Errors of [Manager.Receive], besides [ErrFrame] and [liveness.ErrNotOurs].
var (
	ErrPort   = errors.New("links: no hellos are expected at this port")
	ErrWrong  = errors.New("links: hello of another neighbor")
	ErrClosed = errors.New("links: closed")
)

const (
	// slowTx is the interval of hellos while a link is not up. RFC 5880 §6.8.3 asks
	// for a second or more, to spare paths that others use; these are links of their own,
	// and come back sooner for it.
	slowTx = 200 * time.Millisecond
	// farewells is how many last hellos tell that an agent restarts: the loss of one
	// would cost the link.
	farewells = 3
	// maxWrong bounds how long the interval that a wrong neighbor announced keeps a
	// port from coming up once that neighbor is gone.
	maxWrong = 10 * time.Second
)

// Config describes a switch's links.
type Config struct {
	Name  string // the switch's own, at most MaxName bytes
	Ports []Port
	// Interval is the time between hellos on a link that is up; default 50 ms, 1 ms to
	// 1 min (a value outside is taken for the nearest). Links that are not up
	// see one every 200 ms, or every Interval if that is longer.
	Interval   time.Duration
	Multiplier uint8      // of the neighbor's intervals without a hello, after which the link is down; default 3
	Rand       *rand.Rand // draws discriminators and jitter
}

// Port is a port with a link to a switch. Each has a number of its own.
type Port struct {
	Number uint16
	MAC    switchspec.MAC // source of its hellos
	Expect string         // the neighbor's name
	// Router, if valid, is the address of a neighbor that sends no hellos. Own asks it by
	// ARP; the link is up while it answers.
	Router, Own netip.Addr
}

// Frame is an Ethernet frame to be sent out of a port. It is the caller's to keep.
type Frame struct {
	Port  uint16
	Bytes []byte
}

// Event tells that a link came up or went down, that a wrong switch is at its other
// end or no longer is, or (Up, and up before) that the neighbor has another MAC.
// At first all links are down, without an event.
type Event struct {
	Port   uint16
	Up     bool
	Peer   switchspec.MAC // of the neighbor that the event is about; zero: never heard
	Name   string         // of that neighbor
	Reason string         // for people; empty: it just came up
}

// State is what is known of a port.
type State struct {
	Port     uint16
	State    string // Up, Down, Init or Wrong
	Reason   string // for people
	Expect   string
	Peer     switchspec.MAC // MAC of the sender heard last; zero: none
	Name     string         // that sender's
	PeerPort uint16
	Since    time.Time // when State last changed
	// Problem says that the link is up and loses many packets; empty: it does not.
	Problem string
}

// Manager watches the links of a switch. Make one with [New].
type Manager struct {
	name    string
	ports   []*port         // by number
	session liveness.Config // but for the discriminator
	closed  bool
	now     time.Time
}

// New returns a manager all of whose ports are down, and whose first hellos are due at
// once.
func New(cfg Config, now time.Time) *Manager {
	m := &Manager{name: cfg.Name, now: now}
	interval := min(max(cmp.Or(cfg.Interval, liveness.DefaultInterval), time.Millisecond), maxInterval)
	m.session = liveness.Config{DesiredMinTx: interval, RequiredMinRx: interval, SlowTx: max(slowTx, interval),
		DetectMult: cfg.Multiplier, Rand: cfg.Rand}
	for _, c := range cfg.Ports {
		i, _ := slices.BinarySearchFunc(m.ports, c.Number, byNumber)
		p := &port{Port: c, state: Down, since: now, next: now}
		if !c.Router.IsValid() {
			m.open(now, p)
		}
		p.reason = c.Expect + " has not been heard"
		m.ports = slices.Insert(m.ports, i, p)
	}
	return m
}

// open gives a port a new session, with a discriminator that no other port has and
// that the port has not had.
func (m *Manager) open(now time.Time, p *port) {
	cfg := m.session
	for cfg.Discriminator == 0 || cfg.Discriminator == p.discriminator ||
		slices.ContainsFunc(m.ports, func(o *port) bool { return o.discriminator == cfg.Discriminator }) {
		cfg.Discriminator = cfg.Rand.Uint32()
	}
	s, err := liveness.New(cfg, now)
	if err != nil {
		panic(err) // the numbers are within its bounds
	}
	p.session, p.discriminator = s, cfg.Discriminator
}

func byNumber(p *port, number uint16) int { return int(p.Number) - int(number) }

// Receive takes a hello that came in at a port. The error says why it does not count
// for the link; it may have changed the port's state all the same. Call
// [Manager.Tick] afterwards.
func (m *Manager) Receive(now time.Time, number uint16, frame []byte) error {
	if m.closed {
		return ErrClosed
	}
	now = m.clock(now)
	i, found := slices.BinarySearchFunc(m.ports, number, byNumber)
	if !found || m.ports[i].session == nil {
		return fmt.Errorf("%w: port %d", ErrPort, number)
	}
	h, err := parseHello(frame)
	if err != nil {
		return fmt.Errorf("port %d: %w", number, err)
	}
	p := m.ports[i]
	if !m.right(p, h) {
		who := m.who(p, h)
		p.wrong(now, h, who)
		return fmt.Errorf("%w: port %d: %s", ErrWrong, number, who)
	}
	if h.hold > 0 {
		err = m.hold(now, p, h)
	} else {
		err = p.receive(now, h)
	}
	if err != nil {
		return fmt.Errorf("port %d: %w", number, err)
	}
	return nil
}

// hold accepts that the neighbor's agent is restarting: the port stays up, and a new
// session waits for the new agent. Such a hello counts only once, and in its own
// session: a repeated one is of a session that has ended.
func (m *Manager) hold(now time.Time, p *port, h hello) error {
	if p.session.State() != liveness.Up || h.live.My != p.session.Remote() || h.live.Your != p.discriminator || !p.is(h) {
		return fmt.Errorf("%w: it asks to be waited for, but the session with %#x is not up", liveness.ErrNotOurs, h.live.My)
	}
	m.open(now, p)
	p.next, p.heldUntil = now, now.Add(h.hold)
	p.reason = fmt.Sprintf("the agent of %s is restarting, held until %s", p.neighbor(), p.heldUntil.Format(time.TimeOnly))
	return nil
}

// clock keeps time from running backwards.
func (m *Manager) clock(now time.Time) time.Time {
	if now.After(m.now) {
		m.now = now
	}
	return m.now
}

// right says whether a hello is from the neighbor that the port should have.
func (m *Manager) right(p *port, h hello) bool {
	return string(h.name) != m.name && string(h.name) == p.Expect
}

// who says which switch is there instead of which.
func (m *Manager) who(p *port, h hello) string {
	if string(h.name) != m.name {
		return fmt.Sprintf("%s port %d is there, expected %s", h.name, h.port, p.Expect)
	}
	for _, own := range m.ports {
		if own.Number != h.port || own.discriminator != h.live.My {
			continue
		}
		if own == p {
			return fmt.Sprintf("what is sent comes back: the port is looped, expected %s", p.Expect)
		}
		return fmt.Sprintf("the cable goes to this switch's own port %d, expected %s", h.port, p.Expect)
	}
	return fmt.Sprintf("another switch that is called %s too is there, with its port %d, expected %s", m.name, h.port, p.Expect)
}

// Tick does what is due: it returns the frames to send, what has changed since the
// last call, each change once, and when to call again if nothing arrives before; the zero
// time if there is nothing to wait for.
func (m *Manager) Tick(now time.Time) (send []Frame, events []Event, next time.Time) {
	if m.closed {
		return nil, nil, time.Time{}
	}
	now = m.clock(now)
	for _, p := range m.ports {
		if !p.next.After(now) {
			send = m.tick(now, p, send)
		}
		if next.IsZero() || p.next.Before(next) {
			next = p.next
		}
		events = append(events, p.pending...)
		p.pending = p.pending[:0]
	}
	return send, events, next
}

// Busy says whether this switch's agent has more work than it can do at once: then its
// neighbors wait longer for its hellos.
func (m *Manager) Busy(busy bool) {
	for _, p := range m.ports {
		if p.session != nil {
			p.session.Busy(busy)
		}
	}
}

// Doubtful returns the neighbors whose links Tick would take down now because nothing was
// heard. The caller may first make sure that no hello is on its way: until it calls Tick,
// time does not count.
func (m *Manager) Doubtful(now time.Time) (names []string) {
	now = m.clock(now)
	for _, p := range m.ports {
		if !m.closed && p.state == Up && !p.held() && p.session != nil && !p.next.After(now) && p.session.Expired(now) {
			names = append(names, p.name)
		}
	}
	return names
}

// SendNow has the next Tick send a hello at each port, which is due at once: those before may
// not have been sent, because no switch was there.
func (m *Manager) SendNow(now time.Time) {
	for _, p := range m.ports {
		if p.next = m.clock(now); p.session != nil {
			p.session.SendNow()
		}
	}
}

func (m *Manager) tick(now time.Time, p *port, send []Frame) []Frame {
	if p.session == nil {
		return append(send, Frame{p.Number, p.ask(now)})
	}
	for _, h := range p.tick(now) {
		p.sent = max(1, p.sent+1) // 0 is no number
		send = append(send, m.frame(p, h, 0, p.sent))
	}
	return send
}

func (m *Manager) frame(p *port, h liveness.Hello, hold time.Duration, number uint32) Frame {
	frame := make([]byte, 0, max(minFrame, nameAt+len(m.name)+numberLen))
	return Frame{p.Number, appendHello(frame, p.MAC, h, p.Number, hold, m.name, number)}
}

// Close ends all sessions. It returns the last hellos. With hold 0 they tell the
// neighbors to take the links down at once. Otherwise they ask them to keep those
// links up that are, for at most hold, until a new manager of this name is heard; hold
// is rounded up to whole seconds, and no more than MaxHold. The manager then does
// nothing any more; its ports are down, without an event.
func (m *Manager) Close(now time.Time, hold time.Duration) []Frame {
	if m.closed {
		return nil
	}
	now = m.clock(now)
	hold = (min(max(hold, 0), MaxHold) + time.Second - 1).Truncate(time.Second)
	var send []Frame
	for _, p := range m.ports {
		switch {
		case p.session == nil:
		case hold > 0 && p.session.State() == liveness.Up:
			for range farewells {
				send = append(send, m.frame(p, p.session.Hello(), hold, 0))
			}
		default:
			p.session.SetAdminDown(true)
			send = m.tick(now, p, send)
		}
		p.become(now, Down, "closed")
		p.pending = nil
	}
	m.closed = true
	return send
}

// States lists all ports by number.
func (m *Manager) States() []State {
	states := make([]State, 0, len(m.ports))
	for _, p := range m.ports {
		states = append(states, State{Port: p.Number, State: p.state, Reason: p.reason, Expect: p.Expect,
			Peer: p.peer, Name: p.name, PeerPort: p.peerPort, Since: p.since, Problem: p.problem()})
	}
	return states
}
