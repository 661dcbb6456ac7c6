package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// insideEnv is set in the copy of the test that runs inside the namespace.
const insideEnv = "MCRDMA_TEST_BIRD_INSIDE"

const birdStatic = "protocol static { ipv4; route 10.7.0.0/24 blackhole; route 10.8.0.0/24 blackhole; }"

const birdConf = `
router id 192.0.2.2;
protocol device {}
` + birdStatic + `
protocol bgp ours {
	local 192.0.2.2 port 1790 as 65002;
	neighbor 192.0.2.1 port 1790 as 65001;
	multihop 2;
	strict bind yes;
	connect delay time 1;
	connect retry time 1;
	error wait time 1, 2;
	ipv4 { import all; export where source = RTS_STATIC; next hop self; };
}
`

// BIRD, an independent speaker, exchanges routes with us both ways.
func TestNamespaceBIRD(t *testing.T) { inNamespace(t, withBIRD) }

// BIRD keeps our routes while we restart, and we keep those of BIRD.
func TestNamespaceBIRDRestart(t *testing.T) {
	notUnderRace(t)
	inNamespace(t, restartWithBIRD)
}

// inNamespace runs a test with BIRD. It runs a copy of the test inside a network
// namespace, since GoBGP may make its sockets on any thread.
func inNamespace(t *testing.T, test func(t *testing.T, bird string)) {
	bird, err := exec.LookPath("bird")
	if err != nil {
		bird = "/usr/sbin/bird" // not in every user's path
		if _, err := os.Stat(bird); err != nil {
			testenv.Skip(t, "BIRD is not installed (Debian: bird2)")
		}
	}
	if os.Getenv(insideEnv) != "" {
		test(t, bird)
		return
	}
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces need root")
	}
	name := fmt.Sprintf("mcrdma-bird-%d-%d", os.Getpid(), len(t.Name()))
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	run("netns", "add", name)
	t.Cleanup(func() { run("netns", "del", name) })
	run("-n", name, "link", "set", "lo", "up")
	run("-n", name, "addr", "add", "192.0.2.1/32", "dev", "lo")
	run("-n", name, "addr", "add", "192.0.2.2/32", "dev", "lo")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", name, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("inside the namespace: %v\n%s", err, out)
	}
}

// startBIRD starts BIRD; end kills it without a farewell.
func startBIRD(t *testing.T, bird, dir, text string, args ...string) (end func()) {
	t.Helper()
	conf, ctl := filepath.Join(dir, "bird.conf"), filepath.Join(dir, "bird.ctl")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, bird, append(args, "-f", "-c", conf, "-s", ctl)...)
	cmd.Stderr = os.Stderr // what it dislikes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		stop()
		_ = cmd.Wait() // "killed"
	}
	t.Cleanup(end)
	return end
}

// ask runs a command of BIRD.
func ask(t *testing.T, bird, dir string, args ...string) string {
	t.Helper()
	birdc := filepath.Join(filepath.Dir(bird), "birdc")
	out, err := exec.Command(birdc, append([]string{"-s", filepath.Join(dir, "bird.ctl")}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("birdc: %v: %s", err, out)
	}
	return string(out)
}

func withBIRD(t *testing.T, bird string) {
	dir := t.TempDir()
	end := startBIRD(t, bird, dir, birdConf)
	us := netip.MustParseAddr("192.0.2.1")
	s, err := Open(t.Context(), Config{ASN: 65001, RouterID: us, Listen: []netip.Addr{us}, ListenPort: 1790})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Announce(t.Context(), netip.MustParsePrefix("10.1.0.0/24")); err != nil {
		t.Fatal(err)
	}
	peer := Peer{Addr: netip.MustParseAddr("192.0.2.2"), ASN: 65002, Port: 1790, Local: us, Hops: 2}
	if err := s.AddPeer(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	becomes(t, s, "10.7.0.1", "{192.0.2.2}")
	becomes(t, s, "10.8.0.1", "{192.0.2.2}")

	var shown string
	shows := func(want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("our prefix at BIRD: %v", want), func() bool {
			shown = ask(t, bird, dir, "show", "route", "protocol", "ours", "all")
			return strings.Contains(shown, "10.1.0.0/24") == want
		})
	}
	shows(true)
	for _, want := range []string{"BGP.next_hop: 192.0.2.1", "BGP.as_path: 65001"} {
		if !strings.Contains(shown, want) {
			t.Errorf("BIRD does not show %q:\n%s", want, shown)
		}
	}
	if err := s.Withdraw(t.Context(), netip.MustParsePrefix("10.1.0.0/24")); err != nil {
		t.Fatal(err)
	}
	shows(false)
	end() // without a farewell
	becomes(t, s, "10.7.0.1", "nothing")
}

// eventually polls BIRD.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.After(20 * time.Second); !cond(); {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func restartWithBIRD(t *testing.T, bird string) {
	dir := t.TempDir()
	const routesOnce = "protocol static { ipv4; route 10.7.0.0/24 blackhole; }"
	restarting := strings.Replace(birdConf, "multihop 2;", "multihop 2; graceful restart on;", 1)
	end := startBIRD(t, bird, dir, restarting)
	us := netip.MustParseAddr("192.0.2.1")
	peer := Peer{Addr: netip.MustParseAddr("192.0.2.2"), ASN: 65002, Port: 1790, Local: us, Hops: 2}
	open := func(list ...string) *Source {
		t.Helper()
		s, err := Open(t.Context(), Config{ASN: 65001, RouterID: us, Listen: []netip.Addr{us}, ListenPort: 1790, Restart: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			if err := s.Announce(t.Context(), netip.MustParsePrefix(p)); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	// has says which of our prefixes BIRD has.
	has := func() (both, first bool) {
		out := ask(t, bird, dir, "show", "route", "protocol", "ours")
		first = strings.Contains(out, "10.1.0.0/24")
		return first && strings.Contains(out, "10.2.0.0/24"), first
	}
	s := open("10.1.0.0/24", "10.2.0.0/24")
	if err := s.AddPeer(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	becomes(t, s, "10.7.0.1", "{192.0.2.2}")
	eventually(t, "BIRD has our prefixes", func() bool { both, _ := has(); return both })
	if err := s.Suspend(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "BIRD sees the session end", func() bool {
		return !strings.Contains(ask(t, bird, dir, "show", "protocols", "ours"), "Established")
	})
	for range 50 {
		if both, _ := has(); !both {
			t.Fatal("BIRD does not wait")
		}
	}
	s = open("10.1.0.0/24")
	defer func() { _ = s.Close() }()
	resumed := make(chan error, 1)
	go func() { resumed <- s.Resume(t.Context(), []Peer{peer}) }()
	eventually(t, "BIRD drops the prefix that is no longer announced, and only that", func() bool {
		both, first := has()
		if !first {
			t.Fatal("a prefix was gone that is announced again")
		}
		return !both
	})
	if err := <-resumed; err != nil {
		t.Fatal(err)
	}
	becomes(t, s, "10.7.0.1", "{192.0.2.2}")
	becomes(t, s, "10.8.0.1", "{192.0.2.2}")
	if out := ask(t, bird, dir, "show", "protocols", "all", "ours"); !strings.Contains(out, "AF preserved: ipv4") {
		t.Errorf("BIRD has not heard that packets went on:\n%s", out)
	}

	// The other way around.
	log := record(t, s)
	end()
	session(t, s, peer.Addr, false)
	stays(t, log, time.Second)
	end = startBIRD(t, bird, dir, strings.Replace(restarting, birdStatic, routesOnce, 1), "-R")
	becomes(t, s, "10.8.0.1", "nothing")
	log.want(t, "10.8.0.0/24 gone")
	end()
	session(t, s, peer.Addr, false)
	log.want(t, "10.8.0.0/24 gone")
	// It is back, and knows of no restart.
	startBIRD(t, bird, dir, strings.Replace(strings.Replace(restarting, birdStatic, "", 1), "restart on", "restart off", 1))
	becomes(t, s, "10.7.0.1", "nothing")
	eventually(t, "BIRD has our prefix again", func() bool { _, first := has(); return first })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	eventually(t, "BIRD drops what has left", func() bool { _, first := has(); return !first })
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("only after %v", d)
	}
}
