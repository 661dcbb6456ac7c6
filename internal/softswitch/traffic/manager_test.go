package traffic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/tests/sample"
)

// A rig is a manager that runs the sample program, and what came out of it.
type rig struct {
	t testing.TB
	*Manager
	pipe *pipeline.Pipeline
	pre  *pre.Engine
	now  time.Duration
	out  []output
}

type output struct {
	at    time.Duration
	port  uint16
	frame []byte
}

func newRig(t testing.TB) *rig {
	return newRigOf(t, Config{})
}

func newRigOf(t testing.TB, c Config) *rig {
	r := &rig{t: t}
	var err error
	r.Manager, err = New(c, func(port uint16, frame []byte) {
		r.out = append(r.out, output{r.now, port, bytes.Clone(frame)})
	})
	r.must(err)
	r.load()
	return r
}

// load loads another pipeline of the same program.
func (r *rig) load() {
	prog, err := sample.Load()
	r.must(err)
	r.pre = pre.New(pre.Limits{})
	r.pipe, err = pipeline.New(prog, pipeline.Options{PRE: r.pre})
	r.must(err)
	r.Load(r.pipe)
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// run lets virtual time pass until nothing waits.
func (r *rig) run() {
	for {
		next, ok := r.Run(r.now)
		if !ok {
			return
		}
		if next <= r.now {
			r.t.Fatalf("Run at %v wants to be called again at %v", r.now, next)
		}
		r.now = next
	}
}

// frame returns an Ethernet frame with a mark in it.
func frame(n int, mark byte) []byte {
	f := bytes.Repeat([]byte{mark}, n)
	copy(f, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5})
	return f
}

// ipv4 returns a frame with an IPv4 packet that may be marked.
func ipv4(n int, to string) []byte {
	f := frame(n, 0)
	f[12], f[13] = 8, 0
	ip := f[14:34]
	ip[0], ip[1], ip[8] = 0x45, 2, 64
	binary.BigEndian.PutUint16(ip[2:], uint16(n-14))
	a := netip.MustParseAddr(to).As4()
	copy(ip[16:], a[:])
	return f
}

func (r *rig) ports() (list []uint16) {
	for _, o := range r.out {
		list = append(list, o.port)
	}
	return list
}

// TestAtOnce: without rates a frame is through when Arrive returns.
func TestAtOnce(t *testing.T) {
	r := newRig(t)
	r.must(sample.Patch(r.pipe, 1, "In.forward", 2))
	r.must(sample.Patch(r.pipe, 2, "In.replicate", 7))
	r.must(r.pre.InsertGroup(7, []pre.Replica{{Port: 3, Instance: 1}, {Port: 1, Instance: 2}, {Port: 3, Instance: 3}}))
	r.Arrive(0, 1, frame(100, 1))
	r.Arrive(0, 2, frame(100, 2))
	r.Arrive(0, 3, frame(100, 3)) // dropped
	if got, want := r.ports(), []uint16{2, 3, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("ports %v, want %v", got, want)
	}
	if !bytes.Equal(r.out[0].frame, frame(100, 1)) || !bytes.Equal(r.out[3].frame, frame(100, 2)) {
		t.Error("frames were changed")
	}
	if next, ok := r.Run(0); ok {
		t.Errorf("something waits until %v", next)
	}
	s := r.ClassStats(3)
	if !slices.Equal(s, []ClassStats{{Queued: 2, Peak: Depth{2, 200}, Sent: 2, Bytes: 200}, {}}) || r.Stats().Arrived != 3 {
		t.Errorf("%+v, %+v", s, r.Stats())
	}
}

// TestRate: packets leave at their port's rate and no other port's, and are
// marked by how many waited.
func TestRate(t *testing.T) {
	r := newRigOf(t, Config{Memory: Memory{Shared: 1, Reserve: 5000}})
	r.must(sample.Route(r.pipe, netip.MustParsePrefix("10.0.0.0/8"), 2, 1, 2))
	r.must(sample.Patch(r.pipe, 9, "In.forward", 3))
	r.must(sample.Mark(r.pipe, 2, 3))
	r.must(r.SetRate(2, Rate{8e8, true})) // 1000 bytes in 10 µs
	for range 8 {
		r.Arrive(0, 1, ipv4(1000, "10.1.2.3"))
	}
	r.Arrive(0, 9, frame(1000, 1))
	r.run()
	var got []string
	for _, o := range r.out {
		got = append(got, fmt.Sprint(o.at, " ", o.port, " ", o.frame[15]&3))
	}
	// One is on its way at once, five wait, two find the queue full.
	want := []string{"0s 2 2", "0s 3 1", "10µs 2 2", "20µs 2 2", "30µs 2 2", "40µs 2 3", "50µs 2 3"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if s := r.ClassStats(2)[0]; s != (ClassStats{Queued: 6, Dropped: 2, Peak: Depth{5, 5000}, Sent: 6, Bytes: 6000}) {
		t.Errorf("%+v", s)
	}
}

// TestRateChange: removing a rate releases all packets that waited for it.
func TestRateChange(t *testing.T) {
	r := newRig(t)
	r.must(sample.Patch(r.pipe, 1, "In.forward", 2))
	r.must(r.SetRate(2, Rate{PerSecond: 1}))
	for i := range 5 {
		r.Arrive(0, 1, frame(100, byte(i)))
	}
	if len(r.out) != 1 || r.ClassStats(2)[0].Waiting != (Depth{4, 400}) || r.Manager.ports[2].rate.PerSecond != 1 {
		t.Fatalf("%d left, %+v", len(r.out), r.ClassStats(2))
	}
	r.must(r.SetRate(2, Rate{}))
	if _, ok := r.Run(0); ok || len(r.out) != 5 {
		t.Errorf("%d left, want 5", len(r.out))
	}
}

// TestReplacedPipeline: waiting packets leave through the pipeline by which they came in; new
// packets use the new one only.
func TestReplacedPipeline(t *testing.T) {
	r := newRig(t)
	r.must(sample.Patch(r.pipe, 1, "In.forward", 2))
	r.must(r.SetRate(2, Rate{PerSecond: 1e6}))
	for i := range 3 {
		r.Arrive(0, 1, frame(100, byte(i)))
	}
	old := r.pipe
	r.load()
	r.Arrive(0, 1, frame(100, 9)) // the new one has no entries
	r.run()
	if len(r.out) != 3 || old.Stats().Emitted != 3 || r.pipe.Stats().Emitted != 0 || r.pipe.Stats().IngressDrops != 1 {
		t.Errorf("%d left; old %+v, new %+v", len(r.out), old.Stats(), r.pipe.Stats())
	}
}

func TestNoPipeline(t *testing.T) {
	m, err := New(Config{}, func(uint16, []byte) { t.Error("something left") })
	if err != nil {
		t.Fatal(err)
	}
	m.Arrive(0, 1, frame(100, 1))
	if _, ok := m.Run(0); ok || m.Stats() != (Stats{Arrived: 1, NoPipeline: 1}) || m.Pipeline() != nil {
		t.Errorf("%+v", m.Stats())
	}
}

// TestDeterminism: the same arrivals have the same results at the same times.
func TestDeterminism(t *testing.T) {
	run := func() []output {
		r := newRigOf(t, Config{Memory: Memory{Shared: 1, Reserve: 2000}})
		r.must(sample.Route(r.pipe, netip.MustParsePrefix("10.0.0.0/8"), 2, 1, 2))
		r.must(sample.Patch(r.pipe, 1, "In.replicate", 7))
		r.must(r.pre.InsertGroup(7, []pre.Replica{{Port: 3, Instance: 1}, {Port: 2, Instance: 2}}))
		r.must(r.SetRate(2, Rate{3e8, true}))
		r.must(r.SetRate(3, Rate{PerSecond: 70000}))
		for i := range 300 {
			at := time.Duration(i*i%97+i*5) * us
			for {
				next, ok := r.Run(r.now)
				if !ok || next > at {
					break
				}
				r.now = next
			}
			r.now = max(r.now, at)
			if i%3 == 0 {
				r.Arrive(r.now, 1, frame(60+i, byte(i)))
			} else {
				r.Arrive(r.now, 1, ipv4(60+i, "10.0.0.1"))
			}
		}
		r.run()
		return r.out
	}
	a, b := run(), run()
	if len(a) < 100 || !slices.EqualFunc(a, b, func(x, y output) bool {
		return x.at == y.at && x.port == y.port && bytes.Equal(x.frame, y.frame)
	}) {
		t.Errorf("%d and %d outputs, or other ones", len(a), len(b))
	}
}

func TestManagerAllocs(t *testing.T) {
	r := newRig(t)
	r.must(sample.Route(r.pipe, netip.MustParsePrefix("10.0.0.0/8"), 2, 1, 2))
	r.emit = func(uint16, []byte) {}
	f := ipv4(1100, "10.0.0.1")
	if n := testing.AllocsPerRun(1000, func() {
		r.now += us
		r.Arrive(r.now, 1, f)
		r.Run(r.now)
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

func BenchmarkManager(b *testing.B) {
	r := newRig(b)
	r.must(sample.Route(r.pipe, netip.MustParsePrefix("10.0.0.0/8"), 2, 1, 2))
	r.emit = func(uint16, []byte) {}
	f := ipv4(1100, "10.0.0.1")
	b.ReportAllocs()
	for b.Loop() {
		r.now += us
		r.Arrive(r.now, 1, f)
		r.Run(r.now)
	}
}
