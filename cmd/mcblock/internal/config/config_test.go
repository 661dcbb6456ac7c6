package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/internal/strictyaml"
)

var exact = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func member(name, address string) Member {
	return Member{name, netip.MustParseAddr(address), address + ":2380", address + ":2379"}
}

func TestReference(t *testing.T) {
	want := &Config{
		Name: "h1", ID: 1, Address: netip.MustParseAddr("10.1.0.11"), Data: "/var/lib/mcblock",
		Listen: "10.1.0.11:9570", NBD: "127.0.0.1:10809", Socket: "/run/mcrdma/daemon.sock",
		TLS: TLS{"/etc/mcrdma/host.crt", "/etc/mcrdma/host.key", "/etc/mcrdma/ca.crt", "/etc/mcrdma/ca.crt"}, Metrics: "127.0.0.1:9572",
		Etcd: Etcd{Members: []Member{member("h1", "10.1.0.11"), member("h2", "10.1.0.12"), member("h3", "10.2.0.11")}, Election: DefaultElection},
	}
	c, err := Load("reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, c, exact); d != "" {
		t.Error(d)
	}
	if c.Member() == nil || c.Member().Client != "10.1.0.11:2379" || !slices.Equal(c.EtcdClients(), []string{"10.1.0.11:2379", "10.1.0.12:2379", "10.2.0.11:2379"}) {
		t.Errorf("%+v, %v", c.Member(), c.EtcdClients())
	}
}

// The reference has every field.
func TestReferenceIsFull(t *testing.T) {
	var walk func(of reflect.Type)
	walk = func(of reflect.Type) {
		for of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || of.PkgPath() != reflect.TypeFor[Config]().PkgPath() {
			return
		}
		for i := range of.NumField() {
			tag := of.Field(i).Tag.Get("yaml")
			if !regexp.MustCompile(`(?m)^[ #-]*`+tag+`: `).MatchString(Reference) && !regexp.MustCompile(`(?m)^ *`+tag+`:`).MatchString(Reference) {
				t.Errorf("%s is not in the reference", tag)
			}
			walk(of.Field(i).Type)
		}
	}
	walk(reflect.TypeFor[Config]())
}

// The defaults in the reference are the defaults: without their lines nothing changes.
func TestDefaults(t *testing.T) {
	want, err := Parse([]byte(Reference), "")
	if err != nil {
		t.Fatal(err)
	}
	lines, n := strings.Split(Reference, "\n"), 0
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
	if n != 9 {
		t.Errorf("%d defaults found", n)
	}
}

func TestLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "b.yaml")
	if _, err := Load(name); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	text := "name: h\nid: 4\naddress: 127.0.0.5\ndata: d\nsocket: s\ntls: {cert: c, key: /k, ca: ca, clients: nbd}\netcd: {endpoints: [\"192.0.2.1:2379\"]}\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(name)
	if c.Data != dir+"/d" || c.Socket != dir+"/s" || c.TLS != (TLS{dir + "/c", "/k", dir + "/ca", dir + "/nbd"}) || c.Member() != nil || !slices.Equal(c.EtcdClients(), []string{"192.0.2.1:2379"}) {
		t.Errorf("%+v", c)
	}
}

var topLevel = regexp.MustCompile(`(?m)^(\w+):`)

const base = `name: h1
id: 1
address: 127.0.0.1
etcd: {members: [{name: h1, address: 127.0.0.1}]}
`

// The scripts: "parse" parses a file as it is; "with" parses a valid file with the given sections
// in front.
func TestFaults(t *testing.T) {
	datadriven.RunTest(t, "testdata/faults.txt", func(t *testing.T, d *datadriven.TestData) string {
		text := d.Input
		if d.Cmd == "with" {
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
		}
		if _, err := Parse([]byte(text), "f.yaml"); err != nil {
			return err.Error()
		}
		return "ok"
	})
}

// FuzzParse: any file is refused with its errors or makes a configuration.
func FuzzParse(f *testing.F) {
	f.Add([]byte(Reference))
	f.Add([]byte(base))
	f.Add([]byte("etcd: {members: [{}], join: true}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, "f.yaml")
		if fault, ok := errors.AsType[*strictyaml.Error](err); err != nil && (!ok || fault == nil) {
			t.Errorf("%v", err)
		}
		if err == nil && len(c.EtcdClients()) == 0 {
			t.Errorf("%+v", c)
		}
	})
}
