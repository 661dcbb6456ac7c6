package replica

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// lose makes a host lose the entries that it sends to another by messages.
func (r *rig) lose(from, to int) {
	p := r.hosts[from].peers
	p.mu.Lock()
	defer p.mu.Unlock()
	x := *p.all[core.ID(to)]
	on := x.queue
	x.queue = make(chan message, maxQueue)
	p.all[core.ID(to)] = &x
	r.t.Cleanup(func() { close(x.queue) })
	go func() {
		for m := range x.queue {
			if _, ok := m.Body.(core.Push); ok {
				m.release()
			} else {
				on <- m
			}
		}
	}()
}

// TestLeaveWithGap: a host that was taken into the group lacks entries from before that, and all its
// memory is occupied by later ones, when another host becomes the primary. It leaves the group all
// the same, and gets everything.
func TestLeaveWithGap(t *testing.T) {
	r := newRig(t, 3, 2, 64<<20, Options{Memory: 8 << 20})
	old := r.primary()
	next, behind := r.others(old)[0], r.others(old)[1]
	r.kill(behind)
	r.acting(2)
	v := r.volume(old)
	for i := range 8 {
		r.must(v.WriteAt(r.ctx(), fillBlock(i), int64(i)*block, false))
	}
	r.lose(old, behind)
	r.start(behind)
	l := func() *loop { return r.volume(behind).loop }
	in := func(f func(l *loop)) { <-l().await(func() { f(l()) }) }
	r.wait("it is in the group", func() error {
		if err := v.WriteAt(r.ctx(), fillBlock(8), 8*block, false); err != nil {
			return err
		}
		return is(in, func(l *loop) bool { return len(l.content.arrived) > 0 })
	})
	data := bytes.Repeat([]byte{7}, MaxEntry)
	writes := make(chan error, 1)
	go func() { // they may wait until it has left
		writes <- func() error {
			for i := range int64(8) {
				if err := v.WriteAt(r.ctx(), data, (1+i)*MaxEntry, false); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	r.wait("its memory is occupied", func() error {
		return is(in, func(l *loop) bool { return l.memory.landed.class(MaxEntry).waits.Load() > 0 })
	})
	o := r.operator()
	_, err := o.Promote(r.ctx(), r.id, id(next))
	r.must(err)
	r.acting(3)
	r.must(<-writes)
	p := make([]byte, MaxEntry)
	r.must(r.volume(behind).ReadAt(r.ctx(), p, 8*MaxEntry))
	if !bytes.Equal(p, data) {
		t.Error("it reads something else")
	}
}

// is asks a loop.
func is(in func(func(*loop)), f func(l *loop) bool) (err error) {
	in(func(l *loop) {
		if !f(l) {
			err = fmt.Errorf("entries %d to %d, and %d more", l.content.tail, l.content.head(), len(l.content.arrived))
		}
	})
	return err
}
