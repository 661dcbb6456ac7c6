//go:build !ibverbs || !cgo || !linux

package ibverbs

import (
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

func init() { qp.Register("ibverbs", Open, checkName) }

// Open returns an error that wraps qp.ErrDevice: this program was built
// without libibverbs.
func Open(arg string) (qp.Device, error) {
	if _, err := parseTarget(arg); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: this program was built without RDMA hardware support; "+
		"install libibverbs' development package (Debian: libibverbs-dev) and build with CGO_ENABLED=1 and -tags ibverbs",
		qp.ErrDevice)
}
