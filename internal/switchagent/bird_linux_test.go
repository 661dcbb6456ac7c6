package switchagent

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/tests/bird"
)

// An agent and BIRD, an independent speaker, exchange routes both ways: BIRD's
// are on the switch, and the agent's are in BIRD's table.
func TestNamespaceAgentWithBIRD(t *testing.T) { bird.InNamespace(t, agentWithBIRD) }

// ofAgent is what BIRD has of the agent's routes.
func ofAgent(t *testing.T, dir string) string {
	return bird.Ask(t, dir, "show", "route", "protocol", "ours", "all")
}

func agentWithBIRD(t *testing.T) {
	dir := t.TempDir()
	end := bird.Start(t, dir, bird.Conf)
	l := newLine(t, 1)
	l.start(1, besideBIRD)
	learnt := func() bool { return learntOfBIRD(l) }
	eventually(t, "BIRD's route is on the switch", learnt)
	eventually(t, "BIRD has the prefix of the switch's hosts", func() bool {
		out := ofAgent(t, dir)
		return strings.Contains(out, "10.1.0.0/24") && strings.Contains(out, "BGP.as_path: 65001") && strings.Contains(out, "BGP.next_hop: 10.0.0.0")
	})

	// No switch behind BIRD copies, so each receiver there gets a whole copy from here.
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

// uplink is the port to BIRD.
const uplink = 100

// besideBIRD gives an agent BIRD for a neighbor.
func besideBIRD(c *config.Config, _ *Options) {
	us, them := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	c.Routing = config.Routing{Source: config.BGP, BGP: config.Speaker{ASN: 65001, Listen: []netip.Addr{us}, Port: 1790}}
	c.Ports = append(c.Ports, config.Port{Port: uplink, To: "bird", PeerMAC: switchspec.MAC{2, 0, 0, 0, 0xb1, 0xd0},
		Address: netip.MustParsePrefix("10.0.0.0/31")})
	c.Switches = []config.Switch{{Name: "bird", BGP: &config.Peer{Address: them, ASN: 65002, Port: 1790, Local: us}}}
}

// learntOfBIRD says whether BIRD's route is on the switch.
func learntOfBIRD(l *line) bool {
	s := l.state(1)
	e, ok := s.Find(switchspec.Route{Dst: netip.MustParsePrefix("10.7.0.0/24")}.Key())
	if !ok || e.(switchspec.Route).To != switchspec.ToNextHop {
		return false
	}
	hop, ok := s.Find(switchspec.NextHop{ID: e.(switchspec.Route).Number}.Key())
	return ok && hop.(switchspec.NextHop).Port == uplink
}

// While an agent restarts, BIRD keeps its prefix, and the agent finds its switch as it
// wants it; the prefix of one that leaves is gone at once.
func TestNamespaceAgentRestartsBesideBIRD(t *testing.T) { bird.InNamespace(t, agentRestartsBesideBIRD) }

func agentRestartsBesideBIRD(t *testing.T) {
	dir := t.TempDir()
	bird.Start(t, dir, bird.Conf)
	l := newLine(t, 1)
	hold := func(c *config.Config, o *Options) {
		besideBIRD(c, o)
		c.Restart.Hold = 30 * time.Second
	}
	has := func() bool { return strings.Contains(ofAgent(t, dir), "10.1.0.0/24") }
	l.start(1, hold)
	eventually(t, "BIRD's route is on the switch", func() bool { return learntOfBIRD(l) })
	eventually(t, "BIRD has the prefix", has)
	before := l.raw()
	l.nodes[0].kill()
	stop := make(chan struct{})
	lost := make(chan bool, 1)
	go func() {
		defer close(lost)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if !has() {
				lost <- true
				return
			}
		}
	}()
	k := &killer{at: -1}
	l.start(1, hold, k.into, func(_ *config.Config, o *Options) { o.Leave = true })
	close(stop)
	if <-lost {
		t.Error("BIRD has not waited")
	}
	if c := k.calls(); c != 0 {
		t.Errorf("the new agent wrote or stored %d times", c)
	}
	if after := l.raw(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	eventually(t, "BIRD has the prefix of the new agent", func() bool { return has() && learntOfBIRD(l) })
	l.nodes[0].kill()
	begun := time.Now()
	eventually(t, "BIRD has it no longer", func() bool { return !has() })
	if d := time.Since(begun); d > 2*time.Second {
		t.Errorf("that took %v", d)
	}
}
