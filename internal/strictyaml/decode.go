package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// A Format is how one kind of file looks.
type Format struct {
	// MaxBytes is the largest file accepted.
	MaxBytes int
	// Example is a field with its value, for messages.
	Example string
	// Types are leaves beyond those that are built in.
	Types []Type
}

// A Type is a type of fields that are scalars in the file.
type Type struct {
	of    reflect.Type
	want  string
	parse func(string) (reflect.Value, error)
}

// Leaf makes a Type. want says in messages what a value should be, as "an address, as
// 10.1.0.7".
func Leaf[T any](want string, parse func(string) (T, error)) Type {
	return Type{reflect.TypeFor[T](), want, basic(parse)}
}

var builtin = []Type{
	Leaf("an address, as 10.1.0.7", netip.ParseAddr),
	Leaf("a prefix, as 10.1.0.0/24", netip.ParsePrefix),
	Leaf("a time with its unit, as 50ms or 5s", time.ParseDuration),
}

// ReadFile reads the file called name, up to what [Decode] refuses as too long.
func ReadFile(name string, format Format) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO that no process writes to reads as empty
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	return io.ReadAll(io.LimitReader(f, int64(format.MaxBytes)+1))
}

// Beside makes names of files that are relative to the directory of a file relative to the
// working directory, as that file's name is.
func Beside(file string, names ...*string) {
	for _, name := range names {
		if *name != "" && !filepath.IsAbs(*name) {
			*name = filepath.Join(filepath.Dir(file), *name)
		}
	}
}

// Decode decodes a file into the struct that into points to; name is what messages call
// the file. If it returns false, the file is no YAML of that kind, and nothing was
// decoded. The owner of a file calls its own checks and then Err.
func Decode(data []byte, name string, into any, format Format) (f *Faults, ok bool) {
	d := &decoder{Faults: Faults{file: name, lines: map[string]int{}}, format: format}
	root := d.document(data)
	if root != nil {
		d.value(root, "", reflect.ValueOf(into).Elem())
	}
	d.decoded = slices.Clone(d.list)
	return &d.Faults, root != nil
}

// A decoder goes on after a fault, and keeps the lines of all fields.
type decoder struct {
	Faults
	format Format
}

var (
	yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(?s:(.*))$`)
	// What the parser, rather than the scanner, of package yaml says. It counts these lines from 0.
	fromParser = regexp.MustCompile(`^did not find expected (<|key|node content|'-'|',')`)
)

// syntaxError adds an error of package yaml, whose lines are wrong in some cases.
func (d *decoder) syntaxError(data []byte, err error) {
	m := yamlLine.FindStringSubmatch(err.Error())
	line, _ := strconv.Atoi(m[1]) // digits or nothing; a line that overflows is no line
	switch {
	case fromParser.MatchString(m[2]):
		line = min(line+1, lines(bytes.TrimRight(data, "\n"))) // the end of a file is in its last line
	case line == 0: // in the first line, or it is no text
		line = lines(data[:max(bytes.IndexFunc(data, noText), 0)])
	}
	if all := bytes.Split(data, []byte("\n")); line > 0 && line <= len(all) && bytes.HasPrefix(bytes.TrimLeft(all[line-1], " "), []byte("\t")) {
		d.addAt(line, "", "a tab: want spaces at the beginning of a line")
		return
	}
	d.addAt(line, "", "%s", m[2])
}

// lines counts the lines that text reaches into.
func lines(text []byte) int { return bytes.Count(text, []byte("\n")) + 1 }

func noText(r rune) bool {
	return r == unicode.ReplacementChar || unicode.IsControl(r) && !strings.ContainsRune("\t\r\n", r)
}

// document returns the one document of the file, or nil after a fault.
func (d *decoder) document(data []byte) *yaml.Node {
	if len(data) > d.format.MaxBytes {
		d.Add("", "more than %d bytes", d.format.MaxBytes)
		return nil
	}
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&doc)
	if err == nil && !errors.Is(dec.Decode(&second), io.EOF) {
		d.Add("", "more than one document: want a single one, without a second \"---\"")
		return nil
	}
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		return &yaml.Node{Kind: yaml.MappingNode} // empty: everything is missing
	case err != nil:
		d.syntaxError(data, err)
		return nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		d.addAt(root.Line, "", "%s is not a configuration: want fields, as %s", text(root), d.format.Example)
		return nil
	}
	return root
}

// value decodes n, which stands at path, into v.
func (d *decoder) value(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind == yaml.AliasNode {
		d.lines[path] = n.Line
		d.Add(path, "aliases are not supported: write *%s out", n.Value)
		return
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return // as if it were not there
	}
	if path != "" {
		d.lines[path] = n.Line
	}
	for _, t := range slices.Concat(builtin, d.format.Types) {
		if t.of == v.Type() {
			decodeTo(d, n, path, v, t.parse, t.want)
			return
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, path, v.Elem())
	case reflect.Struct:
		d.mapping(n, path, v)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.Add(path, "want a list, as [%s]", text(n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			if item.ShortTag() == "!!null" || item.Kind == yaml.ScalarNode && item.Value == "" {
				d.lines[at] = item.Line
				d.Add(at, "empty")
				continue
			}
			d.value(item, at, v.Index(i))
		}
	case reflect.String:
		decodeTo(d, n, path, v, basic(func(s string) (string, error) { return s, nil }), "a string")
	case reflect.Bool:
		decodeTo(d, n, path, v, basic(strictBool(n)), "true or false")
	case reflect.Int:
		decodeTo(d, n, path, v, basic(func(s string) (int64, error) { return strconv.ParseInt(s, 0, 64) }), "a whole number")
	case reflect.Float64:
		decodeTo(d, n, path, v, basic(func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }), "a number, as 0.1")
	default: // the unsigned ones
		bits := v.Type().Bits()
		decodeTo(d, n, path, v, basic(func(s string) (uint64, error) { return strconv.ParseUint(s, 0, bits) }),
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

// decodeTo parses a scalar; want says what it should be.
func decodeTo(d *decoder, n *yaml.Node, path string, to reflect.Value, parse func(string) (reflect.Value, error), want string) {
	to.SetZero()
	if n.Kind == yaml.ScalarNode {
		if n.Value == "" {
			return // as if it were not there
		}
		if v, err := parse(n.Value); err == nil {
			to.Set(v.Convert(to.Type()))
			return
		}
	}
	d.Add(path, "%s is not %s", text(n), want)
}

// basic parses a value of a kind that Go has of its own.
func basic[T any](parse func(string) (T, error)) func(string) (reflect.Value, error) {
	return func(s string) (reflect.Value, error) {
		v, err := parse(s)
		return reflect.ValueOf(v), err
	}
}

// text shows what stands in the file.
func text(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "{…}"
	case yaml.SequenceNode:
		return "[…]"
	}
	if utf8.RuneCountInString(n.Value) > maxShown {
		return fmt.Sprintf("%.*q…", maxShown, n.Value) // another file may have been named by mistake, which has secrets
	}
	return strconv.Quote(n.Value)
}

// maxShown is how many characters of a value an error shows.
const maxShown = 60

// mapping decodes the fields of a struct.
func (d *decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	fields := map[string]int{}
	var names []string
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if tag.Get("absent") == "true" {
			v.Field(i).SetBool(true)
		}
		if name, ok := tag.Lookup("yaml"); ok {
			fields[name] = i
			names = append(names, name)
		}
	}
	if n.Kind != yaml.MappingNode {
		d.Add(path, "want fields: %s", strings.Join(names, ", "))
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
	decodeTo(d, n, path, v, basic(func(s string) (bool, error) {
		if s != off && s != on {
			return false, strconv.ErrSyntax
		}
		return s == on, nil
	}), off+" or "+on)
}
