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

const birdConf = `
router id 192.0.2.2;
protocol device {}
protocol static { ipv4; route 10.7.0.0/24 blackhole; route 10.8.0.0/24 blackhole; }
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

// BIRD, a speaker not written here, exchanges routes with us both ways. The
// test runs a copy of itself inside a network namespace, since GoBGP makes its
// sockets on whatever thread it pleases.
func TestNamespaceBIRD(t *testing.T) {
	bird, err := exec.LookPath("bird")
	if err != nil {
		bird = "/usr/sbin/bird" // not in every user's path
		if _, err := os.Stat(bird); err != nil {
			testenv.Skip(t, "BIRD is not installed (Debian: bird2)")
		}
	}
	if os.Getenv(insideEnv) != "" {
		withBIRD(t, bird)
		return
	}
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces need root")
	}
	name := fmt.Sprintf("mcrdma-bird-%d", os.Getpid())
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
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", name, os.Args[0], "-test.run", "^TestNamespaceBIRD$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestNamespaceBIRD") {
		t.Fatalf("inside the namespace: %v\n%s", err, out)
	}
}

func withBIRD(t *testing.T, bird string) {
	dir := t.TempDir()
	conf, ctl := filepath.Join(dir, "bird.conf"), filepath.Join(dir, "bird.ctl")
	if err := os.WriteFile(conf, []byte(birdConf), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, bird, "-f", "-c", conf, "-s", ctl)
	cmd.Stderr = os.Stderr // what it dislikes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		stop()
		_ = cmd.Wait() // "killed"
	}
	t.Cleanup(end)

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

	birdc := filepath.Join(filepath.Dir(bird), "birdc")
	var shown string
	shows := func(want bool) {
		t.Helper()
		poll := time.NewTicker(50 * time.Millisecond)
		defer poll.Stop()
		for deadline := time.After(20 * time.Second); ; {
			out, err := exec.Command(birdc, "-s", ctl, "show", "route", "protocol", "ours", "all").CombinedOutput()
			if err != nil {
				t.Fatalf("birdc: %v: %s", err, out)
			}
			if shown = string(out); strings.Contains(shown, "10.1.0.0/24") == want {
				return
			}
			select {
			case <-poll.C:
			case <-deadline:
				t.Fatalf("our prefix at BIRD: want %v, it shows\n%s", want, shown)
			}
		}
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
