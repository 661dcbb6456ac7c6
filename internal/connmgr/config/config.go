// Package config is the configuration of a host's daemon: the YAML file that users write,
// and the typed [Config] that it becomes.
//
// [Load] and [Parse] are strict: they refuse an unknown field, a value of the wrong type and
// inconsistent values, each with file and line. Go code may build a Config itself;
// [Config.SetDefaults] and [Config.Validate] do for it what Parse does for a file. [Reference]
// describes every field.
//
// It opens only the file passed to Load.
package config

import (
	_ "embed"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/mcrdma/mcrdma/internal/strictyaml"
)

// Reference is a complete configuration, in which comments explain every field and say which
// values are defaults.
//
//go:embed reference.yaml
var Reference string

// Defaults that others need to know.
const (
	DefaultPort   = 9550                      // where daemons serve each other
	DefaultSocket = "/run/mcrdma/daemon.sock" // where applications look for the daemon
)

// A Config describes a daemon's host and the other hosts. All addresses are IPv4. Tags say
// what a field is called in the file.
type Config struct {
	Name       string     `yaml:"name"`        // the host's, as in its certificate
	Address    netip.Addr `yaml:"address"`     // of the RDMA device
	Device     string     `yaml:"device"`      // as pkg/qp names it; default "softroce:ADDRESS"
	Socket     string     `yaml:"socket"`      // for applications
	SocketMode uint32     `yaml:"socket_mode"` // permissions of the socket
	Users      []uint32   `yaml:"users"`       // user IDs that may connect; none: all that can open the socket
	Listen     string     `yaml:"listen"`      // for other daemons, "address:port"
	Metrics    string     `yaml:"metrics"`     // Prometheus; empty: none
	TLS        TLS        `yaml:"tls"`         // empty: plain text
	Insecure   bool       `yaml:"insecure"`    // plain text at any address
	State      string     `yaml:"state"`       // file of the state that outlives the daemon
	Switch     Switch     `yaml:"switch"`      // the ToR; empty: none, hosts relay
	Direct     string     `yaml:"direct"`      // configuration of a switch agent that runs in the daemon; empty: none
	Bootstrap  netip.Addr `yaml:"bootstrap"`   // where members of relayed groups listen; default: Address
	Hosts      []Host     `yaml:"hosts"`
	Beat       Beat       `yaml:"beat"`
	Leases     Leases     `yaml:"leases"`
	Limits     Limits     `yaml:"limits"`
	Relay      Relay      `yaml:"relay"`
	Rack       uint32     `yaml:"rack"` // 0: not known
}

// TLS holds the names of PEM files.
type TLS = strictyaml.TLS

// A Switch is the host's ToR.
type Switch struct {
	Name  string `yaml:"name"`
	Agent string `yaml:"agent"` // its agent's gRPC, "host:port"
}

// A Host is another host.
type Host struct {
	Name    string     `yaml:"name"`
	Address netip.Addr `yaml:"address"` // of its RDMA device
	Daemon  string     `yaml:"daemon"`  // "host:port"; default Address:DefaultPort
}

// Beat says how quickly a dead receiver is noticed.
type Beat struct {
	Interval  time.Duration `yaml:"interval"`
	DeadAfter time.Duration `yaml:"dead_after"` // of silence
	Grace     time.Duration `yaml:"grace"`      // for a daemon that is gone, and its host is not
}

// Leases are how long others keep what is not renewed.
type Leases struct {
	Member time.Duration `yaml:"member"` // at receivers
	Group  time.Duration `yaml:"group"`  // at the switch's agent
}

// Limits bound what applications use; of the numbers, 0 is the default, and of
// Memory any.
type Limits struct {
	Groups        int    `yaml:"groups"`                 // of which this host is the sender
	GroupsPerUser int    `yaml:"groups_per_user"`        // the same, of one user
	Memberships   int    `yaml:"memberships"`            // in which this host receives
	PerSender     int    `yaml:"memberships_per_sender"` // the same, of one sender's groups
	Receivers     int    `yaml:"receivers"`              // of one group
	Regions       int    `yaml:"regions"`                // of one group
	Memory        uint64 `yaml:"memory"`                 // bytes of all regions of one user's memberships; 0: any
}

// Relay says how hosts relay, where applications don't.
type Relay struct {
	Algorithm string `yaml:"algorithm"` // as package schedule names it, or "auto"
	Transport string `yaml:"transport"` // "auto", "rdma" or "tcp"
	Block     uint32 `yaml:"block"`     // bytes; 0: what suits the transport
}

// SetDefaults fills in what is not set.
func (c *Config) SetDefaults() { c.setDefaults(nil) }

// setDefaults also refuses each 0 in a file that a default would replace: who writes that no group is
// allowed does not mean 256. f is nil if there is no file.
func (c *Config) setDefaults(f *strictyaml.Faults) {
	const remedy = "without the field, the default counts"
	if c.Address.IsValid() {
		strictyaml.Default(&c.Device, "softroce:"+c.Address.String())
		strictyaml.Default(&c.Listen, netip.AddrPortFrom(c.Address, DefaultPort).String())
		strictyaml.Default(&c.Bootstrap, c.Address)
	}
	strictyaml.Default(&c.Socket, DefaultSocket)
	strictyaml.DefaultAbove0(f, "socket_mode", &c.SocketMode, 0o660, remedy)
	strictyaml.Default(&c.State, filepath.Join("/var/lib/mcrdma", "daemon.db"))
	strictyaml.DefaultAbove0(f, "beat.interval", &c.Beat.Interval, 80*time.Millisecond, remedy)
	strictyaml.DefaultAbove0(f, "beat.dead_after", &c.Beat.DeadAfter, time.Second, remedy)
	strictyaml.DefaultAbove0(f, "beat.grace", &c.Beat.Grace, 10*time.Second, remedy)
	strictyaml.DefaultAbove0(f, "leases.member", &c.Leases.Member, 30*time.Second, remedy)
	strictyaml.DefaultAbove0(f, "leases.group", &c.Leases.Group, 30*time.Second, remedy)
	strictyaml.DefaultAbove0(f, "limits.groups", &c.Limits.Groups, 256, remedy)
	strictyaml.DefaultAbove0(f, "limits.groups_per_user", &c.Limits.GroupsPerUser, c.Limits.Groups, remedy)
	strictyaml.DefaultAbove0(f, "limits.memberships", &c.Limits.Memberships, 1024, remedy)
	strictyaml.DefaultAbove0(f, "limits.memberships_per_sender", &c.Limits.PerSender, max(c.Limits.Memberships/4, 1), remedy)
	strictyaml.DefaultAbove0(f, "limits.receivers", &c.Limits.Receivers, 16, remedy)
	strictyaml.DefaultAbove0(f, "limits.regions", &c.Limits.Regions, 16, remedy)
	strictyaml.Default(&c.Relay.Algorithm, "auto")
	strictyaml.Default(&c.Relay.Transport, "auto")
	for i, h := range c.Hosts {
		if h.Address.IsValid() {
			strictyaml.Default(&c.Hosts[i].Daemon, netip.AddrPortFrom(h.Address, DefaultPort).String())
		}
	}
}
