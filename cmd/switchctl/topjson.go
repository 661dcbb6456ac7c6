package main

import (
	"encoding/json"
	"io"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// topJSON is one interval, for programs and for topLines. Rates are per second; null: not known,
// because there was no earlier value, or the group is not one of the first maxTopGroups.
type topJSON struct {
	At       time.Time   `json:"at"`
	Interval float64     `json:"interval_seconds"`
	Agents   []agentJSON `json:"agents"`
}

type agentJSON struct {
	Agent    string          `json:"agent"`
	Error    string          `json:"error,omitempty"`
	Status   json.RawMessage `json:"status,omitempty"` // a GetStatusResponse
	Groups   []groupJSON     `json:"groups"`
	Counters []counterJSON   `json:"counters"`

	status *mcrdmav1.GetStatusResponse
}

type groupJSON struct {
	Group     string         `json:"group"`
	MCID      string         `json:"mc_id"`
	Packets   *float64       `json:"packets_per_second"`
	Receivers []receiverJSON `json:"receivers"`
	Problems  []string       `json:"problems,omitempty"`

	at string // switch
}

type receiverJSON struct {
	Address      string   `json:"address"`
	Acks         *float64 `json:"acks_per_second"`
	SequenceNAKs *float64 `json:"sequence_naks_per_second"`
	RNRNAKs      *float64 `json:"rnr_naks_per_second"`
	CNPs         *float64 `json:"cnps_per_second"`
	FatalNAKs    uint64   `json:"fatal_naks"`
	AckedPSN     *uint32  `json:"acked_psn"` // null: not reported, as by bmv2, or nothing was acknowledged
	Behind       *uint32  `json:"behind_packets"`

	counted bool
}

type counterJSON struct {
	Name    string   `json:"name"`
	Cell    string   `json:"cell"`
	Packets uint64   `json:"packets"`
	Rate    *float64 `json:"packets_per_second"`
}

type counterKey struct{ agent, name, cell string }

// newTop compares two looks; before may be nil.
func newTop(before, now *look) *topJSON {
	groups, counters := map[string]*mcrdmav1.GroupStatus{}, map[counterKey]uint64{}
	var span time.Duration
	if before != nil {
		span = now.at.Sub(before.at)
		for _, a := range before.agents {
			for _, g := range a.groups {
				groups[a.address+" "+keyText(g)] = g
			}
			for _, c := range a.counters {
				counters[counterKey{a.address, c.GetName(), c.GetCell()}] = c.GetPackets()
			}
		}
	}
	per := func(seen bool, before, now uint64) *float64 {
		if !seen {
			return nil
		}
		return new(rate(before, now, span))
	}
	out := &topJSON{At: now.at, Interval: span.Seconds()}
	for _, a := range now.agents {
		x := agentJSON{Agent: a.address, Groups: []groupJSON{}, Counters: []counterJSON{}, status: a.status}
		if a.err != nil {
			x.Error = a.err.Error()
		}
		for _, g := range a.groups {
			was := groups[a.address+" "+keyText(g)]
			seen := len(was.GetMembers()) > 0 && len(g.GetMembers()) > 0 // counters were read, see maxTopGroups
			y := groupJSON{Group: keyText(g), MCID: cli.QPN(g.GetGroup().GetKey().GetMcId()), Packets: per(seen, was.GetPackets(), g.GetPackets()),
				Problems: g.GetProblems(), at: g.GetSwitch()}
			for _, r := range g.GetGroup().GetReceivers() {
				z := receiverJSON{Address: r.GetAddress()}
				if m := memberOf(g, z.Address); m != nil {
					old := memberOf(was, z.Address)
					seen := old != nil
					z = receiverJSON{z.Address, per(seen, old.GetAcks(), m.GetAcks()), per(seen, old.GetSequenceNaks(), m.GetSequenceNaks()),
						per(seen, old.GetRnrNaks(), m.GetRnrNaks()), per(seen, old.GetCnps(), m.GetCnps()), m.GetFatalNaks(), m.AckedPsn, m.BehindPackets, true}
				}
				y.Receivers = append(y.Receivers, z)
			}
			x.Groups = append(x.Groups, y)
		}
		for _, c := range a.counters {
			was, seen := counters[counterKey{a.address, c.GetName(), c.GetCell()}]
			x.Counters = append(x.Counters, counterJSON{c.GetName(), c.GetCell(), c.GetPackets(), per(seen, was, c.GetPackets())})
		}
		out.Agents = append(out.Agents, x)
	}
	return out
}

// memberOf returns a receiver's counters; nil if there are none.
func memberOf(g *mcrdmav1.GroupStatus, address string) *mcrdmav1.MemberCounters {
	for i, r := range g.GetGroup().GetReceivers() {
		if r.GetAddress() == address && i < len(g.GetMembers()) {
			return g.GetMembers()[i]
		}
	}
	return nil
}

// writeTopJSON writes the changes between two looks, one object per line.
func writeTopJSON(w io.Writer, before, now *look) error {
	out := newTop(before, now)
	for i, a := range out.Agents {
		if a.Error != "" {
			continue
		}
		var err error
		if out.Agents[i].Status, err = cli.MessageJSON(a.status); err != nil {
			return err
		}
	}
	return json.NewEncoder(w).Encode(out)
}
