package fabric

import (
	"testing"

	"go.uber.org/goleak"
)

// GoBGP's own goroutines for serving and for finished sessions cannot be ended.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).Serve"),
		goleak.IgnoreAnyFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

func TestUnicast(t *testing.T) {
	for name, s := range map[string]Spec{"figure3": Figure3(), "leafspine": LeafSpine(3, 2, 2), "fattree": FatTree(4)} {
		for _, routing := range []string{BGP, Static} {
			t.Run(name+"/"+routing, func(t *testing.T) {
				s.Routing = routing
				f := Start(t, s)
				f.Reach()
			})
		}
	}
}
