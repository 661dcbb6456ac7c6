package grouptree

import (
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
)

// MarshalJSON gives the tree as "group show --output json" documents it: nodes by their
// place in the list, which roots and copies refer to.
func (t *Tree) MarshalJSON() ([]byte, error) {
	type edge struct {
		Destination string   `json:"destination"`
		Ports       []uint32 `json:"ports,omitempty"`
		Unicast     bool     `json:"unicast,omitempty"`
		Receiver    string   `json:"receiver,omitempty"`
		QPN         uint32   `json:"qpn,omitempty"`
		To          []int    `json:"to,omitempty"`
	}
	type node struct {
		Switch      string   `json:"switch"`
		Agent       string   `json:"agent,omitempty"`
		Destination string   `json:"destination"`
		Root        bool     `json:"root,omitempty"`
		Answered    bool     `json:"answered"`
		Generation  uint64   `json:"generation,omitempty"`
		Holders     []string `json:"holders,omitempty"`
		Copies      []edge   `json:"copies,omitempty"`
		Problems    []string `json:"problems,omitempty"`
		Recomputes  string   `json:"recomputes,omitempty"` // why the ICRC of copies is recomputed
	}
	number := map[*Node]int{}
	for i, n := range t.Nodes {
		number[n] = i
	}
	out := struct {
		Source   string          `json:"source"`
		Number   uint64          `json:"number,omitempty"`
		MCID     uint32          `json:"mc_id"`
		OK       bool            `json:"ok"`
		Group    json.RawMessage `json:"group,omitempty"`
		Roots    []int           `json:"roots"`
		Nodes    []node          `json:"nodes"`
		Problems []string        `json:"problems,omitempty"`
	}{Source: t.Key.Source.String(), Number: t.Key.Number, MCID: t.Key.ID, OK: t.OK(), Problems: t.Problems}
	if t.Group != nil {
		group, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(t.Group)
		if err != nil {
			return nil, err
		}
		out.Group = group
	}
	for _, r := range t.Roots {
		out.Roots = append(out.Roots, number[r])
	}
	for _, n := range t.Nodes {
		one := node{
			Switch: n.Switch, Agent: n.Agent, Destination: n.Destination, Root: n.Step.GetRoot(), Answered: n.Asked,
			Generation: n.Step.GetGeneration(), Holders: n.Step.GetHolders(), Problems: n.Problems, Recomputes: n.Step.GetRecomputes(),
		}
		for _, e := range n.Edges {
			x := edge{Destination: e.Destination, Ports: e.Ports, Unicast: e.Unicast, Receiver: e.Receiver, QPN: e.QPN}
			for _, to := range e.To {
				x.To = append(x.To, number[to])
			}
			one.Copies = append(one.Copies, x)
		}
		out.Nodes = append(out.Nodes, one)
	}
	return json.Marshal(out)
}
