package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// maxErrors bounds how many faults are reported.
const maxErrors = 20

// An Error is a fault in a configuration.
type Error struct {
	File string // empty if it did not come from a file
	Line int    // 0: of the file as a whole
	Path string // the field, as ports[2].mac; empty: the whole
	Msg  string
}

// Error returns "file:line: field: what is wrong".
func (e *Error) Error() string {
	text := cmp.Or(e.File, "config")
	if e.Line != 0 {
		text += ":" + strconv.Itoa(e.Line)
	}
	if e.Path != "" {
		text += ": " + e.Path
	}
	return text + ": " + e.Msg
}

// faults are what was found so far, and where fields stand.
type faults struct {
	file  string
	lines map[string]int // of each field that is in the file
	list  []*Error
}

func (f *faults) add(path, format string, args ...any) { f.addAt(f.line(path), path, format, args...) }

func (f *faults) addAt(line int, path, format string, args ...any) {
	f.list = append(f.list, &Error{f.file, line, path, fmt.Sprintf(format, args...)})
}

// line returns the line of a field, or of the last thing on the way to it that
// is there.
func (f *faults) line(path string) int {
	for path != "" {
		if n, ok := f.lines[path]; ok {
			return n
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// place names a field in a message: by its line if there is one.
func (f *faults) place(path string) string {
	if n := f.line(path); n != 0 {
		return "line " + strconv.Itoa(n)
	}
	return path
}

// within reports whether path is the field outer or lies in it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	slices.SortStableFunc(f.list, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	var list []error
	for i, e := range f.list {
		if i == maxErrors {
			list = append(list, fmt.Errorf("and %d more", len(f.list)-i))
			break
		}
		list = append(list, e)
	}
	return errors.Join(list...)
}

// Parse reads a configuration; name is what messages call the file. Defaults
// are set, and the result is valid. The error joins one [*Error] for each fault,
// in the order of the file, up to 20 of them.
func Parse(data []byte, name string) (*Config, error) {
	d := &decoder{faults{file: name, lines: map[string]int{}}}
	root := d.document(data)
	if root == nil {
		return nil, d.err()
	}
	c := &Config{}
	d.value(root, "", reflect.ValueOf(c).Elem())
	for i := range c.Ports {
		if p := &c.Ports[i]; d.lines[fmt.Sprintf("ports[%d].hello", i)] == 0 {
			p.Hello = p.To != ""
		}
	}
	settle := c.Routing.Settle
	c.SetDefaults()
	if d.lines["routing.settle"] != 0 {
		c.Routing.Settle = settle // 0 is a value here
	}
	(&checker{faults: &d.faults, c: c}).check()
	if err := d.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// A decoder turns YAML into the tagged structs of this package. It goes on after
// a fault, and keeps the lines of all fields.
type decoder struct{ faults }

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(?s:(.*))$`)

// document returns the one document of the file, or nil after a fault.
func (d *decoder) document(data []byte) *yaml.Node {
	if len(data) > MaxFile {
		d.add("", "more than %d bytes", MaxFile)
		return nil
	}
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&doc)
	if err == nil && !errors.Is(dec.Decode(&second), io.EOF) {
		d.add("", "more than one document: want a single one, without a second \"---\"")
		return nil
	}
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		return &yaml.Node{Kind: yaml.MappingNode} // empty: everything is missing
	case err != nil:
		m := yamlLine.FindStringSubmatch(err.Error())
		line, _ := strconv.Atoi(m[1]) // digits or nothing; a line that overflows is no line
		d.addAt(line, "", "%s", m[2])
		return nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		d.addAt(root.Line, "", "%s is no configuration: want fields, as name: torA", text(root))
		return nil
	}
	return root
}

// value decodes n, which stands at path, into v.
func (d *decoder) value(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind == yaml.AliasNode {
		d.lines[path] = n.Line
		d.add(path, "aliases are not supported: write *%s out", n.Value)
		return
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return // as if it were not there
	}
	if path != "" {
		d.lines[path] = n.Line
	}
	switch leaf := v.Addr().Interface().(type) {
	case *netip.Addr:
		decode(d, n, path, leaf, netip.ParseAddr, "an address, as 10.1.0.7")
		return
	case *netip.Prefix:
		decode(d, n, path, leaf, netip.ParsePrefix, "a prefix, as 10.1.0.0/24")
		return
	case *switchspec.MAC:
		decode(d, n, path, (*routing.MAC)(leaf), routing.ParseMAC, "a MAC address, as 02:00:00:00:00:01")
		return
	case *time.Duration:
		decode(d, n, path, leaf, time.ParseDuration, "a time with its unit, as 50ms or 5s")
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, path, v.Elem())
	case reflect.Struct:
		d.mapping(n, path, v)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.add(path, "want a list, as [%s]", text(n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			if item.ShortTag() == "!!null" {
				d.lines[at] = item.Line
				d.add(at, "empty")
				continue
			}
			d.value(item, at, v.Index(i))
		}
	case reflect.String:
		decodeTo(d, n, path, v, func(s string) (string, error) { return s, nil }, "a string")
	case reflect.Bool:
		decodeTo(d, n, path, v, strictBool(n), "true or false")
	case reflect.Int:
		decodeTo(d, n, path, v, func(s string) (int64, error) { return strconv.ParseInt(s, 0, 64) }, "a whole number")
	case reflect.Float64:
		decodeTo(d, n, path, v, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, "a number, as 0.1")
	default: // the unsigned ones
		bits := v.Type().Bits()
		decodeTo(d, n, path, v, func(s string) (uint64, error) { return strconv.ParseUint(s, 0, bits) },
			fmt.Sprintf("a whole number from 0 to %d", ^uint64(0)>>(64-bits)))
	}
}

func strictBool(n *yaml.Node) func(string) (bool, error) {
	return func(s string) (bool, error) {
		if n.ShortTag() != "!!bool" {
			return false, strconv.ErrSyntax
		}
		return strconv.ParseBool(s)
	}
}

// decode parses a scalar; want says what it should be.
func decode[T any](d *decoder, n *yaml.Node, path string, to *T, parse func(string) (T, error), want string) {
	if n.Kind == yaml.ScalarNode {
		if n.Value == "" {
			return // as if it were not there
		}
		if v, err := parse(n.Value); err == nil {
			*to = v
			return
		}
	}
	d.add(path, "%s is not %s", text(n), want)
}

// decodeTo is decode for a value that reflection knows.
func decodeTo[T any](d *decoder, n *yaml.Node, path string, to reflect.Value, parse func(string) (T, error), want string) {
	var v T
	decode(d, n, path, &v, parse, want)
	to.Set(reflect.ValueOf(v).Convert(to.Type()))
}

// text shows what stands in the file.
func text(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "{…}"
	case yaml.SequenceNode:
		return "[…]"
	}
	return strconv.Quote(n.Value)
}

// mapping decodes the fields of a struct.
func (d *decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	fields := map[string]int{}
	var names []string
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if tag.Get("absent") == "true" {
			v.Field(i).SetBool(true)
		}
		fields[tag.Get("yaml")] = i
		names = append(names, tag.Get("yaml"))
	}
	if n.Kind != yaml.MappingNode {
		d.add(path, "want fields: %s", strings.Join(names, ", "))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		k, known := fields[key.Value]
		switch first := seen[key.Value]; {
		case !known || key.Kind != yaml.ScalarNode:
			d.addAt(key.Line, at, "unknown field: known are %s", strings.Join(names, ", "))
		case first != 0:
			d.addAt(key.Line, at, "is there already, in line %d", first)
		default:
			seen[key.Value] = key.Line
			d.field(value, at, v.Field(k), v.Type().Field(k).Tag.Get("words"))
		}
	}
}

// field decodes a field, which may be a bool with words of its own.
func (d *decoder) field(n *yaml.Node, path string, v reflect.Value, words string) {
	off, on, ok := strings.Cut(words, ",")
	if !ok {
		d.value(n, path, v)
		return
	}
	d.lines[path] = n.Line
	decodeTo(d, n, path, v, func(s string) (bool, error) {
		if s != off && s != on {
			return false, strconv.ErrSyntax
		}
		return s == on, nil
	}, off+" or "+on)
}
