//go:build !linux

package softroce

import (
	"errors"
	"net/url"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
)

func hostLink(string, url.Values) (func() (link.Link, error), error) {
	return nil, errors.New("the host's own stack can be used on Linux only; elsewhere there is the tunnel, as in softroce:10.0.0.1/24,tunnel=…")
}
