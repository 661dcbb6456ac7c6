package mcrdma

import (
	"fmt"
	"slices"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// ask has the daemon answer.
func (f *trial) ask() {
	if !f.asked || f.away || f.chance(40) {
		return
	}
	req := f.l.re.request()
	answer := func(info *mcrdmav1.FormationInfo, err error, again bool) {
		f.asked = false
		f.step("answered", func() { f.l.answered(info, err, again, f.now) })
	}
	switch {
	case f.halted:
		answer(nil, errPlay, true)
	case f.ended:
		answer(nil, ErrMinSize, false)
	case req.GetFormation() != f.form.GetFormation():
		f.deeds["stale"]++
		answer(f.form, errStale, true)
	case f.chance(8):
		answer(nil, ErrUnreachable, true)
	case f.chance(2) || len(req.GetAdd()) > 0 && f.chance(20):
		answer(nil, &Error{Reason: mcrdmav1.Reason_NO_SUCH_HOST}, false)
	default:
		f.make(req, f.l.queue.sent(), f.members)
		switch {
		case f.ended:
			answer(nil, ErrMinSize, false)
		case f.chance(10): // the answer is lost, and it is asked again
		default:
			answer(f.form, nil, false)
		}
	}
}

// make makes a formation of those that are there.
func (f *trial) make(req *mcrdmav1.ReformGroupRequest, sent uint64, before []string) {
	catchUp := f.l.re.catchUp != nil && f.asked
	f.pending = nil
	info := &mcrdmav1.FormationInfo{Formation: f.form.GetFormation() + 1, Have: sent, Path: mcrdmav1.Path_PATH_RELAY}
	if !catchUp && f.rng.IntN(10) < 6 {
		info.Path = mcrdmav1.Path_PATH_SWITCH
	}
	f.deeds["formations"]++
	if catchUp {
		f.deeds["catching up"]++
	}
	var next []string
	for _, a := range before {
		if h := f.hosts[a]; !h.dead && !f.chance(5) && !(slices.Contains(req.GetSuspects(), a) && f.chance(20)) {
			info.Have = min(info.GetHave(), h.have)
			next = append(next, a)
		} else {
			h.dead = true
		}
	}
	stay := len(next)
	for _, a := range req.GetAdd() {
		if !slices.Contains(next, a) && !f.chance(20) {
			*f.hosts[a] = copyOf{got: -1, left: max(f.hosts[a].got, f.hosts[a].left)}
			next = append(next, a)
		}
	}
	if len(next) == 0 {
		f.fail()
		return
	}
	if stay == 0 && f.form != nil {
		f.deeds["all new"]++
	}
	for i, a := range next {
		h := f.hosts[a]
		if i >= stay {
			h.have = info.GetHave()
		}
		info.Members = append(info.Members, &mcrdmav1.Member{Address: a, Host: "host " + a, Have: h.have})
	}
	if f.counts {
		f.view++
		info.View = f.view
	}
	f.form, f.members = info, next
	f.logf("formation %d: view %d, %v, %v, all have %d", info.GetFormation(), info.GetView(), next, info.GetPath(), info.GetHave())
}

func (f *trial) fail() {
	f.ended = true
	f.say(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_FAILED})
}

// say puts an event on its way.
func (f *trial) say(e *mcrdmav1.GroupChanged) {
	if e.Formation = f.form.GetFormation(); !f.away {
		f.to = append(f.to, e)
	}
}

// hear brings the application an event.
func (f *trial) hear() {
	if len(f.to) > 0 {
		e := f.to[0]
		f.to = f.to[1:]
		f.step(fmt.Sprintf("%v %s view %d %v", e.GetType(), e.GetAddress(), e.GetView(), e.GetMembers()), func() { f.l.changed(e) })
	}
}

// takeView has the hook return.
func (f *trial) takeView() {
	if len(f.hooks) == 0 {
		return
	}
	v := f.hooks[0]
	f.hooks = nil
	var err error
	if f.chance(1) {
		err = errPlay
		f.deeds["hook failed"]++
	} else {
		f.hooked[v.Number] = true
		for _, p := range f.lastView.Members {
			if _, ok := f.gone[p.Address]; !ok && !v.has(p.Address) && (f.in[p.Address] || f.l.state == forming) && f.l.state < closing {
				f.gone[p.Address] = f.completed
			}
		}
		if f.l.state < closing { // afterwards, the last view is the end's
			f.lastView = v
		}
		f.deeds["views"]++
	}
	f.step("hooked", func() { f.l.hooked(v.Number, err) })
}

// takeAck brings the daemon an acknowledgement of a view: the switch goes on.
func (f *trial) takeAck() {
	if len(f.acked) == 0 || f.away {
		return
	}
	number := f.acked[0]
	f.acked = f.acked[1:]
	f.deeds["acks"]++
	if p := f.pending; p != nil && number >= p.view && !p.broken {
		f.pending = nil
		f.without(p.out)
		f.deeds["removals by view"]++
	}
}

// without lets the switch go on without a member.
func (f *trial) without(out string) {
	is := func(a string) bool { return a == out }
	f.members = slices.DeleteFunc(slices.Clone(f.members), is)
	if f.l.info.GetFormation() == f.form.GetFormation() {
		f.merge = slices.DeleteFunc(f.merge, is)
	}
	f.say(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_REMOVED, Address: out, Host: "host " + out, Text: "dead"})
}

// die has a receiver die, or be silent.
func (f *trial) die() {
	if a := f.members[f.rng.IntN(len(f.members))]; len(f.members) > 1 || f.chance(5) {
		f.hosts[a].dead = true
		f.logf("%s is dead", a)
	}
}

// goOn has the daemon do something about who is dead.
func (f *trial) goOn() {
	if f.away || f.ended {
		return
	}
	reform := func() { f.say(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_REFORM, Text: "broken"}) }
	if f.pending != nil {
		if f.pending.broken = f.pending.broken || f.chance(10); f.pending.broken && len(f.to) == 0 {
			reform()
		}
		return
	}
	i := slices.IndexFunc(f.members, func(a string) bool { return f.hosts[a].dead })
	if i < 0 {
		return
	}
	out, left := f.members[i], slices.Delete(slices.Clone(f.members), i, i+1)
	switch {
	case len(left) == 0:
		f.fail()
	case f.form.GetPath() == mcrdmav1.Path_PATH_RELAY:
		if len(f.to) == 0 {
			reform()
		}
	case f.counts:
		f.view++
		f.pending = &removal{view: f.view, out: out, left: left}
		f.say(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_VIEW, View: f.view, Members: left})
	default:
		f.without(out)
		f.deeds["removals without"]++
	}
}

// restart has the daemon lose what is on its way.
func (f *trial) restart() {
	if !f.away {
		f.logf("the daemon restarts")
		f.away, f.to, f.acked = true, nil, nil
		f.deeds["restarts"]++
	}
}

func (f *trial) resume() {
	if !f.away {
		return
	}
	f.away = false
	if f.ended {
		f.step("forgotten", func() { f.l.stop(ErrDaemon) })
		return
	}
	members, view := f.members, uint32(0)
	if f.counts {
		view = f.view
	}
	if f.pending != nil {
		members = f.pending.left
	}
	info := &mcrdmav1.FormationInfo{Formation: f.form.GetFormation(), View: view, Path: f.form.GetPath()}
	for _, m := range f.form.GetMembers() {
		if slices.Contains(members, m.GetAddress()) {
			info.Members = append(info.Members, m)
		}
	}
	acks := len(f.acked)
	f.step("resumed", func() { f.l.resumed(info) })
	if len(f.acked) > acks {
		f.deeds["acks again"]++
	}
}

func (f *trial) receive() {
	if !f.carrying || len(f.merge) == 0 {
		return
	}
	h := f.hosts[f.merge[f.rng.IntN(len(f.merge))]]
	if h.dead || h.at == f.posted {
		return
	}
	op := f.ops[h.at]
	if h.at++; h.at > h.got {
		h.got = h.at
		if op.Kind.message() {
			h.have++
		}
	}
}

// poll completes at most n operations that the path has as acknowledged.
func (f *trial) poll(n int) {
	if !f.carrying || len(f.merge) == 0 {
		return
	}
	all := f.hosts[f.merge[0]].at
	for _, a := range f.merge {
		all = min(all, f.hosts[a].at)
	}
	f.acks = max(f.acks, all)
	if n = min(n, f.acks-f.completed); n > 0 {
		f.step("complete", func() { f.l.complete(n) })
		f.hand(nil)
	}
}

func (f *trial) add() {
	if !f.chance(10) {
		return
	}
	w := &addition{done: make(chan answer, 1)}
	for range 1 + f.rng.IntN(2) {
		if a := string(rune('a' + f.rng.IntN(len(f.hosts)))); !slices.Contains(w.receivers, a) {
			w.receivers = append(w.receivers, a)
		}
	}
	f.step(fmt.Sprint("add ", w.receivers), func() {
		if f.l.add(w) == nil {
			f.additions++
		}
	})
}

func (f *trial) end() {
	if f.chance(50) {
		f.fail()
		return
	}
	f.step("stop", func() { f.l.stop(errClosing) })
}

func (f *trial) tree() {
	typ := []mcrdmav1.GroupChanged_Type{mcrdmav1.GroupChanged_TYPE_TREE, mcrdmav1.GroupChanged_TYPE_ROUTE}[f.rng.IntN(2)]
	f.say(&mcrdmav1.GroupChanged{Type: typ, Tree: []string{fmt.Sprint(f.form.GetFormation())}})
}
