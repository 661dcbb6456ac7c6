package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// TestDeleted: only a record that a volume was deleted has hosts remove its data. When the configuration manager has
// lost the volume's record, it goes on.
func TestDeleted(t *testing.T) {
	r := newRig(t, 3, 2, 8<<20, Fast())
	r.acting(3)
	r.must(r.volume(1).WriteAt(r.ctx(), fillBlock(1), 0, true))
	pairs, _, err := r.kv.Get(r.ctx(), "volumes/")
	r.must(err)
	_, err = r.kv.Commit(r.ctx(), osdmap.Change{Key: pairs[0].Key, Revision: pairs[0].Revision})
	r.must(err)
	r.wait("the hosts know", func() error {
		for _, h := range r.hosts[1:] {
			h.mu.Lock()
			n := len(h.state.Volumes)
			h.mu.Unlock()
			if n > 0 {
				return errors.New("there is a volume")
			}
		}
		return nil
	})
	for i := 1; i <= 3; i++ {
		r.must(r.volume(i).WriteAt(r.ctx(), fillBlock(2), 0, true))
	}

	_, err = r.kv.Commit(r.ctx(), osdmap.Change{Key: pairs[0].Key, Value: pairs[0].Value})
	r.must(err)
	r.must(osdmap.New(r.kv, osdmap.Options{}).Delete(r.ctx(), r.id))
	r.wait("the data is removed", func() error {
		for i := 1; i <= 3; i++ {
			if _, err := os.Stat(volumeDir(r.hosts[i].cfg.Dir, r.id)); !errors.Is(err, os.ErrNotExist) {
				return errors.New("it is there")
			}
		}
		return nil
	})
}

// TestLostRecords: when the configuration manager has lost all records, as an old copy of it has, hosts go on, forward
// requests, and write their own records again. A volume made then under the name of one without a record is opened by that name.
func TestLostRecords(t *testing.T) {
	r := newRig(t, 3, 2, 8<<20, Fast())
	r.acting(3)
	pairs, _, err := r.kv.Get(r.ctx(), "")
	r.must(err)
	var lost []osdmap.Change
	for _, p := range pairs {
		lost = append(lost, osdmap.Change{Key: p.Key, Revision: p.Revision})
	}
	_, err = r.kv.Commit(r.ctx(), lost...)
	r.must(err)
	m := osdmap.New(r.kv, osdmap.Options{})
	r.wait("the hosts have records", func() error {
		if s, err := m.Read(r.ctx()); err != nil || len(s.Hosts) < 3 {
			return fmt.Errorf("%+v, %w", s, err)
		}
		return nil
	})
	r.hosts[1].peers.update(nil, 1)
	if id, err := r.hosts[1].peers.id("h2"); id != 2 || err != nil {
		t.Errorf("%d, %v", id, err)
	}
	for i := 1; i <= 3; i++ {
		r.must(r.volume(i).WriteAt(r.ctx(), fillBlock(2), 0, true))
	}

	v := osdmap.Volume{ID: 0x0666, Name: volumeName, Size: 4 << 20, BlockSize: block, Created: time.Now(), Hosts: []core.ID{1, 2, 3}}
	r.must(m.Create(r.ctx(), v, osdmap.FirstMap(v, 2)))
	for i := 1; i <= 3; i++ {
		r.wait("the new volume is opened", func() error {
			for range 20 { // the order of a map is random
				if got, err := r.hosts[i].Volume(volumeName); err != nil || got.Info().ID != v.ID {
					return fmt.Errorf("another volume: %w", err)
				}
			}
			return nil
		})
	}
}

// TestDeletedBroken: of a volume that could not be opened nothing is said any more when it has been deleted.
func TestDeletedBroken(t *testing.T) {
	r := newRig(t, 2, 1, 8<<20, Fast())
	r.acting(2)
	const id = 0x0666
	r.must(os.WriteFile(volumeDir(r.hosts[1].cfg.Dir, id), nil, 0o600)) // where a directory belongs
	m := osdmap.New(r.kv, osdmap.Options{})
	v := osdmap.Volume{ID: id, Name: "broken", Size: 8 << 20, BlockSize: block, Created: time.Now(), Hosts: []core.ID{1, 2}}
	r.must(m.Create(r.ctx(), v, osdmap.FirstMap(v, 1)))
	is := func(broken bool) {
		r.wait(fmt.Sprint("broken: ", broken), func() error {
			if err := r.hosts[1].Health().Broken[id]; (err != nil) != broken {
				return errors.New(fmt.Sprint(err))
			}
			return nil
		})
	}
	is(true)
	r.must(m.Delete(r.ctx(), id))
	is(false)
}

// TestDeletedWhileOpening: a volume that was deleted while a host was away is removed there, also while the host still opens another.
func TestDeletedWhileOpening(t *testing.T) {
	r := newRig(t, 2, 1, 8<<20, Fast())
	r.acting(2)
	r.kill(1)
	<-r.hosts[1].closed
	m := osdmap.New(r.kv, osdmap.Options{})
	r.must(m.Delete(r.ctx(), r.id))
	v := osdmap.Volume{ID: 0x0666, Name: "slow", Size: 8 << 20, BlockSize: block, Created: time.Now(), Hosts: []core.ID{1}}
	r.must(m.Create(r.ctx(), v, osdmap.FirstMap(v, 1)))
	store := filepath.Join(volumeDir(r.hosts[1].cfg.Dir, v.ID), "store")
	r.must(os.MkdirAll(store, 0o700))
	header := filepath.Join(store, "header.json")
	r.must(unix.Mkfifo(header, 0o600))
	r.start(1)
	t.Cleanup(func() { // what opens it waits for this
		r.wait("the store is opened", func() error {
			f, err := os.OpenFile(header, os.O_WRONLY|unix.O_NONBLOCK, 0)
			return errors.Join(err, f.Close())
		})
	})
	r.wait("the data is removed", func() error {
		if _, err := os.Stat(r.volumeDir(1)); !errors.Is(err, os.ErrNotExist) {
			return errors.New("it is there")
		}
		return nil
	})
}

// TestStray: a host that starts and finds a copy on its disk of which there is no record says so, until there is one.
func TestStray(t *testing.T) {
	r := newRig(t, 2, 1, 8<<20, Fast())
	r.acting(2)
	pairs, _, err := r.kv.Get(r.ctx(), "volumes/")
	r.must(err)
	_, err = r.kv.Commit(r.ctx(), osdmap.Change{Key: pairs[0].Key, Revision: pairs[0].Revision})
	r.must(err)
	r.kill(1)
	r.start(1)
	r.wait("the host reports the copy", func() error {
		if err := r.hosts[1].Health().Broken[r.id]; !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	_, err = r.kv.Commit(r.ctx(), osdmap.Change{Key: pairs[0].Key, Value: pairs[0].Value})
	r.must(err)
	r.acting(2)
	if broken := r.hosts[1].Health().Broken; len(broken) > 0 {
		t.Error(broken)
	}
}

// TestReady: a host is not ready while it opens volumes that it has read of.
func TestReady(t *testing.T) {
	r := newRig(t, 2, 1, 8<<20, Fast())
	r.acting(2)
	h := r.hosts[1].Host
	set := func(v *Volume) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.volumes[r.id] = v; v == nil {
			delete(h.volumes, r.id)
		}
	}
	v := r.volume(1)
	for _, c := range []struct {
		v    *Volume
		ok   bool
		note string
	}{{v, true, ""}, {nil, false, "1 volumes are not open yet"}, {v, true, ""}} {
		set(c.v)
		if ok, note := h.Ready(); ok != c.ok || note != c.note {
			t.Errorf("%v, %q; want %v, %q", ok, note, c.ok, c.note)
		}
	}
}

// TestCloseAtOnce: a host that ends closes its volumes at once.
func TestCloseAtOnce(t *testing.T) {
	r := newRigOf(t, 2, 1, 1, 8<<20, Fast())
	r.acting(1)
	v := osdmap.Volume{ID: 0x0666, Name: "other", Size: 8 << 20, BlockSize: block, Created: time.Now(), Hosts: []core.ID{1}}
	r.must(osdmap.New(r.kv, osdmap.Options{}).Create(r.ctx(), v, osdmap.FirstMap(v, 1)))
	one, other := r.volume(1), (*Volume)(nil)
	r.wait("the other is open", func() (err error) {
		other, err = r.hosts[1].Volume("other")
		return err
	})
	holds := func(v, until *Volume) { // v is not closed before until is being closed
		begun := make(chan struct{})
		go v.loop.post(func() {
			close(begun)
			select {
			case <-until.closed:
			case <-time.After(10 * time.Second):
				t.Error("one is closed after the other")
			}
		})
		<-begun
	}
	holds(one, other)
	holds(other, one)
	r.stop(1)
}
