package links

import (
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/routing/liveness"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// port is one end of a link.
type port struct {
	Port
	session       *liveness.Session // AdminDown while the state is Wrong; nil: a router, asked by ARP
	asks          int               // of a router, since its last answer
	discriminator uint32
	sent          uint32 // number of the last hello
	loss          loss   // of the neighbor's hellos, since its session began

	state, reason string
	since         time.Time

	// The sender heard last; in state Wrong, the one that is there.
	peer     switchspec.MAC
	name     string
	peerPort uint16

	wrongUntil time.Time
	heldUntil  time.Time // zero, unless the port is up only because its neighbor restarts
	next       time.Time // when tick is due
	pending    []Event   // for Tick to return; at most two, see tell
}

// neighbor names the one that was heard last.
func (p *port) neighbor() string { return fmt.Sprintf("%s port %d", p.name, p.peerPort) }

// is says whether a hello is from the neighbor heard last.
func (p *port) is(h hello) bool { return string(h.name) == p.name && h.port == p.peerPort }

// problem says that the link is up and loses many of the neighbor's hellos; "": it does not.
func (p *port) problem() string {
	lost := p.loss.percent()
	if p.state != Up || p.session == nil || lost < lossTold {
		return ""
	}
	return fmt.Sprintf("%d %% of the last %d hellos of %s were lost, and data likely as well: the link loses packets, or flaps; repair or unplug it", lost, lossWindow, p.neighbor())
}

func (p *port) held() bool { return !p.heldUntil.IsZero() }

// release ends a hold by which the link was up.
func (p *port) release(now time.Time, reason string) {
	p.heldUntil = time.Time{}
	p.become(now, Down, reason)
}

func (p *port) meet(h hello) {
	p.peer, p.peerPort = h.src, h.port
	if string(h.name) != p.name { // spares a string for each hello
		p.name = string(h.name)
	}
}

// wrong handles a hello from a wrong sender. The first wrong neighbor stays the one
// that is named until it is silent.
func (p *port) wrong(now time.Time, h hello, reason string) {
	if p.state == Wrong && !p.is(h) {
		return
	}
	// It may slow down when it finds its own link down.
	hold := time.Duration(h.live.DetectMult) * max(slowTx, h.live.DesiredMinTx)
	p.wrongUntil = now.Add(min(hold, maxWrong))
	p.next = now
	p.meet(h)
	p.heldUntil = time.Time{}
	p.session.SetAdminDown(true)
	p.become(now, Wrong, reason)
}

// receive handles a hello from the right neighbor.
func (p *port) receive(now time.Time, h hello) error {
	if p.state == Wrong {
		return fmt.Errorf("%w: it is the right one, but so far %s was there", ErrWrong, p.neighbor())
	}
	restarted := p.session.Remote() != h.live.My
	if err := p.session.Receive(now, h.live); err != nil {
		return err
	}
	if restarted {
		p.loss = loss{}
	}
	p.loss.hear(h.number)
	p.next = now
	switch {
	case !p.held():
	case !p.is(h):
		p.release(now, fmt.Sprintf("%s port %d is there, in place of %s that was restarting", h.name, h.port, p.neighbor()))
	case h.live.State == liveness.AdminDown:
		p.release(now, p.refusal(h.live, restarted))
	}
	was, from := p.state, p.peer
	p.meet(h)
	switch p.session.State() {
	case liveness.Up:
		if p.held() || p.state != Up {
			p.heldUntil = time.Time{} // as if there had been no hold
			p.become(now, Up, "")
		}
	case liveness.Init:
		if !p.held() {
			p.become(now, Init, p.neighbor()+" is heard but has not said that it hears us")
		}
	case liveness.Down, liveness.AdminDown:
		if h.live.State != liveness.Up { // else it does not know yet that the link is down, nor why
			p.become(now, Down, p.refusal(h.live, restarted))
		}
	}
	if was == Up && p.state == Up && from != p.peer {
		p.reason = fmt.Sprintf("the neighbor's MAC changed from %v to %v", from, p.peer)
		p.tell()
	}
	return nil
}

// refusal describes why a hello from the neighbor took or keeps the link down.
func (p *port) refusal(h liveness.Hello, restarted bool) string {
	switch {
	case h.State == liveness.AdminDown:
		return p.neighbor() + " holds the link down: it is shutting down, or expects another neighbor"
	case restarted:
		return p.neighbor() + " has started anew"
	case h.Diag == liveness.DiagExpired:
		return p.neighbor() + " does not hear us any more"
	}
	return fmt.Sprintf("%s has taken the link down: %v", p.neighbor(), h.Diag)
}

// tick does what the passing of time brings.
func (p *port) tick(now time.Time) []liveness.Hello {
	if p.state == Wrong && !now.Before(p.wrongUntil) {
		p.session.SetAdminDown(false)
		p.become(now, Down, fmt.Sprintf("%s is no longer heard; %s has not been heard since", p.neighbor(), p.Expect))
	}
	if p.held() && !now.Before(p.heldUntil) {
		p.release(now, fmt.Sprintf("the agent of %s has not come back from its restart in time", p.neighbor()))
	}
	detection := p.session.DetectionTime() // 0: no hellos are heard
	send, next := p.session.Tick(now)
	if detection != 0 && p.session.Remote() == 0 && p.state != Wrong && !p.held() {
		p.become(now, Down, fmt.Sprintf("%s was not heard for %v", p.neighbor(), detection))
	}
	if p.state == Wrong && p.wrongUntil.Before(next) {
		next = p.wrongUntil
	}
	if p.held() && p.heldUntil.Before(next) {
		next = p.heldUntil
	}
	p.next = next
	return send
}

// become changes the state, and adds an event unless the old and the new state are
// both Down or Init.
func (p *port) become(now time.Time, state, reason string) {
	was := p.state
	p.reason = reason
	if state == was {
		return
	}
	p.state, p.since = state, now
	quiet := func(s string) bool { return s == Down || s == Init }
	if !quiet(was) || !quiet(state) {
		p.tell()
	}
}

// tell adds an event. If Tick has not been called for long, only the last change
// remains, and the one before if it was in the other direction; so a link that
// flaps holds no more than two, and no relevant one is lost.
func (p *port) tell() {
	e := Event{Port: p.Number, Up: p.state == Up, Peer: p.peer, Name: p.name, Reason: p.reason}
	n := len(p.pending)
	switch {
	case n > 0 && p.pending[n-1].Up == e.Up:
		p.pending[n-1] = e
	case n == 2:
		p.pending = append(p.pending[:0], e)
	default:
		p.pending = append(p.pending, e)
	}
}

// ask returns a router's next ARP request.
func (p *port) ask(now time.Time) []byte {
	if p.asks == maxAsks {
		p.become(now, Down, fmt.Sprintf("%s has not answered ARP for %v for %v", p.Expect, p.Router, maxAsks*askEvery))
	}
	p.asks = min(p.asks+1, maxAsks)
	p.next = now.Add(askEvery)
	return AppendRequest(nil, p.MAC, p.Own, p.Router)
}
