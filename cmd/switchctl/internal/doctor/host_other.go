//go:build !linux

package doctor

import "errors"

// Interfaces fails: only Linux's are known.
func Interfaces(names []string, ports bool) ([]Interface, error) {
	if len(names) == 0 && !ports {
		return nil, nil
	}
	return nil, errors.New("interfaces can be looked at on Linux only")
}
