package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// pauses writes to block after block at a host until stopped, and returns the longest time of a write, and how
// many there were.
func (r *rig) pauses(host int) (stop func() (longest time.Duration, writes int)) {
	ctx, cancel := context.WithCancel(r.t.Context())
	v := r.volume(host)
	type result struct {
		longest time.Duration
		writes  int
	}
	c := make(chan result, 1)
	go func() {
		var x result
		for ctx.Err() == nil {
			begun := time.Now()
			err := v.WriteAt(ctx, fillBlock(x.writes), int64(x.writes%64)*block, false)
			if ctx.Err() != nil {
				break
			}
			if err != nil {
				r.t.Error(err)
				break
			}
			x.writes++
			x.longest = max(x.longest, time.Since(begun))
		}
		c <- x
	}()
	return func() (time.Duration, int) {
		cancel()
		x := <-c
		return x.longest, x.writes
	}
}

// expect reads what pauses has written at a host.
func (r *rig) expect(host, writes int) {
	r.t.Helper()
	p := make([]byte, block)
	for i := max(0, writes-64); i < writes; i++ {
		r.must(r.volume(host).ReadAt(r.ctx(), p, int64(i%64)*block))
		if !bytes.Equal(p, fillBlock(i)) && !bytes.Equal(p, fillBlock(i+64)) { // the last one may have been done
			r.t.Fatalf("h%d reads %.8q, want %d of %d", host, p, i, writes)
		}
	}
}

// others are hosts other than one.
func (r *rig) others(host int) (list []int) {
	for i := 1; i < len(r.hosts); i++ {
		if i != host {
			list = append(list, i)
		}
	}
	return list
}

// TestWaits: while a request waits, its host says for how long, and the primary why.
func TestWaits(t *testing.T) {
	r := newRig(t, 2, 2, 4<<20, Options{})
	r.acting(2)
	p := r.primary()
	o := r.others(p)[0]
	v := r.volume(p)
	r.must(v.WriteAt(r.ctx(), fillBlock(1), 0, true))
	if s := v.Status(); s.Oldest != 0 || s.Waits != "" {
		t.Errorf("nothing waits: %v, %q", s.Oldest, s.Waits)
	}
	r.kill(o)
	done := make(chan error, 1)
	go func() { done <- v.WriteAt(r.ctx(), fillBlock(2), 0, true) }()
	r.wait("it says that it waits, and for whom", func() error {
		if s := v.Status(); s.Oldest < time.Second || !strings.HasSuffix(s.Waits, fmt.Sprint(": h", o)) {
			return fmt.Errorf("%v, %q", s.Oldest, s.Waits)
		}
		return nil
	})
	r.start(o)
	r.must(<-done)
	if s := r.volume(p).Status(); s.Oldest != 0 {
		t.Errorf("nothing waits any more: %v", s.Oldest)
	}
}

// TestReplicaKilled: writes go on, and the replica gets by the log what it missed.
func TestReplicaKilled(t *testing.T) {
	for _, mode := range []mcrdma.Mode{mcrdma.ModeAuto, mcrdma.ModeOff} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			o := Fast()
			o.Mode = mode
			r := newRig(t, 3, 2, 8<<20, o)
			r.acting(3)
			p := r.primary()
			dead := r.others(p)[0]
			stop := r.pauses(p)
			time.Sleep(100 * time.Millisecond)
			r.kill(dead)
			r.acting(2)
			time.Sleep(100 * time.Millisecond)
			longest, writes := stop()
			t.Logf("%d writes, the longest took %v", writes, longest)
			r.expect(p, writes)
			stop = r.pauses(p)
			begun := time.Now()
			r.start(dead)
			r.acting(3)
			t.Logf("it is back after %v", time.Since(begun))
			longest, writes = stop()
			t.Logf("%d writes, the longest took %v", writes, longest)
			if s := r.volume(dead).Status(); s.Backfilling {
				t.Errorf("%+v", s)
			}
			r.kill(r.others(p)[1])
			r.kill(p) // the one that has come back has everything
			r.start(r.others(p)[1])
			r.expect(dead, writes)
		})
	}
}

// TestAlone: a write that a primary accepts while it forms a group with the host that is back waits for no later write.
func TestAlone(t *testing.T) {
	r := newRig(t, 2, 1, 8<<20, Fast())
	r.acting(2)
	p := r.primary()
	back := r.others(p)[0]
	r.kill(back)
	r.acting(1)
	done := make(chan struct{})
	var writes sync.WaitGroup
	writes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond): // one at a time, and many while the group is formed
			}
			if err := r.volume(p).WriteAt(r.ctx(), fillBlock(i), int64(i%64)*block, false); err != nil {
				t.Errorf("write %d: %v", i, err)
				return
			}
		}
	})
	r.start(back)
	r.acting(2)
	time.Sleep(100 * time.Millisecond)
	close(done)
	writes.Wait()
}

// TestPrimaryKilled: the next write is done at another host.
func TestPrimaryKilled(t *testing.T) {
	r := newRig(t, 3, 2, 8<<20, Fast())
	r.acting(3)
	p := r.primary()
	client := r.others(p)[0]
	stop := r.pauses(client)
	time.Sleep(200 * time.Millisecond)
	r.kill(p)
	begun := time.Now()
	r.acting(2)
	t.Logf("another primary after %v", time.Since(begun))
	time.Sleep(200 * time.Millisecond)
	longest, writes := stop()
	t.Logf("%d writes, the longest took %v", writes, longest)
	r.expect(r.others(p)[1], writes)
	r.start(p)
	r.acting(3)
	r.expect(p, writes)
}

// TestPrimaryRestarts: a primary is back before another host has taken its place, and does not know yet which hosts
// there are. Requests that others forward to it are made again.
func TestPrimaryRestarts(t *testing.T) {
	r := newRig(t, 3, 2, 8<<20, Options{})
	r.acting(3)
	p := r.primary()
	client := r.others(p)[0]
	stop := r.pauses(client)
	r.away = make(chan struct{})
	r.kill(p)
	r.start(p)
	x := r.hosts[client].peers.get(core.ID(p)) //nolint:gosec // 1 to 3
	if _, err := x.rpc.Forward(r.ctx(), &replicav1.ForwardRequest{Version: forwardVersion, Volume: r.id}, grpc.WaitForReady(true)); status.Code(err) != codes.Unavailable {
		t.Errorf("it answers %v", err)
	}
	close(r.away)
	r.acting(3)
	_, writes := stop()
	r.expect(p, writes)
}

// TestFailedMemory: a copy that has ended gives back the memory of its entries: clients at this host need it.
func TestFailedMemory(t *testing.T) {
	for _, what := range []string{"a volume whose store breaks", "one whose log breaks"} {
		t.Run(what, func(t *testing.T) {
			o := steady()
			o.logDelay = time.Hour
			r := newRig(t, 3, 2, 8<<20, o)
			r.acting(3)
			v := r.volume(r.primary())
			broken := make(chan error)
			v.loop.disk.job(func() error { return <-broken }, nil)
			for i := range 3 {
				r.must(v.WriteAt(r.ctx(), fillBlock(i), int64(i)*block, false))
			}
			if what == "one whose log breaks" {
				v.loop.post(func() { v.loop.synced(0, errors.New("broken")) })
				broken <- nil
			} else {
				r.must(v.Flush(r.ctx()))
				r.wait("the store is to have the writes", func() error {
					v.loop.disk.log.Hurry(0) // for the record of what the store gets
					applied := uint64(0)
					<-v.loop.await(func() { applied = v.loop.disk.applied })
					if applied < 3 {
						return fmt.Errorf("%d of them", applied)
					}
					return nil
				})
				broken <- errors.New("broken")
			}
			n := 0
			r.wait("all memory is there, of "+what, func() error {
				for v.memory.written.try(block) != nil {
					n++
				}
				if n < cap(v.memory.written[0].free) {
					return fmt.Errorf("%d buffers", n)
				}
				return nil
			})
		})
	}
}

// TestBehind: a replica that comes back gets more entries by the log than its memory takes at once.
func TestBehind(t *testing.T) {
	o := Fast()
	o.Memory = 4 * MaxEntry
	r := newRig(t, 3, 2, 8<<20, o)
	r.acting(3)
	p := r.primary()
	dead := r.others(p)[0]
	r.kill(dead)
	r.acting(2)
	v := r.volume(p)
	const writes = 900
	for i := range writes {
		r.must(v.WriteAt(r.ctx(), fillBlock(i), int64(i%64)*block, false))
	}
	r.start(dead)
	r.acting(3)
	r.expect(dead, writes)
	if s := r.volume(dead).Status(); s.Head.Index < writes || s.Backfilling {
		t.Errorf("%+v", s)
	}
}

// TestWiped: a replica whose disk was replaced gets a copy.
func TestWiped(t *testing.T) {
	o := Fast()
	o.Keep, o.Limit = 16, 128
	r := newRig(t, 3, 2, 64<<20, o)
	r.acting(3)
	p := r.primary()
	big := bytes.Repeat(fillBlock(7), 5<<20/block)
	r.must(r.volume(p).WriteAt(r.ctx(), big, 20<<20, false))
	r.must(r.volume(p).WriteAt(r.ctx(), big, 30<<20, false))
	r.must(r.volume(p).Trim(r.ctx(), 31<<20, 1<<20, false))
	dead := r.others(p)[0]
	r.kill(dead)
	r.acting(2)
	<-r.hosts[dead].closed
	r.must(os.RemoveAll(filepath.Join(r.dir, fmt.Sprint(dead))))
	stop := r.pauses(p)
	r.start(dead)
	r.acting(3)
	longest, writes := stop()
	t.Logf("%d writes, the longest took %v", writes, longest)
	r.must(r.volume(p).Flush(r.ctx()))
	r.kill(p)
	r.kill(r.others(p)[1])
	r.start(r.others(p)[1])
	r.expect(dead, writes)
	got := make([]byte, len(big))
	r.must(r.volume(dead).ReadAt(r.ctx(), got, 20<<20))
	if !bytes.Equal(got, big) {
		t.Error("the copy is not what was written")
	}
	r.must(r.volume(dead).ReadAt(r.ctx(), got, 30<<20))
	clear(big[1<<20 : 2<<20])
	if !bytes.Equal(got, big) {
		t.Error("the copy is not what was written and trimmed")
	}
}

// TestAllRestarted: what was flushed is there.
func TestAllRestarted(t *testing.T) {
	r := newRig(t, 3, 2, 8<<20, Fast())
	stop := r.pauses(1)
	time.Sleep(300 * time.Millisecond)
	_, writes := stop()
	r.must(r.volume(2).Flush(r.ctx()))
	for i := 1; i <= 3; i++ {
		r.kill(i)
	}
	for i := 1; i <= 3; i++ {
		r.start(i)
	}
	for i := 1; i <= 3; i++ {
		r.expect(i, writes)
	}
	r.acting(3)
}

// TestOldCopy: all hosts lose power, and the disk of one is put back from an old backup: it counts no longer as one that has
// everything, and gets a copy.
func TestOldCopy(t *testing.T) {
	o := Fast()
	o.Keep, o.Limit = 16, 128
	r := newRig(t, 3, 2, 8<<20, o)
	r.acting(3)
	p := r.primary()
	old := r.others(p)[0]
	dir, backup := r.volumeDir(old), filepath.Join(t.TempDir(), "backup")
	r.must(r.volume(p).WriteAt(r.ctx(), fillBlock(0), 0, true))
	r.kill(old)
	<-r.hosts[old].closed
	r.must(os.CopyFS(backup, os.DirFS(dir)))
	r.start(old)
	r.acting(3)
	const writes = 200
	for i := range writes {
		r.must(r.volume(p).WriteAt(r.ctx(), fillBlock(i), int64(i%64)*block, true))
	}
	for i := 1; i <= 3; i++ {
		r.kill(i)
		<-r.hosts[i].closed
	}
	r.must(errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(backup))))
	for i := 1; i <= 3; i++ {
		r.start(i)
	}
	for i := 1; i <= 3; i++ {
		r.expect(i, writes)
	}
	r.acting(3)
}
