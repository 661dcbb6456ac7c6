package connmgr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A spec is what an application has asked a group to be.
type spec struct {
	Service   string
	Program   string
	Mode      mcrdmav1.Mode
	MinSize   uint32
	DSCP, MTU uint32
	Regions   []region
	Algorithm string // of relaying; "": chosen
	Transport string // of relaying; "": chosen
	Typical   uint64
	CNPGap    time.Duration
}

// A region is memory of each receiver that the sender writes to.
type region struct {
	Name   string
	Length uint64
	RKey   uint32
	VA     uint64
}

// A receiver is a member of a formation, as its daemon has answered.
type receiver struct {
	Addr      netip.Addr
	Host      string
	QPN       uint32
	Regions   []place
	Bootstrap string
	Transport string
	Have      uint64
	Rack      uint32
}

// A place is where a receiver has a region.
type place struct {
	RKey uint32
	VA   uint64
}

// A formation is how a group is connected.
type formation struct {
	N         uint32
	MCID      uint32
	PSN       uint32
	Path      mcrdmav1.Path
	Why       []string
	Receivers []receiver
	First     netip.Addr // receiver that the sender's queue pair is connected to
	Have      uint64
	Relay     *relay `json:",omitempty"`
	Sender    sender
	// Transient: the path is PATH_RELAY only because the agent was not there.
	Transient bool

	tree  []string
	steps []step
}

// sender is what the sender's application brings to a formation.
type sender struct {
	QPN       uint32
	Bootstrap string
	Sent      uint64
	CatchUp   bool `json:",omitempty"` // hosts are to relay
}

// relays says whether hosts may relay in a formation of a group.
func (s sender) relays(sp spec) bool { return s.CatchUp || sp.Mode != mcrdmav1.Mode_MODE_REQUIRE }

// A relay says how hosts relay.
type relay struct {
	Algorithm string
	Transport string
	Block     uint32
	Racks     []uint32 `json:",omitempty"`
	Group     uint64
}

type step struct {
	name string
	took time.Duration
}

// A group is a group whose sender is an application of this host.
type group struct {
	id      groupID
	spec    spec
	created time.Time

	timeout uint8 // of its queue pairs; see ackTimeout

	turn   chan struct{} // 1: its holder may change the formation
	ctx    context.Context
	cancel context.CancelFunc // when the group ends

	// Under Manager.mu.
	user      user
	sess      *session
	form      *formation            // nil: the first is being formed
	last      uint32                // number of the latest formation that was begun
	making    uint32                // MC_ID of the formation that was begun last, until it is the present one
	news      *mcrdmav1.GroupStatus // the agent's last news of that one; nil: none
	late      int                   // tries in a row to form it anew that failed because receivers were late; guarded by the turn
	over      bool
	broken    bool                // the application has been asked to form it anew
	resumed   bool                // false: after a restart, the application has not said that it has it
	suspected map[netip.Addr]int  // in how many formations in a row
	counted   uint32              // the formation that was counted last in suspected
	dead      map[netip.Addr]loss // receivers that are to be taken out
	// departures are changed with the turn and Manager.mu, and read with either.
	departures []departure
	states     map[netip.Addr]*peerState
	problems   []string
	since      time.Time // of problems
	retry      retry
	looks      *looks // for receivers that stall the present formation
}

// A peerState is a receiver's state as users see it.
type peerState struct {
	host   string
	state  string
	reason string
	since  time.Time
}

// Words for states, as api/mcrdma/v1 has them.
const (
	stateOK      = "ok"
	stateSilent  = "silent"
	stateDown    = "daemon down"
	stateRemoved = "removed"
)

// enter waits for the group's turn; leave gives it back.
func (g *group) enter(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-g.ctx.Done():
		return refuse(Closed, "the group %v has been closed", g.id)
	}
}

// enterToEnd is enter for a caller that ends the group: it stops other work on the group.
// It reports whether the caller has the turn.
func (g *group) enterToEnd(ctx context.Context) bool {
	g.cancel()
	select {
	case g.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (g *group) leave() { <-g.turn }

// copies returns how many copies there are with so many receivers.
func (g *group) copies(receivers int) uint32 { return uint32(receivers) + 1 } //nolint:gosec // at most 16

// enough says whether a group may go on with so many receivers.
func (g *group) enough(receivers int) bool {
	return receivers > 0 && g.copies(receivers) >= g.spec.MinSize
}

// ackTimeout is the local ACK timeout of a sender's queue pair, as its exponent. With its
// retries the queue pair lasts longer than it takes to notice that a receiver is dead,
// which with packets under way is a quarter of deadAfter (health.Tracker.Blame) or a little
// more than one timeout. It is not shorter than busy hosts take to answer, and not so long
// that a lost packet costs too much.
func ackTimeout(deadAfter time.Duration) (n uint8) {
	const tries, least, most = 8, 12, 16 // 17 ms, 268 ms
	for n = least; n < most && tries*qp.AckTimeout(n) <= deadAfter; n++ {
	}
	return n
}

// few says why so many receivers are not enough.
func (g *group) few(receivers int) string {
	if receivers == 0 {
		return fmt.Sprintf("no receiver is left, whatever min_size is (%d)", g.spec.MinSize)
	}
	return fmt.Sprintf("%s are left, the sender's own counted, and min_size is %d", plural(receivers+1, "copy"), g.spec.MinSize)
}

func (f *formation) addrs() []netip.Addr {
	out := make([]netip.Addr, 0, len(f.Receivers))
	for _, r := range f.Receivers {
		out = append(out, r.Addr)
	}
	return out
}

func (f *formation) has(a netip.Addr) bool { return slices.Contains(f.addrs(), a) }

// info returns what applications and other daemons see of a formation.
func (g *group) info(f *formation) *mcrdmav1.FormationInfo {
	out := &mcrdmav1.FormationInfo{Group: g.id.proto(), Formation: f.N, Path: f.Path, Why: f.Why, Have: f.Have, McId: f.MCID, Tree: f.tree}
	for _, r := range f.Receivers {
		out.Members = append(out.Members, &mcrdmav1.Member{Address: r.Addr.String(), Host: r.Host, Qpn: r.QPN, Bootstrap: r.Bootstrap, Have: r.Have})
	}
	if f.Path == mcrdmav1.Path_PATH_SWITCH {
		out.Connection = &mcrdmav1.Connection{Address: f.First.String(), Qpn: f.MCID, Psn: f.PSN, Mtu: g.spec.MTU, Dscp: g.spec.DSCP, Timeout: uint32(g.timeout)}
	}
	if r := f.Relay; r != nil {
		out.Relay = &mcrdmav1.Relay{Algorithm: r.Algorithm, Transport: r.Transport, Block: r.Block, Racks: r.Racks, Group: r.Group,
			Bootstrap: []string{f.Sender.Bootstrap}}
		for _, x := range f.Receivers {
			out.Relay.Bootstrap = append(out.Relay.Bootstrap, x.Bootstrap)
		}
	}
	for _, d := range g.departures {
		out.Departures = append(out.Departures, &mcrdmav1.Departure{Address: d.Addr.String(), Host: d.Host, Text: d.Why, Since: d.Since, Clock: d.Clock})
	}
	for _, s := range f.steps {
		out.Steps = append(out.Steps, &mcrdmav1.StepTime{Step: s.name, Took: durationpb.New(s.took)})
	}
	return out
}

func (g *group) regionsProto() []*mcrdmav1.RegionSpec {
	var out []*mcrdmav1.RegionSpec
	for _, r := range g.spec.Regions {
		out = append(out, &mcrdmav1.RegionSpec{Name: r.Name, Length: r.Length, Rkey: r.RKey, Va: r.VA})
	}
	return out
}

// tell tells the application of a group about it. It is called with Manager.mu.
func (m *Manager) tell(g *group, t mcrdmav1.GroupChanged_Type, addr netip.Addr, text string) {
	c := &mcrdmav1.GroupChanged{Group: g.id.proto(), Type: t, Text: text}
	if g.form != nil {
		c.Formation = g.form.N
	}
	if addr.IsValid() {
		c.Address = addr.String()
		if s := g.states[addr]; s != nil {
			c.Host = s.host
		}
		if d := g.departed(addr); d != nil && t == mcrdmav1.GroupChanged_TYPE_REMOVED {
			c.Since, c.Clock = d.Since, d.Clock
		}
	}
	m.push(g.sess, &mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_GroupChanged{GroupChanged: c}})
}
