package fabric

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// outsideEnv names the configuration of the agent that the copy of the test is.
const outsideEnv = "MCRDMA_TEST_AGENT"

// TestAgentProcess is an agent, for other tests.
func TestAgentProcess(t *testing.T) {
	name := os.Getenv(outsideEnv)
	if name == "" {
		t.Skip("optional: only a part of other tests")
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var o struct {
		Config config.Config
		Leave  bool
	}
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	a, err := switchagent.New(ctx, &o.Config, switchagent.Options{Logger: log, Leave: o.Leave})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- a.Run(ctx) }()
	select {
	case <-a.Ready():
		fmt.Println("ready")
		err = <-ran
	case err = <-ran:
	}
	if err != nil {
		t.Fatal(err)
	}
}

// An outsider is a switch's agent in a process of its own, since GoBGP cannot open a
// speaker while others of the process have sessions.
type outsider struct {
	f    *Fabric
	n    *node
	file string
	cmd  *exec.Cmd
	out  io.Reader
}

// outside ends a switch's agent, and runs another one in a process of its own.
func (f *Fabric) outside(sw string, leave bool, hold time.Duration) *outsider {
	f.t.Helper()
	f.StopAgent(sw)
	n := f.node(sw)
	if n.speaker != nil {
		f.must(n.speaker.Source.Close())
		n.speaker = nil
	}
	cfg := n.config()
	cfg.Restart.Hold = hold
	data, err := json.Marshal(map[string]any{"Config": cfg, "Leave": leave})
	f.must(err)
	o := &outsider{f: f, n: n, file: filepath.Join(f.t.TempDir(), "agent.json")}
	f.must(os.WriteFile(o.file, data, 0o600))
	f.t.Cleanup(func() { o.end(syscall.SIGKILL) })
	o.start()
	o.ready()
	return o
}

func (o *outsider) start() {
	o.f.t.Helper()
	o.cmd = exec.Command(os.Args[0], "-test.run", "^TestAgentProcess$")
	o.cmd.Env = append(os.Environ(), outsideEnv+"="+o.file)
	o.cmd.Stderr = lines{o.n.log}
	var err error
	o.out, err = o.cmd.StdoutPipe()
	o.f.must(err)
	o.f.must(o.cmd.Start())
	o.n.agent = &running{} // for callers that ask whether there is one
	o.n.client.ResetConnectBackoff()
}

// ready waits until the agent has its switch as it wants it.
func (o *outsider) ready() {
	o.f.t.Helper()
	if in := bufio.NewScanner(o.out); !in.Scan() || in.Text() != "ready" {
		o.f.t.Fatalf("the agent of %s says %q, want that it is ready", o.n.Name, in.Text())
	}
	o.n.client.ResetConnectBackoff()
}

// end ends the agent by a signal, and waits.
func (o *outsider) end(s syscall.Signal) {
	o.f.t.Helper()
	o.n.agent = nil
	if o.cmd == nil {
		return
	}
	_ = o.cmd.Process.Signal(s)
	_, _ = io.Copy(io.Discard, o.out)
	if err := o.cmd.Wait(); err != nil && s != syscall.SIGKILL {
		o.f.t.Errorf("the agent of %s ended: %v", o.n.Name, err)
	}
	o.cmd = nil
}

// lines logs what is written to it.
type lines struct{ log *slog.Logger }

func (l lines) Write(p []byte) (int, error) {
	l.log.Info("outside", "text", string(bytes.TrimSpace(p)))
	return len(p), nil
}

// A stream is packets from each of some hosts to each other, all the time.
type stream struct {
	f    *Fabric
	id   []byte
	stop chan struct{}
	done chan struct{}
	deaf func()

	mu   sync.Mutex
	sent map[[2]string]uint64
	got  map[[2]string]uint64
	last map[[2]string]time.Time // when the last one came
	gap  time.Duration           // the longest between two of one pair
}

func (f *Fabric) stream(hosts ...string) *stream {
	s := &stream{f: f, id: f.nonce(), stop: make(chan struct{}), done: make(chan struct{}),
		sent: map[[2]string]uint64{}, got: map[[2]string]uint64{}, last: map[[2]string]time.Time{}}
	s.deaf = f.listen(s.see)
	go s.run(hosts)
	return s
}

func (s *stream) run(hosts []string) {
	defer close(s.done)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for n := uint16(0); ; n++ {
		for i, from := range hosts {
			for j, to := range hosts {
				if i == j {
					continue
				}
				s.mu.Lock()
				s.sent[[2]string{from, to}]++
				s.mu.Unlock()
				payload := binary.BigEndian.AppendUint16(s.id[:16:16], uint16(i))
				h := s.f.hosts[from]
				h.send(h.datagram(s.f.hosts[to].Addr, 0xc000+n%16, payload))
			}
		}
		select {
		case <-tick.C:
		case <-s.stop:
			return
		}
	}
}

func (s *stream) see(h *host, b []byte) {
	at := bytes.Index(b, s.id)
	if at < 0 || len(b) < at+18 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.f.hostList[0].Name
	for _, x := range s.f.hostList {
		if bytes.Contains(b[:at], x.Addr.AsSlice()) && x != h {
			from = x.Name
		}
	}
	k, now := [2]string{from, h.Name}, time.Now()
	s.got[k]++
	if was, ok := s.last[k]; ok {
		s.gap = max(s.gap, now.Sub(was))
	}
	s.last[k] = now
}

// end says how many packets were sent and how many got lost, and for how long at
// most none of one host came to another.
func (s *stream) end() (sent, lost uint64, gap time.Duration) {
	close(s.stop)
	<-s.done
	_ = s.f.until("all packets", arrival, func() error { // what does not come is lost
		s.mu.Lock()
		defer s.mu.Unlock()
		for k, n := range s.sent {
			if s.got[k] < n {
				return fmt.Errorf("%s has %d of %d from %s", k[1], s.got[k], n, k[0])
			}
		}
		return nil
	})
	s.deaf()
	for k, n := range s.sent {
		sent += n
		lost += n - s.got[k]
	}
	return sent, lost, s.gap
}

// A witness records writes, events and link changes of agents that should have none.
type witness struct {
	f      *Fabric
	except string
	writes *atomic.Int64
	since  map[End]time.Time
	events *atomic.Int64
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

// counting has all agents in the process count what they write.
func counting(writes *atomic.Int64) func(string, *config.Config, *switchagent.Options) {
	return func(_ string, _ *config.Config, o *switchagent.Options) {
		o.DialSwitch = append(o.DialSwitch, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if method == "/p4.v1.P4Runtime/Write" || method == "/p4.v1.P4Runtime/SetForwardingPipelineConfig" {
				writes.Add(1)
			}
			return call(ctx, method, req, reply, cc, opts...)
		}))
	}
}

// witness begins once no agent has written for a while.
func (f *Fabric) witness(except string, writes *atomic.Int64) *witness {
	f.t.Helper()
	for n := int64(-1); n != writes.Load(); f.pause(500 * time.Millisecond) {
		n = writes.Load()
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &witness{f: f, except: except, writes: &atomic.Int64{}, since: f.sinceAll(except), events: &atomic.Int64{}, stop: cancel}
	w.writes.Store(writes.Load())
	for _, n := range f.order {
		if n.Name == except || !n.Programmable {
			continue
		}
		stream, err := f.Groups(n.Name).Watch(ctx, &mcrdmav1.WatchRequest{})
		f.must(err)
		synced := make(chan struct{})
		w.wg.Go(func() {
			for {
				e, err := stream.Recv()
				switch {
				case err != nil:
					return
				case e.Type == mcrdmav1.WatchResponse_TYPE_SYNCED:
					close(synced)
					continue
				}
				select {
				case <-synced:
					w.events.Add(1)
				default:
				}
			}
		})
		<-synced
	}
	return w
}

// sinceAll is since when agents have thought of their links as they do.
func (f *Fabric) sinceAll(except string) map[End]time.Time {
	out := map[End]time.Time{}
	for _, w := range f.wires {
		for _, e := range []End{w.A, w.B} {
			if e.Port != 0 && w.B.Port != 0 && e.Node != except {
				out[e] = f.since(e)
			}
		}
	}
	return out
}

// end fails the test if the witness has recorded anything.
func (w *witness) end(writes *atomic.Int64) {
	w.f.t.Helper()
	now := w.f.sinceAll(w.except)
	for e, t := range w.since {
		if !now[e].Equal(t) {
			w.f.t.Errorf("the agent at %v changed its mind about the link at %v", e, now[e])
		}
	}
	w.stop()
	w.wg.Wait()
	if n := writes.Load() - w.writes.Load(); n != 0 {
		w.f.t.Errorf("agents of other switches wrote %d times", n)
	}
	if n := w.events.Load(); n != 0 {
		w.f.t.Errorf("watchers saw %d events", n)
	}
}

// TestHitlessRestartWithoutRace: while a switch's agent ends and another one begins, no packet
// is lost, no other agent does anything, and nothing on the switch is changed.
func TestHitlessRestartWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "GoBGP v3.37.0 lists paths of peers that restart without its lock")
	for _, c := range []struct{ sw, routing string }{{"leaf1", BGP}, {"spine1", BGP}, {"leaf1", Static}} {
		t.Run(c.sw+"/"+c.routing, func(t *testing.T) {
			if c.sw == "spine1" && os.Getenv("MCRDMA_LONG") == "" {
				t.Skip("set MCRDMA_LONG=1: a leaf's agent does the same, and has hosts besides")
			}
			s := LeafSpine(3, 2, 2)
			s.Routing, s.Hello = c.routing, 200*time.Millisecond // a busy machine must not take links down
			writes := &atomic.Int64{}
			s.Agent = counting(writes)
			f := Start(t, s)
			o := f.outside(c.sw, false, 30*time.Second)
			f.Links()
			f.Converged()
			groups := []*Group{f.Group("h1-1", "h1-2", "h2-1", "h3-1"), f.Group("h2-1", "h1-1", "h1-2", "h3-2"), f.Group("h3-1", "h2-1", "h2-2")}
			for _, g := range groups {
				f.Install(g)
				f.Repaired(g)
			}
			w := f.witness(c.sw, writes)
			before := f.State(c.sw)
			var probes []*Probe
			for i, g := range groups {
				probes = append(probes, f.Probe(g, uint16(i), 2*time.Millisecond), f.Probe(g, uint16(100+i), 2*time.Millisecond))
			}
			flows := f.stream("h1-1", "h1-2", "h2-1", "h3-2")

			begun := time.Now()
			o.end(syscall.SIGTERM)
			ended := time.Since(begun)
			f.pause(time.Second)
			o.start()
			o.ready()
			back := time.Since(begun)
			f.pause(2 * time.Second)

			for i, p := range probes {
				if out := p.Stop(); out.Lost+out.Duplicates+out.Strays > 0 {
					t.Errorf("probe %d: %+v", i, out)
				}
			}
			sent, lost, gap := flows.end()
			if lost > 0 {
				t.Errorf("%d packets of %d got lost", lost, sent)
			}
			w.end(writes)
			if d := switchspec.Diff(before, f.State(c.sw)); len(d) > 0 {
				t.Errorf("on %s changed: %v", c.sw, d)
			}
			t.Logf("ended in %v, ready again %v after the signal; %d datagrams, at most %v between two of one pair",
				ended.Round(time.Millisecond), back.Round(time.Millisecond), sent, gap.Round(time.Millisecond))
			f.Links()
			f.Converged()
			for _, g := range groups {
				f.CheckDelivery(g)
				f.Remove(g)
			}
			f.CheckLeftovers(0)
		})
	}
}

// TestNoFarewellWithoutRace: an agent that is killed, or leaves permanently, or does not come back
// in time, is noticed, and what it cuts off comes back with it.
func TestNoFarewellWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "GoBGP v3.37.0 lists paths of peers that restart without its lock")
	const most = time.Second // for neighbors to notice; 100 to 150 ms if the machine is idle
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		leave  bool
		after  time.Duration
	}{{"killed", syscall.SIGKILL, false, 0}, {"leaves", syscall.SIGTERM, true, 0}, {"does not come back", syscall.SIGTERM, false, 20 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			s := LeafSpine(2, 2, 2)
			s.Hello = quickHello / 2
			f := Start(t, s)
			o := f.outside("leaf1", c.leave, 20*time.Second)
			f.Links()
			f.Converged()
			g := f.Group("h2-1", "h1-1", "h2-2")
			f.Install(g)
			f.Repaired(g)
			begun := time.Now()
			o.end(c.signal)
			f.Links()
			for _, sw := range []string{"spine1", "spine2"} {
				w := f.Wires("leaf1", sw)[0]
				d := f.since(w.B).Sub(begun)
				if d < c.after || d > c.after+most {
					t.Errorf("%s noticed %v after the signal, want %v to %v", sw, d, c.after, c.after+most)
				}
				t.Logf("%s noticed %v after the signal", sw, d.Round(time.Millisecond))
			}
			f.eventually("leaf2 has no route to leaf1", func() error {
				routes, err := f.node("leaf2").routes()
				if ports := routes[f.node("leaf1").Prefix]; len(ports) > 0 {
					return fmt.Errorf("it has ports %v", ports)
				}
				return err
			})
			if c.after == 0 {
				t.Logf("routes are gone %v after the signal", time.Since(begun).Round(time.Millisecond))
			}
			o.start()
			o.ready()
			f.Links()
			f.Converged()
			f.Repaired(g)
			f.CheckDelivery(g)
			f.Reach()
			f.CheckTrees(patience) // what could not be released while the agent was away is released now
			f.Remove(g)
			f.CheckLeftovers(0)
		})
	}
}
