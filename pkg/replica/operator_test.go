package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/store"
	"github.com/mcrdma/mcrdma/tests/osdmaptest"
)

// operator speaks as the first host.
func (r *rig) operator() *Operator {
	o := NewOperator(OperatorConfig{Manager: osdmap.New(r.kv, osdmap.Options{}), Files: r.files[1], Name: "h1", Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	r.t.Cleanup(o.Close)
	return o
}

// steady are times with which no host is taken out because the machine is busy.
func steady() Options {
	return Options{Lease: 4 * time.Second, Beat: 100 * time.Millisecond}
}

// id is a host's number.
func id(host int) core.ID { return core.ID(host) } //nolint:gosec // few

// incarnations are those of hosts.
func (r *rig) incarnations(hosts ...int) (list []core.Member) {
	for _, i := range hosts {
		list = append(list, r.volume(i).Status().Self)
	}
	return list
}

// TestReplaced: a host's place is given to another one, whether it is dead or alive, the primary or not, while clients write. The
// others go on as they were. The host that was replaced removes its copy.
func TestReplaced(t *testing.T) {
	for _, c := range []struct{ dead, primary bool }{{true, false}, {false, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			r := newRigOf(t, 4, 3, 2, 8<<20, steady())
			r.acting(3)
			p := r.primary()
			rest := slices.DeleteFunc(r.others(p), func(i int) bool { return i == 4 })
			lost, client := rest[0], p
			if c.primary {
				lost, client = p, rest[0]
			}
			stay := []int{client, rest[1]}
			was := r.incarnations(stay...)
			o := r.operator()
			stop := r.pauses(client)
			if c.dead {
				r.kill(lost)
			}
			s, err := o.Replace(r.ctx(), r.id, id(lost), 4, false)
			r.must(err)
			if v := s.Volume(r.id); v.Map.Holds(id(lost)) || !slices.Contains(v.Volume.Hosts, 4) {
				t.Fatalf("%+v", v)
			}
			_, err = o.Replace(r.ctx(), r.id, id(lost), 4, false) // it is done already
			r.must(err)
			if _, err = o.Lost(r.ctx(), r.id, id(lost), false); !errors.Is(err, core.ErrPlace) {
				t.Errorf("a host without a place was declared lost: %v", err)
			}
			r.wait("the new host acts", func() error {
				if s := r.volume(client).Status(); !s.Map.Holds(4) || len(s.Map.Acting) < 3 {
					return fmt.Errorf("%+v", s.Map)
				}
				return nil
			})
			longest, writes := stop()
			t.Logf("%d writes, the longest took %v", writes, longest)
			if longest >= r.options.Lease {
				t.Errorf("a client has waited for %v, as for leases that end", longest)
			}
			if now := r.incarnations(stay...); !slices.Equal(now, was) {
				t.Errorf("hosts that stay have restarted: %v, and were %v", now, was)
			}
			if c.dead && r.primary() != p {
				t.Errorf("h%d is the primary, and was h%d", r.primary(), p)
			}
			if i := r.volume(client).Info(); !slices.Contains(i.Hosts, 4) {
				t.Errorf("%+v", i)
			}
			if c.dead {
				r.start(lost)
			}
			r.wait("the copy is removed", func() error {
				if _, err := os.Stat(volumeDir(r.hosts[lost].cfg.Dir, r.id)); !errors.Is(err, os.ErrNotExist) {
					return fmt.Errorf("it is there: %w", err)
				}
				return nil
			})
			if _, err := r.hosts[lost].Volume(volumeName); !errors.Is(err, ErrNotFound) {
				t.Errorf("the replaced host has the volume: %v", err)
			}
			r.must(r.volume(client).Flush(r.ctx()))
			for _, i := range stay { // the new one has everything
				r.kill(i)
			}
			r.start(client)
			r.expect(4, writes)
		})
	}
}

// TestReplacedAtOnce: where two operators replace the same host by the same one at once, neither is refused.
func TestReplacedAtOnce(t *testing.T) {
	r := newRigOf(t, 4, 3, 2, 8<<20, steady())
	r.acting(3)
	lost := slices.DeleteFunc(r.others(r.primary()), func(i int) bool { return i == 4 })[0]
	o, late, first := r.operator(), r.operator(), sync.Once{}
	late.manager = osdmap.New(osdmaptest.Faulty{KV: r.kv, Fault: func(_ context.Context, call string, after bool) error {
		if call == "Get" && after {
			first.Do(func() {
				_, err := o.Replace(r.ctx(), r.id, id(lost), 4, false)
				r.must(err)
				r.wait("the new host has its copy", func() error {
					_, err := r.hosts[4].Volume(volumeName)
					return err
				})
			})
		}
		return nil
	}}, osdmap.Options{Timeout: time.Minute})
	_, err := late.Replace(r.ctx(), r.id, id(lost), 4, false)
	r.must(err)
}

// TestReplaceLast: the last host that is up to date is not replaced, but if its data is given up.
func TestReplaceLast(t *testing.T) {
	r := newRigOf(t, 4, 3, 1, 8<<20, steady())
	r.acting(3)
	o, p := r.operator(), r.primary()
	rest := slices.DeleteFunc(r.others(p), func(i int) bool { return i == 4 })
	r.must(r.volume(p).WriteAt(r.ctx(), fillBlock(1), 0, true))
	r.kill(rest[0])
	r.kill(rest[1])
	r.acting(1)
	r.must(r.volume(p).WriteAt(r.ctx(), fillBlock(2), 0, true))
	refused := func(force bool, words ...string) {
		t.Helper()
		_, err := o.Replace(r.ctx(), r.id, id(p), 4, force)
		for _, w := range words {
			if !errors.Is(err, ErrLoss) || !strings.Contains(err.Error(), w) {
				t.Fatalf("%v; want %q", err, w)
			}
		}
	}
	refused(true, fmt.Sprintf("h%d answers", p))
	r.kill(p)
	refused(true, "no other host that answers")
	r.start(rest[0])
	r.wait("it answers", func() error {
		_, err := r.hosts[rest[0]].Volume(volumeName)
		return err
	})
	refused(false, fmt.Sprintf("h%d is the last one", p), fmt.Sprintf("the copy of h%d", rest[0]), "--lose-data")
	_, err := o.Replace(r.ctx(), r.id, id(p), 4, true)
	r.must(err)
	r.start(rest[1])
	r.acting(3)
	b := make([]byte, block)
	r.must(r.volume(4).ReadAt(r.ctx(), b, 0))
	if string(b) != string(fillBlock(1)) {
		t.Errorf("%.8q", b)
	}
}

// TestEvicted: a copy is kept while it may be needed.
func TestEvicted(t *testing.T) {
	r := newRigOf(t, 2, 1, 1, 8<<20, steady())
	r.acting(1)
	r.must(r.volume(1).WriteAt(r.ctx(), fillBlock(1), 0, true))
	h := r.hosts[1].Host
	var s osdmap.VolumeState
	r.wait("it has read the newest map", func() error { // nothing opens the volume again
		h.mu.Lock()
		s = *h.state.Volume(r.id)
		h.mu.Unlock()
		if now := r.volume(1).Status().Map.Epoch; s.Map.Epoch < now || s.Map.Since == 0 {
			return fmt.Errorf("epoch %d, and it is %d", s.Map.Epoch, now)
		}
		return nil
	})
	s.Volume.Hosts, s.Map.Former = []core.ID{2, 3}, []core.ID{1, 0}
	dir := volumeDir(h.cfg.Dir, r.id)
	for _, c := range []struct {
		change func(m *core.Map)
		want   string
		broken bool // otherwise there is nothing to repair
	}{
		{func(m *core.Map) { m.MinSize = 2 }, "1 hosts act, and min_size is 2", false},
		{func(m *core.Map) { m.Since = 0 }, "the volume is not served yet", false},
		{func(m *core.Map) { m.Former = nil }, "it may be another host's copy", true}, // it came with that one's disk
		{func(m *core.Map) { m.Epoch-- }, "restore a newer one", true},
	} {
		x := s
		c.change(&x.Map)
		if v := h.volume(r.id); v != nil {
			h.drop(v)
		}
		h.evict(x)
		if _, err := h.Volume(volumeName); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "copies on h2, host 3") {
			t.Errorf("%v; want %q", err, c.want)
		}
		if ok, note := h.Ready(); ok == c.broken || len(h.Health().Broken) > 0 != c.broken {
			t.Errorf("%s: ready: %v, %s", c.want, ok, note)
		}
		if _, err := os.Stat(filepath.Join(dir, "log")); err != nil {
			t.Fatal(err)
		}
	}
	h.evict(s)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}

// TestJudge: what is lost without a host, by what the others say.
func TestJudge(t *testing.T) {
	m := &core.Map{Epoch: 9, Since: 8, Primary: core.Member{ID: 1, Incarnation: 10}, Acting: []core.Member{{ID: 1, Incarnation: 10}, {ID: 2, Incarnation: 20}}, MinSize: 1}
	away := errors.New("away")
	lost := Copy{Host: 1, Err: away}
	at := func(host core.ID, incarnation uint64) Copy {
		return Copy{Host: host, Self: core.Member{ID: host, Incarnation: incarnation}, LastEpochStarted: 5, Born: 1}
	}
	with := func(c Copy, f func(*Copy)) Copy {
		f(&c)
		return c
	}
	for name, c := range map[string]struct {
		copies []Copy
		loss   string
		only   core.ID
		never  bool
	}{
		"another has everything":               {[]Copy{lost, at(2, 20)}, "", 0, false},
		"another has restarted":                {[]Copy{lost, at(2, 21)}, "have restarted", 0, false},
		"it answers, another has restarted":    {[]Copy{at(1, 10), at(2, 21)}, "LOST answers", 0, true},
		"it answers, another has everything":   {[]Copy{at(1, 10), at(2, 20)}, "", 0, false},
		"it has a new disk, another restarted": {[]Copy{with(at(1, 11), func(c *Copy) { c.Born, c.LastEpochStarted = 11, 0 }), at(2, 21)}, "have restarted", 0, false},
		"another has failed":                   {[]Copy{lost, with(at(2, 20), func(c *Copy) { c.Failure = "disk" })}, "no other host", 0, true},
		"another has a new disk":               {[]Copy{lost, with(at(2, 21), func(c *Copy) { c.Born, c.LastEpochStarted = 21, 0 })}, "no other host", 0, true},
		"another has a new disk, a third less": {[]Copy{lost, with(at(2, 21), func(c *Copy) { c.Born, c.LastEpochStarted = 21, 0 }), at(3, 30)}, "the copy of ONLY, which was up to date in epoch 5", 3, false},
		"others that do not act":               {[]Copy{lost, at(3, 30), with(at(4, 40), func(c *Copy) { c.LastEpochStarted = 6 })}, "the copy of ONLY, which was up to date in epoch 6", 4, false},
		"others with as much of the epoch":     {[]Copy{lost, with(at(3, 30), func(c *Copy) { c.Head.Index = 7 }), at(4, 40)}, "the copy of ONLY", 3, false},
		"one whose copy is not complete":       {[]Copy{lost, with(at(3, 30), func(c *Copy) { c.Backfilling = true })}, "no other host", 0, true},
	} {
		if only, loss, never := judge(m, 1, c.copies); only.ID != c.only || never != c.never || !strings.Contains(loss, c.loss) || (loss == "") != (c.loss == "") {
			t.Errorf("%s: %v, %q, %v", name, only, loss, never)
		}
	}
}

// TestPromoted: each host is made the primary in turn, and clients of all hosts go on.
func TestPromoted(t *testing.T) {
	r := newRig(t, 3, 2, 8<<20, steady())
	r.acting(3)
	o := r.operator()
	was := r.incarnations(1, 2, 3)
	stop := r.pauses(1)
	for i := range 6 {
		next := 1 + (r.primary()+i%2)%3
		s, err := o.Promote(r.ctx(), r.id, id(next))
		r.must(err)
		if v := s.Volume(r.id); v.Map.Primary.ID != id(next) || len(v.Map.Acting) != 3 {
			t.Errorf("%+v", v.Map)
		}
	}
	longest, writes := stop()
	t.Logf("%d writes, the longest took %v", writes, longest)
	if now := r.incarnations(1, 2, 3); !slices.Equal(now, was) {
		t.Errorf("%v, and were %v", now, was)
	}
	for i := 1; i <= 3; i++ {
		r.expect(i, writes)
	}
	dead := r.others(r.primary())[0]
	r.kill(dead)
	r.acting(2)
	if _, err := o.Promote(r.ctx(), r.id, id(dead)); !errors.Is(err, core.ErrActing) {
		t.Errorf("%v", err)
	}
	if _, err := o.MinSize(r.ctx(), r.id, 3); !errors.Is(err, core.ErrActing) {
		t.Errorf("%v", err)
	}
	_, err := o.MinSize(r.ctx(), r.id, 1)
	r.must(err)
	r.kill(r.others(r.primary())[0])
	r.kill(r.others(r.primary())[1])
	r.acting(1)
}

// TestScrub: copies are the same while they are written to; what is not, or cannot be read, is found.
func TestScrub(t *testing.T) {
	r := newRig(t, 3, 2, 10<<20, steady())
	r.acting(3)
	o, p := r.operator(), r.primary()
	scrub := func() (all []Scrubbed) {
		t.Helper()
		r.must(o.Scrub(r.ctx(), r.id, func(_ *osdmap.State, p Scrubbed) { all = append(all, p) }))
		if len(all) != 3 || all[2].Length != 2<<20 {
			t.Fatalf("%+v", all)
		}
		return all
	}
	stop := r.pauses(p)
	for range 10 {
		for _, s := range scrub() {
			if len(s.Wrong()) > 0 || len(s.Sums) < 2 || s.Busy != nil {
				t.Fatalf("%+v", s)
			}
		}
	}
	stop()
	r.must(r.volume(p).WriteAt(r.ctx(), fillBlock(7), 9<<20, true))
	r.wait("all is in the stores", func() error {
		for i := 1; i <= 3; i++ {
			if s := r.volume(i).Status(); s.Applied < s.Head.Index {
				return fmt.Errorf("%+v", s.Status)
			}
		}
		return nil
	})
	bad := r.others(p)[1]
	f, err := os.OpenFile(filepath.Join(volumeDir(r.hosts[bad].cfg.Dir, r.id), "store", "data"), os.O_RDWR, 0)
	r.must(err)
	defer f.Close()
	_, err = f.WriteAt([]byte{0xff}, 9<<20+100)
	r.must(err)
	for i, s := range scrub() {
		if w := s.Wrong(); (len(w) > 0) != (i == 2) || i == 2 && !slices.Equal(w, []core.ID{id(bad)}) {
			t.Errorf("%+v", s)
		}
	}
	r.must(f.Truncate(9<<20 + 50))
	if s := scrub()[2]; !slices.Equal(s.Wrong(), []core.ID{id(bad)}) || !slices.ContainsFunc(s.Sums, func(x Sum) bool { return x.Host == id(bad) && errors.Is(x.Err, ErrUnreadable) }) {
		t.Errorf("%+v", s)
	}
	if s := r.volume(bad).Status(); s.Failure != nil || s.State != core.Replica {
		t.Errorf("the scrub has ended the copy: %+v", s)
	}
	r.must(f.Truncate(10 << 20))
	if two := (&Scrubbed{Sums: []Sum{{1, 7, nil}, {2, 8, nil}}}); len(two.Wrong()) != 2 {
		t.Errorf("%v", two.Wrong())
	}
	if store.Piece != 4<<20 {
		t.Error("pieces have another size than documented")
	}
}
