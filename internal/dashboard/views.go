package dashboard

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	maxRows       = 200 // of groups in one answer
	maxSuspicions = 200
)

// message is a message as the commands' JSON has it.
func message(m proto.Message) json.RawMessage {
	b, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil { // a text that is not UTF-8, which gRPC does not let through
		b, _ = json.Marshal(err.Error())
	}
	return b
}

// A notice is what an open page is told at each look: how old everything is, and which
// parts have changed.
type notice struct {
	Now      time.Time   `json:"now"`
	Stale    int64       `json:"stale_ms"`
	Versions versions    `json:"versions"`
	Agents   []agentView `json:"agents"`
}

// An agentView is an agent's answer as "switchctl status -o json" has it, with its age. If the
// agent does not answer, it is the last one, and there is an error beside it.
type agentView struct {
	Agent  string          `json:"agent"`
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"`
	Switch string          `json:"switch"`
	At     *time.Time      `json:"at"` // of the answer; null: there was none
	Gray   bool            `json:"gray"`
}

func (s *state) notice(now time.Time) notice {
	return notice{now, s.stale.Milliseconds(), s.version, s.agentViews(false)}
}

func (s *state) agentViews(answers bool) []agentView {
	out := make([]agentView, 0, len(s.order))
	for _, address := range s.order {
		a := s.agents[address]
		v := agentView{Agent: a.address, Switch: a.name, Gray: a.gray, At: known(a.at)}
		if a.err != nil {
			v.Error = a.err.Error()
		}
		if answers && a.status != nil {
			v.Answer = message(a.status)
		}
		out = append(out, v)
	}
	return out
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func sinceOf(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.AsTime())
}

// A groupView is a row of the list of groups.
type groupView struct {
	Agent    string          `json:"agent"`
	Name     string          `json:"name"` // as the commands write it
	ID       string          `json:"id"`   // SOURCE/0xMC_ID
	Gray     bool            `json:"gray"` // its agent is silent
	Group    json.RawMessage `json:"group"`
	Measured *time.Time      `json:"measured"` // when its counters were read; null: never
	Rate     *float64        `json:"bytes_per_second"`
}

type groupsView struct {
	At    *time.Time  `json:"at"` // of the agent that was heard of least recently
	Total int         `json:"total"`
	All   int         `json:"all"` // without the filter
	Lost  bool        `json:"lost"`
	Rows  []groupView `json:"rows"`
}

// groups are some of the groups whose key, switch or receivers have find in them, or only
// those with problems.
func (s *state) groups(from, count int, find string, bad bool) groupsView {
	out := groupsView{Rows: []groupView{}, At: s.oldest()}
	for _, address := range s.order {
		a := s.agents[address]
		out.All += len(a.groups)
		out.Lost = out.Lost || a.lost
		for _, k := range a.list() {
			g := a.groups[k]
			if bad && len(g.status.GetProblems()) == 0 || !matches(g.status, k, find) {
				continue
			}
			if out.Total >= from && len(out.Rows) < min(count, maxRows) {
				out.Rows = append(out.Rows, groupView{a.address, nameOf(g.status), k, a.gray, message(g.status), known(g.measured), g.rate})
			}
			out.Total++
		}
	}
	return out
}

func matches(g *mcrdmav1.GroupStatus, id, find string) bool {
	return strings.Contains(id, find) || strings.Contains(nameOf(g), find) || strings.Contains(g.GetSwitch(), find) ||
		slices.ContainsFunc(g.GetGroup().GetReceivers(), func(r *mcrdmav1.Receiver) bool { return strings.Contains(r.GetAddress(), find) })
}

// oldest is when the agent answered that was heard of least recently; nil: one never did.
func (s *state) oldest() *time.Time {
	var first *time.Time
	for _, a := range s.agents {
		if a.at.IsZero() {
			return nil
		}
		if first == nil || a.at.Before(*first) {
			first = known(a.at)
		}
	}
	return first
}

// A lagView is how far a receiver is behind the first of its group.
type lagView struct {
	Address string   `json:"address"`
	PSN     *uint32  `json:"acked_psn"` // null: not told
	Packets *uint32  `json:"behind_packets"`
	Millis  *float64 `json:"behind_ms"`
	More    bool     `json:"or_more"` // it was behind before the looks began
	Daemon  string   `json:"daemon"`  // what a daemon says of it; empty: nothing
}

// lag is that of a group's receivers, as of its last measurement.
func (s *state) lag(id string) (out []lagView, measured time.Time, g *mcrdmav1.GroupStatus) {
	a, x := s.group1(id)
	if a == nil {
		return nil, measured, nil
	}
	for i, r := range x.status.GetGroup().GetReceivers() {
		v := lagView{Address: r.GetAddress(), Daemon: s.daemonSays(id, r.GetAddress())}
		if i < len(x.status.GetMembers()) {
			m := x.status.GetMembers()[i]
			v.PSN, v.Packets = m.AckedPsn, m.BehindPackets
			if m.AckedPsn != nil {
				d, more := x.track.behind(x.measured, rocev2.PSN(m.GetAckedPsn()))
				v.Millis, v.More = new(float64(d.Microseconds())/1000), more
			}
		}
		out = append(out, v)
	}
	return out, x.measured, x.status
}

// group1 is a group, and its agent; nil if no agent has it.
func (s *state) group1(id string) (*agentState, *groupState) {
	for _, address := range s.order {
		if g := s.agents[address].groups[id]; g != nil {
			return s.agents[address], g
		}
	}
	return nil, nil
}

// find is the MC_ID of a group. If no group has its number, the number may be an MC_ID.
func (s *state) find(key grouptree.Key) (id uint32) {
	if key.ID != 0 {
		return key.ID
	}
	for _, a := range s.agents {
		for _, g := range a.groups {
			if k := g.status.GetGroup().GetKey(); k.GetNumber() == key.Number && k.GetSource() == key.Source.String() {
				id = max(id, k.GetMcId())
			}
		}
	}
	if id == 0 && key.Number <= rocev2.Mask24 {
		id = uint32(key.Number)
	}
	return id
}

// daemonSays is what the sender's daemon knows of a receiver.
func (s *state) daemonSays(id, address string) string {
	for _, d := range s.daemons {
		for _, g := range d.groups {
			f := g.GetFormation()
			if id != idOf(&mcrdmav1.GroupKey{Source: f.GetGroup().GetSource(), McId: f.GetMcId()}) {
				continue
			}
			for _, m := range g.GetStates() {
				if m.GetAddress() == address {
					return m.GetState() + because(m.GetReason())
				}
			}
		}
	}
	return ""
}

// A linkView is what a group has put on one link, and what unicast would have.
type linkView struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Ports   []uint32 `json:"ports"`
	Bytes   uint64   `json:"bytes"`
	Unicast uint64   `json:"unicast_bytes"`
}

// linksOf computes a group's links from its tree: each carries the sender's bytes once, and
// by unicast once for each receiver behind it.
func linksOf(t *grouptree.Tree, g *mcrdmav1.GroupStatus) (out []linkView) {
	bytes := g.GetBytes()
	add := func(from, to string, ports []uint32, receivers int) {
		out = append(out, linkView{from, to, ports, bytes, bytes * uint64(receivers)}) //nolint:gosec // a length
	}
	for _, r := range t.Roots {
		add(t.Key.Source.String(), r.Switch, nil, len(g.GetGroup().GetReceivers()))
	}
	for _, n := range t.Nodes {
		for _, e := range n.Edges {
			to := e.Receiver
			if to == "" {
				var names []string
				for _, x := range e.To {
					names = append(names, x.Switch)
				}
				to = strings.Join(names, " or ")
			}
			add(n.Switch, to, e.Ports, max(1, len(e.Receivers)))
		}
	}
	return out
}

// A verdict is why a switch did not pass a packet on.
type verdict struct {
	Switch  string    `json:"switch"`
	Counter string    `json:"counter"`
	Cell    string    `json:"cell"`
	Meaning string    `json:"meaning"`
	Usual   bool      `json:"usual"` // it is how merging works
	Packets uint64    `json:"packets"`
	Rate    *float64  `json:"packets_per_second"`
	At      time.Time `json:"at"`
	Gray    bool      `json:"gray"`
}

// A sum is what senders have put on their links, of those groups that were measured.
type sum struct {
	Groups   int        `json:"groups"`
	Measured int        `json:"measured"`
	Oldest   *time.Time `json:"oldest"` // measurement
	Bytes    uint64     `json:"bytes"`
	Unicast  uint64     `json:"unicast_bytes"`
	Rate     float64    `json:"bytes_per_second"`
	UniRate  float64    `json:"unicast_bytes_per_second"`
	Round    int64      `json:"round_ms"` // until each group has been measured in its turn, at most
}

type trafficView struct {
	Verdicts []verdict `json:"verdicts"`
	Senders  sum       `json:"senders"`
}

// traffic are verdicts that have occurred, the most frequent now first, and the senders' sum.
func (s *state) traffic(o Options) trafficView {
	out := trafficView{Verdicts: []verdict{}}
	for _, a := range s.agents {
		round := time.Duration(len(a.groups)/measureOthers+1)*2*o.Interval + s.stale
		out.Senders.Round = max(out.Senders.Round, round.Milliseconds())
		for _, d := range a.drops {
			if c := d.counter; c.GetPackets() > 0 {
				text, usual := o.Meaning(c.GetCell())
				out.Verdicts = append(out.Verdicts, verdict{a.name, c.GetName(), c.GetCell(), text, usual, c.GetPackets(), d.rate, d.at, a.gray})
			}
		}
		for _, g := range a.groups {
			t := &out.Senders
			if t.Groups++; g.measured.IsZero() {
				continue
			}
			n := len(g.status.GetGroup().GetReceivers())
			t.Measured++
			t.Bytes += g.status.GetBytes()
			t.Unicast += g.status.GetBytes() * uint64(n) //nolint:gosec // a length
			if g.rate != nil && !a.gray {
				t.Rate += *g.rate
				t.UniRate += *g.rate * float64(n)
			}
			if t.Oldest == nil || g.measured.Before(*t.Oldest) {
				t.Oldest = known(g.measured)
			}
		}
	}
	rate := func(v verdict) float64 {
		if v.Rate == nil {
			return 0
		}
		return *v.Rate
	}
	slices.SortFunc(out.Verdicts, func(a, b verdict) int {
		return cmp.Or(cmp.Compare(rate(b), rate(a)), cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Switch, b.Switch), cmp.Compare(a.Cell, b.Cell))
	})
	return out
}

// A suspicion is something that may be broken, who says so, and why.
type suspicion struct {
	By    string     `json:"by"`
	What  string     `json:"what"`
	Why   string     `json:"why"`
	Since *time.Time `json:"since"`
	At    *time.Time `json:"at"` // when it was said
	Gray  bool       `json:"gray"`
}

type suspicionsView struct {
	More int         `json:"more"` // beyond those in the list
	List []suspicion `json:"list"`
}

func (s *state) suspicions(now time.Time) suspicionsView {
	out := suspicionsView{List: []suspicion{}}
	add := func(x suspicion) {
		if len(out.List) >= maxSuspicions {
			out.More++
			return
		}
		out.List = append(out.List, x)
	}
	for _, address := range s.order {
		a := s.agents[address]
		at := known(a.at)
		if a.err != nil {
			add(suspicion{"dashboard", "agent of " + a.name, a.err.Error(), at, known(now), false}) // of which the dashboard knows now
		}
		say := func(since *time.Time, what, why string) { add(suspicion{a.name, what, why, since, at, a.gray}) }
		if a.status != nil {
			if why := controlText(a.status.GetP4Runtime()); why != "" {
				say(nil, "switch "+a.name, why)
			}
		}
		for _, p := range a.status.GetPorts() {
			if p.GetState() != "up" && p.GetState() != "-" {
				say(sinceOf(p.GetSince()), fmt.Sprintf("link at port %d to %s", p.GetPort(), p.GetNeighbor()), p.GetState()+because(p.GetReason()))
			}
		}
		for _, n := range a.status.GetBgp() {
			if n.GetState() != established {
				say(nil, "BGP neighbor "+n.GetSwitch(), n.GetState())
			}
		}
		for _, p := range a.status.GetPeers() {
			if p.GetError() != "" {
				say(nil, "agent of "+p.GetName(), p.GetError())
			}
		}
		for _, p := range a.status.AllProblems() {
			say(nil, "switch "+a.name, p)
		}
		for _, k := range a.list() {
			g := a.groups[k]
			for _, p := range g.status.GetProblems() {
				say(nil, "group "+nameOf(g.status), p)
			}
			for i, m := range g.status.GetMembers() {
				if m.GetFatalNaks() > 0 {
					say(nil, fmt.Sprintf("receiver %s of group %s", g.status.GetGroup().GetReceivers()[i].GetAddress(), nameOf(g.status)),
						fmt.Sprintf("it has refused an operation (fatal NAKs: %d)", m.GetFatalNaks()))
				}
			}
		}
	}
	for _, socket := range slices.Sorted(maps.Keys(s.daemons)) {
		d := s.daemons[socket]
		if d.err != nil {
			add(suspicion{"dashboard", "daemon at " + socket, d.err.Error(), known(d.at), known(now), false})
		}
		for _, g := range d.groups {
			for _, m := range g.GetStates() {
				if m.GetState() != "ok" {
					add(suspicion{"daemon at " + socket, fmt.Sprintf("receiver %s of group %s/%d", cmp.Or(m.GetHost(), m.GetAddress()),
						g.GetFormation().GetGroup().GetSource(), g.GetFormation().GetGroup().GetNumber()), m.GetState() + because(m.GetReason()), sinceOf(m.GetSince()), known(d.at), d.err != nil})
				}
			}
		}
	}
	return out
}

// since are the events after one, by its number.
func (s *state) since(id uint64) []Event {
	i, _ := slices.BinarySearchFunc(s.events, id+1, func(e Event, id uint64) int { return cmp.Compare(e.ID, id) })
	return append([]Event{}, s.events[i:]...)
}
