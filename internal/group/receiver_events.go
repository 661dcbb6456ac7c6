package group

import (
	"fmt"
	"slices"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// Prepare is a call of the sender's daemon that asks for a receiver.
func (r *Memberships) Prepare(call uint64, in Invitation, now time.Time) {
	x := r.in(in.Formation)
	if x == nil || x.content != in.Content {
		var err error
		if x, err = r.invite(in, now); err != nil {
			r.respond(call, nil, err)
			return
		}
	}
	if x.state == membershipAsked {
		x.calls = append(x.calls, call)
		return
	}
	r.respond(call, x.answer, nil)
}

// invite creates a membership, and asks the application.
func (r *Memberships) invite(in Invitation, now time.Time) (*membership, error) {
	if in.Closed != nil {
		return nil, in.Closed
	}
	if in.Formation < r.last || in.Formation == r.last && in.Content != r.content {
		f := failure.New(mcrdmav1.Reason_STALE, "formation %d of the group is there already, and %d is asked for with another content", r.last, in.Formation)
		f.Formation = r.last
		return nil, f
	}
	if in.Formation <= r.gone.formation { // the news of that end, which may be late, would end this one
		f := failure.New(mcrdmav1.Reason_STALE, "this host's membership in formation %d of the group has ended (%s): try again", r.gone.formation, r.gone.why)
		f.Formation = r.gone.formation
		return nil, f
	}
	var previous *membership
	live := r.live()
	for _, x := range live {
		if x.Memory != in.Memory {
			return nil, failure.New(mcrdmav1.Reason_INVALID, "the regions of a group stay as they are: %d bytes, and not %d", x.Memory, in.Memory)
		}
		if x.state == membershipFormed {
			previous = x
		}
	}
	if previous != nil && in.Joins {
		r.end(previous, mcrdmav1.Detached_REASON_REMOVED, "the sender has begun anew with this host")
		return nil, failure.New(mcrdmav1.Reason_STALE, "this host's membership of before has only now ended: try again")
	}
	before := uint64(0)
	if previous != nil {
		in.User, before = previous.User, previous.Attach
	}
	switch {
	case in.User.Token == "" && in.Ended != "":
		return nil, failure.New(mcrdmav1.Reason_NO_SERVICE, "the application that listened for the service %q, %s, has ended: start it again", in.Service, in.Ended)
	case in.User.Token == "":
		return nil, failure.New(mcrdmav1.Reason_NO_SERVICE, "no application listens for the service %q: start it, or correct the name", in.Service)
	case len(r.list) >= MaxFormations:
		return nil, failure.New(mcrdmav1.Reason_LIMIT, "%d formations of the group are there, and none of them is given up: drop those that are not to be", len(r.list))
	case len(live) == 0 && in.Full != nil:
		return nil, in.Full
	}
	in.Since = now
	x := &membership{Membership: in.Membership, content: in.Content, request: in.Request, expires: now.Add(in.Lease), resumed: true}
	r.list = append(r.list, x)
	r.last, r.content = in.Formation, in.Content
	r.do(Ask{in, before})
	return x, nil
}

// Cancelled says that the caller no longer waits for a call.
func (r *Memberships) Cancelled(call uint64) {
	r.drops = slices.DeleteFunc(r.drops, func(c uint64) bool { return c == call })
	for _, x := range r.live() {
		x.writers = slices.DeleteFunc(x.writers, func(w writer) bool { return w.call == call })
		n := len(x.calls)
		x.calls = slices.DeleteFunc(x.calls, func(c uint64) bool { return c == call })
		if n == 1 && len(x.calls) == 0 {
			r.end(x, mcrdmav1.Detached_REASON_ABORTED, "the sender did not wait for an answer any longer")
		}
	}
}

// Question returns the invitation that an application has not answered.
func (r *Memberships) Question(token string, attach uint64) (*mcrdmav1.PrepareRequest, error) {
	x := r.of(token, attach)
	switch {
	case x == nil:
		return nil, failure.New(mcrdmav1.Reason_NOT_FOUND, "attachment %d is no longer asked for", attach)
	case x.state != membershipAsked:
		return nil, failure.New(mcrdmav1.Reason_STALE, "attachment %d has been answered", attach)
	}
	return x.request, nil
}

// Answer is an application's answer to its Question; refused, if not nil, is the reason why it does
// not join.
func (r *Memberships) Answer(token string, attach uint64, answer *mcrdmav1.PrepareResponse, refused error) error {
	if _, err := r.Question(token, attach); err != nil {
		return err
	}
	x := r.of(token, attach)
	for _, call := range x.calls {
		r.respond(call, answer, refused)
	}
	x.calls, x.answer, x.state = nil, answer, membershipReady
	if refused != nil {
		r.end(x, mcrdmav1.Detached_REASON_UNSPECIFIED, refused.Error())
	}
	return nil
}

// Commit is a call of the sender's daemon: a formation is complete, with its view.
func (r *Memberships) Commit(call uint64, info *mcrdmav1.FormationInfo, v RecordedView) {
	x := r.in(info.GetFormation())
	if x == nil || x.state == membershipAsked {
		r.respond(call, nil, failure.New(mcrdmav1.Reason_NO_SERVICE, "it is not in the group any longer: %s", r.missing(info.GetFormation())))
		return
	}
	x.info, x.Path, x.MCID = info, info.GetPath(), info.GetMcId()
	if x.state == membershipFormed {
		r.tellFormed(x) // this daemon may have been restarted before it told its application
		r.supersede(x)
		r.recordView(call, x, v)
		return
	}
	x.writers = append(x.writers, writer{call, v.View})
	if x.wanted.View <= v.View {
		x.wanted = v
	}
	if x.state = membershipCommitting; !x.writing {
		r.write(x)
	}
}

// RecordView is a call of the sender's daemon with a new view.
func (r *Memberships) RecordView(call uint64, formation uint32, v RecordedView) {
	x, live := r.in(formation), r.live()
	switch {
	case len(live) == 0:
		r.respond(call, nil, failure.New(mcrdmav1.Reason_NOT_FOUND, "no application of this host is a member of the group"))
	case x == nil:
		f := failure.New(mcrdmav1.Reason_STALE, "a view of formation %d, and the group is at formation %d here", formation, live[len(live)-1].Formation)
		f.Formation = live[len(live)-1].Formation
		r.respond(call, nil, f)
	case x.state != membershipFormed:
		r.respond(call, nil, failure.New(mcrdmav1.Reason_NOT_FOUND, "formation %d of the group is not complete here", formation))
	default:
		r.recordView(call, x, v)
	}
}

// recordView answers a call when the view, or a later one, is durable.
func (r *Memberships) recordView(call uint64, x *membership, v RecordedView) {
	switch {
	case v.View == x.wanted.View && v.View != 0 && !v.same(x.wanted):
		r.respond(call, nil, failure.New(mcrdmav1.Reason_STALE, "view %d of the group has other members here", v.View))
		return
	case v.View <= x.View:
		r.respond(call, nil, nil)
		return
	case v.View > x.wanted.View:
		x.wanted = v
	}
	x.writers = append(x.writers, writer{call, v.View})
	if !x.writing {
		r.write(x)
	}
}

// write begins to make a membership durable with the latest view. A view whose write failed, which
// may be on disk, is written again with the next one.
func (r *Memberships) write(x *membership) {
	x.writing, x.stored, x.underWay = true, true, x.wanted
	record := x.Membership
	record.RecordedView = x.underWay
	r.do(PutMembership{record, x.info})
}

// Recorded is the outcome of PutMembership.
func (r *Memberships) Recorded(attach uint64, err error, now time.Time) {
	i := slices.IndexFunc(r.list, func(x *membership) bool { return x.Attach == attach && x.writing })
	if i < 0 {
		return
	}
	x := r.list[i]
	x.writing = false
	switch {
	case x.state == membershipEnded:
		r.remove(x)
		return
	case err != nil:
		if x.state == membershipCommitting {
			x.state = membershipReady
		}
		for _, w := range x.writers {
			r.respond(w.call, nil, err)
		}
		x.writers = nil
		return
	}
	x.RecordedView = x.underWay
	if x.state == membershipCommitting {
		x.state, x.expires = membershipFormed, now.Add(x.Lease)
		r.tellFormed(x)
		r.supersede(x)
	}
	x.writers = slices.DeleteFunc(x.writers, func(w writer) bool {
		done := w.view <= x.View
		if done {
			r.respond(w.call, nil, nil)
		}
		return done
	})
	if x.wanted.View > x.View {
		r.write(x)
	}
}

// Deleted is the outcome of DeleteMembership.
func (r *Memberships) Deleted(attach uint64) {
	r.deleting = slices.DeleteFunc(r.deleting, func(a uint64) bool { return a == attach })
	r.answerDrops()
}

// Drop is a call of the sender's daemon that ends a formation, or (0) all. It succeeds when that is
// durable: until then the caller repeats it, if this daemon restarts. A formation that was given up
// but is complete here, and so has ended the one before, stays until the next one takes its place.
func (r *Memberships) Drop(call uint64, formation uint32, reason mcrdmav1.Detached_Reason, text string) {
	for _, x := range r.live() {
		stays := x.state == membershipFormed && !x.Joins && reason == mcrdmav1.Detached_REASON_ABORTED
		if formation == 0 || x.Formation == formation && !stays {
			r.end(x, reason, text)
		}
	}
	if formation == 0 || formation >= r.gone.formation {
		r.gone = gone{}
	}
	r.drops = append(r.drops, call)
	r.answerDrops()
}

// Beat says that the sender's daemon is alive, and has its group in a formation. Beat reports whether there
// is a membership in that formation, or a later one, and if not, why.
func (r *Memberships) Beat(formation uint32, now time.Time) (why string, known bool) {
	for _, x := range r.live() {
		x.expires = now.Add(x.Lease)
		known = known || x.Formation >= formation
		if x.Formation == formation && x.state == membershipFormed {
			r.supersede(x) // after a restart, which came before the end of the others was durable
		}
	}
	if known {
		return "", true
	}
	return r.missing(formation), false
}

// missing returns why there is no membership in a formation.
func (r *Memberships) missing(formation uint32) string {
	if r.gone.formation >= max(formation, 1) {
		return r.gone.why
	}
	return "the host's daemon does not know the membership"
}

// Leave ends a membership as its application asks.
func (r *Memberships) Leave(token string, attach uint64, text string, now time.Time) error {
	x := r.of(token, attach)
	if x == nil {
		return failure.New(mcrdmav1.Reason_NOT_FOUND, "there is no attachment %d", attach)
	}
	r.endHere(x, mcrdmav1.Detached_REASON_UNSPECIFIED, text, now)
	return nil
}

// Resume says that an application still has a membership, after it or its daemon was away. It is told again
// that the membership is formed, because it may have missed that. Resume reports whether there is
// one.
func (r *Memberships) Resume(token string, attach uint64, formation uint32) bool {
	x := r.of(token, attach)
	if x == nil || x.Formation != formation {
		return false
	}
	x.resumed = true
	if x.state == membershipFormed && x.info != nil {
		r.tellFormed(x)
	}
	return true
}

// SessionEnded ends all memberships of an application that has ended.
func (r *Memberships) SessionEnded(token, why string, now time.Time) {
	for _, x := range r.live() {
		if x.User.Token == token {
			r.endHere(x, mcrdmav1.Detached_REASON_UNSPECIFIED, why, now)
		}
	}
}

// Stop ends all memberships, because the host is taken out of service.
func (r *Memberships) Stop(why string, now time.Time) {
	for _, x := range r.live() {
		r.endHere(x, mcrdmav1.Detached_REASON_REMOVED, why, now)
	}
}

// Tick ends memberships whose sender is silent, and, after the grace time, those whose application
// has not reconnected.
func (r *Memberships) Tick(now time.Time, graceOver bool) {
	for _, x := range r.live() {
		switch {
		case now.After(x.expires):
			r.endHere(x, mcrdmav1.Detached_REASON_SENDER_LOST, "nothing was heard of the sender's daemon for "+x.Lease.String()+x.lastView(), now)
		case graceOver && !x.resumed:
			r.endHere(x, mcrdmav1.Detached_REASON_UNSPECIFIED, "its application has not come back after the daemon's restart", now)
		}
	}
	if now.After(r.gone.until) {
		r.gone = gone{}
	}
}

// lastView names the receivers that have every acknowledged operation. The sender is gone, so only
// they know.
func (x *membership) lastView() string {
	if x.View == 0 {
		return ""
	}
	var names []string
	for _, m := range x.Members {
		names = append(names, m.Host+" ("+m.Addr.String()+")")
	}
	return fmt.Sprintf("; the members of its last view, %d, are %s", x.View, strings.Join(names, ", "))
}
