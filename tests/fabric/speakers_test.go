package fabric

import (
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestOwnSpeakersWithoutRace: agents with BGP speakers of their own, as outside of tests.
func TestOwnSpeakersWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "GoBGP's speakers share variables")
	s := LeafSpine(2, 2, 2)
	s.OwnSpeakers, s.Hello = true, quickHello
	f := Start(t, s)
	g := f.Group("h1-1", "h1-2", "h2-1", "h2-2")
	f.Install(g)
	f.CheckDelivery(g)
	for _, sw := range []string{"spine1", "leaf2"} {
		f.KillAgent(sw)
		f.StartAgent(sw)
		f.Ready()
		f.Converged()
		f.Repaired(g)
		f.CheckDelivery(g)
	}
	f.Remove(g)
	f.CheckLeftovers(0)
}
