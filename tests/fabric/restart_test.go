package fabric

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestAgentRestartsWithoutRace: packets of a group, and of hosts to each other, go on without a
// gap while agents leave, or crash, and come back.
func TestAgentRestartsWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, long)
	s := LeafSpine(3, 2, 2)
	s.TLS, s.Hello = true, quickHello
	f := Start(t, s)
	g := f.Group("h1-1", "h1-2", "h2-1", "h2-2", "h3-1")
	f.Install(g)
	f.CheckDelivery(g)
	for i, sw := range []string{"leaf1", "spine1", "leaf2", "spine2"} {
		// The neighbors notice that the agent sends no more hellos, and take
		// other paths; only to hosts at that leaf there are none.
		if i%2 == 0 {
			f.StopAgent(sw)
		} else {
			f.KillAgent(sw)
		}
		f.Links()
		f.StartAgent(sw)
		f.Ready()
		f.Links()
		f.Converged()
		f.Repaired(g)
		f.CheckDelivery(g)
		f.CheckAcks(g)
		f.CheckTrees(patience)
		if p := f.Problems(g); p != nil {
			t.Errorf("%s is back: %v", sw, p)
		}
	}
	f.Reach()
	f.Remove(g)
	f.CheckLeftovers(0)
}

// TestShortStopWithoutRace: an agent that is killed and back before its neighbors miss its
// hellos hardly loses a packet: only while they agree upon the link anew. With BGP
// they know at once; that gap is measured.
func TestShortStopWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, long)
	for _, routing := range []string{Static, BGP} {
		t.Run(routing, func(t *testing.T) {
			s := LeafSpine(2, 2, 2)
			s.Routing, s.Hello, s.Settle = routing, time.Second, 3*time.Second
			f := Start(t, s)
			g := f.Group("h1-1", "h1-2", "h2-1", "h2-2")
			f.Install(g)
			switches := []string{"leaf1", "spine1", "leaf2"}
			if routing == BGP {
				switches = switches[2:] // where hosts have no other way
			}
			for _, sw := range switches {
				p := f.Probe(g, 1, 2*time.Millisecond)
				f.KillAgent(sw)
				f.StartAgent(sw)
				f.Ready()
				f.Converged()
				f.Repaired(g)
				o := p.Stop()
				if routing == Static && o.Longest > 100*time.Millisecond || o.Strays > 0 {
					t.Errorf("the agent of %s was started again: %+v", sw, o)
				}
				t.Logf("the agent of %s was killed and started again: nothing arrived for %v", sw, o.Longest.Round(time.Millisecond))
				f.CheckDelivery(g)
				f.CheckAcks(g)
				f.CheckTrees(patience)
			}
			f.Remove(g)
			f.CheckLeftovers(0)
		})
	}
}

// TestSwitchRestarts: a switch that has forgotten all gets it again.
func TestSwitchRestarts(t *testing.T) {
	f := Start(t, LeafSpine(2, 2, 2))
	g := f.Group("h1-1", "h1-2", "h2-1", "h2-2")
	f.Install(g)
	for _, sw := range []string{"leaf1", "spine1", "leaf2"} {
		f.StopSwitch(sw)
		f.Links()
		f.StartSwitch(sw)
		f.Links()
		f.Converged()
		f.Repaired(g)
		f.CheckDelivery(g)
		f.CheckTrees(patience)
	}
	f.CheckAcks(g)
	f.Reach()
	f.Remove(g)
	f.CheckLeftovers(0)
}

// TestTLS: a host manages its own groups, and no others.
func TestTLS(t *testing.T) {
	s := Figure3()
	s.TLS = true
	f := Start(t, s)
	g := f.Group("A1", "A2", "B1", "C2")
	f.Install(g)
	f.CheckDelivery(g)
	other := f.Group("A2", "B1", "D1")
	f.host("A2").client = f.host("A1").client
	if err := f.TryInstall(other); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a host installs a group of another: %v", err)
	}
	f.Remove(g)
	f.CheckLeftovers(0)
}

// TestRefused: what cannot be leaves nothing behind.
func TestRefused(t *testing.T) {
	f := Start(t, Figure3())
	g := f.Group("A1", "B1", "B2", "C1", "C2", "D1") // torB and torC have to copy
	f.StopAgent("torC")
	if err := f.TryInstall(g); err == nil {
		t.Error("a group is installed though the agent of one of its switches is not there")
	}
	f.CheckLeftovers(0)
	f.StartAgent("torC")
	f.Ready()
	f.CheckLeftovers(0)
	f.Links()
	f.Converged()
	f.Install(g)
	f.CheckDelivery(g)
	f.Remove(g)
	f.CheckLeftovers(0)
}
