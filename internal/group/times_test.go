package group

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

var errNoAnswer = failure.New(mcrdmav1.Reason_UNREACHABLE, "no answer")

// save has all writes succeed, and returns the other actions.
func save(s *Sender, now time.Time) (list []SenderAction) {
	for out := s.Take(); len(out) > 0; out = s.Take() {
		for _, a := range out {
			if x, ok := a.(SaveGroup); ok {
				s.Recorded(x.Version, nil, now)
			} else {
				list = append(list, a)
			}
		}
	}
	return list
}

// kinds are actions by type, sorted.
func kinds(list []SenderAction) []string {
	var out []string
	for _, a := range list {
		out = append(out, strings.TrimPrefix(fmt.Sprintf("%T", a), "group."))
	}
	slices.Sort(out)
	return out
}

// TestUndoes: what has to be undone elsewhere is tried again, each time after twice the time,
// up to four seconds, until its lease has ended. A caller waits for two seconds.
func TestUndoes(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	s.Close(5, Ending{Reason: mcrdmav1.Detached_REASON_CLOSED, Text: "closed"}, now)
	list := save(s, now)
	if got := kinds(list); !slices.Equal(got, []string{"CancelCalls", "CleanUp", "CleanUp", "CleanUp", "SenderEnded"}) {
		t.Fatalf("%v", got)
	}
	var jobs []Job
	for _, a := range list {
		if a, ok := a.(CleanUp); ok {
			jobs = append(jobs, a.Job)
		}
	}
	if jobs[0].Addr != agentTen && jobs[0].Addr != agentOne || jobs[0].MCID != 9 || jobs[0].Formation != 0 || jobs[0].Reason != mcrdmav1.Detached_REASON_CLOSED ||
		jobs[0].Text != "closed" || jobs[2].Addr.IsValid() || jobs[2].MCID != 9 {
		t.Errorf("%+v", jobs)
	}
	if s.Deadline() != now.Add(2*time.Second) {
		t.Errorf("the caller waits until %v", s.Deadline())
	}
	begin := now
	for _, wait := range []time.Duration{500, 1000, 2000, 4000, 4000, 4000} {
		for _, j := range jobs {
			s.Cleaned(j.ID, errNoAnswer, now)
		}
		s.Take()
		next := now.Add(wait * time.Millisecond)
		if s.Tick(next.Add(-1)); len(done[CleanUp](s)) != 0 {
			t.Errorf("%v after the end, it is tried too soon", now.Sub(begin))
		}
		now = next
		s.Tick(now)
		if n := len(done[CleanUp](s)); n != 3 {
			t.Errorf("%v after the end, %d are tried", now.Sub(begin), n)
		}
	}
	s.Cleaned(jobs[2].ID, nil, now)
	s.Cleaned(jobs[0].ID, nil, now)
	if free := done[FreeNumber](s); len(free) != 0 {
		t.Error("a number is free, and a receiver has it")
	}
	s.Cleaned(jobs[1].ID, errNoAnswer, begin.Add(time.Minute)) // its lease is up, but not more
	if s.state == Closed {
		t.Error("closed")
	}
	now = begin.Add(time.Minute + 4*time.Second)
	s.Tick(now)
	s.Take()
	s.Cleaned(jobs[1].ID, errNoAnswer, now)
	if list := save(s, now); !slices.Equal(kinds(list), []string{"FreeNumber"}) || s.state != Closed {
		t.Errorf("%v, %v", kinds(list), s.state)
	}

	s = bySwitches(t, begin)
	s.Close(5, Ending{Reason: mcrdmav1.Detached_REASON_CLOSED}, begin)
	save(s, begin)
	if s.Tick(begin.Add(2*time.Second - 1)); len(done[ReplySender](s)) != 0 {
		t.Error("the caller has an answer too soon")
	}
	if s.Tick(begin.Add(2 * time.Second)); len(done[ReplySender](s)) != 1 {
		t.Error("the caller has no answer")
	}
	// Another caller has two seconds as well.
	s.Close(6, Ending{}, begin.Add(time.Hour))
	if s.Tick(begin.Add(time.Hour + 2*time.Second - 1)); len(done[ReplySender](s)) != 0 {
		t.Error("the second caller has an answer too soon")
	}
	if s.Tick(begin.Add(time.Hour + 2*time.Second)); len(done[ReplySender](s)) != 1 {
		t.Error("the second caller has no answer")
	}
}

// TestViewTimes: a daemon that is away is asked after 100 ms to record a view, and an application
// has five seconds to acknowledge it.
func TestViewTimes(t *testing.T) {
	now := time.Unix(1000, 0)
	s := formed(t, Installation{Path: mcrdmav1.Path_PATH_SWITCH, Left: true}, true, now)
	s.Take()
	view := s.form.View
	s.Lose(agentTen, Loss{Label: "dead", Why: "silent"}, now)
	list := save(s, now)
	if got := kinds(list); !slices.Equal(got, []string{"RecordMembers", "TellSender"}) || s.state != Removing || s.removal.next.View != view+1 {
		t.Fatalf("%v, %v", got, s.state)
	}
	if !s.Deadline().Equal(now.Add(5 * time.Second)) {
		t.Errorf("the application has until %v", s.Deadline())
	}
	s.ViewRecorded(view+1, agentOne, errNoAnswer, now)
	if !s.Deadline().Equal(now.Add(100 * time.Millisecond)) {
		t.Errorf("asked again at %v", s.Deadline())
	}
	if s.Tick(now.Add(100*time.Millisecond - 1)); len(done[RecordMembers](s)) != 0 {
		t.Error("asked again too soon")
	}
	if s.Tick(now.Add(100 * time.Millisecond)); len(done[RecordMembers](s)) != 1 {
		t.Error("not asked again")
	}
	s.ViewRecorded(view+1, agentOne, nil, now)
	if s.Tick(now.Add(5*time.Second - 1)); s.state != Removing {
		t.Fatal(s.state)
	}
	s.AckView(3, view+2, now) // which is not there
	if r := done[ReplySender](s); len(r) != 1 || failure.Of(r[0].Err).Reason != mcrdmav1.Reason_STALE {
		t.Errorf("%+v", r)
	}
	if s.Tick(now.Add(5 * time.Second)); s.state != Closing || s.end.Cause != mcrdmav1.Reason_TIMEOUT {
		t.Errorf("%v, %+v", s.state, s.end)
	}

	s = formed(t, Installation{Path: mcrdmav1.Path_PATH_SWITCH, Left: true}, true, now)
	s.Take()
	s.Lose(agentTen, Loss{Label: "dead", Why: "silent"}, now)
	save(s, now)
	s.ViewRecorded(view+1, agentOne, nil, now)
	if s.AckView(3, view+1, now); len(done[UpdateSwitch](s)) != 1 {
		t.Fatal("the switches do not go on")
	}
	s.Updated(view+1, nil, now)
	var told []string
	for _, a := range save(s, now) {
		switch a := a.(type) {
		case TellSender:
			told = append(told, fmt.Sprint(a.Type, " ", a.Member.Addr, " ", a.Text, " ", a.Label))
		case CleanUp:
			if a.Job.Addr != agentTen || a.Job.MCID != 0 || a.Job.Formation != 0 || a.Job.Reason != mcrdmav1.Detached_REASON_REMOVED || a.Job.Text != "silent" {
				t.Errorf("%+v", a)
			}
		}
	}
	if !slices.Equal(told, []string{"TYPE_REMOVED 10.0.0.10 : silent dead"}) || s.state != Active || len(s.form.Receivers) != 1 || s.form.View != view+1 {
		t.Errorf("%q, %v, %+v", told, s.state, s.form)
	}
}

// TestRemovalBeforeTheEnd: a removal that the switches perhaps know is told, though the group is
// closed before they have answered.
func TestRemovalBeforeTheEnd(t *testing.T) {
	now := time.Unix(1000, 0)
	s := formed(t, Installation{Path: mcrdmav1.Path_PATH_SWITCH, Left: true}, false, now)
	view := s.view
	s.Take()
	s.Lose(agentTen, Loss{Label: "dead", Why: "silent"}, now)
	save(s, now)
	s.ViewRecorded(view+1, agentOne, nil, now)
	if len(done[UpdateSwitch](s)) != 1 {
		t.Fatal("the switches do not go on")
	}
	s.Close(7, Ending{Reason: mcrdmav1.Detached_REASON_CLOSED}, now)
	var told []string
	for _, a := range save(s, now) {
		switch a := a.(type) {
		case TellSender:
			told = append(told, fmt.Sprint(a.Type, " ", a.Member.Addr, " ", a.Text, " ", a.Label))
		case SenderEnded:
			told = append(told, "ended")
		}
	}
	s.Updated(view+1, nil, now)
	if more := done[TellSender](s); !slices.Equal(told, []string{"TYPE_REMOVED 10.0.0.10 : silent dead", "ended"}) || len(more) > 0 {
		t.Errorf("%q, %v", told, more)
	}
}

// TestDrawnAgain: a tree that the agent did not tell in time is asked for again.
func TestDrawnAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	s.News(s.form.MCID, nil, now)
	if d := done[DrawTree](s); len(d) != 1 {
		t.Fatal(d)
	}
	s.Drawn(s.form, nil, nil, now)
	if at := s.Deadline(); !at.Equal(now.Add(firstRetry)) {
		t.Error(at)
	}
	now = now.Add(firstRetry)
	if s.Tick(now); len(done[DrawTree](s)) != 1 {
		t.Error("it is not asked for again")
	}
	s.Drawn(s.form, []string{"a tree"}, []string{"because"}, now)
	if s.Tick(now.Add(time.Hour)); len(done[DrawTree](s)) != 0 || s.form.Tree[0] != "a tree" || s.form.Why[0] != "because" {
		t.Errorf("%+v", s.form)
	}
}

// TestChooses: who is in the next formation. A receiver that was suspected in three formations in
// a row is not, nor one that is lost.
func TestChooses(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	if r := s.record(); r.Views != s.view+16 {
		t.Errorf("the record permits views up to %d, after %d", r.Views, s.view)
	}
	choose := func(suspects, add []netip.Addr, want []netip.Addr, lost int) {
		t.Helper()
		r := &request{again: &Again{Formation: s.form.N, Suspects: suspects, Add: add}}
		if err := s.choose(r); err != nil || !slices.Equal(r.candidates, want) || len(r.lost) != lost || !slices.Equal(r.joining, add) {
			t.Errorf("formation %d: %v, %v are lost, %v join, %v", s.form.N, r.candidates, r.lost, r.joining, err)
		}
	}
	next := func() {
		f := *s.form
		f.N++
		s.form = &f
	}
	all := s.form.Addrs()
	other := slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return a == agentOne })
	suspect := []netip.Addr{agentOne}
	choose(suspect, nil, all, 0)
	choose(suspect, nil, all, 0) // the same formation
	next()
	choose(suspect, nil, all, 0)
	choose(suspect, nil, all, 0) // the same formation
	next()
	choose(nil, nil, all, 0) // not in a row
	next()
	choose(suspect, nil, all, 0)
	next()
	choose(suspect, nil, all, 0)
	next()
	choose(suspect, nil, other, 1)
	next()
	s.lost[agentTen] = Loss{Label: "dead", Why: "silent"}
	choose(nil, nil, suspect, 1)
	joins := []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 20})}
	s.departures = []Departure{{Addr: joins[0]}, {Addr: agentTen}}
	choose(nil, joins, slices.Concat(suspect, joins), 1)
	if len(s.departures) != 1 || s.departures[0].Addr != agentTen {
		t.Errorf("out are %v", s.departures)
	}
	delete(s.lost, agentTen)
	for i := range 15 {
		joins = append(joins, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}))
	}
	choose(nil, joins[:14], slices.Concat(all, joins[:14]), 0)
	for _, c := range []struct {
		again Again
		want  mcrdmav1.Reason
	}{
		{Again{Formation: s.form.N - 1}, mcrdmav1.Reason_STALE},
		{Again{Formation: s.form.N + 1}, mcrdmav1.Reason_STALE},
		{Again{Formation: s.form.N, Add: joins[:15]}, mcrdmav1.Reason_TOO_MANY_RECEIVERS},
		{Again{Formation: s.form.N, Add: suspect}, mcrdmav1.Reason_DUPLICATE_ADDRESS},
	} {
		if err := s.choose(&request{again: &c.again}); err == nil || failure.Of(err).Reason != c.want {
			t.Errorf("%+v: %v, want %v", c.again, err, c.want)
		}
	}
}

// TestRestored: what a group does first after a restart of its daemon.
func TestRestored(t *testing.T) {
	now := time.Unix(1000, 0)
	form := *bySwitches(t, now).form
	relayed := form
	relayed.Path = mcrdmav1.Path_PATH_RELAY
	with := SenderConfig{MinSize: 2, Switch: "tor", MemberLease: time.Minute, GroupLease: time.Hour, Grace: time.Minute}
	without := with
	without.Switch = ""
	for _, c := range []struct {
		name    string
		cfg     SenderConfig
		record  SenderRecord
		state   SenderState
		text    string // of the first event
		actions []string
	}{
		{"as it was", with, SenderRecord{Form: &form}, Active, "", nil},
		{"no agent any longer", without, SenderRecord{Form: &form}, Broken, "no switch agent is configured", []string{"TellSender"}},
		{"relayed", with, SenderRecord{Form: &relayed}, Active, "", []string{"CleanUp"}},
		{"relayed without an agent", without, SenderRecord{Form: &relayed}, Active, "", nil},
		{"formed anew", with, SenderRecord{Form: &form, Forming: &Begun{form.N + 1, 10, form.Addrs()}}, Broken, "while the group was formed anew",
			[]string{"CleanUp", "CleanUp", "CleanUp", "TellSender"}},
		{"formed for the first time", with, SenderRecord{Forming: &Begun{1, 10, form.Addrs()}}, Closing, "", []string{"CleanUp", "CleanUp", "CleanUp"}},
		{"ended", with, SenderRecord{Form: &form, Ended: &Ending{Reason: mcrdmav1.Detached_REASON_CLOSED}}, Closing, "", []string{"CleanUp", "CleanUp", "CleanUp"}},
	} {
		s := RestoreSender(c.cfg, &c.record, now)
		list, text := save(s, now), ""
		for _, a := range list {
			if a, ok := a.(TellSender); ok {
				text = a.Text
			}
		}
		if got := kinds(list); s.state != c.state || !slices.Equal(got, c.actions) || (text == "") != (c.text == "") || !strings.Contains(text, c.text) {
			t.Errorf("%s: %v, %v, %q", c.name, s.state, got, text)
		}
		if s.state == Active {
			if s.Tick(now.Add(time.Minute - 1)); s.state != Active {
				t.Errorf("%s: %v before the end of the grace", c.name, s.state)
			}
			if s.Tick(now.Add(time.Minute)); s.state != Closing || s.end.Reason != mcrdmav1.Detached_REASON_SENDER_LOST {
				t.Errorf("%s: %v after the grace", c.name, s.state)
			}
		}
	}
}

// TestLeases: a membership ends when nothing was heard for longer than its lease, and why is kept
// for five minutes, or for the lease if that is less.
func TestLeases(t *testing.T) {
	begin := time.Unix(1000, 0)
	for _, c := range []struct{ lease, kept time.Duration }{{time.Minute, time.Minute}, {time.Hour, 5 * time.Minute}} {
		var r Memberships
		r.Load(Membership{Formation: 3, Attach: 1, Lease: c.lease}, nil, begin)
		now := begin.Add(time.Second)
		if why, known := r.Beat(3, now); why != "" || !known {
			t.Errorf("%q, %v", why, known)
		}
		if _, known := r.Beat(2, now); !known {
			t.Error("a beat of an earlier formation is not known")
		}
		if r.Tick(now.Add(c.lease), false); len(r.live()) != 1 {
			t.Error("ended too soon")
		}
		now = now.Add(c.lease + 1)
		if r.Tick(now, false); len(r.live()) != 0 || r.Idle() {
			t.Errorf("%d left, idle: %v", len(r.live()), r.Idle())
		}
		r.Deleted(1)
		r.Tick(now.Add(c.kept), false)
		if why, known := r.Beat(3, now); !strings.Contains(why, c.lease.String()) || known {
			t.Errorf("%q, %v", why, known)
		}
		if why, _ := r.Beat(4, now); strings.Contains(why, c.lease.String()) {
			t.Errorf("of a later formation: %q", why)
		}
		if r.Tick(now.Add(c.kept+1), false); !r.Idle() {
			t.Error("why it has ended is kept")
		}
	}
	var r Memberships
	r.Load(Membership{Formation: 3, Attach: 1, Lease: time.Hour}, nil, begin)
	if r.Tick(begin, true); len(r.live()) != 0 {
		t.Error("no application has come back, and the membership is there")
	}
}

// TestManyFormations: four at a time, and no other until one of them ends.
func TestManyFormations(t *testing.T) {
	var r Memberships
	now := time.Unix(1000, 0)
	in := func(n uint32) Invitation {
		x := Invitation{Membership: Membership{Formation: n, Attach: uint64(n), Lease: time.Minute, Memory: 7}, Content: fmt.Sprint(n)}
		x.User.Token = "token"
		return x
	}
	refusals := func() (list []error) {
		for _, a := range r.Take() {
			if a, ok := a.(Respond); ok {
				list = append(list, a.Err)
			}
		}
		return list
	}
	for n := uint32(1); n <= 4; n++ {
		r.Prepare(uint64(n), in(n), now)
	}
	if got := refusals(); len(got) != 0 || len(r.live()) != 4 {
		t.Fatalf("%v", got)
	}
	r.Prepare(5, in(5), now)
	if got := refusals(); len(got) != 1 || failure.Of(got[0]).Reason != mcrdmav1.Reason_LIMIT {
		t.Errorf("the fifth: %v", got)
	}
	r.Prepare(6, in(3), now)
	if got := refusals(); len(got) != 0 {
		t.Errorf("the third again: %v", got)
	}
	other := in(4)
	other.Content = "another"
	r.Prepare(7, other, now)
	r.Prepare(8, Invitation{Membership: Membership{Formation: 2, Attach: 9}, Content: "another"}, now)
	for _, err := range refusals() {
		if e := failure.Of(err); e.Reason != mcrdmav1.Reason_STALE || e.Formation != 4 {
			t.Errorf("%+v", e)
		}
	}
	bad := in(5)
	bad.Memory = 8
	r.Prepare(9, bad, now)
	if got := refusals(); len(got) != 1 || failure.Of(got[0]).Reason != mcrdmav1.Reason_INVALID {
		t.Errorf("other memory: %v", got)
	}
	r.Cancelled(3)
	if len(r.live()) != 4 {
		t.Error("ended, and a call waits")
	}
	r.Cancelled(6)
	if len(r.live()) != 3 {
		t.Error("not ended, and no call waits")
	}
	r.Take()
	var empty Memberships
	closed := in(1)
	closed.Closed = errors.New("out of service")
	empty.Prepare(1, closed, now)
	without := in(1)
	without.User.Token = ""
	empty.Prepare(2, without, now)
	full := in(1)
	full.Full = errors.New("no memory")
	empty.Prepare(3, full, now)
	r = empty
	if got := refusals(); len(got) != 3 || !errors.Is(got[0], closed.Closed) || failure.Of(got[1]).Reason != mcrdmav1.Reason_NO_SERVICE || !errors.Is(got[2], full.Full) || len(r.list) != 0 {
		t.Errorf("%v", got)
	}
}

// TestUndoneWithoutAway: a formation is undone when all hosts have answered that can be reached; the others are asked
// again later. An agent that cannot be reached is waited for.
func TestUndoneWithoutAway(t *testing.T) {
	now := time.Unix(1000, 0)
	late := failure.New(mcrdmav1.Reason_TIMEOUT, "late")
	for _, c := range []struct {
		host, agent error
		undone      bool
	}{{nil, nil, true}, {errNoAnswer, nil, true}, {late, nil, false}, {nil, errNoAnswer, false}} {
		s := bySwitches(t, now)
		s.state = Reforming
		s.try = &try{request: &request{was: Broken}, phase: undoing, f: &Formation{N: 2, MCID: 77}, left: true, err: &lateError{late},
			reached: map[netip.Addr]bool{agentOne: true, agentTen: true}}
		s.step(now)
		for _, a := range done[CleanUp](s) {
			switch a.Job.Addr {
			case agentOne:
				s.Cleaned(a.Job.ID, nil, now)
			case agentTen:
				s.Cleaned(a.Job.ID, c.host, now)
			default:
				s.Cleaned(a.Job.ID, c.agent, now)
			}
		}
		if undone := s.try == nil; undone != c.undone || s.undoing(77) != (c.host != nil || c.agent != nil) {
			t.Errorf("%v, %v: undone is %v", c.host, c.agent, undone)
		}
	}
}
