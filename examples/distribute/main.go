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
//	distribute -members a:7000,b:7000,c:7000 -self 0 some.iso
//	distribute -members a:7000,b:7000,c:7000 -self 1 -out /data
//	distribute -members a:7000,b:7000,c:7000 -self 2 -out /data
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
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
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, s)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("interrupted: %w", err)
		}
		fmt.Fprintln(os.Stderr, "distribute:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*settings, error) {
	s := &settings{}
	f := flag.NewFlagSet("distribute", flag.ContinueOnError)
	f.IntVar(&s.receivers, "n", 0, "start this number of receivers on this machine, and send to them")
	members := f.String("members", "", "addresses of all members, host:port, separated by commas; the first is the sender's")
	f.IntVar(&s.self, "self", 0, "which of the members this is, counted from 0")
	algorithm := f.String("algorithm", auto, "binomial-pipeline, chain, sequential or binomial-tree; by default, what is expected to be fastest; the same everywhere")
	f.IntVar(&s.blockSize, "block", 0, "bytes of a block, the same everywhere; by default, what suits the algorithm")
	f.Float64Var(&s.gbps, "gbps", 10, "Gb/s of each host's link, the same everywhere, for choosing the algorithm")
	f.StringVar(&s.out, "out", "", "directory for what is received; the present one, or with -n, one that is removed in the end")
	f.DurationVar(&s.wait, "wait", time.Minute, "how long to wait for all members to come")
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "distribute -n 4 FILE\ndistribute -members a:7000,b:7000,c:7000 -self 0 FILE\n"+
			"distribute -members a:7000,b:7000,c:7000 -self 1 [-out DIR]")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if *members != "" {
		s.members = strings.Split(*members, ",")
	}
	s.file = f.Arg(0)
	switch {
	case (s.receivers == 0) == (len(s.members) == 0):
		return nil, errors.New("give either -n or -members; -help says more")
	case s.receivers < 0 || s.receivers > 500:
		return nil, fmt.Errorf("-n is %d, must be 1 to 500", s.receivers)
	case s.self == 0 && f.NArg() != 1:
		return nil, errors.New("the sender needs one file")
	case s.self != 0 && f.NArg() != 0:
		return nil, errors.New("receivers take no file, but -out")
	case s.gbps <= 0 || s.gbps > 1e6:
		return nil, fmt.Errorf("-gbps is %v, must be more than 0", s.gbps)
	case s.blockSize < 0:
		return nil, fmt.Errorf("-block is %d, must be at least 1", s.blockSize)
	}
	return s, s.choose(*algorithm)
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

// join makes the group, with a listener or, if that is nil, at the member's own
// address.
func join(ctx context.Context, s *settings, l net.Listener, c rdmcfallback.Config, show func(string)) (*rdmcfallback.Group, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.wait, fmt.Errorf("not all members came within %v", s.wait))
	defer cancel()
	met := 0
	t, err := tcp.Connect(ctx, tcp.Options{Members: s.members, Self: s.self, Listener: l, Progress: func(int) {
		met++
		show(fmt.Sprintf("%d of %d members are here", met+1, len(s.members)))
	}})
	if err != nil {
		return nil, err
	}
	c.Members, c.Self, c.Algorithm, c.BlockSize = s.members, s.self, s.algorithm, s.blockSize
	return rdmcfallback.Join(ctx, c, t)
}
