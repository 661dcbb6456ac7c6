// Command volumes measures replicated volumes in a lab of real programs: racks in network
// namespaces, hosts with links of limited rate, two volumes with copies on three hosts each, and
// fio as the client on the primary's host. Contestants take turns; the output has medians. The
// volume whose writes the switch copies is compared with the same volume with copies that the
// primary sends (mode off, algorithm sequential), and with mcbench on the same links: groups of the
// library alone, and one copy.
//
//   - 1 MiB writes, 8 at a time: rate, bytes on the primary's link for each of payload, and
//     the processor time of the primary's process;
//   - 4 KiB writes, one after the other, with and without an fsync after each: latency;
//   - what a host takes that comes back: a copy of the volume from the writes' rate, and the log of its bytes;
//   - how long a host takes that comes back while clients write as fast as they can;
//   - with -ceph: 1 MiB writes, 8 at a time, to Ceph on three of the hosts, with size 3.
//
// It needs root, fio with its nbd engine and the kernel's tbf, makes everything itself, and leaves
// nothing behind. Run it on an idle machine:
//
//	go run ./tests/bench/volumes [-rates 100,200] [-rounds 5] [-time 5s] [-only large|small|catchup|race|ceph] [-ceph] [-disk 1ms]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"
	"github.com/mcrdma/mcrdma/tests/chaos/watch"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

type options struct {
	rates  string // Mb/s
	rounds int
	span   time.Duration
	only   string
	ceph   bool
	disk   time.Duration
	fio    string
	stop   <-chan struct{} // ends fio before its time; may be nil
}

func main() {
	var o options
	flag.StringVar(&o.rates, "rates", "100,200", "of the hosts' links, Mb/s, with commas between")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each contestant runs; medians are shown")
	flag.DurationVar(&o.span, "time", 5*time.Second, "how long each run takes")
	flag.StringVar(&o.only, "only", "", "large, small, catchup, race or ceph; all if empty, but the last only with -ceph")
	flag.BoolVar(&o.ceph, "ceph", false, "measure beside Ceph, too")
	flag.DurationVar(&o.disk, "disk", 0, "how much longer each fdatasync of a volume's host takes, one after another, as on a disk of its own that is slower")
	flag.Parse()
	switch flag.Arg(0) {
	case watched:
		fmt.Fprintln(os.Stderr, watch.Exec(flag.Arg(1), flag.Args()[2:]))
		os.Exit(1)
	case syncing:
		if err := syncs(flag.Arg(1), o.span); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	lab.Main("volumes", "volumes", func(ctx context.Context, dir string) error { return run(ctx, dir, &o) })
}

func run(ctx context.Context, dir string, o *options) (err error) {
	if o.fio, err = exec.LookPath("fio"); err != nil {
		return fmt.Errorf("%w: there is no fio (Debian: fio)", lab.ErrUnable)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it takes root", lab.ErrUnable)
	}
	o.ceph = o.ceph || o.only == "ceph"
	if list := missing(o); o.ceph && list != nil {
		fmt.Println("Ceph is left out: there is no", strings.Join(list, ", no "))
		if o.ceph = false; o.only == "ceph" {
			return nil
		}
	}
	fmt.Printf("%d processors, load %s at the start (other load distorts all figures)\n", runtime.NumCPU(), report.Load())
	r, err := newRack(ctx, dir, o.disk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for text := range strings.SplitSeq(o.rates, ",") {
		rate, err := strconv.ParseUint(text, 10, 32)
		if err != nil || rate == 0 {
			return fmt.Errorf("-rates %q: want Mb/s, such as 100,200", o.rates)
		}
		for _, h := range r.lab.Hosts {
			if err := h.Space.Limit("eth0", rate*1e6); err != nil {
				return err
			}
		}
		fmt.Printf("\nLinks of %d Mb/s, medians of %d rounds of %v, load %s\n", rate, o.rounds, o.span, report.Load())
		for _, b := range []struct {
			name string
			run  func(context.Context, *rack, *options) error
		}{{"large", large}, {"small", small}, {"catchup", catchup}, {"race", race}, {"ceph", besideCeph}} {
			if o.only == b.name || o.only == "" && (b.name != "ceph" || o.ceph) {
				if err := b.run(ctx, r, o); err != nil {
					return fmt.Errorf("%w\n%s", err, r.logs())
				}
			}
		}
	}
	return nil
}

// A figure is the result of one contestant in one round, or the medians.
type figure struct {
	rate      float64 // bits of payload per second
	bytes     float64 // of payload
	uplink    float64 // bytes on the sender's link per byte of payload
	links     float64 // bytes on all hosts' links, in both directions, per byte of payload
	processor float64 // seconds of the sender's process per GiB of payload
	typical   float64 // latency, µs
	p99       float64
}

// A contestant writes for a while.
type contestant struct {
	name string
	run  func(ctx context.Context) (figure, error)
	got  []figure
}

// large: 1 MiB writes, 8 at a time.
func large(ctx context.Context, r *rack, o *options) error {
	const size, depth = 1 << 20, 8
	fio := []string{"--rw=write", "--bs=1M", "--iodepth=" + fmt.Sprint(depth)}
	all := []*contestant{
		{name: "one copy, mcbench", run: r.mcbench(o, "bw", "multicast", 1, size, depth)},
		{name: "group, mcbench", run: r.mcbench(o, "bw", "multicast", 2, size, depth)},
		{name: "fan-out, mcbench", run: r.mcbench(o, "bw", "fan-out", 2, size, depth)},
		{name: "volume", run: r.volumes[0].fio(o, fio...)},
		{name: "volume, fan-out", run: r.volumes[1].fio(o, fio...)},
	}
	m, err := contest(ctx, o.rounds, all)
	if err != nil {
		return err
	}
	fmt.Printf("\nwrites of 1 MiB, %d at a time:\n", depth)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "contestant\tMb/s of payload\tof one copy\tlink x payload\tprocessor s/GiB\t")
	for i, c := range all {
		link := "" // mcbench knows that only of its own lab
		if m[i].uplink > 0 {
			link = fmt.Sprintf("%.3f", m[i].uplink)
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.2f\t%s\t%.2f\t\n", c.name, m[i].rate/1e6, m[i].rate/m[0].rate, link, m[i].processor)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println(report.Verdict("volume's rate to one copy's", m[3].rate/m[0].rate, 0.95, "", true))
	fmt.Println(report.Verdict("fan-out volume's rate to one copy's", m[4].rate/m[0].rate, 0.55, "", false))
	fmt.Println(report.Verdict("volume's bytes on the link for each of payload", m[3].uplink, 1.05, "", false))
	fmt.Println(report.Verdict("processor time of the volume's primary to that of the fan-out volume's", m[3].processor/m[4].processor, 0.6, "", false))
	return nil
}

// small: 4 KiB writes, one after another.
func small(ctx context.Context, r *rack, o *options) error {
	fio := []string{"--rw=randwrite", "--bs=4k", "--iodepth=1"}
	all := []*contestant{
		{name: "group, mcbench lat", run: r.mcbench(o, "lat", "multicast", 2, 4096, 1)},
		{name: "volume", run: r.volumes[0].fio(o, fio...)},
		{name: "volume, fsync after each", run: r.volumes[0].fio(o, append(slices.Clone(fio), "--fsync=1")...)},
		{name: "fdatasync of a file on that disk", run: func(context.Context) (figure, error) { return r.fdatasync(1, o.span) }},
		{name: "of three files at once", run: func(context.Context) (figure, error) { return r.fdatasync(3, o.span) }},
	}
	m, err := contest(ctx, o.rounds, all)
	if err != nil {
		return err
	}
	fmt.Printf("\nwrites of 4 KiB, one after the other:\n")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "contestant\ttypical µs\tp99\tof mcbench lat\t")
	for i, c := range all {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.2f\t\n", c.name, m[i].typical, m[i].p99, m[i].typical/m[0].typical)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println(report.Verdict("volume's latency to mcbench lat's", m[1].typical/m[0].typical, 1.3, "", false))
	added := m[2].typical - m[1].typical
	fmt.Println(report.Verdict("what an fsync adds, in fdatasyncs", added/m[3].typical, 1.5, "", false))
	fmt.Printf("the same, in fdatasyncs of three at once, as three hosts share that disk here: %.2f\n", added/m[4].typical)
	return nil
}
