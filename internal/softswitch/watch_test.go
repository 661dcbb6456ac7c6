package softswitch

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

// TestWatchedPorts: members of a selector whose watch port is down are left out,
// also in a pipeline that is loaded later, and come back with the port.
func TestWatchedPorts(t *testing.T) {
	text, err := os.ReadFile("pipeline/testdata/tables.json")
	must(t, err)
	prog, err := program.Load(text)
	must(t, err)
	synctest.Test(t, func(t *testing.T) {
		s := newSwitch(t, Config{})
		hosts := make([]ports.Port, 4)
		var plugs [4]*plug
		for i := range hosts {
			near, far := memnet.Pair(fmt.Sprint("sw", i), fmt.Sprint("host", i))
			defer far.Close()
			plugs[i], hosts[i] = &plug{Port: near}, far
			must(t, s.Attach(uint16(i), plugs[i]))
		}
		reload := func() {
			p, e, err := s.NewPipeline(prog)
			must(t, err)
			must(t, selectPorts(p, 2, 3))
			s.Load(p, e)
		}
		reload()
		// The program sends a packet for which nothing is selected to port 1.
		arrivals := func() (to [4]bool) {
			for b := range byte(32) {
				hosts[0].Send([][]byte{append([]byte{3, b}, make([]byte, 40)...)})
			}
			synctest.Wait()
			for i, p := range s.Stats().Ports {
				to[i] = p.TxPackets > uint64(plugs[i].seen)
				plugs[i].seen = int(p.TxPackets)
			}
			return to
		}
		for i, c := range []struct {
			pull, plug int // 0: none
			reload     bool
			want       [4]bool
		}{
			{0, 0, false, [4]bool{2: true, 3: true}},
			{2, 0, false, [4]bool{3: true}},
			{0, 0, true, [4]bool{3: true}},
			{3, 0, false, [4]bool{1: true}},
			{0, 2, false, [4]bool{2: true}},
			{0, 3, true, [4]bool{2: true, 3: true}},
		} {
			if c.pull > 0 {
				plugs[c.pull].pulled.Store(true)
			}
			if c.plug > 0 {
				plugs[c.plug].pulled.Store(false)
			}
			time.Sleep(upPeriod + 1)
			if c.reload {
				reload()
			}
			if got := arrivals(); got != c.want {
				t.Errorf("step %d: frames leave by %v, want %v", i, got, c.want)
			}
		}
	})
}

// A plug is a port whose cable can be pulled.
type plug struct {
	ports.Port
	pulled atomic.Bool
	seen   int // frames sent so far
}

func (p *plug) Up() bool { return !p.pulled.Load() && p.Port.Up() }

// selectPorts has tables.p4 spread packets that begin with 3 over ports, each of
// which is watched.
func selectPorts(p *pipeline.Pipeline, to ...int) error {
	t := p.Table("I.selected")
	at := slices.IndexFunc(t.Info().Actions, func(a int) bool { return p.Program().Actions[a].Name == "I.pick" })
	var set []pipeline.Weighted
	for _, port := range to {
		args := []match.Value{{7}, {uint64(port)}}
		set = append(set, pipeline.Weighted{Call: pipeline.Call{Action: t.Info().Actions[at], Args: args}, Weight: 1, WatchPort: port})
	}
	return t.Insert(&pipeline.Entry{Key: match.Key{{Value: match.Value{3}}}, Ref: pipeline.RefSet, Set: set})
}

// A slowPath is a fast path from which copies take a while to leave.
type slowPath struct {
	NoFastPath
	waits   bool
	changed atomic.Int32
}

func (p *slowPath) Ends() (wait func()) {
	if p.waits = !p.waits; p.waits {
		return func() { time.Sleep(time.Second) }
	}
	return nil
}
func (p *slowPath) Changed() { p.changed.Add(1) }

// A telling path has news.
type tellingPath struct {
	NoFastPath
	s     *Switch
	news  chan struct{}
	looks atomic.Int32
}

func (p *tellingPath) News() <-chan struct{} { return p.news }
func (p *tellingPath) Look() (note func()) {
	p.s.FastPath() // which takes the lock
	return func() { p.looks.Add(1) }
}

// TestNews: the fast path looks at its ports each second, and at once when there are news; the
// switch keeps running meanwhile.
func TestNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitch(t, Config{})
		p := &tellingPath{s: s, news: make(chan struct{}, 1)}
		s.Accelerate(p)
		p.news <- struct{}{}
		synctest.Wait()
		if n := p.looks.Load(); n != 1 {
			t.Errorf("%d looks at once", n)
		}
		time.Sleep(3500 * time.Millisecond)
		if n := p.looks.Load(); n != 4 {
			t.Errorf("%d looks", n)
		}
	})
}

// TestCopiesLeave: while copies leave the fast path, the switch keeps running, and the control
// plane waits.
func TestCopiesLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitch(t, Config{})
		p := &slowPath{NoFastPath: "it is slow"}
		s.Accelerate(p)
		start := time.Now()
		var accesses atomic.Int32
		for range 2 {
			go s.Do(func(*pipeline.Pipeline, *pre.Engine) { accesses.Add(1) })
		}
		synctest.Wait()
		if s.FastPath() == "" || accesses.Load() != 1 || p.changed.Load() != 0 || time.Since(start) > 0 {
			t.Errorf("after %v: %d accesses, %d changes", time.Since(start), accesses.Load(), p.changed.Load())
		}
		time.Sleep(3 * time.Second)
		if accesses.Load() != 2 || p.changed.Load() != 2 {
			t.Errorf("%d accesses, %d changes", accesses.Load(), p.changed.Load())
		}
	})
}

// TestDropsAreProblems: a port that drops frames because of its settings is a problem, until a
// minute after the last one.
func TestDropsAreProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitch(t, Config{})
		near, far := memnet.Pair("sw0", "host0")
		defer far.Close()
		p := &lossy{Port: near}
		must(t, s.Attach(0, p))
		for _, c := range []struct {
			drops uint64
			after time.Duration
			want  string
		}{
			{0, 2 * dropsPeriod, "map[]"},
			{3, 2 * dropsPeriod, "map[port 0, sw0, drops frames that are longer than its MTU:give all interfaces of the switch the same MTU]"},
			{0, droppedFor / 2, "map[port 0, sw0, drops frames that are longer than its MTU:give all interfaces of the switch the same MTU]"},
			{1, droppedFor - dropsPeriod, "map[port 0, sw0, drops frames that are longer than its MTU:give all interfaces of the switch the same MTU]"},
			{0, 2 * dropsPeriod, "map[]"},
		} {
			p.drops.Add(c.drops)
			time.Sleep(c.after)
			if got := fmt.Sprint(s.Problems()); got != c.want {
				t.Errorf("%v after %d drops: %s, want %s", c.after, c.drops, got, c.want)
			}
		}
	})
}

// A lossy port has dropped frames that were too long.
type lossy struct {
	ports.Port
	drops atomic.Uint64
}

func (l *lossy) Stats() ports.Stats {
	return ports.Stats{Drops: map[string]uint64{ports.TxTooLong.String(): l.drops.Load(), ports.TxFull.String(): 7}}
}
