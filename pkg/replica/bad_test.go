package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/store"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// volumeDir is where a host has its copy of the volume.
func (r *rig) volumeDir(host int) string {
	return volumeDir(filepath.Join(r.dir, fmt.Sprint(host)), r.id)
}

// segment is the newest file of a host's log.
func (r *rig) segment(host int) string {
	r.t.Helper()
	list, err := filepath.Glob(filepath.Join(r.volumeDir(host), "log", "*.log"))
	r.must(err)
	if len(list) == 0 {
		r.t.Fatal("the log has no segment")
	}
	return slices.Max(list)
}

// unopened waits until a host has refused to open its copy, with this error.
func (r *rig) unopened(host int, want error, says string) {
	r.t.Helper()
	r.wait("the copy is refused", func() error {
		err := r.hosts[host].Health().Broken[r.id]
		if !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
			return fmt.Errorf("%w, want %q of %q", err, says, want.Error())
		}
		return nil
	})
}

// TestBadCopy: a host whose log was changed, or which has another volume's copy, does not serve what it has, and
// says why; the others go on, and so do this host's clients. With its copy removed it gets a new one. A log that was torn is none of this.
func TestBadCopy(t *testing.T) {
	o := Fast()
	r := newRig(t, 3, 2, 8<<20, o)
	r.acting(3)
	p := r.primary()
	bad := r.others(p)[0]
	writes := 0
	for _, c := range []struct {
		name   string
		damage func()
		want   error // nil: it is opened
		says   string
	}{
		{"a torn record", func() {
			// What a crash leaves of a record that was under way: a part of it.
			f, err := os.OpenFile(r.segment(bad), os.O_RDWR, 0)
			r.must(err)
			data, err := os.ReadFile(f.Name())
			r.must(err)
			end := int64(len(bytes.TrimRight(data, "\x00")))
			_, err = f.WriteAt(append(binary.LittleEndian.AppendUint32(nil, 0xfeed), bytes.Repeat([]byte{7}, 500)...), (end+63)&^63)
			r.must(errors.Join(err, f.Close()))
		}, nil, ""},
		{"a flipped bit", func() {
			name := r.segment(bad)
			data, err := os.ReadFile(name)
			r.must(err)
			at := bytes.LastIndex(data, fillBlock(writes-2)) // there is more behind it, that was durable
			if at < 0 {
				t.Fatal("the log does not have the write")
			}
			data[at+100] ^= 4
			r.must(os.WriteFile(name, data, 0o600))
		}, wal.ErrDamaged, "cannot be used any more: if another host can open its copy, end mcblock, remove " + r.volumeDir(bad)},
		{"another volume's copy", func() {
			other := r.volumeDir(bad) + ".other"
			d, err := openDisk(other, 0x0666, 8<<20, 1, 0, func(uint64, error) {})
			r.must(err)
			r.must(errors.Join(d.close(), os.RemoveAll(r.volumeDir(bad)), os.Rename(other, r.volumeDir(bad))))
		}, store.ErrForeign, "of 666, and not of 123"},
		{"another volume's log", func() {
			other := r.volumeDir(bad) + ".other"
			d, err := openDisk(other, 0x0666, 8<<20, 1, 0, func(uint64, error) {})
			r.must(err)
			own := filepath.Join(r.volumeDir(bad), "log")
			r.must(errors.Join(d.close(), os.RemoveAll(own), os.Rename(filepath.Join(other, "log"), own)))
		}, wal.ErrForeign, "of 666, and not of 123"},
		{"a store that has become shorter", func() {
			r.must(os.Truncate(filepath.Join(r.volumeDir(bad), "store", "data"), block))
		}, store.ErrSize, "the file has 4096: if another host can open its copy, end mcblock, remove " + r.volumeDir(bad)},
		{"no store", func() {
			r.must(os.RemoveAll(filepath.Join(r.volumeDir(bad), "store")))
		}, store.ErrDamaged, "is not there"},
		{"an empty store, as of a file system that is not mounted", func() {
			dir := filepath.Join(r.volumeDir(bad), "store")
			r.must(errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)))
		}, store.ErrDamaged, "is not there"},
	} {
		t.Logf("%s", c.name)
		for range 8 { // each is durable before the next one comes
			r.must(r.volume(p).WriteAt(r.ctx(), fillBlock(writes), int64(writes%64)*block, true))
			writes++
		}
		r.kill(bad)
		<-r.hosts[bad].closed
		r.acting(2)
		c.damage()
		r.start(bad)
		if c.want != nil {
			r.unopened(bad, c.want, c.says)
			r.must(r.volume(p).WriteAt(r.ctx(), fillBlock(writes), int64(writes%64)*block, true))
			writes++
			r.acting(2)
			r.must(r.volume(bad).WriteAt(r.ctx(), fillBlock(writes), int64(writes%64)*block, true))
			writes++
			r.expect(bad, writes)
			r.kill(bad)
			<-r.hosts[bad].closed
			r.must(os.RemoveAll(r.volumeDir(bad)))
			r.start(bad)
		}
		r.acting(3)
		r.expect(bad, writes)
	}
}

// TestFullDisk: a copy whose disk is full ends, and says so; the volume goes on without it, also if it was the primary's, and
// loses nothing. When there is room again, the host gets what it missed.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "a small file system takes root")
	}
	r := newRig(t, 3, 2, 64<<20, Options{})
	r.acting(3)
	r.kill(1)
	<-r.hosts[1].closed
	at := filepath.Join(r.dir, "1")
	r.must(errors.Join(os.RemoveAll(at), os.Mkdir(at, 0o700)))
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=24m"); err != nil {
		testenv.Skip(t, "a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	r.start(1)
	r.acting(3)
	v := r.volume(3)
	piece := func(i int) []byte { return bytes.Repeat(fillBlock(i), 1<<20/block) }
	for i := range 48 {
		r.must(v.WriteAt(r.ctx(), piece(i), int64(i)<<20, i%4 == 3))
	}
	r.wait("the copy ends", func() error {
		if err := r.volume(1).Status().Failure; !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "others go on without it") {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	r.acting(2)
	got := make([]byte, 1<<20)
	for _, host := range []int{1, 2, 3} { // the first one passes requests on
		for i := range 48 {
			r.must(r.volume(host).ReadAt(r.ctx(), got, int64(i)<<20))
			if !bytes.Equal(got, piece(i)) {
				t.Fatalf("h%d: %d is not what was written", host, i)
			}
		}
	}
	r.kill(1)
	<-r.hosts[1].closed
	r.must(unix.Mount("tmpfs", at, "tmpfs", unix.MS_REMOUNT, "size=1g"))
	r.start(1)
	r.acting(3)
	r.kill(2)
	for i := range 48 {
		r.must(r.volume(1).ReadAt(r.ctx(), got, int64(i)<<20))
		if !bytes.Equal(got, piece(i)) {
			t.Fatalf("%d is not what was written", i)
		}
	}
}

// edit changes the volume's record in the store, as a person would by hand.
func (r *rig) edit(change func(m *core.Map)) {
	r.t.Helper()
	for {
		pairs, _, err := r.kv.Get(r.t.Context(), fmt.Sprintf("volumes/%016x", r.id))
		r.must(err)
		var record struct {
			Format int           `json:"format"`
			Volume osdmap.Volume `json:"volume"`
			Map    core.Map      `json:"map"`
		}
		r.must(json.Unmarshal(pairs[0].Value, &record))
		change(&record.Map)
		text, err := json.Marshal(record)
		r.must(err)
		ok, err := r.kv.Commit(r.t.Context(), osdmap.Change{Key: pairs[0].Key, Value: text, Revision: pairs[0].Revision})
		r.must(err)
		if ok {
			return
		}
	}
}

// TestEditedByHand: an administrator edits the map in etcd under load: names another primary, in a new epoch or in the
// same one, or puts an older map back for a while. There are never two that serve: each block is a register.
func TestEditedByHand(t *testing.T) {
	r := newRig(t, 3, 2, 8<<20, Fast())
	r.acting(3)
	rnd := rand.New(rand.NewPCG(*seed, 0))
	h := &history{begun: time.Now()}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for id := range 4 {
		wg.Go(func() { h.client(ctx, r, id, rand.New(rand.NewPCG(*seed, uint64(id)+1)), 4) })
	}
	other := func(m *core.Map) {
		for _, x := range rnd.Perm(len(m.Acting)) {
			if m.Acting[x] != m.Primary {
				m.Primary = m.Acting[x]
				return
			}
		}
	}
	for i := range 9 {
		var was core.Map
		r.edit(func(m *core.Map) {
			was = *m
			switch i % 3 {
			case 0: // as "promote" would
				m.Epoch++
				m.Since = m.Epoch
				other(m)
			case 1: // two primaries of one epoch
				other(m)
			case 2: // a copy from yesterday
				m.Epoch, m.Since, m.Primary = 1, 0, core.Member{}
			}
		})
		time.Sleep(time.Duration(100+rnd.IntN(200)) * time.Millisecond) // clients go on meanwhile
		if i%3 != 0 {
			r.edit(func(m *core.Map) {
				if m.Epoch <= was.Epoch {
					*m = was
				}
			})
		}
		r.acting(3)
	}
	h.wait(r, 100)
	cancel()
	wg.Wait()
	t.Logf("seed %d: %d calls", *seed, len(h.ops))
	if n := h.torn.Load(); n > 0 {
		t.Errorf("%d reads saw parts of two writes", n)
	}
	if res := porcupine.CheckOperationsTimeout(blockModel, h.ops, time.Minute); res != porcupine.Ok {
		t.Errorf("the history of blocks is not linearizable: %v (-replica.seed=%d)", res, *seed)
	}
}
