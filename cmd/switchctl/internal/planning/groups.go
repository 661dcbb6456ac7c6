package planning

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A Group is a group as people write it: members by the names or addresses of hosts.
type Group struct {
	Name      string   `yaml:"name"` // empty: named by its number
	Source    string   `yaml:"source"`
	Receivers []string `yaml:"receivers"`
	Address   string   `yaml:"address"` // that the sender is connected to; empty: the first receiver's
	Regions   *int     `yaml:"regions"` // memory regions of each receiver; nil: 1
}

// MaxFile is the largest file of groups that is accepted, in bytes.
const MaxFile = 16 << 20

// maxRegions is how many regions one receiver may have here: as many as the table
// has room for at least.
const maxRegions = 1 << 16

// LoadGroups reads a file of groups; see ParseGroups.
func LoadGroups(name string) ([]Group, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFile {
		return nil, fmt.Errorf("%s: it has more than %d MiB", name, MaxFile>>20)
	}
	groups, err := ParseGroups(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return groups, nil
}

// ParseGroups reads groups in YAML, or JSON, strictly:
//
//	groups:
//	  - {name: volume7, source: h1, receivers: [h2, h3, 10.2.0.12], regions: 2}
func ParseGroups(data []byte) ([]Group, error) {
	var file struct {
		Groups []Group `yaml:"groups"`
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something behind the first document")
	}
	if len(file.Groups) == 0 {
		return nil, errors.New("there are no groups in it; write: groups: [{source: h1, receivers: [h2, h3]}]")
	}
	names := map[string]bool{}
	for i := range file.Groups {
		g := &file.Groups[i]
		if g.Name == "" {
			g.Name = fmt.Sprintf("group %d", i+1)
		}
		if names[g.Name] {
			return nil, fmt.Errorf("two groups are called %q", g.Name)
		}
		names[g.Name] = true
		if err := g.check(); err != nil {
			return nil, err
		}
	}
	return file.Groups, nil
}

func (g Group) check() error {
	if n := g.regions(); n < 0 || n > maxRegions {
		return fmt.Errorf("%s: %d regions; a receiver has 0 to %d", g.Name, n, maxRegions)
	}
	return nil
}

func (g Group) regions() int {
	if g.Regions == nil {
		return 1
	}
	return *g.Regions
}

// group finds the members. QPNs, PSN and MC_ID, which hosts choose when a group is
// created, are made up: nothing that is planned depends on them.
func (f *Fabric) group(g Group, id uint32) (bifurcation.Group, error) {
	out := bifurcation.Group{ID: id}
	err := g.check()
	if err != nil {
		return out, err
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
	switch h, ok := f.hosts[g.Address]; {
	case ok:
		out.Address = h.Addr
	case g.Address != "":
		if out.Address, err = netip.ParseAddr(g.Address); err != nil {
			return out, fmt.Errorf("address: %q is neither a host of the topology nor an address", g.Address)
		}
	}
	return out, nil
}
