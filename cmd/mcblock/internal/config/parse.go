package config

import (
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/strictyaml"
)

// format is the format of the file.
var format = strictyaml.Format{MaxBytes: strictyaml.MaxFile, Example: "name: h1"}

// Load reads the file called name. Relative file names in it are relative to its directory. Errors
// are those of [Parse], or of reading.
func Load(name string) (*Config, error) {
	return strictyaml.Load(name, "host", format, Parse, func(c *Config) []*string {
		return []*string{&c.TLS.Cert, &c.TLS.Key, &c.TLS.CA, &c.TLS.Clients, &c.Data, &c.Socket}
	})
}

// Parse parses a configuration; name is the file's name in messages. It sets defaults, and the
// result is valid. The error joins one [*strictyaml.Error] for each fault, in the order of the
// file, up to 20 of them.
func Parse(data []byte, name string) (*Config, error) {
	return strictyaml.Parse(data, name, format, func(f *strictyaml.Faults, c *Config) {
		c.setDefaults(f)
		k := &checker{f, c}
		k.host()
		k.services()
		k.etcd()
	})
}

// A checker checks a Config.
type checker struct {
	*strictyaml.Faults
	c *Config
}

func (k *checker) host() {
	k.Name("name", k.c.Name, "the host's name, as in its certificate")
	if k.c.ID == 0 {
		k.Add("id", "missing: the host's number, 1 or more, which no other host ever had")
	}
	k.Unicast("address", k.c.Address, "the address of the host's RDMA device")
}

// services checks the listening addresses of the host, and who can connect.
func (k *checker) services() {
	c := k.c
	if c.TLS != (TLS{}) && slices.Contains([]string{c.TLS.Cert, c.TLS.Key, c.TLS.CA}, "") {
		k.Add("tls", "incomplete: want cert, key and ca, or none of them")
	}
	if c.Address.Is4() || k.Has("listen") { // otherwise its default is as wrong as the address
		k.listens("listen", c.Listen)
	}
	k.listens("nbd", c.NBD)
	if c.Metrics != "" {
		k.HostPort("metrics", c.Metrics)
	}
}

// listens checks a listening address.
func (k *checker) listens(path, at string) {
	k.Listens(path, at, k.c.TLS == TLS{} && !k.c.Insecure, " (cmd-daemon init makes certificates)")
}

func (k *checker) etcd() {
	e := k.c.Etcd
	switch {
	case len(e.Endpoints) == 0 && len(e.Members) == 0 && !k.Unread("etcd"):
		k.Add("etcd", "missing: members, the hosts that run etcd in their mcblock, or endpoints of a cluster that is there")
	case len(e.Endpoints) > 0 && len(e.Members) > 0:
		k.Add("etcd", "endpoints and members: want one of them")
	case e.Join && k.c.Member() == nil:
		k.Add("etcd.join", "host %q is not among the members, and has nothing to join", k.c.Name)
	}
	k.Between("etcd.election", e.Election, 50*time.Millisecond, 10*time.Second)
	for i, at := range e.Endpoints {
		path := fmt.Sprintf("etcd.endpoints[%d]", i)
		k.Reaches(path, at)
		if slices.Contains(e.Endpoints[:i], at) {
			k.Add(path, "%s is there twice", at)
		}
	}
	names, addresses := map[string]string{}, map[string]string{}
	for i, m := range e.Members {
		at := fmt.Sprintf("etcd.members[%d]", i)
		if k.Name(at+".name", m.Name, "the host's name") {
			if first, taken := names[m.Name]; taken {
				k.Add(at+".name", "%q is taken already, in %s", m.Name, k.Position(first))
			} else {
				names[m.Name] = at + ".name"
			}
		}
		if !k.Unicast(at+".address", m.Address, "the address of that host, as in its certificate") {
			continue
		}
		check := k.Reaches
		if m.Name == k.c.Name {
			check = k.listens
		}
		check(at+".peer", m.Peer)
		check(at+".client", m.Client)
		for _, a := range []string{m.Peer, m.Client} {
			if first, taken := addresses[a]; taken {
				k.Add(at+".address", "%s is there already, of member %q: each has an address of its own", a, first)
				break
			}
			addresses[a] = m.Name
		}
		if host, _, _ := net.SplitHostPort(k.c.Listen); k.c.Member() == nil && (m.Address == k.c.Address || m.Address.String() == host) {
			k.Add(at+".name", "%q has the address of this host, %v, whose name is %q: a member has the name of its host", m.Name, m.Address, k.c.Name)
		}
	}
}
