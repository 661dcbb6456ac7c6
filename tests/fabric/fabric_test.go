package fabric

import (
	"testing"

	"go.uber.org/goleak"

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
			})
		}
	}
}
