package connmgr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/store"
)

// reopen opens the session again.
func (a *app) reopen() {
	a.r.t.Helper()
	a.end()
	a.open(a.token)
}

func (a *app) resumeGroup(f *mcrdmav1.FormationInfo) *mcrdmav1.FormationInfo {
	a.r.t.Helper()
	res, err := a.rpc.ResumeGroup(context.Background(), &mcrdmav1.ResumeGroupRequest{Token: a.token, Group: f.GetGroup(), Formation: f.GetFormation()})
	if err != nil {
		a.r.t.Fatal(err)
	}
	return res.GetFormation()
}

// TestSenderRestarts: the sender's daemon comes back, and so does the application: the
// group goes on. What its application does not come back for is swept.
func TestSenderRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withTLS, withSwitch)
		apps := r.receivers()
		a, lost := r.host(1).app(""), r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		other := a.create(a.request()).GetFormation() // the application forgets it
		lost.create(lost.request())
		r.pass(time.Second)
		r.restart(1)
		if n := len(r.sw.list()); n != 3 {
			t.Fatalf("the switch has %d groups", n)
		}
		token := a.token
		a.reopen()
		if !a.hello.GetResumed() || a.token != token {
			t.Fatalf("not resumed: %v", a.hello)
		}
		got := a.resumeGroup(f)
		if got.GetFormation() != 1 || got.GetPath() != bySwitch || got.GetMcId() != f.GetMcId() || got.GetConnection().String() != f.GetConnection().String() ||
			len(got.GetMembers()) != 3 {
			t.Errorf("%v", got)
		}
		// It goes on as before: it is monitored.
		r.pass(2 * time.Second)
		if n := len(a.changes) - a.countChanges(mcrdmav1.GroupChanged_TYPE_CREATED) - a.countChanges(mcrdmav1.GroupChanged_TYPE_TREE); n > 0 {
			t.Errorf("%v", a.changes)
		}
		list, err := a.rpc.ListGroups(t.Context(), &mcrdmav1.ListGroupsRequest{})
		if err != nil || len(list.GetGroups()) != 3 || len(list.GetGroups()[1].GetProblems()) != 1 {
			t.Errorf("%v, %v", list, err)
		}
		r.pass(7 * time.Second)
		if n := len(r.sw.list()); n != 3 {
			t.Errorf("swept too early: the switch has %d groups", n)
		}
		r.pass(2 * time.Second)
		r.until("the others are swept", func() bool { return len(r.sw.list()) == 1 })
		r.until("they are detached", func() bool {
			apps[0].mu.Lock()
			defer apps[0].mu.Unlock()
			return len(apps[0].detached) == 2
		})
		_, err = a.rpc.ResumeGroup(t.Context(), &mcrdmav1.ResumeGroupRequest{Token: a.token, Group: other.GetGroup(), Formation: 1})
		if reason, _, _ := reasonOf(err); reason != "NOT_FOUND" {
			t.Errorf("%v", err)
		}
		// Its numbers are not used again.
		again := a.create(a.request()).GetFormation()
		for _, was := range []*mcrdmav1.FormationInfo{f, other} {
			if again.GetGroup().GetNumber() == was.GetGroup().GetNumber() || again.GetMcId() <= was.GetMcId() {
				t.Errorf("numbers of %v are used again: %v", was, again)
			}
		}
		r.host(1).hang(r.host(2), true)
		r.pass(1200 * time.Millisecond)
		a.waitChange(removed)
		r.host(1).hang(r.host(2), false)
		// It can be formed anew, and closed.
		next := a.reform(f, nil).GetFormation()
		if next.GetFormation() != 2 || len(next.GetMembers()) != 2 {
			t.Errorf("%v", next)
		}
		a.closeGroup(f.GetGroup())
		a.closeGroup(again.GetGroup())
		a.end()
		lost.end()
		r.wantNothing()
	})
}

// TestReceiverRestarts: the same at a receiver; meanwhile beats are answered as if
// nothing had happened.
func TestReceiverRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		forgotten := a.create(a.request()).GetFormation() // by the application of h2
		r.pass(time.Second)
		r.restart(2)
		r.restart(3)
		x := apps[0]
		x.reopen()
		var attach uint64
		for k, ask := range x.attached {
			if ask.GetGroup().GetNumber() == f.GetGroup().GetNumber() {
				attach = k
			}
		}
		req := &mcrdmav1.ResumeMemberRequest{Token: x.token, Attach: attach, Group: f.GetGroup(), Formation: 1}
		if _, err := x.rpc.ResumeMember(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		for _, change := range []func(*mcrdmav1.ResumeMemberRequest){
			func(q *mcrdmav1.ResumeMemberRequest) { q.Attach++ },
			func(q *mcrdmav1.ResumeMemberRequest) { q.Formation = 2 },
			func(q *mcrdmav1.ResumeMemberRequest) { q.Group = &mcrdmav1.GroupID{Source: "127.9.0.1", Number: 99} },
		} {
			q := &mcrdmav1.ResumeMemberRequest{Token: x.token, Attach: attach, Group: f.GetGroup(), Formation: 1}
			change(q)
			_, err := x.rpc.ResumeMember(t.Context(), q)
			if reason, _, _ := reasonOf(err); reason != "NOT_FOUND" {
				t.Errorf("%v", err)
			}
		}
		r.pass(9 * time.Second)
		if a.countChanges(removed) > 0 {
			t.Fatal("removed within grace")
		}
		r.pass(1500 * time.Millisecond)
		if c := a.await(removed); !strings.Contains(c.GetText(), "has not come back") {
			t.Errorf("%v", c)
		}
		r.passUntil("the forgotten group has ended", func() bool { return r.host(1).members(forgotten.GetGroup()) == "4" && a.countChanges(removed) == 3 })
		a.closeGroup(forgotten.GetGroup())
		if got := r.host(1).members(f.GetGroup()); got != "2 4" {
			t.Errorf("members %q", got)
		}
		// The next formation finds its previous membership.
		a.reform(f, nil)
		x.formation(2)
		r.until("it is detached", func() bool { x.mu.Lock(); defer x.mu.Unlock(); return x.detached[attach] != nil })
		if d := x.detached[attach]; d.GetReason() != mcrdmav1.Detached_REASON_REFORMED {
			t.Errorf("%v", d)
		}
		a.closeGroup(f.GetGroup())
		apps[1].end()
		r.wantNothing()
	})
}

// TestStateOfAnotherHost: a daemon that starts with another host's state does not answer beats for that host's
// memberships, so the sender goes on without this host at once.
func TestStateOfAnotherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		r.pass(time.Second)
		r.host(2).kill()
		r.host(3).kill()
		b, err := os.ReadFile(r.config(3).State)
		if err == nil {
			err = os.WriteFile(r.config(2).State, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.start(2)
		r.start(3)
		r.pass(3 * time.Second)
		if got := r.host(1).members(f.GetGroup()); got != "3" {
			t.Errorf("members %q, want the host that has its own state", got)
		}
		r.restart(2)
		r.host(2).kill()
		s, err := store.Open(t.Context(), r.config(2).State, store.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		for range s.Load(membersBucket) {
			t.Error("the other host's membership is still in the state")
		}
		_ = s.Close()
		r.start(2)
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// commits counts the commits of a store.
type commits struct {
	Store
	n int
}

func (c *commits) Commit(ctx context.Context, edits ...store.Edit) error {
	if len(edits) > 0 {
		c.n++
	}
	return c.Store.Commit(ctx, edits...)
}

// TestStateBecomesOwn: before a daemon runs, it makes the state of another host, or of a release that did not
// record whose it is, its own in one commit: a crash never leaves its name on another's memberships. On a full
// disk it does not start, and changes nothing. The next start finds nothing to write.
func TestStateBecomesOwn(t *testing.T) {
	other := groupID{hostAddr(9), 3}
	record := store.Encode(groupRecord{ID: other, SenderRecord: machine.SenderRecord{Form: &formation{N: 1}}})
	membership := store.Encode(memberRecord{ID: other, Membership: machine.Membership{Attach: 7, Formation: 1, Service: "store", Sender: "h9", Lease: time.Minute}})
	for name, tt := range map[string]struct {
		edits   []store.Edit
		members int // that it keeps
	}{
		"new":           {nil, 0},
		"without owner": {[]store.Edit{editOf(groupsBucket, 3, record), editOf(membersBucket, 7, membership)}, 1},
		"another host's": {[]store.Edit{editOf(groupsBucket, 3, record), editOf(membersBucket, 7, membership), editOf(membersBucket, 8, []byte("{")),
			{Bucket: "owner", Key: []byte("address"), Value: []byte("127.9.0.9")}}, 0},
		"this host's": {[]store.Edit{editOf(membersBucket, 7, membership), {Bucket: "owner", Key: []byte("address"), Value: []byte("127.9.0.2")}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 0, onSockets)
			r.add(2)
			cfg := r.config(2)
			content := func(edits ...store.Edit) (lines []string) {
				s, err := store.Open(t.Context(), cfg.State, store.Options{NoSync: true})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = s.Close() }()
				if err := s.Commit(t.Context(), edits...); err != nil {
					t.Fatal(err)
				}
				for _, b := range []string{groupsBucket, membersBucket, "owner"} {
					for k, v := range s.Load(b) {
						lines = append(lines, fmt.Sprintf("%s %x %s", b, k, v))
					}
				}
				return lines
			}
			before := content(tt.edits...)
			start := func(full bool) (int, error) {
				var c commits
				m, err := New(t.Context(), cfg, Options{OpenStore: func(ctx context.Context, path string) (Store, error) {
					s, err := store.Open(ctx, path, store.Options{NoSync: true})
					d := &disk{Store: s}
					d.full.Store(full)
					c.Store = d
					return &c, err
				}})
				if err == nil {
					m.close()
				}
				return c.n, err
			}
			want := 1
			if name == "this host's" {
				want = 0
			} else {
				if _, err := start(true); !errors.Is(err, store.ErrFailed) {
					t.Errorf("with a full disk: %v", err)
				}
				if got := content(); !slices.Equal(got, before) {
					t.Errorf("with a full disk, the state became %q, and was %q", got, before)
				}
			}
			for ; want >= 0; want-- {
				if n, err := start(false); err != nil || n != want {
					t.Errorf("%d commits (%v), want %d", n, err, want)
				}
				got := content()
				if len(got) != tt.members+1 || got[tt.members] != "owner 61646472657373 127.9.0.2" {
					t.Errorf("the state is %q", got)
				}
			}
		})
	}
}

// TestReformedWhileAway: a receiver whose application is still on its way back is
// asked when it comes.
func TestReformedWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		r.restart(2)
		done := make(chan *mcrdmav1.ReformGroupResponse)
		go func() { done <- a.reform(f, nil) }()
		r.until("it is asked", func() bool {
			s := r.host(2).m.sessions.find(apps[0].token)
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.queue) == 1
		})
		apps[0].reopen()
		if next := (<-done).GetFormation(); len(next.GetMembers()) != 2 {
			t.Errorf("%v", next)
		}
		a.closeGroup(f.GetGroup())
	})
}

// TestUnknownToken: a session that the daemon does not know becomes a new one; and
// one that another connection takes over goes on there, with what was its.
func TestUnknownToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withSwitch)
		r.receivers()
		a := r.host(1).app("no such token")
		if a.hello.GetResumed() || a.token == "no such token" || a.token == "" {
			t.Errorf("%v", a.hello)
		}
		h := a.hello
		if h.GetHost() != "h1" || h.GetAddress() != "127.9.0.1" || h.GetDevice() != "softroce:127.9.0.1" || h.GetBootstrap() != "127.9.0.1" ||
			h.GetVersion() != 1 || h.GetDaemonVersion() != "test" || h.GetGrace().AsDuration() != 10*time.Second || h.GetLimits().GetReceivers() != 16 {
			t.Errorf("%v", h)
		}
		f := a.create(a.request()).GetFormation()
		b := r.host(1).app(a.token)
		if !b.hello.GetResumed() || b.token != a.token {
			t.Errorf("%v", b.hello)
		}
		r.until("the first connection ends", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.ended != nil })
		if reason, _, _ := reasonOf(a.ended); reason != "CLOSED" {
			t.Errorf("%v", a.ended)
		}
		a.end()
		r.pass(time.Second)
		if got := r.host(1).members(f.GetGroup()); got != "2" {
			t.Errorf("members %q: the group has gone with the first connection", got)
		}
		r.host(2).kill()
		r.passUntil("events come", func() bool { return b.countChanges(suspected) > 0 })
		b.end()
		r.until("nothing is left", func() bool { return len(r.sw.list()) == 0 })
	})
}

func TestBadState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		r.add(1)
		for name, edit := range map[string]store.Edit{
			"group": editOf(groupsBucket, 1, []byte("{")), "membership": editOf(membersBucket, 1, []byte(`{"What":1}`)), "more": editOf(groupsBucket, 1, []byte("{} {}")),
		} {
			path := filepath.Join(r.dir, name+".db")
			s, err := store.Open(t.Context(), path, store.Options{NoSync: true})
			if err == nil {
				err = s.Commit(t.Context(), edit)
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Close()
			cfg := r.config(1)
			cfg.State = path
			if _, err := New(t.Context(), cfg, Options{}); err == nil || !strings.Contains(err.Error(), "in a form that this program does not know") {
				t.Errorf("%s: %v", name, err)
			}
		}
		// A group of another address is not this host's.
		s, err := store.Open(t.Context(), filepath.Join(r.dir, "h1.db"), store.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		id := groupID{netip.MustParseAddr("127.9.0.50"), 3}
		if err := s.Commit(t.Context(), editOf(groupsBucket, 3, store.Encode(groupRecord{ID: id, SenderRecord: machine.SenderRecord{Form: &formation{N: 1}}}))); err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
		r.start(1)
		r.wantNothing()
	})
}

func TestNewRefuses(t *testing.T) {
	r := newRig(t, 0, onSockets, withTLS)
	r.add(2)
	r.start(1)
	for _, tt := range []struct {
		name   string
		change func(*config.Config, *Options)
		text   string
	}{
		{"no name", func(c *config.Config, _ *Options) { c.Name = "" }, "bad configuration"},
		{"another's certificate", func(c *config.Config, _ *Options) { c.Name = "h9" }, "is for host:h2 127.9.0.2, and this host is host:h9"},
		{"another address", func(c *config.Config, _ *Options) { c.Address = hostAddr(9) }, "is for host:h2"},
		{"no certificate", func(c *config.Config, _ *Options) { c.TLS.Cert = "/none" }, "bad configuration"},
		{"no directory", func(c *config.Config, _ *Options) { c.State = "/proc/none/x.db" }, "/proc/none"},
		{"listener in use", func(c *config.Config, _ *Options) { c.Listen = r.host(1).listen }, "another program listens there (ss -ltnp says which); end it, or choose another address for listen"},
		{"socket in use", func(c *config.Config, _ *Options) { c.Socket = filepath.Join(r.dir, "h1.sock") }, "another program serves"},
		{"socket is a file", func(c *config.Config, _ *Options) { c.Socket = filepath.Join(r.dir, "h1.db") }, "is not a socket"},
	} {
		cfg, o := r.config(2), Options{}
		tt.change(cfg, &o)
		if _, err := New(t.Context(), cfg, o); err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	// A socket that no process serves any longer is replaced, and has the configured mode.
	h := r.start(2, func(c *config.Config, _ *Options) { c.SocketMode = 0o600 })
	path := h.m.Socket()
	h.kill()
	leave(t, path)
	h = r.start(2, func(c *config.Config, _ *Options) { c.SocketMode = 0o600 })
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if h.m.Addr().String() != h.listen {
		t.Errorf("serves at %v", h.m.Addr())
	}
	h.app("")
}
