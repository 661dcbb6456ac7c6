package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

const (
	ours = "mcrdma"
	nic  = "eth0"

	unlimited = 10e9
)

// A rack is a switch with hosts that each run mcbench.
type rack struct {
	o              *options
	mcbench, agent string // programs
	lab            *lab.Lab
}

func newRack(ctx context.Context, dir string, o *options) (*rack, error) {
	r := &rack{o: o, mcbench: filepath.Join(dir, "mcbench"), agent: filepath.Join(dir, "agent")}
	programs, err := lab.Build(dir, "cmd/mcbench")
	if err != nil {
		return nil, err
	}
	at := filepath.Join(dir, "lab")
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, err
	}
	if r.lab, err = lab.Start(ctx, programs, at, lab.Spec{Racks: []int{o.ranks}}); err != nil {
		return nil, err
	}
	if err := r.writeAgent(); err != nil {
		return nil, errors.Join(err, r.lab.Close())
	}
	return r, nil
}

// writeAgent writes the program that MPI calls instead of ssh: it runs a command in the namespace
// of the host's daemon. MPI would treat hosts of the same name as one.
func (r *rack) writeAgent() error {
	text := "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\ncase $host in\n"
	for _, h := range r.lab.Hosts {
		text += fmt.Sprintf("%v) name=%s pid=%d;;\n", h.Addr, h.Name, h.Daemon.PID())
	}
	text += "*) echo \"no host $host\" >&2; exit 1;;\nesac\nexec nsenter -t $pid -n unshare --uts sh -c \"hostname $name; $*\"\n"
	return os.WriteFile(r.agent, []byte(text), 0o700) //nolint:gosec // a program
}

// limit sets the rate of all hosts' links, in bits per second; 0: practically unlimited.
func (r *rack) limit(up, down uint64) error {
	if up == 0 {
		up, down = unlimited, unlimited
	}
	for i, h := range r.lab.Hosts {
		if err := errors.Join(h.Space.Limit(nic, up), r.lab.Switch("torA").Space.Limit(fmt.Sprint("swp", 1+i), down)); err != nil {
			return err
		}
	}
	return nil
}

// A result is one of mcbench's results.
type result struct {
	Operation string  `json:"operation"`
	By        string  `json:"by"`
	Size      int     `json:"size"`
	Time      float64 `json:"time_usec"`
	Uplink    float64 `json:"uplink"`
	ByMPI     float64 `json:"by_mpi"`
}

type results []result

// coll runs "mcbench coll" on that many hosts, and returns the output of the first.
func (r *rack) coll(ctx context.Context, service string, ranks int, show bool, args ...string) (list results, err error) {
	var addresses []string
	for _, h := range r.lab.Hosts[:ranks] {
		addresses = append(addresses, h.Addr.String())
	}
	args = append([]string{r.mcbench, "coll", "--service", service, "--hosts", strings.Join(addresses, ","), "--interface", nic, "--mpi-agent", r.agent, "--json",
		"-n", fmt.Sprint(r.o.count), "--warm-up", "1", "--rounds", fmt.Sprint(r.o.rounds)}, args...)
	var ps []*lab.Process
	for _, h := range r.lab.Hosts[:ranks] {
		ps = append(ps, &lab.Process{Name: "mcbench of " + h.Name, Space: h.Space, Args: append(slices.Clone(args), "--socket", h.Socket), Talks: true})
	}
	defer func() {
		if err != nil {
			_ = lab.Each(ps, func(p *lab.Process) error { p.Signal(unix.SIGTERM); return nil })
		}
		err = errors.Join(err, lab.Each(ps, (*lab.Process).Stop))
	}()
	if err := lab.Each(ps, func(p *lab.Process) error { return p.Start(ctx) }); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		for _, p := range ps {
			p.Signal(unix.SIGTERM)
		}
	})
	defer stop()
	var text json.RawMessage
	err = json.NewDecoder(ps[0].Out).Decode(&text)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil || show {
		fmt.Print(ps[0].Log())
	}
	if err != nil {
		for _, p := range ps[1:] {
			fmt.Print(p.Log())
		}
		return nil, fmt.Errorf("mcbench: %w", err)
	}
	return list, nil
}

func (list results) table() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "operation\tby\tbytes\tms\tuplink x size\tx mpi\t")
	for _, x := range list {
		uplink, byMPI := "", ""
		if x.By == ours {
			uplink, byMPI = fmt.Sprintf("%.3f", x.Uplink), fmt.Sprintf("%.2f", x.ByMPI)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%.2f\t%s\t%s\t\n", x.Operation, x.By, x.Size, x.Time/1e3, uplink, byMPI)
	}
	_ = w.Flush()
}
