package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/plot"
)

// A collResult is the result of an operation of one size.
type collResult struct {
	Operation string   `json:"operation"`
	By        string   `json:"by"`    // this library, or an MPI implementation with its algorithm
	Size      int      `json:"size"`  // 0: barrier
	Count     int      `json:"count"` // elements
	Type      string   `json:"type"`
	RedOp     string   `json:"redop"`
	Root      int      `json:"root"`
	Time      float64  `json:"time_usec"`
	AlgBW     float64  `json:"algbw_GBps"`
	BusBW     float64  `json:"busbw_GBps"`
	Wrong     int      `json:"wrong"`
	Uplink    *float64 `json:"uplink,omitempty"` // bytes that a host has sent per byte of the size
	ByMPI     float64  `json:"by_mpi,omitempty"` // time of the fastest rival divided by ours; 0: there is none
}

func (b *collBench) text(w io.Writer, out *cli.Output) error {
	header := []string{"operation", "by", "size(B)", "count", "type", "redop", "root", "time(us)", "algbw(GB/s)", "busbw(GB/s)", "#wrong"}
	uplink := slices.ContainsFunc(b.results, func(r collResult) bool { return r.Uplink != nil })
	if uplink {
		header = append(header, "uplink")
	}
	if len(b.rivals) > 0 {
		header = append(header, "x mpi")
	}
	var rows [][]any
	for _, r := range b.results {
		row := []any{r.Operation, r.By, r.Size, r.Count, r.Type, r.RedOp, r.Root, number(r.Time), fmt.Sprintf("%.4f", r.AlgBW), fmt.Sprintf("%.4f", r.BusBW), r.Wrong}
		if uplink {
			text := ""
			if r.Uplink != nil {
				text = fmt.Sprintf("%.3f", *r.Uplink)
			}
			row = append(row, text)
		}
		if len(b.rivals) > 0 {
			text := ""
			if r.ByMPI > 0 {
				text = fmt.Sprintf("%.2f", r.ByMPI)
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return out.Table(w, header, rows)
}

// plot plots the time of each operation by size. A barrier is plotted only if there is nothing
// else.
func (b *collBench) plot(file string) error {
	names, of := b.curves()
	var panels []plot.Panel
	for _, op := range b.operations {
		p := plot.Panel{Title: op.name + ": time[usec]", Label: "bytes", Absolute: true}
		for _, r := range b.results {
			for i, name := range names {
				if r.Operation == op.name {
					p.Set(name, sizeText(r.Size), b.fastest(op.name, r.Size, of[i]))
				}
			}
		}
		panels = append(panels, p)
	}
	conditions := fmt.Sprintf("%d ranks; %d operations, %d rounds", len(b.Hosts), b.f.count, b.f.rounds)
	if b.f.lab {
		conditions += "; lab on loopback, " + rateText(b.rate)
	}
	return plot.Write(file, "mcbench coll", conditions, panels)
}
