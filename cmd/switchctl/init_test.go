package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// bare leaves out everything optional in a topology.
const bare = `switches:
  - {name: leaf, prefixes: [10.1.0.0/24]}
  - {name: spine, address: 10.255.1.1, mac: "02:00:00:01:01:00", programmable: false}
  - {name: far, address: 10.255.0.2, prefixes: [10.2.0.0/24]}
hosts:
  - {name: h1, address: 10.1.0.11, mac: "02:00:00:00:01:0b"}
  - {name: h2, address: 10.1.0.12}
links:
  - {a: {node: h1}, b: {node: leaf, port: 1, address: 10.0.9.1}}
  - {a: {node: h2}, b: {node: leaf, port: 2, address: 10.0.9.2}}
  - {a: {node: leaf, port: 9, address: 10.0.0.0}, b: {node: spine, port: 1}}
  - {a: {node: far, port: 9}, b: {node: spine, port: 2}}
`

// TestInitLocal: on one machine, agents and switches have their own ports and state files, and know
// each other's.
func TestInitLocal(t *testing.T) {
	abs, err := filepath.Abs("../../examples/twoswitches/fabric.yaml")
	must(t, err)
	dir := t.TempDir()
	var all []*config.Config
	for _, name := range []string{"left", "right"} {
		made := filepath.Join(dir, name+".yaml")
		for _, args := range [][]string{{"init", name, "--topology", abs, "--local", "--write", made}, {"agent", "--config", made, "--check"}} {
			if code, _, stderr := call(args...); code != cli.ExitOK {
				t.Errorf("%q: %d, %s", args, code, stderr)
			}
		}
		c, err := config.Load(made)
		must(t, err)
		all = append(all, c)
	}
	l, r := all[0], all[1]
	if l.Listen != "127.0.0.1:9560" || l.P4Runtime.Target != "127.0.0.1:9559" || r.Listen != "127.0.0.1:9570" || r.P4Runtime.Target != "127.0.0.1:9569" ||
		l.State != filepath.Join(dir, "left.db") || r.State != filepath.Join(dir, "right.db") ||
		l.Switches[0].Agent != r.Listen || r.Switches[0].Agent != l.Listen {
		t.Errorf("%+v\n%+v", l, r)
	}
}

// TestInitNull: a switch may be called like YAML's null, and so may its neighbor.
func TestInitNull(t *testing.T) {
	t.Chdir(t.TempDir())
	fabric := strings.NewReplacer("leaf", `"null"`, "far", `"Null"`, "programmable: false", "prefixes: [10.3.0.0/24]").Replace(bare)
	must(t, os.WriteFile("fabric.yaml", []byte(fabric), 0o600))
	for _, name := range []string{"null", "spine"} {
		for _, args := range [][]string{{"init", name, "--topology", "fabric.yaml", "--write", name + ".yaml"}, {"agent", "--config", name + ".yaml", "--check"}} {
			if code, _, stderr := call(args...); code != cli.ExitOK {
				t.Errorf("%q: %d, %s", args, code, stderr)
			}
		}
	}
}

// TestInitElsewhere: a configuration finds the topology, wherever it is written.
func TestInitElsewhere(t *testing.T) {
	t.Chdir(t.TempDir())
	must(t, os.WriteFile("bare.yaml", []byte(bare), 0o600))
	for _, made := range []string{filepath.Join(t.TempDir(), "leaf.yaml"), "leaf.yaml", "lab/leaf/agent.yaml"} {
		for _, args := range [][]string{{"init", "leaf", "--topology", "bare.yaml", "--write", made}, {"agent", "--config", made, "--check"}} {
			if code, _, stderr := call(args...); code != cli.ExitOK {
				t.Errorf("%q: %d, %s", args, code, stderr)
			}
		}
	}
}

// TestInit: agents accept the configuration of each switch of a topology.
func TestInit(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "bare.yaml")
	must(t, os.WriteFile(own, []byte(bare), 0o600))
	for _, file := range []string{"../../examples/twoswitches/fabric.yaml", "../../internal/lab/racks.yaml", own} {
		topo, err := topology.Load(file)
		must(t, err)
		for _, s := range topo.Switches {
			made := filepath.Join(t.TempDir(), s.Name+".yaml")
			abs, err := filepath.Abs(file)
			must(t, err)
			for _, args := range [][]string{{"init", s.Name, "--topology", abs, "--write", made}, {"agent", "--config", made, "--check"}} {
				if code, _, stderr := call(args...); code != cli.ExitOK {
					t.Errorf("%q: %d, %s", args, code, stderr)
				}
			}
			c, err := config.Load(made)
			must(t, err)
			if c.Name != s.Name || c.Listen != "127.0.0.1:9560" || c.Programmable != s.Programmable || len(c.Prefixes) != len(s.Prefixes) {
				t.Errorf("%+v", c)
			}
			if code, _, stderr := call("init", s.Name, "--topology", abs, "--write", made); code != cli.ExitFailure || !strings.Contains(stderr, "is there already") {
				t.Errorf("%d, %s", code, stderr)
			}
		}
	}
	_, text, stderr := call("init", "leaf", "--topology", own)
	for _, want := range []string{"address: 10.0.9.1 ", "- {port: 1}   # h1", `{address: 10.1.0.11, mac: "02:00:00:00:01:0b", port: 1}`, `peer_mac: "02:00:00:01:01:00"`,
		"{name: spine, programmable: false, addresses", `{name: far, agent: "10.255.0.2:9560", addresses: [10.255.0.2], prefixes: [10.2.0.0/24]}`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s%s", want, text, stderr)
		}
	}
	if strings.Contains(text, "10.1.0.12") {
		t.Errorf("h2 has no MAC:\n%s", text)
	}
	must(t, os.WriteFile(filepath.Join(dir, "switch.crt"), nil, 0o600)) // as cmd-daemon init does
	made := filepath.Join(dir, "agent.yaml")
	if code, _, stderr := call("init", "far", "--topology", own, "-w", made); code != cli.ExitOK {
		t.Error(stderr)
	}
	if c, err := config.Load(made); err != nil || c.Listen != "10.255.0.2:9560" || c.TLS.Cert != filepath.Join(dir, "switch.crt") {
		t.Errorf("%+v, %v", c, err)
	}
	if _, text, _ := call("init", "--reference"); text != config.Reference {
		t.Errorf("%q", text)
	}
	for args, want := range map[string]string{
		"init": "name one switch", "init far": "name one switch", "init --reference far": "goes alone",
	} {
		if code, _, stderr := call(strings.Fields(args)...); code != cli.ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s", args, code, stderr)
		}
	}
	must(t, os.WriteFile(own, []byte(strings.Replace(bare, "10.1.0.12", "10.1.0.1", 1)), 0o600))
	_, text, _ = call("init", "leaf", "--topology", own)
	for more, want := range map[string]string{"": "host h2: 10.1.0.1 is the gateway of its prefix", "gateways: [10.1.0.254]\n": "is right"} {
		must(t, os.WriteFile(made, []byte(text+more), 0o600))
		if _, out, stderr := call("agent", "--config", made, "--check"); !strings.Contains(out+stderr, want) {
			t.Errorf("no %q in %s%s", want, out, stderr)
		}
	}
	must(t, os.WriteFile(own, []byte(bare), 0o600))
	for _, c := range [][3]string{
		{"address: 10.0.9.1 ", "address: 10.1.0.12 ", own + ": host h2: 10.1.0.12 is this switch's own in its agent's configuration"},
		{"10.1.0.0/24", "10.1.0.0/16", own + ": the prefixes of leaf are [10.1.0.0/24], and in its agent's configuration [10.1.0.0/16]: want the same"},
		{"port: 9", "port: 8", own + ": port 9 of leaf leads to spine, and not so in its agent's configuration: want {port: 9, to: spine} under ports there"},
		{"port: 2}", "port: 8}", own + ": port 2 of leaf leads to h2, and not so in its agent's configuration: want {port: 2} under ports there"},
	} {
		must(t, os.WriteFile(made, []byte(strings.Replace(text, c[0], c[1], 1)), 0o600))
		if code, _, stderr := call("agent", "--config", made, "--check"); code != cli.ExitFailure || !strings.Contains(stderr, c[2]) {
			t.Errorf("%s instead of %s: %d, %s", c[1], c[0], code, stderr)
		}
	}
	if code, _, stderr := call("init", "x", "--topology", own); code != cli.ExitFailure || !strings.Contains(stderr, `switch "x"; it has leaf, spine, far`) {
		t.Errorf("%d, %s", code, stderr)
	}
}
