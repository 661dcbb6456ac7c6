package main

import (
	"fmt"
	"io"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// A partView is a host's replica of a volume, as the host reports it, in JSON.
type partView struct {
	Volume      string  `json:"volume"`
	Host        string  `json:"host"`
	State       string  `json:"state,omitempty"` // of the host: active means the primary that serves
	Epoch       uint64  `json:"epoch"`
	Served      bool    `json:"served"`
	Head        uint64  `json:"head"`    // entries in its log
	Durable     uint64  `json:"durable"` // at all acting hosts
	Stored      uint64  `json:"stored"`
	Backfilling bool    `json:"backfilling"`
	Copied      uint64  `json:"copied_bytes"`
	Oldest      float64 `json:"oldest_request_seconds"` // age of the oldest unanswered request of the host's clients
	Waits       string  `json:"waits,omitempty"`        // why requests wait, if the host knows
	Error       string  `json:"error,omitempty"`        // why the copy has stopped, or the host reports nothing
}

// parts returns all hosts' replicas of all volumes.
func parts(s *osdmap.State, hosts map[core.ID]told) []partView {
	list := []partView{}
	for _, v := range s.Volumes {
		for _, id := range v.Volume.Hosts {
			p := partView{Volume: v.Volume.Name, Host: s.HostName(id), Error: "it has no copy yet"}
			if err := hosts[id].err; err != nil {
				p.Error = cli.Clean(err.Error())
			}
			if x := ofVolume(hosts[id].GetBroken(), v.Volume.ID); x != nil {
				p.Error = cli.Clean(x.GetError())
			}
			if x := ofVolume(hosts[id].GetVolumes(), v.Volume.ID); x != nil {
				p.State, p.Epoch, p.Served, p.Head, p.Durable, p.Stored = x.GetState(), x.GetEpoch(), x.GetLeased(), x.GetHead(), x.GetDurable(), x.GetStored()
				p.Backfilling, p.Copied, p.Error = x.GetBackfilling(), x.GetCopiedBytes(), cli.Clean(x.GetFailure())
				p.Oldest, p.Waits = x.GetOldestRequest().AsDuration().Seconds(), cli.Clean(x.GetWaits())
			}
			list = append(list, p)
		}
	}
	return list
}

func writeParts(w io.Writer, out *cli.Output, list []partView) error {
	if len(list) == 0 {
		return nil
	}
	var rows [][]any
	for _, p := range list {
		note := p.Error
		if p.Backfilling && p.Error == "" {
			note = fmt.Sprintf("%d bytes copied", p.Copied)
		}
		if p.Waits != "" {
			note = p.Waits
		}
		rows = append(rows, []any{p.Volume, p.Host, p.State, p.Epoch, p.Head, p.Durable, fmt.Sprintf("%.3f s", p.Oldest), note})
	}
	fmt.Fprintln(w)
	return out.Table(w, []string{"volume", "host", "state", "epoch", "entries", "durable", "oldest request", "note"}, rows)
}
