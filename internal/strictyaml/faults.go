// Package strictyaml reads configuration files, YAML into tagged structs, and reports all errors of
// a file at once, with line and field.
//
// [Decode] is strict: an unknown field, a duplicate field and a value of the wrong type are errors.
// It continues after each, so that the caller can check consistency, too, by the methods of
// [Faults], which ignore fields that could not be decoded. [Faults.Err] then returns all errors of
// the file.
//
// Struct fields have tags: `yaml:"name"` is a field's name, `absent:"true"` the default of a bool,
// and `words:"no,yes"` the names of its values. Fields are strings, bools, numbers, [netip.Addr],
// [netip.Prefix], [time.Duration], the types that [Format.Types] names, and structs, slices and
// pointers of these.
//
// It opens only the files passed to [ReadFile].
package strictyaml

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
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

// Faults are what was found so far, and where fields stand. The zero Faults are those of
// a configuration that did not come from a file.
type Faults struct {
	file    string
	lines   map[string]int // of each field that is in the file
	list    []*Error
	decoded []*Error // those of list that Decode found
}

// Add adds a fault of a field.
func (f *Faults) Add(path, format string, args ...any) { f.addAt(f.Line(path), path, format, args...) }

func (f *Faults) addAt(line int, path, format string, args ...any) {
	f.list = append(f.list, &Error{f.file, line, path, fmt.Sprintf(format, args...)})
}

// Has says whether a field is in the file.
func (f *Faults) Has(path string) bool { return f.lines[path] != 0 }

// Fields are the paths of all fields that are in the file, in no order.
func (f *Faults) Fields() iter.Seq[string] { return maps.Keys(f.lines) }

// Line returns the line of a field, or of the last thing on the way to it that is
// there; 0 if nothing is.
func (f *Faults) Line(path string) int {
	for path != "" {
		if n, ok := f.lines[path]; ok {
			return n
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// Position names a field in a message: by its line if there is one.
func (f *Faults) Position(path string) string {
	if n := f.Line(path); n != 0 {
		return "line " + strconv.Itoa(n)
	}
	return path
}

// Unread reports whether something at path could not be decoded, so that what depends on
// it cannot be judged.
func (f *Faults) Unread(path string) bool {
	return slices.ContainsFunc(f.decoded, func(e *Error) bool {
		return e.Path != "" && (within(e.Path, path) || within(path, e.Path))
	})
}

// within reports whether path is the field outer or lies in it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// Err joins one [*Error] for each fault, in the order of the file, up to 20 of them. It
// is nil if there are none.
func (f *Faults) Err() error {
	f.list = slices.DeleteFunc(f.list, func(e *Error) bool {
		return e.Path != "" && !slices.Contains(f.decoded, e) && f.Unread(e.Path)
	})
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
