package fabric

import (
	"testing"

	"go.uber.org/goleak"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// GoBGP's own goroutines for serving and for finished sessions cannot be ended.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).Serve"),
		goleak.IgnoreAnyFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

// large leaves out of a race-detector run what takes long there. "make test" runs
// all of this package without it as well.
func large(t *testing.T, it bool) {
	t.Helper()
	if it && testenv.Race {
		t.Skip("optional: runs without the race detector")
	}
}

func TestUnicast(t *testing.T) {
	for name, s := range map[string]Spec{"figure3": Figure3(), "leafspine": LeafSpine(3, 2, 2), "fattree": FatTree(4)} {
		for _, routing := range []string{BGP, Static} {
			t.Run(name+"/"+routing, func(t *testing.T) {
				large(t, name == "fattree")
				s.Routing = routing
				f := Start(t, s)
				f.Reach()
				f.checkNeighbors()
			})
		}
	}
}

// checkNeighbors: each agent says of its BGP sessions that they are established and since
// when, and counts prefixes; without BGP it has none.
func (f *Fabric) checkNeighbors() {
	f.t.Helper()
	for _, n := range f.nodes {
		s, err := f.Status(n.Name).GetStatus(f.t.Context(), &mcrdmav1.GetStatusRequest{})
		f.must(err)
		if want := f.spec.Routing == BGP; want != (len(s.GetBgp()) > 0) {
			f.t.Errorf("%s: %d BGP neighbors", n.Name, len(s.GetBgp()))
		}
		for _, x := range s.GetBgp() {
			if x.GetState() != "Established" || x.GetSince() == nil || x.GetReceived() == 0 || x.GetAdvertised() == 0 || x.GetSwitch() == "" {
				f.t.Errorf("%s: %v", n.Name, x)
			}
		}
	}
}
