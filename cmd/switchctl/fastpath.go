package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/fastpath"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
)

// Where packets are processed. The default is off, because no packet socket, and so no capture,
// sees packets that the kernel processes.
const (
	fastOff  = "off"
	fastXDP  = "xdp"
	fastAuto = "auto"
)

// checkFastPath refuses what the kernel certainly cannot do. Errors are usage errors.
func (o *softswitchOptions) checkFastPath(stderr io.Writer) error {
	switch o.fastPath {
	case fastOff:
		return nil
	case fastXDP, fastAuto:
	case "tc":
		return cli.Usagef("--fastpath tc: there is no such fast path; xdp needs a driver that takes XDP programs, as veth and most others do, and auto does without where one does not")
	default:
		return cli.Usagef("--fastpath %q: it is auto, xdp or off", o.fastPath)
	}
	why := o.slowOnly()
	if why == "" {
		return nil
	}
	if o.fastPath == fastXDP {
		return cli.Usagef("--fastpath xdp: %s", why)
	}
	fmt.Fprintf(stderr, "switchctl softswitch: note: there is no fast path: %s\n", why)
	o.fastPath = fastOff
	return nil
}

// slowOnly returns a given flag that only the switch itself supports; "": none.
func (o *softswitchOptions) slowOnly() string {
	if o.rate != (traffic.Rate{}) {
		return "--queue-rate: the kernel has no queues of that rate"
	}
	if o.pcap != "" {
		return "--pcap: packets that the kernel processes would be missing"
	}
	for _, p := range o.ports {
		if p.name == "" {
			return fmt.Sprintf("port %d is a UDP tunnel; the kernel processes packets of network interfaces, and all ports must be", p.number)
		}
	}
	return ""
}

// A fastPath is a fast path, or nil.
type fastPath struct{ *fastpath.Fast }

// accelerate gives the switch a fast path if it is requested.
func (o *softswitchOptions) accelerate(sw *softswitch.Switch, ports []fastpath.Port, log *slog.Logger) (fastPath, error) {
	if o.fastPath == fastOff {
		warnOfOthers(ports, log)
		return fastPath{}, nil
	}
	f, err := fastpath.New(fastpath.Config{Ports: ports, Now: sw.Now, Log: log})
	switch {
	case err != nil && o.fastPath == fastXDP:
		return fastPath{}, fmt.Errorf("--fastpath xdp: %w", err)
	case err != nil:
		sw.Accelerate(softswitch.NoFastPath(err.Error()))
		log.Warn("there is no fast path; the switch processes all packets itself", "why", err)
		warnOfOthers(ports, log)
		return fastPath{}, nil
	}
	sw.Accelerate(f)
	return fastPath{f}, nil
}

// warnOfOthers warns of XDP programs that take packets before a switch without a fast path gets
// them.
func warnOfOthers(ports []fastpath.Port, log *slog.Logger) {
	if len(ports) == 0 {
		return
	}
	taken, err := fastpath.Taken(ports)
	if err != nil {
		log.Debug("whether ports have XDP programs is not known", "error", err)
	}
	for _, p := range taken {
		log.Warn("another XDP program is at a port, such as that of another switch with --fastpath: packets that it takes do not come here; "+
			"\"ip link\" shows it, and \"bpftool net\" whose it is", "port", p.Number, "name", p.Name)
	}
}

func (f fastPath) close(sw *softswitch.Switch) (err error) {
	if f.Fast != nil {
		sw.Do(func(*pipeline.Pipeline, *pre.Engine) { err = f.Close() })
	}
	return err
}

// log logs the kernel's counters.
func (f fastPath) log(sw *softswitch.Switch, log *slog.Logger) {
	if f.Fast == nil {
		return
	}
	var st fastpath.Stats
	sw.Do(func(*pipeline.Pipeline, *pre.Engine) { st = f.Stats() })
	log.Info("counters", "fast_path", sw.FastPath(), "kernel", nonZero(st), "note", "the ports' counters leave out what the kernel processes")
}
