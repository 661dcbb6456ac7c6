package main

import (
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/rates"
	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// fabricFlags describe the fabric.
type fabricFlags struct {
	topology, rate, buffer string
	rates                  rates.Flags
	delay                  time.Duration
	mtu, window            int
	noPFC, noECN           bool
}

func (f *fabricFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.rate, "rate", "100gbit", "`rate` of hosts' links")
	f.rates.Add(fs, "", "that of hosts' links")
	fs.DurationVar(&f.delay, "delay", 500*time.Nanosecond, "propagation `time` of a link")
	fs.IntVar(&f.mtu, "mtu", 4096, "`bytes` of payload in a packet")
	fs.IntVar(&f.window, "window", simnet.Defaults().Window, "maximum number of `packets` in flight of a queue pair; NICs have no such limit")
	fs.StringVar(&f.buffer, "buffer", "12M", "`bytes` of a switch's buffer")
	fs.BoolVar(&f.noPFC, "no-pfc", false, "switches drop packets when buffers are full, instead of pausing senders")
	fs.BoolVar(&f.noECN, "no-ecn", false, "switches mark no packets, so senders do not slow down")
}

// addTopology adds the flag that comes first.
func (f *fabricFlags) addTopology(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.topology, "topology", "t", "", "the fabric, a topology `file`")
	cli.CompleteFile(cmd, "topology", "yaml", "json")
}

// A fabric is a fabric for simulations.
type fabric struct {
	topology *topology.Topology
	params   simnet.Params
	rates    rates.Rates
}

// read reads the flags. Errors are usage errors.
func (f *fabricFlags) read() (*fabric, error) {
	if f.topology == "" {
		return nil, cli.Usagef("--topology FILE is needed: the fabric, as docs/topology.md describes it")
	}
	t, err := topology.Load(f.topology)
	if err != nil {
		return nil, cli.Usage(err)
	}
	out := &fabric{topology: t, params: simnet.Defaults()}
	p := &out.params
	if p.HostRate, err = rates.Bits("rate", f.rate); err != nil {
		return nil, err
	}
	if out.rates, err = f.rates.Rates(t); err != nil {
		return nil, err
	}
	if p.FabricRate = out.rates.Fabric; p.FabricRate == 0 {
		p.FabricRate = p.HostRate
	}
	if p.Buffer, err = cmdline.ParseSize(f.buffer); err != nil {
		return nil, cli.Usagef("--buffer: %w", err)
	}
	p.HostDelay, p.FabricDelay, p.MTU, p.PFC, p.Window = f.delay, f.delay, f.mtu, !f.noPFC, f.window
	p.AckEvery = max(1, min(p.AckEvery, p.Window/4)) // as softroce does
	if f.noECN {
		p.KMax = 0
	}
	return out, nil
}

// simulation returns a new simulation.
func (f *fabric) simulation(seed uint64) (*simnet.Sim, error) {
	s, err := simnet.New(f.topology, f.params, seed)
	if err != nil {
		return nil, err
	}
	for _, l := range f.rates.Links() {
		if err := s.SetRate(l[0], l[1], f.rates.Link(l[0], l[1])); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// hostsOf finds hosts by name; no names: all.
func hostsOf(s *simnet.Sim, names []string) (list []int, err error) {
	if len(names) == 0 {
		return s.Hosts(), nil
	}
	for _, n := range names {
		h, err := s.Host(n)
		if err != nil {
			return nil, err
		}
		if slices.Contains(list, h) {
			return nil, errors.New(n + " is there twice")
		}
		list = append(list, h)
	}
	return list, nil
}

// sizeOf parses a flag's bytes. Errors are usage errors.
func sizeOf(flag, text string) (int, error) {
	n, err := cmdline.ParseSize(text)
	if err != nil || n < 1 || n > 1<<30 {
		return 0, cli.Usagef("--%s %q: want 1 to 1G bytes", flag, text)
	}
	return n, nil
}
