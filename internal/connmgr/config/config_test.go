package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/internal/strictyaml"
)

var (
	addr  = netip.MustParseAddr
	exact = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
)

// full is what reference.yaml says.
func full() *Config {
	return &Config{
		Name: "h1", Address: addr("10.1.0.11"), Device: "softroce:10.1.0.11", Rack: 1,
		Socket: "/run/mcrdma/daemon.sock", SocketMode: 0o660, Users: []uint32{990},
		Listen: "10.1.0.11:9550", Metrics: "127.0.0.1:9551",
		TLS:    TLS{Cert: "/etc/mcrdma/h1.crt", Key: "/etc/mcrdma/h1.key", CA: "/etc/mcrdma/ca.crt"},
		State:  "/var/lib/mcrdma/daemon.db",
		Switch: Switch{Name: "torA", Agent: "192.0.2.1:9560"}, Direct: "torA.yaml",
		Bootstrap: addr("10.1.0.11"),
		Hosts:     []Host{{"h2", addr("10.1.0.12"), "10.1.0.12:9550"}, {"h3", addr("10.2.0.11"), "192.0.2.13:9550"}},
		Beat:      Beat{80 * time.Millisecond, time.Second, 10 * time.Second},
		Leases:    Leases{30 * time.Second, 30 * time.Second},
		Limits:    Limits{Groups: 256, GroupsPerUser: 256, Memberships: 1024, PerSender: 256, Receivers: 16, Regions: 16},
		Relay:     Relay{"auto", "auto", 0},
	}
}

func TestFull(t *testing.T) {
	c, err := Load("reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(full(), c, exact); d != "" {
		t.Error(d)
	}
}

// The example has every field, and each in its own line or list.
func TestFullIsFull(t *testing.T) {
	data := []byte(Reference)
	f, _ := strictyaml.Decode(data, "", new(Config), format)
	there := map[string]bool{}
	for path := range f.Fields() {
		there[regexp.MustCompile(`\[\d+\]`).ReplaceAllString(path, "")] = true
	}
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		for of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if !there[path] && path != "" {
			t.Errorf("%s is not in the example", path)
		}
		if of.Kind() != reflect.Struct || of.PkgPath() != reflect.TypeFor[Config]().PkgPath() {
			return
		}
		for i := range of.NumField() {
			tag := of.Field(i).Tag.Get("yaml")
			if tag == "" {
				t.Fatalf("%v.%s has no name in the file", of, of.Field(i).Name)
			}
			walk(strings.TrimPrefix(path+"."+tag, "."), of.Field(i).Type)
		}
	}
	walk("", reflect.TypeFor[Config]())
}

// What the example calls a default is one: without its line nothing changes.
func TestFullDefaults(t *testing.T) {
	data := []byte(Reference)
	want, err := Parse(data, "")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	n := 0
	for i, line := range lines {
		if !regexp.MustCompile(`# default($|;)`).MatchString(line) {
			continue
		}
		n++
		got, err := Parse([]byte(strings.Join(slices.Delete(slices.Clone(lines), i, i+1), "\n")), "")
		if err != nil {
			t.Errorf("without %q: %v", line, err)
		} else if d := cmp.Diff(want, got, exact); d != "" {
			t.Errorf("without %q:\n%s", line, d)
		}
	}
	if n < 15 {
		t.Errorf("only %d defaults found", n)
	}
}

func TestLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "h.yaml")
	if _, err := Load(name); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("\nname: {}\n")
	_, err := Load(name)
	var fault *Error
	if !errors.As(err, &fault) || !strings.Contains(err.Error(), name+":2: name: ") {
		t.Error(err)
	}
	write("name: h\naddress: 127.0.0.5\nsocket: run/d.sock\nstate: d.db\ntls: {cert: c, key: /k, ca: ca}\n")
	c, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(name)
	if c.Socket != dir+"/run/d.sock" || c.State != dir+"/d.db" || c.TLS != (TLS{Cert: dir + "/c", Key: "/k", CA: dir + "/ca"}) || c.Direct != "" ||
		c.Listen != "127.0.0.5:9550" || c.Device != "softroce:127.0.0.5" || c.Bootstrap != c.Address {
		t.Errorf("%+v", c)
	}
}

// topLevel finds the sections of a file.
var topLevel = regexp.MustCompile(`(?m)^(\w+):`)

const base = `name: h1
address: 127.0.0.1
`

// The scripts: "parse" reads a file as it is; "with" a file that is right but
// for the given sections, which come first.
func TestFaults(t *testing.T) {
	datadriven.RunTest(t, "testdata/faults.txt", func(t *testing.T, d *datadriven.TestData) string {
		text := d.Input
		switch d.Cmd {
		case "parse":
		case "with":
			var have []string
			for _, m := range topLevel.FindAllStringSubmatch(text, -1) {
				have = append(have, m[1])
			}
			text += "\n"
			for line := range strings.Lines(base) {
				if key, _, _ := strings.Cut(line, ":"); !slices.Contains(have, key) {
					text += line
				}
			}
		default:
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
		}
		if _, err := Parse([]byte(text), "f.yaml"); err != nil {
			return err.Error()
		}
		return "ok"
	})
}

func TestValidate(t *testing.T) {
	if err := full().Validate(); err != nil {
		t.Fatal(err)
	}
	want := `config: name: missing: the host's name, as in its certificate
config: address: missing: the address of the host's RDMA device
config: socket: missing: the unix socket for applications
config: socket_mode: 0: want permissions, as 0660
config: state: missing: the file that keeps what outlives the daemon
config: beat.interval: 0s: want 1ms to 10s
config: beat.dead_after: 0s: want 1ms to 1m0s
config: beat.grace: 0s: want 1ms to 1h0m0s
config: leases.member: 0s: want 1s to 24h0m0s
config: leases.group: 0s: want 1s to 24h0m0s
config: limits.groups: 0: want 1 to 65536
config: limits.groups_per_user: 0: want 1 to 65536
config: limits.memberships: 0: want 1 to 1048576
config: limits.memberships_per_sender: 0: want 1 to 1048576
config: limits.receivers: 0: want 1 to 16
config: limits.regions: 0: want 1 to 16
config: relay.algorithm: "": want auto or one of binomial-pipeline, sequential, chain, binomial-tree, hybrid
config: relay.transport: "": want auto, rdma or tcp`
	if d := cmp.Diff(want, fmt.Sprint(new(Config).Validate())); d != "" {
		t.Error(d)
	}
}

// Defaults do not change when set again.
func TestSetDefaults(t *testing.T) {
	c := Config{Name: "x", Address: addr("10.0.0.1"), Hosts: []Host{{Name: "y", Address: addr("10.0.0.2")}}, Limits: Limits{Groups: 5}}
	c.SetDefaults()
	if c.Limits.GroupsPerUser != 5 || c.Hosts[0].Daemon != "10.0.0.2:9550" {
		t.Errorf("%+v", c)
	}
	again := c
	again.SetDefaults()
	if d := cmp.Diff(c, again, exact); d != "" {
		t.Error(d)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"reference.yaml", "testdata/faults.txt"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if filepath.Ext(name) == ".yaml" {
			f.Add(data)
			continue
		}
		for _, part := range strings.Split(string(data), "\n\n") {
			_, text, _ := strings.Cut(part, "\n")
			text, _, _ = strings.Cut(text, "----")
			f.Add([]byte(text + base))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, "f.yaml")
		if err == nil {
			if err := c.Validate(); err != nil {
				t.Errorf("parsed, but: %v", err)
			}
			again := *c
			if again.SetDefaults(); !reflect.DeepEqual(*c, again) {
				t.Error("defaults were not set")
			}
			return
		}
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			var fault *Error
			if errors.As(e, &fault) && (fault.Line < 0 || fault.Line > strings.Count(string(data), "\n")+strings.Count(string(data), "\r")+2) {
				t.Errorf("%v: there is no such line", fault)
			}
		}
	})
}
