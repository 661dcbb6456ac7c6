package mcrdma

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// views has the group's views. A view from the daemon waits for the application's hook; then
// completions carry it; then the daemon may act on it. A formation begins when no view waits.
type views struct {
	view      View                  // that completions carry
	told      []toldView            // in their order; the first one is with the hook
	departed  map[string]*departure // members that are out
	gone      []*departure          // of each receiver that ever was, the last one
	from      map[string]uint64     // the first operation that a receiver has, by its address
	needViews bool                  // the application has a hook
}

type toldView struct {
	View
	ack bool // the daemon waits for it
}

// A departure is the removal of a member, by its address.
type departure struct {
	Departure
	known bool // its Operation
	told  bool // to the application
}

// has says whether a view has a member.
func (v *View) has(address string) bool {
	return slices.ContainsFunc(v.Members, func(p Peer) bool { return p.Address == address })
}

// present returns the members without those that the view of completions lacks, which the daemon reports as removed later.
func (l *life) present() []Peer {
	return marked(slices.DeleteFunc(peersOf(l.members), func(p Peer) bool { return l.departed[p.Address] != nil }), l.from)
}

// newest returns the latest view.
func (l *life) newest() View {
	if n := len(l.told); n > 0 {
		return l.told[n-1].View
	}
	return l.view
}

// learn handles a view from the daemon.
func (l *life) learn(v View, wantsAck bool) {
	switch {
	case v.Number == 0: // the daemon counts none
	case v.Number > l.newest().Number:
		if l.told = append(l.told, toldView{v, wantsAck}); len(l.told) == 1 {
			l.do(show{v})
		}
	case v.Number <= l.view.Number: // it does not know that it was acknowledged
		l.do(ack{l.view.Number})
	}
}

// learnFormation handles the view of a new formation.
func (l *life) learnFormation(info *mcrdmav1.FormationInfo) {
	v := viewOf(info, l.re.from)
	switch {
	case v.Number == 0 && l.needViews:
		l.stop(fmt.Errorf("%w: the daemon counts no views, and the application has a hook for them: use the same release of both", ErrVersion))
	case v.Number > 0 && v.Number <= l.newest().Number:
		l.stop(fmt.Errorf("%w: the daemon has formed the group with view %d, after view %d", ErrFailed, v.Number, l.newest().Number))
	default:
		l.learn(v, false)
	}
}

// hooked: the application's hook has returned for a view. From now on completions carry it.
func (l *life) hooked(number uint32, err error) {
	if l.state >= closing || len(l.told) == 0 || l.told[0].Number != number {
		return
	}
	if err != nil {
		l.stop(fmt.Errorf("%w: the application's hook for view %d: %w", ErrFailed, number, err))
		return
	}
	v, had := l.told[0], l.stats.Completed
	if l.view.Number == 0 {
		had = l.sure()
	}
	for _, p := range l.view.Members { // the application has been notified of it, or will be
		if !v.has(p.Address) && (among(l.members, p.Address) || l.departed[p.Address] != nil) {
			l.departs(p, had)
		}
	}
	l.view, l.told = v.View, l.told[1:]
	if v.ack {
		l.do(ack{number})
	}
	if len(l.told) > 0 {
		l.do(show{l.told[0].View})
	}
}

// sure returns how many operations all members certainly have, including a member whose removal is
// found only now: a switch may have gone on without it since the formation began.
func (l *life) sure() uint64 {
	if Path(l.info.GetPath()) == PathSwitch {
		return l.began
	}
	return l.stats.Completed
}

// departs records that a member was removed, and how many operations it has. Only the first record
// counts. If the reason is known, it tells the application.
func (l *life) departs(p Peer, had uint64) *departure {
	d := l.departed[p.Address]
	if d == nil {
		d = &departure{Departure: Departure{Peer: p}}
		l.departed[p.Address] = d
	}
	if !d.known {
		d.Operation, d.known, d.From = had, true, l.from[p.Address]
		l.gone = append(slices.DeleteFunc(l.gone, func(o *departure) bool { return o.Address == p.Address }), d)
	}
	if d.Why != "" {
		l.removed(d)
	}
	return d
}

// compare records which of the members before are missing in the daemon's answer, and why. An event
// about that may have come already.
func (l *life) compare(before []*mcrdmav1.Member, info *mcrdmav1.FormationInfo, had uint64) {
	for _, m := range before {
		if address := m.GetAddress(); l.departed[address] == nil && !among(info.GetMembers(), address) {
			l.departed[address] = &departure{Departure: Departure{Peer: peerOf(m)}}
		}
	}
	for address, d := range l.departed {
		if among(info.GetMembers(), address) {
			continue
		}
		d.Why = cmp.Or(d.Why, reasonIn(info, address))
		if d.known || len(l.told) == 0 { // otherwise how much it has is known after the hook
			l.departs(d.Peer, had)
		}
	}
}

// reasonIn returns the daemon's reason for the removal of a receiver.
func reasonIn(info *mcrdmav1.FormationInfo, address string) string {
	for _, d := range info.GetDepartures() {
		if d.GetAddress() == address {
			return d.GetHost() + ": " + d.GetText()
		}
	}
	return "it is not in the formation any longer"
}

// removed tells the application once that a member was removed.
func (l *life) removed(d *departure) {
	if !d.told {
		d.told = true
		l.tell(Event{Type: EventRemoved, Address: d.Address, Host: d.Host, Text: d.Why,
			Formation: l.info.GetFormation(), Operation: d.Operation})
	}
}

// changed handles an event from the daemon. An event about a formation that has not begun waits for
// that.
func (l *life) changed(e *mcrdmav1.GroupChanged) {
	present := l.info.GetFormation()
	switch {
	case l.state >= closing:
		return
	case e.GetType() == mcrdmav1.GroupChanged_TYPE_FAILED:
		reason := cmp.Or(e.GetReason(), mcrdmav1.Reason_MIN_SIZE) // daemons of older releases say none
		l.stop(newError(reason, "%s", e.GetText()))
		return
	case e.GetFormation() > present || l.state == forming:
		l.early = append(l.early, e)
		l.overtaken()
		return
	}
	current := e.GetFormation() == present
	switch e.GetType() {
	case mcrdmav1.GroupChanged_TYPE_VIEW:
		if current && l.re.next.GetFormation() <= present { // otherwise it was before the next formation
			l.learn(l.viewTold(e), true)
		}
	case mcrdmav1.GroupChanged_TYPE_REMOVED:
		l.takenOut(e, current)
	case mcrdmav1.GroupChanged_TYPE_REFORM:
		if current {
			l.fail(&formationError{err: errors.New(e.GetText())})
		}
	case mcrdmav1.GroupChanged_TYPE_TREE, mcrdmav1.GroupChanged_TYPE_ROUTE:
		if current && len(e.GetTree()) > 0 { // daemons of older releases send none
			l.tree = e.GetTree()
		}
	}
	if t := passedOn[e.GetType()]; t != 0 {
		l.tell(Event{Type: t, Address: e.GetAddress(), Host: e.GetHost(), Text: e.GetText(), Formation: e.GetFormation()})
	}
}

// overtaken cuts the connecting of a formation that is to be formed anew: a member that has ended would be waited for.
func (l *life) overtaken() {
	for _, e := range l.early {
		if l.job == connecting && e.GetType() == mcrdmav1.GroupChanged_TYPE_REFORM && e.GetFormation() == l.re.next.GetFormation() {
			l.do(cut{&formationError{err: errors.New(e.GetText())}})
		}
	}
}

// passedOn are the daemon's events that the application gets as they are.
var passedOn = map[mcrdmav1.GroupChanged_Type]EventType{mcrdmav1.GroupChanged_TYPE_ROUTE: EventRoute,
	mcrdmav1.GroupChanged_TYPE_SUSPECTED: EventSuspected, mcrdmav1.GroupChanged_TYPE_RECOVERED: EventRecovered}

// takenOut: the group goes on without a member, or has, in an earlier formation.
func (l *life) takenOut(e *mcrdmav1.GroupChanged, current bool) {
	is := func(m *mcrdmav1.Member) bool { return m.GetAddress() == e.GetAddress() }
	if current {
		l.do(nudge{})
	}
	if e.GetFormation() == l.re.failed { // it can be added again
		l.re.members = slices.DeleteFunc(slices.Clone(l.re.members), is)
	}
	if i := slices.IndexFunc(l.members, is); current && i >= 0 {
		l.departs(peerOf(l.members[i]), l.sure())
		if l.view.Number == 0 {
			l.view.Members = slices.DeleteFunc(slices.Clone(l.view.Members), func(p Peer) bool { return p.Address == e.GetAddress() })
		}
		l.members = slices.Delete(slices.Clone(l.members), i, i+1)
		l.do(changed{})
	}
	if d := l.departed[e.GetAddress()]; d != nil && !slices.ContainsFunc(l.members, is) { // otherwise it was removed before it was added
		d.Why = e.GetText()
		l.removed(d)
	}
}

func (l *life) viewTold(e *mcrdmav1.GroupChanged) View {
	v := View{Number: e.GetView(), Formation: e.GetFormation()}
	for _, address := range e.GetMembers() {
		p := Peer{Address: address}
		for _, m := range l.info.GetMembers() {
			if m.GetAddress() == address {
				p.Host, p.QPN = m.GetHost(), m.GetQpn()
			}
		}
		v.Members = append(v.Members, p)
	}
	marked(v.Members, l.from)
	return v
}

// resumed: a daemon that has come back knows the group in this formation.
func (l *life) resumed(after *mcrdmav1.FormationInfo) {
	e := &mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_VIEW, Formation: after.GetFormation(), View: after.GetView()}
	for _, m := range after.GetMembers() {
		e.Members = append(e.Members, m.GetAddress())
	}
	l.changed(e)
	if l.state != active || after.GetFormation() != l.info.GetFormation() {
		return
	}
	l.tell(Event{Type: EventResumed, Formation: after.GetFormation()})
	l.compare(l.members, after, l.sure())
	l.members = slices.DeleteFunc(slices.Clone(l.members), func(m *mcrdmav1.Member) bool { return !among(after.GetMembers(), m.GetAddress()) })
	l.do(changed{})
	l.do(nudge{})
}

// absent returns the reason why a receiver that was to be added is no member. It may have joined a
// formation that did not begin, and left.
func (l *life) absent(receiver string) error {
	for _, d := range l.info.GetDepartures() {
		if d.GetAddress() == receiver || d.GetHost() == receiver {
			e := newError(mcrdmav1.Reason_UNREACHABLE, "receiver %s was removed before the group went on: %s", receiver, d.GetText())
			e.Host = cmp.Or(d.GetHost(), d.GetAddress())
			return e
		}
	}
	return absent(l.info.GetAbsent(), receiver)
}

// absent returns the reason why a receiver to be added is not in a formation.
func absent(list []*mcrdmav1.Absent, receiver string) error {
	for _, a := range list {
		if a.GetAddress() == receiver || a.GetHost() == receiver {
			e := newError(a.GetReason(), "receiver %s could not be taken in: %s", receiver, a.GetText())
			e.Host = cmp.Or(a.GetHost(), a.GetAddress())
			return e
		}
	}
	// A daemon of an earlier release does not say why.
	return newError(mcrdmav1.Reason_UNREACHABLE, "receiver %s could not be taken in; its daemon, or this host's, says why", receiver)
}
