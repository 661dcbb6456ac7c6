// Package monitoring tests the rules for Prometheus and the dashboard for Grafana.
package monitoring

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// metrics are those that agents, daemons and mcblock have, as their packages' tests find them, and the
// one that Prometheus makes of each target.
func metrics(t *testing.T) []string {
	return append(strings.Fields(read(t, "../../internal/switchagent/testdata/metrics.txt")+read(t, "../../internal/connmgr/testdata/metrics.txt")+
		read(t, "../../cmd/mcblock/testdata/metrics.txt")), "up")
}

var (
	metric = regexp.MustCompile(`\b(mcrdma_\w+|up)\b[{ *)\[]`)
	series = regexp.MustCompile(`_(bucket|sum|count)$`) // of a histogram
)

// exist checks that each metric that expressions name is there. An expression names one.
func exist(t *testing.T, where string, expressions ...string) {
	t.Helper()
	known := metrics(t)
	for _, e := range expressions {
		names := metric.FindAllStringSubmatch(e+" ", -1)
		if len(names) == 0 {
			t.Errorf("%s: no metric in %s", where, e)
		}
		for _, m := range names {
			if !slices.Contains(known, series.ReplaceAllString(m[1], "")) && !slices.Contains(known, m[1]) {
				t.Errorf("%s: neither an agent nor a daemon nor mcblock has %s", where, m[1])
			}
		}
	}
}

type rules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr string
			Annotations struct{ Summary, Description string }
			Labels      struct{ Severity string }
		}
	}
}

type tests struct {
	Tests []struct {
		Cases []struct {
			Name   string `yaml:"alertname"`
			Alerts []any  `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	}
}

// TestRules: each alert is of metrics that there are, is in the documentation, says what to do, and has a unit test in
// which it is silent and one in which it fires.
func TestRules(t *testing.T) {
	var r rules
	var u tests
	for name, into := range map[string]any{"mcrdma.rules.yaml": &r, "mcrdma.rules.test.yaml": &u} {
		if err := yaml.Unmarshal([]byte(read(t, name)), into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	silent, fires := map[string]bool{}, map[string]bool{}
	for _, x := range u.Tests {
		for _, c := range x.Cases {
			silent[c.Name], fires[c.Name] = silent[c.Name] || len(c.Alerts) == 0, fires[c.Name] || len(c.Alerts) > 0
		}
	}
	page := read(t, "../../docs/dashboard.md")
	n := 0
	for _, g := range r.Groups {
		for _, a := range g.Rules {
			n++
			exist(t, a.Alert, a.Expr)
			if !strings.Contains(page, "`"+a.Alert+"`") {
				t.Errorf("docs/dashboard.md does not name %s", a.Alert)
			}
			if !silent[a.Alert] || !fires[a.Alert] {
				t.Errorf("%s is not tested: silent %v, firing %v", a.Alert, silent[a.Alert], fires[a.Alert])
			}
			if a.Annotations.Summary == "" || a.Annotations.Description == "" || !slices.Contains([]string{"info", "warning", "critical"}, a.Labels.Severity) {
				t.Errorf("%s: %+v", a.Alert, a)
			}
		}
	}
	if n < 10 || n != len(fires) {
		t.Errorf("%d alerts, and tests of %d", n, len(fires))
	}
}

// TestPromtool has promtool check the rules and the configuration, and run the unit tests.
func TestPromtool(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		testenv.Skip(t, "promtool is not installed; scripts/need promtool:prometheus installs it")
	}
	for _, args := range []string{"check rules mcrdma.rules.yaml", "test rules mcrdma.rules.test.yaml", "check config prometheus.yaml"} {
		if out, err := exec.CommandContext(t.Context(), "promtool", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", args, err, out)
		}
	}
}

// TestGrafana: each panel of the dashboard is of metrics that there are, says what it shows, and
// overlaps no other.
func TestGrafana(t *testing.T) {
	var d struct {
		UID    string
		Panels []struct {
			ID                 int
			Title, Description string
			GridPos            struct{ X, Y, W, H int }
			Targets            []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Type  string
				Query any
			}
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana.json")), &d); err != nil {
		t.Fatal(err)
	}
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if p.Description == "" || len(p.Targets) == 0 || ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%+v", p)
		}
		ids[p.ID] = true
		for _, x := range p.Targets {
			exist(t, p.Title, x.Expr)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[cell] != "" {
					t.Fatalf("%q lies over %q", p.Title, taken[cell])
				}
				taken[cell] = p.Title
			}
		}
	}
	for _, v := range d.Templating.List {
		if q, ok := v.Query.(map[string]any); ok && v.Type == "query" {
			exist(t, "a variable", strings.ReplaceAll(q["query"].(string), ",", " "))
		}
	}
	if len(d.Panels) < 10 || d.UID == "" {
		t.Errorf("%d panels", len(d.Panels))
	}
}
