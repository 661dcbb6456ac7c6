package bgp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// childEnv holds what the copy of the test that is a speaker shall do.
const childEnv = "MCRDMA_TEST_BGP_SPEAKER"

// An order is a speaker in a process of its own.
type order struct {
	Config   Config
	Prefixes []netip.Prefix
	Peers    []Peer
	Resume   bool
}

// TestSpeakerProcess is a speaker, for other tests.
func TestSpeakerProcess(t *testing.T) {
	text := os.Getenv(childEnv)
	if text == "" {
		t.Skip("optional: only a part of other tests")
	}
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("MCRDMA_TEST_BGP_LOG") != "" {
		o.Config.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s, err := Open(t.Context(), o.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range o.Prefixes {
		if err := s.Announce(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println("opened")
	if o.Resume {
		if err := s.Resume(t.Context(), o.Peers); err != nil {
			t.Fatal(err)
		}
		fmt.Println("resumed")
	} else {
		for _, p := range o.Peers {
			if err := s.AddPeer(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	end := map[string]func() error{"suspend": s.Suspend, "close": s.Close}
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		os.Exit(3) // the parent process has gone
	}
	if err := end[in.Text()](); err != nil {
		t.Fatal(err)
	}
}

// A process is a speaker in a process of its own.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func launch(t *testing.T, o order) *process {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(os.Args[0], "-test.run", "^TestSpeakerProcess$")}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	p.says("opened")
	return p
}

func (p *process) says(want string) {
	p.t.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		p.t.Fatalf("the speaker says %q, want %q", p.out.Text(), want)
	}
}

// end makes the speaker end by a method, or, with none, as in a crash.
func (p *process) end(how string) {
	p.t.Helper()
	if how == "" {
		_ = p.cmd.Process.Kill()
	} else if _, err := fmt.Fprintln(p.in, how); err != nil {
		p.t.Fatal(err)
	}
	for p.out.Scan() {
	}
	if err := p.cmd.Wait(); err != nil && how != "" {
		p.t.Fatal(err)
	}
}

// A history is all changes of a table since it was made.
type history struct {
	mu    sync.Mutex
	lines []string
}

// record keeps what changes of routes to these prefixes.
func record(t *testing.T, s *Source) *history {
	h := &history{}
	ctx, cancel := context.WithCancel(t.Context())
	w := s.Watch()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer w.Close()
		for first := true; ; first = false {
			d, err := w.Next(ctx)
			if err != nil {
				return
			}
			if first {
				continue // what there is
			}
			h.mu.Lock()
			for _, r := range d.Routes {
				h.lines = append(h.lines, fmt.Sprintf("%v by %v", r.Prefix, r.Hops))
			}
			for _, p := range d.Withdrawn {
				h.lines = append(h.lines, fmt.Sprintf("%v gone", p))
			}
			h.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return h
}

// want compares what has changed, in any order; the last of it may take a moment.
func (h *history) want(t *testing.T, lines ...string) {
	t.Helper()
	var have []string
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 10_000 { // ten seconds or more
		h.mu.Lock()
		have = slices.Sorted(slices.Values(h.lines))
		h.mu.Unlock()
		if len(have) >= len(lines) {
			break
		}
		<-tick.C
	}
	if !slices.Equal(have, lines) {
		t.Errorf("routes changed: %q, want %q", have, lines)
	}
}

// session waits until a session is up, or down.
func session(t *testing.T, s *Source, addr netip.Addr, up bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var state api.PeerState_SessionState
		err := s.server.ListPeer(ctx, &api.ListPeerRequest{Address: addr.String()}, func(p *api.Peer) { state = p.State.SessionState })
		if err != nil {
			t.Fatal(err)
		}
		if (state == api.PeerState_ESTABLISHED) == up {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the session with %v is %v", addr, state)
		}
	}
}

// stays waits, and then nothing must have changed.
func stays(t *testing.T, h *history, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
	h.want(t)
}

// unlocked is why a test in which a speaker of this process waits for another runs without
// the race detector.
const unlocked = "GoBGP v3.37.0 lists paths of peers that restart without its lock: a number, and a flag, that are read late do no harm"

// helpers opens n speakers in this process, and describes one that is their
// neighbor, in a process of its own.
func helpers(t *testing.T, n int, restart time.Duration) ([]speaker, order) {
	t.Helper()
	testenv.WithoutRace(t, unlocked)
	list, port := speakers(t, n+1, 0)
	if err := list[n].Close(); err != nil { // its address is the other process's
		t.Fatal(err)
	}
	far := list[n]
	o := order{Config: Config{ASN: far.asn, RouterID: far.addr, Listen: []netip.Addr{far.addr}, ListenPort: port, Restart: restart}}
	for i := range n {
		near := list[i]
		o.Peers = append(o.Peers, Peer{Addr: near.addr, ASN: near.asn, Port: port, Local: far.addr, Passive: true})
		if err := near.AddPeer(t.Context(), toFar(o, near)); err != nil {
			t.Fatal(err)
		}
	}
	return list[:n], o
}

func toFar(o order, near speaker) Peer {
	return Peer{Addr: o.Config.RouterID, ASN: o.Config.ASN, Port: o.Config.ListenPort, Local: near.addr, HoldTime: 90 * time.Second}
}

var prefixes = []netip.Prefix{netip.MustParsePrefix("10.7.0.0/24"), netip.MustParsePrefix("10.8.0.0/24")}

// The routes of a speaker that restarts stay, except those that it does not announce
// again.
func TestRestartWithoutRace(t *testing.T) {
	for _, how := range []string{"suspend", ""} {
		near, o := helpers(t, 1, 90*time.Second)
		h := near[0]
		o.Prefixes = prefixes
		p := launch(t, o)
		becomes(t, h.Source, "10.7.0.1", "{127.1.0.2}")
		becomes(t, h.Source, "10.8.0.1", "{127.1.0.2}")
		log := record(t, h.Source)
		p.end(how)
		session(t, h.Source, o.Config.RouterID, false)
		stays(t, log, time.Second)
		o.Resume, o.Prefixes = true, prefixes[:1]
		p = launch(t, o)
		p.says("resumed")
		becomes(t, h.Source, "10.8.0.1", "nothing")
		becomes(t, h.Source, "10.7.0.1", "{127.1.0.2}")
		log.want(t, "10.8.0.0/24 gone")
		p.end("close")
		becomes(t, h.Source, "10.7.0.1", "nothing") // sooner than the restart time
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Peers wait for a speaker that does not come back as long as it asked for, and a peer
// that removes it need not wait.
func TestNoReturnWithoutRace(t *testing.T) {
	near, o := helpers(t, 1, 3*time.Second)
	h := near[0]
	o.Prefixes = prefixes[:1]
	p := launch(t, o)
	becomes(t, h.Source, "10.7.0.1", "{127.1.0.2}")
	log := record(t, h.Source)
	p.end("suspend")
	session(t, h.Source, o.Config.RouterID, false)
	log.want(t) // not with the session
	becomes(t, h.Source, "10.7.0.1", "nothing")
	o.Config.Restart = 90 * time.Second
	p = launch(t, o)
	becomes(t, h.Source, "10.7.0.1", "{127.1.0.2}")
	p.end("suspend")
	session(t, h.Source, o.Config.RouterID, false)
	if err := h.RemovePeer(t.Context(), o.Config.RouterID); err != nil {
		t.Fatal(err)
	}
	becomes(t, h.Source, "10.7.0.1", "nothing")
}

// Without graceful restart a speaker's routes go with its session.
func TestNoRestartWithoutRace(t *testing.T) {
	near, o := helpers(t, 1, 0)
	o.Prefixes = prefixes[:1]
	p := launch(t, o)
	becomes(t, near[0].Source, "10.7.0.1", "{127.1.0.2}")
	p.end("suspend")
	becomes(t, near[0].Source, "10.7.0.1", "nothing") // sooner than the hold time
}

// A switch between others restarts. Until it knows the routes of all, none that leads
// through it is missing anywhere.
func TestRestartInBetweenWithoutRace(t *testing.T) {
	near, o := helpers(t, 2, 40*time.Second)
	for i, s := range near {
		if err := s.Announce(t.Context(), netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	p := launch(t, o)
	a, b := near[0], near[1]
	becomes(t, a.Source, "10.2.0.1", "{127.1.0.3}")
	becomes(t, b.Source, "10.1.0.1", "{127.1.0.3}")
	log := record(t, a.Source)
	p.end("suspend")
	session(t, b.Source, o.Config.RouterID, false)
	if err := b.RemovePeer(t.Context(), o.Config.RouterID); err != nil { // so that it comes late
		t.Fatal(err)
	}
	o.Resume = true
	p = launch(t, o)
	session(t, a.Source, o.Config.RouterID, true)
	stays(t, log, 2*time.Second)
	if err := b.AddPeer(t.Context(), toFar(o, b)); err != nil {
		t.Fatal(err)
	}
	p.says("resumed")
	stays(t, log, time.Second)
	becomes(t, b.Source, "10.1.0.1", "{127.1.0.3}")
	becomes(t, a.Source, "10.2.0.1", "{127.1.0.3}")
	p.end("close")
	becomes(t, a.Source, "10.2.0.1", "nothing")
}

// A neighbor that does not return delays a speaker's announcements only for a limited time, and not
// at all if it is known not to return.
func TestResumeWithoutAllWithoutRace(t *testing.T) {
	near, o := helpers(t, 1, 12*time.Second)
	h := near[0]
	o.Prefixes = prefixes[:1]
	p := launch(t, o)
	becomes(t, h.Source, "10.7.0.1", "{127.1.0.2}")
	p.end("suspend")
	o.Prefixes, o.Resume = prefixes[:2], true
	o.Peers = append(o.Peers, Peer{Addr: netip.MustParseAddr("127.1.0.77"), ASN: 4200000077, Local: o.Config.RouterID, Passive: true})
	p = launch(t, o)
	p.says("resumed")
	becomes(t, h.Source, "10.8.0.1", "{127.1.0.2}")
	p.end("close")

	s, err := Open(t.Context(), Config{ASN: 65001, RouterID: o.Config.RouterID, Restart: 4000 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	resumed := make(chan error, 1)
	go func() { resumed <- s.Resume(t.Context(), o.Peers[1:]) }()
	for addr := o.Peers[1].Addr; !s.has(addr); {
		time.Sleep(time.Millisecond)
	}
	if err := s.RemovePeer(t.Context(), o.Peers[1].Addr); err != nil {
		t.Error(err)
	}
	if err := <-resumed; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The stale routes of a neighbor that is back and sends no End-of-RIB do not stay for
// ever.
func TestStaleWithoutRace(t *testing.T) {
	near, o := helpers(t, 1, 90*time.Second)
	h := near[0]
	o.Prefixes = prefixes[:1]
	p := launch(t, o)
	becomes(t, h.Source, "10.7.0.1", "{127.1.0.2}")
	p.end("suspend")
	o.Prefixes, o.Resume = nil, true
	o.Peers = append(o.Peers, Peer{Addr: netip.MustParseAddr("127.1.0.77"), ASN: 4200000077, Local: o.Config.RouterID, Passive: true})
	p = launch(t, o)
	session(t, h.Source, o.Config.RouterID, true)
	log := record(t, h.Source)
	stays(t, log, 2*time.Second)
	h.staleTime.Store(int64(time.Second))
	becomes(t, h.Source, "10.7.0.1", "nothing") // sooner than the restart time
	p.end("")
}

func TestRestartBounds(t *testing.T) {
	id := netip.MustParseAddr("127.1.0.1")
	for _, d := range []time.Duration{-1, 1, 1500 * time.Millisecond, 4096 * time.Second} {
		if _, err := Open(t.Context(), Config{ASN: 65001, RouterID: id, Restart: d}); err == nil || !strings.Contains(err.Error(), "restart") {
			t.Errorf("restart time %v: %v", d, err)
		}
	}
	s, err := Open(t.Context(), Config{ASN: 64512, RouterID: id, Restart: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(t.Context(), nil); err != nil { // alone
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Resume(ctx, nil); err == nil {
		t.Error("resumed though the context had ended")
	}
	for range 2 {
		if err := s.Suspend(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A peer with graceful restart has told all with an End-of-RIB for each family that
// it speaks; for others that is not known.
func TestHasTold(t *testing.T) {
	pack := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	both := []*api.Family{ipv4, {Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}}
	gr, v4, v6 := pack(&api.GracefulRestartCapability{}), pack(&api.MultiProtocolCapability{Family: ipv4}), pack(&api.MultiProtocolCapability{Family: both[1]})
	const up = api.PeerState_ESTABLISHED
	for _, c := range []struct {
		state      api.PeerState_SessionState
		caps       []*anypb.Any
		end4, end6 bool
		want       bool
	}{
		{api.PeerState_ACTIVE, nil, true, true, false},
		{up, nil, false, false, true},
		{up, []*anypb.Any{v4, v6}, false, false, true},
		{up, []*anypb.Any{gr, v4, v6}, false, false, false},
		{up, []*anypb.Any{gr, v4, v6}, true, false, false},
		{up, []*anypb.Any{gr, v4, v6}, true, true, true},
		{up, []*anypb.Any{gr, v4}, true, false, true},
		{up, []*anypb.Any{gr, v4}, false, true, false},
	} {
		p := &api.Peer{State: &api.PeerState{SessionState: c.state, RemoteCap: c.caps}}
		for i, end := range []bool{c.end4, c.end6} {
			p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{Config: &api.AfiSafiConfig{Family: both[i]},
				MpGracefulRestart: &api.MpGracefulRestart{State: &api.MpGracefulRestartState{EndOfRibReceived: end}}})
		}
		if got := hasTold(p); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
