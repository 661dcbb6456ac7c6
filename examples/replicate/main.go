// Command replicate shows what mcrdma does: it replicates a file to three hosts in two
// racks, first by multicast in the switches, and then in the ways that hosts have
// without it, and compares. Then it kills a receiver, and the write goes on.
//
//	go run ./examples/replicate                      # 64 MiB of random bytes
//	go run ./examples/replicate --file some.iso
//
// Everything runs on this machine and takes no privilege: package lab starts embedded
// P4 switches, their agents and the hosts' daemons in this process; the receivers are
// processes of their own. What an application has to do is in receiver.go and send.go.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/examples/internal/bar"
	"github.com/mcrdma/mcrdma/internal/cmdline"
)

const usage = `replicate [flags]

Replicates a file from host h1 to the hosts h2, h3 and h4, which are in two racks:
by switch multicast, by fan-out, along a chain, and by RDMC. Then a receiver is
killed in the middle, and the write goes on. All of it is on this machine: three
embedded switches with an agent beside each, four daemons, and three processes
that receive. Nothing is installed, no privilege is needed, nothing is left.

For each way there is a line in the table at the end:

  UPLINK      bytes that h1 has sent, as its switch has counted them; and how many
              times the file that is: 1.00 would be the file without any headers
  ALL HOSTS   the same for all four hosts: what relaying takes from the others
  POSTS       requests that h1 gave its device, for each write; with relaying, blocks
  COMPLETIONS that h1 waited for, for each write
  GOODPUT     at each receiver. The switches are programs on this machine, which all
              shares its processors: compare bytes rather than times

Exit codes: 0, all replicas were equal; 1, something failed; 2, wrong flags; 130,
interrupted.
`

// settings are what the flags say.
type settings struct {
	file    string
	size    int
	write   int
	depth   int
	json    bool
	keep    bool
	verbose bool
}

// Limits of settings. The file is in memory four times: at its sender and at three
// receivers.
const (
	maxFile  = 1 << 30
	maxDepth = 256
)

func main() {
	if socket := os.Getenv(receiverEnv); socket != "" {
		os.Exit(receiverMain(socket, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// command runs the program and returns its exit code.
func command(args []string, stdout, stderr *os.File) int {
	s, err := parse(args, stdout)
	if err != nil {
		return cmdline.Exit("replicate", err, stderr)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	d := &demo{settings: s, stderr: stderr, results: stdout, out: stdout, cancel: cancel}
	if s.json {
		d.out = stderr
	}
	ended := make(chan struct{})
	defer close(ended)
	go d.heed(signals, ended)
	return d.exit(d.run(ctx))
}

// run demonstrates, and ends all that it began.
func (d *demo) run(ctx context.Context) (err error) {
	data, what, err := d.settings.content()
	if err != nil {
		return err
	}
	d.sum = sha256.Sum256(data)
	d.processes = map[string]*process{}
	defer func() {
		if ctx.Err() != nil && err != nil {
			err = causeOf(ctx, err)
		}
		if closeErr := d.close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("ending: %w", closeErr))
		}
	}()
	if err := d.start(ctx, data); err != nil {
		return err
	}
	d.say("File: %s, %s, SHA-256 %x", what, bar.Bytes(uint64(len(data))), d.sum)
	d.say("From h1 to the memory of h2, h3 and h4 in %d writes of %s, %d under way at a time.", d.sender.writes(),
		bar.Bytes(uint64(min(d.settings.write, len(data)))), d.settings.depth)

	r := results{File: fileResult{Name: what, Bytes: len(data), SHA256: hexText(d.sum[:])}, Write: d.settings.write, Depth: d.settings.depth}
	for i, w := range ways {
		one, err := d.replicate(ctx, i+1, w)
		if err != nil {
			return fmt.Errorf("replicating by %s: %w", w.name, err)
		}
		r.Ways = append(r.Ways, one)
	}
	d.say("\n%s", r.table())
	if r.Failure, err = d.failure(ctx); err != nil {
		return fmt.Errorf("replicating while %s dies: %w", victim, err)
	}
	if d.settings.json {
		if err := r.json(d.results); err != nil {
			return err
		}
	}
	if d.settings.keep {
		return d.keep(ctx)
	}
	return nil
}

// An interruption ends the program by a signal.
type interruption struct{ syscall.Signal }

func (i interruption) Error() string { return fmt.Sprintf("ended by a signal (%v)", i.Signal) }

// heed ends the demonstration at the first signal, and the whole program at the
// second.
func (d *demo) heed(signals <-chan os.Signal, ended <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case sig := <-signals:
			why := interruption{sig.(syscall.Signal)}
			if n > 0 {
				d.abandon()
				os.Exit(128 + int(why.Signal))
			}
			d.cancel(why)
		case <-ended:
			return
		}
	}
}

// exit says what was wrong, and returns the exit code.
func (d *demo) exit(err error) int {
	if err == nil {
		return 0
	}
	d.bar.End()
	fmt.Fprintf(d.stderr, "replicate: %v\n", err)
	if i, ok := errors.AsType[interruption](err); ok {
		return 128 + int(i.Signal)
	}
	if log := d.log.String(); log != "" {
		fmt.Fprintf(d.stderr, "what was logged last:\n%s", log)
	}
	return 1
}

func parse(args []string, help io.Writer) (*settings, error) {
	s := &settings{size: 64 << 20, write: 1 << 20}
	f := pflag.NewFlagSet("replicate", pflag.ContinueOnError)
	f.StringVar(&s.file, "file", "", "the `file` to replicate, of 1 GiB at most; default: random bytes, the same each time")
	f.Var((*cmdline.Size)(&s.size), "size", "`bytes` of random bytes, such as 4096, 64K or 8M, without --file")
	f.Var((*cmdline.Size)(&s.write), "write", "`bytes` of each write")
	f.IntVar(&s.depth, "depth", 8, "`writes` under way at the same time")
	f.BoolVar(&s.json, "json", false, "print the results as JSON to standard output, and all else to standard error")
	f.BoolVar(&s.keep, "keep", false, "in the end, keep everything running until Ctrl-C, to be looked at")
	f.BoolVar(&s.verbose, "verbose", false, "log what agents, daemons and switches do, to standard error")
	if err := cmdline.Parse(f, usage, args, help); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, cmdline.Usagef("%q: the file is given as --file %[1]s", f.Arg(0))
	case s.file == "" && (s.size < 1 || s.size > maxFile):
		return nil, cmdline.Usagef("--size %d: it is 1 to %d", s.size, maxFile)
	case s.write < 1 || s.write > maxFile:
		return nil, cmdline.Usagef("--write %d: it is 1 to %d", s.write, maxFile)
	case s.depth < 1 || s.depth > maxDepth:
		return nil, cmdline.Usagef("--depth %d: it is 1 to %d", s.depth, maxDepth)
	}
	return s, nil
}
