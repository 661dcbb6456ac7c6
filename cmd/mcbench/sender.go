package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// A kind is a measuring command.
type kind struct {
	name    string
	short   string
	long    string
	depth   int // by default
	compare bool
	form    func(w io.Writer, out *cli.Output, r *report) error
}

var kinds = []kind{
	{name: "lat", short: "Measure the latency of writes", depth: 1, form: latencyText, long: `Measures the time of a write, from its submission until the sender knows that every
receiver has it: a full round trip, where perftest's write_lat shows half of one. The
columns are perftest's, followed by the sender's processor time per write.`},
	{name: "bw", short: "Measure the bandwidth of writes", depth: 8, form: bandwidthText, long: `Measures the rate of payload to every receiver. The columns are perftest's, followed
by the sender's processor time per write. The peak is that of the best tenth of the
writes.`},
	{name: "compare", short: "Compare ways to replicate, by turns", depth: 8, compare: true, form: compareText, long: `Measures several ways with the same receivers. The ways take turns (--rounds), so that
other load on the machines affects all of them equally. Ratios are to the first of
--ways, and are medians of the rounds' ratios.`},
}

// jsonHelp ends the help of all kinds.
const jsonHelp = `

The JSON has test_info, the options, and results, one for each way, size and depth, with
perftest's keys (times in microseconds, bandwidths in Gb/s) and this program's own.`

func senderCommand(k kind, args []string, inner *int) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   k.name + " --receivers HOST,… | --lab [flags]",
		Short: k.short,
		Long:  k.long + jsonHelp,
		Example: fmt.Sprintf(`  mcbench %[1]s --receivers h2,h3,h4 -a -n 500
  mcbench %[1]s --receivers h2,h3 -s 4K,64K -t 1,8 --check --json
  mcbench %[1]s --lab --rate 100mbit -a -D 2s`, k.name),
		Args: cli.NoArgs,
	}
	f.add(cmd, k)
	out := cli.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o, err := f.options()
		if err != nil {
			return err
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		if o.lab && os.Getenv(innerEnv) == "" {
			receiver := func(ctx context.Context, socket string) (*lab.Child, error) {
				return startReceiver(ctx, socket, o.service, cmd.ErrOrStderr())
			}
			*inner, err = inLab(ctx, labPlan{rate: o.rate, rates: o.rates, deadAfter: o.deadAfter, topology: o.fabric, hosts: o.receivers, begin: receiver}, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
			return err
		}
		ctx, end := withParent(ctx)
		defer end()
		return send(ctx, k, o, cmd, out)
	}
	return cmd
}

// send measures, and prints the results, also after an error.
func send(ctx context.Context, k kind, o *options, cmd *cobra.Command, out *cli.Output) error {
	dialing, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	client, err := mcrdma.Dial(dialing, mcrdma.Options{Socket: cli.Socket(o.socket), Program: "mcbench"})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the end of the session ends everything
	progress := io.Discard
	if !o.quiet {
		progress = cmd.ErrOrStderr()
	}
	b := &bench{o: o, client: client, progress: cli.NewProgress(progress), report: newReport(k, o, client)}
	if o.lab {
		b.lab = openLab()
		defer b.lab.close()
	}
	failed := b.all(ctx)
	b.progress.Done()
	if ctx.Err() != nil && failed != nil {
		failed = errors.New("interrupted")
	}
	if len(b.report.Results) == 0 {
		return failed
	}
	if out.IsJSON() {
		err = out.JSON(cmd.OutOrStdout(), b.report)
	} else {
		err = k.form(cmd.OutOrStdout(), out, b.report)
	}
	if o.plot != "" && err == nil && failed == nil {
		err = writePlot(o.plot, b.report)
	}
	return errors.Join(failed, err)
}

// A bench measures everything that the options ask for.
type bench struct {
	o        *options
	client   *mcrdma.Client
	lab      *labLink // nil: no lab
	progress *cli.Progress
	what     string // name of the current measurement
	count    int    // number of its completed writes
	report   *report
}

func (b *bench) all(ctx context.Context) error {
	memory, err := b.client.Alloc(slices.Max(b.o.sizes) + shifts)
	if err != nil {
		return err
	}
	copy(memory.Bytes(), pattern(slices.Max(b.o.sizes)))
	for _, loss := range b.o.losses {
		for _, depth := range b.o.depths {
			for _, size := range b.o.sizes {
				if err := b.one(ctx, memory, loss, depth, size); err != nil {
					return fmt.Errorf("writes of %d bytes, %d at a time: %w", size, depth, err)
				}
			}
		}
	}
	return nil
}

// one measures all ways with one size, depth and loss.
func (b *bench) one(ctx context.Context, memory *mcrdma.Memory, loss float64, depth, size int) (err error) {
	streams := make([]*stream, 0, len(b.o.ways))
	defer func() {
		errs := make([]error, len(streams))
		var closing sync.WaitGroup
		for i, s := range streams { // in parallel, because without a daemon each takes its time
			closing.Go(func() { errs[i] = s.close(ctx) })
		}
		closing.Wait()
		if err == nil {
			err = errors.Join(errs...) // after another error groups are rarely usable
		}
	}()
	if err := b.lab.lose(0); err != nil { // groups are created without loss
		return err
	}
	for _, w := range b.o.ways {
		s, err := newStream(ctx, b.client, memory, b.o, w, size, depth)
		if err != nil {
			return err
		}
		streams = append(streams, s)
	}
	if err := b.lab.lose(loss); err != nil {
		return err
	}
	samples := make([][]*sample, len(streams))
	rounds := b.o.rounds
	for round := range rounds {
		for i, s := range streams {
			b.count, b.what = 0, fmt.Sprintf("%s, %d bytes, depth %d", s.way.name, size, depth)
			if rounds > 1 {
				b.what += fmt.Sprintf(", round %d of %d", round+1, rounds)
			}
			r, err := b.turn(ctx, s, round)
			if err != nil {
				return err
			}
			samples[i] = append(samples[i], r)
		}
	}
	for i, s := range streams {
		if err := s.verified(ctx); err != nil {
			return err
		}
		b.report.Results = append(b.report.Results, b.result(s, loss, samples[i], samples[0]))
	}
	return nil
}

// turn measures one way for one round.
func (b *bench) turn(ctx context.Context, s *stream, round int) (*sample, error) {
	rounds := b.o.rounds
	share := b.o.duration / time.Duration(rounds)
	if round == 0 && b.o.warmUp > 0 {
		if _, err := s.run(ctx, b.o.warmUp, share/2, func() {}); err != nil {
			return nil, err
		}
	}
	n := b.o.count*(round+1)/rounds - b.o.count*round/rounds
	before, err := b.lab.uplink()
	if err != nil {
		return nil, err
	}
	r, err := s.run(ctx, max(n, 1), share, b.step)
	if err != nil {
		return nil, err
	}
	after, err := b.lab.uplink()
	r.uplink = after - before
	return r, err
}

// step reports that another write has completed.
func (b *bench) step() {
	if b.count++; b.count&15 == 0 { // reading the clock takes time
		b.progress.Say(func() string { return fmt.Sprintf("%s: %s", b.what, cli.Plural(b.count, "write")) })
	}
}

func (b *bench) result(s *stream, loss float64, own, first []*sample) result {
	info := s.group.Info()
	r := result{Way: s.way.name, Path: info.Path.String(), Algorithm: info.Algorithm, Transport: info.Transport, Depth: s.depth,
		Loss: loss, MsgSize: s.layout.size, Checked: s.layout.check,
		Posts: float64(info.Stats.Posts) / float64(max(info.Stats.Completed, 1))}
	r.summarize(own)
	if len(b.o.ways) > 1 {
		r.compare(own, first)
	}
	return r
}
