package switchagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// second is another agent of switch i, with a state of its own unless changed. It
// is not run yet.
func (l *line) second(i int, change ...func(*config.Config, *Options)) (*Agent, error) {
	cfg, o := l.config(i), l.options(fmt.Sprintf("sw%d'", i))
	o.Listener = l.listenAt("127.0.0.1:0")
	cfg.State = filepath.Join(l.dir, fmt.Sprintf("second%d.db", i))
	for _, f := range change {
		f(cfg, &o)
	}
	return New(l.t.Context(), cfg, o)
}

// running runs an agent until it is told to end.
func (l *line) running(a *Agent) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- a.Run(ctx) }()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-ran; err != nil {
			l.t.Errorf("the second agent: %v", err)
		}
	}
	l.t.Cleanup(end)
	return end
}

func isReady(a *Agent) bool {
	select {
	case <-a.Ready():
		return true
	default:
		return false
	}
}

// TestStateOfAnotherSwitch: the agent of a switch does not take another switch's state for its own, which would have it
// install that switch's part of groups. A file of a former release, which names no switch, is the agent's from then on.
func TestStateOfAnotherSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		l.install(1, aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(2, 1)))
		l.nodes[0].kill()
		l.nodes[1].kill()
		others := func(c *config.Config, _ *Options) { c.State = l.config(2).State }
		if _, err := l.second(1, others); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "it is the state of switch sw2, and this is the agent of sw1") {
			t.Errorf("%v", err)
		}
		s, err := store.Open(t.Context(), l.config(2).State, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range s.Load(ownBucket) {
			var own ownership // without the name
			if err := json.Unmarshal(value, &own); err != nil {
				t.Fatal(err)
			}
			if err := s.Commit(t.Context(), store.Edit{Bucket: ownBucket, Key: key, Value: store.Encode(own)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		before := l.state(2)
		l.start(2)
		if d := switchspec.Diff(before, l.state(2)); len(d) > 0 {
			t.Errorf("a file without a name: %v", d)
		}
		l.nodes[1].kill()
		if _, err := l.second(1, others); !errors.Is(err, ErrConfig) {
			t.Errorf("the name was not noted: %v", err)
		}
	})
}

// TestOneStateOneAgent: a second agent with the same state does not start, and says
// why; a standby starts when the first has gone, and changes nothing.
func TestOneStateOneAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(1, 3))
		l.install(1, g)
		before := l.state(1)
		same := func(c *config.Config, _ *Options) { c.State = l.config(1).State }
		if a, err := l.second(1, same); a != nil || !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), l.config(1).State) {
			t.Fatalf("%v", err)
		}
		type result struct {
			a   *Agent
			err error
		}
		made := make(chan result, 1)
		go func() {
			a, err := l.second(1, same, func(_ *config.Config, o *Options) { o.Standby = true })
			made <- result{a, err}
		}()
		select {
		case r := <-made:
			t.Fatalf("it did not wait: %v", r.err)
		case <-time.After(50 * time.Millisecond):
		}
		l.nodes[0].kill()
		r := <-made
		if r.err != nil {
			t.Fatal(r.err)
		}
		end := l.running(r.a)
		eventually(t, "the second is ready", func() bool { return isReady(r.a) })
		if d := switchspec.Diff(before, l.state(1)); len(d) > 0 {
			t.Errorf("it has changed %v", d)
		}
		c := l.dial(r.a.Addr().String(), identity.Identity{Role: identity.Admin, Name: "x"})
		defer c.Close()
		if _, err := mcrdmav1.NewSwitchGroupsClient(c).Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: g.Key}); err != nil {
			t.Error(err)
		}
		end()
		l.noLeftovers()
	})
}

// TestTwoAgentsOfOneSwitch: of two agents with states of their own one controls the
// switch. The other refuses what it cannot do, and takes over when the first goes.
func TestTwoAgentsOfOneSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		first := func(c *config.Config, _ *Options) { c.P4Runtime.ElectionID = 2 }
		l.start(1, first)
		g := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(1, 3))
		l.install(1, g)
		want := l.canonical()
		a, err := l.second(1)
		if err != nil {
			t.Fatal(err)
		}
		end := l.running(a)
		conn := l.dial(a.Addr().String(), identity.Identity{Role: identity.Admin, Name: "x"})
		defer conn.Close()
		c := mcrdmav1.NewSwitchGroupsClient(conn)
		h := aGroup(hostAddr(1, 4), 1, hostAddr(1, 2))
		_, err = c.Install(within(t, 300*time.Millisecond), &mcrdmav1.InstallRequest{Group: h})
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
			t.Errorf("%v", err)
		}
		st, err := mcrdmav1.NewSwitchStatusClient(conn).GetStatus(t.Context(), &mcrdmav1.GetStatusRequest{})
		if err != nil || st.GetP4Runtime().GetPrimary() || st.GetSettled() || isReady(a) {
			t.Errorf("%v, %v", st, err)
		}
		// The first does not notice.
		other := aGroup(hostAddr(1, 1), 2, hostAddr(1, 2))
		l.install(1, other)
		l.remove(1, other)
		if have := l.canonical(); !slices.Equal(have, want) {
			t.Errorf("have %v", have)
		}

		l.nodes[0].kill()
		eventually(t, "the second controls the switch", func() bool { return isReady(a) })
		if left := multicast(l.state(1)); len(left) > 0 {
			t.Errorf("the first one's groups are still there: %v", left)
		}
		if _, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: h}); err != nil {
			t.Error(err)
		}
		// And back: the first has its state.
		n := l.launch(1, first)
		end()
		eventually(t, "the first controls the switch again", func() bool { return isReady(n.agent) })
		st, err = mcrdmav1.NewSwitchStatusClient(l.conn(1)).GetStatus(t.Context(), &mcrdmav1.GetStatusRequest{})
		if err != nil || !strings.Contains(st.GetP4Runtime().GetCleared(), "another agent") {
			t.Errorf("%v, %v", st.GetP4Runtime(), err)
		}
		// What it had may be another's by now: its daemons have to install it again.
		res, err := l.groups(1).Renew(t.Context(), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{g.Key}})
		if err != nil || len(res.GetMissing()) != 1 {
			t.Errorf("%v, %v", res, err)
		}
		eventually(t, "the group can be installed", func() bool {
			_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: g})
			return err == nil
		})
		if have := l.canonical(); !slices.Equal(have, want) {
			t.Errorf("have %v", have)
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}

// TestAgentThatIsStopped: an agent that is stopped, or whose machine is gone, keeps its
// connection, but not its switch: another one takes over.
func TestAgentThatIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.start(1, func(c *config.Config, o *Options) {
			c.P4Runtime.ElectionID = 2
			o.DialSwitch = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return l.net.Dial(ctx, "elsewhere/agent", addr)
			})}
		})
		a, err := l.second(1)
		if err != nil {
			t.Fatal(err)
		}
		end := l.running(a)
		time.Sleep(time.Minute)
		if isReady(a) {
			t.Fatal("the second did not wait")
		}
		l.net.Silence("elsewhere", true)
		begun := time.Now()
		select {
		case <-a.Ready():
		case <-time.After(time.Hour):
			t.Error("the second does not take over")
		}
		if d := time.Since(begun); d > 25*time.Second {
			t.Errorf("it took %v", d)
		}
		end()
	})
}

// A mute connection stays open, and carries nothing once it is dead.
type mute struct {
	net.Conn
	dead   *atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (m *mute) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if m.dead.Load() {
		<-m.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (m *mute) Write(b []byte) (int, error) {
	if m.dead.Load() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

func (m *mute) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}

// TestConnectionIsDead: an agent whose connection to the switch stays open and carries nothing
// more, as behind a tunnel, makes another one.
func TestConnectionIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		last := &atomic.Pointer[atomic.Bool]{}
		l.start(1, func(_ *config.Config, o *Options) {
			o.DialSwitch = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				c, err := l.net.Dial(ctx, "switches/client", addr)
				if err != nil {
					return nil, err
				}
				m := &mute{Conn: c, dead: &atomic.Bool{}, closed: make(chan struct{})}
				last.Store(m.dead)
				return m, nil
			})}
		})
		a := l.nodes[0].agent
		for range 3 {
			last.Load().Store(true)
			time.Sleep(30 * time.Second)
			if why := a.waitsFor(); why != "" {
				t.Fatal(why)
			}
		}
	})
}

// A foreigner writes to a switch beside its agent.
type foreigner struct {
	l    *line
	i    int
	rpc  p4.P4RuntimeClient
	conn *grpc.ClientConn
}

func (l *line) foreigner(i int) *foreigner {
	l.t.Helper()
	conn, err := grpc.NewClient(l.nodes[i-1].p4, l.plain()...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = conn.Close() })
	return &foreigner{l, i, p4.NewP4RuntimeClient(conn), conn}
}

func (f *foreigner) read(ask ...*p4.Entity) []*p4.Entity {
	f.l.t.Helper()
	s, err := f.rpc.Read(f.l.t.Context(), &p4.ReadRequest{Entities: ask})
	if err != nil {
		f.l.t.Fatal(err)
	}
	var out []*p4.Entity
	for {
		res, err := s.Recv()
		if err != nil {
			return out
		}
		out = append(out, res.GetEntities()...)
	}
}

// config is the program that the switch runs.
func (f *foreigner) config() *p4.ForwardingPipelineConfig {
	f.l.t.Helper()
	res, err := f.rpc.GetForwardingPipelineConfig(f.l.t.Context(), &p4.GetForwardingPipelineConfigRequest{})
	if err != nil {
		f.l.t.Fatal(err)
	}
	return res.GetConfig()
}

// otherProgram is one that has none of the agent's tables.
func otherProgram(t *testing.T) *p4.ForwardingPipelineConfig {
	t.Helper()
	dir := filepath.Join("..", "softswitch", "program", "testdata")
	json, err := os.ReadFile(filepath.Join(dir, "unions.json"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "unions.p4info.txtpb"))
	if err != nil {
		t.Fatal(err)
	}
	info := &p4cfg.P4Info{}
	if err := prototext.Unmarshal(text, info); err != nil {
		t.Fatal(err)
	}
	return &p4.ForwardingPipelineConfig{P4Info: info, P4DeviceConfig: json}
}

// push loads a program, and pretends to be the agent.
func (f *foreigner) push(config *p4.ForwardingPipelineConfig) {
	f.l.t.Helper()
	_, s := f.l.nodes[f.i-1].agent.driver.current()
	_, err := f.rpc.SetForwardingPipelineConfig(f.l.t.Context(), &p4.SetForwardingPipelineConfigRequest{Config: config,
		ElectionId: &p4.Uint128{High: s.ElectionID().High, Low: s.ElectionID().Low},
		Action:     p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT})
	if err != nil {
		f.l.t.Fatal(err)
	}
}

func (f *foreigner) all() []*p4.Entity {
	return f.read(&p4.Entity{Entity: &p4.Entity_TableEntry{TableEntry: &p4.TableEntry{}}},
		&p4.Entity{Entity: &p4.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4.PacketReplicationEngineEntry{
			Type: &p4.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: &p4.MulticastGroupEntry{}}}}})
}

// write pretends to be the agent.
func (f *foreigner) write(op p4.Update_Type, list ...*p4.Entity) {
	f.l.t.Helper()
	_, s := f.l.nodes[f.i-1].agent.driver.current()
	if s == nil {
		f.l.t.Fatal("the agent has no session")
	}
	req := &p4.WriteRequest{ElectionId: &p4.Uint128{High: s.ElectionID().High, Low: s.ElectionID().Low}}
	for _, e := range list {
		req.Updates = append(req.Updates, &p4.Update{Type: op, Entity: e})
	}
	if _, err := f.rpc.Write(f.l.t.Context(), req); err != nil {
		f.l.t.Fatal(err)
	}
}

// canonicalRoutes is what a switch has besides groups, without the numbers that next
// hops and ECMP groups have.
func canonicalRoutes(s *switchspec.State) string {
	hop := func(id uint16) string {
		h, _ := s.Find(switchspec.NextHop{ID: id}.Key())
		n, _ := s.Find(switchspec.Neighbor{NextHop: id}.Key())
		if h == nil || n == nil {
			return "nowhere"
		}
		return fmt.Sprintf("port %d %v %v", h.(switchspec.NextHop).Port, n.(switchspec.Neighbor).Src, n.(switchspec.Neighbor).Dst)
	}
	var lines []string
	for e := range s.All() {
		switch e := e.(type) {
		case switchspec.Route:
			line := fmt.Sprintf("%v %v:", e.Dst, e.To)
			switch e.To {
			case switchspec.ToNextHop:
				line += hop(e.Number)
			case switchspec.ToECMP:
				g, _ := s.Find(switchspec.ECMPGroup{ID: e.Number}.Key())
				var hops []string
				for _, h := range g.(switchspec.ECMPGroup).Hops {
					hops = append(hops, hop(h.NextHop))
				}
				slices.Sort(hops)
				line += strings.Join(hops, ", ")
			}
			lines = append(lines, line)
		case switchspec.Match, switchspec.Replica, switchspec.Region, switchspec.MergeGroup, switchspec.MergeMember,
			switchspec.Bypass, switchspec.NextHop, switchspec.Neighbor, switchspec.ECMPGroup:
		case switchspec.PREGroup:
			if e.ID == 1 {
				lines = append(lines, fmt.Sprint(e))
			}
		case switchspec.Settings:
			lines = append(lines, fmt.Sprint(e.ICRC, e.HashSeed))
		default:
			lines = append(lines, fmt.Sprint(e))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// digests says whether the switch tells the agent of ARP.
func (f *foreigner) digests() bool {
	return len(f.read(&p4.Entity{Entity: &p4.Entity_DigestEntry{DigestEntry: &p4.DigestEntry{}}})) > 0
}

// TestAuditFindsForeignWrites: the next audit finds what another controller did to the
// switch, and repairs it.
func TestAuditFindsForeignWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.start(1)
		g := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(1, 3), hostAddr(1, 4))
		l.install(1, g)
		want, routes, entities := l.canonical(), canonicalRoutes(l.state(1)), len(multicast(l.state(1)))
		f := l.foreigner(1)
		table := func(pick func(e *p4.TableEntry) bool) (out []*p4.Entity) {
			for _, e := range f.all() {
				if t := e.GetTableEntry(); t != nil && len(t.GetMatch()) > 0 && pick(t) {
					out = append(out, e)
				}
			}
			return out
		}
		isRegion := func(e *p4.TableEntry) bool { return e.GetPriority() > 0 }
		foreign := func() {
			e := table(isRegion)[0]
			e.GetTableEntry().Priority = 9
			f.write(p4.Update_INSERT, e)
		}
		for _, c := range []struct {
			name string
			do   func()
		}{
			{"deletes all", func() {
				f.write(p4.Update_DELETE, table(func(*p4.TableEntry) bool { return true })...)
				for _, e := range f.all() {
					if e.GetPacketReplicationEngineEntry() != nil {
						f.write(p4.Update_DELETE, e)
					}
				}
			}},
			{"deletes a copy", func() {
				for _, e := range f.all() {
					if m := e.GetPacketReplicationEngineEntry().GetMulticastGroupEntry(); m.GetMulticastGroupId() > 1 {
						m.Replicas = m.Replicas[1:]
						f.write(p4.Update_MODIFY, e)
					}
				}
			}},
			{"changes a region", func() {
				e := table(isRegion)[0]
				p := e.GetTableEntry().GetAction().GetAction().GetParams()
				p[0].Value = []byte{0x42}
				f.write(p4.Update_MODIFY, e)
			}},
			{"adds a group", func() {
				e := f.all()
				m := e[len(e)-1].GetPacketReplicationEngineEntry().GetMulticastGroupEntry()
				m.MulticastGroupId = 777
				f.write(p4.Update_INSERT, e[len(e)-1])
			}},
			{"writes what no agent writes", foreign},
		} {
			c.do()
			eventually(t, c.name+": put right", func() bool {
				have, err := l.read(1)
				return err == nil && canonical(have) == want[0] && canonicalRoutes(have) == routes && have.Check() == nil && len(multicast(have)) == entities
			})
			eventually(t, c.name+": ARP is learnt", f.digests)
			l.install(1, aGroup(hostAddr(1, 1), 2, hostAddr(1, 2)))
			l.remove(1, aGroup(hostAddr(1, 1), 2))
		}
		// What makes the agent load the program, and interrupts forwarding, does so rarely.
		pushes := func() uint64 { d, _ := l.nodes[0].agent.driver.current(); return d.pushes }
		before := pushes()
		foreign()
		if time.Sleep(4 * time.Minute); pushes() != before {
			t.Error("the program was loaded again soon")
		}
		if time.Sleep(2 * time.Minute); pushes() != before+1 {
			t.Errorf("the program was loaded %d times", pushes()-before)
		}
		// What needs no load is put right soon even then.
		f.write(p4.Update_DELETE, table(func(*p4.TableEntry) bool { return true })...)
		if time.Sleep(time.Minute); canonicalRoutes(l.state(1)) != routes || pushes() != before+1 {
			t.Errorf("after a load, deleted entries are not put right within a minute; the program was loaded %d times", pushes()-before)
		}
		eventually(t, "ARP is learnt", f.digests)
		l.remove(1, g)
		l.noLeftovers()
	})
}

// TestAuditTakesLittleTime: the longer an audit takes, the longer is the time to the next.
func TestAuditTakesLittleTime(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{0: 10 * time.Second, 6 * time.Millisecond: 10 * time.Second,
		40 * time.Millisecond: 40 * time.Second, 3 * time.Second: 5 * time.Minute} {
		if got := pause(took, 5*time.Minute, false); got != want {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
	if got := pause(0, time.Second, false); got != time.Second {
		t.Errorf("at most 1s, and is %v", got)
	}
}

// TestClearedByAnother: a program that another controller loads in the agent's name is noticed long before the next
// audit, whether it is the same one or another.
func TestClearedByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.start(1, func(_ *config.Config, o *Options) { o.Audit = time.Hour })
		routes := canonicalRoutes(l.state(1))
		f := l.foreigner(1)
		for name, config := range map[string]*p4.ForwardingPipelineConfig{
			"the same program": f.config(),
			"another program":  otherProgram(t),
		} {
			begun := time.Now()
			f.push(config)
			eventually(t, name+": put right", func() bool {
				have, err := l.read(1)
				return err == nil && canonicalRoutes(have) == routes && have.Check() == nil
			})
			eventually(t, name+": ARP is learnt", f.digests)
			if took := time.Since(begun); took > 2*lookEach {
				t.Errorf("%s: put right after %v", name, took)
			}
			g := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2))
			l.install(1, g)
			l.remove(1, g)
		}
		l.noLeftovers()
	})
}

// TestForeignController: another controller takes over the switch by a higher
// election id and writes what it likes. When it goes, the agent repairs everything.
func TestForeignController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(1, 3))
		l.install(1, g)
		want, routes := l.canonical(), canonicalRoutes(l.state(1))
		s, end := l.control(1)
		have, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), switchspec.Diff(have, &switchspec.State{})); err != nil {
			t.Fatal(err)
		}
		_, err = l.groups(1).Install(within(t, 300*time.Millisecond), &mcrdmav1.InstallRequest{Group: aGroup(hostAddr(1, 1), 2, hostAddr(1, 2))})
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
			t.Errorf("without the switch: %v", err)
		}
		end()
		eventually(t, "all is put right", func() bool {
			have, err := l.read(1)
			return err == nil && canonical(have) == want[0] && canonicalRoutes(have) == routes && have.Check() == nil
		})
		l.install(1, aGroup(hostAddr(1, 1), 2, hostAddr(1, 2)))
		l.remove(1, aGroup(hostAddr(1, 1), 2))
		l.remove(1, g)
		l.noLeftovers()
	})
}

// control takes switch i over.
func (l *line) control(i int) (s *p4rt.Session, end func()) {
	l.t.Helper()
	c, err := p4rt.New(p4rt.Config{Target: l.nodes[i-1].p4, Dial: l.plain(), ElectionID: p4rt.ElectionID{High: 1 << 40, Low: 99}})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx := within(l.t, 10*time.Second)
	if s, err = c.Open(ctx); err != nil {
		l.t.Fatal(err)
	}
	if err := s.WaitPrimary(ctx); err != nil {
		l.t.Fatal(err)
	}
	return s, func() { s.Close(); _ = c.Close() }
}
