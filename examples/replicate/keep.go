package main

import (
	"context"
	"errors"
	"maps"
	"syscall"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// keep lets everything run until the user ends it, with a group that is written to
// once a second.
func (d *demo) keep(ctx context.Context) error {
	if err := d.startReceiver(ctx, victim); err != nil {
		return err
	}
	g, err := d.sender.group(ctx, ways[0], receivers)
	if err != nil {
		return err
	}
	defer func() { _ = closeGroup(g) }()
	defer d.forget()
	d.explain(g)
	piece := d.sender.memory.Slice(0, min(d.settings.write, len(d.sender.memory.Bytes())))
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	events := g.Events()
	for {
		select {
		case <-tick.C:
			if err := g.Write(ctx, mcrdma.At{}, piece); err != nil && ctx.Err() == nil {
				d.say("   nothing is written any more: %v", err)
				tick.Stop()
			}
		case e, ok := <-events:
			if !ok {
				events = nil // Write has the error
				continue
			}
			d.say("   %s  %v", e.Time.Format(time.TimeOnly), e)
		case <-ctx.Done():
			var i interruption
			if err := context.Cause(ctx); !errors.As(err, &i) || i.Signal != syscall.SIGINT {
				return err
			}
			return nil // as was said
		}
	}
}

// forget removes receivers that the user has killed meanwhile.
func (d *demo) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.processes, func(_ string, p *process) bool {
		select {
		case <-p.Done:
			return true
		default:
			return false
		}
	})
}

// explain says what can be done with what is running.
func (d *demo) explain(g *mcrdma.Group) {
	files := d.lab.Admin()
	d.say(`
Everything keeps running, with a group that is written to once a second, until Ctrl-C.
In another terminal, in this directory:

  export SWITCHCTL_AGENT=%s SWITCHCTL_TLS_CERT=%s SWITCHCTL_TLS_KEY=%s SWITCHCTL_TLS_CA=%s
  go run ./cmd/switchctl status --peers
  go run ./cmd/switchctl group show %s/%d
  go run ./cmd/switchctl top --peers
  go run ./cmd/switchctl dashboard --daemon %s    # a live page

  export MCRDMA_SOCKET=%s        # the daemon of h1
  go run ./cmd/cmd-daemon status
  go run ./cmd/cmd-daemon groups
  go run ./cmd/cmd-daemon watch                # events, as they happen

or kill a receiver:`, d.lab.Agent(d.lab.Host(from).Switch), files.Cert, files.Key, files.CA, g.Info().ID.Source, g.Info().ID.Number,
		d.lab.Host(from).Socket, d.lab.Host(from).Socket)
	for _, host := range receivers {
		d.say("  kill -9 %d    # on %s", d.process(host).Process.Pid, host)
	}
}
