package switchagent

import (
	"testing"
	"testing/synctest"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

// TestHealth: an agent serves while it controls its switch: not before the switch is
// there, nor while it is away or another agent has it.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		n := l.nodes[0]
		n.sw.close()
		l.launch(1)
		w, err := healthpb.NewHealthClient(l.conn(1)).Watch(within(t, 10*time.Minute), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(when string, want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			res, err := w.Recv()
			if err != nil || res.GetStatus() != want {
				t.Fatalf("%s: %v, %v", when, res, err)
			}
			if n.agent.serving() != (want == healthpb.HealthCheckResponse_SERVING) { // /readyz
				t.Errorf("%s: serving %v", when, n.agent.serving())
			}
		}
		expect("without a switch", healthpb.HealthCheckResponse_NOT_SERVING)
		for range 2 {
			n.sw, _ = l.startSwitch(n.p4)
			expect("with its switch", healthpb.HealthCheckResponse_SERVING)
			if !isReady(n.agent) {
				t.Error("it serves, and is not ready")
			}
			n.sw.close()
			expect("its switch has gone", healthpb.HealthCheckResponse_NOT_SERVING)
		}
		n.sw, _ = l.startSwitch(n.p4)
		expect("with its switch", healthpb.HealthCheckResponse_SERVING)
		other, err := l.second(1, func(c *config.Config, _ *Options) { c.P4Runtime.ElectionID = 2 })
		if err != nil {
			t.Fatal(err)
		}
		end := l.running(other)
		expect("another agent has its switch", healthpb.HealthCheckResponse_NOT_SERVING)
		end()
		expect("the other agent has gone", healthpb.HealthCheckResponse_SERVING)
	})
}
