// Package rates has the flags for the rates of a fabric's links.
package rates

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// Flags are the flags for the rates of links between switches, and of single links.
type Flags struct {
	fabric string
	links  []string
}

// Add adds the flags. with is a prefix of the descriptions, such as "with --lab: ".
func (f *Flags) Add(fs *pflag.FlagSet, with, without string) {
	fs.StringVar(&f.fabric, "fabric-rate", "", with+"`rate` of links between switches; default: "+without)
	fs.StringSliceVar(&f.links, "link-rate", nil, with+"the rate of the links between two nodes, as `A:B=RATE`, or several separated by commas")
}

// Given reports whether a flag was given.
func (f *Flags) Given() bool { return f.fabric != "" || len(f.links) > 0 }

// Rates are the rates of links, in bits per second.
type Rates struct {
	Fabric float64               // between switches; 0: not given
	links  map[[2]string]float64 // by names, in both orders
}

// Link returns the rate of the links between two nodes; 0: not given.
func (r *Rates) Link(a, b string) float64 { return r.links[[2]string{a, b}] }

// Links returns the pairs of nodes with rates of their own, in both orders.
func (r *Rates) Links() [][2]string {
	return slices.SortedFunc(maps.Keys(r.links), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
}

// Rates reads the flags. Errors are usage errors.
func (f *Flags) Rates(t *topology.Topology) (r Rates, err error) {
	r.links = map[[2]string]float64{}
	if f.fabric != "" {
		if r.Fabric, err = Bits("fabric-rate", f.fabric); err != nil {
			return r, err
		}
	}
	for _, text := range f.links {
		ends, rate, ok := strings.Cut(text, "=")
		a, b, two := strings.Cut(ends, ":")
		if !ok || !two {
			return r, cli.Usagef("--link-rate %q: want two nodes and a rate, such as leaf1:spine1=25gbit", text)
		}
		if !slices.ContainsFunc(t.Links, func(l topology.Link) bool {
			return l.A.Node == a && l.B.Node == b || l.A.Node == b && l.B.Node == a
		}) {
			return r, cli.Usagef("--link-rate %q: the topology has no link between %q and %q", text, a, b)
		}
		if r.Link(a, b) > 0 {
			return r, cli.Usagef("--link-rate %q: the links between %s and %s have a rate already", text, a, b)
		}
		n, err := Bits("link-rate", rate)
		if err != nil {
			return r, err
		}
		r.links[[2]string{a, b}], r.links[[2]string{b, a}] = n, n
	}
	return r, nil
}

// Bits parses a flag's rate, which must be more than 0. Errors are usage errors.
func Bits(flag, text string) (float64, error) {
	r, err := traffic.ParseRate(text)
	if err != nil || !r.Bits || r.PerSecond == 0 {
		return 0, cli.Usagef("--%s %q: want bits a second, such as 25gbit", flag, text)
	}
	return float64(r.PerSecond), nil
}
