package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/plot"
	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/internal/simnet/replicate"
	"github.com/mcrdma/mcrdma/internal/simnet/workload"
)

// runFlags are the command line of run.
type runFlags struct {
	fabricFlags
	workload, plot, block             string
	schemes, clients, storage, loads  []string
	reads                             float64
	replicas, groups, requests, seeds int
	quiet                             bool
	seed                              uint64
}

func (f *runFlags) add(cmd *cobra.Command) {
	var schemes []string
	for _, s := range replicate.Schemes {
		schemes = append(schemes, string(s))
	}
	sizes := f.known()
	fs := cmd.Flags()
	fs.SortFlags = false
	f.addTopology(cmd)
	fs.StringVarP(&f.workload, "workload", "w", "alistorage", "sizes of messages: "+strings.Join(sizes, ", ")+", a number of bytes such as 64K, or a `file` with lines of bytes and cumulative percent (sizes in between are interpolated)")
	fs.StringSliceVar(&f.loads, "load", []string{"0.3"}, "`share` of --rate that each client reads and writes, or several separated by commas")
	fs.StringSliceVar(&f.schemes, "schemes", []string{"multicast", "fanout", "chain"}, "`ways` to replicate, separated by commas: "+cli.Enumeration(schemes))
	fs.IntVar(&f.replicas, "replicas", 3, "`copies` of each message, the primary's included")
	fs.IntVar(&f.groups, "groups", 4, "number of `groups` with each storage host as the primary")
	fs.Float64Var(&f.reads, "reads", 0.5, "`share` of requests that are reads")
	fs.IntVarP(&f.requests, "requests", "n", 20_000, "`requests`; the first tenth is not measured")
	fs.StringSliceVar(&f.clients, "clients", nil, "`hosts` that send requests; default: all")
	fs.StringSliceVar(&f.storage, "storage", nil, "`hosts` that store; default: all")
	f.fabricFlags.add(cmd)
	fs.StringVar(&f.block, "block", "1M", "`bytes` of a block, for blocks and rdmc")
	addSeeds(fs, &f.seed, &f.seeds)
	fs.StringVar(&f.plot, "plot", "", "plot latencies by load to an SVG `file`")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "do not show progress")
	cli.CompleteFile(cmd, "plot", "svg")
	cli.CompleteList(cmd, "schemes", func() []string { return schemes })
	cli.CompleteFlag(cmd, "workload", func() []string { return sizes })
}

// An outcome is the result of one way at one load.
type outcome struct {
	Scheme replicate.Scheme `json:"scheme"`
	Load   float64          `json:"load"`
	Seed   uint64           `json:"seed"`
	*workload.Result
}

// A runReport is the result.
type runReport struct {
	Topology string    `json:"topology"`
	Workload string    `json:"workload"`
	Mean     float64   `json:"mean_bytes"`
	Replicas int       `json:"replicas"`
	Seed     uint64    `json:"seed"`
	Seeds    int       `json:"seeds"`
	Results  []outcome `json:"results"`
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use: "run --topology FILE [flags]", Short: "Simulate replicated storage in a fabric",
		Long: `Simulates clients of replicated storage in the fabric of a topology file, once for each
way to replicate. Shows the percentiles of request times, and the traffic on links.
Requests arrive at random times at random clients, the same for each way. A write goes
to the primary of a group, which replicates it and then answers; a read goes to another
host of the group.

The JSON has topology, workload, mean_bytes, replicas, seed and seeds; and results, for
each way, load and seed, with the times of writes and reads, the load of links, and
counts of packets.`,
		Example: `  mcsim run -t fabric.yaml -w websearch --load 0.2,0.4,0.6 --plot load.svg
  mcsim run -t fabric.yaml -w 64K --clients h1,h2 --storage h3,h4,h5 --schemes multicast,rdmc --json`,
		Args: cli.NoArgs,
	}
	f.add(cmd)
	out := cli.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, jobs, err := f.jobs()
		if err != nil {
			return err
		}
		if err := perform(cmd.Context(), cmd, f.quiet, jobs); err != nil {
			return err
		}
		if out.IsJSON() {
			err = out.JSON(cmd.OutOrStdout(), r)
		} else {
			err = r.text(cmd, out)
		}
		if err == nil && f.plot != "" {
			err = r.draw(f.plot)
		}
		return err
	}
	return cmd
}

// jobs reads the flags and returns the simulations. Errors are usage errors.
func (f *runFlags) jobs() (*runReport, []job, error) {
	if err := checkSeeds(f.seeds); err != nil {
		return nil, nil, err
	}
	fab, err := f.read()
	if err != nil {
		return nil, nil, err
	}
	sizes, err := f.sizes()
	if err != nil {
		return nil, nil, cli.Usage(err)
	}
	block, err := sizeOf("block", f.block)
	if err != nil {
		return nil, nil, err
	}
	sim, err := fab.simulation(f.seed) // reports errors at once
	if err != nil {
		return nil, nil, cli.Usage(err)
	}
	clients, err := hostsOf(sim, f.clients)
	if err != nil {
		return nil, nil, cli.Usagef("--clients: %w", err)
	}
	storage, err := hostsOf(sim, f.storage)
	if err != nil {
		return nil, nil, cli.Usagef("--storage: %w", err)
	}
	r := &runReport{Topology: f.topology, Workload: sizes.Name, Mean: sizes.Mean(), Replicas: f.replicas, Seed: f.seed, Seeds: f.seeds}
	if len(f.loads) == 0 || len(f.schemes) == 0 {
		return nil, nil, cli.Usagef("--load, --schemes: want one or more of each")
	}
	var configs []workload.Config
	for _, text := range f.loads {
		load, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, nil, cli.Usagef("--load %q: want shares such as 0.3,0.5", text)
		}
		for _, s := range f.schemes {
			c := workload.Config{Scheme: replicate.Scheme(s), Block: block, Replicas: f.replicas, Groups: f.groups, Sizes: sizes, Load: load, ReadShare: f.reads,
				Requests: f.requests, Clients: clients, Storage: storage}
			err := c.Check()
			if err == nil {
				err = c.CheckFabric(sim)
			}
			if err != nil {
				return nil, nil, cli.Usage(err)
			}
			configs = append(configs, c)
		}
	}
	r.Results = make([]outcome, len(configs)*f.seeds)
	jobs := make([]job, len(r.Results))
	for i := range r.Results {
		o, c := &r.Results[i], configs[i/f.seeds]
		o.Scheme, o.Load, o.Seed = c.Scheme, c.Load, f.seed+uint64(i%f.seeds) //nolint:gosec // an index
		jobs[i] = job{name: fmt.Sprintf("%s, load %g, seed %d", c.Scheme, c.Load, o.Seed), weight: 1, run: func() error {
			s, err := fab.simulation(o.Seed)
			if err != nil {
				return err
			}
			o.Result, err = workload.Run(s, c)
			return err
		}}
	}
	return r, jobs, plot.Writable(f.plot)
}

// known returns the names of built-in workloads.
func (*runFlags) known() (names []string) {
	for _, s := range workload.Known() {
		names = append(names, s.Name)
	}
	return names
}

// sizes returns the workload's sizes.
func (f *runFlags) sizes() (workload.Sizes, error) {
	for _, s := range workload.Known() {
		if s.Name == f.workload {
			return s, nil
		}
	}
	if n, err := cmdline.ParseSize(f.workload); err == nil {
		if n < 1 || n > 1<<30 {
			return workload.Sizes{}, fmt.Errorf("--workload %s: want 1 to 1G bytes", f.workload)
		}
		return workload.Fixed(n), nil
	}
	file, err := os.Open(f.workload)
	if err != nil {
		return workload.Sizes{}, fmt.Errorf("--workload: it is not one of %s, no number of bytes such as 64K, and no file: %w", strings.Join(f.known(), ", "), err)
	}
	defer func() { _ = file.Close() }() // it was only read
	return workload.ParseSizes(file, f.workload)
}

func (r *runReport) text(cmd *cobra.Command, out *cli.Output) error {
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s, %s (%.0f bytes on average), %d replicas, %s\n\n", r.Topology, r.Workload, r.Mean, r.Replicas, seedsText(r.Seed, r.Seeds))
	var rows [][]any
	for k := 0; k < len(r.Results); k += r.Seeds {
		list := r.Results[k:][:r.Seeds]
		for i, what := range []string{"read", "write"} {
			l, low, high := means(list, i)
			if l.Count == 0 {
				continue
			}
			mean := number(l.Mean)
			if r.Seeds > 1 {
				mean += fmt.Sprintf(" (%s to %s)", number(low), number(high))
			}
			rows = append(rows, []any{fmt.Sprintf("%g", list[0].Load), string(list[0].Scheme), what, l.Count, mean, number(l.P50), number(l.P90), number(l.P99), number(l.P999), number(l.Max)})
		}
	}
	if err := out.Table(w, []string{"load", "way", "request", "count", "mean[usec]", "50%[usec]", "90%[usec]", "99%[usec]", "99.9%[usec]", "max[usec]"}, rows); err != nil {
		return err
	}
	rows = nil
	for i := 0; i < len(r.Results); i += r.Seeds { // of the first seed
		o := &r.Results[i]
		var all uint64
		for _, l := range o.Links {
			all += l.Bytes
		}
		busiest := o.Links[0]
		rows = append(rows, []any{fmt.Sprintf("%g", o.Load), string(o.Scheme), fmt.Sprintf("%.1f", float64(all)/(1<<20)), busiest.From + " → " + busiest.To,
			fmt.Sprintf("%.0f %%", 100*busiest.Load), number(busiest.Wait), o.Counts.Marked, o.Counts.Pauses, o.Counts.Dropped})
	}
	fmt.Fprintln(w)
	return out.Table(w, []string{"load", "way", "all links[MiB]", "busiest link", "its load", "its wait[usec]", "marked", "pauses", "dropped"}, rows)
}

// means returns the means over several seeds, for reads (0) or writes (1). low and high are the
// smallest and the largest mean latency.
func means(list []outcome, what int) (m workload.Latency, low, high float64) {
	n := float64(len(list))
	for i := range list {
		l := list[i].latency(what)
		if i == 0 || l.Mean < low {
			low = l.Mean
		}
		high = max(high, l.Mean)
		m.Count += l.Count
		m.Mean, m.P50, m.P90, m.P99, m.P999, m.Max = m.Mean+l.Mean/n, m.P50+l.P50/n, m.P90+l.P90/n, m.P99+l.P99/n, m.P999+l.P999/n, max(m.Max, l.Max)
	}
	return m, low, high
}

func (o *outcome) latency(what int) *workload.Latency {
	return []*workload.Latency{&o.Reads, &o.Writes}[what]
}

// draw plots the latencies as curves over the load.
func (r *runReport) draw(name string) error {
	panel := func(title string, what int, value func(*workload.Latency) float64) plot.Panel {
		p := plot.Panel{Title: title, Label: "load", Absolute: true}
		for i := 0; i < len(r.Results); i += r.Seeds {
			o := &r.Results[i]
			m, _, _ := means(r.Results[i:][:r.Seeds], what)
			p.Set(string(o.Scheme), fmt.Sprintf("%g", o.Load), value(&m))
		}
		return p
	}
	return plot.Write(name, fmt.Sprintf("mcsim: %s on %s, %d replicas", r.Workload, r.Topology, r.Replicas), seedsText(r.Seed, r.Seeds), []plot.Panel{
		panel("reads: mean latency[usec]", 0, func(l *workload.Latency) float64 { return l.Mean }),
		panel("reads: 99% latency[usec]", 0, func(l *workload.Latency) float64 { return l.P99 }),
		panel("writes: mean latency[usec]", 1, func(l *workload.Latency) float64 { return l.Mean }),
		panel("writes: 99% latency[usec]", 1, func(l *workload.Latency) float64 { return l.P99 }),
	})
}
