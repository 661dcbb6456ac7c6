package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/tests/sample"
)

// A contestant is a child process between the veths. A line on its stdin asks
// for the CPU time that it has used; the end of stdin ends it, and then it says
// what it dropped.
type contestant struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(role, profile string) (*contestant, error) {
	cmd := exec.Command("/proc/self/exe", "child", role, profile)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &contestant{cmd, in, bufio.NewReader(out)}
	if line, err := c.out.ReadString('\n'); err != nil || line != "ready\n" {
		c.kill()
		return nil, fmt.Errorf("it did not start: %q, %w", line, err)
	}
	return c, nil
}

// cpu returns the CPU time that the contestant has used.
func (c *contestant) cpu() (d time.Duration, err error) {
	if _, err = io.WriteString(c.in, "cpu\n"); err != nil {
		return 0, err
	}
	line, err := c.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return time.ParseDuration(strings.TrimSpace(line))
}

// stop ends the contestant and returns what it says of its drops.
func (c *contestant) stop() (string, error) {
	c.in.Close()
	said, err := io.ReadAll(c.out)
	return strings.TrimSpace(string(said)), errors.Join(err, c.cmd.Wait())
}

// kill ends one that was not stopped.
func (c *contestant) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// child is a contestant's process.
func child(role, profile string) {
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
	report := func() any { return nil }
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
		report = func() any { return drops(s.Stats()) }
	default:
		return fmt.Errorf("no such role: %q", role)
	}
	fmt.Println("ready")
	asked := bufio.NewScanner(os.Stdin)
	for asked.Scan() {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			return err
		}
		fmt.Println(time.Duration(u.Utime.Nano() + u.Stime.Nano()))
	}
	return json.NewEncoder(os.Stdout).Encode(report())
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

// drops is what the switch dropped, by port or counter and reason.
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
