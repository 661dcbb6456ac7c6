package switchagent

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

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// insideEnv is set in the copy of the test that runs inside the namespace.
const insideEnv = "MCRDMA_TEST_AGENT_BIRD_INSIDE"

const birdConf = `
router id 192.0.2.2;
protocol device {}
protocol static { ipv4; route 10.7.0.0/24 blackhole; }
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

// An agent and BIRD, a speaker not written here, exchange routes both ways: BIRD's
// are on the switch, and the agent's are in BIRD's table. The test runs a copy of
// itself in a network namespace of its own.
func TestNamespaceAgentWithBIRD(t *testing.T) {
	bird, err := exec.LookPath("bird")
	if err != nil {
		bird = "/usr/sbin/bird" // not in every user's path
		if _, err := os.Stat(bird); err != nil {
			testenv.Skip(t, "BIRD is not installed (Debian: bird2)")
		}
	}
	if os.Getenv(insideEnv) != "" {
		agentWithBIRD(t, bird)
		return
	}
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces need root")
	}
	name := fmt.Sprintf("mcrdma-abird-%d", os.Getpid())
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
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", name, os.Args[0], "-test.run", "^TestNamespaceAgentWithBIRD$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestNamespaceAgentWithBIRD") {
		t.Fatalf("inside the namespace: %v\n%s", err, out)
	}
}

func agentWithBIRD(t *testing.T, bird string) {
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

	l := newLine(t, 1)
	us, them := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	const uplink = 100
	l.start(1, func(c *config.Config, _ *Options) {
		c.Routing = config.Routing{Source: config.BGP, BGP: config.Speaker{ASN: 65001, Listen: []netip.Addr{us}, Port: 1790}}
		c.Ports = append(c.Ports, config.Port{Port: uplink, To: "bird", PeerMAC: switchspec.MAC{2, 0, 0, 0, 0xb1, 0xd0}})
		c.Switches = []config.Switch{{Name: "bird", BGP: &config.Peer{Address: them, ASN: 65002, Port: 1790, Local: us}}}
	})
	learnt := func() bool {
		s := l.state(1)
		e, ok := s.Find(switchspec.Route{Dst: netip.MustParsePrefix("10.7.0.0/24")}.Key())
		if !ok || e.(switchspec.Route).To != switchspec.ToNextHop {
			return false
		}
		hop, ok := s.Find(switchspec.NextHop{ID: e.(switchspec.Route).Number}.Key())
		return ok && hop.(switchspec.NextHop).Port == uplink
	}
	eventually(t, "BIRD's route is on the switch", learnt)
	birdc := filepath.Join(filepath.Dir(bird), "birdc")
	eventually(t, "BIRD has the prefix of the switch's hosts", func() bool {
		out, err := exec.Command(birdc, "-s", ctl, "show", "route", "protocol", "ours", "all").CombinedOutput()
		if err != nil {
			t.Fatalf("birdc: %v: %s", err, out)
		}
		return strings.Contains(string(out), "10.1.0.0/24") && strings.Contains(string(out), "BGP.as_path: 65001")
	})

	// Behind BIRD nobody copies, so each receiver there gets a whole copy from here.
	far := netip.MustParseAddr("10.7.0.5")
	g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), far, far.Next())
	l.install(1, g)
	for _, want := range []string{"port 100 to 10.7.0.5 last=true", "port 100 to 10.7.0.6 last=true", "port 2 to 10.1.0.12 last=true"} {
		if have := canonical(l.state(1)); !strings.Contains(have, want) {
			t.Errorf("no %q in\n%s", want, have)
		}
	}
	end() // without a farewell
	eventually(t, "the route is withdrawn", func() bool { return !learnt() })
	eventually(t, "the group says what is the matter", func() bool {
		return strings.Contains(l.problems(1, g), "10.7.0.5")
	})
	l.remove(1, g)
	l.noLeftovers()
}
