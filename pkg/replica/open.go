package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/store"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// local is a volume's access to its host, and implements outside.
type local struct {
	*Volume
	cfg    *Config
	mu     sync.Mutex
	memory []*mcrdma.Memory
	rings  []*mcrdma.Memory // the loop's
}

func (o *local) send(m message) { o.peers.send(m) }

func (o *local) device(id core.ID) (string, bool) {
	x := o.peers.get(id)
	if x == nil {
		return "", false
	}
	return x.host.Device, true
}

func (o *local) reachable(id core.ID) bool {
	x := o.peers.get(id)
	return x != nil && x.conn.Ready()
}

func (o *local) named(host string) core.ID {
	id, _ := o.peers.id(host) // 0 if there is none
	return id
}

func (o *local) readMap(ctx context.Context) (core.Map, error) {
	return o.cfg.Manager.Map(ctx, o.info.ID)
}

func (o *local) propose(ctx context.Context, m core.Map) (core.Map, error) {
	return o.cfg.Manager.Propose(ctx, o.info.ID, m)
}

func (o *local) lead(ctx context.Context, wg *sync.WaitGroup, iv core.Interval, members map[string]core.Member, first uint64, l leaderEvents) *leading {
	g := mcrdma.GroupConfig{Service: service(o.info.ID), Mode: o.cfg.Mode, Tuning: mcrdma.Tuning{Algorithm: o.cfg.Algorithm}}
	return lead(ctx, o.cfg.Client, g, iv, members, first, o.cfg.Ring, wg, o.loop.post, l)
}

// alloc registers memory, until the volume is closed.
func (o *local) alloc(n int) (*mcrdma.Memory, error) {
	m, err := o.cfg.Client.Alloc(n)
	if err == nil {
		o.mu.Lock()
		o.memory = append(o.memory, m)
		o.mu.Unlock()
	}
	return m, err
}

// allocRing is alloc outside of the Go heap: by the size of that, however little of a ring is used, the
// garbage collector decides how much garbage may grow.
func (o *local) allocRing(n int) (*mcrdma.Memory, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("a ring of %d bytes: %w", n, err)
	}
	m, err := o.cfg.Client.Register(b)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(b))
	}
	o.rings = append(o.rings, m)
	return m, nil
}

// service is the name by which members listen for a volume's groups.
func service(volume uint64) string { return fmt.Sprintf("volume-%016x", volume) }

// volumeDir is the directory of a volume's data.
func volumeDir(dir string, volume uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016x", volume))
}

// openVolume opens this host's copy of a volume, or creates it. If what is on the disk is of no use, the Failure of the
// volume says why, and requests go to the primary.
func openVolume(cfg *Config, p *peers, refused *counters, s osdmap.VolumeState) (*Volume, error) {
	v := &Volume{info: s.Volume, peers: p, session: rand.Uint64() | 1, closed: make(chan struct{})}
	v.access.set(s.Volume)
	v.hosts.Store(&s.Volume.Hosts)
	o := &local{Volume: v, cfg: cfg}
	l := &loop{volume: s.Volume.ID, beat: cfg.Beat, out: o, log: cfg.Log.With("volume", s.Volume.Name), calls: newCalls(), stopped: make(chan struct{})}
	l.mailbox, v.loop = newMailbox(true, l.settle), l
	keep, limit := cfg.keep(s.Volume.Size)
	c := core.Config{Volume: s.Volume.ID, Self: cfg.Self.ID, Up: s.Volume.Hosts, Boot: uint64(time.Now().UnixNano()), //nolint:gosec // after 1970
		Lease: cfg.Lease, Grace: cfg.Grace, Beat: cfg.Beat, Keep: keep, Limit: limit, Near: min(64, limit/4), Batch: 1024,
		Size: func(index uint64) uint64 { return l.content.size(index) }}
	if err := c.Check(); err != nil {
		return nil, err
	}
	var err error
	l.disk, err = openDisk(volumeDir(cfg.Dir, s.Volume.ID), s.Volume.ID, s.Volume.Size, max(keep/4, 1), cfg.logDelay,
		func(seq uint64, err error) { l.post(func() { l.synced(seq, err) }) })
	if slices.ContainsFunc([]error{wal.ErrDamaged, wal.ErrForeign, store.ErrForeign, store.ErrSize}, func(is error) bool { return errors.Is(err, is) }) {
		err = fmt.Errorf("%w: if another host can open its copy, end mcblock, remove %s, and start mcblock: the volume is copied to here again", err, volumeDir(cfg.Dir, s.Volume.ID))
	}
	if err != nil {
		l.disk, l.failure = &disk{}, fmt.Errorf("volume %s: %w; it is opened again when this host's mcblock starts", s.Volume.Name, err)
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.wg.Add(1) // the loop may start others until it has stopped
	var stored core.Stored
	var entries []wal.Entry
	if l.failure == nil {
		stored, entries = l.disk.log.Stored(), l.disk.log.Headers()
	}
	l.content, l.shown = newContent(stored.Tail.Index), stored.Tail.Index
	for _, e := range entries {
		l.content.load(e)
	}
	l.memory = newMemory(cfg.Memory, o.alloc, func() {
		if l.disk.log != nil {
			l.disk.log.Hurry(0)
		}
		l.post(func() { l.content.release(l.content.head()) })
	}, v.closed)
	v.memory = &l.memory
	l.node = core.New(c, stored, now())
	l.follow = &following{post: l.post, events: l, ctx: l.ctx, wg: &l.wg, incarnation: l.node.Status(now()).Self.Incarnation,
		buffers: l.memory.landed, size: cfg.Ring, alloc: o.allocRing, refused: refused}
	if l.failure == nil {
		l.disk.start(l.post, l.fail)
	}
	failure := l.failure // it is the loop's from here on
	l.settle()
	go l.run()
	if failure == nil {
		err = l.follow.listen(cfg.Client, service(s.Volume.ID))
	}
	if failure == nil && err != nil {
		_ = v.close()
		return nil, fmt.Errorf("volume %s: %w", s.Volume.Name, err)
	}
	v.mapIs(s.Map)
	return v, nil
}

func (v *Volume) mapIs(m core.Map) { v.loop.post(func() { v.loop.mapIs(m) }) }

// close closes this host's copy. Accepted entries become durable.
func (v *Volume) close() error {
	close(v.closed)
	v.access.close()
	l := v.loop
	l.cancel()
	<-l.await(l.calls.end)
	l.follow.receiving.Wait() // no further receive starts, and all received entries have been posted
	l.mailbox.close()
	<-l.stopped
	l.wg.Done()
	l.wg.Wait()
	err := l.disk.close()
	o := l.out.(*local)
	for _, m := range o.memory {
		_ = m.Close() // busy: the client ends it
	}
	for _, m := range o.rings {
		if m.Close() == nil { // no device writes to it any more
			_ = unix.Munmap(m.Bytes())
		}
	}
	v.route.Load().cancel()
	return err
}
