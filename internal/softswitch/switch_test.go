package softswitch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/p4rtserver"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/memnet"
	"github.com/mcrdma/mcrdma/tests/sample"
)

var _ p4rtserver.Target = (*Switch)(nil)

// The main thread cannot be thrown away; keep the labs off it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	testenv.OneProcessor()
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newSwitch returns a switch that runs the sample program. The test closes it.
func newSwitch(t testing.TB, cfg Config) *Switch {
	t.Helper()
	s, err := New(cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	load(t, s)
	return s
}

func load(t testing.TB, s *Switch) (*pipeline.Pipeline, *pre.Engine) {
	t.Helper()
	prog, err := sample.Load()
	must(t, err)
	p, e, err := s.NewPipeline(prog)
	must(t, err)
	s.Load(p, e)
	return p, e
}

// cables attaches the first ends of pairs as ports 0 to n-1 and returns the
// others.
func cables(t testing.TB, s *Switch, n int) []ports.Port {
	t.Helper()
	far := make([]ports.Port, n)
	for i := range far {
		var near ports.Port
		near, far[i] = memnet.Pair(fmt.Sprint("sw", i), fmt.Sprint("host", i))
		must(t, s.Attach(uint16(i), near))
		t.Cleanup(func() { far[i].Close() })
	}
	return far
}

func frame(n int, mark byte) []byte {
	f := bytes.Repeat([]byte{mark}, n)
	copy(f, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5})
	return f
}

func recv(t testing.TB, p ports.Port) []byte {
	t.Helper()
	b := [][]byte{make([]byte, 0, MaxFrame)}
	if _, err := p.Recv(b); err != nil {
		t.Fatal(err)
	}
	return b[0]
}

func want(t testing.TB, p ports.Port, f []byte) {
	t.Helper()
	if got := recv(t, p); !bytes.Equal(got, f) {
		t.Errorf("%s got\n%x, want\n%x", p.Name(), got, f)
	}
}

func do(t testing.TB, s *Switch, f func(p *pipeline.Pipeline, e *pre.Engine) error) {
	t.Helper()
	s.Do(func(p *pipeline.Pipeline, e *pre.Engine) { must(t, f(p, e)) })
}

// patch has the switch forward from each port of the list to the one after it.
func patch(t testing.TB, s *Switch, ports ...uint16) {
	t.Helper()
	for i := range len(ports) - 1 {
		do(t, s, func(p *pipeline.Pipeline, _ *pre.Engine) error {
			return sample.Patch(p, ports[i], "In.forward", uint64(ports[i+1]))
		})
	}
}

func TestForward(t *testing.T) {
	s := newSwitch(t, Config{})
	hosts := cables(t, s, 4)
	patch(t, s, 0, 1, 0)
	do(t, s, func(p *pipeline.Pipeline, e *pre.Engine) error {
		return errors.Join(sample.Patch(p, 2, "In.replicate", 7), sample.Patch(p, 3, "In.forward", 77),
			e.InsertGroup(7, []pre.Replica{{Port: 3}, {Port: 0, Instance: 1}, {Port: 3, Instance: 1}}))
	})
	for i := range 100 {
		hosts[0].Send([][]byte{frame(60+i, byte(i))})
		want(t, hosts[1], frame(60+i, byte(i)))
		hosts[1].Send([][]byte{frame(160-i, byte(i))})
		want(t, hosts[0], frame(160-i, byte(i)))
	}
	hosts[2].Send([][]byte{frame(100, 1), frame(100, 2)})
	for _, mark := range []byte{1, 1, 2, 2} {
		want(t, hosts[3], frame(100, mark))
	}
	want(t, hosts[0], frame(100, 1))
	want(t, hosts[0], frame(100, 2))
	hosts[3].Send([][]byte{frame(100, 3)}) // to a port that is not there
	for s.Stats().NoPort != 1 {
		runtime.Gosched()
	}
	st := s.Stats()
	if st.Traffic.Arrived != 203 || len(st.Ports) != 4 || st.Pipeline.Received != 203 {
		t.Errorf("%+v", st)
	}
	p := st.Ports[3]
	if p.Number != 3 || p.Name != "sw3" || !p.Up || p.TxPackets != 4 || p.RxPackets != 1 || p.Classes[0].Sent != 4 {
		t.Errorf("%+v", p)
	}
}

// TestOrder: many frames at once keep their order, more than a port sends at
// once among them.
func TestOrder(t *testing.T) {
	s := newSwitch(t, Config{})
	hosts := cables(t, s, 2)
	patch(t, s, 0, 1)
	const rounds, n = 50, 300
	for range rounds {
		frames := make([][]byte, n)
		for i := range frames {
			frames[i] = frame(60+i, byte(i))
		}
		hosts[0].Send(frames)
		for i := range frames {
			want(t, hosts[1], frames[i])
		}
	}
}

// TestRateOverTime: the switch lets frames go when their queue says so.
func TestRateOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitch(t, Config{Traffic: traffic.Config{Memory: traffic.Memory{Shared: 1, Reserve: 180}}, Rate: traffic.Rate{PerSecond: 1000}})
		hosts := cables(t, s, 2)
		patch(t, s, 0, 1)
		start := time.Now()
		for i := range 10 {
			hosts[0].Send([][]byte{frame(60, byte(i))})
			synctest.Wait()
		}
		for i := range 4 { // one on its way, three wait
			want(t, hosts[1], frame(60, byte(i)))
			if at := time.Since(start); at != time.Duration(i)*time.Millisecond {
				t.Errorf("frame %d left at %v", i, at)
			}
		}
		if q := s.Stats().Ports[1].Classes[0]; q.Dropped != 6 || q.Sent != 4 || q.Peak != (traffic.Depth{Packets: 3, Bytes: 180}) {
			t.Errorf("%+v", q)
		}
	})
}

func TestPacketInOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitch(t, Config{CPUPort: sample.CPUPort, Rate: traffic.Rate{PerSecond: 1}})
		hosts := cables(t, s, 2)
		do(t, s, func(p *pipeline.Pipeline, _ *pre.Engine) error { return sample.Patch(p, 1, "In.to_cpu") })
		in := make(chan []byte, 10)
		s.Subscribe(func(f []byte) { in <- bytes.Clone(f) }, nil, nil)
		for i := range byte(3) {
			hosts[1].Send([][]byte{frame(60, i)})
		}
		for i := range byte(3) { // the CPU port has no rate
			got := <-in
			if !bytes.Equal(got, append([]byte{0, 1 << 7}, frame(60, i)...)) || s.Now() != 0 {
				t.Errorf("packet-in %x at %v", got, s.Now())
			}
		}
		must(t, s.Inject(append([]byte{0, 0}, frame(70, 2)...)))
		want(t, hosts[0], frame(70, 2))
		must(t, s.Inject(nil)) // harmless
		if st := s.Stats(); st.PacketIns != 3 || st.PacketOuts != 2 {
			t.Errorf("%+v", st)
		}
		must(t, s.Close())
		if err := s.Inject(frame(60, 1)); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// TestPacketOutFirst: what the control plane sends waits for no frames but those that
// are at work already.
func TestPacketOutFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitch(t, Config{CPUPort: sample.CPUPort})
		hosts := cables(t, s, 9)
		for i := uint16(1); i < 9; i++ {
			patch(t, s, i, 0)
		}
		for range 20 {
			s.Do(func(*pipeline.Pipeline, *pre.Engine) {
				for _, h := range hosts[1:] {
					h.Send([][]byte{frame(60, 1)})
				}
				synctest.Wait()
				must(t, s.Inject(append([]byte{0, 0}, frame(70, 2)...)))
			})
			for i := range 9 {
				if f := recv(t, hosts[0]); len(f) == 70 && i > 1 {
					t.Errorf("the packet-out left after %d frames", i)
				}
			}
		}
	})
}

func TestInjectErrors(t *testing.T) {
	s, err := New(Config{})
	must(t, err)
	defer s.Close()
	if err := s.Inject(frame(60, 1)); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "--cpu-port") {
		t.Error(err)
	}
	c, err := New(Config{CPUPort: 5})
	must(t, err)
	defer c.Close()
	if err := c.Inject(frame(60, 1)); !errors.Is(err, ErrNoPipeline) {
		t.Error(err)
	}
	load(t, c)
	// While packets cannot be processed, frames wait, but not without end.
	c.Do(func(*pipeline.Pipeline, *pre.Engine) {
		for i := range injectQueue + 2 {
			if err = c.Inject(frame(60, 1)); err != nil {
				if i < injectQueue {
					t.Errorf("refused after %d: %v", i, err)
				}
				break
			}
		}
	})
	if !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
}

func TestDigestsAndIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitch(t, Config{})
		hosts := cables(t, s, 2)
		do(t, s, func(p *pipeline.Pipeline, _ *pre.Engine) error {
			err := sample.Patch(p, 0, "In.forward_and_learn", 1)
			e := p.Table("In.patch").Find(match.Key{{Value: match.Value{0}}}, 0)
			m := *e
			m.IdleTimeout = time.Second
			return errors.Join(err, p.Table("In.patch").Modify(&m))
		})
		digests, idle := make(chan pipeline.Digest, 10), make(chan time.Duration, 10)
		s.Subscribe(nil, func(list []pipeline.Digest) {
			for _, d := range list {
				digests <- d
			}
		}, func(list []pipeline.Expired) {
			for range list {
				idle <- s.Now()
			}
		})
		time.Sleep(700 * time.Millisecond)
		hosts[0].Send([][]byte{frame(60, 1)})
		if d := <-digests; len(d.Values) != 2 || !bytes.Equal(d.Values[0].Bytes(), frame(60, 1)[6:12]) {
			t.Errorf("digest %+v", d)
		}
		if at := <-idle; at < 1700*time.Millisecond || at > 1700*time.Millisecond+2*idlePeriod {
			t.Errorf("idle at %v", at)
		}
		want(t, hosts[1], frame(60, 1))
	})
}

// TestLoad: without a pipeline frames are dropped and counted; a new one takes
// the place of the old at once.
func TestLoad(t *testing.T) {
	s, err := New(Config{})
	must(t, err)
	defer s.Close()
	hosts := cables(t, s, 2)
	s.Do(func(p *pipeline.Pipeline, e *pre.Engine) {
		if p != nil || e != nil {
			t.Error("there is a pipeline before the first Load")
		}
	})
	hosts[0].Send([][]byte{frame(60, 1)})
	for s.Stats().Traffic.NoPipeline != 1 {
		runtime.Gosched()
	}
	p, e := load(t, s)
	s.Do(func(gotP *pipeline.Pipeline, gotE *pre.Engine) {
		if gotP != p || gotE != e {
			t.Error("another pipeline than was loaded")
		}
	})
	patch(t, s, 0, 1)
	hosts[0].Send([][]byte{frame(60, 2)})
	want(t, hosts[1], frame(60, 2))
	load(t, s)
	hosts[0].Send([][]byte{frame(60, 3)})
	patch(t, s, 1, 0)
	hosts[1].Send([][]byte{frame(60, 4)})
	want(t, hosts[0], frame(60, 4))
	if st := s.Stats(); st.Pipeline.Received > 2 {
		t.Errorf("the new pipeline has the old one's counts: %+v", st.Pipeline)
	}
}

// TestTurns: neither an endless stream of packets nor the control plane starves
// the other. The race detector sees that packets and changes never meet.
func TestTurns(t *testing.T) {
	s := newSwitch(t, Config{})
	hosts := cables(t, s, 2)
	do(t, s, func(p *pipeline.Pipeline, e *pre.Engine) error {
		return errors.Join(sample.Patch(p, 0, "In.replicate", 7), e.InsertGroup(7, []pre.Replica{{Port: 1}}))
	})
	var stop atomic.Bool
	var got atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		frames := make([][]byte, 32)
		for i := range frames {
			frames[i] = frame(60, 1)
		}
		for !stop.Load() {
			hosts[0].Send(frames)
		}
	})
	wg.Go(func() {
		bufs := make([][]byte, 64)
		for i := range bufs {
			bufs[i] = make([]byte, 0, 100)
		}
		for {
			n, err := hosts[1].Recv(bufs)
			if err != nil {
				return
			}
			got.Add(int64(n))
		}
	})
	for got.Load() == 0 {
		runtime.Gosched()
	}
	inside := false
	for range 3 { // several controllers that never pause
		wg.Go(func() {
			for !stop.Load() {
				s.Do(func(_ *pipeline.Pipeline, e *pre.Engine) {
					if err := e.ModifyGroup(7, []pre.Replica{{Port: 1}}); err != nil {
						t.Error(err)
					}
					if inside {
						t.Error("two at once")
					}
					inside = true
					inside = false
				})
			}
		})
	}
	for range 100 {
		s.Do(func(*pipeline.Pipeline, *pre.Engine) {})
	}
	for n := got.Load(); got.Load() < n+1000; {
		runtime.Gosched()
	}
	stop.Store(true)
	hosts[1].Close()
	wg.Wait()
}

// A brokenPort is a port whose Recv fails.
type brokenPort struct{ ports.Port }

func (brokenPort) Recv([][]byte) (int, error) { return 0, fmt.Errorf("broken: %w", ports.ErrGone) }

// TestPortStates: a port that fails or goes down is reported; others go on.
func TestPortStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testenv.SyncBuffer
		s := newSwitch(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		hosts := cables(t, s, 2)
		near, far := memnet.Pair("broken", "far")
		defer far.Close()
		must(t, s.Attach(7, brokenPort{near}))
		patch(t, s, 0, 1)
		time.Sleep(upPeriod + 1)
		hosts[1].Close()
		time.Sleep(upPeriod + 1)
		if st := s.Stats(); !st.Ports[0].Up || st.Ports[1].Up || st.Ports[2].Up {
			t.Errorf("%+v", st.Ports)
		}
		for _, text := range []string{"receives no more", "port=7 name=broken", "the interface was removed",
			`msg="a port is down" port=1 name=sw1`, `msg="a port is down" port=7`} {
			if !strings.Contains(log.String(), text) {
				t.Errorf("the log lacks %q:\n%s", text, log.String())
			}
		}
		if strings.Contains(log.String(), "port=0") {
			t.Errorf("the log complains of a port that works:\n%s", log.String())
		}
		hosts[0].Send([][]byte{frame(60, 1)})
		synctest.Wait()
		if st := s.Stats(); st.Ports[1].Drops["tx_down"] != 1 {
			t.Errorf("%+v", st.Ports[1])
		}
	})
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]Config{
		"CPU port":  {CPUPort: 512},
		"drop port": {DropPort: 512},
		"both":      {CPUPort: 511},
		"classes":   {Traffic: traffic.Config{Classes: -1}},
		"rate":      {Rate: traffic.Rate{PerSecond: 1 << 60}},
	} {
		if s, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	s, err := New(Config{CPUPort: 5, DropPort: 6})
	must(t, err)
	near, far := memnet.Pair("near", "far")
	defer far.Close()
	must(t, s.Attach(4, near))
	for _, n := range []uint16{4, 5, 6, 512} {
		if err := s.Attach(n, near); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "near") {
			t.Errorf("port %d: %v", n, err)
		}
	}
	must(t, s.Close())
	must(t, s.Close())
	if err := s.Attach(1, near); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	s.Do(func(*pipeline.Pipeline, *pre.Engine) {}) // harmless
	if far.Up() {
		t.Error("Close left a port open")
	}
}

// TestCloseInUse: closing amid traffic and control neither hangs nor leaks.
func TestCloseInUse(t *testing.T) {
	s := newSwitch(t, Config{CPUPort: sample.CPUPort})
	hosts := cables(t, s, 2)
	patch(t, s, 0, 1, 0)
	var wg sync.WaitGroup
	var stop atomic.Bool
	for _, h := range hosts {
		wg.Go(func() {
			for !stop.Load() {
				h.Send([][]byte{frame(60, 1)})
			}
		})
	}
	wg.Go(func() {
		for !errors.Is(s.Inject(append([]byte{0, 0}, frame(60, 1)...)), ErrClosed) {
			s.Do(func(*pipeline.Pipeline, *pre.Engine) {})
			s.Stats()
		}
	})
	for s.Stats().PacketOuts == 0 || s.Stats().Traffic.Arrived < 1000 {
		runtime.Gosched()
	}
	must(t, s.Close())
	stop.Store(true)
	wg.Wait()
}

// ipv4 returns a frame with an IPv4 packet.
func ipv4(n int, to string) []byte {
	f := frame(n, 0)
	f[12], f[13] = 8, 0
	ip := f[14:34]
	ip[0], ip[8] = 0x45, 64
	binary.BigEndian.PutUint16(ip[2:], uint16(n-14))
	a := netip.MustParseAddr(to).As4()
	copy(ip[16:], a[:])
	return f
}

func TestSwitchAllocs(t *testing.T) {
	s := newSwitch(t, Config{})
	hosts := cables(t, s, 2)
	do(t, s, func(p *pipeline.Pipeline, _ *pre.Engine) error {
		return sample.Route(p, netip.MustParsePrefix("10.0.0.0/8"), 1, 1, 2)
	})
	frames := slices.Repeat([][]byte{ipv4(1100, "10.0.0.1")}, 16)
	bufs := make([][]byte, 16)
	for i := range bufs {
		bufs[i] = make([]byte, 0, MaxFrame)
	}
	round := func() {
		hosts[0].Send(frames)
		for n := 0; n < len(frames); {
			k, err := hosts[1].Recv(bufs)
			must(t, err)
			n += k
		}
	}
	for range 100 { // until all room is there
		round()
	}
	if n := testing.AllocsPerRun(300, round); n > 0 {
		t.Errorf("%v allocations for %d packets", n, len(frames))
	}
}
