package connmgr

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

func TestGetDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, withTLS, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		get := func(x *app) *mcrdmav1.GetDaemonResponse {
			d, err := x.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		r.until("the agent is followed", func() bool { return get(a).GetSwitch().GetReachable() })
		r.pass(200 * time.Millisecond)
		d := get(a)
		if d.GetHost() != "h1" || d.GetAddress() != "127.9.0.1" || d.GetVersion() != "test" || d.GetGroups() != 1 || d.GetMemberships() != 0 || d.GetListen() != r.host(1).listen ||
			d.GetDevice() != "softroce:127.9.0.1" || !strings.HasPrefix(d.GetTls(), "host:h1 127.9.0.1 until ") || d.GetSwitch().GetName() != "torA" || d.GetSwitch().GetAgent() != r.sw.addr {
			t.Errorf("%v", d)
		}
		if len(d.GetPeers()) != 2 || d.GetPeers()[0].GetHost() != "h2" || d.GetPeers()[0].GetState() != "ok" || d.GetPeers()[0].GetShared() != 1 || d.GetPeers()[0].GetRoundTrip().AsDuration() <= 0 {
			t.Errorf("%v", d.GetPeers())
		}
		if x := get(apps[0]); x.GetMemberships() != 1 || x.GetPeers()[0].GetShared() != 1 {
			t.Errorf("%v", x)
		}
		list, err := apps[0].rpc.ListGroups(t.Context(), &mcrdmav1.ListGroupsRequest{})
		if err != nil || len(list.GetMemberships()) != 1 || list.GetMemberships()[0].GetSender() != "h1" || list.GetMemberships()[0].GetService() != "store" ||
			list.GetMemberships()[0].GetPath() != bySwitch || list.GetMemberships()[0].GetAttach() == 0 {
			t.Errorf("%v, %v", list, err)
		}
		r.host(3).kill()
		r.sw.close()
		r.passUntil("what is wrong is told", func() bool {
			d = get(a)
			return !d.GetSwitch().GetReachable() && d.GetPeers()[1].GetState() == "down" && strings.Contains(d.GetPeers()[1].GetError(), "refused")
		})
		if d.GetSwitch().GetError() == "" || len(d.GetProblems()) != 1 || !strings.HasPrefix(d.GetProblems()[0], "switch torA: its agent") {
			t.Errorf("%v", d)
		}
		r.sw.serve(r.sw.addr)
		r.until("the agent is followed", func() bool { return get(a).GetSwitch().GetReachable() })
		a.closeGroup(f.GetGroup())
	})
}

// TestStatusOfIdleHosts: the status says which hosts answer even if no group has needed
// them.
func TestStatusOfIdleHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withTLS)
		r.add(3)
		r.start(1)
		r.start(2)
		a := r.host(1).app("")
		states := func() string {
			d, err := a.rpc.GetDaemon(t.Context(), &mcrdmav1.GetDaemonRequest{})
			if err != nil {
				t.Fatal(err)
			}
			p := d.GetPeers()
			return p[0].GetState() + " " + p[1].GetState()
		}
		if s := states(); s != "ok down" {
			t.Errorf("h3 was never there: %s", s)
		}
		r.start(3)
		r.pass(askEvery)
		if s := states(); s != "ok ok" {
			t.Errorf("h3 has come: %s", s)
		}
		r.host(2).kill()
		r.pass(askEvery)
		if s := states(); s != "down ok" {
			t.Errorf("h2 has gone: %s", s)
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, withSwitch)
		r.add(3)
		reg := prometheus.NewRegistry()
		r.start(1, func(_ *config.Config, o *Options) { o.Metrics = reg })
		r.start(2)
		r.start(3)
		r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		r.pass(time.Second)
		r.host(1).hang(r.host(3), true)
		r.pass(1200 * time.Millisecond)
		a.waitChange(removed)
		r.host(1).hang(r.host(3), false)
		served := httptest.NewRecorder()
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(served, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		body := served.Body.String()
		for _, want := range []string{
			"mcrdma_daemon_groups 1\n", "mcrdma_daemon_memberships 0\n", "mcrdma_daemon_sessions 1\n", "mcrdma_daemon_switch_synced 1\n",
			`mcrdma_daemon_formations_total{path="switch"} 1`, `mcrdma_daemon_receivers_removed_total{reason="silent"} 1`,
			`mcrdma_daemon_requests_total{code="OK",method="/mcrdma.v1.Applications/CreateGroup"} 1`, `mcrdma_daemon_formation_seconds_count{phase="prepare"} 1`,
			`mcrdma_daemon_beats_total{result="ok"}`, `mcrdma_daemon_host_call_seconds_count{result="ok"}`, `mcrdma_daemon_agent_call_seconds_count{result="ok"}`,
		} {
			if !strings.Contains(body, want) {
				t.Errorf("no %s", want)
			}
		}
		if strings.Contains(body, "127.9.0") || strings.Contains(body, "h2") {
			t.Error("hosts are labels")
		}
		if all, err := reg.Gather(); err != nil || len(all) < 10 {
			t.Errorf("%d metrics, %v", len(all), err)
		}
		a.closeGroup(f.GetGroup())
		r.host(1).kill()
		if all, err := reg.Gather(); err != nil || len(all) != 0 {
			t.Errorf("%d metrics are left, %v", len(all), err)
		}
		// Twice in one registry is an error, and not a panic.
		reg = prometheus.NewRegistry()
		reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "mcrdma_daemon_groups", Help: "other"}))
		cfg := r.config(1)
		if _, err := New(t.Context(), cfg, Options{Metrics: reg}); err == nil {
			t.Error("registered twice")
		}
	})
}

func TestServesHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		res, err := healthpb.NewHealthClient(r.host(1).dial()).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%v, %v", res, err)
		}
	})
}

// TestMetricNames: rules and dashboards (contrib/monitoring) rely on these names.
func TestMetricNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		testenv.MetricNames(t, "testdata/metrics.txt", r.host(1).m.metrics.registry.Describe)
	})
}
