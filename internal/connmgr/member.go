package connmgr

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/unixsock"
)

// A memberRecord is a formed membership in the state file.
type memberRecord struct {
	ID groupID
	machine.Membership
	Info []byte `json:",omitempty"` // its FormationInfo
}

// members are the memberships of this host's applications, by group. The machines of package group
// decide; members carries out their actions.
type members struct {
	host       string
	address    netip.Addr
	rack       uint32
	limits     config.Limits
	sessions   *sessions
	happened   func(machine.Owner, *mcrdmav1.WatchEventsResponse)
	write      func(context.Context, ...store.Edit) error
	forget     func(context.Context, ...store.Edit)
	background func(func(context.Context))
	sendNews   func(ctx context.Context, to netip.Addr, news []*mcrdmav1.Gone)
	lists      beatLists

	mu       sync.Mutex
	numbers  uint64 // the last of an attachment or a call
	groups   map[groupID]*machine.Memberships
	attached map[uint64]groupID                // by attachment
	calls    map[uint64]chan<- machine.Respond // that wait, of other daemons
	news     map[netip.Addr][]*mcrdmav1.Gone   // by sender, that are about to be sent
	closed   error                             // why this host accepts no new memberships
}

func newMembers(m *Manager) *members {
	return &members{host: m.cfg.Name, address: m.cfg.Address, rack: m.cfg.Rack, limits: m.cfg.Limits, sessions: m.sessions, happened: m.watched.happened, write: m.commitState, forget: m.forget, background: m.background,
		news: map[netip.Addr][]*mcrdmav1.Gone{}, numbers: m.boot, groups: map[groupID]*machine.Memberships{}, attached: map[uint64]groupID{}, calls: map[uint64]chan<- machine.Respond{}}
}

// leftBecause is why a membership has ended, for people.
func leftBecause(a machine.TellEnded) string {
	if e := detachedError(a.Reason, a.Text); e != nil {
		return e.Text
	}
	if a.Reason == mcrdmav1.Detached_REASON_REFORMED {
		return "another formation takes its place"
	}
	return cmp.Or(a.Text, "the application has left")
}

// maxGone limits the groups for which only the end of their memberships is remembered.
const maxGone = 4096

// step calls f, an event, with the machine of a group, and carries out the resulting actions.
func (t *members) step(id groupID, f func(r *machine.Memberships, now time.Time)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stepLocked(id, f)
}

func (t *members) stepLocked(id groupID, f func(r *machine.Memberships, now time.Time)) {
	r := t.groups[id]
	if r == nil {
		r = &machine.Memberships{}
	}
	f(r, time.Now())
	for _, action := range r.Take() {
		t.do(id, action)
	}
	if t.groups[id] = r; r.Idle() {
		delete(t.groups, id)
	}
}

// do carries out an action. It is called with members.mu.
func (t *members) do(id groupID, action machine.ReceiverAction) {
	switch a := action.(type) {
	case machine.Ask:
		t.attached[a.Attach] = id
		t.tell(a.User, &mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_AttachRequested{AttachRequested: &mcrdmav1.AttachRequested{
			Attach: a.Attach, Service: a.Service, Group: id.proto(), Formation: a.Formation, Sender: a.Sender, SenderProgram: a.Program,
			Connection: a.Request.GetConnection(), Regions: a.Request.GetRegions(), Relay: a.Request.GetRelay(), Deadline: timestamppb.New(a.Deadline),
			Previous: a.Previous, Joins: a.Joins}}})
	case machine.TellFormed:
		t.tell(a.User, &mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_AttachFormed{AttachFormed: &mcrdmav1.AttachFormed{Attach: a.Attach, Formation: a.Info}}})
		t.happened(a.User, &mcrdmav1.WatchEventsResponse{Kind: "joined", Group: id.proto(), McId: a.Info.GetMcId(), Formation: a.Info.GetFormation(),
			Text: "of " + machine.Plural(len(a.Info.GetMembers()), "receiver") + ", by " + map[bool]string{true: "switches", false: "hosts"}[a.Info.GetPath() == mcrdmav1.Path_PATH_SWITCH]})
	case machine.TellEnded:
		delete(t.attached, a.Attach)
		if !a.Asked {
			t.happened(a.User, &mcrdmav1.WatchEventsResponse{Kind: "left", Group: id.proto(), Text: leftBecause(a)})
		}
		if s := t.sessions.find(a.User.Token); s != nil {
			s.detached(a)
		}
	case machine.PutMembership:
		record := store.Encode(memberRecord{id, a.Membership, infoBytes(a.Info)})
		t.background(func(ctx context.Context) {
			err := t.write(ctx, editOf(membersBucket, a.Membership.Attach, record))
			t.step(id, func(r *machine.Memberships, now time.Time) { r.Recorded(a.Membership.Attach, err, now) })
		})
	case machine.DeleteMembership:
		t.background(func(ctx context.Context) {
			t.forget(ctx, editOf(membersBucket, a.Attach, nil))
			t.step(id, func(r *machine.Memberships, _ time.Time) { r.Deleted(a.Attach) })
		})
	case machine.TellGone:
		if t.news[id.source] = append(t.news[id.source], t.gone(beatOf{id, a.Formation}, a.Text)); len(t.news[id.source]) == 1 {
			t.background(func(ctx context.Context) { t.tellNews(ctx, id.source) })
		}
	case machine.Respond:
		if c := t.calls[a.Call]; c != nil {
			c <- a
			delete(t.calls, a.Call)
		}
	}
}

func (t *members) gone(b beatOf, why string) *mcrdmav1.Gone {
	return &mcrdmav1.Gone{Group: b.id.proto(), Formation: b.formation, Address: t.address.String(), Reason: why}
}

// tellNews tells a sender's daemon what has ended here.
func (t *members) tellNews(ctx context.Context, sender netip.Addr) {
	t.mu.Lock()
	news := t.news[sender]
	delete(t.news, sender)
	t.mu.Unlock()
	t.sendNews(ctx, sender, news)
}

func (t *members) tell(u machine.Owner, e *mcrdmav1.OpenResponse) {
	if s := t.sessions.find(u.Token); s != nil {
		s.push(e)
	}
}

// infoBytes is the part of a formation that the application needs after a restart; nil: the record
// lacks it.
func infoBytes(f *mcrdmav1.FormationInfo) []byte {
	if f == nil {
		return nil
	}
	f = proto.CloneOf(f)
	f.Tree, f.Phases = nil, nil
	b, _ := proto.Marshal(f) // it came in a message
	return b
}

// call makes an event of another daemon's call, which waits for Respond.
func (t *members) call(ctx context.Context, id groupID, f func(r *machine.Memberships, call uint64, now time.Time)) (*mcrdmav1.PrepareResponse, error) {
	done := make(chan machine.Respond, 1)
	t.mu.Lock()
	t.numbers++
	call := t.numbers
	t.calls[call] = done
	t.stepLocked(id, func(r *machine.Memberships, now time.Time) { f(r, call, now) })
	t.mu.Unlock()
	select {
	case a := <-done:
		return a.Answer, a.Err
	case <-ctx.Done():
	}
	t.step(id, func(r *machine.Memberships, _ time.Time) {
		r.Cancelled(call)
		delete(t.calls, call)
	})
	select {
	case a := <-done: // it came meanwhile
		return a.Answer, a.Err
	default:
		return nil, ctx.Err()
	}
}

// prepare asks the listening application whether it joins.
func (t *members) prepare(ctx context.Context, id groupID, in machine.Invitation) (*mcrdmav1.PrepareResponse, error) {
	res, err := t.call(ctx, id, func(r *machine.Memberships, call uint64, now time.Time) {
		if s := t.sessions.listener(in.Service); s != nil { // if the session ends from now on, so does the membership
			in.User = s.record()
		} else {
			in.Ended = t.sessions.ended(in.Service)
		}
		in.Closed = t.closed
		if _, there := r.One(); !there {
			in.Full = t.room(id.source, in.User.UID, in.Memory)
		}
		t.numbers++
		in.Attach = t.numbers
		r.Prepare(call, in, now)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = failure.New(mcrdmav1.Reason_TIMEOUT, "the application that listens for %q did not answer in time", in.Service)
	}
	return res, err
}

// commit completes a membership's formation. Earlier formations end.
func (t *members) commit(ctx context.Context, id groupID, f *mcrdmav1.FormationInfo, v machine.RecordedView) error {
	_, err := t.call(ctx, id, func(r *machine.Memberships, call uint64, _ time.Time) { r.Commit(call, f, v) })
	return err
}

// recordView makes a view durable.
func (t *members) recordView(ctx context.Context, id groupID, formation uint32, v machine.RecordedView) error {
	_, err := t.call(ctx, id, func(r *machine.Memberships, call uint64, _ time.Time) { r.RecordView(call, formation, v) })
	return err
}

// drop ends a formation of a group, or (0) all, as the sender asks.
func (t *members) drop(ctx context.Context, id groupID, formation uint32, reason mcrdmav1.Detached_Reason, text string) error {
	_, err := t.call(ctx, id, func(r *machine.Memberships, call uint64, _ time.Time) { r.Drop(call, formation, reason, text) })
	return err
}

// beat records that the sender of a group is alive. It reports whether there is a membership in
// that formation, or a later one, and if not, why.
func (t *members) beat(id groupID, formation uint32) (why string, ok bool) {
	t.step(id, func(r *machine.Memberships, now time.Time) { why, ok = r.Beat(formation, now) })
	return why, ok
}

// of calls f with the machine of an application's attachment, or with an empty machine if there is
// none.
func (t *members) of(attach uint64, f func(r *machine.Memberships, now time.Time)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stepLocked(t.attached[attach], f)
}

// answer takes an application's answer.
func (t *members) answer(s *session, req *mcrdmav1.AnswerAttachRequest) (err error) {
	t.of(req.GetAttach(), func(r *machine.Memberships, _ time.Time) {
		var asked *mcrdmav1.PrepareRequest
		if asked, err = r.Question(s.token, req.GetAttach()); err != nil {
			return
		}
		if req.GetRefused() != "" {
			err = r.Answer(s.token, req.GetAttach(), nil, machine.Refusal(req))
			return
		}
		if err = machine.CheckAnswer(asked, req); err != nil {
			return
		}
		err = r.Answer(s.token, req.GetAttach(), &mcrdmav1.PrepareResponse{Host: t.host, Qpn: req.GetQpn(), Mtu: asked.GetConnection().GetMtu(), Regions: req.GetRegions(),
			Bootstrap: req.GetBootstrap(), Transport: req.GetTransport(), Have: req.GetHave(), Version: ProtocolVersion, Rack: t.rack,
			Unicast: req.GetUnicast(), NoDevice: req.GetNoDevice(), SeesIdentification: req.GetSeesIdentification()}, nil)
	})
	return err
}

// leave ends a membership at its application's request.
func (t *members) leave(s *session, attach uint64, reason string) (err error) {
	text := "the application has left"
	if reason != "" {
		text += ": " + failure.Clip(reason, failure.MaxText)
	}
	t.of(attach, func(r *machine.Memberships, now time.Time) { err = r.Leave(s.token, attach, text, now) })
	return err
}

// resume says that an application still has a membership.
func (t *members) resume(s *session, req *mcrdmav1.ResumeMemberRequest) error {
	id, err := groupIDFrom(req.GetGroup())
	if err != nil {
		return err
	}
	there := false
	t.step(id, func(r *machine.Memberships, _ time.Time) {
		there = r.Resume(s.token, req.GetAttach(), req.GetFormation())
	})
	if !there {
		return s.whyEnded(id, req.GetAttach(), failure.New(mcrdmav1.Reason_NOT_FOUND, "there is no membership %d in formation %d of group %v", req.GetAttach(), req.GetFormation(), id))
	}
	return nil
}

// load adds a membership of the state.
func (t *members) load(r *memberRecord, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var info *mcrdmav1.FormationInfo
	if r.Info != nil {
		info = &mcrdmav1.FormationInfo{}
		if err := proto.Unmarshal(r.Info, info); err != nil {
			return err
		}
	}
	t.sessions.restore(r.User)
	t.attached[r.Attach] = r.ID
	t.stepLocked(r.ID, func(g *machine.Memberships, _ time.Time) { g.Load(r.Membership, info, now) })
	return nil
}

// each is an event for all groups.
func (t *members) each(f func(r *machine.Memberships, now time.Time)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.groups {
		t.stepLocked(id, f)
	}
}

// tick ends memberships whose lease has ended, or whose application has not come back in time.
func (t *members) tick(graceOver bool) {
	t.each(func(r *machine.Memberships, now time.Time) { r.Tick(now, graceOver) })
}

// sessionEnded ends the memberships of an application that has ended.
func (t *members) sessionEnded(token, why string) {
	t.each(func(r *machine.Memberships, now time.Time) { r.SessionEnded(token, why, now) })
}

// stop ends all memberships permanently, and returns the number of their groups.
func (t *members) stop(why string) (n int) {
	t.mu.Lock()
	t.closed = failure.New(mcrdmav1.Reason_NO_SERVICE, "%s", why)
	t.mu.Unlock()
	n = t.count(netip.Addr{})
	t.each(func(r *machine.Memberships, now time.Time) { r.Stop(why, now) })
	return n
}

// common calls f with one membership of each group. It is called with members.mu.
func (t *members) common(f func(id groupID, x machine.Membership)) {
	for id, r := range t.groups {
		if x, there := r.One(); there {
			f(id, x)
		}
	}
}

// count returns the number of groups in which this host's applications are, of one sender or (zero)
// of all.
func (t *members) count(sender netip.Addr) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.common(func(id groupID, _ machine.Membership) {
		if !sender.IsValid() || id.source == sender {
			n++
		}
	})
	return n
}

// room checks the limits for one more group of a sender, with that much memory, for a user's
// application. It is called with members.mu.
func (t *members) room(sender netip.Addr, uid uint32, memory uint64) error {
	all, same, used := 0, 0, uint64(0)
	t.common(func(id groupID, x machine.Membership) {
		all++
		if id.source == sender {
			same++ // one sender cannot use the whole limit
		}
		if x.User.UID == uid {
			used += x.Memory // as all of the group
		}
	})
	switch l := t.limits; {
	case same >= l.PerSender:
		return failure.New(mcrdmav1.Reason_LIMIT, "its applications are in %d groups of this sender, and its daemon is configured to allow no more: close some, or raise limits.memberships_per_sender there", same)
	case all >= l.Memberships || len(t.groups) >= l.Memberships+maxGone:
		return failure.New(mcrdmav1.Reason_LIMIT, "its applications are in %d groups, and its daemon is configured to allow no more: raise limits.memberships", all)
	case l.Memory > 0 && (memory > l.Memory || used > l.Memory-memory):
		return failure.New(mcrdmav1.Reason_LIMIT, "the regions take %d bytes, user %d has given %d, and is allowed %d: ask for less, or raise limits.memory there",
			memory, uid, used, l.Memory)
	}
	return nil
}

// list returns the memberships that a user may see.
func (t *members) list(u unixsock.User) (out []*mcrdmav1.MembershipInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range slices.SortedFunc(maps.Keys(t.groups), compareIDs) {
		for _, x := range t.groups[id].Formed() {
			if u.May(x.User.UID) {
				out = append(out, t.describe(id, x))
			}
		}
	}
	return out
}

func (t *members) describe(id groupID, x machine.Membership) *mcrdmav1.MembershipInfo {
	if s := t.sessions.find(x.User.Token); s != nil {
		x.User = s.record()
	}
	out := &mcrdmav1.MembershipInfo{Group: id.proto(), Formation: x.Formation, Service: x.Service, Sender: x.Sender, Program: x.User.Program,
		Uid: x.User.UID, Pid: x.User.PID, Path: x.Path, McId: x.MCID, Attach: x.Attach, Since: timestamppb.New(x.Since), View: x.View}
	for _, m := range x.Members {
		out.Members = append(out.Members, &mcrdmav1.Member{Address: m.Addr.String(), Host: m.Host})
	}
	return out
}
