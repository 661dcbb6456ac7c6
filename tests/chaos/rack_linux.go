package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/tests/chaos/orders"
	"github.com/mcrdma/mcrdma/tests/chaos/powerloss"
	"github.com/mcrdma/mcrdma/tests/chaos/skew"
	"github.com/mcrdma/mcrdma/tests/chaos/volume"
	"github.com/mcrdma/mcrdma/tests/chaos/watch"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// volumePrograms are the programs of a rack, in addition to a lab's.
type volumePrograms struct {
	lab.Programs
	mcblock, etcd string
}

// buildVolumes compiles them, with a clock that can be set if a plan sets clocks.
func buildVolumes(dir string, plans ...*volume.Plan) (volumePrograms, error) {
	p := volumePrograms{lab.Programs{Switchctl: filepath.Join(dir, "switchctl"), Daemon: filepath.Join(dir, "cmd-daemon"), Member: "cat"},
		filepath.Join(dir, "mcblock"), filepath.Join(dir, "etcd")}
	return p, build(dir, slices.ContainsFunc(plans, (*volume.Plan).SetsClocks), "cmd/mcblock", "tests/chaos/etcd")
}

const (
	export   = "vol"
	ready    = 30 * time.Second // until all copies are there
	nbdAt    = "127.0.0.1:10809"
	etcdPort = 2379
)

// A rack is a lab with a volume of three copies.
type rack struct {
	plan     *volume.Plan
	programs volumePrograms
	lab      *lab.Lab
	blocks   map[string]*lab.Process // mcblock, by host
	disks    map[string]*powerloss.Disk
	watchers []*watch.Watcher
	lying    atomic.Bool    // of the disks
	etcds    []*lab.Process // members in processes of their own
	etcdAt   []string
	etcdIDs  identity.Files
	follower *lab.Process
	clocks   map[string]*skew.Clock // by host, if the plan sets clocks
	begun    uint64                 // the epoch in which all had joined
	kills    kills
	copies   int   // copies for receivers that the switch makes with the original ICRC
	icrc     error // why it does not

	mu    sync.Mutex
	maps  []core.Map    // all maps so far
	told  chan struct{} // replaced with each map
	lives []volume.Life
}

// newRack starts a rack, and waits until all copies are in the acting set.
func newRack(ctx context.Context, programs volumePrograms, dir string, p *volume.Plan, how manner) (*rack, error) {
	r := &rack{plan: p, programs: programs, blocks: map[string]*lab.Process{}, disks: map[string]*powerloss.Disk{}, told: make(chan struct{})}
	spec := how.spec(lab.Spec{Racks: []int{3}, Wired: true, Daemon: daemons, Switches: map[string]lab.Switch{"torA": {NotProgrammable: p.HostsRelay}}})
	if p.SetsClocks() {
		if err := r.makeClocks(dir); err != nil {
			return nil, err
		}
		spec.Prepare = r.byClock
	}
	if p.Fast {
		spec.Daemon = "leases: {member: 4s, group: 4s}\n" + fast
	}
	var err error
	if r.lab, err = lab.Start(ctx, programs.Programs, dir, spec); err != nil {
		return nil, err
	}
	if err := r.start(ctx); err != nil {
		return nil, fmt.Errorf("%w\n%s", errors.Join(err, r.close()), r.logs())
	}
	return r, nil
}

func (r *rack) start(ctx context.Context) error {
	if r.lab.Spec.FastPath {
		if err := r.lab.InKernel(ctx); err != nil {
			return err
		}
	}
	if err := r.startEtcd(ctx); err != nil {
		return err
	}
	for i, h := range r.lab.Hosts {
		if err := os.WriteFile(r.config(h), r.configText(i), 0o600); err != nil {
			return err
		}
		args := []string{r.programs.mcblock, "serve", "--config", r.config(h)}
		if r.plan.Fast {
			args = append(args, "--fast")
		}
		r.blocks[h.Name] = &lab.Process{Name: "mcblock of " + h.Name, Space: h.Space, Args: args}
		r.byClock(r.blocks[h.Name])
		if r.plan.LosesPower() {
			if err := r.watch(h.Name); err != nil {
				return err
			}
		}
	}
	if err := lab.Each(r.lab.Hosts, func(h *lab.HostNode) error { return r.startBlock(ctx, h.Name) }); err != nil {
		return err
	}
	if err := r.follow(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ready, fmt.Errorf("the volume is not there within %v", ready))
	defer cancel()
	for { // until all hosts are known
		out, err := r.mcblock("h1", "volume", "create", export, "--size", fmt.Sprint(r.plan.Blocks*volume.Block), "--hosts", "h1,h2,h3",
			"--min-size", fmt.Sprint(r.plan.MinSize))
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %s", context.Cause(ctx), out)
		}
		sleep(ctx, 100*time.Millisecond)
	}
	err := r.all(ctx)
	m, _ := r.latest()
	r.begun = m.Epoch
	r.lying.Store(r.plan.Lying)
	if err == nil {
		err = r.keepsICRC(ctx)
	}
	return err
}

// makeClocks makes a clock for each host.
func (r *rack) makeClocks(dir string) error {
	r.clocks = map[string]*skew.Clock{}
	for _, h := range []string{"h1", "h2", "h3"} {
		c, err := skew.NewClock(filepath.Join(dir, h+".clock"))
		if err != nil {
			return err
		}
		if r.clocks[h] = c; c.Set(start) != nil {
			return fmt.Errorf("the clock of %s cannot be set", h)
		}
	}
	return nil
}

// byClock makes a process use the clock of its host.
func (r *rack) byClock(p *lab.Process) {
	if c := r.clocks[p.Space.Name]; c != nil {
		p.Env = append(p.Env, skew.Variable+"="+c.Name())
	}
}

// watch records the durable data of a host's volumes. etcd's files keep everything that was written
// to them.
func (r *rack) watch(host string) error {
	root, p := filepath.Join(r.data(host), "volumes"), r.blocks[host]
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	d, err := powerloss.New(root, filepath.Join(r.lab.Dir, host+".durable"))
	if err != nil {
		return err
	}
	r.disks[host] = d
	synced := func(pid, fd int) error {
		if r.lying.Load() {
			return nil
		}
		return d.Synced(pid, fd)
	}
	socket := filepath.Join(r.lab.Dir, host+".watch")
	w, err := watch.Syncs(socket, func() { p.Signal(unix.SIGKILL) }, synced)
	if err != nil {
		return err
	}
	r.watchers = append(r.watchers, w)
	p.Args = append([]string{r.programs.etcd, orders.Watched, socket}, p.Args...)
	return nil
}

// all waits until all hosts are in the acting set.
func (r *rack) all(ctx context.Context) error {
	for {
		m, told := r.latest()
		if len(m.Acting) == len(r.lab.Hosts) && m.Since > 0 && !slices.ContainsFunc(m.Acting, r.gone) {
			return nil
		}
		select {
		case <-told:
		case <-time.After(100 * time.Millisecond): // a life may have ended
		case <-ctx.Done():
			return fmt.Errorf("not all hosts are in the acting set: %w; the map is %+v", context.Cause(ctx), m)
		}
	}
}

// gone reports whether a member's life has ended.
func (r *rack) gone(m core.Member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return volume.Ended(r.lives, m) != 0
}

// latest returns the newest known map, and a channel for the next.
func (r *rack) latest() (core.Map, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.maps) == 0 {
		return core.Map{}, r.told
	}
	return r.maps[len(r.maps)-1], r.told
}

// startBlock starts a host's mcblock.
func (r *rack) startBlock(ctx context.Context, host string) error {
	r.mu.Lock()
	r.lives = append(r.lives, volume.Life{Host: hostID(host), Start: time.Now().UnixNano()})
	r.mu.Unlock()
	return r.blocks[host].Start(ctx)
}

// killBlock kills a host's mcblock, if it runs.
func (r *rack) killBlock(host string) {
	r.blocks[host].Kill()
	r.ended(host)
}

// ended records the end of a host's mcblock.
func (r *rack) ended(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.lives {
		if l := &r.lives[i]; l.Host == hostID(host) && l.End == 0 {
			l.End = time.Now().UnixNano()
		}
	}
}

func hostID(name string) core.ID { return core.ID(name[1] - '0') }

func (r *rack) config(h *lab.HostNode) string {
	return filepath.Join(r.lab.Dir, h.Name+".mcblock.yaml")
}

func (r *rack) data(host string) string { return filepath.Join(r.lab.Dir, host+".data") }

func (r *rack) configText(i int) []byte {
	h := r.lab.Hosts[i]
	f := h.Files
	text := fmt.Appendf(nil, "name: %s\nid: %d\naddress: %v\ndata: %s\nsocket: %s\ntls: {cert: %s, key: %s, ca: %s}\netcd:\n",
		h.Name, i+1, h.Addr, r.data(h.Name), h.Socket, f.Cert, f.Key, f.CA)
	if r.plan.OwnEtcd {
		return fmt.Appendf(text, "  endpoints: [%s]\n", strings.Join(r.etcdAt, ", "))
	}
	text = append(text, "  members:\n"...)
	for _, h := range r.lab.Hosts {
		text = fmt.Appendf(text, "    - {name: %s, address: %v}\n", h.Name, h.Addr)
	}
	return text
}

// startEtcd starts members in their own processes, on the management network.
func (r *rack) startEtcd(ctx context.Context) (err error) {
	if !r.plan.OwnEtcd {
		for _, h := range r.lab.Hosts {
			r.etcdAt = append(r.etcdAt, net.JoinHostPort(h.Addr.String(), fmt.Sprint(etcdPort)))
		}
		r.etcdIDs = r.lab.Hosts[0].Files
		return nil
	}
	at := r.lab.Switches[0]
	id := identity.Identity{Role: identity.Host, Name: "etcd"}
	id.Addrs = append(id.Addrs, at.Management)
	if r.etcdIDs, err = r.lab.CA.Issue(id); err != nil {
		return err
	}
	var members []string
	for i := range 3 {
		r.etcdAt = append(r.etcdAt, fmt.Sprintf("%v:%d", at.Management, etcdPort+10*i))
		members = append(members, fmt.Sprintf("e%d=%v:%d", i+1, at.Management, etcdPort+10*i+1))
	}
	for i, client := range r.etcdAt {
		name := fmt.Sprint("e", i+1)
		args := append([]string{r.programs.etcd, "member", name, filepath.Join(r.lab.Dir, name), client, r.etcdIDs.Cert, r.etcdIDs.Key, r.etcdIDs.CA}, members...)
		r.etcds = append(r.etcds, &lab.Process{Name: "etcd " + name, Space: at.Space, Args: args})
	}
	return lab.Each(r.etcds, func(p *lab.Process) error { return p.Start(ctx) })
}

// follow records all maps of the volume.
func (r *rack) follow(ctx context.Context) error {
	space := r.lab.Hosts[len(r.lab.Hosts)-1].Space
	if r.plan.OwnEtcd {
		space = r.lab.Switches[0].Space
	}
	r.follower = &lab.Process{Name: "maps", Space: space, Talks: true,
		Args: append([]string{r.programs.etcd, "maps", r.etcdIDs.Cert, r.etcdIDs.Key, r.etcdIDs.CA}, r.etcdAt...)}
	if err := r.follower.Start(ctx); err != nil {
		return err
	}
	go func(out *bufio.Reader) {
		for d := json.NewDecoder(out); ; {
			var m core.Map
			if d.Decode(&m) != nil {
				return
			}
			r.mu.Lock()
			r.maps = append(r.maps, m)
			close(r.told)
			r.told = make(chan struct{})
			r.mu.Unlock()
		}
	}(r.follower.Out)
	return nil
}

// mcblock runs a command of mcblock that ends by itself, on a host.
func (r *rack) mcblock(host string, args ...string) (string, error) {
	h := r.lab.Host(host)
	return h.Space.Run(r.programs.mcblock, append(args, "--config", r.config(h))...)
}

// dial connects to a host's NBD server, like a client on that host.
func (r *rack) dial(host string) (c net.Conn, err error) {
	err = r.lab.Host(host).Space.Do(func() (err error) {
		c, err = net.Dial("tcp", nbdAt)
		return err
	})
	return c, err
}

// close ends all processes.
func (r *rack) close() error {
	errs := []error{lab.Each(r.lab.Hosts, func(h *lab.HostNode) error {
		if p := r.blocks[h.Name]; p != nil {
			return p.Stop()
		}
		return nil
	})}
	if r.follower != nil {
		r.follower.Kill()
	}
	for _, w := range r.watchers {
		errs = append(errs, w.Close())
	}
	for _, d := range r.disks {
		d.Close()
	}
	for _, c := range r.clocks {
		errs = append(errs, c.Close())
	}
	errs = append(errs, lab.Each(r.etcds, (*lab.Process).Stop))
	return errors.Join(append(errs, r.lab.Close())...)
}

func (r *rack) logs() string {
	var more []*lab.Process
	for _, h := range r.lab.Hosts {
		more = append(more, r.blocks[h.Name])
	}
	more = append(append(more, r.etcds...), r.follower)
	return r.lab.Logs() + lab.Logs(slices.DeleteFunc(more, func(p *lab.Process) bool { return p == nil })...)
}

// keepsICRC records whether switches keep the ICRC of copies, once they make some, if they should.
func (r *rack) keepsICRC(ctx context.Context) error {
	for {
		if r.copies, r.icrc = r.lab.CopiesKeepICRC(ctx); r.copies > 0 || r.icrc != nil || r.plan.HostsRelay {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no switch makes copies: %w", context.Cause(ctx))
		}
		sleep(ctx, 100*time.Millisecond)
	}
}
