package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
)

//go:embed rack.yaml
var rack []byte

const (
	name     = "vol"
	patience = time.Minute     // until the volume is there
	pause    = 5 * time.Second // until a host that was killed is started again
)

var hosts = []string{"h1", "h2", "h3"}

// A demo is the demonstration.
type demo struct {
	settings *settings
	out      io.Writer // for people
	stderr   io.Writer

	dir   string
	lab   *lab.Lab
	store *etcd.Store
	ran   map[string]*process
	ended chan *process
	away  bool // etcd does not answer
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// run runs the demonstration until ctx ends, and ends all that it began.
func (d *demo) run(ctx context.Context) (err error) {
	begun := time.Now()
	if err := d.settings.free(); err != nil {
		return err
	}
	dir, remove, err := lab.TempDir()
	if err != nil {
		return err
	}
	d.dir, d.ran, d.ended = dir, map[string]*process{}, make(chan *process, len(hosts))
	defer remove()
	defer func() {
		if ctx.Err() != nil {
			d.say("\nstopping…, which takes some seconds if clients have requests under way")
		}
		if closing := d.close(); err == nil || ctx.Err() != nil {
			err = closing // what ctx has broken off is no fault
		}
	}()
	failed := make(chan error, 1)
	if err := d.start(ctx, failed); err != nil {
		return err
	}
	states := osdmap.New(d.store, osdmap.Options{}).Watch(ctx)
	shown, err := d.wait(ctx, states)
	if err != nil {
		return err
	}
	d.say("ready after %.1f s", time.Since(begun).Seconds())
	d.explain()
	return d.follow(ctx, states, failed, shown)
}

// start starts the rack and the hosts, and makes the volume.
func (d *demo) start(ctx context.Context, failed chan error) error {
	t, err := topology.Parse(rack, "rack.yaml")
	if err != nil {
		return err
	}
	d.say("A rack on this machine: an embedded P4 switch, and the hosts h1, h2 and h3.")
	log := slog.New(slog.DiscardHandler)
	if d.settings.verbose {
		log = slog.New(slog.NewTextHandler(d.stderr, nil))
	}
	d.lab, err = lab.Start(ctx, lab.Options{Dir: d.dir, Topology: t, Logger: log, Failed: func(err error) {
		select {
		case failed <- err:
		default: // the first one counts
		}
	}})
	if err != nil {
		return err
	}
	for i := range hosts {
		if err := os.WriteFile(d.config(i), d.configText(i), 0o600); err != nil {
			return err
		}
	}
	// etcd is there when two of them are, and so they start together.
	for i := range hosts {
		if err := d.startHost(i); err != nil {
			return err
		}
	}
	for _, p := range d.ran {
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
	c := etcd.Config{Files: d.lab.Admin()}
	for _, h := range hosts {
		c.Endpoints = append(c.Endpoints, d.lab.Host(h).Local.String()+":2379")
	}
	if d.store, err = etcd.Dial(c); err != nil {
		return err
	}
	return d.create(ctx)
}

// create makes the volume when all hosts are known.
func (d *demo) create(ctx context.Context) error {
	m := osdmap.New(d.store, osdmap.Options{})
	watching, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	for s := range m.Watch(watching) {
		if len(s.Hosts) < len(hosts) {
			continue
		}
		args := []string{"volume", "create", name, "--size", fmt.Sprint(d.settings.size), "--config", d.config(0)}
		d.say("\n$ mcblock %s", strings.Join(args, " "))
		return d.mcblock(ctx, args...)
	}
	return fmt.Errorf("waiting for the hosts to be known: %w", context.Cause(watching))
}

// wait waits until the volume has a primary.
func (d *demo) wait(ctx context.Context, states <-chan osdmap.State) (shown core.Map, err error) {
	late := time.After(patience)
	for {
		select {
		case s, ok := <-states:
			if !ok {
				return shown, ctx.Err()
			}
			if d.show(&s, &shown); shown.Since > 0 {
				return shown, nil
			}
		case p := <-d.ended:
			return shown, p.died()
		case <-late:
			return shown, fmt.Errorf("the volume has no primary after %v; --verbose shows why", patience)
		}
	}
}

// show says what has changed: whether etcd answers, and the volume's map. Of epochs that follow fast upon each other only the last is
// known.
func (d *demo) show(s *osdmap.State, shown *core.Map) {
	now := time.Now().Format(time.TimeOnly)
	if away := s.Away != nil; away != d.away {
		d.away = away
		d.say("%s  etcd %s", now, map[bool]string{true: fmt.Sprint("does not answer: ", s.Away), false: "answers again"}[away])
	}
	i := slices.IndexFunc(s.Volumes, func(v osdmap.VolumeState) bool { return v.Volume.Name == name })
	if i < 0 && shown.Epoch > 0 && s.Away == nil {
		d.say("%s  the volume was deleted; Ctrl-C ends this", now)
		*shown = core.Map{}
	}
	if i < 0 || s.Volumes[i].Map.Epoch == shown.Epoch {
		return
	}
	passed := ""
	if n := s.Volumes[i].Map.Epoch - shown.Epoch; shown.Epoch > 0 && n > 1 {
		passed = fmt.Sprintf(" (%d before it %s over at once)", n-1, map[bool]string{true: "was", false: "were"}[n == 2])
	}
	*shown = s.Volumes[i].Map
	var acting []string
	for _, m := range shown.Acting {
		acting = append(acting, hosts[m.ID-1])
	}
	primary := "none"
	if shown.Since > 0 {
		primary = hosts[shown.Primary.ID-1]
	}
	d.say("%s  epoch %d%s: primary %s, acting %s", now, shown.Epoch, passed, primary, strings.Join(acting, ", "))
}

// follow shows what happens, and starts hosts again.
func (d *demo) follow(ctx context.Context, states <-chan osdmap.State, failed <-chan error, shown core.Map) error {
	again := make(chan string)
	for {
		select {
		case s, ok := <-states:
			if !ok {
				return nil
			}
			d.show(&s, &shown)
		case p := <-d.ended:
			d.say("%s  %s, process %d, has ended: %v; it is started again in %v", time.Now().Format(time.TimeOnly), p.host, p.Process.Pid, p.Err, pause)
			time.AfterFunc(pause, func() {
				select {
				case again <- p.host:
				case <-ctx.Done():
				}
			})
		case host := <-again:
			if err := d.startHost(slices.Index(hosts, host)); err != nil {
				return err
			}
			d.say("%s  %s is started again, as process %d", time.Now().Format(time.TimeOnly), host, d.ran[host].Process.Pid)
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// explain says what can be done with what is running.
func (d *demo) explain() {
	uri := d.settings.uri(0)
	d.say(`
The volume is at %s; h2 and h3 serve it too, at ports %d and %d.
In another terminal, for example:

  nbdinfo %s
  head -c 64M /dev/urandom > data; nbdcopy data %s
  qemu-img convert -n -O raw debian.qcow2 %s
  fio --name=x --ioengine=nbd --uri=%s --rw=randrw --bs=4k --size=64M --verify=crc32c
  %s volume show %s --config %s

and meanwhile kill hosts, one at a time, but not the one whose port your client uses, as its connection would end; the one named
primary above has the most to hand over:
`, uri, d.settings.nbd.Port()+1, d.settings.nbd.Port()+2, uri, uri, uri, uri, d.settings.mcblock, name, d.config(0))
	for _, h := range hosts {
		d.say("  kill -9 %d    # %s", d.ran[h].Process.Pid, h)
	}
	d.say("\nUntil Ctrl-C, this shows what happens:")
}

// close ends everything.
func (d *demo) close() error {
	var errs []error
	if d.store != nil {
		_ = d.store.Close() // it reports that it is being closed
	}
	for _, p := range d.ran {
		_ = p.Input.Close() // all end at the same time
	}
	for _, p := range d.ran {
		if err := p.End(); err != nil && !p.expected() {
			errs = append(errs, fmt.Errorf("%s: %w", p.host, err))
		}
	}
	if d.lab != nil {
		errs = append(errs, d.lab.Close())
	}
	return errors.Join(errs...)
}
