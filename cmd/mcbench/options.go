package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/plot"
	"github.com/mcrdma/mcrdma/cmd/internal/rates"
	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

const (
	defaultService = "mcbench"
	smallest       = 128     // bytes, of --all
	largest        = 1 << 20 // likewise
	maxSize        = 1 << 28 // bytes of one write
	maxCount       = 1 << 24 // writes
	maxRounds      = 1000
)

// flags is the command line of lat, bw and compare.
type flags struct {
	socket, service, ways, sizes, depths, loss, rate, plot, transport, topology string
	fabricRates                                                                 rates.Flags
	receivers                                                                   []string
	all, check, lab, quiet                                                      bool
	count, warmUp, rounds                                                       int
	duration, timeout, deadAfter                                                time.Duration
}

// options say what to measure.
type options struct {
	flags
	ways   []way
	sizes  []int
	depths []int
	losses []float64   // of a lab; without one, a single 0
	rate   uint64      // of a lab's hosts, bits per second; 0: unlimited
	rates  rates.Rates // of the lab's other links
	fabric *topology.Topology
}

// leastDeadAfter is four beats of a daemon.
const leastDeadAfter = 200 * time.Millisecond

func (f *flags) add(cmd *cobra.Command, k kind) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVarP(&f.receivers, "receivers", "r", nil, "the receivers: `hosts` or addresses, separated by commas")
	fs.StringVar(&f.service, "service", defaultService, "`name` of the service on which the receivers listen")
	cli.AddSocketFlag(cmd, &f.socket, "")
	cli.CompleteHosts(cmd, "receivers", &f.socket)
	if k.compare {
		fs.StringVar(&f.ways, "ways", strings.Join(wayNames(), ","), "`ways`, separated by commas; ratios are to the first")
		fs.IntVar(&f.rounds, "rounds", 3, "`rounds`; each measures all ways once")
		cli.CompleteList(cmd, "ways", wayNames)
	} else {
		fs.StringVar(&f.ways, "way", ways[0].name, "`way`: "+cli.Enumeration(wayNames()))
		f.rounds = 1
		cli.CompleteFlag(cmd, "way", wayNames)
	}
	fs.StringVarP(&f.sizes, "size", "s", "65536", "`bytes` of a write, or several separated by commas; K and M are KiB and MiB")
	fs.BoolVarP(&f.all, "all", "a", false, fmt.Sprintf("all powers of two from %d to %d as sizes", smallest, largest))
	fs.StringVarP(&f.depths, "depth", "t", strconv.Itoa(k.depth), "`writes` in flight, or several numbers separated by commas")
	fs.IntVarP(&f.count, "iterations", "n", 1000, "`writes` of each size")
	fs.DurationVarP(&f.duration, "duration", "D", 0, "end each size after this `time`, even after fewer writes; 0: never")
	fs.IntVar(&f.warmUp, "warm-up", 50, "`writes` before the measured ones")
	fs.BoolVar(&f.check, "check", false, "receivers verify the content of every write, which takes time")
	fs.StringVar(&f.transport, "transport", "", "transport of relaying hosts, `rdma or tcp`; default: the daemon's choice")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "`time` without progress after which to fail")
	fs.StringVar(&f.plot, "plot", "", "plot ratios and results to an SVG `file`")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "do not show progress")
	fs.BoolVar(&f.lab, "lab", false, "start switches, daemons and receivers on loopback, and measure them")
	fs.StringVar(&f.rate, "rate", "0", "with --lab: `rate` at which each host sends, such as 100mbit; 0: unlimited")
	fs.StringVar(&f.topology, "topology", "", "with --lab: the fabric, as a topology `file`; its first host sends; default: two racks of two hosts")
	f.fabricRates.Add(fs, "with --lab: ", "unlimited")
	fs.StringVar(&f.loss, "loss", "0", "with --lab: `share` of packets lost between the racks, such as 1/1024, or several separated by commas")
	fs.DurationVar(&f.deadAfter, "dead-after", 0, "with --lab: `time` after which a silent host is removed; the longer, the later lost packets are retransmitted; 0: 1s")
	cli.CompleteFile(cmd, "plot", "svg")
	cli.CompleteFile(cmd, "topology", "yaml", "json")
	cli.CompleteFlag(cmd, "transport", func() []string { return []string{"rdma", "tcp"} })
}

// check reads the flags. Errors are usage errors.
func (f *flags) options() (*options, error) {
	o := &options{flags: *f}
	var err error
	for _, name := range split(f.ways) {
		w, err := wayOf(name)
		if err != nil {
			return nil, err
		}
		o.ways = append(o.ways, w)
	}
	if o.sizes, err = numbers("--size", f.sizes, maxSize); err != nil {
		return nil, err
	}
	if f.all {
		o.sizes = nil
		for n := smallest; n <= largest; n *= 2 {
			o.sizes = append(o.sizes, n)
		}
	}
	if o.depths, err = numbers("--depth", f.depths, mcrdma.MaxDepth); err != nil {
		return nil, err
	}
	for _, s := range split(f.loss) {
		p, err := share(s)
		if err != nil {
			return nil, err
		}
		o.losses = append(o.losses, p)
	}
	if o.rate, err = hostRate(f.rate); err != nil {
		return nil, err
	}
	if f.lab {
		if err := o.findFabric(); err != nil {
			return nil, err
		}
	}
	return o, o.consistent()
}

// findFabric finds the lab's fabric. Errors are usage errors.
func (o *options) findFabric() (err error) {
	if o.topology == "" {
		o.fabric, err = lab.Racks()
	} else {
		o.fabric, err = topology.Load(o.topology)
	}
	if err != nil {
		return cli.Usage(err)
	}
	hosts := o.labHosts()
	if len(hosts) < 2 {
		return cli.Usagef("--topology %s: a lab needs two hosts or more, and this has %d", o.topology, len(hosts))
	}
	if len(o.receivers) == 0 {
		o.receivers = hosts[1:]
	}
	o.rates, err = o.fabricRates.Rates(o.fabric)
	return err
}

// labHosts returns the lab's hosts, the sender first.
func (o *options) labHosts() (list []string) {
	for _, h := range o.fabric.Hosts {
		list = append(list, h.Name)
	}
	return list
}

// consistent reports flags that do not go together.
func (o *options) consistent() error {
	depth := slices.Max(append(o.depths, 0))
	switch {
	case len(o.ways) == 0 || len(o.sizes) == 0 || len(o.depths) == 0 || len(o.losses) == 0:
		return cli.Usagef("ways, sizes, depths and losses: want at least one of each")
	case len(o.receivers) == 0:
		return cli.Usagef("--receivers HOST,… is needed, each with \"mcbench serve\" running; or --lab, which starts all that it takes")
	case o.service == "":
		return cli.Usagef("--service is empty: it is the name for which the receivers listen")
	case o.count < 1 || o.count > maxCount:
		return cli.Usagef("--iterations %d: want 1 to %d", o.count, maxCount)
	case o.warmUp < 0 || o.warmUp > maxCount:
		return cli.Usagef("--warm-up %d: want 0 to %d", o.warmUp, maxCount)
	case o.rounds < 1 || o.rounds > maxRounds:
		return cli.Usagef("--rounds %d: want 1 to %d", o.rounds, maxRounds)
	case o.duration < 0:
		return cli.Usagef("--duration %v: it is 0 or more", o.duration)
	case o.timeout <= 0:
		return cli.Usagef("--timeout %v: it is more than 0, such as 30s", o.timeout)
	case o.transport != "" && o.transport != "rdma" && o.transport != "tcp":
		return cli.Usagef("--transport %q is neither rdma nor tcp", o.transport)
	case o.check && depth > mcrdma.MaxReceives:
		return cli.Usagef("--check needs a receive for each write in flight, and there are at most %d: --depth %d is more", mcrdma.MaxReceives, depth)
	}
	if err := o.consistentLab(); err != nil {
		return err
	}
	if n := layoutOf(slices.Max(o.sizes), depth, o.check).length(); n > maxServed {
		return cli.Usagef("writes of %d bytes, %d at a time, take %d bytes at each receiver, which gives %d at most", slices.Max(o.sizes), depth, n, maxServed)
	}
	return o.exist()
}

// consistentLab reports flags that require a lab, or do not go with its default fabric.
func (o *options) consistentLab() error {
	switch {
	case !o.lab && (o.rate > 0 || len(o.losses) > 1 || o.losses[0] > 0):
		return cli.Usagef("--rate and --loss go with --lab: other links are as they are")
	case !o.lab && o.deadAfter != 0:
		return cli.Usagef("--dead-after goes with --lab: other daemons have it in their configuration")
	case !o.lab && (o.topology != "" || o.fabricRates.Given()):
		return cli.Usagef("--topology, --fabric-rate and --link-rate go with --lab: other fabrics are as they are")
	case o.topology != "" && slices.Max(o.losses) > 0:
		return cli.Usagef("--loss does not go with --topology: it is between the two racks of the lab's own")
	case o.deadAfter != 0 && (o.deadAfter < leastDeadAfter || o.deadAfter > time.Minute):
		return cli.Usagef("--dead-after %v: want %v to %v", o.deadAfter, leastDeadAfter, time.Minute)
	}
	return nil
}

// exist reports named hosts and files that do not exist, or occur twice.
func (o *options) exist() error {
	if err := cli.NameList("--receivers", o.receivers); err != nil {
		return err
	}
	for _, r := range o.receivers {
		if o.lab && !slices.Contains(o.labHosts()[1:], r) {
			return cli.Usagef("--receivers: the lab's receivers are %s, and not %q", strings.Join(o.labHosts()[1:], ", "), r)
		}
	}
	return plot.Writable(o.plot)
}

func split(list string) (out []string) {
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// numbers parses a list of numbers from 1 to most. Errors are usage errors.
func numbers(flag, list string, most int) (out []int, err error) {
	for _, s := range split(list) {
		n, err := cmdline.ParseSize(s)
		if err != nil || n < 1 || n > most {
			return nil, cli.Usagef("%s %q: want numbers from 1 to %d with commas between, such as 128,4K,1M", flag, s, most)
		}
		out = append(out, n)
	}
	return out, nil
}

// hostRate parses --rate: bits per second, or 0. Errors are usage errors.
func hostRate(text string) (uint64, error) {
	if text == "0" {
		return 0, nil
	}
	rate, err := rates.Bits("rate", text)
	return uint64(rate), err
}

// share parses a probability: 0.001 or 1/1024. Errors are usage errors.
func share(s string) (float64, error) {
	above, below, fraction := strings.Cut(s, "/")
	a, err := strconv.ParseFloat(above, 64)
	b := 1.0
	if err == nil && fraction {
		b, err = strconv.ParseFloat(below, 64)
	}
	p := a / b
	if err != nil || math.IsNaN(p) || p < 0 || p > 0.5 {
		return 0, cli.Usagef("--loss %q: want shares from 0 to 0.5 with commas between, such as 0,1/4096,0.001", s)
	}
	return p, nil
}

// shareText returns a share as text.
func shareText(p float64) string {
	if p > 0 && math.Abs(1/p-math.Round(1/p)) < 1e-6/p {
		return fmt.Sprintf("1/%.0f", 1/p)
	}
	return strconv.FormatFloat(p, 'g', 4, 64)
}
