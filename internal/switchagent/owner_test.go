package switchagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A registers knows which epochs the registers of a line's first switch may hold.
type registers struct {
	l     *line
	known map[[2]uint16]string // slot and epoch: the group that used them
	count int                  // times that they were cleared
}

// into watches an agent clear the registers.
func (r *registers) into(_ *config.Config, o *Options) {
	o.DialSwitch = append(o.DialSwitch, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if _, ok := req.(*p4.SetForwardingPipelineConfigRequest); ok && err == nil {
				r.known = map[[2]uint16]string{}
				r.count++
			}
			return err
		}))
}

// look fails if a group is merged in an epoch in which another was.
func (r *registers) look(what string) {
	r.l.t.Helper()
	for x := range switchspec.Of[switchspec.MergeMember](r.l.state(1)) {
		e, ok := r.l.state(1).Find(switchspec.MergeGroup{Slot: x.Slot}.Key())
		if !ok {
			continue
		}
		use, group := [2]uint16{x.Slot, e.(switchspec.MergeGroup).Epoch}, groups.Key{Source: x.Dst, ID: x.DestQP}.String()
		if was := r.known[use]; was != "" && was != group {
			r.l.t.Errorf("%s: slot %d, epoch %d is used for %s, and the registers hold what was answered to %s", what, use[0], use[1], group, was)
		}
		r.known[use] = group
	}
}

func newRegisters(t *testing.T) (*line, *registers) {
	l := newLine(t, 1)
	r := &registers{l: l, known: map[[2]uint16]string{}}
	l.start(1, r.into)
	return l, r
}

func (l *line) copyState() []byte {
	l.t.Helper()
	data, err := os.ReadFile(l.config(1).State)
	if err != nil {
		l.t.Fatal(err)
	}
	return data
}

// putBack makes the state a copy; nil: there is none.
func (l *line) putBack(data []byte) {
	l.t.Helper()
	err := os.Remove(l.config(1).State)
	if data != nil {
		err = os.WriteFile(l.config(1).State, data, 0o600)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *line) missing(g *mcrdmav1.Group) bool {
	l.t.Helper()
	res, err := l.groups(1).Renew(l.t.Context(), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{g.Key}})
	if err != nil {
		l.t.Fatal(err)
	}
	return len(res.GetMissing()) > 0
}

// smallGroup is a group of host i with the next hosts.
func smallGroup(i int, id uint32, n int) *mcrdmav1.Group {
	var receivers []netip.Addr
	for r := range n {
		receivers = append(receivers, hostAddr(1, i+1+r))
	}
	return aGroup(hostAddr(1, i), id, receivers...)
}

// installAgain installs a group as soon as nothing is left of it.
func (l *line) installAgain(g *mcrdmav1.Group) {
	eventually(l.t, "the group can be installed again", func() bool {
		_, err := l.groups(1).Install(l.t.Context(), &mcrdmav1.InstallRequest{Group: g})
		return err == nil
	})
}

// TestStateOlderThanSwitch: the agent's state is lost, or a copy of it is restored. Epochs
// that the switch's registers know are not used for other groups, whenever the agents
// in between were killed, and groups that may have changed since are gone.
func TestStateOlderThanSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, running := range map[string]bool{"lost": false, "a copy of a stopped agent's": true} {
			for point, more := 0, true; more; point++ {
				for _, after := range []bool{false, true} {
					if !after && point > 0 {
						continue // what is there then is what the call before has left
					}
					l, r := newRegisters(t)
					if running {
						l.nodes[0].kill()
					}
					old := map[bool][]byte{true: l.copyState()}[running]
					if running {
						l.start(1, r.into)
					}
					first, kept := smallGroup(1, 0x800001, 2), smallGroup(1, 0x800002, 2)
					l.install(1, first)
					l.install(1, kept)
					r.look("before")
					l.remove(1, first)
					l.nodes[0].kill()
					l.putBack(old)

					k := &killer{}
					k.arm(point, after, nil)
					if a, err := l.second(1, func(c *config.Config, _ *Options) { c.State = l.config(1).State }, r.into, k.into); err == nil {
						end := l.running(a)
						eventually(t, "it is killed, or done", func() bool { return k.fired() || isReady(a) })
						a.halt()
						end()
					}
					more = k.fired()
					pushes := r.count
					l.start(1, r.into)
					for id := range uint32(3) {
						l.install(1, smallGroup(4, id+1, 2))
					}
					r.look(name)
					if pushes < 2 && r.count < 2 {
						t.Errorf("%s, killed at call %d, after=%v: the registers were not cleared", name, point, after)
					}
					if !l.missing(kept) {
						t.Errorf("%s, killed at call %d, after=%v: a group of before is there", name, point, after)
					}
					l.close()
				}
				if point > 50 {
					t.Fatal("it is killed for ever")
				}
			}
		}
	})
}

// TestCopyOfRunningState: a copy is restored that was made while the agent ran, in the
// same block of numbers. A group that has got members since is gone, as with the copy
// the switch would not wait for them; others stay.
func TestCopyOfRunningState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, r := newRegisters(t)
		grown, same := smallGroup(1, 0x800001, 2), smallGroup(1, 0x800002, 2)
		l.install(1, grown)
		l.install(1, same)
		old := l.copyState()
		psn := uint32(5)
		if _, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: grown.Key, Receivers: smallGroup(1, 0, 3).Receivers, InitialPsn: &psn}); err != nil {
			t.Fatal(err)
		}
		l.install(1, smallGroup(3, 0x800003, 2))
		r.look("before")
		l.nodes[0].kill()
		l.putBack(old)
		l.start(1, r.into)
		if !l.missing(grown) || l.missing(same) {
			t.Errorf("missing: %v, %v; want true, false", l.missing(grown), l.missing(same))
		}
		eventually(t, "nothing is merged for the one that is gone", func() bool {
			for x := range switchspec.Of[switchspec.MergeMember](l.state(1)) {
				if x.DestQP == grown.Key.McId {
					return false
				}
			}
			return true
		})
		for id := range uint32(3) {
			l.install(1, smallGroup(4, id+1, 2))
		}
		r.look("after")
	})
}

// TestCopyAndRestartedSwitch: a copy is restored that lacks a member, and the switch is
// restarted before the agent sees it. The switch can no longer tell that the copy is
// older, so no group of the copy may come back.
func TestCopyAndRestartedSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, r := newRegisters(t)
		g := smallGroup(1, 0x800001, 2)
		l.install(1, g)
		old := l.copyState()
		psn := uint32(5)
		if _, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, Receivers: smallGroup(1, 0, 3).Receivers, InitialPsn: &psn}); err != nil {
			t.Fatal(err)
		}
		l.nodes[0].kill()
		l.putBack(old)
		l.smallSwitch(1, pre.Limits{})
		l.start(1, r.into)
		if n := len(slices.Collect(switchspec.Of[switchspec.MergeGroup](l.state(1)))); !l.missing(g) || n > 0 {
			t.Errorf("missing: %v; %d groups are merged", l.missing(g), n)
		}
		l.installAgain(g)
		l.remove(1, g)
		l.noLeftovers()
	})
}

// TestQPNsThatClash: the MC_ID of a group is the QPN of another group's sender, and they
// have a receiver in common. The second is refused with an explanation, whichever it is.
func TestQPNsThatClash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newRegisters(t)
		a, b := smallGroup(1, 0x1000, 2), smallGroup(1, 0x2000, 2)
		a.SenderQpn = 0x2000
		for _, order := range [][2]*mcrdmav1.Group{{a, b}, {b, a}} {
			l.install(1, order[0])
			_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: order[1]})
			refused{codes.AlreadyExists, "EXISTS", "sw1", []string{"MC_ID", "QPN"}}.check(t, "install", err)
			l.remove(1, order[0])
		}
		l.noLeftovers()
	})
}

// TestNumbersUsedUp: when all numbers of uses have been handed out, the switch is
// cleared and they begin anew. An install then fails with NOT_READY; existing groups
// stay, and wait until all their members have answered.
func TestNumbersUsedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, r := newRegisters(t)
		kept := smallGroup(1, 0x800001, 2)
		l.install(1, kept)
		r.look("before")
		want := l.canonical()
		l.nodes[0].kill()
		s, err := store.Open(t.Context(), l.config(1).State, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range s.Load(ownBucket) {
			var own ownership
			if err := json.Unmarshal(value, &own); err != nil {
				t.Fatal(err)
			}
			own.Numbers = useEnd - 2 // two are left
			value, _ = json.Marshal(own)
			if err := s.Commit(t.Context(), store.Edit{Bucket: ownBucket, Key: key, Value: value}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		l.start(1, r.into)
		for id := range uint32(2) {
			g := smallGroup(4, 0x800010+id, 2)
			l.install(1, g)
			r.look("the last numbers")
			for m := range switchspec.Of[switchspec.MergeGroup](l.state(1)) {
				if m.Slot >= slotCount-2 && m.Epoch != 0xffff {
					t.Errorf("%v", m)
				}
			}
			l.remove(1, g)
		}
		if r.count != 1 {
			t.Errorf("the registers were cleared %d times", r.count)
		}
		next := smallGroup(4, 0x800020, 2)
		_, err = l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: next})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%v", err)
		}
		eventually(t, "it can be installed", func() bool {
			_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: next})
			return err == nil
		})
		if r.count != 2 || l.missing(kept) {
			t.Errorf("the registers were cleared %d times", r.count)
		}
		for m := range switchspec.Of[switchspec.MergeGroup](l.state(1)) {
			if m.Epoch != 1 || m.Learn != (m.Source == hostAddr(1, 2)) {
				t.Errorf("%v", m)
			}
		}
		r.look("after")
		l.remove(1, next)
		if have := l.canonical(); have[0] != want[0] {
			t.Errorf("have %v", have)
		}
	})
}

// TestUpgrade: the switch runs another program, and the agent's state has no numbers,
// like that of earlier versions. The switch gets the program, once; it is not known
// whether the state is the latest, so its groups are gone.
func TestUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, r := newRegisters(t)
		g := smallGroup(1, 0x800001, 2)
		l.install(1, g)
		want := l.canonical()
		l.nodes[0].kill()
		s, err := store.Open(t.Context(), l.config(1).State, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var edits []store.Edit
		for key := range s.Load(ownBucket) {
			edits = append(edits, store.Edit{Bucket: ownBucket, Key: key})
		}
		for key, value := range s.Load(bucket) {
			var record map[string]map[string]any
			if err := json.Unmarshal(value, &record); err != nil {
				t.Fatal(err)
			}
			delete(record["Group"], "Use")
			value, _ = json.Marshal(record)
			edits = append(edits, store.Edit{Bucket: bucket, Key: key, Value: value})
		}
		if err := errors.Join(s.Commit(t.Context(), edits...), s.Close()); err != nil {
			t.Fatal(err)
		}
		session, end := l.control(1)
		f, id := l.foreigner(1), session.ElectionID()
		res, err := f.rpc.GetForwardingPipelineConfig(t.Context(), &p4.GetForwardingPipelineConfigRequest{})
		if err != nil {
			t.Fatal(err)
		}
		res.Config.Cookie.Cookie++
		if _, err := f.rpc.SetForwardingPipelineConfig(t.Context(), &p4.SetForwardingPipelineConfigRequest{Config: res.Config,
			ElectionId: &p4.Uint128{High: id.High, Low: id.Low}, Action: p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT}); err != nil {
			t.Fatal(err)
		}
		end()
		cleared := r.count
		l.start(1, r.into)
		if r.count != cleared+1 || !l.missing(g) {
			t.Errorf("the program was pushed %d times; the group is missing: %v", r.count-cleared, l.missing(g))
		}
		l.installAgain(g)
		if got := l.canonical(); !slices.Equal(got, want) {
			t.Errorf("have %v, want %v", got, want)
		}
		l.nodes[0].kill()
		l.start(1, r.into)
		if r.count != cleared+1 || l.missing(g) {
			t.Errorf("the next agent has pushed the program %d times", r.count-cleared-1)
		}
	})
}

// A panicking store panics where the agent reserves numbers, with its lock held.
type panickingStore struct{ Store }

func (s panickingStore) Commit(ctx context.Context, edits ...store.Edit) error {
	if len(edits) == 1 && edits[0].Bucket == ownBucket && strings.Contains(string(edits[0].Value), fmt.Sprint(1+slotBlock)) {
		panic("a defect")
	}
	return s.Store.Commit(ctx, edits...)
}

// TestPanicEndsAgent: a request that panics ends the process, with a stack trace.
func TestPanicEndsAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if os.Getenv("MCRDMA_TEST_PANIC") == "" {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPanicEndsAgent$")
			cmd.Env = append(os.Environ(), "MCRDMA_TEST_PANIC=1", "TMPDIR="+t.TempDir()) // it leaves its own behind
			out, err := cmd.CombinedOutput()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "panic: a defect") ||
				!strings.Contains(string(out), "groupsServer") {
				t.Errorf("%v: %.2000s", err, out)
			}
			return
		}
		l := newLine(t, 1)
		l.start(1, func(_ *config.Config, o *Options) {
			o.OpenStore = func(ctx context.Context, path string) (Store, error) {
				s, err := store.Open(ctx, path, store.Options{})
				return panickingStore{s}, err
			}
		})
		_, err := l.groups(1).Install(within(t, 5*time.Second), &mcrdmav1.InstallRequest{Group: smallGroup(1, 1, 2)})
		t.Errorf("it answers %v", err)
	})
}
