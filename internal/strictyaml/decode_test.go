package strictyaml

import (
	"errors"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

type color int

type sample struct {
	Name    string         `yaml:"name"`
	On      bool           `yaml:"on" absent:"true"`
	Mode    bool           `yaml:"mode" words:"slow,fast"`
	Count   int            `yaml:"count"`
	Port    uint16         `yaml:"port"`
	Share   float64        `yaml:"share"`
	Address netip.Addr     `yaml:"address"`
	Prefix  []netip.Prefix `yaml:"prefix"`
	Wait    time.Duration  `yaml:"wait"`
	Color   color          `yaml:"color"`
	Inner   *sample        `yaml:"inner"`
}

var sampleFormat = Format{MaxBytes: 1000, Example: "name: x", Types: []Type{Leaf("red", func(s string) (color, error) {
	if s != "red" {
		return 0, errors.New("no")
	}
	return 7, nil
})}}

// TestFIFO: a FIFO that no process writes to does not block.
func TestFIFO(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := ReadFile(fifo, sampleFormat); err != nil || len(b) != 0 {
		t.Errorf("%q, %v", b, err)
	}
}

func TestDecode(t *testing.T) {
	var got sample
	f, ok := Decode([]byte(`
name: a
mode: fast
count: -0x10
port: 65535
share: 0.5
address: 10.0.0.1
prefix: [10.0.0.0/8]
wait: 5s
color: red
inner: {on: false, name: ~}
`), "f", &got, sampleFormat)
	want := sample{"a", true, true, -16, 65535, 0.5, netip.MustParseAddr("10.0.0.1"), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, 5 * time.Second, 7, &sample{}}
	if !ok || f.Err() != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, %+v", ok, f.Err(), got)
	}
	if !f.Has("inner.on") || f.Has("inner.name") || f.Line("inner.nothing[3]") != 11 || f.Position("wait") != "line 9" || f.Position("gone") != "gone" {
		t.Errorf("%+v", f)
	}
}

func TestFaults(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "",
		"name: [":                            "f:1: did not find expected node content",
		"name: a: b":                         "f:1: mapping values are not allowed in this context",
		"name: a\ncount: [1\nport: 3\n":      "f:2: did not find expected ',' or ']'",
		"name: a\nprefix:\n  - a\n - b\n":    "f:4: did not find expected key",
		"name: a\ncount: 3\n port: 4\n":      "f:3: mapping values are not allowed in this context",
		"# c\nname: \"a\" b\n":               "f:2: did not find expected key",
		"\n\nname: {a: b, c\n\n":             "f:3: did not find expected ',' or '}'",
		"name: a\nmode: @x\n":                "f:2: found character that cannot start any token",
		"prefix:\n\t- a\n":                   "f:2: a tab: want spaces at the beginning of a line",
		"name: a\nmode: \x01":                "f:2: control characters are not allowed",
		"name: a\nmode: \xff":                "f:2: invalid leading UTF-8 octet",
		"x":                                  `f:1: "x" is not a configuration: want fields, as name: x`,
		"name: a\n---\nname: b":              `f: more than one document: want a single one, without a second "---"`,
		strings.Repeat("#", 1001):            "f: more than 1000 bytes",
		"name: a\nname: b":                   "f:2: name: is there already, in line 1",
		"nam: a":                             "f:1: nam: unknown field: known are name, on, mode, count, port, share, address, prefix, wait, color, inner",
		"mode: quick":                        `f:1: mode: "quick" is not slow or fast`,
		"on: 1":                              `f:1: on: "1" is not true or false`,
		"count: 1.5":                         `f:1: count: "1.5" is not a whole number`,
		"port: 65536":                        `f:1: port: "65536" is not a whole number from 0 to 65535`,
		"share: x":                           `f:1: share: "x" is not a number, as 0.1`,
		"address: {}":                        "f:1: address: {…} is not an address, as 10.1.0.7",
		"prefix: 10.0.0.0/8":                 `f:1: prefix: want a list, as ["10.0.0.0/8"]`,
		"prefix: [~]":                        "f:1: prefix[0]: empty",
		"prefix: ['']":                       "f:1: prefix[0]: empty",
		"wait: 5":                            `f:1: wait: "5" is not a time with its unit, as 50ms or 5s`,
		"color: blue":                        `f:1: color: "blue" is not red`,
		"inner: 3":                           "f:1: inner: want fields: name, on, mode, count, port, share, address, prefix, wait, color, inner",
		"count: " + strings.Repeat("é", 100): `f:1: count: "` + strings.Repeat("é", 60) + `"… is not a whole number`,
		"name: &a b\ninner: {name: *a}":      "f:2: inner.name: aliases are not supported: write *a out",
	} {
		f, _ := Decode([]byte(in), "f", &sample{}, sampleFormat)
		err := f.Err()
		if got := errorText(err); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestChecks: what cannot be decoded is not judged too, faults are told in the order of
// the file, and not more of them than people read.
func TestChecks(t *testing.T) {
	var s sample
	f, _ := Decode([]byte("name: '-x'\nwait: x\naddress: 224.0.0.1\nport: 8\n"), "f", &s, sampleFormat)
	f.Number("port", int(s.Port), 1, 7)
	f.Between("wait", s.Wait, time.Second, time.Minute)
	f.Name("name", s.Name, "a name")
	f.Unicast("address", s.Address, "the address")
	f.HostPort("inner.nothing", "x:y")
	for _, at := range []string{"192.0.2.1:9560", "torA:9560", "192.0.2.1:0", ":9560", "0.0.0.0:9560", "[::]:9560"} {
		f.Reaches("inner.port", at)
	}
	want := `f: inner.nothing: "x:y" is not an address with a port, as 192.0.2.1:9560
f: inner.port: 192.0.2.1:0 is not an address to connect to, as 192.0.2.1:9560
f: inner.port: :9560 is not an address to connect to, as 192.0.2.1:9560
f: inner.port: 0.0.0.0:9560 is not an address to connect to, as 192.0.2.1:9560
f: inner.port: [::]:9560 is not an address to connect to, as 192.0.2.1:9560
f:1: name: "-x": want up to 63 letters, digits, dots, dashes and underscores, a letter or digit first
f:2: wait: "x" is not a time with its unit, as 50ms or 5s
f:3: address: 224.0.0.1 is not the address of one station
f:4: port: 8: want 1 to 7`
	if got := errorText(f.Err()); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	none := &Faults{}
	if none.Err() != nil || none.Line("x") != 0 {
		t.Error("faults in nothing")
	}
	for range 25 {
		none.Name("x", "", "it has one")
	}
	if lines := strings.Split(errorText(none.Err()), "\n"); len(lines) != 21 || lines[0] != "config: x: missing: it has one" || lines[20] != "and 5 more" {
		t.Errorf("%q", lines)
	}
	if _, ok := none.HostPort("x", "192.0.2.1:80"); !ok || !Loopback("127.0.0.2") || !Loopback("localhost") || !Loopback("::1") || Loopback("192.0.2.1") {
		t.Error("addresses")
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"name: a\ninner: {inner: {port: 3}}", "prefix: [10.0.0.0/8, ~]", "a: &b [*b]", "? {a: b} : c", "--- a\n--- b"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s sample
		faults, ok := Decode(data, "f", &s, sampleFormat)
		if !ok && faults.Err() == nil {
			t.Error("not decoded, and nothing is wrong")
		}
	})
}
