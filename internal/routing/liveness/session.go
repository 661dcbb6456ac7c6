// Package liveness detects whether two neighbors still reach each other over a link, in both
// directions, by the asynchronous mode of RFC 5880 (BFD): each sends small hellos at negotiated
// intervals, and declares the link down when several in a row are missing. With the defaults,
// detection takes 150 ms.
//
// It is pure: the caller passes the time and the received hellos to a [Session], which returns the
// hellos to send and when to call it again. There is one session per link end. The caller must pass
// it hellos of that link only: routers must not forward them, and only the direct neighbor must be
// able to inject them (RFC 5881 uses TTL 255 for that).
//
// Not implemented of RFC 5880: demand mode, the echo function, authentication and
// point-to-multipoint.
package liveness

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Defaults of [Config]. Detection takes DetectMult times the longer of the two ends' intervals.
const (
	DefaultInterval   = 50 * time.Millisecond
	DefaultSlow       = time.Second
	DefaultDetectMult = 3
)

// ErrNotOurs is returned by [Session.Receive] for a hello of another session.
var ErrNotOurs = errors.New("liveness: hello is of another session")

// Config configures one end of a session. Only Discriminator has no default.
type Config struct {
	// Discriminator distinguishes this session from all others of this system and from the
	// neighbor's, so that a looped link does not appear alive. Choose it at random. Not 0.
	Discriminator uint32
	DesiredMinTx  time.Duration // between hellos while Up; default 50 ms
	RequiredMinRx time.Duration // between hellos from the neighbor; default 50 ms
	// SlowTx is the interval while not Up; default 1 s, the minimum in RFC 5880 §6.8.3 for a path
	// shared with other traffic.
	SlowTx     time.Duration
	DetectMult uint8 // default 3
	// Rand is the source of the jitter of §6.8.7. Nil: seeded with the discriminator.
	Rand *rand.Rand
}

// A Session is one end of a session. Times passed to its methods must not decrease. It is not safe
// for concurrent use.
type Session struct {
	cfg   Config
	state State
	diag  Diag

	remote       Hello         // the last valid hello; zero if none within the detection time
	heard        time.Time     // when it arrived, plus the delays of Tick since then
	slow         time.Duration // how late hellos have been recently
	busy         bool          // see Busy
	due          time.Time     // when Tick is to be called
	heldUp       bool          // Tick was late since the last hello
	nextTx       time.Time
	polling      bool          // §6.5: waiting for the neighbor to acknowledge new timers
	announcedTx  time.Duration // the desired interval in the last hello sent
	mustSend     bool          // content changed: send at once (§6.8.7)
	pendingFinal bool
}

// New returns a session in state Down whose first hello is due at once.
func New(cfg Config, now time.Time) (*Session, error) {
	cfg.DesiredMinTx = cmp.Or(cfg.DesiredMinTx, DefaultInterval)
	cfg.RequiredMinRx = cmp.Or(cfg.RequiredMinRx, DefaultInterval)
	cfg.SlowTx = cmp.Or(cfg.SlowTx, DefaultSlow)
	cfg.DetectMult = cmp.Or(cfg.DetectMult, DefaultDetectMult)
	if cfg.Discriminator == 0 {
		return nil, errors.New("liveness: discriminator is 0: give each session a number of its own")
	}
	for _, d := range []time.Duration{cfg.DesiredMinTx, cfg.RequiredMinRx, cfg.SlowTx} {
		if d < time.Millisecond || d > time.Minute {
			return nil, fmt.Errorf("liveness: interval %v: want 1ms to 1m", d)
		}
	}
	cfg.SlowTx = max(cfg.SlowTx, cfg.DesiredMinTx)
	if cfg.Rand == nil {
		cfg.Rand = rand.New(rand.NewPCG(uint64(cfg.Discriminator), 0))
	}
	return &Session{cfg: cfg, state: Down, nextTx: now, mustSend: true}, nil
}

// State returns the current state.
func (s *Session) State() State { return s.state }

// Remote returns the neighbor's discriminator, 0 if it is not known.
func (s *Session) Remote() uint32 { return s.remote.My }

// Hello returns the session's current hello, for a caller that sends it in addition to those that
// Tick returns.
func (s *Session) Hello() Hello { return s.hello() }

// DetectionTime returns how long a silence takes the session down; 0 while no hellos are heard. It
// is the time of §6.8.4 plus twice the recent lateness of hellos, at most three times as long in
// total. After Tick itself was late, one interval is added, because received hellos may not have
// been read yet.
func (s *Session) DetectionTime() time.Duration {
	if s.remote.My == 0 {
		return 0
	}
	d := time.Duration(s.remote.DetectMult) * s.interval()
	d = max(d, min(d+2*s.slow, busyTimes*time.Duration(s.cfg.DetectMult)*s.interval()))
	if s.heldUp {
		d += s.cfg.RequiredMinRx
	}
	return d
}

// Busy sets whether this end is overloaded and may send its hellos late. The neighbor learns it by
// a detection multiplier that is three times as high.
func (s *Session) Busy(busy bool) { s.busy = busy }

// busyTimes is the factor by which a busy or slow neighbor may be silent for longer.
const busyTimes = 3

func (s *Session) detectMult() uint8 {
	if s.busy {
		return uint8(min(int(s.cfg.DetectMult)*busyTimes, 255))
	}
	return s.cfg.DetectMult
}

// fade is the divisor by which each hello reduces Session.slow.
const fade = 256

// interval is the longest time between two hellos of the neighbor.
func (s *Session) interval() time.Duration { return max(s.cfg.RequiredMinRx, s.remote.DesiredMinTx) }

// excuse moves heard forward by the lateness of Tick: this end was delayed, the neighbor was not
// silent.
func (s *Session) excuse(now time.Time) {
	if late := now.Sub(s.due); late > 0 && !s.due.IsZero() {
		s.heard, s.due = minTime(s.heard.Add(late), now), now
		s.heldUp = s.heldUp || late >= s.cfg.RequiredMinRx/2
	}
}

// Expired reports whether Tick would take the session down now because nothing was heard. The
// caller may first check for unread hellos: time does not count until it calls Tick.
func (s *Session) Expired(now time.Time) bool {
	s.excuse(now)
	return s.remote.My != 0 && !now.Before(s.heard.Add(s.DetectionTime()))
}

// desiredTx returns the interval to announce (§6.8.3).
func (s *Session) desiredTx() time.Duration {
	if s.state == Up {
		return s.cfg.DesiredMinTx
	}
	return s.cfg.SlowTx
}

// Receive processes a hello that arrived on the session's link. The error says why it was ignored.
// Call [Session.Tick] afterward.
func (s *Session) Receive(now time.Time, h Hello) error {
	if err := h.valid(); err != nil {
		return err
	}
	if h.My == s.cfg.Discriminator {
		return fmt.Errorf("%w: it is our own, so the link is a loop, or the neighbor has our discriminator %#x", ErrNotOurs, h.My)
	}
	if h.Your != 0 && h.Your != s.cfg.Discriminator {
		return fmt.Errorf("%w: it is for %#x, this is %#x", ErrNotOurs, h.Your, s.cfg.Discriminator)
	}
	if s.remote.RequiredMinRx != h.RequiredMinRx {
		s.nextTx = minTime(s.nextTx, now.Add(s.jittered(max(s.desiredTx(), h.RequiredMinRx))))
	}
	s.excuse(now)
	same := s.remote.My == h.My && s.remote.DesiredMinTx == h.DesiredMinTx
	s.remote = h
	if same {
		late := now.Sub(s.heard) - s.interval()*5/4
		s.slow = max(min(late, time.Duration(h.DetectMult)*s.cfg.RequiredMinRx), s.slow-s.slow/fade)
	} else {
		s.slow = 0
	}
	s.heard, s.heldUp = now, false
	if h.Final {
		s.polling = false
	}
	if h.Poll {
		s.pendingFinal = true
	}
	s.transition(h)
	return nil
}

// transition is the state machine of §6.8.6.
func (s *Session) transition(h Hello) {
	switch {
	case s.state == AdminDown:
	case h.State == AdminDown:
		if s.state != Down {
			s.enter(Down, DiagPeerDown)
		}
	case s.state == Down && h.State == Down:
		s.enter(Init, s.diag)
	case s.state == Down && h.State == Init, s.state == Init && h.State >= Init:
		s.enter(Up, DiagNone)
	case s.state == Down && h.State == Up: // the neighbor does not know yet that the session is down
		s.mustSend = true
	case s.state == Up && h.State == Down:
		s.enter(Down, DiagPeerDown)
	}
}

func (s *Session) enter(to State, diag Diag) {
	s.state, s.diag, s.mustSend = to, diag, true
	// A changed interval must be acknowledged (§6.8.3), but not once the session is down, because
	// then there may be no peer to acknowledge it.
	s.polling = s.desiredTx() != s.announcedTx && to == Up
}

// SendNow makes the next Tick send a hello. Call it when earlier ones may not have been sent.
func (s *Session) SendNow() { s.mustSend = true }

// SetAdminDown takes the session down administratively, so that the neighbor learns it at once, or
// allows it to come up again. Call [Session.Tick] afterward.
func (s *Session) SetAdminDown(down bool) {
	switch {
	case down && s.state != AdminDown:
		s.enter(AdminDown, DiagAdminDown)
	case !down && s.state == AdminDown:
		s.remote = Hello{}
		s.enter(Down, DiagNone)
	}
}

// Tick does what is due at now. It returns the hellos to send, and when to call it again if nothing
// arrives before.
func (s *Session) Tick(now time.Time) (send []Hello, next time.Time) {
	if s.Expired(now) {
		s.remote = Hello{} // §6.8.1: forget the neighbor's discriminator
		if s.state == Init || s.state == Up {
			s.enter(Down, DiagExpired)
		}
	}
	if s.pendingFinal { // answer at once, regardless of the interval
		s.pendingFinal, s.mustSend = false, false
		h := s.hello()
		h.Poll, h.Final = false, true
		send = append(send, h)
		if s.polling { // a packet is either poll or final; the poll follows
			s.mustSend = true
		}
	}
	due := !now.Before(s.nextTx)
	if s.mayTransmit() && (due || s.mustSend) {
		send = append(send, s.hello())
		s.mustSend = false
		s.nextTx = now.Add(s.jittered(max(s.desiredTx(), s.remote.RequiredMinRx)))
	} else if due {
		s.nextTx = now.Add(s.jittered(s.desiredTx()))
	}
	next = s.nextTx
	if s.remote.My != 0 {
		next = minTime(next, s.heard.Add(s.DetectionTime()))
	}
	s.due = next
	return send, next
}

// mayTransmit returns false while the neighbor wants no hellos (§6.8.7).
func (s *Session) mayTransmit() bool { return s.remote.My == 0 || s.remote.RequiredMinRx != 0 }

func (s *Session) hello() Hello {
	s.announcedTx = s.desiredTx()
	return Hello{
		Diag: s.diag, State: s.state, Poll: s.polling, DetectMult: s.detectMult(),
		My: s.cfg.Discriminator, Your: s.remote.My,
		DesiredMinTx: s.announcedTx, RequiredMinRx: s.cfg.RequiredMinRx,
	}
}

// jittered shortens d by a random part of up to a quarter, so that sessions do not synchronize;
// with a multiplier of 1, by at least a tenth (§6.8.7).
func (s *Session) jittered(d time.Duration) time.Duration {
	least := time.Duration(0)
	if s.cfg.DetectMult == 1 {
		least = d / 10
	}
	return d - least - time.Duration(s.cfg.Rand.Int64N(int64(d/4-least)+1))
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
