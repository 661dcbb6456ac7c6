package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/labca"
	"github.com/mcrdma/mcrdma/internal/strictyaml"
)

// A maker collects all files to write, and writes them when all are known.
type maker struct {
	dir  string
	ca   *labca.CA
	spec Spec

	files []file
	made  []string // directories, for the result
}

// A file is a file to write.
type file struct {
	name string // relative to the lab's directory
	data []byte
	mode os.FileMode
}

func (m *maker) file(name string, data []byte, mode os.FileMode) {
	m.files = append(m.files, file{name, data, mode})
	if !strings.Contains(name, "/") {
		m.made = append(m.made, name)
	}
}

// make makes what the spec has, in addition to the existing hosts.
func (m *maker) make(old []known) (*Result, error) {
	tor, err := m.check(old)
	if err != nil {
		return nil, err
	}
	for i, h := range m.spec.Hosts {
		if err := m.identity(identity.Identity{Role: identity.Host, Name: h.Name, Addrs: []netip.Addr{h.Address}}); err != nil {
			return nil, err
		}
		m.file(filepath.Join(h.Name, Configuration), m.configuration(i, tor[h.Name], old), 0o644)
	}
	for _, s := range m.spec.Switches {
		if m.hasSwitch(s.Name) {
			continue
		}
		if err := m.identity(identity.Identity{Role: identity.Switch, Name: s.Name}); err != nil {
			return nil, err
		}
	}
	for _, a := range m.spec.Admins {
		if err := m.identity(identity.Identity{Role: identity.Admin, Name: a}); err != nil {
			return nil, err
		}
	}
	if err := m.write(); err != nil {
		return nil, err
	}
	r := &Result{Made: m.made, ByHand: map[string]string{}}
	for _, c := range old {
		if err := m.introduce(c, r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// identity makes a directory with a certificate.
func (m *maker) identity(id identity.Identity) error {
	p, err := m.ca.Issue(id, m.spec.Valid)
	if err != nil {
		return err
	}
	role := id.Role.String()
	m.file(filepath.Join(id.Name, role+".crt"), p.Cert, 0o644)
	m.file(filepath.Join(id.Name, role+".key"), p.Key, 0o600)
	m.file(filepath.Join(id.Name, "ca.crt"), m.ca.Pair().Cert, 0o644)
	m.made = append(m.made, id.Name+"/")
	return nil
}

// A rack is a switch, as hosts see it.
type rack struct {
	Switch
	number int // counts from 1
}

// check finds inconsistencies, and returns the switch of each host; nil: none.
func (m *maker) check(old []known) (tor map[string]*rack, err error) {
	bad := func(format string, args ...any) {
		err = errors.Join(err, fmt.Errorf("%w: "+format, append([]any{ErrSpec}, args...)...))
	}
	names, addresses := map[string]string{}, map[netip.Addr]string{}
	take := func(name, what string) {
		if first := names[name]; first != "" {
			bad("%s %s: another %s has that name", what, name, first)
		}
		names[name] = what
	}
	for _, c := range old {
		names[c.Name], addresses[c.Address] = "host", c.Name
	}
	known := map[string]bool{}
	for _, h := range m.spec.Hosts {
		take(h.Name, "host")
		m.vacant(h.Name, bad)
		if first := addresses[h.Address]; first != "" {
			bad("host %s: %v is the address of %s", h.Name, h.Address, first)
		}
		if !strictyaml.Station(h.Address) {
			bad("host %s: %v is not the address of one station", h.Name, h.Address)
		}
		addresses[h.Address], known[h.Name] = h.Name, true
	}
	tor = map[string]*rack{}
	var rest *rack
	number := racks(old)
	for _, s := range m.spec.Switches {
		take(s.Name, "switch")
		if !m.hasSwitch(s.Name) {
			m.vacant(s.Name, bad)
		}
		r := &rack{Switch: s, number: number(s.Name)}
		if s.Hosts == nil {
			if rest != nil {
				bad("both %s and %s have no hosts named: say which are behind which", rest.Name, s.Name)
			}
			rest = r
		}
		for _, h := range s.Hosts {
			switch {
			case !known[h]:
				bad("switch %s: %q is none of the hosts that are to be made", s.Name, h)
			case tor[h] != nil:
				bad("host %s is behind both %s and %s", h, tor[h].Name, s.Name)
			default:
				tor[h] = r
			}
		}
	}
	for _, h := range m.spec.Hosts {
		if tor[h.Name] == nil {
			tor[h.Name] = rest
		}
	}
	for _, a := range m.spec.Admins {
		take(a, "administrator")
		m.vacant(a, bad)
	}
	return tor, err
}

// vacant checks that a directory can be made.
func (m *maker) vacant(name string, bad func(format string, args ...any)) {
	if _, err := os.Lstat(filepath.Join(m.dir, name)); err == nil {
		bad("%s %w; nothing is overwritten", filepath.Join(m.dir, name), ErrExists)
	}
}

// hasSwitch reports whether a switch is in the lab already; new hosts may be behind it.
func (m *maker) hasSwitch(name string) bool {
	_, err := os.Stat(filepath.Join(m.dir, name, "switch.crt"))
	return err == nil
}

// racks numbers switches; those of old hosts keep their numbers.
func racks(old []known) func(name string) int {
	numbers, last := map[string]int{}, 0
	for _, c := range old {
		if c.Switch.Name != "" && c.Rack != 0 {
			numbers[c.Switch.Name] = int(c.Rack)
			last = max(last, int(c.Rack))
		}
	}
	return func(name string) int {
		if numbers[name] == 0 {
			last++
			numbers[name] = last
		}
		return numbers[name]
	}
}

// configuration returns the configuration of the spec's i-th host. All other fields have defaults.
func (m *maker) configuration(i int, tor *rack, old []known) []byte {
	h := m.spec.Hosts[i]
	var b strings.Builder
	fmt.Fprintf(&b, `# The daemon of host %s. Names of files count from this one. All that may be said here:
# "cmd-daemon init --reference", or "man cmd-daemon.yaml" with the package.

name: %s
address: %v   # of the RDMA device: one of this host's own
device: softroce:%v   # or, on real hardware, as ibverbs:mlx5_0
`, h.Name, strictyaml.Scalar(h.Name), h.Address, h.Address)
	if tor != nil {
		fmt.Fprintf(&b, "rack: %d\n", tor.number)
	}
	if m.spec.Here {
		b.WriteString("\nsocket: daemon.sock   # for applications: MCRDMA_SOCKET\nstate: daemon.db\n")
	} else {
		b.WriteString("\nsocket: /run/mcrdma/daemon.sock   # for applications\nstate: /var/lib/mcrdma/daemon.db\n")
	}
	b.WriteString("tls: {cert: host.crt, key: host.key, ca: ca.crt}\n\n")
	if tor != nil {
		fmt.Fprintf(&b, "switch: {name: %s, agent: %q}\n", strictyaml.Scalar(tor.Name), tor.Agent)
	} else {
		b.WriteString("# switch: {name: torA, agent: \"192.0.2.1:9560\"}   # without a switch, hosts relay\n")
	}
	b.WriteString("\nhosts:   # the others\n")
	for _, c := range old {
		fmt.Fprintf(&b, "  - {name: %s, address: %v, daemon: %q}\n", strictyaml.Scalar(c.Name), c.Address, c.Listen)
	}
	for j, other := range m.spec.Hosts {
		if i != j {
			b.WriteString(hostLine(other))
		}
	}
	return []byte(b.String())
}

func hostLine(h Host) string {
	return fmt.Sprintf("  - {name: %s, address: %v}\n", strictyaml.Scalar(h.Name), h.Address)
}

// introduce adds the new hosts to the configuration of an old one. If users have changed it so that
// lines at its end have another meaning, they must add the hosts themselves.
func (m *maker) introduce(old known, r *Result) error {
	if len(m.spec.Hosts) == 0 {
		return nil
	}
	var lines strings.Builder
	want := *old.Config
	want.Hosts = slices.Clone(old.Hosts)
	for _, h := range m.spec.Hosts {
		lines.WriteString(hostLine(h))
		want.Hosts = append(want.Hosts, config.Host{Name: h.Name, Address: h.Address})
	}
	want.SetDefaults()
	path := filepath.Join(m.dir, old.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := len(text); n > 0 && text[n-1] != '\n' {
		text = append(text, '\n')
	}
	text = append(text, lines.String()...)
	try := path + ".new" // in the same directory, so that relative names mean the same
	if err := renameio.WriteFile(try, text, 0o644); err != nil {
		return err
	}
	got, err := config.Load(try)
	if err != nil || !reflect.DeepEqual(got, &want) {
		r.ByHand[old.file] = lines.String()
		return os.Remove(try)
	}
	r.Changed = append(r.Changed, old.file)
	return os.Rename(try, path)
}

// write makes all files, or none.
func (m *maker) write() (failed error) {
	var made []string
	defer func() {
		if failed == nil {
			return
		}
		for _, name := range slices.Backward(made) {
			_ = os.Remove(name) // a directory that others use meanwhile stays
		}
	}()
	for _, f := range m.files {
		path := filepath.Join(m.dir, f.name)
		dirs, err := mkdirs(filepath.Dir(path))
		made = append(made, dirs...)
		if err != nil {
			return err
		}
		w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s %w; nothing is overwritten", path, ErrExists)
		}
		if err != nil {
			return err
		}
		made = append(made, path)
		_, err = w.Write(f.data)
		if err = errors.Join(err, w.Close()); err != nil {
			return err
		}
	}
	return nil
}

// mkdirs makes a directory and its parents, and returns the new ones.
func mkdirs(d string) (made []string, err error) {
	err = os.Mkdir(d, 0o755)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(d) != d {
		if made, err = mkdirs(filepath.Dir(d)); err == nil {
			err = os.Mkdir(d, 0o755)
		}
	}
	switch {
	case err == nil:
		return append(made, d), nil
	case errors.Is(err, fs.ErrExist):
		return made, nil // if it is not a directory, the next step fails
	}
	return made, err
}
