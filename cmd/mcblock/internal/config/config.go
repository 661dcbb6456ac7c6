// Package config is the configuration of a host's mcblock: the YAML file that users write,
// and the typed [Config] that it becomes. [Load] and [Parse] are strict: they refuse an unknown
// field, a value of the wrong form and inconsistent values, each with file and line. [Reference]
// shows every field.
//
// It opens only the file given to Load.
package config

import (
	_ "embed"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/mcrdma/mcrdma/internal/strictyaml"
)

// Reference is a complete configuration, in which comments explain every field and say which
// values are defaults.
//
//go:embed reference.yaml
var Reference string

// Default ports and directories.
const (
	DefaultPeerPort   = 9570  // for hosts' mcblock
	DefaultClientPort = 2379  // of etcd, for clients
	DefaultEtcdPort   = 2380  // of etcd, for other members
	DefaultNBDPort    = 10809 // the default of NBD clients
	DefaultFile       = "/etc/mcrdma/mcblock.yaml"

	// DefaultElection is etcd's election timeout: a replica that dies together with the leader is
	// removed from its group after at most twice as long.
	DefaultElection = 120 * time.Millisecond
)

// A Config is the configuration of a host that has copies of volumes. Tags have the names of fields
// in the file.
type Config struct {
	Name     string     `yaml:"name"`     // the host's name, as in its certificate
	ID       uint32     `yaml:"id"`       // the host's number in maps, never reused for another host
	Address  netip.Addr `yaml:"address"`  // of the RDMA device
	Data     string     `yaml:"data"`     // directory of logs and stores
	Listen   string     `yaml:"listen"`   // for other hosts, host:port
	NBD      string     `yaml:"nbd"`      // for clients, host:port
	Socket   string     `yaml:"socket"`   // of the host's daemon
	TLS      TLS        `yaml:"tls"`      // empty: no TLS
	Insecure bool       `yaml:"insecure"` // allow connections without TLS at any address
	Metrics  string     `yaml:"metrics"`  // for Prometheus, host:port; empty: not served
	Etcd     Etcd       `yaml:"etcd"`
}

// TLS holds the names of PEM files.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	CA   string `yaml:"ca"`
	// Clients is the CA of NBD clients, if it is a different one.
	Clients string `yaml:"clients"`
}

// Etcd says where the maps of the volumes are: in members that hosts run, or in an existing
// cluster.
type Etcd struct {
	Endpoints []string `yaml:"endpoints"` // of an existing cluster, host:port each
	Members   []Member `yaml:"members"`   // hosts that run a member in their mcblock
	Join      bool     `yaml:"join"`      // this host's member replaces another
	// Election is how long a leader must be silent before the other members elect a new one.
	Election time.Duration `yaml:"election"`
}

// A Member is a host with a member of etcd.
type Member struct {
	Name    string     `yaml:"name"`    // the host's
	Address netip.Addr `yaml:"address"` // in its certificate
	Peer    string     `yaml:"peer"`    // host:port for other members
	Client  string     `yaml:"client"`  // host:port for clients
}

// EtcdClients returns the client addresses of etcd, host:port each, that of this host's member
// first.
func (c *Config) EtcdClients() []string {
	if len(c.Etcd.Members) == 0 {
		return c.Etcd.Endpoints
	}
	var all []string
	for _, m := range c.Etcd.Members {
		if all = append(all, m.Client); m.Name == c.Name {
			all[0], all[len(all)-1] = m.Client, all[0]
		}
	}
	return all
}

// Member returns this host's member of etcd, or nil.
func (c *Config) Member() *Member {
	i := slices.IndexFunc(c.Etcd.Members, func(m Member) bool { return m.Name == c.Name })
	if i < 0 {
		return nil
	}
	return &c.Etcd.Members[i]
}

func (c *Config) setDefaults(f *strictyaml.Faults) {
	if c.Address.IsValid() {
		strictyaml.Default(&c.Listen, netip.AddrPortFrom(c.Address, DefaultPeerPort).String())
	}
	if c.TLS != (TLS{}) {
		strictyaml.Default(&c.TLS.Clients, c.TLS.CA)
	}
	strictyaml.Default(&c.Data, "/var/lib/mcblock")
	strictyaml.Default(&c.NBD, "127.0.0.1:"+strconv.Itoa(DefaultNBDPort))
	strictyaml.Default(&c.Socket, "/run/mcrdma/daemon.sock")
	strictyaml.DefaultAbove0(f, "etcd.election", &c.Etcd.Election, DefaultElection, "without the field, the default counts")
	for i := range c.Etcd.Members {
		if m := &c.Etcd.Members[i]; m.Address.IsValid() {
			strictyaml.Default(&m.Peer, netip.AddrPortFrom(m.Address, DefaultEtcdPort).String())
			strictyaml.Default(&m.Client, netip.AddrPortFrom(m.Address, DefaultClientPort).String())
		}
	}
}
