package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/fastpath"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/tests/bench/child"
	"github.com/mcrdma/mcrdma/tests/bench/report"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// What processes the packets: the switch itself, the kernel, or bmv2, given by its launcher's path.
const (
	bySwitch = "switch"
	byKernel = "kernel"
)

// A process is a switch between the veths. A line on its standard input asks for its processor
// time; the end of standard input ends it.
type process struct {
	*child.Process
	programs map[string]*ebpf.Program // in the kernel
	own      bool                     // only its own processor time counts
}

func start(by string, groups int) (_ *process, err error) {
	c, err := child.Start(context.Background(), "", "child", by, strconv.Itoa(groups))
	if err != nil {
		return nil, err
	}
	s := &process{c, map[string]*ebpf.Program{}, by != bySwitch && by != byKernel}
	defer func() {
		if err != nil {
			s.kill()
		}
	}()
	line, err := s.Out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "ready") {
		return nil, fmt.Errorf("the switch did not start: %q, %w", line, err)
	}
	for _, id := range strings.Fields(line)[1:] {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("the switch's programs: %w", err)
		}
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(n))
		if err != nil {
			return nil, fmt.Errorf("the switch's programs: %w", err)
		}
		info, err := p.Info()
		if err != nil {
			return nil, fmt.Errorf("the switch's programs: %w", err)
		}
		s.programs[info.Name] = p
	}
	return s, nil
}

// ran is the run time of a program of the switch.
type ran struct {
	runs uint64
	time time.Duration
}

// ran returns the run time of one of its programs since the start.
func (s *process) ran(name string) (r ran) {
	if p := s.programs[name]; p != nil {
		if st, err := p.Stats(); err == nil {
			r = ran{st.RunCount, st.Runtime}
		}
	}
	return r
}

// kill ends the process; the kernel detaches its programs from the ports.
func (s *process) kill() {
	for _, p := range s.programs {
		p.Close()
	}
	s.End()
}

// serve is the main function of the switch's process.
func serve(args []string) error {
	if len(args) != 2 {
		return errors.New("by what, and how many groups, are its arguments")
	}
	if by := args[0]; by != bySwitch && by != byKernel { // bmv2
		cpu, err := startBMv2(by)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		return child.Answer(cpu)
	}
	groups, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	rack, err := dataplane.NewRack()
	if err != nil {
		return err
	}
	rack.SetICRC(dataplane.Neutral)
	for i := range groups {
		rack.Install(theGroup(i))
	}
	sw, err := softswitch.New(softswitch.Config{})
	if err != nil {
		return err
	}
	defer sw.Close()
	sw.Load(rack.Pipeline, rack.PRE)
	var all []fastpath.Port
	for n := uint16(1); n <= hosts; n++ {
		p, err := ports.OpenInterface(fmt.Sprint("s", n), ports.Options{})
		if err != nil {
			return err
		}
		all = append(all, fastpath.Port{Number: n, Name: p.Name(), Index: p.Index()})
		if err := sw.Attach(n, p); err != nil {
			return errors.Join(err, p.Close())
		}
	}
	ready := "ready"
	if args[0] == byKernel {
		f, err := fastpath.New(fastpath.Config{Ports: all, Now: sw.Now, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		sw.Accelerate(f)
		defer sw.Do(func(*pipeline.Pipeline, *pre.Engine) { f.Close() })
		if status := sw.FastPath(); !strings.HasPrefix(status, "xdp") {
			return errors.New(status)
		}
		for _, id := range f.Programs() {
			ready += fmt.Sprint(" ", id)
		}
	}
	fmt.Println(ready)
	return child.Answer(report.Used)
}
