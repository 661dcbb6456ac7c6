//go:build !race

package fabric

import "testing"

// TestOwnSpeakers: agents with BGP speakers of their own, as outside of tests; the
// race detector would see GoBGP's variables.
func TestOwnSpeakers(t *testing.T) {
	s := LeafSpine(2, 2, 2)
	s.OwnSpeakers = true
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
