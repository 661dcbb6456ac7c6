package switchagent

import (
	"context"
	"crypto/x509"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

// counter is what Prometheus would read of an agent.
func (n *node) counter(t testing.TB, name, label string) int {
	t.Helper()
	families, err := n.agent.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func (n *node) refused(t testing.TB, reason string) int {
	t.Helper()
	return n.counter(t, "mcrdma_agent_refused_total", reason)
}

// A victim is a group of host 1 at sw1 with receivers there and at sw2, in a fabric
// where all clients and agents have certificates.
type victim struct {
	l     *line
	ca    *identitytest.CA
	group *mcrdmav1.Group
	own   mcrdmav1.SwitchGroupsClient
	was   snapshot
}

func newVictim(t *testing.T, switches int, change ...func(*config.Config, *Options)) *victim {
	t.Helper()
	v := &victim{l: newLine(t, switches), ca: identitytest.New(t), group: twoHops(1)}
	patient := func(c *config.Config, _ *Options) { c.Leases.Group = time.Hour } // without renewals
	for i := range v.l.nodes {
		v.l.start(i+1, append(change, patient, tlsFiles(v.ca.Switch(v.l.nodes[i].name)))...)
	}
	v.own = mcrdmav1.NewSwitchGroupsClient(v.as(1, v.ca.Host("h1", hostAddr(1, 1))))
	if _, err := v.own.Install(t.Context(), &mcrdmav1.InstallRequest{Group: v.group}); err != nil {
		t.Fatal(err)
	}
	v.was = v.l.snapshot()
	return v
}

// as is a connection to switch i's agent with a certificate.
func (v *victim) as(i int, f identity.Files) *grpc.ClientConn {
	v.l.t.Helper()
	creds, err := f.Client(aSwitch(v.l.nodes[i-1].name))
	if err != nil {
		v.l.t.Fatal(err)
	}
	return v.l.call(i, grpc.WithTransportCredentials(creds))
}

// fine checks that neither switches nor states have changed, that the group is renewed,
// and that its host can make, change and remove another.
func (v *victim) fine(what string) {
	t := v.l.t
	t.Helper()
	v.l.unchanged(what, v.was)
	if r, err := v.own.Renew(t.Context(), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{v.group.Key}}); err != nil || len(r.GetMissing()) > 0 {
		t.Errorf("%s: the group cannot be renewed: %v, %v", what, r, err)
	}
	g := twoHops(2)
	if _, err := v.own.Install(t.Context(), &mcrdmav1.InstallRequest{Group: g}); err != nil {
		t.Errorf("%s: another group cannot be made: %v", what, err)
	}
	if _, err := v.own.Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, Receivers: g.Receivers[:2]}); err != nil {
		t.Errorf("%s: another group cannot be changed: %v", what, err)
	}
	if _, err := v.own.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: g.Key}); err != nil {
		t.Errorf("%s: another group cannot be removed: %v", what, err)
	}
}

// TestAttackByHost: a host of the same switch, with a good certificate, names another
// host's groups, and calls as if it were a switch.
func TestAttackByHost(t *testing.T) {
	v := newVictim(t, 2)
	for i := 1; i <= 2; i++ {
		n := v.l.nodes[i-1]
		conn := v.as(i, v.ca.Host("mallory", hostAddr(1, 3)))
		groups, peer := mcrdmav1.NewSwitchGroupsClient(conn), mcrdmav1.NewSwitchPeerClient(conn)
		before := n.refused(t, "DENIED")
		other := twoHops(7) // of which there is none yet
		calls := map[string]error{
			"install": second(groups.Install(t.Context(), &mcrdmav1.InstallRequest{Group: other})),
			"again":   second(groups.Install(t.Context(), &mcrdmav1.InstallRequest{Group: v.group})),
			"update":  second(groups.Update(t.Context(), &mcrdmav1.UpdateRequest{Key: v.group.Key, Receivers: v.group.Receivers[:1]})),
			"remove":  second(groups.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: v.group.Key})),
			"renew":   second(groups.Renew(t.Context(), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{v.group.Key}})),
			"get":     second(groups.Get(t.Context(), &mcrdmav1.GetRequest{Key: v.group.Key})),
			"hold":    second(peer.Hold(t.Context(), holdOf(v.group, "mallory", math.MaxInt64))),
			"release": second(peer.Release(t.Context(), releaseOf(v.group))),
			"sync":    second(peer.Sync(t.Context(), &mcrdmav1.SyncRequest{Sequence: math.MaxUint64})),
		}
		for what, err := range calls {
			refused{codes.PermissionDenied, "DENIED", n.name, nil}.check(t, what, err)
		}
		if got := n.refused(t, "DENIED") - before; got != len(calls) {
			t.Errorf("%s counted %d requests as denied, want %d", n.name, got, len(calls))
		}
		v.fine("a host at " + n.name)
	}
}

func second[T any](_ T, err error) error { return err }

// holdOf asks for the victim's branch, but for other receivers.
func holdOf(g *mcrdmav1.Group, from string, generation uint64) *mcrdmav1.HoldRequest {
	return &mcrdmav1.HoldRequest{Group: g.Key, Generation: generation, Sequence: math.MaxInt64, Via: []string{from},
		Destination: g.Receivers[1].Address, Receivers: []*mcrdmav1.Receiver{aReceiver(hostAddr(2, 1), 0x666)}}
}

func releaseOf(g *mcrdmav1.Group) *mcrdmav1.ReleaseRequest {
	return &mcrdmav1.ReleaseRequest{Group: g.Key, Destination: g.Receivers[1].Address, Sequence: math.MaxUint64}
}

// TestAttackByNeighbor: agents of other switches try to end or change a branch that is
// not theirs: one that the configuration does not know, and one that it does.
func TestAttackByNeighbor(t *testing.T) {
	v := newVictim(t, 3)
	n := v.l.nodes[1] // holds a branch for sw1
	var generation uint64
	for _, s := range n.agent.table.Steps() {
		if s.Key.Dst == hostAddr(2, 1) {
			generation = s.Spec.Generation
		}
	}
	if generation == 0 {
		t.Fatal("sw2 has no branch of the group")
	}
	unknown := mcrdmav1.NewSwitchPeerClient(v.as(2, v.ca.Switch("sw9")))
	before := n.refused(t, "DENIED")
	for what, err := range map[string]error{
		"hold":    second(unknown.Hold(t.Context(), holdOf(v.group, "sw9", math.MaxInt64))),
		"release": second(unknown.Release(t.Context(), releaseOf(v.group))),
		"sync":    second(unknown.Sync(t.Context(), &mcrdmav1.SyncRequest{Sequence: math.MaxUint64})),
	} {
		refused{codes.PermissionDenied, "DENIED", "sw2", []string{"sw9"}}.check(t, what, err)
	}
	if got := n.refused(t, "DENIED") - before; got != 3 {
		t.Errorf("%d requests are counted as denied, want 3", got)
	}
	v.fine("an unknown switch")

	known := mcrdmav1.NewSwitchPeerClient(v.as(2, v.ca.Switch("sw3")))
	for what, err := range map[string]error{ // it has none of its own to end
		"release": second(known.Release(t.Context(), releaseOf(v.group))),
		"sync":    second(known.Sync(t.Context(), &mcrdmav1.SyncRequest{Sequence: math.MaxUint64})),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	before = n.refused(t, "AMBIGUOUS")
	_, err := known.Hold(t.Context(), holdOf(v.group, "sw3", generation))
	refused{codes.FailedPrecondition, "AMBIGUOUS", "sw2", nil}.check(t, "hold", err)
	if got := n.refused(t, "AMBIGUOUS") - before; got != 1 {
		t.Errorf("%d requests are counted as ambiguous, want 1", got)
	}
	v.fine("a neighbor")
}

// TestAttackByStranger: a client without a good certificate is rejected.
func TestAttackByStranger(t *testing.T) {
	v := newVictim(t, 2)
	n := v.l.nodes[0]
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	mixed := identitytest.New(t).Admin("ops") // its certificate is another CA's, and it trusts ours
	mixed.CA = v.ca.Admin("x").CA
	for what, conn := range map[string]*grpc.ClientConn{
		"plain text": v.l.call(1, grpc.WithTransportCredentials(insecure.NewCredentials()),
			identity.Claim(identity.Identity{Role: identity.Admin, Name: "ops"})),
		"another CA's": v.as(1, mixed),
		"expired":      v.as(1, v.ca.Issue(identity.Identity{Role: identity.Admin, Name: "ops"}, expired)),
	} {
		before := n.counter(t, "mcrdma_agent_handshakes_failed_total", "")
		_, err := mcrdmav1.NewSwitchGroupsClient(conn).Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: v.group.Key})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", what, err)
		}
		eventually(t, "the handshake is counted", func() bool { return n.counter(t, "mcrdma_agent_handshakes_failed_total", "") > before })
		v.fine(what)
	}
}

// TestFloodOfGroups: a host asks for groups without end, over many connections at once;
// another host of the same switch makes and removes its own all the time.
func TestFloodOfGroups(t *testing.T) {
	const most = 32
	v := newVictim(t, 2, func(c *config.Config, _ *Options) { c.Limits.Groups, c.Limits.GroupsPerSource = most+16, most })
	n := v.l.nodes[0]
	before := n.refused(t, "LIMIT")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var id, limited atomic.Int64
	var mu sync.Mutex
	var made []*mcrdmav1.Group
	flooded := make(chan struct{})
	files := v.ca.Host("mallory", hostAddr(1, 3))
	for range 4 {
		c := mcrdmav1.NewSwitchGroupsClient(v.as(1, files))
		wg.Go(func() {
			for ctx.Err() == nil {
				g := aGroup(hostAddr(1, 3), 0x800000+uint32(id.Add(1)), hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
				_, err := c.Install(ctx, &mcrdmav1.InstallRequest{Group: g})
				switch {
				case err == nil:
					mu.Lock()
					made = append(made, g)
					mu.Unlock()
				case status.Code(err) == codes.ResourceExhausted:
					if limited.Add(1) == 300 {
						close(flooded)
					}
				case ctx.Err() == nil:
					t.Errorf("group %v: %v", g.GetKey(), err)
				}
			}
		})
	}
	var mine []*mcrdmav1.Group
	for i, full := uint32(0), false; !full; i++ {
		select {
		case <-flooded:
			full = true
		default:
		}
		g := twoHops(100 + i)
		if _, err := v.own.Install(t.Context(), &mcrdmav1.InstallRequest{Group: g}); err != nil {
			t.Fatalf("during the flood: %v", err)
		}
		if mine = append(mine, g); len(mine) == 15 || full { // as many as there are for others
			for _, g := range mine {
				if _, err := v.own.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: g.Key}); err != nil {
					t.Fatalf("during the flood: %v", err)
				}
			}
			mine = nil
		}
	}
	stop()
	wg.Wait()
	if len(made) != most {
		t.Errorf("%d groups were made, want %d", len(made), most)
	}
	if got := int64(n.refused(t, "LIMIT") - before); got < limited.Load() {
		t.Errorf("%d requests are counted as over a limit, want %d at least", got, limited.Load())
	}
	c := mcrdmav1.NewSwitchGroupsClient(v.as(1, files))
	for _, g := range made {
		if _, err := c.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: g.Key}); err != nil {
			t.Fatal(err)
		}
	}
	v.fine("a flood")
	if _, err := v.own.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: v.group.Key}); err != nil {
		t.Fatal(err)
	}
	v.l.noLeftovers()
}
