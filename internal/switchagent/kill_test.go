package switchagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

var errDead = status.Error(codes.Unavailable, "killed")

// A killer sits between an agent and what outlives it: P4Runtime's Write and the
// store. From one of their calls on, before or after it is done, nothing gets
// through any more, as if the agent had been killed there.
type killer struct {
	mu     sync.Mutex
	points int // calls so far
	at     int // the call to strike at; negative: never
	after  bool
	strike func() // instead of the agent's death, if set
	watch  func() // after each call, if set
	dead   bool
	struck chan struct{}
}

func (k *killer) point(do func() error) error {
	k.mu.Lock()
	if k.dead {
		k.mu.Unlock()
		return errDead
	}
	now := k.points == k.at
	k.points++
	if !now {
		k.mu.Unlock()
		if k.watch != nil {
			defer k.watch()
		}
		return do()
	}
	k.at = -1
	strike := k.strike
	k.dead = strike == nil
	k.mu.Unlock()
	defer close(k.struck)
	if strike != nil && !k.after {
		strike()
		return do()
	}
	var err error
	if k.after {
		err = do()
	}
	if strike != nil {
		strike()
		return err
	}
	return errDead
}

// arm makes it strike at the n-th call from now on.
func (k *killer) arm(n int, after bool, strike func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.points, k.at, k.after, k.strike, k.dead, k.struck = 0, n, after, strike, false, make(chan struct{})
}

func (k *killer) fired() bool {
	select {
	case <-k.struck:
		return true
	default:
		return false
	}
}

func (k *killer) calls() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.points
}

// into puts the killer between an agent and its switch and store.
func (k *killer) into(c *config.Config, o *Options) {
	c.Leases.Branch = time.Second // synced three times as often
	o.DialSwitch = append(o.DialSwitch, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			_, pushes := req.(*p4.SetForwardingPipelineConfigRequest)
			if w, ok := req.(*p4.WriteRequest); !pushes && (!ok || len(w.Updates) > 0 && w.Updates[0].GetEntity().GetDigestEntry() != nil) {
				return invoke(ctx, method, req, reply, cc, opts...)
			}
			return k.point(func() error { return invoke(ctx, method, req, reply, cc, opts...) })
		}))
	o.OpenStore = func(ctx context.Context, path string) (Store, error) {
		s, err := store.Open(ctx, path, store.Options{NoSync: true})
		return killedStore{s, k}, err
	}
}

type killedStore struct {
	*store.Store
	k *killer
}

func (s killedStore) Commit(ctx context.Context, edits ...store.Edit) error {
	return s.k.point(func() error { return s.Store.Commit(ctx, edits...) })
}

// canonical is what a switch does for groups, without the numbers that it uses.
func canonical(s *switchspec.State) string {
	var lines []string
	for m := range switchspec.Of[switchspec.Match](s) {
		for i := range m.PREGroups {
			e, ok := s.Find(switchspec.PREGroup{ID: m.FirstPRE + i}.Key())
			if !ok {
				lines = append(lines, "missing PRE group")
				continue
			}
			var copies []string
			for _, r := range e.(switchspec.PREGroup).Replicas {
				line := fmt.Sprintf("port %d", r.Port)
				for x := range switchspec.Of[switchspec.Replica](s) {
					if x.Group == m.Group && x.RID == r.Instance {
						line += fmt.Sprintf(" to %v last=%v qpn=%#x", x.Dst, x.Last, x.QPN)
					}
				}
				for x := range switchspec.Of[switchspec.Region](s) {
					if x.Group == m.Group && x.RID == r.Instance {
						line += fmt.Sprintf(" [%#x %#x-%#x +%#x %#x]", x.RKey, x.First, x.Last, x.Offset, x.NewRKey)
					}
				}
				copies = append(copies, line)
			}
			slices.Sort(copies)
			lines = append(lines, fmt.Sprintf("%v %#x %v: %s", m.Src, m.MCID, m.Dst, strings.Join(copies, "; ")))
		}
	}
	for g := range switchspec.Of[switchspec.MergeGroup](s) {
		var members []string
		for x := range switchspec.Of[switchspec.MergeMember](s) {
			if x.Slot == g.Slot && g.Members&(1<<x.Index) != 0 {
				members = append(members, fmt.Sprintf("%v→%v %#x", x.Src, x.Dst, x.DestQP))
			}
		}
		slices.Sort(members)
		lines = append(lines, fmt.Sprintf("merge as %v to %#x: %v", g.Source, g.SenderQPN, members))
	}
	for b := range switchspec.Of[switchspec.Bypass](s) {
		lines = append(lines, b.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (l *line) canonical() []string {
	var out []string
	for i := range l.nodes {
		out = append(out, canonical(l.state(i+1)))
	}
	return out
}

// consistent says why the fabric is not as its agents want it, or has what no agent
// wants; "" if it is.
func (l *line) consistent() string {
	for i, n := range l.nodes {
		have, err := l.read(i + 1)
		if err != nil {
			return err.Error()
		}
		if err := have.Check(); err != nil {
			return fmt.Sprintf("%s: %v", n.name, err)
		}
		u := n.agent.table.Usage()
		matches, merges := 0, 0
		for range switchspec.Of[switchspec.Match](have) {
			matches++
		}
		for range switchspec.Of[switchspec.MergeGroup](have) {
			merges++
		}
		if matches > u.Steps || merges != u.Slots || merges != u.Groups {
			return fmt.Sprintf("%s: %d matches and %d merge groups for %d steps, %d slots, %d groups", n.name, matches, merges, u.Steps, u.Slots, u.Groups)
		}
	}
	return ""
}

// An operation is what is killed in the middle.
type operation struct {
	name          string
	before, after []int // members of the group, as receivers below; nil: no group
	run           func(context.Context, mcrdmav1.SwitchGroupsClient) error
}

func killReceivers(l *line, which []int) []*mcrdmav1.Receiver {
	all := []*mcrdmav1.Receiver{aReceiver(hostAddr(1, 2), 0x201), aReceiver(hostAddr(2, 1), 0x202),
		aReceiver(hostAddr(3, 1), 0x203), aReceiver(hostAddr(3, 2), 0x204), aReceiver(hostAddr(2, 3), 0x205)}
	var out []*mcrdmav1.Receiver
	for _, i := range which {
		out = append(out, all[i])
	}
	return out
}

func killGroup(l *line, which []int) *mcrdmav1.Group {
	g := aGroup(hostAddr(1, 1), 0x800007)
	g.Address = hostAddr(1, 2).String()
	g.Receivers = killReceivers(l, which)
	return g
}

// treeTime is how long a tree may take to follow a group whose receivers have left, with packets on their way.
const treeTime = 2 * drainTime

func killOperations(l *line) []operation {
	psn := uint32(77)
	update := func(which []int) func(context.Context, mcrdmav1.SwitchGroupsClient) error {
		return func(ctx context.Context, c mcrdmav1.SwitchGroupsClient) error {
			_, err := c.Update(ctx, &mcrdmav1.UpdateRequest{Key: killGroup(l, nil).Key, Receivers: killReceivers(l, which), InitialPsn: &psn})
			return err
		}
	}
	return []operation{
		{"install", nil, []int{0, 1, 2, 3}, func(ctx context.Context, c mcrdmav1.SwitchGroupsClient) error {
			_, err := c.Install(ctx, &mcrdmav1.InstallRequest{Group: killGroup(l, []int{0, 1, 2, 3})})
			return err
		}},
		{"shrink", []int{0, 1, 2, 3}, []int{1, 3}, update([]int{1, 3})},
		{"grow", []int{0, 2}, []int{0, 2, 3, 4}, update([]int{0, 2, 3, 4})},
		{"exchange", []int{0, 1, 2}, []int{0, 2, 3, 4}, update([]int{0, 2, 3, 4})},
		{"remove", []int{0, 1, 2, 3}, nil, func(ctx context.Context, c mcrdmav1.SwitchGroupsClient) error {
			_, err := c.Remove(ctx, &mcrdmav1.RemoveRequest{Key: killGroup(l, nil).Key})
			return err
		}},
	}
}

// TestKilledAnywhere kills each of three agents, or its switch, at each write to the
// switch and each commit that an operation takes, before and after it. Once all is
// up again, the fabric is as before the operation or as after it, for a group whose
// receivers left perhaps on the way; nothing else is left anywhere.
func TestKilledAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		var killers [3]*killer
		for i := range killers {
			killers[i] = &killer{at: -1}
			l.start(i+1, killers[i].into)
		}
		l.readOften()
		setUp := func(which []int) []string {
			if which != nil {
				l.install(1, killGroup(l, which))
			}
			return l.canonical()
		}
		runs, at := 0, 0
		for _, op := range killOperations(l) {
			want := [][]string{setUp(op.before)}
			for i := range killers {
				killers[i].arm(-1, false, nil)
			}
			if err := op.run(t.Context(), l.groups(1)); err != nil {
				t.Fatalf("%s: %v", op.name, err)
			}
			time.Sleep(treeTime)
			var calls [3]int
			for i := range killers {
				calls[i] = killers[i].calls()
			}
			want = append(want, l.canonical())
			l.tidy(op.name)
			// Receivers that leave go first: this may be what is left of an exchange.
			stay := slices.DeleteFunc(slices.Clone(op.before), func(i int) bool { return !slices.Contains(op.after, i) })
			if op.before != nil && op.after != nil && len(stay) < len(op.before) && len(stay) > 0 {
				want = append(want, setUp(op.before))
				if _, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: killGroup(l, nil).Key, Receivers: killReceivers(l, stay)}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(treeTime)
				want[len(want)-1] = l.canonical()
				l.tidy(op.name)
			}
			for victim := range killers {
				for point := range calls[victim] {
					for _, after := range []bool{false, true} {
						for _, theSwitch := range []bool{false, true} {
							if at++; testenv.Race && at%13 != 0 {
								continue // a sample; the rest without the race detector
							}
							name := fmt.Sprintf("%s, sw%d's %s killed, call %d, after=%v", op.name, victim+1,
								map[bool]string{false: "agent", true: "switch"}[theSwitch], point, after)
							setUp(op.before)
							if l.killAt(name, op, killers[victim], victim+1, point, after, theSwitch) {
								runs++
							}
							l.settlesAs(name, want)
							l.tidy(name)
							if t.Failed() {
								return
							}
						}
					}
				}
			}
		}
		t.Logf("%d kills", runs)
	})
}

// killAt runs an operation and lets the victim come back. It reports whether the
// operation came to that point.
func (l *line) killAt(name string, op operation, k *killer, victim, point int, after, theSwitch bool) bool {
	l.t.Helper()
	n := l.nodes[victim-1]
	ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Second)
	defer cancel()
	var strike func()
	if theSwitch {
		strike = func() {
			n.sw.close()
			n.sw, _ = l.startSwitch(n.p4)
		}
	}
	k.arm(point, after, strike)
	done := make(chan error, 1)
	client := l.groups(1)
	go func() { done <- op.run(ctx, client) }()
	var err error
	select {
	case <-k.struck:
	case err = <-done: // with fewer writes this time, as those that wait go together
		done <- err
		time.Sleep(treeTime)
	}
	if !k.fired() {
		if err != nil {
			l.t.Errorf("%s: %v", name, err)
		}
		k.arm(-1, false, nil)
		return false
	}
	if !theSwitch {
		if victim == 1 {
			cancel() // no agent is there to answer
		}
		n.agent.halt() // nothing gets to the switch any more, so do not wait for it
		n.kill()
		k.arm(-1, false, nil)
		l.start(victim, k.into)
	}
	err = <-done
	if err != nil && theSwitch && !errors.Is(err, context.Canceled) {
		l.t.Logf("%s: %v", name, err)
	}
	return true
}

// settlesAs waits until the fabric is consistent and as one of these.
func (l *line) settlesAs(name string, want [][]string) {
	l.t.Helper()
	var problem string
	var have []string
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if problem = l.consistent(); problem != "" {
			continue
		}
		have = l.canonical()
		if slices.ContainsFunc(want, func(w []string) bool { return slices.Equal(w, have) }) {
			return
		}
		problem = "it is neither as before nor as after"
	}
	l.t.Errorf("%s: %s:\n%s", name, problem, strings.Join(have, "\n--\n"))
	for _, w := range want {
		l.t.Logf("possible:\n%s", strings.Join(w, "\n--\n"))
	}
}

// tidy removes the group; nothing is left then.
func (l *line) tidy(name string) {
	l.t.Helper()
	_, err := l.groups(1).Remove(l.t.Context(), &mcrdmav1.RemoveRequest{Key: killGroup(l, nil).Key})
	if status.Code(err) == codes.Unavailable { // it went by the connection to the agent that was killed
		_, err = l.groups(1).Remove(l.t.Context(), &mcrdmav1.RemoveRequest{Key: killGroup(l, nil).Key})
	}
	if err != nil {
		l.t.Fatalf("%s: remove: %v", name, err)
	}
	var last string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		last = ""
		for i := range l.nodes {
			have, err := l.read(i + 1)
			if err != nil {
				last = err.Error()
			} else if left := multicast(have); len(left) > 0 {
				last = fmt.Sprintf("sw%d: %v", i+1, left)
			}
		}
		if last == "" {
			break
		}
	}
	if last != "" {
		l.t.Fatalf("%s: left over: %s", name, last)
	}
	synctest.Wait() // an agent may know it a little later than its switch
	l.noLeftovers()
}
