package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/tests/osdmaptest"
)

// TestVolume: what is written at one host is read at all.
func TestVolume(t *testing.T) {
	for _, mode := range []mcrdma.Mode{mcrdma.ModeRequire, mcrdma.ModeOff} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			o := Fast()
			o.Mode = mode
			r := newRig(t, 3, 2, 8<<20, o)
			for i := 1; i <= 3; i++ {
				begun := time.Now()
				r.must(r.volume(i).WriteAt(r.ctx(), fillBlock(i), int64(i)*block, false))
				t.Logf("written at h%d in %v", i, time.Since(begun))
			}
			for i := 1; i <= 3; i++ {
				begun := time.Now()
				r.must(r.volume(i).Flush(r.ctx()))
				t.Logf("flushed at h%d in %v", i, time.Since(begun))
				p := make([]byte, 4*block)
				r.must(r.volume(i).ReadAt(r.ctx(), p, block))
				if want := bytes.Join([][]byte{fillBlock(1), fillBlock(2), fillBlock(3), make([]byte, block)}, nil); !bytes.Equal(p, want) {
					t.Errorf("h%d reads %.20q …", i, p)
				}
			}
			for i := 1; i <= 3; i++ { // in more than one part
				all := make([]byte, 8<<20)
				if r.must(r.volume(i).ReadAt(r.ctx(), all, 0)); !bytes.Equal(all[3*block:4*block], fillBlock(3)) || !bytes.Equal(all[4*block:], make([]byte, 8<<20-4*block)) {
					t.Errorf("h%d reads the whole volume wrong", i)
				}
			}
			s := r.volume(r.primary()).Status()
			if path := map[mcrdma.Mode]mcrdma.Path{mcrdma.ModeRequire: mcrdma.PathSwitch, mcrdma.ModeOff: mcrdma.PathRelay}[mode]; s.Group == nil || s.Group.Path != path {
				t.Errorf("%+v", s.Group)
			}
		})
	}
}

// TestScarce: a volume says whether someone waits for a buffer.
func TestScarce(t *testing.T) {
	r := newRig(t, 2, 1, 8<<20, Options{Memory: 8 << 20})
	v := r.volume(1)
	var taken []*Buffer
	for b := v.memory.written.try(MaxEntry); b != nil; b = v.memory.written.try(MaxEntry) {
		taken = append(taken, b)
	}
	if v.Scarce() {
		t.Error("no caller waits")
	}
	got := make(chan error, 1)
	go func() {
		b, err := v.Buffer(r.ctx(), MaxEntry)
		b.Release()
		got <- err
	}()
	r.wait("someone waits", func() error {
		if !v.Scarce() {
			return errors.New("none does")
		}
		return nil
	})
	for _, b := range taken {
		b.Release()
	}
	if r.must(<-got); v.Scarce() {
		t.Error("no caller waits any more")
	}
}

// TestOpened: a volume that has just been made can be opened, and one that is not there fails at once.
func TestOpened(t *testing.T) {
	r := newRig(t, 2, 1, 8<<20, Options{})
	m := osdmap.New(r.kv, osdmap.Options{})
	for i := range 3 {
		v := osdmap.Volume{ID: uint64(i) + 1, Name: fmt.Sprint("v", i), Size: 8 << 20, BlockSize: block, Hosts: []core.ID{1}, Created: time.Now()}
		r.must(m.Create(r.ctx(), v, osdmap.FirstMap(v, 1)))
		got, err := r.hosts[1].Opened(r.ctx(), v.Name)
		if r.must(err); got.Info().ID != v.ID {
			t.Errorf("%+v", got.Info())
		}
	}
	if _, err := r.hosts[1].Opened(r.ctx(), "other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("another one: %v", err)
	}
	// While the configuration manager is away, the client need not wait for it.
	asked := osdmaptest.Faulty{Fault: func(context.Context, string, bool) error { t.Error("it is asked"); return errors.New("away") }}
	h := &Host{cfg: Config{Manager: osdmap.New(asked, osdmap.Options{})}, state: osdmap.State{Away: osdmap.ErrAway}, ctx: t.Context()}
	if _, err := h.Opened(r.ctx(), "other"); !errors.Is(err, osdmap.ErrAway) {
		t.Errorf("away: %v", err)
	}
}

// TestClosedWaits: who waits for memory of a volume that is closed need not wait any more.
func TestClosedWaits(t *testing.T) {
	r := newRig(t, 2, 1, 8<<20, Options{})
	v, failed := r.volume(1), make(chan error)
	for {
		b := v.memory.written.try(MaxEntry)
		if b == nil {
			break
		}
	}
	go func() {
		_, err := v.Buffer(r.ctx(), MaxEntry)
		failed <- err
	}()
	r.must(osdmap.New(r.kv, osdmap.Options{}).Delete(r.ctx(), r.id))
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestSyncs: a write with a flush after it is one sync of the log at each host, and none of the store; so is a write that is durable.
// What no flush waits for is none.
func TestSyncs(t *testing.T) {
	o := steady()
	o.logDelay = time.Hour
	r := newRig(t, 3, 2, 8<<20, o)
	r.acting(3)
	v := r.volume(r.primary())
	r.must(v.WriteAt(r.ctx(), fillBlock(0), 0, true))
	counts := func() (all []uint64) {
		for i := 1; i <= 3; i++ {
			s := r.volume(i).loop.disk.log.Stats()
			all = append(all, s.Syncs, uint64(s.Segments))
		}
		return all
	}
	const rounds = 70 // twice as many as are hurried at once
	for name, write := range map[string]func(i int) error{
		"flush":   func(i int) error { return errors.Join(v.WriteAt(r.ctx(), fillBlock(i), 0, false), v.Flush(r.ctx())) },
		"durable": func(i int) error { return v.WriteAt(r.ctx(), fillBlock(i), 0, true) },
	} {
		var before []uint64
		for epoch := uint64(0); epoch != v.Status().Map.Epoch; { // a change of the map is synced, too
			epoch, before = v.Status().Map.Epoch, counts()
			for i := range rounds {
				r.must(write(i))
			}
		}
		for k, now := range counts() {
			if want := uint64(rounds * (1 - k%2)); now-before[k] != want { // of the segments there are no more
				t.Errorf("%s: h%d: %d of %v, want %d", name, k/2+1, now-before[k], []string{"syncs", "segments"}[k%2], want)
			}
		}
	}
	for i := 1; i <= 3; i++ {
		l, synced := r.volume(i).loop, make(chan bool)
		l.post(func() { go func(s bool) { synced <- s }(l.disk.syncing || l.disk.synced > 0) })
		if <-synced {
			t.Errorf("h%d has synced its store", i)
		}
	}
}
