package main

import (
	"encoding/json"
	"io"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// topJSON is one interval for programs. Rates are per second; null: not known, because there was no
// earlier value.
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
}

type groupJSON struct {
	Group     string         `json:"group"`
	MCID      string         `json:"mc_id"`
	Packets   *float64       `json:"packets_per_second"`
	Receivers []receiverJSON `json:"receivers"`
	Problems  []string       `json:"problems,omitempty"`
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
}

type counterJSON struct {
	Name    string   `json:"name"`
	Cell    string   `json:"cell"`
	Packets uint64   `json:"packets"`
	Rate    *float64 `json:"packets_per_second"`
}

// writeTopJSON writes the changes between two looks, one object per line.
func writeTopJSON(w io.Writer, before, now *look) error {
	v := newTopView(before, now)
	per := func(seen bool, before, now uint64) *float64 {
		if !seen {
			return nil
		}
		r := rate(before, now, v.span)
		return &r
	}
	out := topJSON{At: now.at, Interval: v.span.Seconds()}
	for _, a := range now.agents {
		x := agentJSON{Agent: a.address, Groups: []groupJSON{}, Counters: []counterJSON{}}
		if a.err != nil {
			x.Error = a.err.Error()
			out.Agents = append(out.Agents, x)
			continue
		}
		var err error
		if x.Status, err = cli.MessageJSON(a.status); err != nil {
			return err
		}
		for _, g := range a.groups {
			was, seen := v.groups[a.address+" "+keyText(g)]
			y := groupJSON{Group: keyText(g), MCID: cli.QPN(g.GetGroup().GetKey().GetMcId()), Packets: per(seen, was.GetPackets(), g.GetPackets()), Problems: g.GetProblems()}
			for i, r := range g.GetGroup().GetReceivers() {
				z := receiverJSON{Address: r.GetAddress()}
				if i < len(g.GetMembers()) {
					z = receiverOf(z, memberOf(was, r.GetAddress()), g.GetMembers()[i], per)
				}
				y.Receivers = append(y.Receivers, z)
			}
			x.Groups = append(x.Groups, y)
		}
		for _, c := range a.counters {
			was, seen := v.counters[counterKey{a.address, c.GetName(), c.GetCell()}]
			x.Counters = append(x.Counters, counterJSON{c.GetName(), c.GetCell(), c.GetPackets(), per(seen, was, c.GetPackets())})
		}
		out.Agents = append(out.Agents, x)
	}
	return json.NewEncoder(w).Encode(out)
}

func receiverOf(z receiverJSON, old, now *mcrdmav1.MemberCounters, per func(bool, uint64, uint64) *float64) receiverJSON {
	seen := old != nil
	z.Acks, z.SequenceNAKs = per(seen, old.GetAcks(), now.GetAcks()), per(seen, old.GetSequenceNaks(), now.GetSequenceNaks())
	z.RNRNAKs, z.CNPs, z.FatalNAKs = per(seen, old.GetRnrNaks(), now.GetRnrNaks()), per(seen, old.GetCnps(), now.GetCnps()), now.GetFatalNaks()
	z.AckedPSN, z.Behind = now.AckedPsn, now.BehindPackets
	return z
}
