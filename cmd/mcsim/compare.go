package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/simnet/replicate"
)

// compareFlags are the command line of compare.
type compareFlags struct {
	fabricFlags
	size, block, sender string
	receivers, schemes  []string
	writes, depth       int
	seed                uint64
	seeds               int
	quiet               bool
}

// A comparison is the result of one way with one seed, like mcbench's.
type comparison struct {
	Scheme  replicate.Scheme `json:"scheme"`
	Seed    uint64           `json:"seed"`
	Mean    float64          `json:"mean_usec"`
	Gbps    float64          `json:"gbps"`
	Latency float64          `json:"latency_ratio"` // to the first way, with the same seed
	Speed   float64          `json:"bandwidth_ratio"`
}

func compareCommand() *cobra.Command {
	var f compareFlags
	cmd := &cobra.Command{
		Use: "compare --topology FILE [flags]", Short: "Simulate one sender's writes, as mcbench compare measures them",
		Long: `Simulates one host that writes to others, with several writes in flight, in the fabric of
a topology file, once for each way to replicate. It simulates what "mcbench compare"
measures; "mcbench compare --lab --topology FILE" measures it in the same fabric on
loopback. Ratios are to the first of --schemes.

The JSON is a list, for each way and seed, of scheme, seed, mean_usec, gbps,
latency_ratio and bandwidth_ratio.`,
		Example: `  mcsim compare -t fabric.yaml -s 1M --depth 8
  mcsim compare -t fabric.yaml --sender h1 --receivers h3,h7 --rate 25gbit --link-rate leaf1:spine1=10gbit`,
		Args: cli.NoArgs,
	}
	var names []string
	for _, s := range replicate.Schemes {
		names = append(names, string(s))
	}
	f.addTopology(cmd)
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.sender, "sender", "", "the `host` that writes; default: the topology's first")
	fs.StringSliceVarP(&f.receivers, "receivers", "r", nil, "the `hosts` that it writes to; default: all others")
	fs.StringSliceVar(&f.schemes, "schemes", []string{"multicast", "fanout", "blocks", "rdmc"}, "`ways` to replicate, separated by commas: "+cli.Enumeration(names))
	fs.StringVarP(&f.size, "size", "s", "64K", "`bytes` of a write")
	fs.IntVarP(&f.depth, "depth", "d", 8, "`writes` in flight")
	fs.IntVarP(&f.writes, "writes", "n", 300, "`writes`, after one that is not measured")
	fs.StringVar(&f.block, "block", "1M", "`bytes` of a block, where hosts relay in blocks")
	f.add(cmd)
	addSeeds(fs, &f.seed, &f.seeds)
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "do not show progress")
	cli.CompleteList(cmd, "schemes", func() []string { return names })
	out := cli.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		list, jobs, err := f.jobs()
		if err != nil {
			return err
		}
		if err := perform(cmd.Context(), cmd, f.quiet, jobs); err != nil {
			return err
		}
		for i := range list {
			first := list[i%f.seeds]
			list[i].Latency, list[i].Speed = list[i].Mean/first.Mean, list[i].Gbps/first.Gbps
		}
		if out.IsJSON() {
			return out.JSON(cmd.OutOrStdout(), list)
		}
		return f.text(cmd, out, list)
	}
	return cmd
}

// jobs reads the flags and returns the simulations: for each way those of all seeds. Errors are
// usage errors.
func (f *compareFlags) jobs() ([]comparison, []job, error) {
	if err := checkSeeds(f.seeds); err != nil {
		return nil, nil, err
	}
	fab, err := f.read()
	if err != nil {
		return nil, nil, err
	}
	size, err := sizeOf("size", f.size)
	if err != nil {
		return nil, nil, err
	}
	block, err := sizeOf("block", f.block)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case f.writes < 1 || f.writes > 1<<24:
		return nil, nil, cli.Usagef("--writes %d: want 1 to %d", f.writes, 1<<24)
	case f.depth < 1 || f.depth > 1024:
		return nil, nil, cli.Usagef("--depth %d: want 1 to 1024", f.depth)
	case len(f.schemes) == 0:
		return nil, nil, cli.Usagef("--schemes: want one way or more")
	}
	for _, s := range f.schemes {
		if !slices.Contains(replicate.Schemes, replicate.Scheme(s)) {
			return nil, nil, cli.Usagef("--schemes: %w: %q; there are %v", replicate.ErrScheme, s, replicate.Schemes)
		}
	}
	hosts, err := f.hosts(fab)
	if err != nil {
		return nil, nil, err
	}
	list := make([]comparison, len(f.schemes)*f.seeds)
	jobs := make([]job, len(list))
	for i := range list {
		c := &list[i]
		c.Scheme, c.Seed = replicate.Scheme(f.schemes[i/f.seeds]), f.seed+uint64(i%f.seeds) //nolint:gosec // an index
		jobs[i] = job{name: fmt.Sprintf("%s, seed %d", c.Scheme, c.Seed), weight: 1, run: func() error {
			s, err := fab.simulation(c.Seed)
			if err != nil {
				return err
			}
			set, err := replicate.New(s, c.Scheme, block, hosts[0], hosts[1:]...)
			if err != nil {
				return err
			}
			if _, err := replicate.Stream(s, set, size, 1, 1); err != nil { // relays exchange greetings before
				return err
			}
			begin := s.Now()
			took, err := replicate.Stream(s, set, size, f.depth, f.writes)
			if err != nil {
				return err
			}
			for _, t := range took {
				c.Mean += t / float64(len(took))
			}
			c.Gbps = float64(f.writes) * float64(size) * 8 / float64((s.Now() - begin).Nanoseconds())
			return nil
		}}
	}
	return list, jobs, nil
}

// hosts returns the numbers of the sender and of the receivers. Errors are usage errors.
func (f *compareFlags) hosts(fab *fabric) ([]int, error) {
	s, err := fab.simulation(f.seed) // reports errors at once
	if err != nil {
		return nil, cli.Usage(err)
	}
	var names []string
	for _, h := range fab.topology.Hosts {
		names = append(names, h.Name)
	}
	sender := f.sender
	if sender == "" && len(names) > 0 {
		sender = names[0]
	}
	receivers := f.receivers
	if len(receivers) == 0 {
		receivers = slices.DeleteFunc(names, func(n string) bool { return n == sender })
	}
	if len(receivers) == 0 {
		return nil, cli.Usagef("--receivers: %s has no hosts but the sender", f.topology)
	}
	list, err := hostsOf(s, append([]string{sender}, receivers...))
	if err != nil {
		return nil, cli.Usagef("--sender, --receivers: %w", err)
	}
	for _, h := range list[1:] {
		if !s.Reaches(list[0], h) {
			return nil, cli.Usagef("--receivers: there is no path from %s to %s", sender, s.Name(h))
		}
	}
	return list, nil
}

func (f *compareFlags) text(cmd *cobra.Command, out *cli.Output, list []comparison) error {
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s, %s of %s bytes, %d at a time, %s; ratios are to %s\n\n", f.topology, cli.Plural(f.writes, "write"), f.size, f.depth,
		seedsText(f.seed, f.seeds), f.schemes[0])
	var rows [][]any
	for i := 0; i < len(list); i += f.seeds {
		var m comparison
		low, high := list[i].Speed, list[i].Speed
		for _, c := range list[i:][:f.seeds] {
			n := float64(f.seeds)
			m.Mean, m.Gbps, m.Latency, m.Speed = m.Mean+c.Mean/n, m.Gbps+c.Gbps/n, m.Latency+c.Latency/n, m.Speed+c.Speed/n
			low, high = min(low, c.Speed), max(high, c.Speed)
		}
		speed := fmt.Sprintf("%.2f", m.Speed)
		if f.seeds > 1 {
			speed += fmt.Sprintf(" (%.2f to %.2f)", low, high)
		}
		rows = append(rows, []any{string(list[i].Scheme), number(m.Mean), strings.TrimSpace(fmt.Sprintf("%8.4f", m.Gbps)), fmt.Sprintf("%.2f", m.Latency), speed})
	}
	return out.Table(w, []string{"way", "t_avg[usec]", "BW average[Gb/sec]", "latency x", "bandwidth x"}, rows)
}
