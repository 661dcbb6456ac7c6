package config

import (
	"fmt"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/strictyaml"
)

// An Error is a fault in a configuration.
type Error = strictyaml.Error

// format is how the file looks.
var format = strictyaml.Format{MaxBytes: strictyaml.MaxFile, Example: "name: torA", Types: []strictyaml.Type{
	strictyaml.Leaf("a MAC address, as 02:00:00:00:00:01", routing.ParseMAC),
	strictyaml.Leaf("a number of bytes, as 64 or 50KB", parseBytes),
}}

// Parse reads a configuration; name is what messages call the file. Defaults
// are set, and the result is valid. The error joins one [*Error] for each fault,
// in the order of the file, up to 20 of them.
func Parse(data []byte, name string) (*Config, error) {
	return strictyaml.Parse(data, name, format, func(f *strictyaml.Faults, c *Config) {
		for i := range c.Ports {
			if p := &c.Ports[i]; !f.Has(fmt.Sprintf("ports[%d].hello", i)) {
				p.Hello = p.To != ""
			}
		}
		settle := c.Routing.Settle
		c.setDefaults(f)
		if f.Has("routing.settle") {
			c.Routing.Settle = settle // 0 is a value here
		}
		(&checker{f, c}).check()
	})
}

// Load reads the file called name. Relative names of other files in it count
// from the directory that it lies in. Errors are those of [Parse], or of
// reading.
func Load(name string) (*Config, error) {
	return strictyaml.Load(name, "agent", format, Parse, func(c *Config) []*string {
		return []*string{&c.TLS.Cert, &c.TLS.Key, &c.TLS.CA, &c.State, &c.Routing.Topology, &c.Routing.Kernel.Namespace}
	})
}
