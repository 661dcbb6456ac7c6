package group

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

var updateScripts = flag.Bool("group.scripts.update", false, "write testdata/sender")

// A script is a Sender among others that do what they are asked for at once, but for what but
// answers in their place. It notes all that the Sender does, for a reader to judge.
type script struct {
	s    *Sender
	now  time.Time
	mcid uint32 // the last number
	but  func(a SenderAction) bool
	log  []string
}

// scripted is a group that is to be formed. To prepare takes ten milliseconds, the switches a
// hundred, and to commit a second.
func scripted(change func(c *SenderConfig)) *script {
	x := &script{now: time.Unix(1000, 0), mcid: 8}
	c := SenderConfig{MinSize: 2, Receivers: 16, Switch: "tor", MemberLease: time.Minute, GroupLease: time.Hour,
		PrepareTime: 5 * time.Second, ReformTime: 3 * time.Second, Grace: time.Minute}
	if change != nil {
		change(&c)
	}
	x.s = NewSender(c)
	return x
}

func at(i byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, i}) }

func ats(list ...byte) (out []netip.Addr) {
	for _, i := range list {
		out = append(out, at(i))
	}
	return out
}

// restored is a script after a restart of the daemon with a record.
func restored(change func(c *SenderConfig), r SenderRecord) *script {
	x := scripted(change)
	x.s, x.mcid = RestoreSender(x.s.cfg, &r, x.now), 20
	return x
}

// active is a script after a group was formed with .1, .2 and .3, and MC_ID 9.
func active(change func(c *SenderConfig)) *script {
	x := scripted(change)
	x.s.Create(Call{ID: 1, Begun: x.now}, Endpoint{QPN: 5}, ats(1, 2, 3), false, x.now)
	x.run()
	x.log = nil
	return x
}

// event notes an event, and all that follows until nothing is left to do now.
func (x *script) event(name string, f func(s *Sender)) {
	x.log = append(x.log, "# "+name)
	f(x.s)
	x.run()
	state := "= " + x.s.state.String()
	if st := x.s.Status(); st.Form != nil {
		state += " " + inWords(st.Form)
		if len(st.Departures) > 0 {
			state += ", out"
		}
		for _, d := range st.Departures {
			state += " " + short(d.Addr)
		}
		slices.SortFunc(st.Lost, netip.Addr.Compare)
		if len(st.Lost) > 0 {
			state += ", lost " + shorts(st.Lost)
		}
		if st.Making > 0 {
			state += fmt.Sprint(", making ", st.Making)
		}
	}
	if d := x.s.Deadline(); !d.IsZero() {
		state += ", to be called in " + d.Sub(x.now).String()
	}
	x.log = append(x.log, state)
}

// run carries out all actions, and those that follow.
func (x *script) run() {
	for list := x.s.Take(); len(list) > 0; list = x.s.Take() {
		for _, a := range list {
			x.log = append(x.log, line(a))
			if x.but == nil || !x.but(a) {
				x.answer(a)
			}
		}
	}
}

func (x *script) answer(a SenderAction) {
	switch a := a.(type) {
	case SaveGroup:
		x.s.Recorded(a.Version, nil, x.now)
	case TakeNumber:
		x.mcid++
		x.s.Numbered(x.mcid, 7, nil, x.now)
	case PrepareMember:
		x.now = x.now.Add(10 * time.Millisecond)
		x.s.Prepared(a.Formation.MCID, a.Addr, Receiver{Addr: a.Addr, Host: fmt.Sprint("h", a.Addr.As4()[3]), QPN: 6, Have: 4}, nil, false, x.now)
	case InstallFormation:
		x.now = x.now.Add(100 * time.Millisecond)
		x.s.Installed(a.Formation.MCID, Installation{Path: mcrdmav1.Path_PATH_SWITCH, Left: true}, nil, x.now)
	case CommitMember:
		x.now = x.now.Add(time.Second)
		x.s.Committed(a.Formation.MCID, a.Addr, nil, x.now)
	case RecordMembers:
		x.s.ViewRecorded(a.Next.View, a.Addr, nil, x.now)
	case UpdateSwitch:
		x.s.Updated(a.Next.View, nil, x.now)
	case CleanUp:
		x.s.Cleaned(a.Job.ID, nil, x.now)
	case DrawTree:
		x.s.Drawn(a.Formation, []string{"tree"}, nil, x.now)
	case AskMissing:
		x.s.Missing(a.MCID, false, true, x.now)
	}
}

// reform asks for the group anew, with further receivers.
func (x *script) reform(call uint64, add ...byte) {
	x.event(strings.TrimSpace(fmt.Sprintf("call %d: reform %s", call, shorts(ats(add...)))), func(s *Sender) {
		s.Reform(Call{ID: call, Begun: x.now}, Again{Formation: s.form.N, From: Endpoint{QPN: 5, Sent: 6}, Add: ats(add...)}, x.now)
	})
}

// restart notes what follows from a restart.
func (x *script) restart() { x.event("restart", func(*Sender) {}) }

// lose says that a receiver is dead.
func (x *script) lose(i byte) {
	x.event("."+fmt.Sprint(i)+" is dead", func(s *Sender) { s.Lose(at(i), Loss{Label: "dead", Why: "it is silent"}, x.now) })
}

// after lets time pass.
func (x *script) after(d time.Duration) {
	x.now = x.now.Add(d)
	x.event(d.String()+" later", func(s *Sender) { s.Tick(x.now) })
}

func (x *script) closes(call uint64) {
	x.event(fmt.Sprintf("call %d: close", call), func(s *Sender) {
		s.Close(call, Ending{Reason: mcrdmav1.Detached_REASON_CLOSED, Text: "closed"}, x.now)
	})
}

// on answers actions of a type in the others' place, if f says that it has.
func on[A SenderAction](x *script, f func(a A) bool) {
	before := x.but
	x.but = func(a SenderAction) bool {
		if a, ok := a.(A); ok && f(a) {
			return true
		}
		return before != nil && before(a)
	}
}

// prepares has receivers answer with an error when they are to prepare, and commits when they are to commit.
func (x *script) prepares(err error, list ...byte) {
	on(x, func(a PrepareMember) bool {
		fails := slices.Contains(ats(list...), a.Addr)
		if fails {
			x.s.Prepared(a.Formation.MCID, a.Addr, Receiver{}, err, errors.Is(err, errUnsent), x.now)
		}
		return fails
	})
}

func (x *script) commits(err error, list ...byte) {
	on(x, func(a CommitMember) bool {
		fails := slices.Contains(ats(list...), a.Addr)
		if fails {
			x.s.Committed(a.Formation.MCID, a.Addr, err, x.now)
		}
		return fails
	})
}

func (x *script) installs(in Installation, err error) {
	on(x, func(a InstallFormation) bool {
		x.s.Installed(a.Formation.MCID, in, err, x.now)
		return true
	})
}

// saves has the writes that f chooses fail.
func (x *script) saves(f func(r *SenderRecord) bool) {
	on(x, func(a SaveGroup) bool {
		fails := f(a.Record)
		if fails {
			x.s.Recorded(a.Version, errors.New("the disk is full"), x.now)
		}
		return fails
	})
}

// ignored has actions of a type without an outcome.
func ignored[A SenderAction](x *script) { on(x, func(A) bool { return true }) }

var (
	errDenied = failure.New(mcrdmav1.Reason_DENIED, "no").AtHost("h9")
	errUnsent = failure.New(mcrdmav1.Reason_UNREACHABLE, "not sent")
	errLate   = failure.New(mcrdmav1.Reason_TIMEOUT, "late")
)

func short(a netip.Addr) string {
	if !a.IsValid() {
		return "-"
	}
	return fmt.Sprint(".", a.As4()[3])
}

func shorts(list []netip.Addr) string {
	var out []string
	for _, a := range list {
		out = append(out, short(a))
	}
	return strings.Join(out, " ")
}

func inWords(f *Formation) string { return fmt.Sprintf("%d.%d (%s)", f.N, f.View, shorts(f.Addrs())) }

// line is an action in words.
func line(a SenderAction) string {
	switch a := a.(type) {
	case SaveGroup:
		r := a.Record
		if r == nil {
			return "save nothing"
		}
		out := fmt.Sprintf("save last %d, views %d", r.Last, r.Views)
		if r.Form != nil {
			out += ", form " + inWords(r.Form)
		}
		if b := r.Forming; b != nil {
			out += fmt.Sprintf(", forming %d (%s) as %d", b.N, shorts(b.Candidates), b.MCID)
		}
		for _, d := range r.Departures {
			out += fmt.Sprintf(", out is %s (%s)", short(d.Addr), d.Why)
		}
		if r.Pending > 0 {
			out += fmt.Sprint(", pending view ", r.Pending)
		}
		if r.Ended != nil {
			out += fmt.Sprintf(", ended: %v %q %q", r.Ended.Reason, r.Ended.Text, r.Ended.Failed)
		}
		return out
	case FreeNumber:
		return fmt.Sprint("free ", a.MCID)
	case PrepareMember:
		return fmt.Sprintf("prepare %d at %s in %v%s", a.Formation.N, short(a.Addr), a.Limit, map[bool]string{true: ", joins"}[a.Joins])
	case InstallFormation:
		if a.Old != nil {
			return fmt.Sprintf("install %s for %s", inWords(a.Formation), inWords(a.Old))
		}
		return "install " + inWords(a.Formation)
	case CommitMember:
		return fmt.Sprintf("commit %d at %s", a.Formation.N, short(a.Addr))
	case RecordMembers:
		return fmt.Sprintf("record view %d at %s", a.Next.View, short(a.Addr))
	case UpdateSwitch:
		return fmt.Sprintf("update to view %d (%s)", a.Next.View, shorts(a.Next.Addrs()))
	case CleanUp:
		if j := a.Job; j.Addr.IsValid() {
			return fmt.Sprintf("end %d at %s, MC_ID %d: %v %q", j.Formation, short(j.Addr), j.MCID, j.Reason, j.Text)
		}
		return fmt.Sprint("remove ", a.Job.MCID)
	case DrawTree:
		return "draw " + inWords(a.Formation)
	case TellSender:
		out := fmt.Sprintf("tell %v of %d", a.Type, a.Formation)
		if a.View != nil {
			out += ": " + inWords(a.View)
		}
		for _, x := range append([]string{strings.Trim(short(a.Member.Addr), "-"), a.Text, a.Label}, a.Tree...) {
			if x != "" {
				out += ", " + x
			}
		}
		return out
	case ReplySender:
		if a.Formation != nil {
			return fmt.Sprintf("reply %d: %s", a.Call, inWords(a.Formation))
		}
		if f := failure.Of(a.Err); f != nil {
			return fmt.Sprintf("reply %d: %v: %s", a.Call, f.Reason, f.Text)
		}
		return fmt.Sprintf("reply %d: %v", a.Call, a.Err)
	case FormationComplete:
		out := fmt.Sprintf("complete %s, first %s, after %d", inWords(a.Formation), short(a.Formation.First), a.Formation.Have)
		for _, x := range a.Formation.Absent {
			out += fmt.Sprintf(", without %s (%v %s: %s)", short(x.Addr), x.Reason, x.Label, x.Why)
		}
		return out
	case SenderEnded:
		if a.Why == nil {
			return "ended"
		}
		return fmt.Sprintf("ended: %v: %s", a.Why.Reason, a.Why.Text)
	case AskMissing:
		return fmt.Sprint("ask for ", a.MCID)
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", a), "group.")
}

// recorded is the record of a group that is formed.
func recorded(receivers ...byte) SenderRecord {
	f := &Formation{N: 1, View: 1, MCID: 9, Path: mcrdmav1.Path_PATH_SWITCH}
	for _, a := range ats(receivers...) {
		f.Receivers = append(f.Receivers, Receiver{Addr: a, Host: fmt.Sprint("h", a.As4()[3]), QPN: 6})
	}
	return SenderRecord{Form: f}
}

// TestSenderScripts: what a group does in these cases is what testdata/sender says, which is
// for a reader to judge. After a change that is meant, -group.scripts.update writes it anew.
func TestSenderScripts(t *testing.T) {
	if list, err := os.ReadDir(filepath.Join("testdata", "sender")); err != nil || len(list) != len(senderScripts) && !*updateScripts {
		t.Errorf("%d files of %d scripts: %v", len(list), len(senderScripts), err)
	}
	for name, f := range senderScripts {
		got := strings.Join(f().log, "\n") + "\n"
		path := filepath.Join("testdata", "sender", strings.ReplaceAll(strings.ReplaceAll(name, ",", ""), " ", "-")+".txt")
		if *updateScripts {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || string(want) != got {
			t.Errorf("%s (%v): %s\nwant\n%s", name, err, got, want)
		}
	}
}
