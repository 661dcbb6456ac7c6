package group

import (
	"net/netip"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// TestAhead: the highest number that receivers know, if one of them is as high as the one
// that was begun, and not higher by 65,536 or more.
func TestAhead(t *testing.T) {
	stale := func(n uint32) error {
		f := failure.New(mcrdmav1.Reason_STALE, "stale")
		f.Formation = n
		return f
	}
	other := failure.New(mcrdmav1.Reason_DENIED, "no")
	other.Formation = 102
	for _, c := range []struct {
		errs []error
		want uint32
	}{
		{nil, 0}, {[]error{stale(99)}, 0}, {[]error{stale(100)}, 100}, {[]error{stale(103), stale(101)}, 103},
		{[]error{stale(100 + 65_535)}, 100 + 65_535}, {[]error{stale(100 + 65_536), stale(101)}, 101}, {[]error{errNoAnswer, other}, 0},
	} {
		try := try{f: &Formation{N: 100}, out: map[netip.Addr]error{}}
		for i, err := range c.errs {
			try.out[netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})] = err
		}
		if got := try.ahead(); got != c.want {
			t.Errorf("%v: %d, want %d", c.errs, got, c.want)
		}
	}
}

// TestHave: a formation begins after what all receivers have; one that joins has as much.
func TestHave(t *testing.T) {
	f := Formation{Sender: Endpoint{Sent: 9}, Receivers: []Receiver{{Addr: agentOne, Have: 7}, {Addr: agentTen, Have: 3}}}
	for _, c := range []struct {
		joining  []netip.Addr
		want     uint64
		one, ten uint64
	}{
		{nil, 3, 7, 3}, {[]netip.Addr{agentTen}, 7, 7, 7}, {[]netip.Addr{agentOne, agentTen}, 9, 9, 9},
	} {
		x := f
		x.Receivers = []Receiver{f.Receivers[0], f.Receivers[1]}
		if x.settle(c.joining); x.Have != c.want || x.Receivers[0].Have != c.one || x.Receivers[1].Have != c.ten {
			t.Errorf("%v join: %+v", c.joining, x)
		}
	}
}

// TestSlow: when a formation is tried again with receivers that have not answered.
func TestSlow(t *testing.T) {
	now := time.Unix(1000, 0)
	late := failure.New(mcrdmav1.Reason_TIMEOUT, "late")
	refuses := failure.New(mcrdmav1.Reason_DENIED, "no")
	none := mcrdmav1.Reason_REASON_UNSPECIFIED
	for _, c := range []struct {
		name  string
		ready int
		out   error
		last  int // tries for late receivers before
		join  bool
		lost  bool
		sent  bool // the request
		again *Again
		want  mcrdmav1.Reason
	}{
		{"late", 1, late, 0, false, false, true, nil, mcrdmav1.Reason_TIMEOUT},
		{"late for the third time", 1, late, 2, false, false, true, nil, mcrdmav1.Reason_TIMEOUT},
		{"late for the fourth time", 1, late, 3, false, false, true, nil, none},
		{"late, and joins", 1, late, 0, true, false, true, nil, none},
		{"late, joins, and is needed", 0, late, 0, true, false, true, nil, mcrdmav1.Reason_TIMEOUT},
		{"late, and dead", 1, late, 0, false, true, true, nil, none},
		{"late before it was asked", 1, late, 0, false, false, false, nil, none},
		{"refuses", 1, refuses, 0, false, false, true, nil, none},
		{"away", 1, errNoAnswer, 9, false, false, false, nil, mcrdmav1.Reason_UNREACHABLE},
		{"away, and suspected", 1, errNoAnswer, 0, false, false, false, &Again{Suspects: []netip.Addr{agentTen}}, none},
		{"away, and another is suspected", 1, errNoAnswer, 9, false, false, false, &Again{Suspects: []netip.Addr{agentOne}}, mcrdmav1.Reason_UNREACHABLE},
		{"away, and suspects another", 1, errNoAnswer, 9, false, false, false, &Again{Suspects: []netip.Addr{agentOne}, Reporter: agentTen}, mcrdmav1.Reason_UNREACHABLE},
		{"away, and joins", 1, errNoAnswer, 0, true, false, false, nil, none},
		{"away, and dead", 1, errNoAnswer, 0, false, true, false, nil, none},
		{"away since it was asked", 1, errNoAnswer, 2, false, false, true, nil, mcrdmav1.Reason_TIMEOUT},
		{"away, and needed", 0, errNoAnswer, 9, false, false, false, nil, mcrdmav1.Reason_UNREACHABLE},
		{"away, needed, and dead", 0, errNoAnswer, 0, false, true, false, nil, none},
	} {
		s := bySwitches(t, now)
		s.try = &try{request: &request{again: c.again}, out: map[netip.Addr]error{agentTen: c.out}, reached: map[netip.Addr]bool{agentTen: c.sent}}
		s.late = c.last
		s.form.Receiver(agentTen).Host = "h10"
		if c.join {
			s.try.joining = []netip.Addr{agentTen}
		}
		if c.lost {
			s.lost[agentTen] = Loss{}
		}
		got := none
		err := s.slow(c.ready)
		if err != nil {
			got = failure.Of(err).Reason
			if host := failure.Of(err).Host; (host == "h10") != (got == mcrdmav1.Reason_UNREACHABLE) {
				t.Errorf("%s: it names host %q", c.name, host)
			}
		}
		if got != c.want || (got == mcrdmav1.Reason_TIMEOUT) != (s.late == c.last+1) {
			t.Errorf("%s: %v, want %v; %d tries", c.name, err, c.want, s.late)
		}
	}
}

// TestStuck: a formation in which nothing completes ends, if it is the present one.
func TestStuck(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	s.Stuck(s.form.N+1, "nothing completes", now)
	if told := done[TellSender](s); s.state != Active || len(told) != 0 {
		t.Errorf("another formation: %v, %+v", s.state, told)
	}
	s.Stuck(s.form.N, "nothing completes", now)
	if told := done[TellSender](s); s.state != Broken || len(told) != 1 || told[0].Member.Addr.IsValid() || told[0].Text != "nothing completes" {
		t.Errorf("the present formation: %v, %+v", s.state, told)
	}
	s.Stuck(s.form.N, "nothing completes", now)
	if told := done[TellSender](s); len(told) != 0 {
		t.Errorf("told again: %+v", told)
	}
	first := NewSender(SenderConfig{MinSize: 2})
	if first.Stuck(0, "nothing completes", now); first.state != Forming {
		t.Error(first.state)
	}
}

// TestDropsFirst: a receiver that was dropped is added again when the drop has had its outcome;
// one that waits for its next try is tried once more before.
func TestDropsFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	request := &request{again: &Again{Add: []netip.Addr{agentTen}}}
	s.jobs = []*job{{Job: Job{Addr: agentOne}, busy: true}}
	if !s.dropped(request, now) {
		t.Error("it waits for a drop at another receiver")
	}
	request.flushed = false
	mine := &job{Job: Job{Addr: agentTen}, at: now.Add(time.Hour)}
	s.jobs = append(s.jobs, mine)
	if s.dropped(request, now) || !mine.at.Equal(now) || !request.flushed {
		t.Errorf("the drop is tried again at %v", mine.at)
	}
	mine.busy = true
	if s.dropped(request, now) {
		t.Error("it does not wait for the drop that is under way")
	}
	mine.busy, mine.at = false, now.Add(time.Hour)
	if !s.dropped(request, now) || !mine.at.Equal(now.Add(time.Hour)) {
		t.Errorf("it waits for the drop for ever, which is tried again at %v", mine.at)
	}
}

// TestTriesWithout: a formation that receivers drop out of is tried without them, three times in
// all; not if its caller has gone, or nothing is known to be wrong with a receiver.
func TestTriesWithout(t *testing.T) {
	now := time.Unix(1000, 0)
	refuses := failure.New(mcrdmav1.Reason_DENIED, "no")
	for _, c := range []struct {
		name      string
		tries     int
		out       map[netip.Addr]error
		err       error
		cancelled bool
		again     bool
	}{
		{"one refuses", 1, map[netip.Addr]error{agentTen: refuses}, refuses, false, true},
		{"one refuses at the second try", 2, map[netip.Addr]error{agentTen: refuses}, refuses, false, true},
		{"one refuses at the third try", 3, map[netip.Addr]error{agentTen: refuses}, refuses, false, false},
		{"the switches fail", 1, nil, refuses, false, false},
		{"the caller has gone", 1, map[netip.Addr]error{agentTen: refuses}, refuses, true, false},
		{"one is late", 1, map[netip.Addr]error{agentTen: refuses}, &lateError{refuses}, false, false},
	} {
		s := bySwitches(t, now)
		s.state = Reforming
		s.after(&try{request: &request{call: 4, was: Broken, lost: map[netip.Addr]Loss{}, candidates: []netip.Addr{agentOne, agentTen}, tries: c.tries},
			out: c.out, err: c.err, cancelled: c.cancelled})
		replies := done[ReplySender](s)
		if again := s.try != nil; again != c.again || again != (s.state == Reforming) || again != (len(replies) == 0) {
			t.Errorf("%s: %v, %+v", c.name, s.state, replies)
		} else if again && (len(s.try.candidates) != 1 || s.try.candidates[0] != agentOne || s.try.tries != c.tries+1) {
			t.Errorf("%s: with %v", c.name, s.try.candidates)
		}
	}
}

// TestSkips: numbers that receivers know are skipped, and that is no try.
func TestSkips(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	s.state = Reforming
	s.after(&try{request: &request{call: 4, was: Broken, tries: 3}, err: &behindError{last: 77}})
	if s.try == nil || s.try.tries != 3 || !s.try.skipped || s.last != 77 || s.state != Reforming || len(done[ReplySender](s)) != 0 {
		t.Errorf("%v, the last number is %d, %+v", s.state, s.last, s.try)
	}
}

// TestSlowTexts: an error says how many have not answered.
func TestSlowTexts(t *testing.T) {
	late := failure.New(mcrdmav1.Reason_TIMEOUT, "late")
	for _, c := range []struct {
		ready int
		out   []error
		want  string
	}{
		{1, []error{late}, "1 receiver did not answer in time, and may yet: try again"},
		{1, []error{late, late}, "2 receivers did not answer in time, and may yet: try again"},
		{0, []error{late}, "no receiver is left, whatever min_size is (2); 1 receiver did not answer in time, and may yet: try again"},
		{0, []error{errNoAnswer}, "no receiver is left, whatever min_size is (2); 1 daemon did not answer, and may yet: try again"},
		{0, []error{errNoAnswer, errNoAnswer}, "no receiver is left, whatever min_size is (2); 2 daemons did not answer, and may yet: try again"},
	} {
		s := bySwitches(t, time.Unix(1000, 0))
		s.try = &try{request: &request{}, out: map[netip.Addr]error{}, reached: map[netip.Addr]bool{}}
		for i, err := range c.out {
			a := []netip.Addr{agentOne, agentTen}[i]
			s.try.out[a], s.try.reached[a] = err, true
		}
		if err := s.slow(c.ready); err == nil || failure.Of(err).Text != c.want {
			t.Errorf("%v; want %q", err, c.want)
		}
	}
}

// TestResumesLater: an application that resumes a later formation than the daemon knows gets an
// answer, and the group stays as it was.
func TestResumesLater(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	s.Resume(4, s.form.N+1, true, now)
	replies := done[ReplySender](s)
	if len(replies) != 1 || replies[0].Call != 4 || replies[0].Formation != nil {
		t.Fatalf("%+v", replies)
	}
	if f := failure.Of(replies[0].Err); f == nil || f.Reason != mcrdmav1.Reason_STALE || f.Text != "the group is at formation 1, and not 2" || s.app.views {
		t.Errorf("%v", replies[0].Err)
	}
}

// TestLateOutcomes: outcomes of what is not under way, as of a formation that was given up, or
// that come twice, change nothing.
func TestLateOutcomes(t *testing.T) {
	const other = 99 // number of nothing that is there
	stops := func(at SenderAction) *script {
		x := scripted(nil)
		kind := kinds([]SenderAction{at})[0]
		x.but = func(a SenderAction) bool { return kinds([]SenderAction{a})[0] == kind }
		x.s.Create(Call{ID: 1, Begun: x.now}, Endpoint{QPN: 5}, ats(1, 2, 3), false, x.now)
		x.run()
		return x
	}
	taken := active(nil)
	ignored[UpdateSwitch](taken)
	taken.lose(3)
	viewed := active(nil)
	ignored[RecordMembers](viewed)
	viewed.lose(3)
	viewed.s.ViewRecorded(2, at(1), errNoAnswer, viewed.now)
	closing := active(nil)
	ignored[CleanUp](closing)
	closing.closes(2)
	closed := active(nil)
	closed.closes(2)
	undone := active(nil) // a formation's number is there, and its call is cancelled
	ignored[InstallFormation](undone)
	undone.reform(2)
	undone.s.Cancelled(2, errDenied, undone.now)
	undone.run()
	for name, x := range map[string]*script{"without a number": stops(TakeNumber{}), "prepares": stops(PrepareMember{}), "installs": stops(InstallFormation{}),
		"commits": stops(CommitMember{}), "is active": active(nil), "updates": taken, "records a view": viewed, "undoes": undone, "closes": closing, "is closed": closed} {
		s, now := x.s, x.now
		r := Receiver{Addr: at(1), QPN: 7}
		events := map[string]func(){
			"Prepared of another formation":  func() { s.Prepared(other, at(1), r, nil, false, now) },
			"Prepared of another receiver":   func() { s.Prepared(9, at(7), r, nil, false, now) },
			"Installed of another formation": func() { s.Installed(other, Installation{OldLeft: true, Left: true}, errDenied, now) },
			"Committed of another formation": func() { s.Committed(other, at(1), errDenied, now) },
			"Committed of another receiver":  func() { s.Committed(9, at(7), errDenied, now) },
			"News of another formation":      func() { s.News(other, []string{"10.0.0.1: no route"}, now) },
			"Missing of another formation":   func() { s.Missing(other, true, true, now) },
			"Probed":                         func() { s.Probed(true, now) },
			"Recorded of another version":    func() { s.Recorded(other, errDenied, now) },
			"Lose another":                   func() { s.Lose(at(7), Loss{}, now) },
			"Stuck in another formation":     func() { s.Stuck(other, "stuck", now) },
			"ViewRecorded of another view":   func() { s.ViewRecorded(other, at(1), errDenied, now) },
			"ViewRecorded of another":        func() { s.ViewRecorded(2, at(7), errDenied, now) },
			"ViewRecorded too late":          func() { s.ViewRecorded(2, at(1), errDenied, now) },
			"Updated to another view":        func() { s.Updated(other, errDenied, now) },
			"Cleaned of another":             func() { s.Cleaned(other, nil, now) },
			"Cancelled of another":           func() { s.Cancelled(other, errDenied, now) },
			"Tick":                           func() { s.Tick(now) },
		}
		if name != "without a number" {
			events["Numbered again"] = func() { s.Numbered(other, 8, errDenied, now) }
		}
		if name != "prepares" {
			events["Prepared again"] = func() { s.Prepared(9, at(1), r, errDenied, true, now) }
		}
		if name != "installs" {
			events["Installed again"] = func() { s.Installed(9, Installation{OldLeft: true}, errDenied, now) }
		}
		if name != "commits" {
			events["Committed again"] = func() { s.Committed(9, at(1), errDenied, now) }
		}
		if name != "updates" {
			events["Updated again"] = func() { s.Updated(2, errDenied, now) }
		}
		for event, f := range events {
			before := Dump(s)
			f()
			if list := kinds(s.Take()); len(list) != 0 || Dump(s) != before {
				t.Errorf("it %s: %s: %v\n%s\nwas\n%s", name, event, list, Dump(s), before)
				break
			}
		}
	}
	// The end of the tree's drawing, after that of the group, is no news.
	closing.s.Drawn(closing.s.form, []string{"another"}, nil, closing.now)
	if list := kinds(closing.s.Take()); len(list) != 0 {
		t.Errorf("it is drawn after the end: %v", list)
	}
}

// TestEnough: one receiver at least, and with the sender min_size copies.
func TestEnough(t *testing.T) {
	for _, c := range []struct {
		least     uint32
		receivers int
		want      bool
	}{{0, 0, false}, {1, 0, false}, {1, 1, true}, {2, 1, true}, {3, 1, false}, {3, 2, true}} {
		if got := NewSender(SenderConfig{MinSize: c.least}).enough(c.receivers); got != c.want {
			t.Errorf("%d receivers, and min_size is %d: %v", c.receivers, c.least, got)
		}
	}
}

// TestSuspectsAnew: a receiver that was taken out, and is there again, is suspected of nothing.
func TestSuspectsAnew(t *testing.T) {
	x := active(nil)
	x.s.suspected.in[at(3)], x.s.suspected.in[at(2)] = MaxSuspected-1, 1
	x.lose(3)
	if in := x.s.suspected.in; len(in) != 1 || in[at(2)] != 1 {
		t.Errorf("suspected %v", in)
	}
}

// TestEventsDoWhatIsDue: whatever happens first when something is due, Tick or another event,
// does it.
func TestEventsDoWhatIsDue(t *testing.T) {
	for name, f := range map[string]func(s *Sender, now time.Time){
		"Tick":      func(s *Sender, now time.Time) { s.Tick(now) },
		"News":      func(s *Sender, now time.Time) { s.News(9, nil, now) },
		"Missing":   func(s *Sender, now time.Time) { s.Missing(9, false, true, now) },
		"Probed":    func(s *Sender, now time.Time) { s.Probed(false, now) },
		"Drawn":     func(s *Sender, now time.Time) { s.Drawn(s.form, []string{"tree"}, nil, now) },
		"Stuck":     func(s *Sender, now time.Time) { s.Stuck(1, "nothing completes", now) },
		"AckView":   func(s *Sender, now time.Time) { s.AckView(7, 1, now) },
		"Resume":    func(s *Sender, now time.Time) { s.Resume(7, 1, false, now) },
		"Cancelled": func(s *Sender, now time.Time) { s.Cancelled(7, errDenied, now) },
		"Reform":    func(s *Sender, now time.Time) { s.Reform(Call{ID: 7}, Again{Formation: 1}, now) },
		"Lose":      func(s *Sender, now time.Time) { s.Lose(at(2), Loss{}, now) },
		"Close":     func(s *Sender, now time.Time) { s.Close(7, Ending{}, now) },
	} {
		x := active(nil)
		ignored[CleanUp](x)
		x.lose(3)
		x.s.Cleaned(x.s.jobs[0].ID, errNoAnswer, x.now)
		if f(x.s, x.now.Add(UndoAgain-1)); len(done[CleanUp](x.s)) != 0 {
			t.Errorf("%s: too soon", name)
		}
		x = active(nil)
		ignored[CleanUp](x)
		x.lose(3)
		x.s.Cleaned(x.s.jobs[0].ID, errNoAnswer, x.now)
		if f(x.s, x.now.Add(UndoAgain)); len(done[CleanUp](x.s)) != 1 {
			t.Errorf("%s: what is due is not done", name)
		}
	}
}
