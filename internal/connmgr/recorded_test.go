package connmgr

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/store"
)

// viewOf is a request of h1's daemon to record that the group of prepareRequest has these hosts'
// applications as receivers.
func viewOf(view uint32, address string, hosts ...int) *mcrdmav1.RecordViewRequest {
	req := &mcrdmav1.RecordViewRequest{Group: prepareRequest().GetGroup(), Formation: 1, Address: address, View: view}
	for _, i := range hosts {
		req.Members = append(req.Members, &mcrdmav1.Member{Address: hostAddr(i).String(), Host: fmt.Sprintf("h%d", i)})
	}
	return req
}

// recorded is the views of the memberships that a daemon tells, with their members.
func (h *host) recorded() string {
	h.r.t.Helper()
	list, err := mcrdmav1.NewApplicationsClient(h.dial()).ListGroups(context.Background(), &mcrdmav1.ListGroupsRequest{})
	if err != nil {
		h.r.t.Fatal(err)
	}
	var out []string
	for _, m := range list.GetMemberships() {
		var hosts []string
		for _, x := range m.GetMembers() {
			hosts = append(hosts, x.GetHost())
		}
		out = append(out, fmt.Sprintf("%d: %s", m.GetView(), strings.Join(hosts, " ")))
	}
	return strings.Join(out, "; ")
}

// member has an application of host i take part in the group of prepareRequest, in a view of
// h2, h3 and h4.
func (r *rig) member(i int, view uint32) (*app, mcrdmav1.HostsClient) {
	r.t.Helper()
	x, rpc := r.host(i).receiver(), r.host(i).caller(identity.Files{})
	req := prepareRequest()
	req.Address = hostAddr(i).String()
	if _, err := rpc.Prepare(r.t.Context(), req); err != nil {
		r.t.Fatal(err)
	}
	all := viewOf(view, req.GetAddress(), 4, 2, 3).GetMembers()
	if _, err := rpc.Commit(r.t.Context(), &mcrdmav1.CommitRequest{Address: req.GetAddress(),
		Formation: &mcrdmav1.FormationInfo{Group: req.GetGroup(), Formation: 1, View: view, Members: all}}); err != nil {
		r.t.Fatal(err)
	}
	return x, rpc
}

// TestViewsAfterLoss: the sender's host is lost after it had views recorded. The survivors'
// daemons tell the last one, also after they were restarted, and their applications learn it
// with the end.
func TestViewsAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		r.add(4)
		r.start(2)
		r.start(3)
		apps := map[int]*app{}
		for _, i := range []int{2, 3} {
			x, rpc := r.member(i, 4)
			apps[i] = x
			if got := r.host(i).recorded(); got != "4: h2 h3 h4" {
				t.Errorf("h%d: %s", i, got)
			}
			for _, step := range []struct {
				view  uint32
				hosts []int
			}{{6, []int{2, 3}}, {5, []int{2, 3, 4}}, {6, []int{3, 2}}} { // late and repeated ones succeed
				if _, err := rpc.RecordView(t.Context(), viewOf(step.view, hostAddr(i).String(), step.hosts...)); err != nil {
					t.Errorf("view %d: %v", step.view, err)
				}
			}
		}
		r.restart(3)
		for _, i := range []int{2, 3} {
			if got := r.host(i).recorded(); got != "6: h2 h3" {
				t.Errorf("h%d: %s", i, got)
			}
		}
		// The one that was restarted may not have told its application that it is formed.
		x := apps[3]
		x.mu.Lock()
		clear(x.formed)
		x.mu.Unlock()
		x.reopen()
		for attach := range x.attached {
			if _, err := x.rpc.ResumeMember(t.Context(), &mcrdmav1.ResumeMemberRequest{Token: x.token, Attach: attach, Group: prepareRequest().GetGroup(), Formation: 1}); err != nil {
				t.Error(err)
			}
		}
		if f := x.formation(1); len(f.GetMembers()) != 3 {
			t.Errorf("%v", f)
		}
		r.pass(31 * time.Second)
		for i, x := range apps {
			if d := x.detachment(1); d.GetReason() != mcrdmav1.Detached_REASON_SENDER_LOST || !strings.Contains(d.GetText(), "last view, 6, are h2 (127.9.0.2), h3 (127.9.0.3)") {
				t.Errorf("h%d: %v", i, d)
			}
		}
		r.pass(31 * time.Second)
		r.wantNothing()
	})
}

// TestBadViews: what another daemon may have recorded.
func TestBadViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		r.add(2)
		disk := r.startOnDisk(2)
		_, rpc := r.member(2, 4)
		ask := func(change func(*mcrdmav1.RecordViewRequest)) error {
			req := viewOf(5, "127.9.0.2", 2, 3)
			change(req)
			return second(rpc.RecordView(t.Context(), req))
		}
		for name, tt := range map[string]struct {
			reason string
			change func(*mcrdmav1.RecordViewRequest)
		}{
			"no number":         {"INVALID", func(q *mcrdmav1.RecordViewRequest) { q.View = 0 }},
			"no members":        {"INVALID", func(q *mcrdmav1.RecordViewRequest) { q.Members = nil }},
			"not this host":     {"INVALID", func(q *mcrdmav1.RecordViewRequest) { q.Members = q.Members[1:] }},
			"a member twice":    {"DUPLICATE_ADDRESS", func(q *mcrdmav1.RecordViewRequest) { q.Members = append(q.Members, q.Members[0]) }},
			"no address":        {"INVALID", func(q *mcrdmav1.RecordViewRequest) { q.Members[1].Address = "h3" }},
			"nil member":        {"INVALID", func(q *mcrdmav1.RecordViewRequest) { q.Members[1] = nil }},
			"many members":      {"LIMIT", func(q *mcrdmav1.RecordViewRequest) { q.Members = make([]*mcrdmav1.Member, machine.MaxMembers+1) }},
			"another's address": {"NO_SUCH_HOST", func(q *mcrdmav1.RecordViewRequest) { q.Address = "127.9.0.3" }},
			"another group":     {"NOT_FOUND", func(q *mcrdmav1.RecordViewRequest) { q.Group.Number++ }},
			"another formation": {"STALE", func(q *mcrdmav1.RecordViewRequest) { q.Formation = 2 }},
			"other members":     {"STALE", func(q *mcrdmav1.RecordViewRequest) { q.View = 4 }},
		} {
			if reason, host, _ := reasonOf(ask(tt.change)); reason != tt.reason || host != "h2" {
				t.Errorf("%s: %q, want %q", name, reason, tt.reason)
			}
		}
		// So is a Commit's.
		req := prepareRequest()
		req.Formation = 2
		if _, err := rpc.Prepare(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		commit := &mcrdmav1.CommitRequest{Address: "127.9.0.2", Formation: &mcrdmav1.FormationInfo{Group: req.GetGroup(), Formation: 2, View: 7}}
		if reason, _, _ := reasonOf(second(rpc.Commit(t.Context(), commit))); reason != "INVALID" {
			t.Errorf("a view without members: %q", reason)
		}
		if reason, _, _ := reasonOf(ask(func(q *mcrdmav1.RecordViewRequest) { q.Formation = 2 })); reason != "NOT_FOUND" {
			t.Errorf("a formation that is not complete: %q", reason)
		}
		if got := r.host(2).recorded(); got != "4: h2 h3 h4" {
			t.Errorf("recorded: %s", got)
		}
		disk.full.Store(true)
		wantFull(t, "RecordView", ask(func(*mcrdmav1.RecordViewRequest) {}), "h2")
		if err := ask(func(q *mcrdmav1.RecordViewRequest) { proto.Reset(q); proto.Merge(q, viewOf(3, "127.9.0.2", 2)) }); err != nil {
			t.Errorf("one that a later view makes needless: %v", err)
		}
	})
}

// TestRecordWithoutView: a daemon takes up memberships from the state of a release without
// views.
func TestRecordWithoutView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		r.add(2)
		const record = `{"ID":"127.9.0.1/1","Formation":1,"Attach":7,"Service":"store","Sender":"h1","Program":"p","Path":2,"Memory":100,` +
			`"Joins":true,"Lease":30000000000,"Since":"2026-01-02T03:04:05Z","User":{"Token":"T","UID":0,"PID":1,"Program":"q"}}`
		s, err := store.Open(t.Context(), r.config(2).State, store.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(t.Context(), editOf(membersBucket, 7, []byte(record))); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		h := r.start(2)
		x := h.app("T")
		if _, err := x.rpc.ResumeMember(t.Context(), &mcrdmav1.ResumeMemberRequest{Token: x.token, Attach: 7, Group: prepareRequest().GetGroup(), Formation: 1}); err != nil {
			t.Error(err)
		}
		if got := h.recorded(); got != "0: " {
			t.Errorf("recorded: %s", got)
		}
		if _, err := h.caller(identity.Files{}).RecordView(t.Context(), viewOf(3, "127.9.0.2", 2)); err != nil {
			t.Error(err)
		}
		r.restart(2)
		if got := h.recorded(); got != "3: h2" {
			t.Errorf("recorded: %s", got)
		}
	})
}
