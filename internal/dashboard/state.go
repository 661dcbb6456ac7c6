package dashboard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	maxEvents = 1000
	maxGroups = 20_000 // of one agent; a switch has room for 16,384
)

// A state is what is remembered. Its methods are called by one goroutine at a time.
type state struct {
	stale   time.Duration
	agents  map[string]*agentState // by address
	order   []string               // addresses
	daemons map[string]*daemonState
	events  []Event // the oldest first
	lastID  uint64
	version versions
}

// versions rise when what they count changes.
type versions struct {
	Status uint64 `json:"status"`
	Groups uint64 `json:"groups"`
	Events uint64 `json:"events"`
}

// An Event is something that has happened, as far as it was seen from here.
type Event struct {
	ID     uint64    `json:"id"`
	At     time.Time `json:"at"`
	Switch string    `json:"switch"`
	Kind   string    `json:"kind"` // agent, control, link, bgp, group or problem
	Bad    bool      `json:"bad"`
	Text   string    `json:"text"`
}

// An agentState is what one agent has said.
type agentState struct {
	address, name string
	status        *mcrdmav1.GetStatusResponse // the last one; nil: there was none
	at            time.Time                   // of status
	err           error                       // why the last question was not answered
	gray          bool                        // what it said last is old, or it said nothing
	drops         map[string]drop             // by counter and cell
	groups        map[string]*groupState      // by idOf
	ids           []string                    // of groups, in order, if sorted is set
	sorted        bool
	lost          bool // groups beyond maxGroups were left out
	turn          int  // the group that is measured next
}

type drop struct {
	counter *mcrdmav1.Counter
	at      time.Time
	rate    *float64 // packets per second; nil: seen once only
}

// A groupState is a group at the switch where it was installed. Its counters are those of
// when it was measured last.
type groupState struct {
	status   *mcrdmav1.GroupStatus
	measured time.Time
	rate     *float64 // bytes per second between the last two measurements
	track    track
}

// A daemonState is what one daemon has said of the groups of its host's applications.
type daemonState struct {
	at     time.Time
	err    error
	groups []*mcrdmav1.GroupInfo
}

// idOf names a group at its switch, SOURCE/0xMC_ID: while a group is formed anew, there may be
// two with the same number. People are told grouptree.KeyOf.
func idOf(k *mcrdmav1.GroupKey) string {
	return grouptree.KeyOf(&mcrdmav1.GroupKey{Source: k.GetSource(), McId: k.GetMcId()})
}

func nameOf(g *mcrdmav1.GroupStatus) string { return grouptree.KeyOf(g.GetGroup().GetKey()) }

func newState(stale time.Duration) *state {
	return &state{stale: stale, agents: map[string]*agentState{}, daemons: map[string]*daemonState{}}
}

// know adds an agent that was found, by its address and the name that others give it.
func (s *state) know(address, name string) *agentState {
	a := s.agents[address]
	if a == nil {
		a = &agentState{address: address, name: cmp.Or(name, address), gray: true, drops: map[string]drop{}, groups: map[string]*groupState{}}
		s.agents[address] = a
		s.order = append(s.order, address)
		s.version.Status++
	}
	return a
}

func (s *state) event(now time.Time, a *agentState, kind string, bad bool, format string, args ...any) {
	s.lastID++
	s.version.Events++
	s.events = append(s.events, Event{s.lastID, now, a.name, kind, bad, fmt.Sprintf(format, args...)})
	if len(s.events) > maxEvents {
		s.events = append(s.events[:0], s.events[len(s.events)-maxEvents:]...)
	}
}

// status takes an agent's answer, or that there is none.
func (s *state) status(address string, now time.Time, r *mcrdmav1.GetStatusResponse, err error) {
	a := s.agents[address]
	if (err == nil) != (a.err == nil) || a.at.IsZero() || err != nil && err.Error() != a.err.Error() {
		s.version.Status++
	}
	if err != nil {
		if a.err == nil {
			s.event(now, a, "agent", true, "the agent does not answer: %v", err)
		}
		a.err, a.gray = err, true
		return
	}
	if a.err != nil {
		s.event(now, a, "agent", false, "the agent answers again")
	}
	a.name = cmp.Or(r.GetName(), a.name)
	if a.status != nil {
		s.differences(now, a, a.status, r)
	}
	a.status, a.at, a.err = r, now, nil
	if a.gray {
		a.gray = false
		s.version.Status++
	}
}

// differences makes events of what two answers of an agent differ in.
func (s *state) differences(now time.Time, a *agentState, old, r *mcrdmav1.GetStatusResponse) {
	if !proto.Equal(old, r) {
		s.version.Status++
	}
	if !old.GetStarted().AsTime().Equal(r.GetStarted().AsTime()) {
		s.event(now, a, "agent", true, "the agent has been restarted")
	}
	control := func(r *mcrdmav1.GetStatusResponse) string { return controlText(r.GetP4Runtime()) }
	if is := control(r); is != control(old) {
		s.event(now, a, "control", is != "", "%s", cmp.Or(is, "the agent controls the switch again"))
	}
	ports := map[uint32]string{}
	for _, p := range old.GetPorts() {
		ports[p.GetPort()] = p.GetState()
	}
	for _, p := range r.GetPorts() {
		if was, seen := ports[p.GetPort()]; seen && was != p.GetState() {
			s.event(now, a, "link", p.GetState() != "up", "port %d to %s: %s, was %s%s", p.GetPort(), cmp.Or(p.GetNeighbor(), "hosts"), p.GetState(), was, because(p.GetReason()))
		}
	}
	sessions := map[string]string{}
	for _, n := range old.GetBgp() {
		sessions[n.GetSwitch()] = n.GetState()
	}
	for _, n := range r.GetBgp() {
		was, seen := sessions[n.GetSwitch()]
		if is := n.GetState(); seen && was != is && (was == established || is == established) { // not each try
			s.event(now, a, "bgp", is != established, "BGP session with %s: %s, was %s", n.GetSwitch(), is, was)
		}
	}
	for _, p := range r.AllProblems() {
		if !slices.Contains(old.AllProblems(), p) {
			s.event(now, a, "problem", true, "%s", p)
		}
	}
	for _, p := range old.AllProblems() {
		if !slices.Contains(r.AllProblems(), p) {
			s.event(now, a, "problem", false, "no more: %s", p)
		}
	}
}

const established = "Established"

// controlText says what keeps an agent from controlling its switch; empty: nothing.
func controlText(p *mcrdmav1.P4RuntimeStatus) string {
	switch {
	case !p.GetConnected():
		return "the switch is not connected" + because(p.GetError())
	case !p.GetPrimary():
		return "another agent controls the switch"
	}
	return ""
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// expire makes agents gray that have been silent for too long.
func (s *state) expire(now time.Time) {
	for _, a := range s.agents {
		if !a.gray && now.Sub(a.at) > s.stale {
			a.gray = true
			s.version.Status++
		}
	}
}

// counters takes an agent's counters of drops.
func (s *state) counters(address string, now time.Time, list []*mcrdmav1.Counter) {
	a := s.agents[address]
	next := make(map[string]drop, len(list))
	for _, c := range list {
		k := c.GetName() + " " + c.GetCell()
		d := drop{counter: c, at: now}
		if was, seen := a.drops[k]; seen {
			d.rate = perSecond(was.counter.GetPackets(), c.GetPackets(), now.Sub(was.at))
		}
		next[k] = d
	}
	a.drops = next
}

// perSecond is how much was added in each second. A counter that fell began anew.
func perSecond(before, now uint64, span time.Duration) *float64 {
	if span <= 0 {
		return nil
	}
	if now < before {
		before = 0
	}
	return new(float64(now-before) / span.Seconds())
}

// sync takes the groups of an agent as they are when it begins to be watched. What has
// changed since it was watched last becomes events.
func (s *state) sync(address string, now time.Time, list []*mcrdmav1.GroupStatus) {
	a := s.agents[address]
	there := map[string]bool{}
	for _, g := range list {
		there[idOf(g.GetGroup().GetKey())] = true
	}
	again := len(a.groups) > 0
	for k, g := range a.groups {
		if !there[k] {
			s.event(now, a, "group", false, "group %s has gone while nothing was heard of the agent", nameOf(g.status))
			delete(a.groups, k)
		}
	}
	for _, g := range list {
		k := idOf(g.GetGroup().GetKey())
		if again && a.groups[k] == nil {
			s.event(now, a, "group", false, "group %s was installed while nothing was heard of the agent", nameOf(g))
		}
		s.put(a, k, g)
	}
	a.sorted = false
	s.version.Groups++
}

// put replaces what is known of a group: what was measured of other receivers is worth nothing.
func (s *state) put(a *agentState, k string, g *mcrdmav1.GroupStatus) {
	if a.groups[k] == nil {
		if len(a.groups) >= maxGroups {
			a.lost = true
			return
		}
		a.sorted = false
	}
	a.groups[k] = &groupState{status: g}
}

// group takes an event of the groups of an agent.
func (s *state) group(address string, now time.Time, w *mcrdmav1.WatchResponse) {
	a, g := s.agents[address], w.GetGroup()
	k, name := idOf(g.GetGroup().GetKey()), nameOf(g)
	s.version.Groups++
	n := len(g.GetGroup().GetReceivers())
	switch w.GetType() {
	case mcrdmav1.WatchResponse_TYPE_INSTALLED:
		s.put(a, k, g)
		s.event(now, a, "group", false, "group %s is installed, %d receivers", name, n)
	case mcrdmav1.WatchResponse_TYPE_UPDATED:
		s.put(a, k, g)
		text, bad := "", len(g.GetProblems()) > 0
		if bad {
			text = ": " + g.GetProblems()[0]
		}
		s.event(now, a, "group", bad, "group %s has changed, %d receivers%s", name, n, text)
	case mcrdmav1.WatchResponse_TYPE_REMOVED, mcrdmav1.WatchResponse_TYPE_EXPIRED:
		delete(a.groups, k)
		a.sorted = false
		text, expired := "group %s is removed", w.GetType() == mcrdmav1.WatchResponse_TYPE_EXPIRED
		if expired {
			text += ": its lease has ended"
		}
		s.event(now, a, "group", expired, text, name)
	}
}

// measured takes a group with counters.
func (s *state) measured(address string, now time.Time, g *mcrdmav1.GroupStatus) {
	a := s.agents[address]
	x := a.groups[idOf(g.GetGroup().GetKey())]
	if x == nil {
		return // it has been removed since
	}
	if !x.measured.IsZero() {
		x.rate = perSecond(x.status.GetBytes(), g.GetBytes(), now.Sub(x.measured))
	}
	x.status, x.measured = g, now
	for _, m := range g.GetMembers() {
		if m.BehindPackets != nil && m.GetBehindPackets() == 0 {
			x.track.add(now, rocev2.PSN(m.GetAckedPsn()))
			return
		}
	}
	x.track = track{} // not told, or nothing was acknowledged since the counts began
}

// list are the keys of an agent's groups in order.
func (a *agentState) list() []string {
	if !a.sorted {
		a.sorted = true
		a.ids = slices.SortedFunc(maps.Keys(a.groups), func(x, y string) int { // of addresses and numbers, the shorter ones are less
			return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
		})
	}
	return a.ids
}

// turns are the groups that are measured next: first those that are wanted, then some of
// the others, each in its turn.
func (s *state) turns(address string, wanted map[string]bool, others int) (keys []string) {
	a := s.agents[address]
	list := a.list()
	for _, k := range list {
		if wanted[k] {
			keys = append(keys, k)
		}
	}
	for range min(others, len(list)) {
		k := list[a.turn%len(list)]
		if a.turn++; !wanted[k] {
			keys = append(keys, k)
		}
	}
	return keys
}

// daemon takes what a daemon says of its groups, or that it does not answer.
func (s *state) daemon(socket string, now time.Time, groups []*mcrdmav1.GroupInfo, err error) {
	d := s.daemons[socket]
	if d == nil {
		d = &daemonState{}
		s.daemons[socket] = d
	}
	if d.err = err; err == nil {
		d.at, d.groups = now, groups
	}
}
