package group

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A removal removes receivers from a formation that switches copy. Before the switches go on
// without them, the removal is recorded, the daemons of the remaining receivers have recorded the
// new view, and the application has called AckView.
type removal struct {
	next     *Formation // without them, and with the new view
	lost     []Receiver
	version  uint64 // of the record
	told     bool
	calls    map[netip.Addr]time.Time // RecordMembers: zero, or the time of the next try
	err      error
	acked    bool
	until    time.Time // deadline for AckView; zero: the application is not back yet
	updating bool
}

// stepRemoval removes the lost receivers.
func (s *Sender) stepRemoval(now time.Time) {
	switch {
	case s.state == Active || s.state == Removing:
		s.stepView(now)
	case s.state == Broken && s.cfg.Waits:
		if stay, lost := s.split(); len(lost) > 0 && !s.enough(len(stay)) {
			s.shrink(stay, lost, s.few(len(stay)), now)
		}
	}
}

// stepView continues a removal, from the record of the next view to the switches.
func (s *Sender) stepView(now time.Time) {
	r := s.removal
	if r == nil || !r.updating {
		if _, lost := s.split(); r == nil && len(lost) > 0 || r != nil && len(lost) > len(r.lost) {
			s.takeOut(0, now)
			r = s.removal
		}
	}
	if r == nil || r.updating {
		return
	}
	for _, a := range r.next.Addrs() {
		if at := r.calls[a]; !at.IsZero() && !now.Before(at) {
			r.calls[a] = time.Time{}
			s.do(RecordMembers{a, r.next})
		}
	}
	done, err := s.durable(r.version)
	if !r.told && (done || r.next.View <= s.journal.permitted) {
		s.announce(now)
	}
	switch {
	case err != nil || r.err != nil:
		s.cannot(errors.Join(err, r.err))
	case done && r.told && len(r.calls) == 0 && r.acked:
		r.updating = true
		s.do(UpdateSwitch{r.next})
	case !r.acked && !r.until.IsZero() && !now.Before(r.until):
		s.fail(fmt.Sprintf("the application has not acknowledged view %d in %v", r.next.View, ViewTime), mcrdmav1.Reason_TIMEOUT)
	}
}

// takeOut begins a removal. view is its view if that may have been announced before a restart of
// the daemon; 0: a new one.
func (s *Sender) takeOut(view uint32, now time.Time) {
	s.abandon()
	stay, lost := s.split()
	text := fmt.Sprintf("%s: %s", lost[0].Host, s.lost[lost[0].Addr].Why)
	switch {
	case !s.enough(len(stay)) && s.cfg.Waits:
		s.shrink(stay, lost, text+"; "+s.few(len(stay)), now)
		return
	case !s.enough(len(stay)):
		s.fail(text+"; "+s.few(len(stay)), mcrdmav1.Reason_MIN_SIZE)
		return
	case !s.form.switched():
		s.breakUp(lost[0], text)
		return
	}
	if view == 0 {
		s.view++
		view = s.view
	}
	next := *s.form
	next.Receivers, next.View, next.Tree = stay, view, nil
	s.removal = &removal{next: &next, lost: lost, calls: map[netip.Addr]time.Time{}, acked: !s.app.views}
	s.state = Removing
	s.removal.version = s.save()
}

// shrink removes receivers from a group that waits for others, and carries nothing meanwhile.
func (s *Sender) shrink(stay, lost []Receiver, text string, now time.Time) {
	next := *s.form
	s.view++
	next.Receivers, next.View, next.Tree = stay, s.view, nil
	s.form = &next
	gone := s.takenOut(lost)
	s.breakUp(lost[0], text)
	s.save()
	s.drop(gone, 0, 0, mcrdmav1.Detached_REASON_REMOVED, text, now)
}

// announce sends the view to all remaining receivers and the application.
func (s *Sender) announce(now time.Time) {
	r := s.removal
	r.told = true
	for _, a := range r.next.Addrs() {
		r.calls[a] = time.Time{}
		s.do(RecordMembers{a, r.next})
	}
	if r.acked {
		return
	}
	s.tell(TellSender{Type: mcrdmav1.GroupChanged_TYPE_VIEW, View: r.next})
	if s.app.resumed {
		r.until = now.Add(ViewTime)
	}
}

// abandon gives up a removal that the switches do not know yet.
func (s *Sender) abandon() {
	if s.removal != nil {
		s.removal = nil
		s.state = Active
		s.do(CancelCalls{})
	}
}

// cannot ends the formation, because the switches cannot go on without the lost receivers, or may
// or may not have done so.
func (s *Sender) cannot(err error) {
	r := s.removal
	for _, x := range r.lost {
		if r.updating { // they may lack something from now on
			s.departures = append(s.departures, s.departureOf(x))
		}
	}
	x := r.lost[0]
	s.breakUp(x, fmt.Sprintf("%s: %s; the group cannot go on without it: %v", x.Host, s.lost[x.Addr].Why, err))
}

// breakUp ends the formation, because of a receiver or (zero) not, and asks the application to re-form the group.
func (s *Sender) breakUp(x Receiver, text string) {
	s.abandon()
	if s.state != Active {
		return
	}
	s.state = Broken
	s.tell(TellSender{Type: mcrdmav1.GroupChanged_TYPE_REFORM, Member: Departure{Addr: x.Addr, Host: x.Host}, Text: text})
}
