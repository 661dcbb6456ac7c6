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
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
	exact  = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
)

// full is what reference.yaml says.
func full() *Config {
	return &Config{
		Name: "torA", Address: addr("10.255.0.1"), MAC: switchspec.MAC{2, 0, 0, 0, 0x0a, 0},
		Prefixes: []netip.Prefix{prefix("10.1.0.0/24")}, Gateways: []netip.Addr{addr("10.1.0.1")},
		Programmable: true, ICRC: ICRCAuto, HashSeed: 7, ECN: ECN{KMin: 20_000, KMax: 80_000, PMax: 0.1, Unit: 64},
		P4Runtime: P4Runtime{Target: "127.0.0.1:9559", ElectionID: 1},
		Listen:    "192.0.2.1:9560", Metrics: "127.0.0.1:9561",
		TLS:   TLS{Cert: "/etc/mcrdma/torA.crt", Key: "/etc/mcrdma/torA.key", CA: "/etc/mcrdma/ca.crt"},
		State: "/var/lib/mcrdma/torA.db",
		Routing: Routing{Source: BGP, Topology: "fabric.yaml",
			BGP:    Speaker{ASN: 4200000001, Listen: []netip.Addr{addr("192.0.2.1")}, Port: 179, Drain: time.Second},
			Kernel: KernelRouting{Namespace: "/run/netns/torA"}, Settle: 5 * time.Second},
		Hello:   Hello{50 * time.Millisecond, 3},
		Restart: Restart{30 * time.Second},
		Leases:  Leases{30 * time.Second, 10 * time.Minute},
		Limits:  Limits{GroupsPerSource: 256, PREGroups: 16, Receivers: 16, Packets: 1 << 21},
		Ports: []Port{
			{Port: 1, MAC: switchspec.MAC{2, 0, 0, 0, 0x0a, 0}},
			{Port: 2, MAC: switchspec.MAC{2, 0, 0, 0, 0x0a, 2}},
			{Port: 9, To: "core", Name: "swp9", MAC: switchspec.MAC{2, 0, 0, 0, 0x0a, 0}, Hello: true, Address: prefix("10.0.0.1/31")},
			{Port: 10, To: "torB", MAC: switchspec.MAC{2, 0, 0, 0, 0x0a, 0}, PeerMAC: switchspec.MAC{2, 0, 0, 0, 0x0b, 0x0a}},
		},
		Hosts: []Host{{addr("10.1.0.11"), switchspec.MAC{2, 0, 0, 0, 1, 0x0b}, 1}},
		Guard: true,
		Switches: []Switch{
			{Name: "core", Addresses: []netip.Addr{addr("10.0.0.0")},
				BGP: &Peer{Address: addr("192.0.2.10"), ASN: 4200000100, Port: 179, Local: addr("192.0.2.1"), Hold: 9 * time.Second,
					NextHop: addr("10.0.0.1")}},
			{Name: "torB", Programmable: true, Agent: "192.0.2.2:9560", Addresses: []netip.Addr{addr("10.0.0.3")}, Prefixes: []netip.Prefix{prefix("10.2.0.0/24")}},
		},
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
	n := 0
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if n++; !there[path] && path != "" {
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
	t.Logf("%d fields", n)
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
		if !regexp.MustCompile(`# default($|;| where)`).MatchString(line) {
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

func TestLoadStatic(t *testing.T) {
	c, err := Load("testdata/static.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if want := (TLS{Cert: "testdata/leaf1.crt", Key: "testdata/leaf1.key", CA: "testdata/ca.crt"}); c.TLS != want || c.State != "testdata/state/leaf1.db" || c.Routing.Topology != "testdata/fabric.yaml" {
		t.Errorf("names of files %+v, %s, %s", c.TLS, c.State, c.Routing.Topology)
	}
	if !slices.Equal(c.Gateways, []netip.Addr{addr("10.1.0.1"), addr("10.1.1.0")}) {
		t.Errorf("gateways %v", c.Gateways)
	}
	if c.Routing.Settle != 0 || c.Listen != "127.0.0.1:9560" || !c.Ports[1].Hello || c.Ports[0].Hello || c.HashSeed == 0 || c.HashSeed == seed("leaf2") {
		t.Errorf("%+v", c)
	}
}

func TestLoadKernel(t *testing.T) {
	c, err := Load("testdata/kernel.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.ICRC != ICRCOff || c.Programmable || c.Routing.Settle != 2*time.Second || c.Routing.Kernel != (KernelRouting{"/run/netns/sw1", 100}) || c.Ports[1].Hello {
		t.Errorf("%+v", c)
	}
	if c.State != "/var/lib/mcrdma/sw1.db" {
		t.Errorf("state %s", c.State)
	}
}

func TestLoadBGP(t *testing.T) {
	c, err := Load("testdata/bgp.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.Routing.Settle != 0 || len(c.Gateways) != 0 || !c.Insecure { // explicit ones
		t.Errorf("%+v", c)
	}
	if p := c.Switches[0].BGP; p.Port != 179 || p.Hold != 9*time.Second {
		t.Errorf("%+v", p)
	}
}

// A neighbor is told the address of the port to it, and watched by ARP if it sends no
// hellos and its MAC is not given.
func TestRouter(t *testing.T) {
	const text = `name: sw1
address: 10.255.0.1
mac: "02:00:00:00:00:01"
routing: {source: bgp, bgp: {asn: 65001}}
ports: [{port: 9, to: r, %s address: 10.0.0.0/31}]
switches: [{name: r, programmable: false, addresses: [10.9.0.1, 10.0.0.1], bgp: {address: 192.0.2.2, asn: 65002}}]
`
	for more, watched := range map[string]bool{"hello: false,": true, "": false, `hello: false, peer_mac: "02:00:00:00:00:02",`: false} {
		c, err := Parse(fmt.Appendf(nil, text, more), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Switches[0].BGP.NextHop; got != addr("10.0.0.0") {
			t.Errorf("%q: next hop %v", more, got)
		}
		if got := c.Router(c.Ports[0]); got.IsValid() != watched || watched && got != addr("10.0.0.1") {
			t.Errorf("%q: asked by ARP: %v", more, got)
		}
	}
}

func TestLoadNothing(t *testing.T) {
	name := filepath.Join(t.TempDir(), "agent.yaml")
	if _, err := Load(name); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(name, []byte("\nname: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(name)
	var fault *Error
	if !errors.As(err, &fault) || !strings.Contains(err.Error(), name+":2: name: ") {
		t.Error(err)
	}
	if _, err := Parse(make([]byte, strictyaml.MaxFile+1), ""); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
}

// topLevel finds the sections of a file.
var topLevel = regexp.MustCompile(`(?m)^(\w+):`)

const base = `name: sw1
address: 10.255.0.1
mac: "02:00:00:00:00:01"
prefixes: [10.1.0.0/24]
routing: {source: kernel}
ports: [{port: 1}, {port: 9, to: sw2, name: swp9}]
switches: [{name: sw2, programmable: false}]
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
	c := full()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	c.Ports[1].Port = 1
	c.Switches[1].Prefixes = append(c.Switches[1].Prefixes, netip.Prefix{}, prefix("10.1.0.128/25"), prefix("fd00::/64"))
	c.Hosts[0].Address = netip.Addr{}
	c.Address = addr("::ffff:10.255.0.1")
	c.Ports[3].MAC = switchspec.MAC{}
	err := c.Validate()
	want := `config: address: ::ffff:10.255.0.1 is not IPv4, which alone is supported
config: switches[1].prefixes[1]: missing: a prefix, as 10.1.0.0/24
config: switches[1].prefixes[3]: fd00::/64 is not IPv4, which alone is supported
config: switches[1].prefixes[2]: 10.1.0.128/25 overlaps 10.1.0.0/24, in prefixes[0]
config: ports[1].port: port 1 is there already, in ports[0].port
config: ports[3].mac: missing: the port's MAC address; the defaults are not set
config: hosts[0].address: missing: the host's address`
	if d := cmp.Diff(want, fmt.Sprint(err)); d != "" {
		t.Error(d)
	}
	want = `config: icrc: "": want auto, neutral, recompute or nic-check-off
config: name: missing: each switch has a name
config: address: missing: the router's own address
config: mac: missing: the router's MAC address
config: hello.interval: 0s: want 1ms to 1m0s
config: hello.multiplier: 0: want at least 1
config: ecn.unit: 0 bytes: want 1 to 10000
config: ecn.pmax: 0: want a probability, more than 0 and at most 1
config: leases.group: 0s: want 1s to 24h0m0s
config: leases.branch: 0s: want 1s to 24h0m0s
config: limits.groups_per_source: 0: want 1 to 1048576
config: limits.pre_groups: 0: want 1 to 65536
config: limits.receivers: 0: want 1 to 16
config: limits.packets: 0: want 16 to 2097152
config: p4runtime.target: "" is not an address with a port, as 192.0.2.1:9560
config: p4runtime.election_id: 0: want at least 1
config: listen: "" is not an address with a port, as 192.0.2.1:9560
config: state: missing: the file that keeps what outlives the agent
config: routing.source: missing: where routes come from, one of static, bgp and kernel
config: ports: missing: a switch has ports`
	if d := cmp.Diff(want, fmt.Sprint(new(Config).Validate())); d != "" {
		t.Error(d)
	}
}

// What code says about bools stays, and defaults do not change when set again.
func TestSetDefaults(t *testing.T) {
	c := Config{Name: "x", Ports: []Port{{Port: 1, To: "y"}}, Switches: []Switch{{Name: "y", BGP: &Peer{}}}, Routing: Routing{Source: BGP}}
	c.SetDefaults()
	if c.Programmable || c.Ports[0].Hello || c.Switches[0].Programmable || c.Routing.Settle != 5*time.Second || c.Switches[0].BGP.Hold != 9*time.Second {
		t.Errorf("%+v", c)
	}
	again := c
	again.SetDefaults()
	if d := cmp.Diff(c, again, exact); d != "" {
		t.Error(d)
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*.yaml", "testdata/faults.txt"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			f.Fatal(pattern, err)
		}
		for _, name := range names {
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
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, "f.yaml")
		if err == nil {
			if err := c.Validate(); err != nil {
				t.Errorf("parsed, but: %v", err)
			}
			again := *c
			if again.SetDefaults(); c.Routing.Settle != 0 && !reflect.DeepEqual(*c, again) {
				t.Error("defaults were not set")
			}
			return
		}
		list := err.(interface{ Unwrap() []error }).Unwrap()
		if len(list) > 21 {
			t.Errorf("%d faults are told", len(list))
		}
		for _, e := range list {
			var fault *Error
			if errors.As(e, &fault) && (fault.Line < 0 || fault.Line > strings.Count(string(data), "\n")+strings.Count(string(data), "\r")+2) {
				t.Errorf("%v: there is no such line", fault)
			}
		}
	})
}
