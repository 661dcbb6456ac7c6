package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// A report is the JSON.
type report struct {
	Info    info     `json:"test_info"`
	Results []result `json:"results"`
}

// An info says what was measured.
type info struct {
	Test      string   `json:"test"`
	Version   string   `json:"version"`
	Host      string   `json:"host"`
	Address   string   `json:"address"`
	Receivers []string `json:"receivers"`
	Service   string   `json:"service"`
	Ways      []string `json:"ways"`
	Rounds    int      `json:"rounds"`
	WarmUp    int      `json:"warm_up"`
	Check     bool     `json:"check"`
	Lab       bool     `json:"lab"`
	Rate      uint64   `json:"rate_bps,omitempty"` // of a lab's hosts
}

func newReport(k kind, o *options, c *mcrdma.Client) *report {
	i := info{Test: k.name, Version: cli.Version(), Host: c.Host(), Address: c.Address(), Receivers: o.receivers, Service: o.service,
		Rounds: o.rounds, WarmUp: o.warmUp, Check: o.check, Lab: o.lab, Rate: o.rate}
	for _, w := range o.ways {
		i.Ways = append(i.Ways, w.name)
	}
	return &report{Info: i, Results: []result{}}
}

var line = strings.Repeat("-", 103)

// head writes the lines before the results.
func (r *report) head(w io.Writer, title string) {
	i := r.Info
	fmt.Fprintf(w, "%s\n%*s\n", line, (len(line)+len(title))/2, title)
	x := r.Results[0]
	var words string
	if y, err := wayOf(x.Way); err == nil {
		words = " (" + y.words + ")"
	}
	if len(i.Ways) > 1 {
		words = ""
	}
	fmt.Fprintf(w, " Way             : %s%s\n", strings.Join(i.Ways, ", "), words)
	fmt.Fprintf(w, " Sender          : %s (%s)\n Receivers       : %s\n", i.Host, i.Address, strings.Join(i.Receivers, ", "))
	if x.Transport != "" {
		fmt.Fprintf(w, " Relaying        : %s over %s\n", x.Algorithm, x.Transport)
	}
	if i.Lab {
		fmt.Fprintf(w, " Lab             : on loopback, %s\n", rateText(i.Rate))
	}
	if i.Check {
		fmt.Fprintf(w, " Content         : every write was verified by every receiver\n")
	}
}

func rateText(bps uint64) string {
	if bps == 0 {
		return "links without a rate"
	}
	return fmt.Sprintf("hosts send at %g Mb/s at most", float64(bps)/1e6)
}

// sections writes each depth and loss under its own line.
func (r *report) sections(w io.Writer, header string, row func(x *result)) {
	depth, loss := -1, -1.0
	for i := range r.Results {
		x := &r.Results[i]
		if x.Depth != depth || x.Loss != loss {
			depth, loss = x.Depth, x.Loss
			fmt.Fprintf(w, " TX depth        : %d\n", depth)
			if loss > 0 {
				fmt.Fprintf(w, " Loss            : %s of the packets between the racks\n", shareText(loss))
			}
			fmt.Fprintf(w, "%s\n%s\n", line, header)
		}
		row(x)
	}
	fmt.Fprintln(w, line)
}

func latencyText(out io.Writer, _ *cli.Output, r *report) error {
	w := bufio.NewWriter(out)
	r.head(w, "Multicast Write Latency Test")
	r.sections(w, " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]   CPU[usec/op]",
		func(x *result) {
			fmt.Fprintf(w, " %-7d %-10d     %-11.2f    %-11.2f  %-15.2f    %-11.2f    %-13.2f   %-20.2f   %-22.2f   %.2f\n",
				x.MsgSize, x.Iterations, x.Min, x.Max, x.Typical, x.Avg, x.Stdev, x.P99, x.P999, x.CPU)
		})
	return w.Flush()
}

func bandwidthText(out io.Writer, _ *cli.Output, r *report) error {
	w := bufio.NewWriter(out)
	r.head(w, "Multicast Write Bandwidth Test")
	r.sections(w, " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]   CPU[usec/op]",
		func(x *result) {
			fmt.Fprintf(w, " %-10d %-14d %-18.4f %-20.4f %-15.6f %.2f\n", x.MsgSize, x.Iterations, x.BWPeak, x.BWAverage, x.MsgRate, x.CPU)
		})
	return w.Flush()
}

func compareText(w io.Writer, out *cli.Output, r *report) error {
	r.head(w, "Comparison of Ways")
	fmt.Fprintf(w, " Ratios          : to %s, medians of %s\n%s\n", r.Info.Ways[0], cli.Plural(r.Info.Rounds, "round"), line)
	header := []string{"#bytes", "depth"}
	var lossy bool
	for _, x := range r.Results {
		lossy = lossy || x.Loss > 0
	}
	if lossy {
		header = append(header, "loss")
	}
	header = append(header, "way", "#iterations", "t_avg[usec]", "99%[usec]", "BW average[Gb/sec]", "MsgRate[Mpps]", "CPU[usec/op]", "posts/op")
	if r.Info.Lab {
		header = append(header, "uplink")
	}
	header = append(header, "latency x", "bandwidth x", "CPU x")
	var rows [][]any
	for _, x := range r.Results {
		row := []any{x.MsgSize, x.Depth}
		if lossy {
			row = append(row, shareText(x.Loss))
		}
		row = append(row, x.Way, x.Iterations, number(x.Avg), number(x.P99), fmt.Sprintf("%.4f", x.BWAverage), fmt.Sprintf("%.6f", x.MsgRate), number(x.CPU), fmt.Sprintf("%.2f", x.Posts))
		if r.Info.Lab {
			row = append(row, fmt.Sprintf("%.2f", x.Uplink))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.2f", x.LatencyRatio), fmt.Sprintf("%.2f", x.BandwidthRatio), fmt.Sprintf("%.2f", x.CPURatio)))
	}
	return out.Table(w, header, rows)
}

func number(v float64) string { return fmt.Sprintf("%.1f", v) }
