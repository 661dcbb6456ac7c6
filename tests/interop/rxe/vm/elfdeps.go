package vm

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// errLibrary is wrapped if a shared library cannot be found.
var errLibrary = errors.New("vm: shared library not found")

// libraries returns the files of all shared libraries that the ELF files need,
// by the name under which the loader looks for them, searching dirs in order.
func libraries(files, dirs []string) (map[string]string, error) {
	out := map[string]string{}
	for len(files) > 0 {
		file := files[0]
		files = files[1:]
		f, err := elf.Open(file)
		if err != nil {
			return nil, fmt.Errorf("vm: %s: %w", file, err)
		}
		needed, err := f.ImportedLibraries()
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("vm: %s: %w", file, err)
		}
		for _, name := range needed {
			if out[name] != "" {
				continue
			}
			if out[name] = findIn(dirs, name); out[name] == "" {
				return nil, fmt.Errorf("%w: %s, needed by %s, is not in %v", errLibrary, name, file, dirs)
			}
			files = append(files, out[name])
		}
	}
	return out, nil
}

func findIn(dirs []string, name string) string {
	for _, d := range dirs {
		p := filepath.Join(d, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			return p
		}
	}
	return ""
}
