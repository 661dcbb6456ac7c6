package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/plot"
	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/internal/mpi"
	"github.com/mcrdma/mcrdma/pkg/collective"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

const collHelp = `Measures collective operations of package collective, with the columns of nccl-tests.
Run the same command on each host, where its daemon must run; the first of --hosts
prints the results. --lab starts everything on loopback.

size is that of the larger buffer, rounded to elements of 4 bytes, at least one, and
to the same number for each rank where the buffer is split into parts. time is the
mean of an operation, from the first rank's start to the last rank's end: the time of
all iterations and a barrier, minus the time of a barrier, divided by the iterations.
algbw is size divided by time. busbw is the rate that algbw means for each rank's
links without switches that copy: algbw times 2(n-1)/n for allreduce, (n-1)/n for
reducescatter and allgather, and 1 for the others. uplink is the number of bytes that
a host has sent for each byte of size: with --lab the first host, with --interface
the host that has sent most.

--mpi also measures OpenMPI and MPICH, with all of their algorithms, alternating with
this library, on the same hosts by TCP alone (tcp,self), or on loopback with --lab.
The first rank starts them, by ssh. "x mpi" is the time of the fastest of them
divided by that of this library.

The JSON is a list of results, with operation, by (this library, or an MPI implementation),
size, count, type, redop, root, time_usec, algbw_GBps, busbw_GBps, wrong, uplink and
by_mpi.`

// collFlags are the command line of coll.
type collFlags struct {
	collective.Config
	socket, operations, sizes, way, rate string
	nic, mpi, agent, plot                string
	count, warmUp, ranks, rounds         int
	lab, explain                         bool
	deadAfter                            time.Duration
}

func collCommand(args []string, inner *int) *cobra.Command {
	var f collFlags
	cmd := &cobra.Command{
		Use: "coll --hosts HOST,… | --lab [flags]", Short: "Measure collective operations", Long: collHelp, Args: cli.NoArgs,
		Example: "  mcbench coll --hosts h1,h2,h3,h4 -s 8,4K,1M\n  mcbench coll --lab --rate 50mbit --operations allreduce,broadcast -s 1M -n 10",
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVarP(&f.Hosts, "hosts", "r", nil, "the `hosts` of the ranks, in order, separated by commas")
	fs.StringVar(&f.Service, "service", defaultService, "`name` of the service on which the ranks listen")
	cli.AddSocketFlag(cmd, &f.socket, "")
	cli.CompleteHosts(cmd, "hosts", &f.socket)
	fs.StringVar(&f.operations, "operations", strings.Join(collNames(), ","), "`operations`, separated by commas")
	fs.StringVarP(&f.sizes, "size", "s", "8,1K,64K,1M", "`bytes` of the larger buffer, or several separated by commas; K and M are KiB and MiB")
	fs.IntVarP(&f.count, "iterations", "n", 20, "`operations` of each size")
	fs.IntVar(&f.warmUp, "warm-up", 5, "`operations` before the measured ones")
	fs.StringVar(&f.way, "way", "", "`way` of multicast: "+cli.Enumeration(wayNames())+"; default: the daemon's choice")
	fs.IntVar(&f.Block, "block", 0, "`bytes` of a message; 0: the library's choice")
	fs.IntVar(&f.Slots, "slots", 0, "`messages` in flight to a rank; 0: the library's choice")
	fs.IntVar(&f.Small, "small", 0, "`bytes` up to which reductions use a tree; 0: the library's choice; negative: never")
	fs.IntVar(&f.Degree, "degree", 0, "`degree` of that tree, 1, 3, 7 or 15; 0: chosen by measurement")
	fs.DurationVar(&f.Poll, "poll", 0, "`time` for which a rank polls in a small operation before it sleeps; 0: the library's choice; negative: never")
	fs.IntVar(&f.rounds, "rounds", 1, "how many `times` to measure each size; the output has medians")
	fs.StringVar(&f.nic, "interface", "", "count the bytes that hosts send on this `interface`, which has the same name on all; MPI uses it too")
	fs.StringVar(&f.mpi, "mpi", "", "`implementations` to compare with, separated by commas: "+cli.Enumeration(mpi.Names())+"; those that are not installed are skipped")
	fs.StringVar(&f.agent, "mpi-agent", "", "`program` that starts commands on hosts for MPI, called as ssh is; default: ssh")
	fs.StringVar(&f.plot, "plot", "", "plot times by size to an SVG `file`")
	fs.BoolVar(&f.explain, "explain", false, "print the model's prediction for each degree")
	fs.DurationVar(&f.Wait, "timeout", 30*time.Second, "`time` to wait for the other ranks to start, and for one operation")
	fs.BoolVar(&f.lab, "lab", false, "start switches, daemons and ranks on loopback, and measure them")
	fs.IntVar(&f.ranks, "ranks", 4, "with --lab: the number of `hosts`, 2 to 16")
	fs.StringVar(&f.rate, "rate", "0", "with --lab: `rate` at which each host sends, such as 100mbit; 0: unlimited")
	fs.DurationVar(&f.deadAfter, "dead-after", 0, "with --lab: `time` after which a silent host is removed; the longer, the later lost packets are retransmitted; 0: 1s")
	cli.CompleteList(cmd, "operations", collNames)
	cli.CompleteList(cmd, "mpi", mpi.Names)
	cli.CompleteFlag(cmd, "way", wayNames)
	cli.CompleteFile(cmd, "plot", "svg")
	out := cli.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("ranks") && !f.lab {
			return cli.Usagef("--ranks goes with --lab: otherwise --hosts are the ranks")
		}
		b, err := f.check()
		if err != nil {
			return err
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		if f.lab && os.Getenv(innerEnv) == "" {
			others := new(rankErrors)
			rank := func(_ context.Context, socket string) (*lab.Child, error) {
				return startChild(args, socket, nil, io.Discard, &rankError{others}, nil)
			}
			fabric, err := labTopology(f.ranks)
			if err == nil {
				*inner, err = inLab(ctx, labPlan{rate: b.rate, deadAfter: f.deadAfter, topology: fabric, hosts: b.Hosts[1:], begin: rank, measured: others.end}, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			if ctx.Err() == nil && (!out.IsJSON() || err == nil && *inner == cli.ExitOK) { // one error is JSON
				_, _ = others.text.WriteTo(cmd.ErrOrStderr())
			}
			return err
		}
		ctx, end := withParent(ctx)
		defer end()
		return b.run(ctx, cmd, out)
	}
	return cmd
}

// rankErrors has what the first rank says that fails, besides the one that measures. Others fail
// because it does, or because they are ended.
type rankErrors struct {
	mu    sync.Mutex
	first *rankError
	text  bytes.Buffer
}

// A rankError is the standard error of a rank.
type rankError struct{ all *rankErrors }

// Write implements io.Writer.
func (r *rankError) Write(b []byte) (int, error) {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	if r.all.first == nil {
		r.all.first = r
	}
	if r.all.first == r {
		r.all.text.Write(b)
	}
	return len(b), nil
}

// end has what ranks say from now on ignored, if none has failed yet.
func (e *rankErrors) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == nil {
		e.first = &rankError{}
	}
}

// A collBench is the benchmark at one rank.
type collBench struct {
	collective.Config
	f          *collFlags
	operations []collOperation
	sizes      []int
	mpi        []string // names of implementations
	rivals     []rival  // at the first rank
	rate       uint64   // of the lab's links
	link       *labLink
	stderr     io.Writer
	results    []collResult
}

const mostRanks = 16

// check reads the flags. Errors are usage errors.
func (f *collFlags) check() (*collBench, error) {
	b := &collBench{f: f, results: []collResult{}, Config: f.Config}
	named := len(f.Hosts) > 0
	if err := cli.NameList("--hosts", f.Hosts); err != nil {
		return nil, err
	}
	if f.lab && !named {
		for i := range f.ranks {
			b.Hosts = append(b.Hosts, labHost(i))
		}
	}
	for _, name := range split(f.operations) {
		i := slices.IndexFunc(collOperations, func(o collOperation) bool { return o.name == name })
		if i < 0 {
			return nil, cli.Usagef("no operation %q; the operations are: %s", name, strings.Join(collNames(), ", "))
		}
		b.operations = append(b.operations, collOperations[i])
	}
	for _, name := range split(f.mpi) {
		if !slices.Contains(mpi.Names(), name) {
			return nil, cli.Usagef("unknown MPI implementation %q; known are: %s", name, strings.Join(mpi.Names(), ", "))
		}
		b.mpi = append(b.mpi, name)
	}
	if err := plot.Writable(f.plot); err != nil {
		return nil, err
	}
	if f.way != "" {
		w, err := wayOf(f.way)
		if err != nil {
			return nil, err
		}
		b.Mode, b.Tuning.Algorithm = w.mode, w.algorithm
	}
	var err error
	if b.sizes, err = numbers("--size", f.sizes, maxSize); err != nil {
		return nil, err
	}
	if b.rate, err = hostRate(f.rate); err != nil {
		return nil, err
	}
	switch {
	case len(b.operations) == 0 || len(b.sizes) == 0:
		return nil, cli.Usagef("--operations and --size: want at least one of each")
	case !f.lab && len(b.Hosts) < 2:
		return nil, cli.Usagef("--hosts HOST,… is needed: two or more hosts, each of which runs this command; or --lab, which starts everything")
	case f.rounds < 1 || f.rounds > maxCount:
		return nil, cli.Usagef("--rounds %d: want 1 to %d", f.rounds, maxCount)
	case f.count < 1 || f.count > maxCount || f.warmUp < 0 || f.warmUp > maxCount:
		return nil, cli.Usagef("--iterations %d, --warm-up %d: want 1 to %d, and 0 to %d", f.count, f.warmUp, maxCount, maxCount)
	case f.Wait <= 0:
		return nil, cli.Usagef("--timeout %v: it is more than 0, such as 30s", f.Wait)
	}
	if err := f.checkLab(b, named); err != nil {
		return nil, err
	}
	if f.nic != "" {
		if _, err := sentBy(f.nic); err != nil {
			return nil, cli.Usagef("--interface: %w", err)
		}
	}
	if err := b.Check(); err != nil {
		return nil, cli.Usage(err)
	}
	return b, nil
}

// checkLab checks flags that require a lab, or the lack of one. Errors are usage errors.
func (f *collFlags) checkLab(b *collBench, named bool) error {
	switch {
	case f.lab && named:
		return cli.Usagef("--hosts does not go with --lab, which has --ranks")
	case f.lab && (f.ranks < 2 || f.ranks > mostRanks):
		return cli.Usagef("--ranks %d: want 2 to %d", f.ranks, mostRanks)
	case f.lab && f.nic != "":
		return cli.Usagef("--interface does not go with --lab, whose switch counts")
	case f.lab && len(b.mpi) > 0 && b.rate > 0:
		return cli.Usagef("--mpi does not go with --rate: it would run on loopback, whose rate is unlimited")
	case !f.lab && b.rate > 0:
		return cli.Usagef("--rate goes with --lab: other links are as they are")
	case !f.lab && f.deadAfter != 0 || f.deadAfter != 0 && (f.deadAfter < leastDeadAfter || f.deadAfter > time.Minute):
		return cli.Usagef("--dead-after %v: want %v to %v, with --lab: other daemons have it in their configuration", f.deadAfter, leastDeadAfter, time.Minute)
	}
	return nil
}

// run measures, and the first rank prints the results.
func (b *collBench) run(ctx context.Context, cmd *cobra.Command, out *cli.Output) (err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errors.New("interrupted")
		}
	}()
	dialing, cancel := context.WithTimeout(ctx, b.f.Wait)
	defer cancel()
	client, err := mcrdma.Dial(dialing, mcrdma.Options{Socket: cli.Socket(b.f.socket), Program: "mcbench"})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the end of the session ends everything
	if b.Rank = slices.IndexFunc(b.Hosts, func(h string) bool { return h == client.Host() || h == client.Address() }); b.Rank < 0 {
		return cli.Usagef("--hosts %s: this host is %s (%s), and not one of them", strings.Join(b.Hosts, ","), client.Host(), client.Address())
	}
	if b.f.lab && b.Rank == 0 {
		b.link = openLab()
		defer b.link.close()
	}
	if b.Rank == 0 {
		remove, err := b.findMPI(ctx, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer remove()
	}
	c, err := collective.Join(ctx, client, b.Config)
	if err != nil {
		return err
	}
	for _, op := range b.operations {
		sizes := b.sizes
		if op.name == "barrier" {
			sizes = sizes[:1] // a barrier has no size
		}
		for _, size := range sizes {
			if err == nil {
				err = b.one(ctx, c, op, size)
			}
		}
	}
	closing, cancel := context.WithTimeout(ctx, b.f.Wait)
	defer cancel()
	err = errors.Join(err, c.Close(closing))
	if b.Rank != 0 || len(b.results) == 0 {
		return err
	}
	if b.f.explain {
		fmt.Fprint(cmd.ErrOrStderr(), c.Explain())
	}
	if b.f.plot != "" {
		err = errors.Join(err, b.plot(b.f.plot))
	}
	if out.IsJSON() {
		return errors.Join(err, out.JSON(cmd.OutOrStdout(), b.results))
	}
	return errors.Join(err, b.text(cmd.OutOrStdout(), out))
}

// one measures an operation of one size. All ranks do the same.
func (b *collBench) one(ctx context.Context, c *collective.Comm, op collOperation, size int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &collTrial{op: &op, c: c, count: b.f.count, timeout: b.f.Wait, barrier: c.Barrier, sent: b.sent}
	t.fill(size)
	t.limit = time.AfterFunc(t.timeout, func() { cancel(fmt.Errorf("it takes longer than %v", t.timeout)) })
	wrong, err := t.begin(ctx, b.f.warmUp)
	var took, ups []float64
	rivals := slices.Clone(b.rivals)
	others := map[string][]float64{}
	for range b.f.rounds {
		if err != nil {
			break
		}
		var us, up float64
		if us, up, err = t.measure(ctx); err != nil {
			break
		}
		took, ups = append(took, us), append(ups, up)
		if len(b.mpi) > 0 {
			rivals = b.contest(ctx, rivals, &op, 4*len(t.x), others)
			err = c.Barrier(ctx) // the others wait for that
		}
	}
	if err != nil && op.name == "barrier" {
		return err // it says so, and has no size
	}
	if err != nil {
		return fmt.Errorf("%s of %d bytes: %w", op.name, size, err)
	}
	r := op.result(c.Size(), 4*len(t.x), median(took))
	if r.Wrong = wrong; (b.link != nil || b.f.nic != "") && r.Size > 0 {
		up := median(ups) / float64(r.Size)
		r.Uplink = &up
	}
	b.results = append(b.results, r)
	b.add(&op, rivals, others)
	if r.Wrong > 0 {
		return fmt.Errorf("%s of %d bytes: %d elements are wrong", op.name, size, r.Wrong)
	}
	return nil
}

// sent returns the number of bytes that this host has sent; 0: not known.
func (b *collBench) sent() (uint64, error) {
	if b.f.nic != "" {
		return sentBy(b.f.nic)
	}
	return b.link.uplink()
}
