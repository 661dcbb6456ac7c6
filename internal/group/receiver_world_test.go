package group

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A hostWorld is a receiver's host around Memberships: a store whose writes take time, fail or
// are lost with the daemon, applications, and calls of the sender's daemon. It holds all that
// the machine does against what it has seen itself.
type hostWorld struct {
	r    *Memberships
	now  time.Time
	next uint64 // number of an attachment or a call

	disk    map[uint64]PutMembership
	writes  []PutMembership // under way
	deletes []uint64        // the same
	broken  bool            // a write has failed: none succeeds until the next start

	calls    map[uint64]*worldCall
	apps     map[uint64]*worldApp
	prepared map[uint32]string // what the machine was last asked for under a number
	views    map[uint32]int    // how many members each view has that was told
	may      func(*worldApp, mcrdmav1.Detached_Reason) bool
	formed   *worldApp // that was told so in this event
	gone     *worldApp // that has ended last, until the sender's daemon is told
	told     tally
	err      error
}

type worldCall struct {
	what      string
	formation uint32
	view      uint32
	app       *worldApp // of Prepare
}

// A worldApp is what the application of a membership knows, and what is known of it.
type worldApp struct {
	attach, previous uint64
	formation        uint32
	content          string
	joins            bool
	token            string
	answered         bool
	formed           bool // it was told so
	ended            bool
	loaded           bool // from a record, and its application has not come back
	expires          time.Time
}

// A tally counts what happened, so that a run that tests nothing is noticed.
type tally map[string]int

const worldLease = 30 * time.Second

func newHostWorld() *hostWorld {
	return &hostWorld{r: &Memberships{}, now: time.Unix(1e9, 0), disk: map[uint64]PutMembership{}, calls: map[uint64]*worldCall{},
		apps: map[uint64]*worldApp{}, prepared: map[uint32]string{}, views: map[uint32]int{}, told: tally{}}
}

func (w *hostWorld) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// live returns the memberships that have not ended, by number of their formations.
func (w *hostWorld) live() (out []*worldApp) {
	for _, a := range slices.Sorted(maps.Keys(w.apps)) {
		if !w.apps[a].ended {
			out = append(out, w.apps[a])
		}
	}
	return out
}

// stored says that a membership is durable.
func (w *hostWorld) stored(x *worldApp) bool { _, there := w.disk[x.attach]; return there }

func (w *hostWorld) writing(attach uint64) bool {
	return slices.ContainsFunc(w.writes, func(p PutMembership) bool { return p.Membership.Attach == attach })
}

// events calls f, which is one event, and judges what follows. Memberships may end for the
// reasons that may allows, and all of must have to.
func (w *hostWorld) event(f func(), must func(*worldApp) bool, reasons ...mcrdmav1.Detached_Reason) {
	var have []*worldApp
	for _, x := range w.live() {
		if must != nil && must(x) {
			have = append(have, x)
		}
	}
	w.may = func(x *worldApp, reason mcrdmav1.Detached_Reason) bool {
		return slices.Contains(have, x) && slices.Contains(reasons, reason)
	}
	f()
	for _, action := range w.r.Take() {
		w.act(action)
	}
	for _, x := range have {
		if !x.ended {
			w.fail("formation %d had to end", x.formation)
		}
	}
	for _, x := range w.live() {
		if w.formed != nil && x.formation < w.formed.formation {
			w.fail("formation %d is there, and %d is formed", x.formation, w.formed.formation)
		}
	}
	w.formed = nil
	for _, c := range w.calls {
		if c.what != "Prepare" && len(w.writes) == 0 && !(c.what == "Drop" && len(w.deletes) > 0) {
			w.fail("%s of formation %d, view %d waits for nothing", c.what, c.formation, c.view)
		}
		if c.what == "Prepare" && (c.app == nil || c.app.ended || c.app.answered) {
			w.fail("Prepare of formation %d waits for nothing", c.formation)
		}
	}
	for attach := range w.disk {
		if x := w.apps[attach]; x.ended && !w.broken && !w.writing(attach) && !slices.Contains(w.deletes, attach) {
			w.fail("a record of formation %d is left", x.formation)
		}
	}
	one, there := w.r.One()
	if x := w.apps[one.Attach]; there != (len(w.live()) > 0) || there && (x.ended || x.formation != one.Formation) {
		w.fail("%+v is one of the memberships: %v", one, there)
	}
	if w.r.Idle() {
		if len(w.live())+len(w.writes) > 0 {
			w.fail("the machine is idle, and %d memberships are there", len(w.live()))
		}
		clear(w.prepared)
		w.r = &Memberships{} // as the daemon does
	}
	for _, m := range w.r.Formed() {
		if d := w.disk[m.Attach]; !w.broken && d.Membership.View < m.View {
			w.fail("view %d of formation %d is told, and %d is durable", m.View, m.Formation, d.Membership.View)
		}
	}
}

// superseded says that a later formation than that of a membership is durable.
func (w *hostWorld) superseded(x *worldApp) bool {
	for _, o := range w.live() {
		if o.formation > x.formation && (o.formed || o.loaded) && w.stored(o) {
			return true
		}
	}
	return false
}

func (w *hostWorld) act(action ReceiverAction) {
	switch a := action.(type) {
	case Ask:
		w.asked(a)
	case TellFormed:
		x := w.apps[a.Attach]
		if x.ended {
			w.fail("formation %d is told to be formed after its end", x.formation)
		}
		if !w.stored(x) {
			w.fail("formation %d is told to be formed, and is not durable", x.formation)
		}
		if a.Info.GetFormation() != x.formation {
			w.fail("formation %d is told to be formed as %d", x.formation, a.Info.GetFormation())
		}
		if !x.formed && !x.loaded {
			w.told["formed"]++
			x.expires = w.now.Add(worldLease)
		}
		x.formed, w.formed = true, x
	case TellEnded:
		w.ended(a)
	case PutMembership:
		w.put(a)
	case DeleteMembership:
		if x := w.apps[a.Attach]; !x.ended || w.writing(a.Attach) {
			w.fail("formation %d is deleted: ended %v, being written %v", x.formation, x.ended, w.writing(a.Attach))
		}
		w.deletes = append(w.deletes, a.Attach)
	case TellGone:
		w.told["gone"]++
		if x := w.gone; x == nil || !x.ended || x.formation != a.Formation {
			w.fail("formation %d is told to be gone, and %+v has ended", a.Formation, x)
		}
		w.gone = nil
	case Respond:
		w.responded(a)
	default:
		w.fail("an action %T", action)
	}
}

func (w *hostWorld) asked(a Ask) {
	in := a
	if w.apps[a.Attach] != nil {
		w.fail("attachment %d is asked for twice", a.Attach)
	}
	if was, there := w.prepared[in.Formation]; there && was != in.Content {
		w.fail("formation %d is asked for as %q and as %q", in.Formation, was, in.Content)
	}
	var before *worldApp
	for _, x := range w.live() {
		if x.formation >= in.Formation {
			w.fail("formation %d is asked for after %d", in.Formation, x.formation)
		}
		if (x.formed || x.loaded) && (before == nil || x.formation > before.formation) {
			before = x
		}
	}
	if before == nil && a.Previous != 0 || before != nil && (a.Previous != before.attach || a.User.Token != before.token) {
		w.fail("formation %d is asked for as the next of attachment %d, of %q; before it was %+v", in.Formation, a.Previous, a.User.Token, before)
	}
	w.prepared[in.Formation] = in.Content
	w.apps[a.Attach] = &worldApp{attach: a.Attach, previous: a.Previous, formation: in.Formation, content: in.Content, joins: in.Joins, token: a.User.Token,
		expires: w.now.Add(worldLease)}
	w.told["asked"]++
}

func (w *hostWorld) ended(a TellEnded) {
	x := w.apps[a.Attach]
	w.told[a.Reason.String()]++
	if x.ended {
		w.fail("formation %d ends twice", x.formation)
	}
	if !w.may(x, a.Reason) && !(a.Reason == mcrdmav1.Detached_REASON_REFORMED && w.superseded(x)) {
		w.fail("formation %d ends for no reason: %v", x.formation, a)
	}
	if a.Asked == x.answered && !x.loaded {
		w.fail("formation %d ends; asked %v, answered %v", x.formation, a.Asked, x.answered)
	}
	if v := w.disk[a.Attach].Membership; a.Reason == mcrdmav1.Detached_REASON_SENDER_LOST && x.formed && v.View > 0 && !w.broken && a.Text != "dropped" && !strings.Contains(a.Text, "view") {
		w.fail("formation %d ends, and its view %d is not said: %s", x.formation, v.View, a.Text)
	}
	if x.ended, w.gone = true, nil; !a.Asked {
		w.gone = x
	}
}

func (w *hostWorld) put(a PutMembership) {
	m := a.Membership
	x := w.apps[m.Attach]
	if x.ended || w.writing(m.Attach) {
		w.fail("formation %d is written: ended %v, being written %v", x.formation, x.ended, w.writing(m.Attach))
	}
	if m.Formation != x.formation || !x.answered && !x.loaded {
		w.fail("formation %d is written as %d, answered %v", x.formation, m.Formation, x.answered)
	}
	if n, there := w.views[m.View]; m.View != 0 && (!there || n != len(m.Members)) {
		w.fail("view %d with %d members is written", m.View, len(m.Members))
	}
	if was := w.disk[m.Attach].Membership.View; m.View < was {
		w.fail("view %d is written over %d", m.View, was)
	}
	w.writes = append(w.writes, a)
}

func (w *hostWorld) responded(a Respond) {
	c := w.calls[a.Call]
	if c == nil {
		w.fail("a call is answered twice, or was cancelled")
		return
	}
	delete(w.calls, a.Call)
	if a.Err != nil {
		w.told[c.what+" refused"]++
		return
	}
	w.told[c.what]++
	if c.what == "Prepare" {
		if x := c.app; x == nil || x.ended || !x.answered || a.Answer.GetQpn() != uint32(x.attach) {
			w.fail("Prepare of formation %d is answered with %v", c.formation, a.Answer)
		}
		return
	}
	if c.what == "Drop" {
		for attach := range w.disk {
			if x := w.apps[attach]; x.ended && !w.broken {
				w.fail("Drop has succeeded, and a record of formation %d is left", x.formation)
			}
		}
		return
	}
	for _, x := range w.live() {
		if x.formation == c.formation && (x.formed || x.loaded) && w.disk[x.attach].Membership.View >= c.view && w.stored(x) {
			return
		}
	}
	w.fail("%s of formation %d, view %d has succeeded, and is not durable", c.what, c.formation, c.view)
}

// Events.

var worldAny = func(*worldApp) bool { return true }

func (w *hostWorld) call(c *worldCall) uint64 {
	w.next++
	w.calls[w.next] = c
	return w.next
}

func (w *hostWorld) prepare(formation uint32, content string, joins bool, token string) {
	c := &worldCall{what: "Prepare", formation: formation}
	call := w.call(c)
	w.next++
	attach := w.next
	var before *worldApp
	for _, x := range w.live() {
		if x.formation == formation && x.content == content {
			c.app = x
		}
		if x.formed || x.loaded {
			before = x
		}
	}
	// Some end if the sender begins anew.
	begins := func(x *worldApp) bool { return false }
	if n := w.latest(); joins && before != nil && c.app == nil && (formation > n || formation == n && w.prepared[n] == content) {
		begins = func(x *worldApp) bool { return x == before }
	}
	w.event(func() {
		w.r.Prepare(call, Invitation{Membership: Membership{Attach: attach, Formation: formation, Service: "s", Joins: joins, Memory: 1, Lease: worldLease,
			User: Owner{Token: token}}, Content: content, Request: &mcrdmav1.PrepareRequest{Formation: formation}}, w.now)
		if a := w.r.out; len(a) == 1 && c.app == nil {
			if ask, ok := a[0].(Ask); ok && ask.Attach == attach {
				w.act(ask)
				w.r.out = nil
				c.app = w.apps[attach]
			}
		}
	}, begins, mcrdmav1.Detached_REASON_REMOVED)
}

// latest is the highest number that was asked for.
func (w *hostWorld) latest() (n uint32) {
	for k := range w.prepared {
		n = max(n, k)
	}
	for _, x := range w.live() {
		n = max(n, x.formation)
	}
	return n
}

func (w *hostWorld) cancel(call uint64) {
	c := w.calls[call]
	delete(w.calls, call)
	others := 0
	for _, o := range w.calls {
		if o.app != nil && o.app == c.app {
			others++
		}
	}
	last := func(x *worldApp) bool { return x == c.app && others == 0 && !x.answered }
	w.event(func() { w.r.Cancelled(call) }, last, mcrdmav1.Detached_REASON_ABORTED)
}

func (w *hostWorld) answer(attach uint64, refuse bool) {
	x := w.apps[attach]
	var refused error
	if refuse {
		refused = errors.New("refused")
	}
	ok := !x.ended && !x.answered && !x.loaded
	is := func(o *worldApp) bool { return o == x && refuse && ok }
	w.event(func() {
		if q, err := w.r.Question(x.token, attach); (err == nil) != ok || ok && q.GetFormation() != x.formation {
			w.fail("the question of formation %d: %v, %v", x.formation, q, err)
		}
		x.answered = x.answered || ok
		err := w.r.Answer(x.token, attach, &mcrdmav1.PrepareResponse{Qpn: uint32(attach)}, refused)
		if (err == nil) != ok {
			w.fail("the answer to formation %d: %v", x.formation, err)
		}
	}, is, mcrdmav1.Detached_REASON_UNSPECIFIED)
}

func worldView(view uint32, members int) (v RecordedView) {
	for i := range members {
		v.Members = append(v.Members, ViewMember{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Host: fmt.Sprintf("h%d", i+1)})
	}
	v.View = view
	return v
}

// viewSize is how many members a view has: always the same.
func (w *hostWorld) viewSize(view uint32) int {
	if view == 0 {
		return 0
	}
	w.views[view] = 1 + int(view*7%5)
	return w.views[view]
}

func (w *hostWorld) commit(formation, view uint32) {
	call := w.call(&worldCall{what: "Commit", formation: formation, view: view})
	w.event(func() {
		w.r.Commit(call, &mcrdmav1.FormationInfo{Formation: formation, View: view}, worldView(view, w.viewSize(view)))
	}, nil)
}

func (w *hostWorld) recordView(formation, view uint32) {
	call := w.call(&worldCall{what: "RecordView", formation: formation, view: view})
	w.event(func() { w.r.RecordView(call, formation, worldView(view, w.viewSize(view))) }, nil)
}

// wrote is the outcome of the i-th write: it is there or not, and that is known or not.
func (w *hostWorld) wrote(i int, there, known bool) {
	p := w.writes[i]
	w.writes = slices.Delete(w.writes, i, i+1)
	var err error
	if !known || !there || w.broken {
		there = there && !w.broken
		err = errors.New("the disk is full")
		w.broken = true
		w.told["failed writes"]++
	}
	if there {
		w.disk[p.Membership.Attach] = p
	}
	if err == nil && w.apps[p.Membership.Attach].ended {
		w.told["written after their end"]++
	}
	w.event(func() { w.r.Recorded(p.Membership.Attach, err, w.now) }, nil)
}

func (w *hostWorld) deleted(i int) {
	attach := w.deletes[i]
	if !w.broken {
		delete(w.disk, attach)
	}
	w.deletes = slices.Delete(w.deletes, i, i+1)
	w.event(func() { w.r.Deleted(attach) }, nil)
}

func (w *hostWorld) drop(formation uint32, reason mcrdmav1.Detached_Reason) {
	has := func(x *worldApp) bool {
		formed := x.formed || x.loaded
		return formation == 0 || x.formation == formation && (!formed || x.joins || reason != mcrdmav1.Detached_REASON_ABORTED)
	}
	call := w.call(&worldCall{what: "Drop", formation: formation})
	w.event(func() { w.r.Drop(call, formation, reason, "dropped") }, has, reason)
}

func (w *hostWorld) leave(attach uint64) {
	x := w.apps[attach]
	there := !x.ended
	w.event(func() {
		if err := w.r.Leave(x.token, attach, "left", w.now); (err == nil) != there {
			w.fail("leaving formation %d: %v", x.formation, err)
		}
		if err := w.r.Leave("another", attach, "left", w.now); err == nil {
			w.fail("another application left formation %d", x.formation)
		}
	}, func(o *worldApp) bool { return o == x }, mcrdmav1.Detached_REASON_UNSPECIFIED)
}

func (w *hostWorld) resume(attach uint64) {
	x := w.apps[attach]
	there := !x.ended
	if there {
		x.formed = x.formed || x.loaded
	}
	w.event(func() {
		if w.r.Resume(x.token, attach, x.formation+1) || w.r.Resume(x.token, attach, x.formation) != there {
			w.fail("formation %d is there: %v", x.formation, there)
		}
		actions := w.r.Take()
		if there && x.formed && len(actions) != 1 {
			w.fail("formation %d is resumed, and its application is not told that it is formed", x.formation)
		}
		for _, action := range actions {
			w.act(action)
		}
		w.formed = nil // an earlier one may be there until the sender's daemon says more
	}, nil)
	if there && x.loaded {
		x.loaded, x.answered = false, true
		w.told["resumed"]++
	}
}

func (w *hostWorld) sessionEnded(token string) {
	w.event(func() { w.r.SessionEnded(token, "its application has ended", w.now) },
		func(x *worldApp) bool { return x.token == token }, mcrdmav1.Detached_REASON_UNSPECIFIED)
}

func (w *hostWorld) stop() {
	w.event(func() { w.r.Stop("the host is stopped", w.now) }, worldAny, mcrdmav1.Detached_REASON_REMOVED)
}

func (w *hostWorld) beat(formation uint32) {
	superseded := func(x *worldApp) bool {
		return x.formation < formation && slices.ContainsFunc(w.live(), func(o *worldApp) bool { return o.formation == formation && (o.formed || o.loaded) })
	}
	w.event(func() {
		want := false
		for _, x := range w.live() {
			x.expires = w.now.Add(worldLease)
			want = want || x.formation >= formation
		}
		if why, known := w.r.Beat(formation, w.now); known != want || known != (why == "") {
			w.fail("a beat in formation %d: known %v (%s), want %v", formation, known, why, want)
		}
	}, superseded, mcrdmav1.Detached_REASON_REFORMED)
}

// pass lets time pass.
func (w *hostWorld) pass(d time.Duration, graceOver bool) {
	w.now = w.now.Add(d)
	w.event(func() { w.r.Tick(w.now, graceOver) }, func(x *worldApp) bool { return w.now.After(x.expires) || graceOver && x.loaded },
		mcrdmav1.Detached_REASON_SENDER_LOST, mcrdmav1.Detached_REASON_UNSPECIFIED)
}

// restart kills the daemon and starts it again: of what was being written, some is there.
func (w *hostWorld) restart(there func() bool) {
	for _, p := range w.writes {
		if !w.broken && there() {
			w.disk[p.Membership.Attach] = p
		}
		w.told["writes cut off"]++
	}
	for _, attach := range w.deletes {
		if !w.broken && there() {
			delete(w.disk, attach)
		}
	}
	w.writes, w.deletes, w.broken = nil, nil, false
	w.r = &Memberships{}
	clear(w.calls)
	clear(w.prepared)
	for _, attach := range slices.Sorted(maps.Keys(w.apps)) {
		x := w.apps[attach]
		x.loaded, x.formed = false, false
		if p, kept := w.disk[attach]; kept {
			x.ended, x.loaded, x.formed = false, true, false
			x.expires = w.now.Add(worldLease)
			w.prepared[x.formation] = "of a record"
			w.r.Load(p.Membership, p.Info, w.now)
			w.told["loaded"]++
		} else {
			x.ended = true // its application learns that when it comes back
		}
	}
	w.told["restarts"]++
}

// settle ends all: nothing may be left.
func (w *hostWorld) settle() {
	if w.broken {
		w.restart(func() bool { return false })
	}
	flush := func() {
		for len(w.writes) > 0 && w.err == nil {
			w.wrote(0, true, true)
		}
		for len(w.deletes) > 0 {
			w.deleted(0)
		}
	}
	flush()
	w.pass(worldLease+1, false)
	flush()
	w.pass(goneTime+1, false)
	if n := len(w.live()); !w.r.Idle() || n+len(w.disk)+len(w.calls) > 0 {
		w.fail("left: idle %v, %d memberships, %d records, %d calls", w.r.Idle(), n, len(w.disk), len(w.calls))
	}
}
