package fabric

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// GoBGP's own goroutines for serving and for finished sessions cannot be ended.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).Serve"),
		goleak.IgnoreAnyFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

// long is why a test runs without the race detector only.
const long = "it takes long with the race detector, which sees the same code in smaller fabrics"

func TestUnicast(t *testing.T) {
	reach(t, map[string]Spec{"figure3": Figure3(), "leafspine": LeafSpine(3, 2, 2)})
}

func TestUnicastWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, long)
	reach(t, map[string]Spec{"fattree": FatTree(4)})
}

func reach(t *testing.T, specs map[string]Spec) {
	for name, s := range specs {
		for _, routing := range []string{BGP, Static} {
			t.Run(name+"/"+routing, func(t *testing.T) {
				s.Routing = routing
				f := Start(t, s)
				f.Reach()
				f.checkNeighbors()
			})
		}
	}
}

// TestConverged: what an agent knows and its switch does not have yet is not enough. The
// switch in between takes part in no group, so that no group waits for it.
func TestConverged(t *testing.T) {
	var gate sync.RWMutex // of writes to core
	s := Figure3()
	s.Routing = Static
	s.Agent = func(name string, _ *config.Config, o *switchagent.Options) {
		if name == "core" {
			o.DialSwitch = append(o.DialSwitch, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
				cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				gate.RLock()
				defer gate.RUnlock()
				return call(ctx, method, req, reply, cc, opts...)
			}))
		}
	}
	f := Start(t, s)
	gate.Lock()
	f.Cut(f.Wires("core", "torD")[0])
	f.eventually("the agent knows", func() error {
		got, err := f.Status("core").ListRoutes(t.Context(), &mcrdmav1.ListRoutesRequest{})
		for _, r := range got.GetRoutes() {
			if r.GetPrefix() == f.node("torD").Prefix.String() && len(r.GetHops()) == 3 {
				return nil
			}
		}
		return cmp.Or(err, errors.New("it has the routes of before"))
	})
	if f.node("core").checkRoutes() == nil {
		t.Error("the routes are those of before, and are taken for right")
	}
	gate.Unlock()
	f.Converged()
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
