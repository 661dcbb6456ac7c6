// Package lab makes the files of a small lab: a CA, certificates, and a configuration for each
// host's daemon, in one directory.
//
//	DIR/ca.crt, ca.key               the CA
//	DIR/NAME/daemon.yaml             a host's configuration
//	DIR/NAME/host.crt, .key, ca.crt  and its certificate
//	DIR/NAME/switch.crt, …           a switch's, for its agent
//	DIR/NAME/admin.crt, …            an administrator's, for switchctl
//
// It only makes files; internal/lab runs programs.
//
// Nothing existing is overwritten, except by Renew. If a lab cannot be made completely, nothing new
// is left behind.
package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/labca"
	"github.com/mcrdma/mcrdma/internal/strictyaml"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// Errors that those of this package wrap.
var (
	ErrExists = errors.New("exists already")   // what should be made exists
	ErrNone   = errors.New("there is no lab")  // what should be extended does not exist
	ErrSpec   = errors.New("impossible names") // the parts do not fit together
)

// Configuration is the name of a host's configuration, in its directory.
const Configuration = "daemon.yaml"

// caValid is how long a CA is valid.
const caValid = 10 * 365 * 24 * time.Hour

// A Host is a host to add.
type Host struct {
	Name    string
	Address netip.Addr
}

// A Switch is a switch whose agent gets a certificate.
type Switch struct {
	Name  string
	Agent string   // "host:port"
	Hosts []string // behind it; nil: all that are behind no other switch
}

// A Spec says what to make.
type Spec struct {
	Hosts    []Host
	Switches []Switch
	Admins   []string
	// Valid is how long certificates are valid.
	Valid time.Duration
	// Here places sockets and state files within the directory, for daemons that all run on this
	// machine.
	Here bool
}

// ParseHost reads NAME=ADDRESS.
func ParseHost(s string) (Host, error) {
	name, address, _ := strings.Cut(s, "=")
	a, err := netip.ParseAddr(address)
	if err != nil || !a.Is4() || !strictyaml.GoodName(name) {
		return Host{}, fmt.Errorf("%q is not NAME=ADDRESS, such as h1=10.1.0.11", s)
	}
	if other, err := netip.ParseAddr(name); err == nil && other != a {
		return Host{}, fmt.Errorf("%q: the name is an IP address, and not the host's own", s)
	}
	return Host{name, a}, nil
}

// ParseSwitch reads NAME=HOST:PORT[,HOST…].
func ParseSwitch(s string) (Switch, error) {
	name, rest, _ := strings.Cut(s, "=")
	agent, hosts, some := strings.Cut(rest, ",")
	host, port, err := net.SplitHostPort(agent)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || host == "" || !strictyaml.GoodName(name) {
		return Switch{}, fmt.Errorf("%q is not NAME=HOST:PORT[,HOST…], such as torA=192.0.2.1:9560 or torA=192.0.2.1:9560,h1,h2", s)
	}
	w := Switch{Name: name, Agent: agent}
	if some {
		w.Hosts = strings.Split(hosts, ",")
	}
	return w, nil
}

// Topology adds the hosts and switches of a topology. Agents listen at their switches' addresses,
// or at loopback ports if everything is on this machine, unless the spec already names the switch,
// with its agent.
func (s *Spec) Topology(t *topology.Topology, here bool) error {
	for _, n := range t.Nodes() {
		i := slices.IndexFunc(s.Switches, func(w Switch) bool { return w.Name == n.Name })
		switch {
		case !n.Address.Is4() && (n.Switch == nil || i < 0):
			return fmt.Errorf("%w: %s has no IPv4 address in the topology", ErrSpec, n.Name)
		case n.Switch == nil:
			s.Hosts = append(s.Hosts, Host{n.Name, n.Address})
			continue
		case i < 0:
			i = len(s.Switches)
			at := netip.AddrPortFrom(n.Address, agentPort)
			if here {
				at, _ = n.Local()
			}
			s.Switches = append(s.Switches, Switch{Name: n.Name, Agent: at.String()})
		}
		if w := &s.Switches[i]; w.Hosts == nil {
			w.Hosts = []string{}
			for _, p := range n.Ports {
				if p.To.Switch == nil {
					w.Hosts = append(w.Hosts, p.To.Name)
				}
			}
		}
	}
	return nil
}

// agentPort is where agents listen by default.
const agentPort = 9560

// ParseAdmin reads a name.
func ParseAdmin(s string) (string, error) {
	if !strictyaml.GoodName(s) {
		return "", fmt.Errorf("%q is not a name: want up to 63 letters, digits, dots, dashes and underscores, a letter or digit first", s)
	}
	return s, nil
}

// A Result is the list of what was made.
type Result struct {
	Made []string // directories and files, relative to the lab's directory
	// Changed are the configurations to which new hosts were added.
	Changed []string
	// ByHand are the configurations to which new hosts could not be added, with the missing lines.
	ByHand map[string]string
}

// Create makes a lab in a new or empty directory.
func Create(dir string, spec Spec) (*Result, error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("%s %w; add to it (--add), or name another directory", dir, ErrExists)
	}
	ca, err := labca.New("mcrdma lab", caValid)
	if err != nil {
		return nil, err
	}
	m := maker{dir: dir, ca: ca, spec: spec}
	m.file("ca.crt", ca.Pair().Cert, 0o644)
	m.file("ca.key", ca.Pair().Key, 0o600)
	return m.make(nil)
}

// Add adds to a lab, and adds the new hosts to the configurations of the old ones.
func Add(dir string, spec Spec) (*Result, error) {
	ca, err := loadCA(dir)
	if err != nil {
		return nil, err
	}
	old, err := hosts(dir)
	if err != nil {
		return nil, err
	}
	m := maker{dir: dir, ca: ca, spec: spec}
	return m.make(old)
}

// Renew replaces all certificates of a lab by new ones with the same identities and new keys, and
// returns the directories. Daemons load them by themselves.
func Renew(dir string, valid time.Duration) (renewed []string, err error) {
	ca, err := loadCA(dir)
	if err != nil {
		return nil, err
	}
	for _, role := range roles {
		certs, err := filepath.Glob(filepath.Join(dir, "*", role+".crt"))
		if err != nil {
			return renewed, err
		}
		for _, cert := range certs {
			at := filepath.Dir(cert)
			own, _, err := filesIn(at, role).Read()
			if err != nil {
				return renewed, err
			}
			p, err := ca.Issue(own, valid)
			if err != nil {
				return renewed, err
			}
			// A process that reads one of them too early finds that they do not match, and reads
			// both again at the next connection.
			if err := errors.Join(renameio.WriteFile(filepath.Join(at, role+".key"), p.Key, 0o600), renameio.WriteFile(cert, p.Cert, 0o644)); err != nil {
				return renewed, err
			}
			renewed = append(renewed, filepath.Base(at))
		}
	}
	slices.Sort(renewed)
	return slices.Compact(renewed), nil
}

var roles = []string{"host", "switch", "admin"}

func filesIn(dir, role string) identity.Files {
	return identity.Files{Cert: filepath.Join(dir, role+".crt"), Key: filepath.Join(dir, role+".key"), CA: filepath.Join(dir, "ca.crt")}
}

func loadCA(dir string) (*labca.CA, error) {
	cert, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s: it has no ca.crt; make one without --add or --renew", ErrNone, dir)
	}
	key, errKey := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err := errors.Join(err, errKey); err != nil {
		return nil, err
	}
	return labca.Load(labca.Pair{Cert: cert, Key: key})
}

// A known host is a host of an existing lab.
type known struct {
	*config.Config
	file string // its configuration, relative to the lab's directory
}

// hosts returns the hosts of a lab, sorted by directory.
func hosts(dir string) (list []known, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*", Configuration))
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		c, err := config.Load(n)
		if err != nil {
			return nil, fmt.Errorf("a host of the lab: %w", err)
		}
		list = append(list, known{c, filepath.Join(filepath.Base(filepath.Dir(n)), Configuration)})
	}
	return list, nil
}
