package connmgr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	bySwitch = mcrdmav1.Path_PATH_SWITCH
	byHosts  = mcrdmav1.Path_PATH_RELAY
)

func (a *app) closeGroup(g *mcrdmav1.GroupID) {
	a.r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := a.rpc.CloseGroup(ctx, &mcrdmav1.CloseGroupRequest{Token: a.token, Group: g}); err != nil {
		a.r.t.Fatal(err)
	}
}

// formation waits for the only membership's formation n.
func (a *app) formation(n uint32) *mcrdmav1.FormationInfo {
	a.r.t.Helper()
	var out *mcrdmav1.FormationInfo
	a.r.until(fmt.Sprintf("formation %d", n), func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, f := range a.formed {
			if f.GetFormation() == n {
				out = f
			}
		}
		return out != nil
	})
	return out
}

// detachment waits for the end of the membership in formation n.
func (a *app) detachment(n uint32) *mcrdmav1.Detached {
	a.r.t.Helper()
	var out *mcrdmav1.Detached
	a.r.until(fmt.Sprintf("end of formation %d", n), func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for k, d := range a.detached {
			if a.attached[k].GetFormation() == n {
				out = d
			}
		}
		return out != nil
	})
	return out
}

func TestCreateBySwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withTLS, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		req := a.request()
		req.Dscp, req.CnpGap = 26, durationpb.New(50*time.Microsecond)
		res := a.create(req)
		f := res.GetFormation()
		if f.GetPath() != bySwitch || f.GetFormation() != 1 || len(f.GetMembers()) != 3 || f.GetRelay() != nil || res.GetMinSize() != 2 {
			t.Fatalf("%v", res)
		}
		if want := "by switches: torA merges"; f.GetWhy()[0] != want || len(f.GetTree()) > 0 {
			t.Errorf("why: %q, want %q; the tree follows: %q", f.GetWhy(), want, f.GetTree())
		}
		if c := a.waitChange(mcrdmav1.GroupChanged_TYPE_CREATED); c.GetFormation() != 1 || c.GetGroup().GetNumber() != f.GetGroup().GetNumber() {
			t.Errorf("announced: %v", c)
		}
		if c := f.GetConnection(); c.GetAddress() != "127.9.0.2" || c.GetQpn() != f.GetMcId() || c.GetQpn() < 0x800000 || c.GetMtu() != 1024 || c.GetDscp() != 26 {
			t.Errorf("connection %v", c)
		}
		if got := strings.Join(a.waitChange(mcrdmav1.GroupChanged_TYPE_TREE).GetTree(), "\n"); got != "h1 (127.9.0.1) sends to torA, which merges\n  port 1 -> h2 (127.9.0.2)\n  port 2 -> h3 (127.9.0.3)\n  port 3 -> h4 (127.9.0.4)" {
			t.Errorf("tree:\n%s", got)
		}
		var phases []string
		for _, s := range f.GetPhases() {
			phases = append(phases, s.GetPhase())
		}
		if want := []string{"check", "prepare", "install", "commit", "total"}; !slices.Equal(phases, want) {
			t.Errorf("phases %q, want %q", phases, want)
		}
		// What the receivers were asked for.
		for i, x := range apps {
			got := x.formation(1)
			if got.GetPath() != bySwitch || got.GetMcId() != f.GetMcId() || len(got.GetMembers()) != 3 {
				t.Errorf("receiver %d: %v", i, got)
			}
			x.mu.Lock()
			for _, ask := range x.attached {
				c := ask.GetConnection()
				if c.GetAddress() != "127.9.0.1" || c.GetQpn() != f.GetMcId() || c.GetPsn() != f.GetConnection().GetPsn() || c.GetDscp() != 26 || ask.GetSender() != "h1" ||
					ask.GetSenderProgram() != "test" || !ask.GetRelay() || ask.GetPrevious() != 0 || time.Until(ask.GetDeadline().AsTime()) <= 0 {
					t.Errorf("receiver %d was asked: %v", i, ask)
				}
			}
			x.mu.Unlock()
		}
		// What the switch has.
		list := r.sw.list()
		if len(list) != 1 {
			t.Fatalf("the switch has %d groups", len(list))
		}
		g := list[0].GetGroup()
		if g.GetSenderQpn() != 0x42 || g.GetInitialPsn() != f.GetConnection().GetPsn() || g.GetAddress() != "127.9.0.2" || g.GetCnpGap().AsDuration() != 50*time.Microsecond {
			t.Errorf("at the switch: %v", g)
		}
		for i, x := range g.GetReceivers() {
			if x.GetQpn() != 0x101 || len(x.GetRegions()) != 2 || x.GetAddress() != f.GetMembers()[i].GetAddress() {
				t.Fatalf("receiver at the switch: %v", x)
			}
			for j, m := range x.GetRegions() {
				spec := res.GetRegions()[j]
				if m.GetRkey() != spec.GetRkey() || m.GetVa() != spec.GetVa() || m.GetLength() != req.GetRegions()[j].GetLength() ||
					m.GetReceiverRkey() != uint32(0x1000+j) || m.GetReceiverVa() != uint64(0x7f0000000000+j<<20) {
					t.Errorf("region %d of receiver %d: %v", j, i, m)
				}
				if spec.GetRkey() != rocev2.PortKey(uint16(j)) || spec.GetVa() != uint64(j+1)<<40 || spec.GetName() != req.GetRegions()[j].GetName() {
					t.Errorf("region %d: %v", j, spec)
				}
			}
		}
		// Another group has other numbers.
		other := a.create(req).GetFormation()
		if other.GetMcId() == f.GetMcId() || other.GetGroup().GetNumber() == f.GetGroup().GetNumber() {
			t.Errorf("two groups have the same numbers: %v and %v", f, other)
		}
		a.closeGroup(other.GetGroup())
		a.closeGroup(f.GetGroup())
		a.closeGroup(f.GetGroup()) // it does not exist any longer
		for _, x := range apps {
			if d := x.detachment(1); d.GetReason() != mcrdmav1.Detached_REASON_CLOSED {
				t.Errorf("detached: %v", d)
			}
		}
		r.wantNothing()
	})
}

func TestCreateByHosts(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options []rigOption
		config  func(*config.Config)
		request func(*mcrdmav1.CreateGroupRequest)
		answer  func(*mcrdmav1.AnswerAttachRequest) // of host 3
		why     string
		relay   string // algorithm, transport, block, racks
	}{
		{name: "no switch", why: "no switch agent is configured", relay: "binomial-pipeline rdma 1048576 []"},
		{name: "mode off", options: []rigOption{withSwitch}, request: func(r *mcrdmav1.CreateGroupRequest) { r.Mode = mcrdmav1.Mode_MODE_OFF },
			why: "the application wants it so (mode off)", relay: "binomial-pipeline rdma 1048576 []"},
		{name: "sender without device", options: []rigOption{withSwitch}, request: func(r *mcrdmav1.CreateGroupRequest) { r.Forming.Qpn, r.Mtu = 0, 0 },
			why: "the sender's application has no RDMA device", relay: "binomial-pipeline tcp 262144 []"},
		{name: "receiver without device", options: []rigOption{withSwitch},
			answer: func(a *mcrdmav1.AnswerAttachRequest) { a.Qpn, a.Regions, a.Transport = 0, nil, "tcp" },
			why:    "h3: the receiver's application has no RDMA device", relay: "binomial-pipeline tcp 262144 []"},
		{name: "tcp asked for", request: func(r *mcrdmav1.CreateGroupRequest) { r.Transport = "tcp" },
			why: "no switch agent is configured", relay: "binomial-pipeline tcp 262144 []"},
		{name: "tcp by configuration", config: func(c *config.Config) { c.Relay.Transport, c.Relay.Block = "tcp", 4096 },
			why: "no switch agent is configured", relay: "binomial-pipeline tcp 4096 []"},
		{name: "algorithm asked for", request: func(r *mcrdmav1.CreateGroupRequest) { r.Algorithm = "chain" }, config: func(c *config.Config) { c.Relay.Algorithm = "sequential" },
			why: "no switch agent is configured", relay: "chain rdma 1048576 []"},
		{name: "algorithm by configuration", config: func(c *config.Config) { c.Relay.Algorithm = "sequential" },
			why: "no switch agent is configured", relay: "sequential rdma 1048576 []"},
		{name: "hybrid", request: func(r *mcrdmav1.CreateGroupRequest) { r.Algorithm = "hybrid" },
			why: "no switch agent is configured", relay: "hybrid rdma 1048576 [2 1 2 1]"},
		{name: "by size", request: func(r *mcrdmav1.CreateGroupRequest) { r.TypicalSize = 1 },
			why: "no switch agent is configured", relay: "sequential rdma 4096 []"},
	} {
		testenv.Bubble(t, tt.name, func(t *testing.T) {
			r := newRig(t, 0, tt.options...)
			r.add(4)
			for i := 1; i <= 4; i++ {
				r.start(i, func(c *config.Config, _ *Options) {
					if tt.config != nil {
						tt.config(c)
					}
				})
			}
			apps := r.receivers()
			if tt.answer != nil {
				apps[1].setAccept(func(x *mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
					ans := willing(x)
					tt.answer(ans)
					return ans
				})
			}
			a := r.host(1).app("")
			req := a.request()
			if tt.request != nil {
				tt.request(req)
			}
			f := a.create(req).GetFormation()
			if f.GetPath() != byHosts || f.GetConnection() != nil || f.GetWhy()[0] != "by hosts: "+tt.why {
				t.Fatalf("%v", f)
			}
			x := f.GetRelay()
			if got := fmt.Sprintf("%s %s %d %v", x.GetAlgorithm(), x.GetTransport(), x.GetBlock(), x.GetRacks()); got != tt.relay {
				t.Errorf("relay %s, want %s", got, tt.relay)
			}
			if want := []string{"127.0.0.1:7001", "127.0.0.1:7000", "127.0.0.1:7000", "127.0.0.1:7000"}; !slices.Equal(x.GetBootstrap(), want) || x.GetGroup() == 0 {
				t.Errorf("relay %v", x)
			}
			if r.sw != nil && len(r.sw.list()) > 0 {
				t.Errorf("the switch has %v", r.sw.list())
			}
			a.closeGroup(f.GetGroup())
			r.wantNothing()
		})
	}
}

// TestSwitchFails: with mode auto hosts relay instead, and say why; with require
// there is an error that says it.
func TestSwitchFails(t *testing.T) {
	fails := func(err error) func(*rig) {
		return func(r *rig) {
			r.sw.set(func(ctx context.Context, method string, _ any) error {
				if method == "Install" {
					return err
				}
				return nil
			}, nil)
		}
	}
	for _, tt := range []struct {
		name      string
		do        func(*rig)
		why       string
		transient bool
	}{
		{"refused", fails(refused(codes.FailedPrecondition, "NO_MERGE_POINT", "there is none")), "torA: NO_MERGE_POINT: there is none", false},
		{"not ready", fails(refused(codes.Unavailable, "NOT_READY", "try again")), "torA: NOT_READY: try again", true},
		{"gone", func(r *rig) { r.sw.close() }, "connection refused", true},
		{"hangs", func(r *rig) {
			r.sw.set(func(ctx context.Context, method string, _ any) error {
				if method == "Install" {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}, nil)
		}, "did not answer in time", true},
		{"answer lost", func(r *rig) {
			r.sw.set(nil, func(method string) error {
				if method == "Install" {
					return errNot
				}
				return nil
			})
		}, "does not answer", true},
	} {
		testenv.Bubble(t, tt.name, func(t *testing.T) {
			r := newRig(t, 3, withSwitch)
			r.receivers()
			a := r.host(1).app("")
			tt.do(r)
			f := a.create(a.request()).GetFormation()
			if f.GetPath() != byHosts || !strings.Contains(f.GetWhy()[0], tt.why) || !strings.HasPrefix(f.GetWhy()[0], "by hosts: torA: ") {
				t.Errorf("%v", f)
			}
			m := r.host(1).m
			m.mu.Lock()
			for _, g := range m.groups {
				if g.form().Transient != tt.transient {
					t.Errorf("transient: %v", g.form().Transient)
				}
			}
			m.mu.Unlock()
			r.until("nothing is at the switch", func() bool { return len(r.sw.list()) == 0 })
			a.closeGroup(f.GetGroup())
			req := a.request()
			req.Mode = mcrdmav1.Mode_MODE_REQUIRE
			_, err := a.rpc.CreateGroup(t.Context(), req)
			if reason, _, sw := reasonOf(err); reason != "NO_SWITCH" || sw != "torA" || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("with mode require: %v (%s, switch %q)", err, reason, sw)
			}
			if tt.name == "gone" {
				r.sw.serve(r.sw.addr)
			}
			r.wantNothing()
		})
	}
}

// TestBadRequests: each is refused with its reason, where, and in words, and leaves
// nothing.
func TestBadRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		refusing := func(f func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest) func(*mcrdmav1.CreateGroupRequest) {
			return func(*mcrdmav1.CreateGroupRequest) { apps[1].setAccept(f) }
		}
		for _, tt := range []struct {
			name         string
			change       func(*mcrdmav1.CreateGroupRequest)
			reason, host string
			text         string
		}{
			{"unknown service", func(r *mcrdmav1.CreateGroupRequest) { r.Service = "none" }, "NO_SERVICE", "h", `no application listens for the service "none"`},
			{"bad service", func(r *mcrdmav1.CreateGroupRequest) { r.Service = "a b" }, "INVALID", "h1", "the name of a service"},
			{"no service", func(r *mcrdmav1.CreateGroupRequest) { r.Service = "" }, "INVALID", "h1", "the name of a service"},
			{"long service", func(r *mcrdmav1.CreateGroupRequest) { r.Service = strings.Repeat("a", 65) }, "INVALID", "h1", "the name of a service"},
			{"refused by policy", refusing(func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
				return &mcrdmav1.AnswerAttachRequest{Refused: "not from you"}
			}), "DENIED", "h3", "the application refuses: not from you"},
			{"refused for MTU", refusing(func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
				return &mcrdmav1.AnswerAttachRequest{Refused: "512 here", Reason: "MTU"}
			}), "MTU", "h3", "512 here"},
			{"refused for nonsense", refusing(func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
				return &mcrdmav1.AnswerAttachRequest{Refused: "no", Reason: "NONSENSE"}
			}), "DENIED", "h3", "no"},
			{"no receivers", func(r *mcrdmav1.CreateGroupRequest) { r.Receivers = nil }, "INVALID", "h1", "without receivers"},
			{"too many", func(r *mcrdmav1.CreateGroupRequest) { r.Receivers = make([]string, 17) }, "TOO_MANY_RECEIVERS", "h1", "17 receivers, and 16 is the most"},
			{"duplicate", func(r *mcrdmav1.CreateGroupRequest) { r.Receivers = []string{"h2", "127.9.0.2"} }, "DUPLICATE_ADDRESS", "h1", `"h2" and "127.9.0.2" both are 127.9.0.2`},
			{"sender receives", func(r *mcrdmav1.CreateGroupRequest) { r.Receivers = []string{"h1"} }, "INVALID", "h1", "the sender itself"},
			{"sender's address receives", func(r *mcrdmav1.CreateGroupRequest) { r.Receivers = []string{"h2", "127.9.0.1"} }, "INVALID", "h1", "the sender itself"},
			{"unknown name", func(r *mcrdmav1.CreateGroupRequest) { r.Receivers = []string{"h2", "h9"} }, "NO_SUCH_HOST", "h1", `no host "h9"`},
			{"IPv6", func(r *mcrdmav1.CreateGroupRequest) { r.Receivers = []string{"::1"} }, "INVALID", "h1", "not an IPv4 address"},
			{"multicast", func(r *mcrdmav1.CreateGroupRequest) { r.Receivers = []string{"224.0.0.1"} }, "INVALID", "h1", "not an IPv4 address"},
			{"no host there", func(r *mcrdmav1.CreateGroupRequest) { r.Receivers = []string{"h2", "127.9.0.77"} }, "UNREACHABLE", "127.9.0.77", "127.9.0.77:9550 does not answer"},
			{"no MTU", func(r *mcrdmav1.CreateGroupRequest) { r.Mtu = 1500 }, "MTU", "h1", "1500 is not a path MTU"},
			{"MTU 0", func(r *mcrdmav1.CreateGroupRequest) { r.Mtu = 0 }, "MTU", "h1", "0 is not a path MTU"},
			{"min_size", func(r *mcrdmav1.CreateGroupRequest) { r.MinSize = 5 }, "MIN_SIZE", "h1", "min_size 5 is more than the 4 copies"},
			{"DSCP", func(r *mcrdmav1.CreateGroupRequest) { r.Dscp = 64 }, "INVALID", "h1", "DSCP 64"},
			{"mode", func(r *mcrdmav1.CreateGroupRequest) { r.Mode = 9 }, "INVALID", "h1", "no mode 9"},
			{"too many regions", func(r *mcrdmav1.CreateGroupRequest) { r.Regions = make([]*mcrdmav1.RegionSpec, 17) }, "LIMIT", "h1", "17 memory regions"},
			{"empty region", func(r *mcrdmav1.CreateGroupRequest) { r.Regions[0].Length = 0 }, "INVALID", "h1", "0 bytes"},
			{"nil region", func(r *mcrdmav1.CreateGroupRequest) { r.Regions[0] = nil }, "INVALID", "h1", "0 bytes"},
			{"vast region", func(r *mcrdmav1.CreateGroupRequest) { r.Regions[0].Length = 1<<40 + 1 }, "INVALID", "h1", "the length is 1 to 2^40"},
			{"same names", func(r *mcrdmav1.CreateGroupRequest) { r.Regions[1].Name = "log" }, "INVALID", "h1", `two memory regions are called "log"`},
			{"long name", func(r *mcrdmav1.CreateGroupRequest) { r.Regions[1].Name = strings.Repeat("x", 300) }, "INVALID", "h1", "300 characters"},
			{"no forming", func(r *mcrdmav1.CreateGroupRequest) { r.Forming = nil }, "INVALID", "h1", "neither a queue pair nor an address"},
			{"require without QPN", func(r *mcrdmav1.CreateGroupRequest) { r.Forming.Qpn, r.Mode = 0, mcrdmav1.Mode_MODE_REQUIRE }, "NO_SWITCH", "h1", "no RDMA device"},
			{"MC_ID as QPN", func(r *mcrdmav1.CreateGroupRequest) { r.Forming.Qpn = 0x800000 }, "INVALID", "h1", "not the QPN of a device"},
			{"off without bootstrap", func(r *mcrdmav1.CreateGroupRequest) { r.Forming.Bootstrap, r.Mode = "", mcrdmav1.Mode_MODE_OFF }, "INVALID", "h1", "no address where it listens"},
			{"bad bootstrap", func(r *mcrdmav1.CreateGroupRequest) { r.Forming.Bootstrap = "nowhere" }, "INVALID", "h1", `"nowhere" is not the host:port`},
			{"algorithm", func(r *mcrdmav1.CreateGroupRequest) { r.Algorithm = "magic" }, "INVALID", "h1", `"magic"`},
			{"transport", func(r *mcrdmav1.CreateGroupRequest) { r.Transport = "pigeon" }, "INVALID", "h1", `"pigeon"`},
			{"CNP gap", func(r *mcrdmav1.CreateGroupRequest) { r.CnpGap = durationpb.New(-1) }, "INVALID", "h1", "between CNPs"},
			{"rdma without device", func(r *mcrdmav1.CreateGroupRequest) { r.Transport, r.Forming.Qpn = "rdma", 0 }, "INVALID", "h1", "relay by RDMA"},
			{"answer with an MC_ID", refusing(func(x *mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
				a := willing(x)
				a.Qpn = 0x900000
				return a
			}), "TIMEOUT", "h3", "did not answer in time"},
		} {
			part(t, tt.name, func(t *testing.T) {
				apps[1].setAccept(willing)
				a := r.host(1).app("")
				defer a.end()
				req := a.request()
				tt.change(req)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				if tt.reason == "TIMEOUT" {
					ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
				}
				defer cancel()
				_, err := a.rpc.CreateGroup(ctx, req)
				reason, host, _ := reasonOf(err)
				if reason != tt.reason || !strings.HasPrefix(host, tt.host) || err == nil || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("%v\nis %s at %q, want %s at %s…: …%s…", err, reason, host, tt.reason, tt.host, tt.text)
				}
				r.wantNothing()
			})
		}
	})
}

func TestRequireWithoutSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		asked := 0
		b := r.receivers()[0]
		b.setAccept(func(*mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest { asked++; return nil })
		a := r.host(1).app("")
		req := a.request()
		req.Mode = mcrdmav1.Mode_MODE_REQUIRE
		_, err := a.rpc.CreateGroup(t.Context(), req)
		if reason, _, _ := reasonOf(err); reason != "NO_SWITCH" || !strings.Contains(err.Error(), "names no switch agent") {
			t.Errorf("%v", err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if asked > 0 {
			t.Error("a receiver was bothered")
		}
	})
}

// TestByAddress: a receiver that is not configured is looked for at its address and
// the usual port, and must own the address.
func TestByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withTLS)
		r.add(2)
		r.host(2).listen = "127.9.0.2:9550"
		r.start(1, func(c *config.Config, _ *Options) { c.Hosts = nil })
		r.start(2)
		r.host(2).receiver()
		a := r.host(1).app("")
		req := a.request()
		req.Receivers = []string{"127.9.0.2"}
		f := a.create(req).GetFormation()
		if f.GetMembers()[0].GetHost() != "h2" {
			t.Errorf("%v", f.GetMembers())
		}
		a.closeGroup(f.GetGroup())
		m := r.host(1).m
		r.wantNothing()
		// It is let go when it has not been used for long.
		r.pass(100 * time.Millisecond)
		r.pass(idleTime)
		r.pass(100 * time.Millisecond)
		m.peers.mu.Lock()
		defer m.peers.mu.Unlock()
		if p := m.peers.at[netip.MustParseAddr("127.9.0.2")]; p != nil {
			t.Error("the connection is still there")
		}
	})
}

// TestUnicastIsTheSenders: how a member is reached by its sender is told to the sender's application, in each
// formation, and to no other member.
func TestUnicastIsTheSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		apps := r.receivers()
		for i, a := range apps {
			a.setAccept(func(x *mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
				ans := willing(x)
				ans.Unicast = fmt.Append(nil, "secret of ", i)
				return ans
			})
		}
		src := r.hosts[0].app("")
		f := src.create(src.request()).GetFormation()
		for n := uint32(1); n <= 2; n++ {
			for i, m := range f.GetMembers() {
				if want := fmt.Sprint("secret of ", i); string(m.GetUnicast()) != want {
					t.Errorf("formation %d has %q, want %q", n, m.GetUnicast(), want)
				}
			}
			for _, a := range apps {
				if got := a.formation(n).String(); strings.Contains(got, "secret") {
					t.Errorf("a member is told %s", got)
				}
			}
			if n == 1 {
				res, err := src.rpc.ReformGroup(t.Context(), &mcrdmav1.ReformGroupRequest{Token: src.token, Group: f.GetGroup(), Formation: 1,
					Forming: &mcrdmav1.Forming{Qpn: 0x43, Bootstrap: "127.0.0.1:7002"}})
				if err != nil {
					t.Fatal(err)
				}
				f = res.GetFormation()
			}
		}
		apps[0].setAccept(func(x *mcrdmav1.AttachRequested) *mcrdmav1.AnswerAttachRequest {
			ans := willing(x)
			ans.Unicast = make([]byte, 257)
			return ans
		})
		if _, err := src.rpc.CreateGroup(t.Context(), src.request()); err == nil {
			t.Error("257 bytes are taken")
		}
	})
}
