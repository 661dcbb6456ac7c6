package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
	"github.com/mcrdma/mcrdma/pkg/collective"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

const collHelp = `Measures collective operations of package collective, with the columns of nccl-tests.
Each host runs the same command, beside its daemon; the first of --hosts prints
what was measured. With --lab all of that is started on loopback.

The size is that of the larger buffer. time is that of the slowest rank; algbw is
size by time, and busbw what that makes of each rank's links if all data goes
through them as often as it must without switches that copy: 2(n-1)/n of it for
allreduce, (n-1)/n for reducescatter and allgather, and 1 for the others. uplink is how many bytes the
first host has sent for each byte of the size, with --lab.`

// collFlags are the command line of coll.
type collFlags struct {
	socket, service, operations, sizes, way, rate string
	hosts                                         []string
	count, warmUp, block, slots, small, degree    int
	lab, explain                                  bool
	timeout, deadAfter                            time.Duration
}

// A collResult is what was measured of an operation with a size.
type collResult struct {
	Operation string   `json:"operation"`
	Size      int      `json:"size"`
	Count     int      `json:"count"` // elements
	Type      string   `json:"type"`
	RedOp     string   `json:"redop"`
	Root      int      `json:"root"`
	Time      float64  `json:"time_usec"`
	AlgBW     float64  `json:"algbw_GBps"`
	BusBW     float64  `json:"busbw_GBps"`
	Wrong     int      `json:"wrong"`
	Uplink    *float64 `json:"uplink,omitempty"` // bytes of the first host for each of the size
}

// A collOperation is one that can be measured. Its work has x for n elements at each rank, and is checked by wrong.
type collOperation struct {
	name   string
	redop  string
	root   int
	share  func(n float64) float64 // busbw by algbw
	parts  bool                    // x is split into a part for each rank
	once   func(ctx context.Context, c *collective.Comm, x, part []float32) error
	result func(c *collective.Comm, i int) float32 // of x, or of part if it is split and reduced
}

// before is what element i of a rank's buffer is at first: whole numbers, of which sums are exact.
func before(rank, i int) float32 { return float32(rank + i%1000) }

func sumOf(c *collective.Comm, i int) float32 {
	n := c.Size()
	return float32(n*(n-1)/2 + n*(i%1000))
}

var collOperations = []collOperation{
	{"allreduce", "sum", -1, func(n float64) float64 { return 2 * (n - 1) / n }, false,
		func(ctx context.Context, c *collective.Comm, x, _ []float32) error {
			return collective.Allreduce(ctx, c, x, collective.Sum)
		}, sumOf},
	{"broadcast", "none", 0, func(float64) float64 { return 1 }, false,
		func(ctx context.Context, c *collective.Comm, x, _ []float32) error {
			return collective.Broadcast(ctx, c, 0, x)
		}, func(_ *collective.Comm, i int) float32 { return before(0, i) }},
	{"reduce", "sum", 0, func(float64) float64 { return 1 }, false,
		func(ctx context.Context, c *collective.Comm, x, _ []float32) error {
			return collective.Reduce(ctx, c, 0, x, collective.Sum)
		}, func(c *collective.Comm, i int) float32 {
			if c.Rank() == 0 {
				return sumOf(c, i)
			}
			return before(c.Rank(), i)
		}},
	{"allgather", "none", -1, func(n float64) float64 { return (n - 1) / n }, true,
		func(ctx context.Context, c *collective.Comm, x, part []float32) error {
			return collective.Allgather(ctx, c, x, part)
		}, nil},
	{"reducescatter", "sum", -1, func(n float64) float64 { return (n - 1) / n }, true,
		func(ctx context.Context, c *collective.Comm, x, part []float32) error {
			return collective.ReduceScatter(ctx, c, part, x, collective.Sum)
		}, nil},
	{"barrier", "none", -1, func(float64) float64 { return 0 }, false,
		func(ctx context.Context, c *collective.Comm, _, _ []float32) error { return c.Barrier(ctx) }, func(c *collective.Comm, i int) float32 { return before(c.Rank(), i) }},
}

func collNames() (names []string) {
	for _, o := range collOperations {
		names = append(names, o.name)
	}
	return names
}

func collCommand(args []string, inner *int) *cobra.Command {
	var f collFlags
	cmd := &cobra.Command{
		Use: "coll --hosts HOST,… | --lab [flags]", Short: "Measure collective operations", Long: collHelp, Args: cli.NoArgs,
		Example: "  mcbench coll --hosts h1,h2,h3,h4 -s 8,4K,1M\n  mcbench coll --lab --rate 50mbit --operations allreduce,broadcast -s 1M -n 10",
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVarP(&f.hosts, "hosts", "r", nil, "the `hosts` with ranks, in their order, with commas between")
	fs.StringVar(&f.service, "service", defaultService, "`name` of the service for which the ranks listen")
	cli.AddSocketFlag(cmd, &f.socket, "")
	cli.CompleteHosts(cmd, "hosts", &f.socket)
	fs.StringVar(&f.operations, "operations", strings.Join(collNames(), ","), "`operations` with commas between")
	fs.StringVarP(&f.sizes, "size", "s", "8,1K,64K,1M", "`bytes` of the larger buffer; several with commas between; K and M stand for KiB and MiB")
	fs.IntVarP(&f.count, "iterations", "n", 20, "`operations` of each size")
	fs.IntVar(&f.warmUp, "warm-up", 5, "`operations` before, not counted")
	fs.StringVar(&f.way, "way", "", "`way` of multicast: "+cli.Enumeration(wayNames())+"; default: the daemon's choice")
	fs.IntVar(&f.block, "block", 0, "`bytes` of a message; 0: the library's choice")
	fs.IntVar(&f.slots, "slots", 0, "`messages` on their way to a rank; 0: the library's choice")
	fs.IntVar(&f.small, "small", 0, "`bytes` up to which reductions go over a tree; 0: the library's choice; negative: never")
	fs.IntVar(&f.degree, "degree", 0, "`degree` of that tree, 1, 3, 7 or 15; 0: by what is measured")
	fs.BoolVar(&f.explain, "explain", false, "print what the model predicts for each degree")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "`time` that ranks wait for others to start, and for one operation")
	fs.BoolVar(&f.lab, "lab", false, "start switches, daemons and ranks on loopback, and measure these")
	fs.StringVar(&f.rate, "rate", "0", "with --lab: `rate` of what each host sends, such as 100mbit; 0: unlimited")
	fs.DurationVar(&f.deadAfter, "dead-after", 0, "with --lab: `time` after which a silent host is taken out; with more of it, what was lost is sent again later; 0: 1s")
	cli.CompleteList(cmd, "operations", collNames)
	cli.CompleteFlag(cmd, "way", wayNames)
	out := cli.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b, rate, err := f.check()
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if f.lab && os.Getenv(innerEnv) == "" {
			rank := func(_ context.Context, socket string) (*lab.Child, error) {
				return startChild(args, socket, nil, io.Discard, cmd.ErrOrStderr(), nil)
			}
			*inner, err = inLab(ctx, labPlan{rate, f.deadAfter, b.Hosts[1:], rank}, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
			return err
		}
		ctx, end := withParent(ctx)
		defer end()
		return b.run(ctx, cmd, out)
	}
	return cmd
}

// A collBench measures at one rank.
type collBench struct {
	collective.Config
	f          *collFlags
	operations []collOperation
	sizes      []int
	link       *labLink
	results    []collResult
}

// check reads the flags. Errors are usage errors.
func (f *collFlags) check() (*collBench, uint64, error) {
	b := &collBench{f: f, results: []collResult{}, Config: collective.Config{Service: f.service, Hosts: f.hosts, Block: f.block, Slots: f.slots, Small: f.small, Degree: f.degree, Wait: f.timeout}}
	if f.lab && len(b.Hosts) == 0 {
		b.Hosts = append([]string{labSender}, labReceivers...)
	}
	for _, name := range split(f.operations) {
		i := slices.IndexFunc(collOperations, func(o collOperation) bool { return o.name == name })
		if i < 0 {
			return nil, 0, cli.Usagef("there is no operation %q; the operations are: %s", name, strings.Join(collNames(), ", "))
		}
		b.operations = append(b.operations, collOperations[i])
	}
	if f.way != "" {
		w, ok := wayOf(f.way)
		if !ok {
			return nil, 0, cli.Usagef("there is no way %q; the ways are: %s", f.way, strings.Join(wayNames(), ", "))
		}
		b.Mode, b.Tuning.Algorithm = w.mode, w.algorithm
	}
	var err error
	if b.sizes, err = numbers("--size", f.sizes, maxSize); err != nil {
		return nil, 0, err
	}
	rate, err := traffic.ParseRate(f.rate)
	switch {
	case err != nil || rate.PerSecond > 0 && !rate.Bits:
		return nil, 0, cli.Usagef("--rate %q is not in bits a second, such as 100mbit", f.rate)
	case len(b.operations) == 0 || len(b.sizes) == 0:
		return nil, 0, cli.Usagef("--operations and --size: want at least one of each")
	case len(b.Hosts) < 2:
		return nil, 0, cli.Usagef("--hosts HOST,… is needed, two or more, each of which runs this command; or --lab, which starts all that it takes")
	case f.lab && (b.Hosts[0] != labSender || slices.ContainsFunc(b.Hosts[1:], func(h string) bool { return !slices.Contains(labReceivers, h) })):
		return nil, 0, cli.Usagef("--hosts: the lab's are %s first, and then some of %s", labSender, strings.Join(labReceivers, ", "))
	case !f.lab && rate.PerSecond > 0:
		return nil, 0, cli.Usagef("--rate goes with --lab: other links are as they are")
	case f.count < 1 || f.count > maxCount || f.warmUp < 0 || f.warmUp > maxCount:
		return nil, 0, cli.Usagef("--iterations %d, --warm-up %d: want 1 to %d, and 0 to %d", f.count, f.warmUp, maxCount, maxCount)
	case !f.lab && f.deadAfter != 0 || f.deadAfter != 0 && (f.deadAfter < leastDeadAfter || f.deadAfter > time.Minute):
		return nil, 0, cli.Usagef("--dead-after %v: want %v to %v, with --lab: other daemons have it in their configuration", f.deadAfter, leastDeadAfter, time.Minute)
	case f.timeout <= 0:
		return nil, 0, cli.Usagef("--timeout %v: it is more than 0, such as 30s", f.timeout)
	}
	return b, rate.PerSecond, nil
}

// run measures, and reports if this is the first rank.
func (b *collBench) run(ctx context.Context, cmd *cobra.Command, out *cli.Output) error {
	dialing, cancel := context.WithTimeout(ctx, b.f.timeout)
	defer cancel()
	client, err := mcrdma.Dial(dialing, mcrdma.Options{Socket: cli.Socket(b.f.socket), Program: "mcbench"})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // what it holds ends with the session
	if b.Rank = slices.IndexFunc(b.Hosts, func(h string) bool { return h == client.Host() || h == client.Address() }); b.Rank < 0 {
		return cli.Usagef("--hosts %s: this host is %s (%s), and not one of them", strings.Join(b.Hosts, ","), client.Host(), client.Address())
	}
	if b.f.lab && b.Rank == 0 {
		b.link = openLab()
		defer b.link.close()
	}
	c, err := collective.Join(ctx, client, b.Config)
	if err != nil {
		return err
	}
	for _, op := range b.operations {
		sizes := b.sizes
		if op.name == "barrier" {
			sizes = sizes[:1] // it has none
		}
		for _, size := range sizes {
			if err == nil {
				err = b.one(ctx, c, op, size)
			}
		}
	}
	closing, cancel := context.WithTimeout(ctx, b.f.timeout)
	defer cancel()
	err = errors.Join(err, c.Close(closing))
	if b.Rank != 0 || len(b.results) == 0 {
		return err
	}
	if b.f.explain {
		fmt.Fprint(cmd.ErrOrStderr(), c.Explain())
	}
	if out.IsJSON() {
		return errors.Join(err, out.JSON(cmd.OutOrStdout(), b.results))
	}
	return errors.Join(err, b.text(cmd.OutOrStdout(), out))
}

func (b *collBench) text(w io.Writer, out *cli.Output) error {
	header := []string{"operation", "size(B)", "count", "type", "redop", "root", "time(us)", "algbw(GB/s)", "busbw(GB/s)", "#wrong"}
	if b.link != nil {
		header = append(header, "uplink")
	}
	var rows [][]any
	for _, r := range b.results {
		row := []any{r.Operation, r.Size, r.Count, r.Type, r.RedOp, r.Root, number(r.Time), fmt.Sprintf("%.4f", r.AlgBW), fmt.Sprintf("%.4f", r.BusBW), r.Wrong}
		if r.Uplink != nil {
			row = append(row, fmt.Sprintf("%.2f", *r.Uplink))
		}
		rows = append(rows, row)
	}
	return out.Table(w, header, rows)
}

// one measures an operation with a size. All ranks do the same.
func (b *collBench) one(ctx context.Context, c *collective.Comm, op collOperation, size int) error {
	part := make([]float32, max(1, size/4/c.Size()))
	x := make([]float32, max(1, size/4))
	if op.parts {
		x = make([]float32, len(part)*c.Size())
	}
	for i := range x {
		x[i] = before(c.Rank(), i)
	}
	for i := range part {
		part[i] = before(c.Rank(), c.Rank()*len(part)+i)
	}
	once := func() error {
		ctx, cancel := context.WithTimeout(ctx, b.f.timeout)
		defer cancel()
		return op.once(ctx, c, x, part)
	}
	if err := once(); err != nil {
		return fmt.Errorf("%d bytes: %w", size, err)
	}
	wrong := b.wrong(c, op, x, part)
	for range b.f.warmUp {
		if err := once(); err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
	}
	up, err := b.link.uplink()
	if err == nil {
		err = c.Barrier(ctx)
	}
	begun := time.Now()
	for range b.f.count {
		if err == nil {
			err = once()
		}
	}
	took := []float64{time.Since(begun).Seconds() / float64(b.f.count)}
	if err == nil {
		err = c.Barrier(ctx)
	}
	after, e := b.link.uplink()
	if err = errors.Join(err, e); err != nil {
		return fmt.Errorf("%d bytes: %w", size, err)
	}
	all := []float64{float64(wrong)}
	if err := errors.Join(collective.Allreduce(ctx, c, took, collective.Max), collective.Allreduce(ctx, c, all, collective.Sum)); err != nil {
		return err
	}
	bytes := 4 * len(x)
	r := collResult{Operation: op.name, Size: bytes, Count: len(x), Type: "float", RedOp: op.redop, Root: op.root, Time: took[0] * 1e6, AlgBW: float64(bytes) / took[0] / 1e9, Wrong: int(all[0])}
	if op.name == "barrier" {
		r.Size, r.Count, r.AlgBW = 0, 0, 0
	}
	r.BusBW = r.AlgBW * op.share(float64(c.Size()))
	if b.link != nil && r.Size > 0 {
		share := float64(after-up) / float64(b.f.count*r.Size)
		r.Uplink = &share
	}
	b.results = append(b.results, r)
	if r.Wrong > 0 {
		return fmt.Errorf("%s of %d bytes: %d elements are wrong", op.name, size, r.Wrong)
	}
	return nil
}

// wrong counts the elements that are not what they have to be.
func (b *collBench) wrong(c *collective.Comm, op collOperation, x, part []float32) (n int) {
	got, want := x, op.result
	switch op.name {
	case "allgather":
		want = func(_ *collective.Comm, i int) float32 { return before(i/len(part), i) }
	case "reducescatter":
		got, want = part, func(c *collective.Comm, i int) float32 { return sumOf(c, c.Rank()*len(part)+i) }
	}
	for i, v := range got {
		if v != want(c, i) {
			n++
		}
	}
	return n
}
