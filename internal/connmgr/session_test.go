package connmgr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// leave leaves a socket behind that no process serves.
func leave(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
}

// as connects as another user: the kernel notes the user that makes the connection.
func (h *host) as(uid int) *grpc.ClientConn {
	h.r.t.Helper()
	if h.r.net != nil {
		process := fmt.Sprint(h.name, "/", uid)
		h.r.net.SetUser(process, uint32(uid))
		return h.connect("passthrough:///"+h.m.Socket(), h.r.from(process))
	}
	path := h.m.Socket()
	dial := func(context.Context, string) (net.Conn, error) {
		type result struct {
			c   net.Conn
			err error
		}
		done := make(chan result)
		go func() {
			runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
			if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				done <- result{nil, errno}
				return
			}
			c, err := net.Dial("unix", path)
			done <- result{c, err}
		}()
		x := <-done
		return x.c, x.err
	}
	return h.connect("passthrough:///x", grpc.WithContextDialer(dial))
}

func mustBeRoot(t *testing.T) {
	t.Helper()
	if syscall.Getuid() != 0 {
		testenv.Skip(t, "only root can be several users")
	}
}

// TestUsers: the kernel identifies users; a user does not see others' sessions and groups,
// root sees all, and each has its own quota.
func TestUsers(t *testing.T) {
	mustBeRoot(t)
	r := newRig(t, 0, onSockets, withSwitch)
	r.add(3)
	for i := 1; i <= 3; i++ {
		r.start(i, func(c *config.Config, _ *Options) {
			c.SocketMode, c.Limits.GroupsPerUser, c.Limits.Groups, c.Limits.Memory = 0o666, 1, 2, 3<<20
		})
	}
	r.receivers()
	// The directory must let others in.
	if err := unix.Chmod(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	user := func(uid int) *app {
		a := &app{r: r, h: r.host(1), rpc: mcrdmav1.NewApplicationsClient(r.host(1).as(uid))}
		a.open("")
		return a
	}
	alice, bob, root := user(1001), user(1002), r.host(1).app("")
	req := alice.request()
	f := alice.create(req).GetFormation()
	if list, err := bob.rpc.ListGroups(t.Context(), &mcrdmav1.ListGroupsRequest{}); err != nil || len(list.GetGroups()) != 0 {
		t.Errorf("bob sees %v, %v", list, err)
	}
	if list, err := root.rpc.ListGroups(t.Context(), &mcrdmav1.ListGroupsRequest{}); err != nil || len(list.GetGroups()) != 1 || list.GetGroups()[0].GetUid() != 1001 || list.GetGroups()[0].GetPid() == 0 {
		t.Errorf("root sees %v, %v", list, err)
	}
	if _, err := bob.rpc.GetGroup(t.Context(), &mcrdmav1.GetGroupRequest{Group: f.GetGroup()}); status.Code(err) != codes.NotFound {
		t.Errorf("bob sees the group: %v", err)
	}
	if d, err := bob.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{}); err != nil || len(d.GetSessions()) != 1 || d.GetSessions()[0].GetUid() != 1002 {
		t.Errorf("bob sees %v, %v", d.GetSessions(), err)
	}
	if d, err := root.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{}); err != nil || len(d.GetSessions()) != 3 {
		t.Errorf("root sees %v, %v", d.GetSessions(), err)
	}
	// Alice's token is useless to bob, and not even root may act with it.
	for _, x := range []*app{bob, root} {
		for name, err := range map[string]error{
			"CloseGroup":   second(x.rpc.CloseGroup(t.Context(), &mcrdmav1.CloseGroupRequest{Token: alice.token, Group: f.GetGroup()})),
			"Listen":       second(x.rpc.Listen(t.Context(), &mcrdmav1.ListenRequest{Token: alice.token, Service: "x"})),
			"ReformGroup":  second(x.rpc.ReformGroup(t.Context(), &mcrdmav1.ReformGroupRequest{Token: alice.token, Group: f.GetGroup(), Formation: 1})),
			"ResumeGroup":  second(x.rpc.ResumeGroup(t.Context(), &mcrdmav1.ResumeGroupRequest{Token: alice.token, Group: f.GetGroup(), Formation: 1})),
			"own token":    second(x.rpc.ResumeGroup(t.Context(), &mcrdmav1.ResumeGroupRequest{Token: x.token, Group: f.GetGroup(), Formation: 1})),
			"ReportStall":  second(x.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: x.token, Group: f.GetGroup(), Formation: 1})),
			"ResumeMember": second(x.rpc.ResumeMember(t.Context(), &mcrdmav1.ResumeMemberRequest{Token: x.token, Attach: 1, Group: f.GetGroup(), Formation: 1})),
			"AnswerAttach": second(x.rpc.AnswerAttach(t.Context(), &mcrdmav1.AnswerAttachRequest{Token: x.token, Attach: 1})),
		} {
			if reason, _, _ := reasonOf(err); reason != "NOT_FOUND" {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := x.rpc.CloseGroup(t.Context(), &mcrdmav1.CloseGroupRequest{Token: x.token, Group: f.GetGroup()}); err != nil {
			t.Error(err) // it owns nothing of that, so nothing is closed
		}
		thief := &app{r: r, h: r.host(1), rpc: x.rpc}
		thief.open(alice.token)
		if thief.hello.GetResumed() || thief.token == alice.token {
			t.Error("another user got the session")
		}
		thief.end()
	}
	if got := r.host(1).members(f.GetGroup()); got != "2 3" {
		t.Errorf("members %q", got)
	}
	// Quotas.
	for x, text := range map[*app]string{alice: "user 1001 has 1 groups"} {
		_, err := x.rpc.CreateGroup(t.Context(), func() *mcrdmav1.CreateGroupRequest { return x.request() }())
		if reason, host, _ := reasonOf(err); reason != "LIMIT" || host != "h1" || !strings.Contains(err.Error(), text) {
			t.Errorf("%v", err)
		}
	}
	g := bob.create(bob.request()).GetFormation()
	_, err := root.rpc.CreateGroup(t.Context(), root.request())
	if reason, _, _ := reasonOf(err); reason != "LIMIT" || !strings.Contains(err.Error(), "this host has 2 groups") {
		t.Errorf("%v", err)
	}
	bob.closeGroup(g.GetGroup())
	// Receivers' memory: all of one user's memberships count, here root's.
	req = bob.request()
	req.Regions[0].Length = 3 << 20
	_, err = bob.rpc.CreateGroup(t.Context(), req)
	if reason, host, _ := reasonOf(err); reason != "LIMIT" || !strings.HasPrefix(host, "h") || host == "h1" || !strings.Contains(err.Error(), "limits.memory") {
		t.Errorf("%v", err)
	}
	alice.closeGroup(f.GetGroup())
	req.Regions[0].Length = 3<<20 - 4096
	g = bob.create(req).GetFormation()
	bob.closeGroup(g.GetGroup())
	r.wantNothing()
}

func second[T any](_ T, err error) error { return err }

// TestAllowedUsers: the configuration may let some users in only.
func TestAllowedUsers(t *testing.T) {
	mustBeRoot(t)
	r := newRig(t, 0, onSockets)
	r.add(1)
	r.start(1, func(c *config.Config, _ *Options) { c.SocketMode, c.Users = 0o666, []uint32{1001} })
	if err := unix.Chmod(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for uid, ok := range map[int]bool{0: true, 1001: true, 1002: false} {
		rpc := mcrdmav1.NewApplicationsClient(r.host(1).as(uid))
		ctx, cancel := context.WithCancel(t.Context())
		s, err := rpc.Open(ctx, &mcrdmav1.OpenRequest{Version: 1})
		if err == nil {
			_, err = s.Recv()
		}
		_, unary := rpc.GetDaemon(ctx, &mcrdmav1.GetDaemonRequest{})
		for _, err := range []error{err, unary} {
			if reason, _, _ := reasonOf(err); (err == nil) != ok || !ok && reason != "DENIED" {
				t.Errorf("user %d: %v", uid, err)
			}
		}
		cancel()
	}
}

func TestOtherVersionOfApplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		s, err := mcrdmav1.NewApplicationsClient(r.host(1).dial()).Open(t.Context(), &mcrdmav1.OpenRequest{Version: 2})
		if err == nil {
			_, err = s.Recv()
		}
		if reason, host, _ := reasonOf(err); reason != "VERSION" || host != "h1" || !strings.Contains(err.Error(), "update the older") {
			t.Errorf("%v", err)
		}
	})
}

// TestServices: a name is one application's at a time.
func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		a, b := r.host(1).app(""), r.host(1).app("")
		listen := func(x *app, service string) string {
			_, err := x.rpc.Listen(t.Context(), &mcrdmav1.ListenRequest{Token: x.token, Service: service})
			reason, _, _ := reasonOf(err)
			return reason
		}
		unlisten := func(x *app, service string) string {
			_, err := x.rpc.Unlisten(t.Context(), &mcrdmav1.UnlistenRequest{Token: x.token, Service: service})
			reason, _, _ := reasonOf(err)
			return reason
		}
		for i, step := range []struct{ got, want string }{
			{listen(a, "s"), ""}, {listen(a, "s"), ""}, {listen(b, "s"), "DENIED"}, {unlisten(b, "s"), "NOT_FOUND"}, {listen(b, "t"), ""},
			{unlisten(a, "s"), ""}, {unlisten(a, "s"), "NOT_FOUND"}, {listen(b, "s"), ""}, {listen(a, "ä"), "INVALID"},
		} {
			if step.got != step.want {
				t.Errorf("step %d: %q, want %q", i, step.got, step.want)
			}
		}
		d, err := a.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if s := d.GetSessions(); len(s) != 2 || len(s[0].GetServices())+len(s[1].GetServices()) != 2 || s[0].GetProgram() != "test" {
			t.Errorf("%v", s)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m := r.host(1).m
		if err := m.sessions.listen(ctx, m.sessions.find(a.token), "u"); !errors.Is(err, context.Canceled) || m.sessions.listener("u") != nil {
			t.Errorf("given up before it is handled: %v", err)
		}
		b.end()
		r.until("the name is free", func() bool { return listen(a, "s") == "" })
	})
}

// TestDeafApplication: the session of an application that does not read its events ends,
// with all that it has.
func TestDeafApplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, withSwitch)
		r.receivers()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		rpc := mcrdmav1.NewApplicationsClient(r.host(1).dial())
		s, err := rpc.Open(ctx, &mcrdmav1.OpenRequest{Version: 1})
		if err != nil {
			t.Fatal(err)
		}
		e, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		a := &app{r: r, h: r.host(1), rpc: rpc, token: e.GetHello().GetToken()}
		f := a.create(a.request()).GetFormation()
		m := r.host(1).m
		id, _ := groupIDFrom(f.GetGroup())
		r.until("it is given up", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			g := m.groups[id]
			if g == nil {
				return true
			}
			for range 1000 {
				g.sess.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_GroupChanged{
					GroupChanged: &mcrdmav1.GroupChanged{Group: id.proto(), Type: rerouted, Text: strings.Repeat("x", 100)}}})
			}
			return false
		})
		r.wantNothing()
	})
}

// TestEndedListener: a sender is told that the application which listened has ended, until
// another one listens.
func TestEndedListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		to := r.host(2).receiver()
		a := r.host(1).app("")
		to.end()
		r.until("it is noticed", func() bool {
			r.pass(time.Millisecond)
			return r.host(2).m.sessions.listener("test") == nil
		})
		for range 2 { // before and after its session is removed
			_, err := a.rpc.CreateGroup(t.Context(), a.request())
			if reason, _, _ := reasonOf(err); reason != "NO_SERVICE" || !strings.Contains(err.Error(), "(test), has ended: start it again") {
				t.Errorf("%v", err)
			}
			r.pass(time.Minute)
		}
		r.host(2).receiver()
		if _, err := a.rpc.CreateGroup(t.Context(), a.request()); err != nil {
			t.Error(err)
		}
		s := newSessions(slog.New(slog.DiscardHandler), nil)
		for i := range maxEnded + 1 {
			s.gone[fmt.Sprint(i)] = "x"
		}
		one := s.add(machine.Owner{Token: "t"})
		s.services["new"] = one
		if s.remove(one); len(s.gone) != 1 || s.ended("new") == "" {
			t.Errorf("%d are remembered", len(s.gone))
		}
	})
}
