package rates

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/internal/topology"
)

func TestFlags(t *testing.T) {
	topo, err := topology.Load("../../../internal/lab/racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	read := func(args ...string) (Rates, error) {
		var f Flags
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.Add(fs, "", "none")
		if err := fs.Parse(args); err != nil {
			t.Fatal(err)
		}
		if f.Given() != (len(args) > 0) {
			t.Errorf("%v: given is %v", args, f.Given())
		}
		return f.Rates(topo)
	}
	r, err := read("--fabric-rate", "20mbit", "--link-rate", "torA:spine=5mbit,h1:torA=7mbit")
	if err != nil || r.Fabric != 20e6 || r.Link("spine", "torA") != 5e6 || r.Link("torA", "spine") != 5e6 || r.Link("torA", "h1") != 7e6 || r.Link("torB", "spine") != 0 ||
		len(r.Links()) != 4 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := read(); err != nil || r.Fabric != 0 || len(r.Links()) != 0 {
		t.Errorf("nothing said: %+v, %v", r, err)
	}
	for arg, want := range map[string]string{
		"--fabric-rate=fast": "25gbit", "--fabric-rate=0": "25gbit", "--link-rate=torA": "two nodes and a rate", "--link-rate=torA=5mbit": "two nodes and a rate",
		"--link-rate=torA:torB=5mbit": "no link between", "--link-rate=torA:spine=5": "25gbit", "--link-rate=torA:spine=5mbit,spine:torA=6mbit": "a rate already",
	} {
		if _, err := read(arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", arg, err, want)
		}
	}
}
