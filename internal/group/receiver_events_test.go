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

// invited is an invitation to a formation, whose attachment has the same number.
func invited(n uint32) Invitation {
	return Invitation{Membership: Membership{Formation: n, Attach: uint64(n), Service: "kv", Lease: time.Minute, User: Owner{Token: "token"}},
		Request: &mcrdmav1.PrepareRequest{Formation: n}, Content: fmt.Sprint(n)}
}

// acts are the actions of one type.
func acts[A ReceiverAction](r *Memberships) (list []A) {
	for _, a := range r.Take() {
		if a, ok := a.(A); ok {
			list = append(list, a)
		}
	}
	return list
}

// outcome is how a call ends: "waits", "done", or the reason why not.
func outcome(r *Memberships, call uint64) string {
	for _, a := range acts[Respond](r) {
		if a.Call == call && a.Err == nil {
			return "done"
		} else if a.Call == call {
			return failure.Of(a.Err).Reason.String()
		}
	}
	return "waits"
}

// joined has the memberships of these formations, in a view of their own number with two members.
func joined(now time.Time, formations ...uint32) *Memberships {
	r := &Memberships{}
	for _, n := range formations {
		m := invited(n).Membership
		m.RecordedView = worldView(n, 2)
		r.Load(m, &mcrdmav1.FormationInfo{Formation: n}, now)
		r.Resume("token", uint64(n), n)
	}
	r.Take()
	return r
}

// TestViewsAreRecorded: which views a host records, and what the sender's daemon learns of others.
func TestViewsAreRecorded(t *testing.T) {
	now := time.Unix(1000, 0)
	other := worldView(5, 2)
	other.Members[1].Addr = netip.AddrFrom4([4]byte{10, 9, 9, 9})
	for _, c := range []struct {
		name      string
		formation uint32
		view      RecordedView
		want      string
	}{
		{"a later one", 5, worldView(6, 1), "waits"},
		{"the same again", 5, worldView(5, 2), "done"},
		{"an earlier one", 5, worldView(4, 3), "done"},
		{"the same number and other members", 5, other, "STALE"},
		{"the same number and fewer members", 5, worldView(5, 1), "STALE"},
		{"of a formation that is not there", 9, worldView(6, 1), "STALE"},
		{"of a daemon that counts no views", 5, RecordedView{}, "done"},
	} {
		r := joined(now, 5, 3) // in the order of the disk
		r.RecordView(7, c.formation, c.view)
		list := r.Take()
		r.out = list
		puts := acts[PutMembership](r)
		r.out = list
		if got := outcome(r, 7); got != c.want || (len(puts) == 1) != (got == "waits") {
			t.Errorf("%s: %s, want %s; written %+v", c.name, got, c.want, puts)
		}
		for _, a := range list {
			if a, ok := a.(Respond); ok && c.formation == 9 && failure.Of(a.Err).Formation != 5 {
				t.Errorf("%s: the sender's daemon learns of formation %d", c.name, failure.Of(a.Err).Formation)
			}
		}
		if len(puts) == 1 {
			r.Recorded(5, nil, now)
			if got := outcome(r, 7); got != "done" || puts[0].Info.GetFormation() != 5 || puts[0].Membership.View != 6 || len(puts[0].Membership.Members) != 1 {
				t.Errorf("%s: %s, %+v", c.name, got, puts[0])
			}
		}
	}
	var r Memberships
	r.RecordView(7, 1, worldView(1, 1))
	if got := outcome(&r, 7); got != "NOT_FOUND" {
		t.Errorf("no membership: %s", got)
	}
	r.Prepare(1, invited(1), now)
	r.RecordView(8, 1, worldView(1, 1))
	if got := outcome(&r, 8); got != "NOT_FOUND" {
		t.Errorf("not complete: %s", got)
	}
	// A formation that was never in views may be committed without one.
	if err := r.Answer("token", 1, &mcrdmav1.PrepareResponse{}, nil); err != nil {
		t.Fatal(err)
	}
	r.Commit(9, &mcrdmav1.FormationInfo{Formation: 1, Path: mcrdmav1.Path_PATH_SWITCH, McId: 0x800001}, RecordedView{})
	r.Recorded(1, nil, now)
	if got := outcome(&r, 9); got != "done" {
		t.Errorf("without a view: %s", got)
	}
	if list := r.Formed(); len(list) != 1 || list[0].Path != mcrdmav1.Path_PATH_SWITCH || list[0].MCID != 0x800001 || list[0].View != 0 {
		t.Errorf("formed: %+v", list)
	}
	r.RecordView(10, 1, worldView(1, 2))
	if got := outcome(&r, 10); got != "waits" {
		t.Errorf("the first view: %s", got)
	}
	r.RecordView(11, 1, worldView(2, 1)) // while the first is being written
	if puts := acts[PutMembership](&r); len(puts) != 0 {
		t.Errorf("two writes at a time: %+v", puts)
	}
	r.Recorded(1, errors.New("the disk is full"), now)
	for _, a := range acts[Respond](&r) {
		if a.Err == nil {
			t.Errorf("call %d succeeds, and the view is not durable", a.Call)
		}
	}
	r.RecordView(12, 1, worldView(2, 1)) // the failed one again
	if puts := acts[PutMembership](&r); len(puts) != 1 || puts[0].Membership.View != 2 {
		t.Errorf("tried again: %+v", puts)
	}
}

// TestInvites: what an application is asked, and who is asked.
func TestInvites(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name   string
		before []uint32
		change func(in *Invitation)
		refuse string // in the text; "": it is asked
	}{
		{"the first", nil, func(*Invitation) {}, ""},
		{"the next", []uint32{3}, func(in *Invitation) { in.User = Owner{Token: "another"} }, ""}, // whose application stays
		{"the next, with two before", []uint32{2, 3}, func(in *Invitation) { in.User = Owner{Token: "another"} }, ""},
		{"no application listens", nil, func(in *Invitation) { in.User.Token = "" }, `no application listens for the service "kv"`},
		{"none listens any longer", nil, func(in *Invitation) { in.User.Token, in.Ended = "", "kvd" }, `the application that listened for the service "kv", kvd, has ended`},
		{"another listens now", nil, func(in *Invitation) { in.Ended = "kvd" }, ""},
		{"none listens, and one is a member", []uint32{3}, func(in *Invitation) { in.User.Token, in.Ended = "", "kvd" }, ""},
		{"no room for another group", nil, func(in *Invitation) { in.Full = errors.New("full") }, "full"},
		{"no room for another group, and in this one", []uint32{3}, func(in *Invitation) { in.Full = errors.New("full") }, ""},
		{"out of service", []uint32{3}, func(in *Invitation) { in.Closed = errors.New("closed") }, "closed"},
		{"other regions", []uint32{3}, func(in *Invitation) { in.Memory = 1 }, "stay as they are"},
		{"it begins anew", []uint32{3}, func(in *Invitation) { in.Joins = true }, "has only now ended"},
		{"it begins", nil, func(in *Invitation) { in.Joins = true }, ""},
	} {
		r := joined(now, c.before...)
		in := invited(4)
		c.change(&in)
		r.Prepare(7, in, now.Add(time.Second))
		list := r.Take()
		r.out = list
		asked := acts[Ask](r)
		if c.refuse != "" {
			r.out = list
			if calls := acts[Respond](r); len(asked) != 0 || len(calls) != 1 || calls[0].Err == nil || !strings.Contains(calls[0].Err.Error(), c.refuse) {
				t.Errorf("%s: %+v", c.name, list)
			}
			continue
		}
		if len(asked) != 1 {
			t.Errorf("%s: %+v", c.name, list)
			continue
		}
		a, previous := asked[0], uint64(0)
		if c.before != nil {
			previous = 3
		}
		if a.Previous != previous || a.User.Token != "token" || a.Attach != 4 || !a.Since.Equal(now.Add(time.Second)) {
			t.Errorf("%s: %+v", c.name, a)
		}
		if q, err := r.Question("token", 4); err != nil || q.GetFormation() != 4 {
			t.Errorf("%s: the question is %v, %v", c.name, q, err)
		}
	}
}

// TestWhyGone: the sender's daemon learns why a membership has ended here, but not of one that
// was only asked for, nor what it has ended itself.
func TestWhyGone(t *testing.T) {
	now := time.Unix(1000, 0)
	const unknown = "does not know the membership"
	for _, c := range []struct {
		name string
		do   func(r *Memberships)
		beat uint32
		want string
	}{
		{"it leaves", func(r *Memberships) { _ = r.Leave("token", 3, "it has left", now) }, 3, "it has left"},
		{"asked for all", func(r *Memberships) { _ = r.Leave("token", 3, "it has left", now) }, 0, "it has left"},
		{"asked for a later one", func(r *Memberships) { _ = r.Leave("token", 3, "it has left", now) }, 4, unknown},
		{"its session ends", func(r *Memberships) { r.SessionEnded("token", "it has crashed", now) }, 3, "it has crashed"},
		{"out of service", func(r *Memberships) { r.Stop("maintenance", now) }, 3, "maintenance"},
		{"the sender ends it", func(r *Memberships) { r.Drop(9, 3, mcrdmav1.Detached_REASON_CLOSED, "closed") }, 3, unknown},
		{"the sender has heard of it", func(r *Memberships) {
			_ = r.Leave("token", 3, "it has left", now)
			r.Drop(9, 3, mcrdmav1.Detached_REASON_REMOVED, "")
		}, 3, unknown},
		{"and of all", func(r *Memberships) {
			_ = r.Leave("token", 3, "it has left", now)
			r.Drop(9, 0, mcrdmav1.Detached_REASON_REMOVED, "")
		}, 3, unknown},
		{"the sender ends an earlier one", func(r *Memberships) {
			_ = r.Leave("token", 3, "it has left", now)
			r.Drop(9, 2, mcrdmav1.Detached_REASON_ABORTED, "")
		}, 3, "it has left"},
		{"one that was asked for", func(r *Memberships) {
			_ = r.Leave("token", 3, "it has left", now)
			r.Prepare(1, invited(4), now)
			_ = r.Leave("token", 4, "it does not want to", now)
		}, 3, "it has left"},
		{"twice", func(r *Memberships) {
			_ = r.Leave("token", 3, "it has left", now)
			for i, why := range []string{"once", "twice"} {
				n := uint32(4 + i)
				r.Prepare(1, invited(n), now)
				_ = r.Answer("token", uint64(n), &mcrdmav1.PrepareResponse{}, nil)
				_ = r.Leave("token", uint64(n), why, now)
			}
		}, 5, "twice"},
		{"an earlier one afterward", func(r *Memberships) {
			*r = *joined(now, 2, 3)
			_ = r.Leave("token", 3, "it has left", now)
			_ = r.Leave("token", 2, "this as well", now)
		}, 3, "it has left"},
	} {
		r := joined(now, 3)
		c.do(r)
		if why, known := r.Beat(c.beat, now); known || !strings.Contains(why, c.want) {
			t.Errorf("%s: %v, %q, want %q", c.name, known, why, c.want)
		}
		for _, a := range acts[DeleteMembership](r) {
			r.Deleted(a.Attach)
		}
		if c.want == unknown && c.beat != 4 && !r.Idle() {
			t.Errorf("%s: why is kept, and no daemon need know", c.name)
		}
	}
	var r Memberships
	if why, known := r.Beat(0, now); known || !strings.Contains(why, unknown) {
		t.Errorf("never a member: %v, %q", known, why)
	}
	if err := joined(now, 3).Leave("token", 4, "", now); err == nil || failure.Of(err).Reason != mcrdmav1.Reason_NOT_FOUND {
		t.Errorf("leaves what is not there: %v", err)
	}
}

// TestLastViewIsSaid: when the sender is lost, the application learns who else has all.
func TestLastViewIsSaid(t *testing.T) {
	now := time.Unix(1000, 0)
	for view, want := range map[uint32]string{0: "for 1m0s", 4: "for 1m0s; the members of its last view, 4, are h1 (10.0.0.1), h2 (10.0.0.2)"} {
		r := &Memberships{}
		m := invited(3).Membership
		if view > 0 {
			m.RecordedView = worldView(view, 2)
		}
		r.Load(m, nil, now)
		r.Tick(now.Add(time.Minute+1), false)
		ends := acts[TellEnded](r)
		if len(ends) != 1 || ends[0].Reason != mcrdmav1.Detached_REASON_SENDER_LOST || ends[0].Text != "nothing was heard of the sender's daemon "+want {
			t.Errorf("%+v", ends)
		}
	}
}

// TestCallsOfOneThatEnds: those that wait for it learn that it has ended; it is one of the
// group's memberships until then.
func TestCallsOfOneThatEnds(t *testing.T) {
	now := time.Unix(1000, 0)
	r := joined(now, 3)
	r.Prepare(1, invited(4), now)
	r.RecordView(2, 3, worldView(8, 1))
	r.Take()
	if m, ok := r.One(); !ok || m.Formation != 3 {
		t.Errorf("%+v, %v", m, ok)
	}
	r.Drop(9, 0, mcrdmav1.Detached_REASON_CLOSED, "closed")
	var got []string
	for _, a := range acts[Respond](r) {
		got = append(got, fmt.Sprint(a.Call, " ", failure.Of(a.Err).Reason))
	}
	if slices.Sort(got); !slices.Equal(got, []string{"1 NO_SERVICE", "2 NO_SERVICE"}) {
		t.Errorf("%q", got)
	}
	if m, ok := r.One(); ok || r.Idle() {
		t.Errorf("%+v is there, idle %v, and a write is under way", m, r.Idle())
	}
	r.Recorded(4, nil, now) // of which there is none
	if list := r.Take(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	r.Recorded(3, nil, now)
	if list := r.Take(); len(list) != 1 || list[0] != (DeleteMembership{3}) || r.Idle() {
		t.Errorf("%+v, idle %v", list, r.Idle())
	}
	r.Deleted(3)
	if list := r.Take(); len(list) != 1 || list[0] != (Respond{Call: 9}) || !r.Idle() {
		t.Errorf("deleted: %+v, idle %v", list, r.Idle())
	}
}

// TestLeftWhileForming: a sender's daemon that asks for, or completes, a membership whose application or
// daemon ends meanwhile learns that this receiver is missing. Its application may wait for that one
// (GroupConfig.Wait), and does not take it for an end of its own daemon or client.
func TestLeftWhileForming(t *testing.T) {
	now := time.Unix(1000, 0)
	const died = "the application has ended"
	for _, c := range []struct {
		name string
		do   func(r *Memberships)
		want string
	}{
		{"asked", func(r *Memberships) { r.SessionEnded("token", died, now) }, died},
		{"ready", func(r *Memberships) {
			_ = r.Answer("token", 1, &mcrdmav1.PrepareResponse{}, nil)
			r.SessionEnded("token", died, now)
			r.Take()
			r.Commit(1, &mcrdmav1.FormationInfo{Formation: 1}, worldView(1, 1))
		}, died},
		{"committing", func(r *Memberships) {
			_ = r.Answer("token", 1, &mcrdmav1.PrepareResponse{}, nil)
			r.Take()
			r.Commit(1, &mcrdmav1.FormationInfo{Formation: 1}, worldView(1, 1))
			r.SessionEnded("token", died, now)
		}, died},
		{"the daemon is another run", func(r *Memberships) {
			*r = Memberships{}
			r.Commit(1, &mcrdmav1.FormationInfo{Formation: 1}, worldView(1, 1))
		}, "the host's daemon does not know the membership"},
	} {
		var r Memberships
		r.Prepare(1, invited(1), now)
		c.do(&r)
		calls := acts[Respond](&r)
		if len(calls) != 1 || !failure.Is(calls[0].Err, mcrdmav1.Reason_NO_SERVICE) || calls[0].Err.Error() != "it is not in the group any longer: "+c.want {
			t.Errorf("%s: %+v", c.name, calls)
		}
	}
}

// TestEndsAreNews: each end that the sender's daemon has not asked for is told it, once.
func TestEndsAreNews(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		end  func(r *Memberships)
		want []TellGone
	}{
		"the application leaves": {func(r *Memberships) { _ = r.Leave("token", 3, "it has left", now) }, []TellGone{{3, "it has left"}}},
		"the application ends":   {func(r *Memberships) { r.SessionEnded("token", "it has ended", now) }, []TellGone{{3, "it has ended"}}},
		"the daemon stops":       {func(r *Memberships) { r.Stop("it stops", now) }, []TellGone{{3, "it stops"}}},
		"the lease ends": {func(r *Memberships) { r.Tick(now.Add(time.Hour), false) },
			[]TellGone{{3, "nothing was heard of the sender's daemon for 1m0s; the members of its last view, 3, are h1 (10.0.0.1), h2 (10.0.0.2)"}}},
		"the sender drops it": {func(r *Memberships) { r.Drop(9, 0, mcrdmav1.Detached_REASON_CLOSED, "closed") }, nil},
		"the next is formed":  {func(r *Memberships) { r.Load(invited(4).Membership, nil, now); r.Beat(4, now) }, nil},
	} {
		r := joined(now, 3)
		c.end(r)
		if got := acts[TellGone](r); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	var r Memberships
	r.Prepare(1, invited(1), now)
	r.SessionEnded("token", "it has ended", now) // the call says so
	if got := acts[TellGone](&r); len(got) > 0 {
		t.Errorf("it was asked only: %+v", got)
	}
}

// TestNewsAreOfOneMembership: a formation of which news was told has no other membership here, which late news would end. A later
// one has, and one whose application was only asked.
func TestNewsAreOfOneMembership(t *testing.T) {
	now := time.Unix(1000, 0)
	r := &Memberships{}
	r.Prepare(1, invited(3), now)
	r.SessionEnded("token", "it has ended", now)
	r.Prepare(2, invited(3), now)
	if err := r.Answer("token", 3, &mcrdmav1.PrepareResponse{}, nil); err != nil {
		t.Errorf("asked again, when it was only asked: %v", err)
	}
	r.SessionEnded("token", "it has ended", now)
	if gone := acts[TellGone](r); len(gone) != 1 {
		t.Fatalf("told: %+v", gone)
	}
	again := invited(3)
	again.Attach = 4
	r.Prepare(3, again, now)
	calls := acts[Respond](r)
	if len(calls) != 1 || calls[0].Err == nil || failure.Of(calls[0].Err).Reason != mcrdmav1.Reason_STALE || failure.Of(calls[0].Err).Formation != 3 {
		t.Errorf("the same again: %+v", calls)
	}
	r.Prepare(4, invited(4), now)
	if asked := acts[Ask](r); len(asked) != 1 {
		t.Errorf("the next formation: %+v", asked)
	}
}

// TestCommittedAgain: a daemon that was restarted hears again that a formation is complete, and
// so does its application, which may have missed it.
func TestCommittedAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	r := joined(now, 2, 3)
	r.Commit(7, &mcrdmav1.FormationInfo{Formation: 3, McId: 0x800003}, worldView(3, 2))
	list := r.Take()
	r.out = list
	if told := acts[TellFormed](r); len(told) != 1 || told[0].Attach != 3 || told[0].Info.GetMcId() != 0x800003 || told[0].User.Token != "token" {
		t.Errorf("%+v", list)
	}
	r.out = list
	if ends := acts[TellEnded](r); len(ends) != 1 || ends[0].Attach != 2 || ends[0].Reason != mcrdmav1.Detached_REASON_REFORMED {
		t.Errorf("%+v", list)
	}
	r.out = list
	if got := outcome(r, 7); got != "done" {
		t.Errorf("committed again: %s", got)
	}
	if f := r.Formed(); len(f) != 1 || f[0].MCID != 0x800003 {
		t.Errorf("%+v", f)
	}
	for _, c := range []struct {
		token     string
		formation uint32
		there     bool
	}{{"token", 3, true}, {"token", 2, false}, {"another", 3, false}} {
		if there := r.Resume(c.token, 3, c.formation); there != c.there || len(acts[TellFormed](r)) != map[bool]int{true: 1}[there] {
			t.Errorf("%+v is there: %v", c, there)
		}
	}
	var old Memberships // whose record does not have what the application is told
	old.Load(invited(3).Membership, nil, now)
	if list := old.Take(); !old.Resume("token", 3, 3) || len(old.Take()) != 0 {
		t.Errorf("%+v", list)
	}
	if old.Tick(now, true); len(old.live()) != 1 {
		t.Error("its application has come back, and it has ended")
	}
}
