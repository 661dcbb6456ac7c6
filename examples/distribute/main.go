// Command distribute copies a file from one process to others, which relay its
// blocks to each other as they come, over TCP: so n copies take little longer
// than one. The sender says which way of relaying it chose, and why. The file
// appears at its receivers only when all of them have all of it.
//
// One command starts the sender and n receivers on this machine:
//
//	go run ./examples/distribute -n 4 some.iso
//
// On several hosts, one command on each, in any order; the addresses and their
// order are the same everywhere, the first is the sender's:
//
//	distribute --members a:7000,b:7000,c:7000 --self 0 some.iso
//	distribute --members a:7000,b:7000,c:7000 --self 1 --out /data
//	distribute --members a:7000,b:7000,c:7000 --self 2 --out /data
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// A settings value is what the flags say.
type settings struct {
	receivers int
	members   []string
	self      int
	algorithm schedule.Algorithm
	blockSize int
	gbps      float64
	plan      string // why the algorithm was chosen, if it was
	out       string
	wait      time.Duration
	file      string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := parse(os.Args[1:])
	if err == nil {
		if err = run(ctx, s); err != nil && ctx.Err() != nil {
			err = fmt.Errorf("interrupted: %w", err)
		}
	}
	os.Exit(cmdline.Exit("distribute", err, os.Stderr))
}

const usage = `distribute -n 4 FILE
distribute --members a:7000,b:7000,c:7000 --self 0 FILE
distribute --members a:7000,b:7000,c:7000 --self 1 [--out DIR]

Copies a file to others, which relay its blocks to each other as they come, over TCP.
`

func parse(args []string) (*settings, error) {
	s := &settings{}
	f := pflag.NewFlagSet("distribute", pflag.ContinueOnError)
	f.IntVarP(&s.receivers, "receivers", "n", 0, "start this `number` of receivers on this machine, and send to them")
	f.StringSliceVar(&s.members, "members", nil, "`addresses` of all members, host:port, with commas between; the first is the sender's")
	f.IntVar(&s.self, "self", 0, "the `number` of the member that this is, counted from 0")
	algorithm := f.String("algorithm", auto, "`way` of relaying: binomial-pipeline, chain, sequential or binomial-tree; by default, what is expected to be fastest; the same everywhere")
	f.Var((*cmdline.Size)(&s.blockSize), "block", "`bytes` of a block, such as 64K, the same everywhere; by default, what suits the algorithm")
	f.Float64Var(&s.gbps, "gbps", 10, "`Gb/s` of each host's link, the same everywhere, for choosing the algorithm")
	f.StringVar(&s.out, "out", "", "`directory` for what is received; the present one, or with -n, one that is removed in the end")
	f.DurationVar(&s.wait, "wait", time.Minute, "`time` to wait for all members to come")
	if err := cmdline.Parse(f, usage, args, os.Stdout); err != nil {
		return nil, err
	}
	s.file = f.Arg(0)
	switch {
	case (s.receivers == 0) == (len(s.members) == 0):
		return nil, cmdline.Usagef("give either -n or --members")
	case s.receivers < 0 || s.receivers > 500:
		return nil, cmdline.Usagef("-n is %d, must be 1 to 500", s.receivers)
	case s.self == 0 && f.NArg() != 1:
		return nil, cmdline.Usagef("the sender needs one file")
	case s.self != 0 && f.NArg() != 0:
		return nil, cmdline.Usagef("receivers take no file, but --out")
	case s.gbps <= 0 || s.gbps > 1e6:
		return nil, cmdline.Usagef("--gbps is %v, must be more than 0", s.gbps)
	}
	if err := s.choose(*algorithm); err != nil {
		return nil, cmdline.Usage(err)
	}
	return s, nil
}

func run(ctx context.Context, s *settings) error {
	switch {
	case s.receivers > 0:
		return demonstrate(ctx, s)
	case s.self == 0:
		return send(ctx, s, nil)
	}
	l, err := inherited()
	if err != nil {
		return err
	}
	return receive(ctx, s, l)
}
