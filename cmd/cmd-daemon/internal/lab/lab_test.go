package lab

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/topology"
)

var addr = netip.MustParseAddr

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// racked is a lab with two racks.
func racked() Spec {
	return Spec{
		Hosts:    []Host{{"h1", addr("10.1.0.11")}, {"h2", addr("10.1.0.12")}, {"h3", addr("10.2.0.11")}},
		Switches: []Switch{{Name: "torA", Agent: "192.0.2.1:9560"}, {Name: "torB", Agent: "192.0.2.2:9560", Hosts: []string{"h3"}}},
		Admins:   []string{"me"}, Valid: time.Hour,
	}
}

// tree returns the files of a lab, with their modes.
func tree(t testing.TB, dir string) (list []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		list = append(list, strings.TrimPrefix(path, dir+"/")+" "+i.Mode().String())
		return err
	}))
	return list
}

// TestCreate: everything exists, only their owners can read keys, each configuration is valid, and
// each certificate has the right identity.
func TestCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "lab")
	r, err := Create(dir, racked())
	must(t, err)
	if d := cmp.Diff([]string{"ca.crt", "ca.key", "h1/", "h2/", "h3/", "torA/", "torB/", "me/"}, r.Made); d != "" {
		t.Error(d)
	}
	want := []string{"ca.crt -rw-r--r--", "ca.key -rw-------"}
	for _, h := range []string{"h1", "h2", "h3"} {
		want = append(want, h+"/ca.crt -rw-r--r--", h+"/daemon.yaml -rw-r--r--", h+"/host.crt -rw-r--r--", h+"/host.key -rw-------")
	}
	want = append(want, "me/admin.crt -rw-r--r--", "me/admin.key -rw-------", "me/ca.crt -rw-r--r--")
	for _, s := range []string{"torA", "torB"} {
		want = append(want, s+"/ca.crt -rw-r--r--", s+"/switch.crt -rw-r--r--", s+"/switch.key -rw-------")
	}
	if d := cmp.Diff(want, tree(t, dir)); d != "" {
		t.Error(d)
	}
	for i, h := range racked().Hosts {
		c, err := config.Load(filepath.Join(dir, h.Name, Configuration))
		must(t, err)
		own, _, err := (identity.Files{Cert: c.TLS.Cert, Key: c.TLS.Key, CA: c.TLS.CA}).Read()
		must(t, err)
		if own.String() != "host:"+h.Name+" "+h.Address.String() || c.Name != h.Name || c.Address != h.Address || len(c.Hosts) != 2 ||
			c.Switch.Name != []string{"torA", "torA", "torB"}[i] || c.Rack != []uint32{1, 1, 2}[i] || c.Socket != config.DefaultSocket {
			t.Errorf("%v %+v", own, c)
		}
	}
	for who, role := range map[string]string{"torA": "switch", "me": "admin"} {
		own, _, err := filesIn(filepath.Join(dir, who), role).Read()
		if err != nil || own.String() != role+":"+who {
			t.Errorf("%v, %v", own, err)
		}
	}
	if _, err := Create(dir, racked()); !errors.Is(err, ErrExists) {
		t.Errorf("again: %v", err)
	}
}

// TestAdd: new hosts know the old ones, and old configurations get the new ones unless users have
// changed them so that this is impossible.
func TestAdd(t *testing.T) {
	dir := t.TempDir()
	_, err := Create(dir, racked())
	must(t, err)
	changed := filepath.Join(dir, "h2", Configuration)
	text, err := os.ReadFile(changed)
	must(t, err)
	must(t, os.WriteFile(changed, append(text, "beat: {interval: 50ms}\n"...), 0o644))
	// The lines would become part of the last field without an error.
	tricky := filepath.Join(dir, "h3", Configuration)
	text, err = os.ReadFile(tricky)
	must(t, err)
	must(t, os.WriteFile(tricky, append([]byte(strings.Replace(string(text), "state:", "# state:", 1)), "state: |\n  d.db\n"...), 0o644))
	r, err := Add(dir, Spec{Hosts: []Host{{"h4", addr("10.2.0.12")}}, Switches: []Switch{{"torB", "192.0.2.2:9560", []string{"h4"}}}, Valid: time.Hour})
	must(t, err)
	want := &Result{Made: []string{"h4/"}, Changed: []string{"h1/daemon.yaml"},
		ByHand: map[string]string{"h2/daemon.yaml": hostLine(Host{"h4", addr("10.2.0.12")}), "h3/daemon.yaml": hostLine(Host{"h4", addr("10.2.0.12")})}}
	if d := cmp.Diff(want, r); d != "" {
		t.Error(d)
	}
	for name, others := range map[string]int{"h1": 3, "h2": 2, "h3": 2, "h4": 3} {
		c, err := config.Load(filepath.Join(dir, name, Configuration))
		must(t, err)
		if len(c.Hosts) != others || name == "h4" && (c.Rack != 2 || c.Switch.Name != "torB" || c.Hosts[0].Daemon != "10.1.0.11:9550") {
			t.Errorf("%+v", c)
		}
	}
	if l := tree(t, dir); slices.ContainsFunc(l, func(s string) bool { return strings.Contains(s, ".new") || strings.Contains(s, "/.") }) {
		t.Errorf("%q", l)
	}
	r, err = Add(dir, Spec{Admins: []string{"you"}, Valid: time.Hour})
	if err != nil || len(r.Made) != 1 || len(r.Changed) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestNothingLeft: a lab that cannot be made completely leaves nothing behind, and nothing is
// overwritten.
func TestNothingLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	one := func(edit func(*Spec)) Spec { s := racked(); edit(&s); return s }
	for want, s := range map[string]Spec{
		"host h1: another host has that name":                  one(func(s *Spec) { s.Hosts[1].Name = "h1" }),
		"host h2: 10.1.0.11 is the address of h1":              one(func(s *Spec) { s.Hosts[1].Address = s.Hosts[0].Address }),
		"host h2: 224.0.0.1 is not the address of one station": one(func(s *Spec) { s.Hosts[1].Address = addr("224.0.0.1") }),
		"host h2: 0.0.0.0 is not the address of one":           one(func(s *Spec) { s.Hosts[1].Address = addr("0.0.0.0") }),
		"switch h1: another host has that name":                one(func(s *Spec) { s.Switches[0].Name = "h1" }),
		"administrator torA: another switch has that name":     one(func(s *Spec) { s.Admins = []string{"torA"} }),
		"both torA and torB have no hosts named":               one(func(s *Spec) { s.Switches[1].Hosts = nil }),
		`switch torB: "h9" is none of the hosts`:               one(func(s *Spec) { s.Switches[1].Hosts = []string{"h9"} }),
		"host h3 is behind both torA and torB":                 one(func(s *Spec) { s.Switches[0].Hosts = []string{"h3"} }),
		"host h1: another host has that name\nimpossible na":   one(func(s *Spec) { s.Hosts[1].Name = "h1"; s.Admins = []string{"torA"} }),
	} {
		_, err := Create(dir, s)
		if !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: something was made: %v", want, err)
		}
	}
	if _, err := Add(dir, racked()); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	if _, err := Renew(dir, time.Hour); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	_, err := Create(dir, racked())
	must(t, err)
	before := tree(t, dir)
	for want, s := range map[string]Spec{
		"host h1: another host has that name":      {Hosts: []Host{{"h1", addr("10.9.0.1")}}},
		"host new: 10.1.0.12 is the address of h2": {Hosts: []Host{{"new", addr("10.1.0.12")}}},
		"me exists already":                        {Admins: []string{"me"}},
		"torA exists already":                      {Hosts: []Host{{"torA", addr("10.9.0.1")}}},
	} {
		if _, err := Add(dir, s); !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	foreign := t.TempDir()
	must(t, os.WriteFile(filepath.Join(foreign, "letter.txt"), nil, 0o600))
	if _, err := Create(foreign, racked()); !errors.Is(err, ErrExists) || len(tree(t, foreign)) != 1 {
		t.Errorf("in a directory with something else: %v", err)
	}
	// A file is in the way in the middle of writing.
	m := maker{dir: dir}
	m.file("h8/new", []byte("x"), 0o644)
	m.file("h1/host.key", []byte("x"), 0o600)
	if err := m.write(); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
	if d := cmp.Diff(before, tree(t, dir)); d != "" {
		t.Error(d)
	}
	if _, err := os.Stat(filepath.Join(dir, "h8")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory is left: %v", err)
	}
}

// TestRenew: all certificates are new, with the same identities, and match their keys.
func TestRenew(t *testing.T) {
	dir := t.TempDir()
	_, err := Create(dir, racked())
	must(t, err)
	before := map[string]time.Time{}
	for _, role := range roles {
		all, _ := filepath.Glob(filepath.Join(dir, "*", role+".crt"))
		for _, c := range all {
			_, until, err := filesIn(filepath.Dir(c), role).Read()
			must(t, err)
			before[c] = until
		}
	}
	renewed, err := Renew(dir, 24*time.Hour)
	must(t, err)
	if d := cmp.Diff([]string{"h1", "h2", "h3", "me", "torA", "torB"}, renewed); d != "" {
		t.Error(d)
	}
	for c, was := range before {
		role := strings.TrimSuffix(filepath.Base(c), ".crt")
		own, until, err := filesIn(filepath.Dir(c), role).Read()
		if err != nil || until.Sub(was) < 20*time.Hour || own.Name != filepath.Base(filepath.Dir(c)) {
			t.Errorf("%s: %v, %v, %v", c, own, until, err)
		}
	}
	if l := tree(t, dir); !slices.Contains(l, "h1/host.key -rw-------") || slices.ContainsFunc(l, func(s string) bool { return strings.Contains(s, "/.") }) {
		t.Errorf("%q", l)
	}
}

// TestNames: whatever the name of a host, its configuration has it.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	s := Spec{Valid: time.Hour, Here: true, Switches: []Switch{{Name: "NULL", Agent: "127.0.0.1:1"}}}
	for i, n := range []string{"null", "yes", "1e3", "0x10", "2026-01-01", "a.b-c_d", "True"} {
		s.Hosts = append(s.Hosts, Host{n, netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)})})
	}
	_, err := Create(dir, s)
	must(t, err)
	for _, h := range s.Hosts {
		c, err := config.Load(filepath.Join(dir, h.Name, Configuration))
		if err != nil || c.Name != h.Name || c.Switch.Name != "NULL" || c.Socket != filepath.Join(dir, h.Name, "daemon.sock") {
			t.Errorf("%s: %+v, %v", h.Name, c, err)
		}
	}
}

func TestParse(t *testing.T) {
	if h, err := ParseHost("h1=10.1.0.11"); err != nil || h != (Host{"h1", addr("10.1.0.11")}) {
		t.Errorf("%v, %v", h, err)
	}
	for _, s := range []string{"", "h1", "h1=", "=10.0.0.1", "h1=::1", "../x=10.0.0.1", "-a=10.0.0.1", "h1=10.0.0.1,x", "10.0.0.2=10.0.0.1"} {
		if _, err := ParseHost(s); err == nil {
			t.Errorf("host %q", s)
		}
	}
	for s, want := range map[string]Switch{
		"torA=192.0.2.1:9560":       {"torA", "192.0.2.1:9560", nil},
		"torA=sw.example:9560,a,b":  {"torA", "sw.example:9560", []string{"a", "b"}},
		"torA=[2001:db8::1]:9560,a": {"torA", "[2001:db8::1]:9560", []string{"a"}},
	} {
		if got, err := ParseSwitch(s); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "torA", "torA=x", "torA=x:0", "torA=x:y", "torA=:9560", "a/b=x:1"} {
		if _, err := ParseSwitch(s); err == nil {
			t.Errorf("switch %q", s)
		}
	}
	if _, err := ParseAdmin("a/b"); err == nil {
		t.Error("administrator a/b")
	}
}

// FuzzParse: an accepted name is a valid directory name, and is written as it was read.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"h1=10.1.0.11", "torA=192.0.2.1:9560,h1,h2", "a=[::1]:1", "=", "../x=1.2.3.4", "x=:,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if h, err := ParseHost(s); err == nil && (filepath.Base(h.Name) != h.Name || h.Name == ".." || !h.Address.Is4()) {
			t.Errorf("%q: %+v", s, h)
		}
		w, err := ParseSwitch(s)
		if err != nil {
			return
		}
		if back := strings.Join(append([]string{w.Name + "=" + w.Agent}, w.Hosts...), ","); back != s || filepath.Base(w.Name) != w.Name {
			t.Errorf("%q: %+v", s, w)
		}
	})
}

// TestTopology: a topology file's hosts and switches make a lab, and switches that are also given
// by flag have the agents of the flag.
func TestTopology(t *testing.T) {
	fabric, err := topology.Load("../../../../internal/lab/racks.yaml")
	must(t, err)
	s := Spec{Switches: []Switch{{Name: "torB", Agent: "192.0.2.2:9560"}}, Valid: time.Hour}
	must(t, s.Topology(fabric, false))
	without, err := topology.Parse([]byte("switches: [{name: s}]"), "x")
	must(t, err)
	if err := new(Spec).Topology(without, false); !errors.Is(err, ErrSpec) {
		t.Errorf("a switch without an address: %v", err)
	}
	want := []Switch{{"torB", "192.0.2.2:9560", []string{"h3", "h4"}}, {"torA", "10.255.0.1:9560", []string{"h1", "h2"}}, {"spine", "10.255.0.3:9560", []string{}}}
	if d := cmp.Diff(want, s.Switches); d != "" {
		t.Error(d)
	}
	var here Spec // on one machine, each agent has its own port
	must(t, here.Topology(fabric, true))
	if d := cmp.Diff([]Switch{{"torA", "127.0.0.1:9560", []string{"h1", "h2"}}, {"torB", "127.0.0.1:9570", []string{"h3", "h4"}}, {"spine", "127.0.0.1:9580", []string{}}}, here.Switches); d != "" {
		t.Error(d)
	}
	dir := t.TempDir()
	_, err = Create(dir, s)
	must(t, err)
	c, err := config.Load(filepath.Join(dir, "h4", Configuration))
	if err != nil || c.Switch.Agent != "192.0.2.2:9560" || c.Address != addr("10.2.0.12") || len(c.Hosts) != 3 {
		t.Errorf("%+v, %v", c, err)
	}
}
