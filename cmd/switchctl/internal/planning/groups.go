package planning

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/strictyaml"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A Group is a group in the user's form: members by the names or addresses of hosts.
type Group struct {
	Name      string   `yaml:"name"` // empty: named by its number
	Source    string   `yaml:"source"`
	Receivers []string `yaml:"receivers"`
	Address   string   `yaml:"address"` // that the sender is connected to; empty: the first receiver's
	Regions   *int     `yaml:"regions"` // memory regions of each receiver, up to config.MaxRegions; nil: 1
}

var format = strictyaml.Format{MaxBytes: 16 << 20, Example: "groups: [{source: h1, receivers: [h2, h3]}]"}

// LoadGroups reads a file of groups; see ParseGroups.
func LoadGroups(name string) ([]Group, error) {
	data, err := strictyaml.ReadFile(name, format)
	if err != nil {
		return nil, err
	}
	return ParseGroups(data, name)
}

// ParseGroups parses groups in YAML, or JSON, strictly; name is the file's name in messages:
//
//	groups:
//	  - {name: volume7, source: h1, receivers: [h2, h3, 10.2.0.12], regions: 2}
func ParseGroups(data []byte, name string) ([]Group, error) {
	var file struct {
		Groups []Group `yaml:"groups"`
	}
	f, ok := strictyaml.Decode(data, name, &file, format)
	if ok && len(file.Groups) == 0 {
		f.Add("groups", "none: list them, as %s", format.Example)
	}
	names := map[string]string{}
	for i := range file.Groups {
		g, at := &file.Groups[i], fmt.Sprintf("groups[%d]", i)
		g.Name = cmp.Or(g.Name, fmt.Sprintf("group %d", i+1))
		if first, taken := names[g.Name]; taken {
			f.Add(at+".name", "%q is taken already, in %s", g.Name, f.Position(first))
		}
		names[g.Name] = at + ".name"
		f.Number(at+".regions", g.regions(), 0, config.MaxRegions)
	}
	return file.Groups, f.Err()
}

func (g Group) regions() int {
	if g.Regions == nil {
		return 1
	}
	return *g.Regions
}

// group finds the members. QPNs, PSN and MC_ID, which hosts choose when a group is created, are
// invented: the plan does not depend on them.
func (f *Fabric) group(g Group, id uint32) (out bifurcation.Group, err error) {
	out.ID = id
	if n := g.regions(); n < 0 || n > config.MaxRegions {
		return out, fmt.Errorf("%s: %d regions: a receiver has 0 to %d", g.Name, n, config.MaxRegions)
	}
	if out.Source, err = f.Host(g.Source); err != nil {
		return out, fmt.Errorf("source: %w", err)
	}
	for _, r := range g.Receivers {
		a, err := f.Host(r)
		if err != nil {
			return out, fmt.Errorf("receivers: %w", err)
		}
		x := bifurcation.Receiver{Addr: a}
		for i := range uint64(g.regions()) { //nolint:gosec // not negative
			x.Regions = append(x.Regions, bifurcation.Region{VA: i << 12, Length: 1 << 12})
		}
		out.Receivers = append(out.Receivers, x)
	}
	if h := f.topology.Node(g.Address); h != nil && h.Switch == nil {
		out.Address = h.Address
	} else if g.Address != "" {
		if out.Address, err = netip.ParseAddr(g.Address); err != nil {
			return out, fmt.Errorf("address: %q is neither a host of the topology nor an address", g.Address)
		}
	}
	return out, nil
}
