package strictyaml

import (
	"cmp"
	"fmt"
)

// MaxFile is the largest file that Load accepts, in bytes.
const MaxFile = 1 << 20

// Load reads the configuration of what in the file called name by parse. Relative names of
// other files in it, its paths, count from the directory that it lies in. Errors are those
// of parse, or of reading.
func Load[C any](name, what string, format Format, parse func(data []byte, name string) (*C, error), paths func(*C) []*string) (*C, error) {
	data, err := ReadFile(name, format)
	if err != nil {
		return nil, fmt.Errorf("config: reading the %s's configuration: %w", what, err)
	}
	c, err := parse(data, name)
	if err != nil {
		return nil, err
	}
	Beside(name, paths(c)...)
	return c, nil
}

// Parse reads a file into a C that finish gives its defaults and judges. The error joins one
// [*Error] for each fault, in the order of the file, up to 20 of them; name is what messages
// call the file.
func Parse[C any](data []byte, name string, format Format, finish func(*Faults, *C)) (*C, error) {
	c := new(C)
	f, ok := Decode(data, name, c, format)
	if ok {
		finish(f, c)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Default sets what is not set.
func Default[T comparable](v *T, value T) {
	*v = cmp.Or(*v, value)
}

// DefaultAbove0 is Default for a field that is called path in a file, where a 0 is a fault. f is nil
// if there is no file.
func DefaultAbove0[T comparable](f *Faults, path string, v *T, value T, remedy string) {
	if f != nil && *v == *new(T) && f.Has(path) && !f.Unread(path) {
		f.Add(path, "0: want more; %s", remedy)
	}
	Default(v, value)
}
