package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// mcsim runs the program.
func mcsim(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

const racks = "../../internal/lab/racks.yaml"

// TestFigures: a table with the paper's values, and files of a figure.
func TestFigures(t *testing.T) {
	dir := t.TempDir()
	code, out, errs := mcsim(t, "figures", "rdmc1", "--quick", "--plot", dir)
	if code != 0 || !strings.Contains(out, "rdmc1: RDMC, table 1") || !strings.Contains(out, "DIFFERENCE") {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	data, err := os.ReadFile(filepath.Join(dir, "rdmc1.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f figure
	if err := json.Unmarshal(data, &f); err != nil || f.Name != "rdmc1" || len(f.Values) != 4 || f.Seed != 1 {
		t.Errorf("%+v: %v", f, err)
	}
	wellFormed(t, filepath.Join(dir, "rdmc1.svg"))
}

func wellFormed(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(data)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestRun: each way has its latencies; the same seed gives the same bytes, another one gives
// others.
func TestRun(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "load.svg")
	args := []string{"run", "-t", racks, "-n", "400", "--load", "0.1,0.2", "--json", "--plot", plot}
	code, first, errs := mcsim(t, args...)
	var r runReport
	if err := json.Unmarshal([]byte(first), &r); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, first, errs)
	}
	if len(r.Results) != 6 || r.Results[0].Scheme != "multicast" || r.Results[5].Load != 0.2 {
		t.Errorf("%d results: %+v", len(r.Results), r.Results)
	}
	for _, o := range r.Results {
		if of := r.Results[0]; o.Reads.Count != of.Reads.Count || o.Writes.Count != of.Writes.Count {
			t.Errorf("%s has %d reads and %d writes, and %s %d and %d: the same is asked of all", o.Scheme, o.Reads.Count, o.Writes.Count, of.Scheme, of.Reads.Count, of.Writes.Count)
		}
		if o.Reads.Count == 0 || o.Writes.P99 < o.Writes.P50 || o.Writes.P50 < 4 {
			t.Errorf("%s, load %g: reads %+v, writes %+v", o.Scheme, o.Load, o.Reads, o.Writes)
		}
	}
	wellFormed(t, plot)
	if _, again, _ := mcsim(t, args...); again != first {
		t.Error("two runs of one seed differ")
	}
	if _, other, _ := mcsim(t, append(args, "--seed", "2")...); other == first {
		t.Error("another seed changes nothing")
	}
}

// TestRunText: multicast uses the least bandwidth.
func TestRunText(t *testing.T) {
	sizes := filepath.Join(t.TempDir(), "sizes.txt")
	if err := os.WriteFile(sizes, []byte("4096 50\n65536 100\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := mcsim(t, "run", "--topology", racks, "--workload", sizes, "-n", "200", "--load", "0.05")
	if code != 0 || strings.Count(out, " multicast ") != 3 || !strings.Contains(out, "BUSIEST LINK") || !strings.Contains(out, "99%[usec]") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// TestNoCopies: where switches cannot copy, hosts can.
func TestNoCopies(t *testing.T) {
	fabric := filepath.Join(t.TempDir(), "fabric.yaml")
	if err := os.WriteFile(fabric, []byte(`
switches: [{name: s, address: 10.255.0.1, programmable: false, prefixes: [10.1.0.0/24]}]
hosts: [{name: h1, address: 10.1.0.1}, {name: h2, address: 10.1.0.2}]
links:
  - {a: {node: h1}, b: {node: s, port: 1}}
  - {a: {node: h2}, b: {node: s, port: 2}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "-t", fabric, "-n", "50", "--replicas", "2", "-q"}
	if code, _, errs := mcsim(t, args...); code != 1 || !strings.Contains(errs, "hosts can, by ways such as fanout") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if code, _, errs := mcsim(t, append(args, "--schemes", "fanout")...); code != 0 {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// TestCompare: connections to three hosts are a third as fast, a slower link limits the rate, and
// the same seed gives the same bytes.
func TestCompare(t *testing.T) {
	speeds := func(args ...string) map[string]float64 {
		t.Helper()
		args = append([]string{"compare", "-t", racks, "--rate", "1gbit", "-n", "40", "-s", "256K", "--json", "-q"}, args...)
		code, out, errs := mcsim(t, args...)
		var list []comparison
		if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil || len(list) != 4 {
			t.Fatalf("%v: exit code %d, %v\n%s%s", args, code, err, out, errs)
		}
		if _, again, _ := mcsim(t, args...); again != out {
			t.Errorf("%v: two runs of one seed differ", args)
		}
		speeds := map[string]float64{}
		for _, c := range list {
			speeds[string(c.Scheme)] = c.Gbps
			if math.Abs(c.Speed-c.Gbps/list[0].Gbps) > 1e-9 || c.Mean <= 0 {
				t.Errorf("%+v", c)
			}
		}
		return speeds
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got/want-1) > 0.03 {
			t.Errorf("%s: %.3f, want %.3f", what, got, want)
		}
	}
	all := speeds()
	near("multicast", all["multicast"], 0.98)
	near("fan-out", all["fanout"]/all["multicast"], 1./3)
	slow := speeds("--link-rate", "torA:spine=200mbit") // one copy, or two
	near("multicast by a slow link", slow["multicast"], 0.196)
	near("fan-out by a slow link", slow["fanout"], 0.098)
	near("fan-out between slow racks", speeds("--fabric-rate", "100mbit", "-r", "h2,h3")["fanout"], 0.098)
	code, out, errs := mcsim(t, "compare", "-t", racks, "-r", "h3", "--sender", "h4", "-n", "5", "--seeds", "2")
	if code != 0 || !strings.Contains(out, "1.00 (1.00 to 1.00)") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// TestUsage: errors are reported at once, with exit code 2.
func TestUsage(t *testing.T) {
	dir := t.TempDir()
	half := filepath.Join(dir, "half.txt")
	if err := os.WriteFile(half, []byte("4096 50\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	apart, plain := filepath.Join(dir, "apart.json"), filepath.Join(dir, "plain.json")
	for name, more := range map[string][2]string{apart: {"", "true"}, plain: {`, {"a": {"node": "a", "port": 2}, "b": {"node": "b", "port": 2}}`, "false"}} {
		text := fmt.Sprintf(`{"switches": [{"name": "a", "address": "10.255.0.1", "prefixes": ["10.1.0.0/24"], "programmable": %[2]s},
			{"name": "b", "address": "10.255.0.2", "prefixes": ["10.2.0.0/24"], "programmable": %[2]s}],
			"hosts": [{"name": "h", "address": "10.1.0.1"}, {"name": "i", "address": "10.2.0.1"}],
			"links": [{"a": {"node": "h"}, "b": {"node": "a", "port": 1}}, {"a": {"node": "i"}, "b": {"node": "b", "port": 1}}%[1]s]}`, more[0], more[1])
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ args, want string }{
		{"figures mc99", `no figure "mc99"`},
		{"figures rdmc1 --seeds 0", "want 1 to 1000"},
		{"run -t " + apart + " --replicas 2 --load 0.1", "no path from"},
		{"run -t " + racks + " --seeds -1", "want 1 to 1000"},
		{"run -t " + racks + " --load 0.6 --reads 1 --clients h1,h2 --storage h3,h4 --replicas 2", "the link from spine to torA would have to carry 120 %"},
		{"figures rdmc1 --plot " + dir + "/none", "no such directory"},
		{"run", "--topology FILE is needed"},
		{"run -t " + dir + "/none.yaml", "no such file"},
		{"run -t " + half, "want fields, as switches"},
		{"run -t " + racks + " -w " + half, "want 100 %"},
		{"run -t " + racks + " -w nothing", "no file"},
		{"run -t " + racks + " --load 0.9", "want a lower load"},
		{"run -t " + racks + " --load x", "want shares"},
		{"run -t " + racks + " --load=", "one or more of each"},
		{"run -t " + racks + " --schemes=", "one or more of each"},
		{"run -t " + racks + " --load 1e-300", "want 1e-06 or more"},
		{"run -t " + racks + " -n 99999999999", "1 to 100000000"},
		{"run -t " + racks + " --groups 100000", "want 1 to 65536"},
		{"run -t " + racks + " --schemes mail", "unknown scheme"},
		{"run -t " + racks + " --replicas 5", "5 replicas on 4 storage hosts"},
		{"run -t " + racks + " --clients h9", `host "h9"`},
		{"run -t " + racks + " --storage h1,h1", "twice"},
		{"run -t " + racks + " --rate 100", "25gbit"},
		{"run -t " + racks + " --mtu 1500", "MTU"},
		{"run -t " + racks + " --buffer 1", "buffer"},
		{"run -t " + racks + " --block 0", "--block"},
		{"run -t " + racks + " --window 3", "window of 3"},
		{"run -t " + racks + " --link-rate h1:h2=1gbit", "no link between"},
		{"compare", "--topology FILE is needed"},
		{"compare -t " + racks + " -s 0", "--size"},
		{"compare -t " + racks + " --depth 0", "--depth"},
		{"compare -t " + racks + " -n 0", "--writes"},
		{"compare -t " + racks + " --schemes mail", "unknown scheme"},
		{"compare -t " + racks + " --schemes=", "one way or more"},
		{"compare -t " + racks + " --seeds 0", "want 1 to 1000"},
		{"compare -t " + racks + " --sender h9", `host "h9"`},
		{"compare -t " + racks + " -r h1", "twice"},
		{"compare -t " + racks + " --fabric-rate 1kbit", "rates of"},
		{"compare -t " + apart, "no path from h to i"},
	} {
		code, out, errs := mcsim(t, strings.Fields(c.args)...)
		if code != cli.ExitUsage || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("mcsim %s: exit code %d, want 2 and %q\n%s%s", c.args, code, c.want, out, errs)
		}
	}
	if code, _, errs := mcsim(t, "run", "-t", racks, "--rate", "1mbit", "-n", "30"); code != 1 || !strings.Contains(errs, "ACK timer of 67.") {
		t.Errorf("links on which a packet takes longer than a queue pair waits: exit code %d\n%s", code, errs)
	}
	if code, _, errs := mcsim(t, "run", "-t", plain, "--replicas", "2", "--load", "0.1"); code != 1 || !strings.Contains(errs, "no programmable switch is on all paths") {
		t.Errorf("a fabric without programmable switches: exit code %d\n%s", code, errs)
	}
}

// TestSeeds: the result of several seeds is the mean of the results of each.
func TestSeeds(t *testing.T) {
	mean := func(args ...string) (v float64) {
		var f []figure
		_, out, errs := mcsim(t, append(args, "--quick", "--json", "-q")...)
		if err := json.Unmarshal([]byte(out), &f); err != nil {
			t.Fatalf("%v: %s", err, errs)
		}
		for _, x := range f[0].Values {
			if x.Series == "fanout" {
				v = x.Value
			}
		}
		return v
	}
	a, b := mean("figures", "rdmc1"), mean("figures", "rdmc1", "--seed", "2")
	if both := mean("figures", "rdmc1", "--seeds", "2"); both != (a+b)/2 {
		t.Errorf("seed 1 has %g, seed 2 %g, both %g", a, b, both)
	}
	code, out, errs := mcsim(t, "run", "-t", racks, "-n", "200", "--load", "0.05", "--seeds", "2", "--schemes", "multicast")
	if code != 0 || !strings.Contains(out, "seeds 1 to 2") || !strings.Contains(out, " to ") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}
