package group_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/group"
)

// A senderWorld is all around a Sender.
type senderWorld struct {
	waits   bool // the group, with too few receivers
	rnd     *rand.Rand
	now     time.Time
	mistake string
	tally   *senderTally
	err     error  // the first invariant that does not hold
	calm    bool   // no more faults
	steps   bool   // outcomes come when the explorer wants them to
	doing   string // the action whose outcome that is
	fault   string // the explorer's choice for the outcome that comes now
	over    bool   // receivers are told that the group has ended

	s       *group.Sender // nil: the daemon is down, or nothing is left of the group
	run     int           // of the daemon
	pending []senderOutcome
	saving  bool

	disk       *group.SenderRecord
	diskFails  bool
	diskFailed bool // it has failed once
	members    map[netip.Addr]*senderMember
	installed  map[uint32][]netip.Addr
	taken      map[uint32]int      // MC_IDs in use: the daemon's run
	numbers    map[uint32]uint32   // formation to MC_ID
	views      map[uint32]string   // to members
	problems   map[uint32][]string // the agent's last news
	app        senderApp
}

type senderOutcome struct {
	at   time.Time
	run  int
	f    func()
	name string
}

type senderMember struct {
	there     bool
	forms     map[uint32]bool // true: committed
	committed map[uint32]bool // ever
	joined    map[uint32]bool // it began with this formation
	view      uint32
}

type senderApp struct {
	views   bool
	calls   map[uint64]string // without answers
	lastID  uint64
	form    *group.Formation
	acked   uint32
	created bool
	removed map[netip.Addr]bool
	ended   bool // it has closed the group, or was told that it has failed
	closed  bool // it has closed the group
	told    bool // it was told that the group has ended, or has an answer that says so
	gone    bool
	broken  bool
}

func senderAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

var senderConfig = group.SenderConfig{MinSize: 2, Receivers: 16, Switch: "tor", MemberLease: time.Hour, GroupLease: time.Hour,
	PrepareTime: 5 * time.Second, ReformTime: time.Second, Grace: 30 * time.Second}

// config is the group's.
func (w *senderWorld) config() group.SenderConfig {
	c := senderConfig
	c.Waits = w.waits
	return c
}

func (w *senderWorld) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *senderWorld) trace(format string, args ...any) {
	if *senderTrace {
		fmt.Printf("%8v  %s\n", w.now.Sub(time.Unix(0, 0)), fmt.Sprintf(format, args...))
	}
}

func (w *senderWorld) chance(percent int) bool { return !w.calm && w.rnd.IntN(100) < percent }

// later has f happen after a while, if the daemon still runs then.
func (w *senderWorld) later(f func()) {
	if w.steps {
		w.pending = append(w.pending, senderOutcome{w.now, w.run, f, w.doing})
		return
	}
	d := time.Duration(w.rnd.IntN(20)) * time.Millisecond
	if w.chance(5) {
		d = time.Duration(w.rnd.IntN(4000)) * time.Millisecond
	}
	w.pending = append(w.pending, senderOutcome{w.now.Add(d), w.run, f, ""})
}

var (
	errSenderLost = failure.New(mcrdmav1.Reason_UNREACHABLE, "no answer")
	errSenderDisk = errors.New("the disk is full")
)

// ask has a request arrive and its answer come back, or not. The answer may come twice.
func (w *senderWorld) ask(arrives func() error, answer func(err error, unsent bool)) {
	switch {
	case w.steps:
		w.later(func() {
			switch w.fault {
			case "not sent":
				answer(errSenderLost, true)
			case "lost":
				answer(errSenderLost, false)
			case "answer lost":
				_ = arrives()
				answer(errSenderLost, false)
			default:
				answer(arrives(), false)
			}
		})
	case w.chance(2): // not sent
		w.later(func() { answer(errSenderLost, true) })
	case w.chance(2): // lost
		w.later(func() { answer(errSenderLost, false) })
	default:
		w.later(func() {
			err := arrives()
			if w.chance(2) {
				err = errSenderLost
			}
			w.later(func() { answer(err, false) })
			if w.chance(5) {
				w.later(func() { answer(err, false) })
			}
		})
	}
}

// settle carries out the actions.
func (w *senderWorld) settle() {
	for w.s != nil {
		list := w.s.Take()
		if len(list) == 0 {
			break
		}
		for _, a := range list {
			w.perform(a)
			if w.s == nil {
				return
			}
		}
	}
	if w.s != nil && w.s.Status().State == group.Closed {
		w.trace("closed")
		w.s = nil
		if w.disk != nil && !w.diskFails {
			w.fail("closed, and the record is there")
		}
		for id := range w.app.calls {
			w.fail("call %s has no answer", w.app.calls[id])
		}
		for id, run := range w.taken {
			if run == w.run {
				w.fail("MC_ID %d is not free", id)
			}
		}
	}
}

func (w *senderWorld) view(f *group.Formation) {
	members := fmt.Sprint(f.Addrs())
	if was, ok := w.views[f.View]; ok && was != members {
		w.fail("view %d is %s and then %s", f.View, was, members)
	}
	w.views[f.View] = members
}

func (w *senderWorld) perform(a group.SenderAction) {
	w.trace("%T %+v", a, a)
	if w.steps {
		w.doing = senderActionName(a)
	}
	run := w.run
	on := func(f func(s *group.Sender)) { // an event of this run
		if w.s != nil && w.run == run {
			f(w.s)
			w.settle()
		}
	}
	switch a := a.(type) {
	case group.SaveGroup:
		w.save(a, on)
	case group.TakeNumber:
		id := uint32(len(w.taken)) + 1
		w.taken[id] = run
		w.later(func() { on(func(s *group.Sender) { s.Numbered(id, 7, nil, w.now) }) })
	case group.FreeNumber:
		if _, ok := w.taken[a.MCID]; !ok {
			w.fail("MC_ID %d is freed and not taken", a.MCID)
		}
		if w.taken[a.MCID] == -1 {
			w.fail("MC_ID %d is freed twice", a.MCID)
		}
		if w.mistake != "a number is not freed" {
			w.taken[a.MCID] = -1
		}
		if _, ok := w.installed[a.MCID]; ok && !w.diskFails {
			w.fail("MC_ID %d is freed and at the switch", a.MCID)
		}
	case group.PrepareMember:
		w.prepare(a, on)
	case group.InstallFormation:
		w.install(a, on)
	case group.CommitMember:
		w.commit(a, on)
	case group.CancelCalls:
	case group.RecordMembers:
		w.ask(func() error {
			m := w.members[a.Addr]
			if w.mistake == "an update before the members have recorded the view" {
				return nil
			}
			w.view(a.Next)
			if len(m.forms) == 0 {
				return failure.New(mcrdmav1.Reason_NOT_FOUND, "no membership")
			}
			m.view = max(m.view, a.Next.View)
			return nil
		}, func(err error, _ bool) { on(func(s *group.Sender) { s.ViewRecorded(a.Next.View, a.Addr, err, w.now) }) })
	case group.UpdateSwitch:
		w.update(a, on)
	case group.CleanUp:
		w.cleanUp(a.Job, on)
	case group.DrawTree:
		if w.steps { // the tree is of no consequence
			break
		}
		w.later(func() {
			on(func(s *group.Sender) { s.Drawn(a.Formation, []string{fmt.Sprint(w.rnd.IntN(3))}, nil, w.now) })
		})
	case group.AskMissing:
		w.later(func() {
			_, there := w.installed[a.MCID]
			on(func(s *group.Sender) { s.Missing(a.MCID, !there, true, w.now) })
		})
	case group.ProbeSwitch:
		w.later(func() { on(func(s *group.Sender) { s.Probed(w.rnd.IntN(2) == 0, w.now) }) })
	case group.TellSender:
		w.told(a)
	case group.ReplySender:
		w.replied(a)
	case group.FormationComplete:
		w.formed(a.Formation)
	case group.SenderEnded:
		w.tally.failed++
	}
}

func cloneRecord(r *group.SenderRecord) *group.SenderRecord {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	out := new(group.SenderRecord)
	if err := json.Unmarshal(b, out); err != nil {
		panic(err)
	}
	return out
}

func (w *senderWorld) save(a group.SaveGroup, on func(func(*group.Sender))) {
	if w.saving {
		w.fail("two writes at a time")
	}
	w.saving = true
	record := a.Record
	if record != nil {
		record = cloneRecord(record)
		if w.mistake == "views are not reserved" {
			record.Views = max(1, record.Views-16)
		}
		if w.mistake == "an ended group is not recorded as ended" {
			record.Ended = nil
		}
	}
	early := w.mistake == "an update before the record is durable" && record != nil && record.Pending != 0 ||
		w.mistake == "a number is not durable before receivers learn it" && record != nil && record.Forming != nil ||
		w.mistake == "failure is told before it is durable" && record != nil && record.Ended != nil
	var err error
	if w.rnd.IntN(400) == 0 && !w.calm {
		w.diskFails, w.diskFailed = true, true
	}
	if w.diskFails {
		err = errSenderDisk
	}
	recorded := func() { on(func(s *group.Sender) { s.Recorded(a.Version, err, w.now) }) }
	w.later(func() {
		if w.chance(1) {
			w.restart("before a write")
			return
		}
		if w.saving = false; err == nil {
			w.disk = record
		}
		if w.fault == "restart after" || w.chance(1) {
			w.restart("after a write")
			return
		}
		if !early {
			recorded()
		}
	})
	if early {
		run := w.run
		w.pending = append(w.pending, senderOutcome{w.now, run, func() { w.saving = false; recorded() }, "early " + w.doing})
	}
}

func (w *senderWorld) prepare(a group.PrepareMember, on func(func(*group.Sender))) {
	m, f := w.members[a.Addr], a.Formation
	if f.N > 1 && !w.diskFails && (w.disk == nil || w.disk.Last < f.N) {
		w.fail("formation %d is told before it is durable", f.N)
	}
	w.ask(func() error {
		if was, ok := w.numbers[f.N]; ok && was != f.MCID {
			w.fail("formation %d has two MC_IDs, %d and %d", f.N, was, f.MCID)
		}
		w.numbers[f.N] = f.MCID
		latest, formed := uint32(0), uint32(0)
		for n, committed := range m.forms {
			if latest = max(latest, n); committed {
				formed = max(formed, n)
			}
		}
		switch {
		case !m.there:
			return failure.New(mcrdmav1.Reason_NO_SERVICE, "no application")
		case w.fault == "refused" || w.chance(2):
			return failure.New(mcrdmav1.Reason_DENIED, "no")
		case w.chance(3):
			return failure.New(mcrdmav1.Reason_TIMEOUT, "late")
		case latest >= f.N:
			e := failure.New(mcrdmav1.Reason_STALE, "formation %d is there", latest)
			e.Formation = latest
			return e
		case a.Joins && formed > 0:
			delete(m.forms, formed)
			return failure.New(mcrdmav1.Reason_STALE, "it has only now ended")
		}
		m.forms[f.N], m.joined[f.N] = false, a.Joins
		return nil
	}, func(err error, unsent bool) {
		on(func(s *group.Sender) {
			s.Prepared(f.MCID, a.Addr, group.Receiver{Addr: a.Addr, Host: a.Addr.String(), QPN: 5}, err, unsent, w.now)
		})
	})
}

func (w *senderWorld) install(a group.InstallFormation, on func(func(*group.Sender))) {
	f := a.Formation
	w.later(func() {
		var in group.Installation
		var err error
		if a.Old != nil {
			if in.OldLeft = w.fault == "old left" || w.chance(10); !in.OldLeft {
				delete(w.installed, a.Old.MCID)
			}
		}
		switch {
		case w.fault == "refused" || w.chance(5):
			err, in.Left = failure.New(mcrdmav1.Reason_NO_SWITCH, "no"), w.steps || w.chance(50)
			if in.Left {
				w.installed[f.MCID] = f.Addrs()
			}
		case w.fault == "relay" || w.chance(25):
			in.Path, in.Transient, in.Left = mcrdmav1.Path_PATH_RELAY, w.chance(50), w.chance(50)
			if in.Left {
				w.installed[f.MCID] = f.Addrs()
			}
		default:
			in.Path, in.Left = mcrdmav1.Path_PATH_SWITCH, true
			w.installed[f.MCID] = f.Addrs()
		}
		w.later(func() { on(func(s *group.Sender) { s.Installed(f.MCID, in, err, w.now) }) })
	})
}

func (w *senderWorld) commit(a group.CommitMember, on func(func(*group.Sender))) {
	m, f := w.members[a.Addr], a.Formation
	w.ask(func() error {
		if w.mistake == "a receiver has not committed" {
			return nil
		}
		w.view(f)
		if _, ok := m.forms[f.N]; !ok {
			return failure.New(mcrdmav1.Reason_NOT_FOUND, "formation %d has not been prepared", f.N)
		}
		m.forms[f.N], m.committed[f.N] = true, true
		m.view = max(m.view, f.View)
		for n := range m.forms {
			if n < f.N {
				delete(m.forms, n)
			}
		}
		return nil
	}, func(err error, _ bool) { on(func(s *group.Sender) { s.Committed(f.MCID, a.Addr, err, w.now) }) })
}

func (w *senderWorld) formed(f *group.Formation) {
	w.tally.formed++
	for _, a := range f.Addrs() {
		if !w.members[a].committed[f.N] {
			w.fail("formation %d is formed, and %v has not committed", f.N, a)
		}
	}
	if _, ok := w.installed[f.MCID]; !ok && f.Path == mcrdmav1.Path_PATH_SWITCH {
		w.fail("formation %d is formed, and not at the switch", f.N)
	}
	if !w.diskFails && (w.disk == nil || w.disk.Form == nil || w.disk.Form.N != f.N) {
		w.fail("formation %d is formed, and not durable", f.N)
	}
	w.app.removed = map[netip.Addr]bool{}
}

func (w *senderWorld) update(a group.UpdateSwitch, on func(func(*group.Sender))) {
	next := a.Next
	if w.app.views && w.app.acked < next.View {
		w.fail("an update to view %d, and the application knows %d", next.View, w.app.acked)
	}
	if w.disk == nil || w.disk.Pending != next.View {
		w.fail("an update to view %d, and the record has %+v", next.View, w.disk)
	}
	for _, x := range next.Addrs() {
		if m := w.members[x]; m.view < next.View {
			w.fail("an update to view %d, and %v has recorded %d", next.View, x, m.view)
		}
	}
	w.ask(func() error {
		if _, ok := w.installed[next.MCID]; !ok {
			return errors.New("there is no such group")
		}
		w.installed[next.MCID] = next.Addrs()
		return nil
	}, func(err error, _ bool) { on(func(s *group.Sender) { s.Updated(next.View, err, w.now) }) })
}

func (w *senderWorld) cleanUp(j group.Job, on func(func(*group.Sender))) {
	arrives := func() error {
		if w.s == nil {
			return nil
		}
		if !j.Addr.IsValid() {
			if w.mistake != "the switch keeps what was given up" {
				delete(w.installed, j.MCID)
			}
			return nil
		}
		if j.Reason == mcrdmav1.Detached_REASON_ABORTED {
			w.tally.undone++
			if w.mistake == "a late formation is not ended" {
				return nil
			}
		}
		w.over = w.over || j.Formation == 0 && j.MCID != 0 && j.Reason != mcrdmav1.Detached_REASON_ABORTED
		m, reason := w.members[j.Addr], j.Reason
		if f := w.s.Status().Form; f != nil && f.Has(j.Addr) && m.forms[f.N] && j.Formation == 0 {
			w.fail("%v is dropped, and is in formation %d", j.Addr, f.N)
		}
		if w.mistake == "receivers are told another reason" && reason == mcrdmav1.Detached_REASON_CLOSED {
			reason = mcrdmav1.Detached_REASON_SENDER_LOST
		}
		for n, committed := range m.forms {
			switch {
			case j.Formation != 0 && (n != j.Formation || committed && !m.joined[n] && j.Reason == mcrdmav1.Detached_REASON_ABORTED):
				continue
			case reason == mcrdmav1.Detached_REASON_CLOSED && !w.app.closed:
				w.fail("%v is told that the group was closed", j.Addr)
			case reason == mcrdmav1.Detached_REASON_SENDER_LOST && !w.app.gone:
				w.fail("%v is told that the application is gone", j.Addr)
			}
			delete(m.forms, n)
		}
		return nil
	}
	w.ask(arrives, func(err error, _ bool) { on(func(s *group.Sender) { s.Cleaned(j.ID, err, w.now) }) })
}
