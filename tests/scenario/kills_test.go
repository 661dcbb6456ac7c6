package scenario

import (
	"context"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

var killsSeed = flag.Uint64("scenario.kills.seed", 0, "only this run of TestKillsUnderLoad, with its kills")

// TestKillsUnderLoad: during writes, receivers, daemons (at their durable writes) and agents are
// killed, and at the end the sender's host is lost, in every second run at the moment of the first
// completion in a smaller view. When an operation completes, the application has received its view,
// and its bytes are at each member of the view. The survivors' daemons then report, or in every
// second run had on disk at that moment, a last view at least as late, and all its members have
// everything that was acknowledged.
func TestKillsUnderLoad(t *testing.T) {
	kills := 30
	if os.Getenv("MCRDMA_LONG") != "" {
		kills = 1000
	}
	for _, switches := range []bool{true, false} {
		name := "relay"
		if switches {
			name = "switch"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum killTally
			for seed := uint64(1); sum.kills < kills/2; seed++ {
				if *killsSeed != 0 {
					seed, kills = *killsSeed, 0
				}
				failed := false
				inVirtualTime(t, switches, func(l *lab) {
					l.killedUnderLoad(seed, &sum)
					failed = l.t.Failed()
				})
				if failed {
					t.Fatalf("replay: go test ./tests/scenario -run 'TestKillsUnderLoad/%s' -scenario.kills.seed=%d", name, seed)
				}
			}
			t.Logf("%+v", sum)
			if *killsSeed == 0 && (sum.smaller == 0 || sum.lostAtFirst == 0 || sum.failed > sum.runs/3) {
				t.Errorf("this tests little: %+v", sum)
			}
		})
	}
}

// A killTally counts events, so that runs that test nothing are noticed.
type killTally struct {
	runs, kills, acked int
	smaller            int // runs with completions in a smaller view
	lostAtFirst        int // runs whose sender's host was lost at the first such completion
	failed             int // groups that failed
}

// slotSize is the size of a write under load; the writes use the region's slots in turn.
const (
	slotSize = 64
	slots    = size / slotSize
)

// A load is a stream of writes, with their results.
type load struct {
	*team
	rnd     *rand.Rand
	regions map[string][]byte // by host
	atFirst bool              // the sender's host is lost at the first completion in a smaller view
	onDisk  bool              // the state of the others' disks at that moment counts

	mu     sync.Mutex
	handed map[uint32][]string // views that the application has received
	acked  [slots]uint64       // the last write to each slot that was acknowledged
	count  int
	first  uint32 // the first view
	last   uint32 // the last view of an acknowledged write
	lost   bool
	over   chan struct{} // closed when the sender's host is lost
}

func (l *lab) killedUnderLoad(seed uint64, sum *killTally) {
	rnd := rand.New(rand.NewPCG(seed, 18))
	// The hook before a completion in a smaller view takes longer than a queue pair waits.
	var disks, hook time.Duration
	switch seed % 3 {
	case 1:
		disks = 250 * time.Millisecond
	case 2:
		hook = 250 * time.Millisecond
	}
	for _, h := range l.others() {
		h.disk.setLatency(disks)
	}
	x := &load{rnd: rnd, regions: map[string][]byte{}, handed: map[uint32][]string{}, over: make(chan struct{}),
		atFirst: seed%2 == 0, onDisk: seed%4 < 2}
	x.team = l.group(mcrdma.GroupConfig{MinSize: 1, OnView: func(_ context.Context, v mcrdma.View) error {
		time.Sleep(hook) // the application records it durably
		x.mu.Lock()
		defer x.mu.Unlock()
		x.handed[v.Number] = nil
		for _, m := range v.Members {
			x.handed[v.Number] = append(x.handed[v.Number], m.Host)
		}
		return nil
	}}, l.others()...)
	for _, a := range x.apps {
		x.regions[a.h.name] = a.mem.Bytes()[:size]
	}
	x.first = x.g.View().Number
	ctx, stop := context.WithCancel(context.Background())
	under, pace := make(chan uint64, 1+rnd.IntN(6)), rand.New(rand.NewPCG(seed, 19))
	l.wg.Go(func() { x.write(ctx, pace, under) })
	kills := x.killSome()
	late := time.Duration(rnd.IntN(1000)) * time.Millisecond
	if x.atFirst {
		late = 20 * time.Second
	}
	select {
	case <-x.over:
	case <-time.After(late):
		x.mu.Lock()
		x.loseSender()
		x.mu.Unlock()
	}
	x.sender.h.crash()
	for _, k := range kills {
		if k.end() {
			sum.kills++
		}
	}
	x.judgeSurvivors(sum)
	stop()
	l.hosts[0].app.kill()
	sum.runs++
	sum.kills++ // the sender's host
	for _, h := range l.others() {
		if h.app == nil || !slices.Contains(x.alive(), h) {
			sum.kills++
		}
	}
	sum.acked += x.count
	if *killsSeed != 0 {
		l.t.Logf("%+v", *sum)
	}
}

// write writes until the sender's host is lost, as many at a time as under has room for.
func (x *load) write(ctx context.Context, pace *rand.Rand, under chan uint64) {
	for n := uint64(1); ; n++ {
		time.Sleep(time.Duration(pace.IntN(4000)) * time.Microsecond)
		select {
		case under <- n:
		case <-ctx.Done():
			return
		}
		at := int(n % slots * slotSize)
		p := x.sender.mem.Slice(at, slotSize)
		b := x.sender.mem.Bytes()[at:]
		for i := range slotSize / 8 {
			binary.BigEndian.PutUint64(b[8*i:], n)
		}
		op := &mcrdma.Op{Kind: mcrdma.OpWrite, At: mcrdma.At{Offset: uint64(at)}, Pieces: []mcrdma.Piece{p}, Done: func(op *mcrdma.Op) {
			x.done(n, op)
			<-under
		}}
		if x.g.Submit(ctx, op) != nil {
			return
		}
	}
}

// done is the completion of the nth write.
func (x *load) done(n uint64, op *mcrdma.Op) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if op.Err != nil {
		return
	}
	members, handed := x.handed[op.View]
	if !handed {
		x.l.t.Errorf("write %d is complete in view %d, which the application does not know", n, op.View)
	}
	if op.View < x.last {
		x.l.t.Errorf("write %d is complete in view %d, after view %d", n, op.View, x.last)
	}
	for _, h := range members {
		if got := x.has(h, int(n%slots)); got != n {
			x.l.t.Errorf("write %d is complete in view %d, and its member %s has %d there", n, op.View, h, got)
		}
	}
	x.acked[n%slots], x.last = n, op.View
	x.count++
	if x.atFirst && len(members) < len(x.regions) {
		x.loseSender()
	}
}

// has returns the write that a host has in a slot.
func (x *load) has(host string, slot int) uint64 {
	b := x.regions[host][slot*slotSize:][:slotSize]
	n := binary.BigEndian.Uint64(b)
	for i := range slotSize / 8 {
		if binary.BigEndian.Uint64(b[8*i:]) != n {
			x.l.t.Errorf("%s has parts of several writes in slot %d", host, slot)
		}
	}
	return n
}

// loseSender stops all packets of the sender's host, and all writes to disks if those count.
func (x *load) loseSender() {
	if x.lost {
		return
	}
	x.lost = true
	x.sender.h.silence(true)
	for _, h := range x.l.hosts {
		if x.onDisk || h == x.sender.h {
			h.disk.onWrite(func(bool) bool { return true })
		}
	}
	close(x.over)
}

// killSome kills daemons and agents at some of their next writes, and kills receivers, but not all.
func (x *load) killSome() (kills []*killer) {
	l := x.l
	for _, h := range l.hosts {
		if x.rnd.IntN(3) == 0 {
			kills = append(kills, l.arm(h.name, 1+x.rnd.IntN(4), x.rnd.IntN(2) == 0))
		}
	}
	for _, n := range l.switches {
		if x.rnd.IntN(6) == 0 {
			kills = append(kills, l.arm(n.name, 1+x.rnd.IntN(4), x.rnd.IntN(2) == 0))
		}
	}
	order := x.rnd.Perm(len(x.apps))
	for _, i := range order[:1+x.rnd.IntN(len(x.apps)-1)] {
		select {
		case <-time.After(time.Duration(x.rnd.IntN(600)) * time.Millisecond):
		case <-x.over:
			return kills
		}
		if a := x.apps[i]; x.rnd.IntN(3) > 0 {
			a.kill()
		} else {
			a.h.silence(true)
			a.h.app = nil
			l.wg.Go(a.kill)
		}
	}
	return kills
}

// alive returns the receivers' hosts that were not killed.
func (x *load) alive() (list []*host) {
	for _, a := range x.apps {
		if a.h.app == a {
			list = append(list, a.h)
		}
	}
	return list
}

// judgeSurvivors asks the survivors' daemons for the last view.
func (x *load) judgeSurvivors(sum *killTally) {
	l := x.l
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.last > x.first {
		sum.smaller++
		if x.atFirst {
			sum.lostAtFirst++
		}
	}
	if x.g.Err() != nil {
		sum.failed++
		return
	}
	var last uint32
	var members []string
	var out []string // they have been removed meanwhile, or have lost required state
	for _, h := range x.alive() {
		if x.onDisk {
			h.disk.onWrite(nil)
			h.crash()
			h.start()
		}
		view, list, err := h.recorded()
		switch {
		case err != nil:
			out = append(out, h.name)
		case slices.Contains(x.handed[x.last], h.name) && view < x.last:
			l.t.Errorf("a write is complete in view %d of %v, and %s has recorded view %d", x.last, x.handed[x.last], h.name, view)
		}
		if view > last {
			last, members = view, list
		}
	}
	if last < x.last {
		l.t.Errorf("a write is complete in view %d, and the survivors know view %d", x.last, last)
	}
	for _, h := range members {
		if slices.Contains(out, h) {
			l.t.Errorf("%s is a member of the last view %d, and does not know the group", h, last)
		}
		for slot, n := range x.acked {
			if got := x.has(h, slot); got < n {
				l.t.Errorf("write %d was acknowledged; %s is a member of the last view %d, and has %d", n, h, last, got)
			}
		}
	}
}
