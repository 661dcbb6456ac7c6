package group

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// A removal takes receivers out of a formation that switches copy. Before the switches go on
// without them, the record has that, the daemons of all that stay have recorded the new view,
// and the application has called AckView.
type removal struct {
	next     *Formation // without them, and with the new view
	lost     []Receiver
	version  uint64 // of the record
	told     bool
	calls    map[netip.Addr]time.Time // RecordMembers: zero, or when it is to be tried again
	err      error
	acked    bool
	until    time.Time // for AckView; zero: the application is not back
	updating bool
}

// Lose says that a receiver is to be taken out.
func (s *Sender) Lose(a netip.Addr, l Loss, now time.Time) {
	if _, ok := s.lost[a]; ok || s.end != nil || s.form == nil || !s.form.Has(a) {
		return
	}
	s.lost[a] = l
	s.step(now)
}

// split returns the receivers that stay, and those that are lost.
func (s *Sender) split() (stay, lost []Receiver) {
	for _, r := range s.form.Receivers {
		if _, ok := s.lost[r.Addr]; ok {
			lost = append(lost, r)
		} else {
			stay = append(stay, r)
		}
	}
	return stay, lost
}

// stepRemoval takes out the receivers that are lost.
func (s *Sender) stepRemoval(now time.Time) {
	switch {
	case s.end != nil || s.form == nil:
	case s.state == Active || s.state == Removing:
		s.stepView(now)
	case s.state == Broken && s.cfg.Waits && s.try == nil:
		if stay, lost := s.split(); len(lost) > 0 && !s.enough(len(stay)) {
			s.shrink(stay, lost, s.few(len(stay)), now)
		}
	}
}

// stepView goes on with a removal, from the record of the next view to the switches.
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

// takeOut begins a removal, whose view may have been told before the daemon was restarted;
// 0: a new one.
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
		s.breakUp(lost[0].Addr, text)
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

// shrink takes receivers out of a group that waits for others, and carries nothing meanwhile.
func (s *Sender) shrink(stay, lost []Receiver, text string, now time.Time) {
	next := *s.form
	s.view++
	next.Receivers, next.View, next.Tree = stay, s.view, nil
	s.form = &next
	var gone []netip.Addr
	for _, x := range lost {
		s.depart(s.departureOf(x), s.lost[x.Addr].Label)
		delete(s.lost, x.Addr)
		gone = append(gone, x.Addr)
	}
	s.breakUp(lost[0].Addr, text)
	s.save()
	s.drop(gone, 0, 0, mcrdmav1.Detached_REASON_REMOVED, text, now)
}

// announce has all record the view.
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

// abandon gives up a removal of which the switches do not know.
func (s *Sender) abandon() {
	if s.removal != nil {
		s.removal = nil
		s.state = Active
		s.do(CancelCalls{})
	}
}

// ViewRecorded is the outcome of RecordMembers. A daemon that is away, for a restart perhaps, is
// asked again until it answers or is dead: meanwhile nothing is acknowledged without the lost.
func (s *Sender) ViewRecorded(view uint32, a netip.Addr, err error, now time.Time) {
	r := s.removal
	if r == nil || r.next.View != view {
		return
	}
	if at, ok := r.calls[a]; !ok || !at.IsZero() {
		return
	}
	if away(err) {
		r.calls[a] = now.Add(recordAgain)
	} else {
		delete(r.calls, a)
		r.err = errors.Join(r.err, err)
	}
	s.step(now)
}

// AckView says that the application knows a view.
func (s *Sender) AckView(call uint64, view uint32, now time.Time) {
	switch r := s.removal; {
	case s.end != nil || s.form == nil:
		s.reply(call, nil, s.endedError())
		return
	case r != nil && view == r.next.View:
		r.acked = true
	case view > s.form.View && (r == nil || view > r.next.View):
		s.reply(call, nil, failure.New(mcrdmav1.Reason_STALE, "the group has no view %d yet", view))
		return
	}
	s.reply(call, nil, nil)
	s.step(now)
}

// Updated is the outcome of UpdateSwitch.
func (s *Sender) Updated(view uint32, err error, now time.Time) {
	r := s.removal
	if r == nil || r.next.View != view || !r.updating {
		return
	}
	if err != nil {
		s.cannot(err)
		s.step(now)
		return
	}
	var gone []netip.Addr
	why := s.lost[r.lost[0].Addr].Why
	s.form, s.state, s.removal = r.next, Active, nil
	for _, x := range r.lost {
		l := s.lost[x.Addr]
		s.depart(s.departureOf(x), l.Label)
		delete(s.lost, x.Addr)
		gone = append(gone, x.Addr)
	}
	s.save()
	s.drop(gone, 0, 0, mcrdmav1.Detached_REASON_REMOVED, why, now)
	s.draw(false)
	s.step(now)
}

// cannot breaks the group up, because the switches cannot go on without the lost receivers, or
// it is not known whether they do.
func (s *Sender) cannot(err error) {
	r := s.removal
	for _, x := range r.lost {
		if r.updating { // they may lack something from now on
			s.departures = append(s.departures, s.departureOf(x))
		}
	}
	x := r.lost[0]
	s.breakUp(x.Addr, fmt.Sprintf("%s: %s; the group cannot go on without it: %v", x.Host, s.lost[x.Addr].Why, err))
}

// depart takes a receiver out, unless that was noted before, and tells the application.
func (s *Sender) depart(d Departure, label string) {
	delete(s.suspected.in, d.Addr)
	if !slices.ContainsFunc(s.departures, func(o Departure) bool { return o.Addr == d.Addr }) {
		s.departures = append(s.departures, d)
	}
	s.tell(TellSender{Type: mcrdmav1.GroupChanged_TYPE_REMOVED, Member: d, Text: d.Host + ": " + d.Why, Label: label})
}

// Stuck says that nothing completes in a formation, and that no receiver is to blame.
func (s *Sender) Stuck(formation uint32, text string, now time.Time) {
	if s.end == nil && s.form != nil && s.form.N == formation && s.state == Active {
		s.breakUp(netip.Addr{}, text)
		s.step(now)
	}
}

// breakUp asks the application to form the group anew.
func (s *Sender) breakUp(a netip.Addr, text string) {
	if s.removal != nil {
		s.abandon()
	}
	if s.state != Active {
		return
	}
	s.state = Broken
	s.tell(TellSender{Type: mcrdmav1.GroupChanged_TYPE_REFORM, Member: Departure{Addr: a}, Text: text})
}
