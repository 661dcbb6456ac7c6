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
	"time"

	"github.com/mcrdma/mcrdma/tests/chaos/watch"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

const (
	ready = 30 * time.Second // until all copies are there
	name  = "vol"
	size  = 256 << 20 // bytes of a volume
	nbdAt = "127.0.0.1:10809"

	metricsAt = "127.0.0.1:9809"

	// Arguments with which this program does something else: it becomes another one (watch.Exec), or measures a disk.
	watched = "watched"
	syncing = "fdatasyncs"
)

// A rack is a lab with two volumes. mcbench has the hosts of the second rack, because a device
// belongs to one program.
type rack struct {
	dir      string
	self     string // this program
	programs lab.Programs
	lab      *lab.Lab
	volumes  []*volume
	servers  []*lab.Process // of mcbench
	disk     time.Duration
	watchers []*watch.Watcher
}

// A volume has copies on three hosts of the rack.
type volume struct {
	rack    *rack
	name    string
	hosts   []*lab.HostNode
	blocks  []*lab.Process // mcblock, by host
	primary int            // index of the host
}

func newRack(ctx context.Context, dir string, disk time.Duration) (*rack, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &rack{dir: dir, self: self, disk: disk}
	bin := filepath.Join(dir, "bin")
	if r.programs, err = lab.Build(bin, "cmd/mcblock", "cmd/mcbench"); err != nil {
		return nil, err
	}
	at := filepath.Join(dir, "lab")
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, err
	}
	if r.lab, err = lab.Start(ctx, r.programs, at, lab.Spec{Racks: []int{6, 3}}); err != nil {
		return nil, err
	}
	if err := r.start(ctx); err != nil {
		return nil, fmt.Errorf("%w\n%s", errors.Join(err, r.close()), r.logs())
	}
	return r, nil
}

func (r *rack) start(ctx context.Context) error {
	for i, args := range [][]string{nil, {"--relay", "sequential"}} {
		v := &volume{rack: r, name: name, hosts: r.lab.Hosts[3*i:][:3]}
		r.volumes = append(r.volumes, v)
		if err := v.start(ctx, args); err != nil {
			return err
		}
	}
	for _, h := range r.lab.Hosts[7:] {
		p := &lab.Process{Name: "mcbench of " + h.Name, Space: h.Space, Args: []string{r.program("mcbench"), "serve", "--socket", h.Socket}}
		r.servers = append(r.servers, p)
	}
	return lab.Each(r.servers, func(p *lab.Process) error { return p.Start(ctx) })
}

func (r *rack) program(name string) string { return filepath.Join(r.dir, "bin", name) }

func (r *rack) processes() []*lab.Process {
	list := slices.Clone(r.servers)
	for _, v := range r.volumes {
		list = append(list, v.blocks...)
	}
	return list
}

func (r *rack) logs() string { return r.lab.Logs() + lab.Logs(r.processes()...) }

func (r *rack) close() error {
	err := lab.Each(r.processes(), (*lab.Process).Stop)
	for _, w := range r.watchers {
		err = errors.Join(err, w.Close())
	}
	return errors.Join(err, r.lab.Close())
}

// slow has each fdatasync and fsync of a process take longer, if they are to.
func (r *rack) slow(p *lab.Process, socket string) error {
	if r.disk == 0 {
		return nil
	}
	w, err := watch.Syncs(socket, func() {}, func(int, int) error { time.Sleep(r.disk); return nil })
	if err != nil {
		return err
	}
	r.watchers = append(r.watchers, w)
	p.Args = append([]string{r.self, watched, socket}, p.Args...)
	return nil
}

// start starts the hosts, and makes the volume.
func (v *volume) start(ctx context.Context, args []string) error {
	for i := range v.hosts {
		if err := os.WriteFile(v.config(i), v.configText(i), 0o600); err != nil {
			return err
		}
		p := &lab.Process{Name: "mcblock of " + v.hosts[i].Name, Space: v.hosts[i].Space,
			Args: append([]string{v.rack.program("mcblock"), "serve", "--config", v.config(i)}, args...)}
		v.blocks = append(v.blocks, p)
		if err := v.rack.slow(p, v.config(i)+".watch"); err != nil {
			return err
		}
	}
	if err := lab.Each(v.blocks, func(p *lab.Process) error { return p.Start(ctx) }); err != nil {
		return err
	}
	return v.create(ctx, size)
}

// create makes the volume, and waits until all copies are in the acting set.
func (v *volume) create(ctx context.Context, size int64) error {
	limited, cancel := context.WithTimeoutCause(ctx, ready, fmt.Errorf("the volume is not there within %v", ready))
	defer cancel()
	for { // once all hosts are known
		out, err := v.mcblock("create", v.name, "--size", fmt.Sprint(size), "--hosts", v.names(), "--overcommit")
		if err == nil {
			return v.whole(ctx)
		}
		if pause(limited) != nil {
			return fmt.Errorf("%w: %s", context.Cause(limited), out)
		}
	}
}

// whole waits until all copies are in the acting set, and finds the primary's host.
func (v *volume) whole(ctx context.Context) error {
	const most = 2 * time.Minute // the copy of a volume
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("not all copies are in the acting set within %v", most))
	defer cancel()
	for {
		out, err := v.mcblock("show", v.name, "-o", "json")
		var j struct {
			Primary string   `json:"primary"`
			Acting  []string `json:"acting"`
		}
		if err == nil {
			err = json.Unmarshal([]byte(out), &j)
		}
		if err == nil && len(j.Acting) == len(v.hosts) && j.Primary != "" {
			v.primary = slices.Index(strings.Split(v.names(), ","), j.Primary)
			return nil
		}
		if pause(ctx) != nil {
			return fmt.Errorf("%w: %s", context.Cause(ctx), out)
		}
	}
}

// pause waits a moment for other processes.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}

func (v *volume) names() string {
	var list []string
	for _, h := range v.hosts {
		list = append(list, h.Name)
	}
	return strings.Join(list, ",")
}

func (v *volume) config(i int) string {
	return filepath.Join(v.rack.dir, v.hosts[i].Name+".mcblock.yaml")
}

func (v *volume) data(i int) string { return filepath.Join(v.rack.dir, v.hosts[i].Name+".data") }

func (v *volume) configText(i int) []byte {
	h := v.hosts[i]
	text := fmt.Appendf(nil, "name: %s\nid: %d\naddress: %v\ndata: %s\nsocket: %s\nmetrics: %s\ntls: {cert: %s, key: %s, ca: %s}\netcd:\n  members:\n",
		h.Name, i+1, h.Addr, v.data(i), h.Socket, metricsAt, h.Files.Cert, h.Files.Key, h.Files.CA)
	for _, h := range v.hosts {
		text = fmt.Appendf(text, "    - {name: %s, address: %v}\n", h.Name, h.Addr)
	}
	return text
}

// mcblock runs a command of "mcblock volume".
func (v *volume) mcblock(args ...string) (string, error) {
	return v.hosts[0].Space.Run(v.rack.program("mcblock"), append(append([]string{"volume"}, args...), "--config", v.config(0))...)
}
