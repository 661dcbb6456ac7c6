package config

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/strictyaml"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// Bounds that come from elsewhere.
const (
	maxReceivers = 16  // of one group, in the switches' program
	maxSocket    = 107 // bytes of a unix socket's name
)

// MaxRegions is the most memory regions that a receiver of a group has.
const MaxRegions = 16

// An Error is a fault in a configuration.
type Error = strictyaml.Error

// format is the format of the file.
var format = strictyaml.Format{MaxBytes: strictyaml.MaxFile, Example: "name: h1"}

// Parse reads a configuration; name is what messages call the file. Defaults
// are set, and the result is valid. The error joins one [*Error] for each fault,
// in the order of the file, up to 20 of them.
func Parse(data []byte, name string) (*Config, error) {
	return strictyaml.Parse(data, name, format, func(f *strictyaml.Faults, c *Config) {
		c.setDefaults(f)
		(&checker{f, c}).check()
	})
}

// Peers are the addresses of the other hosts' devices.
func (c *Config) Peers() (list []netip.Addr) {
	for _, h := range c.Hosts {
		list = append(list, h.Address)
	}
	return list
}

// Validate reports inconsistencies in a Config whose defaults are set. The error joins one
// [*Error] for each fault, up to 20 of them.
func (c *Config) Validate() error {
	f := &strictyaml.Faults{}
	(&checker{f, c}).check()
	return f.Err()
}

// A checker judges a Config.
type checker struct {
	*strictyaml.Faults
	c *Config
}

func (k *checker) check() {
	k.host()
	k.services()
	k.toSwitch()
	k.hosts()
	k.times()
	k.limits()
	k.relay()
}

func (k *checker) host() {
	c := k.c
	k.Host("name", c.Name, "the host's name, as in its certificate", c.Address)
	if k.Unicast("address", c.Address, "the address of the host's RDMA device") {
		k.Unicast("bootstrap", c.Bootstrap, "where members of relayed groups listen")
	}
	if driver, rest, _ := strings.Cut(c.Device, ":"); (driver == "" || rest == "") && !(c.Device == "" && !c.Address.IsValid()) {
		k.Add("device", "%q is not DRIVER:NAME, as softroce:10.1.0.11 or ibverbs:mlx5_0", c.Device)
	} else if driver == "softroce" && c.Address.IsValid() {
		at, _, _ := strings.Cut(rest, "?")
		at, _, _ = strings.Cut(at, "/")
		if a, err := netip.ParseAddr(at); err != nil || a != c.Address {
			k.Add("device", "%q cannot have the address %v of this host: want softroce:%[2]v, or softroce:%[2]v/24,tunnel=…", c.Device, c.Address)
		}
	}
}

// services checks what the daemon listens at and stores.
func (k *checker) services() {
	c := k.c
	switch {
	case c.Socket == "":
		k.Add("socket", "missing: the unix socket for applications")
	case len(c.Socket) > maxSocket:
		k.Add("socket", "%d bytes are too long for the name of a unix socket: want at most %d", len(c.Socket), maxSocket)
	}
	if c.SocketMode == 0 || c.SocketMode > 0o777 {
		k.Add("socket_mode", "%#o: want permissions, as 0660", c.SocketMode)
	}
	k.TLS(c.TLS)
	if c.Address.Is4() || k.Has("listen") { // otherwise its default is as wrong as the address
		k.Listens("listen", c.Listen, c.TLS == TLS{} && !c.Insecure, " (cmd-daemon init makes certificates)")
	}
	k.Metrics(c.Metrics, c.Listen)
	if c.State == "" {
		k.Add("state", "missing: the file that keeps what outlives the daemon")
	}
}

func (k *checker) toSwitch() {
	s := k.c.Switch
	switch {
	case s == Switch{}:
	case s.Agent == "":
		k.Add("switch.agent", "missing: where the agent of %q listens, as 192.0.2.1:9560", s.Name)
	default:
		k.Name("switch.name", s.Name, "the switch's name, as in its agent's certificate")
		k.Reaches("switch.agent", s.Agent)
	}
}

func (k *checker) hosts() {
	names := map[string]string{k.c.Name: "name"}
	addresses := map[netip.Addr]string{k.c.Address: "address"}
	for i, h := range k.c.Hosts {
		at := fmt.Sprintf("hosts[%d]", i)
		if k.Host(at+".name", h.Name, "each host has a name", h.Address) {
			switch first, taken := names[h.Name]; {
			case taken && first == "name":
				k.Add(at+".name", "%q is this host itself: list the others only", h.Name)
			case taken:
				k.Add(at+".name", "%q is taken already, in %s", h.Name, k.Position(first))
			default:
				names[h.Name] = at + ".name"
			}
		}
		if !k.Unicast(at+".address", h.Address, "the address of the host's RDMA device") {
			continue
		}
		if first, taken := addresses[h.Address]; taken {
			k.Add(at+".address", "%v is taken already, in %s", h.Address, k.Position(first))
		} else {
			addresses[h.Address] = at + ".address"
		}
		k.Reaches(at+".daemon", h.Daemon)
	}
}

func (k *checker) times() {
	b, l := k.c.Beat, k.c.Leases
	k.Between("beat.interval", b.Interval, time.Millisecond, 10*time.Second)
	k.Between("beat.dead_after", b.DeadAfter, time.Millisecond, time.Minute)
	k.Between("beat.grace", b.Grace, time.Millisecond, time.Hour)
	if b.DeadAfter < 2*b.Interval && !k.Unread("beat") {
		k.Add("beat.dead_after", "%v is less than two beats (interval: %v): one lost answer would be a death", b.DeadAfter, b.Interval)
	}
	k.Between("leases.member", l.Member, time.Second, 24*time.Hour)
	k.Between("leases.group", l.Group, time.Second, 24*time.Hour)
	for _, lease := range []struct {
		path string
		time.Duration
	}{{"leases.member", l.Member}, {"leases.group", l.Group}} {
		if lease.Duration < 3*b.Interval {
			k.Add(lease.path, "%v is less than three beats (interval: %v), by which it is renewed", lease.Duration, b.Interval)
		}
	}
}

func (k *checker) limits() {
	l := k.c.Limits
	k.Number("limits.groups", l.Groups, 1, 1<<16)
	k.Number("limits.groups_per_user", l.GroupsPerUser, 1, 1<<16)
	k.Number("limits.memberships", l.Memberships, 1, 1<<20)
	k.Number("limits.memberships_per_sender", l.PerSender, 1, 1<<20)
	k.Number("limits.receivers", l.Receivers, 1, maxReceivers)
	k.Number("limits.regions", l.Regions, 1, MaxRegions)
	if l.Memory > math.MaxInt64 {
		k.Add("limits.memory", "%d bytes: want at most %d", l.Memory, int64(math.MaxInt64))
	}
}

func (k *checker) relay() {
	r := k.c.Relay
	if names := algorithms(); r.Algorithm != "auto" && !slices.Contains(names, r.Algorithm) {
		k.Add("relay.algorithm", "%q: want auto or one of %s", r.Algorithm, strings.Join(names, ", "))
	}
	if !slices.Contains([]string{"auto", "rdma", "tcp"}, r.Transport) {
		k.Add("relay.transport", "%q: want auto, rdma or tcp", r.Transport)
	}
	if r.Block != 0 {
		k.Number("relay.block", int(r.Block), 1<<10, 1<<30)
	}
}

// algorithms are the names of those there are.
func algorithms() (names []string) {
	for a := schedule.Algorithm(0); ; a++ {
		name, err := a.MarshalText()
		if err != nil {
			return names
		}
		names = append(names, string(name))
	}
}

// Load reads the file called name. Relative names of other files in it count
// from the directory that it lies in. Errors are those of [Parse], or of
// reading.
func Load(name string) (*Config, error) {
	c, err := strictyaml.Load(name, "daemon", format, Parse, func(c *Config) []*string {
		return []*string{&c.TLS.Cert, &c.TLS.Key, &c.TLS.CA, &c.State, &c.Socket, &c.Direct}
	})
	if err == nil && len(c.Socket) > maxSocket {
		return nil, fmt.Errorf("%s: socket: %s has %d bytes, and the name of a unix socket at most %d: name one in another directory", name, c.Socket, len(c.Socket), maxSocket)
	}
	return c, err
}
