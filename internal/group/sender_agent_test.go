package group

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

var (
	agentOne = netip.MustParseAddr("10.0.0.1")
	agentTen = netip.MustParseAddr("10.0.0.10")
)

// formed is a group that has just been formed, with MC_ID 9.
func formed(t *testing.T, in Installation, views bool, now time.Time) *Sender {
	t.Helper()
	s := NewSender(SenderConfig{MinSize: 2, Receivers: 16, Switch: "tor", MemberLease: time.Minute, GroupLease: time.Hour,
		PrepareTime: time.Second, ReformTime: time.Second, Grace: time.Minute})
	s.Create(Call{ID: 1, Begun: now}, Endpoint{QPN: 5}, []netip.Addr{agentTen, agentOne}, views, now)
	s.Numbered(9, 7, nil, now)
	for _, a := range []netip.Addr{agentOne, agentTen} {
		s.Prepared(9, a, Receiver{Addr: a, QPN: 6}, nil, false, now)
	}
	s.Installed(9, in, nil, now)
	for _, a := range []netip.Addr{agentOne, agentTen} {
		s.Committed(9, a, nil, now)
	}
	for s.state == Forming {
		before := s.journal
		for _, a := range s.Take() {
			if a, ok := a.(SaveGroup); ok {
				s.Recorded(a.Version, nil, now)
			}
		}
		if s.state == Forming && before == s.journal {
			t.Fatal("it is not formed")
		}
	}
	return s
}

func bySwitches(t *testing.T, now time.Time) *Sender {
	s := formed(t, Installation{Path: mcrdmav1.Path_PATH_SWITCH, Left: true}, false, now)
	for _, a := range s.Take() {
		if _, ok := a.(DrawTree); ok {
			s.Drawn(s.form, []string{"first"}, nil, now)
		}
	}
	s.Take()
	return s
}

// done are the actions of one type.
func done[A SenderAction](s *Sender) (list []A) {
	for _, a := range s.Take() {
		if a, ok := a.(A); ok {
			list = append(list, a)
		}
	}
	return list
}

// TestSettles: an agent that cannot reach a receiver is believed after a second.
func TestSettles(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	s.News(9, []string{"10.0.0.10: no route", "10.0.0.1: no link"}, now)
	s.News(9, []string{"10.0.0.10: no route"}, now.Add(time.Millisecond))
	s.News(9, []string{"10.0.0.10: no route"}, now.Add(time.Second-1)) // it is the same problem still
	if at := s.Deadline(); !at.Equal(now.Add(time.Second)) || s.state != Active {
		t.Fatalf("%v, to be called at %v", s.state, at)
	}
	s.Take()
	if s.Tick(now.Add(time.Second)); s.state != Broken {
		t.Fatal(s.state)
	}
	if told := done[TellSender](s); len(told) != 1 || told[0].Type != mcrdmav1.GroupChanged_TYPE_REFORM || told[0].Member.Addr != agentTen || told[0].Text != "10.0.0.10: no route" {
		t.Errorf("%+v", told)
	}

	s = bySwitches(t, now)
	s.News(9, []string{"10.0.0.1: no route"}, now)
	s.News(9, nil, now.Add(time.Millisecond))
	if s.Tick(now.Add(time.Hour)); s.state != Active || !s.Deadline().IsZero() {
		t.Errorf("%v, to be called at %v, and there is no problem any more", s.state, s.Deadline())
	}
	s.News(9, []string{"10.0.0.2: it is no receiver"}, now)
	if s.Tick(now.Add(time.Second)); s.state != Active || !s.Deadline().Equal(now.Add(2*time.Second)) {
		t.Errorf("%v, looks again at %v", s.state, s.Deadline())
	}
	s.News(8, []string{"10.0.0.1: in another formation"}, now)
	if got := s.Status().Problems; len(got) != 1 || !strings.HasPrefix(got[0], "10.0.0.2") {
		t.Errorf("%q", got)
	}
}

// TestMissing: an agent that may lack the group is asked once more, once at a time.
func TestMissing(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	s.Missing(8, true, true, now)
	s.Missing(9, false, true, now)
	if s.state != Active {
		t.Error(s.state)
	}
	s.Missing(9, true, false, now)
	if asked := done[AskMissing](s); len(asked) != 1 || asked[0].MCID != 9 {
		t.Errorf("%+v", asked)
	}
	s.Missing(9, true, false, now)
	if asked := done[AskMissing](s); len(asked) != 0 {
		t.Errorf("asked again: %+v", asked)
	}
	s.Missing(9, false, true, now) // the answer: it has it; but the question has come again
	if asked := done[AskMissing](s); len(asked) != 1 || s.state != Active {
		t.Errorf("%+v, %v", asked, s.state)
	}
	s.Missing(9, true, true, now)
	if told := done[TellSender](s); s.state != Broken || len(told) != 1 || !strings.Contains(told[0].Text, "tor does not have the group") {
		t.Errorf("%v, %+v", s.state, told)
	}
}

// TestTransient: where hosts relay because the agent was not there, it is asked again, and the
// group is formed anew when it is ready.
func TestTransient(t *testing.T) {
	now := time.Unix(1000, 0)
	s := formed(t, Installation{Path: mcrdmav1.Path_PATH_RELAY, Transient: true}, false, now)
	s.Take()
	for i := range 3 {
		now = now.Add(10*time.Second - 1)
		if s.Tick(now); len(done[ProbeSwitch](s)) != 0 {
			t.Errorf("asked too soon, time %d", i)
		}
		now = now.Add(1)
		if s.Tick(now); len(done[ProbeSwitch](s)) != 1 || !s.Deadline().Equal(now.Add(10*time.Second)) {
			t.Errorf("not asked, time %d; to be called in %v", i, s.Deadline().Sub(now))
		}
		if s.Probed(false, now); s.state != Active {
			t.Error(s.state)
		}
	}
	if s.Probed(true, now); s.state != Broken {
		t.Error(s.state)
	}
	s = formed(t, Installation{Path: mcrdmav1.Path_PATH_RELAY}, false, now)
	if s.Probed(true, now); s.state != Active || !s.Deadline().IsZero() {
		t.Errorf("%v, to be called at %v, and hosts relay for another reason", s.state, s.Deadline())
	}
	var a agent
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		if a.plan(&Formation{Transient: true}, now); !a.retryAt.Equal(now.Add(want * time.Second)) {
			t.Errorf("asked after %v, want %v s", a.retryAt.Sub(now), int(want))
		}
	}
	a.plan(&Formation{}, now)
	if a.plan(&Formation{Transient: true}, now); !a.retryAt.Equal(now.Add(10 * time.Second)) {
		t.Errorf("asked after %v, and switches have copied since", a.retryAt.Sub(now))
	}
	if a.plan(&Formation{}, now); !a.retryAt.IsZero() {
		t.Error("asked while switches copy")
	}
}

// TestDraws: the tree is asked for once at a time, and told when it has changed.
func TestDraws(t *testing.T) {
	now := time.Unix(1000, 0)
	s := bySwitches(t, now)
	s.News(9, nil, now)
	s.News(9, nil, now)
	if n := len(done[DrawTree](s)); n != 1 {
		t.Fatalf("asked %d times", n)
	}
	old := s.form
	s.Drawn(old, []string{"second"}, []string{"why"}, now)
	var told []TellSender
	drawn := 0
	for _, a := range s.Take() {
		switch a := a.(type) {
		case TellSender:
			told = append(told, a)
		case DrawTree:
			drawn++
		}
	}
	if len(told) != 1 || told[0].Type != mcrdmav1.GroupChanged_TYPE_ROUTE || told[0].Text == "" || !slices.Equal(told[0].Tree, []string{"second"}) || drawn != 1 {
		t.Errorf("%+v, asked %d times", told, drawn)
	}
	if !slices.Equal(s.form.Tree, []string{"second"}) || !slices.Equal(s.form.Why, []string{"why"}) || !slices.Equal(old.Tree, []string{"first"}) {
		t.Errorf("%v, %v, the one before %v", s.form.Tree, s.form.Why, old.Tree)
	}
	for _, lines := range [][]string{{"second"}, nil} {
		s.Drawn(s.form, lines, nil, now)
		if told := done[TellSender](s); len(told) != 0 || !slices.Equal(s.form.Tree, []string{"second"}) {
			t.Errorf("%v: %+v", lines, told)
		}
	}
	s = formed(t, Installation{Path: mcrdmav1.Path_PATH_SWITCH, Left: true}, false, now)
	s.Take()
	s.Drawn(s.form, []string{"first"}, nil, now)
	if told := done[TellSender](s); len(told) != 1 || told[0].Type != mcrdmav1.GroupChanged_TYPE_TREE || told[0].Text != "" {
		t.Errorf("the first: %+v", told)
	}
	s = formed(t, Installation{Path: mcrdmav1.Path_PATH_SWITCH, Left: true}, false, now)
	s.Drawn(s.form, nil, nil, now)
	s.News(9, nil, now)
	s.Take()
	s.Drawn(s.form, []string{"first"}, nil, now)
	if told := done[TellSender](s); len(told) != 1 || told[0].Type != mcrdmav1.GroupChanged_TYPE_TREE {
		t.Errorf("the first, late: %+v", told)
	}
}
