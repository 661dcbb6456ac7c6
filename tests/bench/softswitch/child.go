package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime/pprof"

	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/tests/bench/child"
	"github.com/mcrdma/mcrdma/tests/bench/report"
	"github.com/mcrdma/mcrdma/tests/sample"
)

// start starts a contestant: a child process between the veths that reports its processor time, and
// at its end its drops.
func start(role, profile string) (*child.Process, error) {
	c, err := child.Start(context.Background(), "", "child", role, profile)
	if err != nil {
		return nil, err
	}
	if line, err := c.Out.ReadString('\n'); err != nil || line != "ready\n" {
		c.End()
		return nil, fmt.Errorf("it did not start: %q, %w", line, err)
	}
	return c, nil
}

// serve is the main function of a contestant's process.
func serve(role, profile string) {
	if err := compete(role, profile); err != nil {
		fmt.Fprintf(os.Stderr, "bench child %s: %v\n", role, err)
		os.Exit(1)
	}
}

func compete(role, profile string) error {
	if profile != "" {
		f, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	var in [2]ports.Port
	for i := range in {
		p, err := ports.OpenInterface(fmt.Sprint("s", i), ports.Options{})
		if err != nil {
			return err
		}
		defer p.Close()
		in[i] = p
	}
	dropped := func() any { return nil }
	switch role {
	case "forward":
		go forward(in[0], in[1])
	case "switch":
		s, err := softswitch.New(softswitch.Config{})
		if err != nil {
			return err
		}
		defer s.Close()
		if err := prepare(s, in); err != nil {
			return err
		}
		dropped = func() any { return drops(s.Stats()) }
	default:
		return fmt.Errorf("no such role: %q", role)
	}
	fmt.Println("ready")
	if err := child.Answer(report.Used); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(dropped())
}

// forward is the plain forwarder: one loop, no program.
func forward(from, to ports.Port) {
	bufs := make([][]byte, ports.MaxBatch)
	for i := range bufs {
		bufs[i] = make([]byte, 0, softswitch.MaxFrame)
	}
	for {
		n, err := from.Recv(bufs)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				fmt.Fprintln(os.Stderr, "bench child forward:", err)
			}
			return
		}
		to.Send(bufs[:n])
	}
}

// prepare gives the switch its ports, program and route.
func prepare(s *softswitch.Switch, in [2]ports.Port) error {
	prog, err := sample.Load()
	if err != nil {
		return err
	}
	p, e, err := s.NewPipeline(prog)
	if err != nil {
		return err
	}
	s.Load(p, e)
	s.Do(func(p *pipeline.Pipeline, _ *pre.Engine) {
		err = sample.Route(p, netip.MustParsePrefix("10.9.0.0/16"), 1, 0x020000000003, 0x020000000004)
	})
	for i, port := range in {
		err = errors.Join(err, s.Attach(uint16(i), port))
	}
	return err
}

// drops is the number of packets that the switch dropped, by port or counter and reason.
func drops(st softswitch.Stats) map[string]uint64 {
	m := map[string]uint64{}
	for _, p := range st.Ports {
		for reason, n := range p.Drops {
			m[p.Name+" "+reason] = n
		}
		for class, q := range p.Classes {
			if q.Dropped > 0 {
				m[fmt.Sprint(p.Name, " class ", class)] = q.Dropped
			}
		}
	}
	if n := st.Pipeline.IngressDrops + st.Pipeline.EgressDrops; n > 0 {
		m["program"] = n
	}
	return m
}
