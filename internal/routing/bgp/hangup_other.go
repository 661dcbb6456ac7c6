//go:build !linux

package bgp

import "errors"

func (s *Source) hangUp() (release func(), err error) {
	return func() {}, hangUpError(errors.ErrUnsupported)
}
